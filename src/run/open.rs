//! Opening the store of a plan, with what the guardian needs to give its lease back after our death.
//!
//! Called by `run` and `elect` before the guardian is forked.

use std::path::Path;
use std::sync::Arc;

use tracing::Level;

use crate::azure::Account;
use crate::config::{Config, Lock, UsageError};
use crate::core::Ending;
use crate::core::observed::{LONGEST_LEASE, SHORTEST_LEASE};
use crate::guardian::SharedBytes;
use crate::host;
use crate::lease::shared_file::{self, SharedFile};
use crate::lease::slots::{self, Slots};
use crate::lease::{self, LeaseStore, blob, file};
use crate::report;
use crate::units::show;

/// Whoever looks once (`-n`) looks at all slots.
fn looking(slots: Slots, plan: &Config) -> Slots {
    if plan.looks_once() {
        slots.looking_at_all()
    } else {
        slots
    }
}

/// How loud it is said that we begin: whoever looks once and finds the lock held says one line.
pub(super) fn beginning(plan: &Config) -> Level {
    if plan.looks_once() {
        Level::DEBUG
    } else {
        Level::INFO
    }
}

/// The store of the plan; what speaks against it before anything is started comes as an ending.
pub(crate) fn open(plan: &Config) -> anyhow::Result<Result<Arc<dyn LeaseStore>, Ending>> {
    match &plan.lock {
        Lock::Blob {
            target,
            options,
            create,
            page_blob,
        } => {
            let refuse = |why: String| UsageError::new(why);
            let target = blob::Target::parse(target).map_err(|why| refuse(why.to_string()))?;
            let account = Account::find(&host::variable, options, target.url())
                .map_err(|why| refuse(why.to_string()))?;
            #[cfg(feature = "entra")]
            let account = handed_on(account);
            // Now, because the guardian that may need it is forked from us as we are.
            blob::prepare_orphan_release(account.clone());
            report::emit!(beginning(plan), "credential: {}", account.kind());
            let config = blob::Config {
                target,
                account,
                lease: plan.lease,
                candidate: plan.candidate.clone(),
                create: *create,
                page_blob: *page_blob,
            };
            Ok(Ok(if plan.slots > 1 {
                let slots = Slots::of_blobs(config, plan.slots);
                let slots = slots.map_err(|why| refuse(why.to_string()))?;
                Arc::new(looking(slots, plan))
            } else {
                let store = blob::Blob::open(config)?;
                Arc::new(match &plan.task {
                    Some(task) => store.with_task(task.clone()),
                    None => store,
                })
            }))
        }
        Lock::File { path, shared } => {
            let first = match plan.slots {
                1 => path.clone(),
                _ => slots::path_of(path, 0),
            };
            if *shared || file::is_shared(&first) {
                return Ok(Ok(open_shared(plan, path)?));
            }
            let config = file::Config {
                path: path.clone(),
                candidate: plan.candidate.clone(),
                create: true,
            };
            let opened: Result<Arc<dyn LeaseStore>, _> = if plan.slots > 1 {
                Slots::of_files(config, plan.slots).map(|slots| Arc::new(looking(slots, plan)) as _)
            } else {
                file::File::open(config).map(|store| {
                    let store = store.competing_in_place();
                    Arc::new(match &plan.task {
                        Some(task) => store.with_task(task.clone()),
                        None => store,
                    }) as _
                })
            };
            Ok(opened.map_err(|why| Ending::of_store(why.to_string(), why.denied)))
        }
    }
}

/// The store of a lock on a shared drive. The drive is not asked anything yet: it may hang.
fn open_shared(plan: &Config, path: &Path) -> anyhow::Result<Arc<dyn LeaseStore>> {
    let leases = SHORTEST_LEASE..=LONGEST_LEASE;
    if !leases.contains(&plan.lease) {
        return Err(UsageError::new(format!(
            "--lease {}: on a shared drive a lease lasts 10s to 60s: take {}",
            show(plan.lease),
            show(plan.lease.clamp(SHORTEST_LEASE, LONGEST_LEASE)),
        ))
        .into());
    }
    // Not refused: what the mount says of itself is a hint, and whoever runs it may know better.
    lease::mount::of(path).warn_about(path);
    let memory = match SharedBytes::new() {
        Ok(memory) => Some(shared_file::prepare_release(Arc::new(memory))),
        // Worth a line, not a refusal: it costs a lease's length, and only should we be killed.
        Err(why) => {
            tracing::warn!(
                "the guardian cannot be told what to release ({why}): should we die, the lease runs out"
            );
            None
        }
    };
    let config = shared_file::Config {
        path: path.to_owned(),
        candidate: plan.candidate.clone(),
        lease: plan.lease,
        task: plan.task.clone(),
        memory,
        runtime: host::runtime_directory(),
    };
    Ok(if plan.slots > 1 {
        Arc::new(looking(Slots::of_shared_files(config, plan.slots)?, plan))
    } else {
        Arc::new(SharedFile::open(config)?)
    })
}

/// The account, with a token that the guardian will have too. It never reaches a command line, an
/// environment or a file, and the command, which is another program, does not have it.
#[cfg(feature = "entra")]
fn handed_on(account: Account) -> Account {
    // The guardian could ask for a token of its own, and does where there is none here. But where the
    // issuer is away or slow just then, our death would cost a whole lease instead of seconds.
    account.with_shared_token(|| match SharedBytes::new() {
        Ok(shared) => Some(Arc::new(shared)),
        Err(why) => {
            tracing::warn!(
                "the guardian will have no token of its own ({why}): should we die, it asks for one"
            );
            None
        }
    })
}
