//! [`Chain`]: steps of taking over, renewing and releasing a lock, and the meaning of their errors.
//!
//! An abandoned step continues, and the next one knows what it obtained. Only the drive's own "made" may count
//! as control. No version may follow one that is not known to have a predecessor.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::broken::Break;
use super::errors::{TRYING, is_for_good};
use super::look::{Carried, Look};
use super::owner::{Owner, owner_of};
use super::share::{Made, Share};
use super::writer::Writer;
use crate::errors::{fatal, lost_at, transient};
use crate::once::OnceTask;
use crate::record::{Candidate, Record};
use crate::stamp::{self, Stamped};
use crate::version_record::{VersionRecord, fresh_nonce, holder_info};
use crate::{Competitor, SharedMemory};
use trafficcop_core::clock::Instant;
use trafficcop_core::observed::{Next, Version};
use trafficcop_core::util::{absolute, lock};
use trafficcop_core::{Failure, Observed};

// Own versions with lost answers to step over: a lease has time for no more renewals.
pub(super) const STEPS: usize = 4;
// Time to release a lock under which nothing runs: the drive has just made a version.
const GIVE_BACK: Duration = Duration::from_secs(1);
// Lead of another's version from which the whole view counts as old; the next renewal meets a closer one.
const FAR_AHEAD: Version = 32;

pub(super) struct Chain {
    pub(super) share: Share,
    pub(super) candidate: Candidate,
    pub(super) lease: Duration,
    pub(super) task: Option<OnceTask>,
    pub(super) writer: Writer,
    pub(super) memory: Option<Arc<dyn SharedMemory>>,
    // Path and directory were right once: what is missing later was removed, and is not made again.
    pub(super) ready: AtomicBool,
    pub(super) mkdir_is_exclusive: bool,
    pub(super) runtime_directories: Vec<PathBuf>,
    state: Mutex<ChainState>,
}

pub(super) struct ChainState {
    pub(super) observed: Observed,
    pub(super) tenure: Option<Tenure>,
    // Version of a wrong hint: read again, it would be wrong again.
    pub(super) rejected: Option<Version>,
    // No version follows before it is confirmed: a chain on a meaningless version looks whole.
    unconfirmed: Option<Unconfirmed>,
    /// Moment from which the last confirmed version counts; outlasts the loss of `observed`'s.
    pub(super) t0: Option<Instant>,
    pub(super) broken: Option<Break>,
    // Release that others cannot read yet. Without it a repeated release would report success, and no instance
    // would run for 60 s.
    pub(super) unwritten: Option<VersionRecord>,
    pub(super) last: Option<VersionRecord>,
    tried: bool,
    // The drive refused the last version: that it can be read says nothing about a take-over.
    failed: bool,
    // A stamp was looked for: it counts for the first version only.
    remembered: bool,
    pub(super) stamped: Option<Stamped>,
    /// File system of the lock: an unmounted drive shows an empty directory of another one.
    pub(super) device: Option<u64>,
    /// First and last moment of passing read errors, and their version.
    pub(super) unreadable: Option<(Instant, Instant, Version)>,
}

#[derive(Clone)]
pub(super) struct Tenure {
    pub(super) record: Record,
    pub(super) unread: bool,
}

/// Own version without a known predecessor.
#[derive(Clone, Copy)]
struct Unconfirmed {
    version: Version,
    t0: Instant,
}

pub(super) struct Won {
    pub(super) t0: Instant,
    pub(super) tenure: Tenure,
    pub(super) failed: u32,
}

