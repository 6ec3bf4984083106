//! Opens the config's store, with what the guardian needs to release its lease.

use std::sync::Arc;

use crate::azure::Account;
use crate::config::{Config, Lock, UsageError};
use crate::core::Ending;
use crate::doorbell::{Doorbell, Unbound};
use crate::guardian::SharedBytes;
use crate::host;
use crate::lease::helper::HelperLock;
use crate::lease::record::Candidate;
use crate::lease::slots::Slots;
use crate::lease::{self, Competitor, LeaseStore, NamedLock, OpenError, SharedMemory, blob};
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
    let lock = named_lock(config)?;
    let host = lock.host();
    // Before the store is opened: its record has the doorbell's address.
    let doorbell = config
        .doorbell
        .filter(|_| lock.uses_doorbell())
        .map(|wanted| Doorbell::bind(wanted, host.as_deref()))
        .transpose()
        .map_err(|why| match why {
            Unbound::Machine(why) => UsageError::of_the_machine(why),
            Unbound::Setting(why) => UsageError::new(why),
        })?;
    if let Some(doorbell) = &doorbell {
        doorbell.warn();
    }
    let leases = lock.leases();
    if !leases.contains(&config.lease) {
        let (shortest, longest) = leases.into_inner();
        let place = match config.lock {
            Lock::Store { .. } => "in a helper's store",
            // A blob's lease was checked before.
            Lock::Blob { .. } | Lock::File { .. } => "on a shared drive",
        };
        return Err(UsageError::new(format!(
            "--lease {}: {place} a lease lasts {}s to {}s: take {}",
            show(config.lease),
            shortest.as_secs(),
            longest.as_secs(),
            show(config.lease.clamp(shortest, longest)),
        ))
        .into());
    }
    lock.warn();
    let candidate = Candidate {
        bell: doorbell.as_ref().map(Doorbell::bell),
        ..config.candidate.clone()
    };
    let competitor = Competitor {
        task: config.task.clone(),
        memory: Some(release_memory),
        runtime_directories: lease::runtime_directories(host::runtime_directory().as_deref()),
        mkdir_is_exclusive: matches!(
            config.lock,
            Lock::File {
                mkdir_is_exclusive: true,
                ..
            }
        ),
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
            // After a shorter one this instance would compete again before a polling standby looks.
            if !store.info().wakes {
                config.refuse_short_cooldown()?;
            }
            Ok(Ok(Opened { store, doorbell }))
        }
        // Opening touches only a local file, so the file failed and the settings are not at fault.
        Err(OpenError::File(error)) => Ok(Err(Ending::of_store(error.why, error.denied))),
        // A name too long with a slot's number.
        Err(OpenError::Blob(error)) if config.slots > 1 => {
            Err(UsageError::new(error.to_string()).into())
        }
        Err(error) => Err(error.into()),
    }
}

fn named_lock(config: &Config) -> anyhow::Result<Arc<dyn NamedLock>> {
    let (target, options, create, page_blob) = match &config.lock {
        Lock::Blob {
            target,
            options,
            create,
            page_blob,
        } => (target, options, *create, *page_blob),
        Lock::File { path, shared, .. } => return Ok(lease::at_path(path, *shared, config.slots)?),
        Lock::Store { helper, name } => {
            return Ok(Arc::new(HelperLock::new(
                helper,
                name,
                host::path().as_deref(),
            )?));
        }
    };
    let target = blob::Target::parse(target).map_err(|why| UsageError::new(why.to_string()))?;
    let account = Account::find(&host::variable, options, target.url())
        .map_err(|why| UsageError::new(why.to_string()))?;
    #[cfg(feature = "entra")]
    let account = handed_on(account);
    // Now: the guardian becomes a copy of this process.
    blob::prepare_orphan_release(account.clone());
    tracing::debug!("credential: {}", account.kind());
    Ok(Arc::new(blob::BlobLock {
        target,
        account,
        create,
        page_blob,
    }))
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
