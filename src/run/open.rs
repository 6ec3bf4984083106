//! Opens the config's store, with what the guardian needs to release its lease.

use std::sync::Arc;

use crate::azure::Account;
use crate::config::{Config, UsageError};
use crate::core::Ending;
use crate::doorbell::{Doorbell, Unbound};
use crate::guardian::SharedBytes;
use crate::host;
use crate::lease::record::Candidate;
use crate::lease::slots::Slots;
use crate::lease::{self, Competitor, LeaseStore, OpenError, SharedMemory, blob};
use crate::units::show;

fn with_slots_to_look_at(slots: Slots, config: &Config) -> Slots {
    if config.looks_once() {
        // The only look must cover every slot.
        slots.looking_at_all()
    } else {
        slots
    }
}

pub(crate) struct Opened {
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) doorbell: Option<Doorbell>,
}

/// Opens the store. The inner error means that the lock's local file cannot be opened.
pub(crate) fn open(config: &Config) -> anyhow::Result<Result<Opened, Ending>> {
    let lock = config
        .lock
        .find(config.slots, blob::Target::parse, prepared)?;
    let info = lock.info();
    // Before the store is opened: its record has the doorbell's address.
    let doorbell = config
        .doorbell
        .filter(|_| info.uses_doorbell)
        .map(|wanted| Doorbell::bind(wanted, info.host.as_deref()))
        .transpose()
        .map_err(|why| match why {
            Unbound::Machine(why) => UsageError::of_the_machine(why),
            Unbound::Setting(why) => UsageError::new(why),
        })?;
    if let Some(doorbell) = &doorbell {
        doorbell.warn();
    }
    if !info.leases.contains(&config.lease) {
        let (shortest, longest) = info.leases.clone().into_inner();
        return Err(UsageError::new(format!(
            "--lease {}: {} a lease lasts {}s to {}s: take {}",
            show(config.lease),
            info.place,
            shortest.as_secs(),
            longest.as_secs(),
            show(config.lease.clamp(shortest, longest)),
        ))
        .into());
    }
    info.warn();
    let candidate = Candidate {
        bell: doorbell.as_ref().map(Doorbell::bell),
        ..config.candidate.clone()
    };
    let competitor = Competitor {
        task: config.task.clone(),
        memory: Some(release_memory),
        runtime_directories: lease::runtime_directories(host::runtime_directory().as_deref()),
        mkdir_is_exclusive: config.lock.mkdir_is_exclusive(),
        // A single lock's first attempt may run in this thread. Slots open later, when a command may run, and a
        // disk that hangs must not hold it up.
        in_place: config.slots == 1,
        ..Competitor::new(candidate, config.lease)
    };
    let opened = match config.slots {
        1 => lock.open(&competitor),
        count => Slots::open(lock, count, competitor)
            .map(|slots| -> Arc<dyn LeaseStore> { Arc::new(with_slots_to_look_at(slots, config)) }),
    };
    match opened {
        Ok(store) => {
            // After a shorter cool-down this instance would compete again before a polling standby has looked.
            if !store.info().wakes {
                config.refuse_short_cooldown()?;
            }
            Ok(Ok(Opened { store, doorbell }))
        }
        // Opening touches only a local file, so the file failed and the settings are not at fault.
        Err(OpenError::File(error)) => Ok(Err(Ending::of_store(error.why, error.denied))),
        // The slot's number makes the name too long.
        Err(OpenError::Blob(error)) if config.slots > 1 => {
            Err(UsageError::new(error.to_string()).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Prepares the account for the guardian.
fn prepared(account: Account) -> Account {
    #[cfg(feature = "entra")]
    let account = handed_on(account);
    // Before the guardian is forked: it has only what this process has by then.
    blob::prepare_orphan_release(account.clone());
    tracing::debug!("credential: {}", account.kind());
    account
}

fn release_memory() -> Option<Arc<dyn SharedMemory>> {
    match SharedBytes::new() {
        Ok(memory) => Some(Arc::new(memory)),
        // Without it, a killed supervisor costs one lease's length.
        Err(why) => {
            tracing::warn!(
                "the guardian does not know what to release ({why}): if trafficcop dies, a standby waits a whole lease"
            );
            None
        }
    }
}

/// Shares the token with the guardian. It never reaches a command line, an environment, a file or the
/// command.
#[cfg(feature = "entra")]
fn handed_on(account: Account) -> Account {
    // The guardian can request one. But with a slow issuer, the supervisor's death would cost a whole lease.
    account.with_shared_token(|| match SharedBytes::new() {
        Ok(shared) => Some(Arc::new(shared)),
        Err(why) => {
            tracing::warn!(
                "the guardian has no token ({why}): if trafficcop dies, a standby may wait a whole lease"
            );
            None
        }
    })
}
