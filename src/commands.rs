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
use crate::clock::Instant;
use crate::config::{Lock, UsageError, options};
use crate::core::Failure;
use crate::lease::LockInfo;
use crate::lease::blob::{Target, TargetError};
use crate::lease::inspect::{Inspector, LockState, LockStatus};
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
// For a file and all its slots: an operator who asks because a drive hangs wants an answer.
const FILE: Duration = Duration::from_secs(6);
// A container's list can have hundreds of pages, each a request.
const LISTING: Duration = Duration::from_secs(120);

fn named(typed: &args::TheLock) -> Result<Lock, UsageError> {
    let options = options(typed.emulator, &typed.access);
    Lock::named(&typed.blob, &typed.file, &typed.store, options)
}

struct Seen {
    of_slots: bool,
    /// The lock, which may not exist yet; or its slots by number: 10 comes after 9.
    all: Vec<LockStatus>,
}

impl Seen {
    fn lock(seen: LockStatus) -> Seen {
        Seen {
            of_slots: false,
            all: vec![seen],
        }
    }
}

struct LockTarget {
    info: LockInfo,
    inspector: Box<dyn Inspector>,
    // `watch` would repeat the warning with each look.
    warned: Once,
}

impl LockTarget {
    fn of(typed: &args::TheLock) -> anyhow::Result<LockTarget> {
        LockTarget::open(&named(typed)?, Target::parse)
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
        let options = options(typed.emulator, &typed.access);
        let named = Lock::named(&typed.blob, &typed.file, &typed.store, options)?;
        LockTarget::open(&named, Target::of_listing)
    }

    /// Sends no request yet.
    fn open(
        named: &Lock,
        parse: fn(&str) -> Result<Target, TargetError>,
    ) -> anyhow::Result<LockTarget> {
        let lock = named.find(1, parse, |account| account)?;
        Ok(LockTarget {
            info: lock.info(),
            inspector: lock.inspector()?,
            warned: Once::new(),
        })
    }

    /// Returns when to give up; a drive that hangs has one limit for everything.
    fn limit(&self) -> Instant {
        let hangs = self.info.look_can_hang;
        Instant::now() + if hangs { FILE } else { LISTING }
    }

    async fn look(&self) -> Result<LockStatus, Failure> {
        self.inspector.look(Instant::now() + LOOK_TIMEOUT).await
    }

    async fn look_patiently(&self, give_up_at: Instant) -> Result<LockStatus, Failure> {
        // A second look would wait behind the first, for the same server.
        if self.info.look_can_hang {
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

    /// Looks at the lock or, if `run --slots` has made slots of its name, at all that were ever held.
    async fn look_under_the_name(&self, patiently: bool) -> Result<Seen, Failure> {
        let limit = self.limit();
        let seen = match patiently {
            true => self.look_patiently(limit).await?,
            false => self.look().await?,
        };
        // Most callers are spared the list.
        if seen.state != LockState::Missing {
            return Ok(Seen::lock(seen));
        }
        let found = match self.inspector.list(".", limit).await {
            // A credential that may read the lock (a SAS) may be refused the list, which the user did not ask for.
            Err(Failure::Fatal { why, denied: true }) => {
                self.warned.call_once(|| {
                    tracing::warn!("slots of this name cannot be looked for: {why}");
                });
                return Ok(Seen::lock(seen));
            }
            found => found?,
        };
        let prefix = format!("{}.", seen.name);
        // `NAME.backup` and the like are no slots.
        let number = |slot: &LockStatus| slot.name.strip_prefix(&prefix)?.parse::<u32>().ok();
        let mut all = found;
        all.retain(|slot| number(slot).is_some());
        all.sort_by_key(number);
        Ok(match all.is_empty() {
            true => Seen::lock(seen),
            false => Seen {
                of_slots: true,
                all,
            },
        })
    }

    /// Looks patiently at one lock; fails with a [`UsageError`] that names the slots.
    async fn look_at_one(&self) -> anyhow::Result<LockStatus> {
        let mut seen = self.look_under_the_name(true).await?;
        if !seen.of_slots {
            return Ok(seen.all.remove(0));
        }
        let state = |slot: &LockStatus| match slot.state {
            LockState::Held | LockState::Breaking => format!("{} (held)", slot.name),
            LockState::Free | LockState::Missing => slot.name.clone(),
        };
        let names: Vec<String> = seen.all.iter().map(state).collect();
        Err(UsageError::new(format!(
            "{} is the name of slots: name one of them: {}",
            self.info.address,
            names.join(", ")
        ))
        .into())
    }
}

/// Does not let what hangs (name resolution, a dead mount) keep the process.
fn run<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    runtime()?.block_on(command)
}
