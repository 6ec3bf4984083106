//! Subcommands that look at locks and intervene, and the [`LockTarget`] that they look at.
//!
//! They look through the stores' inspectors and never compete: none makes a [`crate::lease::LeaseStore`]. Only
//! `break` and `reset` change a lock, and only `doctor` writes, to things of its own. They must never guess a
//! lock that was not named.

mod doctor;
mod intervene;
mod look;
mod others;
mod timeline;

use std::sync::Once;
use std::time::Duration;

use crate::args;
use crate::azure::Account;
use crate::clock::Instant;
use crate::config::{Named, UsageError, options};
use crate::core::Failure;
use crate::host::{self, variable};
use crate::lease::helper::HelperLock;
use crate::lease::inspect::{Inspector, LockState, LockStatus};
use crate::lease::{NamedLock as _, at_path, blob};
use crate::report::answer;
use crate::runtime::runtime;

pub(crate) use doctor::{doctor, find_locked};
pub(crate) use intervene::{break_lease, reset};
pub(crate) use look::{list, status, watch};
pub(crate) use others::{check, completions, man};
pub(crate) use timeline::timeline;

// As long as one attempt to renew.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
// One lost packet is no answer; three are one.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(500);
// For a file and all its slots: its drive may hang, and an operator who asks because of that wants an answer.
const FILE: Duration = Duration::from_secs(6);
// A page of a list is one request, and a container can have hundreds.
const LISTING: Duration = Duration::from_secs(120);

fn named(typed: &args::TheLock) -> Result<Named<'_>, UsageError> {
    let (blob, file) = (typed.blob.as_deref(), typed.file.as_deref());
    Named::new(blob, file, typed.store.as_deref())
}

/// Sends no request yet.
fn target(
    named: Named<'_>,
    parse: fn(&str) -> Result<blob::Target, blob::TargetError>,
    emulator: bool,
    access: &args::Access,
) -> anyhow::Result<LockTarget> {
    let inspector: Box<dyn Inspector> = match named {
        Named::Blob(text) => {
            let target = parse(text).map_err(|why| UsageError::new(why.to_string()))?;
            let account = account(&target, emulator, access)?;
            Box::new(blob::BlobInspector::open(target, &account)?)
        }
        Named::File(path) => {
            // The files there, not a flag, tell whether it is kept as on a shared drive.
            at_path(path, false, 1)?.inspector()?
        }
        Named::Store(helper, name) => {
            HelperLock::new(helper, name, host::path().as_deref())?.inspector()?
        }
    };
    Ok(LockTarget {
        inspector,
        warned: Once::new(),
    })
}

fn account(
    target: &blob::Target,
    emulator: bool,
    access: &args::Access,
) -> Result<Account, UsageError> {
    let options = options(emulator, access);
    Account::find(&variable, &options, target.url()).map_err(|why| UsageError::new(why.to_string()))
}

enum Seen {
    /// Lock, which may not exist yet.
    Lock(Box<LockStatus>),
    /// Sorted by number: 10 comes after 9.
    Slots(Vec<LockStatus>),
}

impl Seen {
    fn all(&self) -> &[LockStatus] {
        match self {
            Seen::Lock(seen) => std::slice::from_ref(seen),
            Seen::Slots(slots) => slots,
        }
    }
}

struct LockTarget {
    inspector: Box<dyn Inspector>,
    // `watch` would repeat the warning with each look.
    warned: Once,
}

impl LockTarget {
    fn of(typed: &args::TheLock) -> anyhow::Result<LockTarget> {
        target(
            named(typed)?,
            blob::Target::parse,
            typed.emulator,
            &typed.access,
        )
    }