impl Chain {
    pub(super) fn new(
        path: &Path,
        competitor: &Competitor,
        memory: Option<Arc<dyn SharedMemory>>,
    ) -> io::Result<Chain> {
        let share = Share::new(&absolute(path)?);
        Ok(Chain {
            writer: Writer::new(share.clone(), competitor.kept_versions),
            share,
            candidate: competitor.candidate.clone(),
            lease: competitor.lease,
            task: competitor.task.clone().map(OnceTask::new),
            memory,
            runtime_directories: competitor.runtime_directories.clone(),
            mkdir_is_exclusive: competitor.mkdir_is_exclusive,
            ready: AtomicBool::new(false),
            state: Mutex::new(ChainState {
                observed: Observed::new(fresh_nonce(), competitor.lease),
                tenure: None,
                rejected: None,
                unconfirmed: None,
                t0: None,
                broken: None,
                unwritten: None,
                last: None,
                tried: false,
                failed: false,
                remembered: false,
                stamped: None,
                device: None,
                unreadable: None,
            }),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ChainState> {
        lock(&self.state)
    }

    pub(super) fn has_nothing_to_release(&self) -> bool {
        let state = self.state();
        // The release of a broken lease must report the break.
        let was_broken = state.tenure.is_some() && state.broken.is_some();
        let has_own = state.observed.own().is_some() || state.unconfirmed.is_some();
        !has_own && !was_broken && state.unwritten.is_none()
    }

    pub(super) fn compete(&self) -> Result<Won, Failure> {
        let left = {
            let mut state = self.state();
            state.broken = None;
            let tenure = state.tenure.take();
            if tenure.is_some() {
                // This instance, too, waits until its old tenure runs out. Under a new nonce no late answer
                // counts for the next.
                state.observed.abandon(fresh_nonce(), Instant::now());
            }
            state.unwritten.take().is_some() || tenure.is_some()
        };
        if left {
            self.clear_note();
        }
        self.confirm()?;
        // Look before making anything: a standby that made a version to find out would have taken over.
        let look = self.look_for_record()?;
        let not_over = match self.is_over(&look) {
            Ok(None) => Ok(()),
            Ok(Some(over)) => return Err(Failure::AlreadyDone(over)),
            // The look still shows who holds it.
            Err(doubt @ Failure::Transient { .. }) => Err(doubt),
            Err(failure) => return Err(failure),
        };
        self.try_taking_over(&look)?;
        let seen = self.fingerprint(&look);
        let now = Instant::now();
        let next = {
            let mut state = self.state();
            let claim = look.record.as_ref().map(VersionRecord::claim);
            state.observed.saw(look.version, claim, now);
            // After the look, and for this very version: an earlier process here may have watched it for most
            // of a lease.
            if !std::mem::replace(&mut state.remembered, true)
                && let Some(seen) = &seen
                && let Some(stamp) = stamp::find(&self.runtime_directories, self.share.path(), seen)
            {
                state.observed.remember(look.version, stamp);
            }
            state.stamped = seen;
            state.observed.next(now)
        };
        match next {
            Next::Make(version) => not_over.and_then(|()| self.take_over(version, &look)),
            Next::Wait(due) => Err(Failure::Held(holder_info(look.record.as_ref(), Some(due)))),
            Next::Exhausted => Err(self.fatal(
                "its fencing token is the greatest: name another file, and reset what remembers the old token",
            )),
        }
    }

    /// Refuses a user who could never take over: it would wait for ever, or keep all others out for a minute by
    /// a version made before the refusal.
    fn try_taking_over(&self, look: &Look) -> Result<(), Failure> {
        let failed = self.state().failed;
        if look.version == 0 || (self.state().tried && !failed) {
            return Ok(());
        }
        // A trial inside a version without a record changes its `fingerprint`.
        let tried = self
            .share
            .try_taking_over(look.version, look.record.is_some());
        match tried {
            Err(error) if is_for_good(&error) => return Err(self.share.refusal(TRYING, &error)),
            Err(error) if failed => return Err(self.share.doubt(TRYING, &error)),
            // Passes: a removal by another instance, a full disk, a failing drive.
            _ => {}
        }
        let mut state = self.state();
        (state.tried, state.failed) = (true, false);
        Ok(())
    }

    fn make(&self, version: Version) -> io::Result<Made> {
        let made = self.share.make(version);
        self.state().failed = made.is_err();
        made
    }

    fn take_over(&self, version: Version, look: &Look) -> Result<Won, Failure> {
        // Before making anything: an instance that cannot read it must not keep out one that can.
        let Carried { once, unread } = self.carried(look)?;
        let tenure = Tenure {
            record: Record {
                once,
                ..Record::begun(&self.candidate, version)
            },
            unread,
        };
        let taken = self.record_of(version, false, &tenure);
        // The last version may mean nothing: made from an old view, by an instance that died.
        if !self.has_one_before(version - 1)? {
            return Err(self.reject_view(version));
        }
        // Before the request: others that see this version stamp later, and wait from there.
        let t0 = Instant::now();
        match self.make(version) {
            Ok(Made::Made) => {
                // First, so that the guardian releases it if this process dies; but not before results are
                // read that must be carried on.
                if look.version == 0 || look.record.is_some() {
                    self.leave_note(t0, &taken);
                }
                self.state().unconfirmed = Some(Unconfirmed { version, t0 });
            }
            // Another was first, or the view is old. Or this instance made it and the answer was lost, which
            // cannot be known without its record: wait as for another's.
            Ok(Made::Exists) => {
                let record = self.share.record(version);
                let claim = record.as_ref().map(VersionRecord::claim);
                let now = Instant::now();
                let mut state = self.state();
                state.observed.saw(version, claim, now);
                let due = match state.observed.next(now) {
                    Next::Wait(due) => Some(due),
                    Next::Make(_) | Next::Exhausted => None,
                };
                return Err(Failure::Held(holder_info(record.as_ref(), due)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(match look.version {
                    // Just begun: a cache does not show it yet, or it is begun anew.
                    0 => self.share.doubt("taking it over", &error),
                    _ => self.are_gone(),
                });
            }
            Err(error) => return Err(self.share.refusal("taking it over", &error)),
        }
        self.state().device = self.share.device();
        self.confirm()?;
        // Nothing was made in between, or the mkdir would have failed.
        let Carried { once, unread } = self.carried(look)?;
        let failed = self.begin_task(&once, unread).inspect_err(|failure| {
            // The caller releases nothing then, and others would wait for a version without a record.
            if let Failure::Fatal { .. } = failure {
                let _ = self.release(Instant::now() + GIVE_BACK);
            }
        })?;
        let tenure = Tenure {
            record: Record {
                once,
                ..tenure.record
            },
            unread,
        };
        self.queue_record(version, false, &tenure);
        Ok(Won { t0, tenure, failed })
    }

    /// Checks that the version just made has a predecessor: without one it means nothing. Until this is known
    /// nothing is held, and nothing is made after it.
    fn confirm(&self) -> Result<(), Failure> {
        let Some(made) = self.state().unconfirmed else {
            return Ok(());
        };
        let version = made.version;
        if !self.is_there(version - 1)? {
            return Err(self.withdraw(version));
        }
        let mut state = self.state();
        (state.unconfirmed, state.t0) = (None, Some(made.t0));
        state.observed.made(version, made.t0);
        Ok(())
    }

    fn is_there(&self, version: Version) -> Result<bool, Failure> {
        let there = self.share.is_there(version);
        let began = self.state().tenure.is_some();
        there.map_err(|error| self.share.doubt_or_refusal(began, "confirming it", &error))
    }

    /// Whether the last version has a predecessor, or is the only one left.
    // Asked before anything is made: a version that one instance withdraws, another may make and keep.
    fn has_one_before(&self, last: Version) -> Result<bool, Failure> {
        let Some(before) = last.checked_sub(1) else {
            return Ok(true);
        };
        if self.is_there(before)? {
            return Ok(true);
        }
        let alone = self.share.is_left_alone(last);
        alone.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.are_gone(),
            _ => self.share.doubt("confirming it", &error),
        })
    }

    fn withdraw(&self, version: Version) -> Failure {
        // Removed, so that the next instance with an old view does not continue from it; if that fails, it
        // finds no predecessor either. But never the only one left: without any, no instance gets control
        // again. A list with the predecessor is old.
        let is_behind = |all: Vec<Version>| all != [version] && !all.contains(&(version - 1));
        if self.share.list().is_ok_and(is_behind) {
            let _ = self.share.remove(version);
        }
        self.reject_view(version)
    }

    fn reject_view(&self, version: Version) -> Failure {
        let mut state = self.state();
        (state.rejected, state.unconfirmed) = (version.checked_sub(1), None);
        drop(state);
        self.ancient("the versions in its directory were removed, or do not continue those that this instance knows")
    }

    fn ancient(&self, why: &str) -> Failure {
        self.state().observed.reset_stale_view();
        self.clear_note();
        lost_at(self.share.path(), why)
    }

    /// Sets what the next versions say of the holder.
    pub(super) fn tell(&self, drains: bool, health: String) -> Result<(), Failure> {
        match &mut self.state().tenure {
            Some(tenure) => tenure.record.tell(drains, health),
            None => return Err(lost_at(self.share.path(), "another instance has it")),
        }
        Ok(())
    }

    pub(super) fn go_on(&self) -> Result<(), Failure> {
        let Some(tenure) = self.state().tenure.clone() else {
            return Err(lost_at(self.share.path(), "another instance has it"));
        };
        // Control depends on the version alone, and a server in its grace period opens no file.
        let version = self.step()?;
        self.queue_record(version, false, &tenure);
        Ok(())
    }

    /// Makes the version after this instance's last, and after those that turn out to be its own.
    pub(super) fn step(&self) -> Result<Version, Failure> {
        if let Some(lost) = self.rest_of_break() {
            return Err(lost);
        }
        self.confirm()?;
        for _ in 0..STEPS {
            let own = self.state().observed.own();
            let surpassed = self.writer.surpassed().unwrap_or(0);
            let Some(version) = own
                .filter(|own| surpassed <= own.saturating_add(FAR_AHEAD))
                .and_then(|own| own.checked_add(1))
            else {
                return Err(self.ancient("another instance has it now"));
            };
            let t0 = Instant::now();
            match self.make(version) {
                Ok(Made::Made) => {
                    self.state().unconfirmed = Some(Unconfirmed { version, t0 });
                    self.confirm()?;
                    return Ok(version);
                }
                Ok(Made::Exists) => self.step_over(version)?,
                Err(error) if self.is_removed(&error) => {
                    return Err(self.ancient("its versions have been removed"));
                }
                Err(error) => return Err(self.share.doubt("making its next version", &error)),
            }
        }
        Err(transient(format!(
            "{}: the answers to {STEPS} versions of this instance were lost",
            self.share.path().display()
        )))
    }

    /// Judges a version that was to be made and exists; `Ok`: this instance made it, so make the next.
    fn step_over(&self, version: Version) -> Result<(), Failure> {
        let judge = |claim| self.state().observed.exists(version, claim, Instant::now());
        let found = owner_of(&self.share, version, judge);
        let found = found.map_err(|error| self.share.doubt("reading its version's owner", &error));
        match found? {
            // Its lease counts from an unanswered attempt, the next one's from now.
            Owner::Ours => Ok(()),
            Owner::Others(record) => Err(self.lost_to(&record)),
            Owner::Unknown => Err(transient(format!(
                "{}: version {version} exists, and its record cannot be read",
                self.share.path().display()
            ))),
            Owner::Removed => Err(self.ancient("its versions have been removed")),
        }
    }

    /// Whether the versions were removed, and the drive is still mounted.
    fn is_removed(&self, error: &io::Error) -> bool {
        let known = self.state().device;
        error.kind() == io::ErrorKind::NotFound && known.is_some() && self.share.device() == known
    }

    pub(super) fn fatal(&self, why: &str) -> Failure {
        fatal(format!("{}: {why}", self.share.path().display()))
    }
}