    /// Opens a container, a directory or a helper's prefix.
    fn of_listing(typed: &args::List) -> anyhow::Result<LockTarget> {
        if typed.blob.is_none() && typed.file.is_none() && typed.store.is_none() {
            return Err(UsageError::new(
                "nothing to list: name a container with --blob CONTAINER, a directory with --file DIRECTORY, \
                 or --store HELPER:PREFIX",
            )
            .into());
        }
        let file = typed.file.as_deref();
        let named = Named::new(typed.blob.as_deref(), file, typed.store.as_deref())?;
        target(
            named,
            blob::Target::of_listing,
            typed.emulator,
            &typed.access,
        )
    }

    fn lock(&self) -> String {
        self.inspector.lock()
    }

    async fn look(&self) -> Result<LockStatus, Failure> {
        self.inspector.look(Instant::now() + LOOK_TIMEOUT).await
    }

    /// Returns when to give up; a drive that hangs has one limit for everything.
    fn limit(&self) -> Instant {
        Instant::now()
            + if self.inspector.hangs() {
                FILE
            } else {
                LISTING
            }
    }

    async fn look_patiently(&self, give_up_at: Instant) -> Result<LockStatus, Failure> {
        // A second look would wait behind the first, for the same server.
        if self.inspector.hangs() {
            return self.inspector.look(give_up_at).await;
        }
        for _ in 1..TRIES {
            match self.look().await {
                Err(Failure::Transient { .. }) => tokio::time::sleep(PAUSE).await,
                known => return known,
            }
        }
        self.look().await
    }

    async fn look_under_the_name_patiently(&self) -> Result<Seen, Failure> {
        let limit = self.limit();
        self.or_slots(self.look_patiently(limit).await?, limit)
            .await
    }

    /// Looks once at the lock or, if `run --slots` has made slots of its name, at all that were ever held.
    async fn look_under_the_name(&self) -> Result<Seen, Failure> {
        let limit = self.limit();
        self.or_slots(self.look().await?, limit).await
    }

    /// Looks patiently at one lock; fails with a [`UsageError`] that names the slots.
    async fn look_at_one(&self) -> anyhow::Result<LockStatus> {
        let slots = match self.look_under_the_name_patiently().await? {
            Seen::Lock(seen) => return Ok(*seen),
            Seen::Slots(slots) => slots,
        };
        let state = |slot: &LockStatus| match slot.state {
            LockState::Held | LockState::Breaking => format!("{} (held)", slot.name),
            LockState::Free | LockState::Missing => slot.name.clone(),
        };
        let names: Vec<String> = slots.iter().map(state).collect();
        Err(UsageError::new(format!(
            "{} is the name of slots: name one of them: {}",
            self.lock(),
            names.join(", ")
        ))
        .into())
    }

    async fn or_slots(&self, seen: LockStatus, give_up_at: Instant) -> Result<Seen, Failure> {
        // Most callers are spared the list.
        if seen.state != LockState::Missing {
            return Ok(Seen::Lock(Box::new(seen)));
        }
        let found = match self.inspector.list(".", give_up_at).await {
            // A credential that may read the lock (a SAS) may be refused the list, which the user did not ask for.
            Err(Failure::Fatal { why, denied: true }) => {
                self.warned.call_once(|| {
                    tracing::warn!("slots of this name cannot be looked for: {why}");
                });
                return Ok(Seen::Lock(Box::new(seen)));
            }
            found => found?,
        };
        let prefix = format!("{}.", seen.name);
        // `NAME.backup` and the like are no slots.
        let number = |slot: &LockStatus| slot.name.strip_prefix(&prefix)?.parse::<u32>().ok();
        let mut slots: Vec<LockStatus> = found
            .into_iter()
            .filter(|slot| number(slot).is_some())
            .collect();
        slots.sort_by_key(|slot| number(slot));
        Ok(if slots.is_empty() {
            Seen::Lock(Box::new(seen))
        } else {
            Seen::Slots(slots)
        })
    }

    async fn list(&self) -> Result<Vec<LockStatus>, Failure> {
        self.inspector.list("", self.limit()).await
    }
}

/// Does not let what hangs (name resolution, a dead mount) keep the process.
fn run<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    runtime()?.block_on(command)
}
