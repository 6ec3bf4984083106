//! [`Chain`]: the steps of taking a lock over, going on with it and giving it back, and what each of
//! their errors means.
//!
//! Called by `store` in a thread, one step at a time; a step whose caller has given up goes on, and
//! what it obtained is known to the next. It must never take anything but the drive's own "made" for
//! control, nor make anything after a version of which it is not known whether it has one before it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::broken::Break;
use super::errors::{TRYING, is_for_good};
use super::look::{Carried, Look};
use super::share::{Made, Share};
use super::whose::{Whose, whose};
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

// How many versions of our own are stepped over whose answers were lost: each is a renewal that was made
// and not answered, and a lease has time for no more of them.
pub(super) const STEPS: usize = 4;
// What has nothing to run under it is given back within this: a drive that has just made a version answers sooner.
const GIVE_BACK: Duration = Duration::from_secs(1);
// How far a version of another must be ahead to mean that our whole view is old: what is closer
// is met by the next renewal.
const FAR_AHEAD: Version = 32;

/// What the threads work on.
pub(super) struct Chain {
    pub(super) share: Share,
    pub(super) candidate: Candidate,
    pub(super) lease: Duration,
    pub(super) task: Option<OnceTask>,
    pub(super) writer: Writer,
    /// Where the guardian finds what to release.
    pub(super) memory: Option<Arc<dyn SharedMemory>>,
    // The path and the directory were seen to be what they should be: what is missing later was removed,
    // and is not made again.
    pub(super) ready: AtomicBool,
    /// The operator promises that exactly one of two machines makes a directory on this drive.
    pub(super) mkdir_is_exclusive: bool,
    /// Where stamps are left: a directory of this user's, of this boot.
    pub(super) runtime: Option<PathBuf>,
    state: Mutex<Progress>,
}

/// What one instance knows of the lock, and has of it.
pub(super) struct Progress {
    pub(super) observed: Observed,
    /// The tenure that was granted.
    pub(super) tenure: Option<Tenure>,
    // The version that the hint spoke of when it was found to be none: asked again, it would lie again.
    pub(super) mistrusted: Option<Version>,
    // Nothing is made after it before it is confirmed: a chain that goes on from a version that means nothing
    // would look whole to whoever comes next.
    unconfirmed: Option<Unconfirmed>,
    /// That of the last version that was confirmed; unlike `observed`'s it outlasts the loss of that.
    pub(super) t0: Option<Instant>,
    /// An operator has broken our lease.
    pub(super) broken: Option<Break>,
    // The version that says that the lock is free, while nobody can read that yet. Without it a release
    // that is asked for again finds nothing to release, and is called done: nobody ran for 60 s.
    pub(super) unwritten: Option<VersionRecord>,
    // The record that was read last: it saves opening it at every look.
    pub(super) last: Option<VersionRecord>,
    // This user may do what a take-over does.
    tried: bool,
    // The drive refused the last version that this instance wanted to make. That it can be read is then no sign that
    // a take-over would succeed.
    failed: bool,
    // A stamp of an earlier process was looked for: it is worth something for the first version only.
    remembered: bool,
    /// The version that was looked at last.
    pub(super) stamped: Option<Stamped>,
    /// The file system that the lock was found on. A drive that was unmounted shows an empty directory of
    /// another one, and that is no removed lock.
    pub(super) device: Option<u64>,
    /// What a look wanted to read failed, by what may pass: since when, when last, and what was the last version.
    pub(super) unreadable: Option<(Instant, Instant, Version)>,
}

/// A tenure: what its versions say.
#[derive(Clone)]
pub(super) struct Tenure {
    pub(super) record: Record,
    pub(super) unread: bool,
}

/// A version that we made, and of which it is not known whether those before it are there.
#[derive(Clone, Copy)]
struct Unconfirmed {
    version: Version,
    /// Just before the request was sent that made it.
    t0: Instant,
}

/// An attempt that succeeded.
pub(super) struct Won {
    pub(super) t0: Instant,
    pub(super) tenure: Tenure,
    pub(super) failed: u32,
}

impl Chain {
    /// Nothing is asked of the drive.
    pub(super) fn new(
        path: &Path,
        competitor: &Competitor,
        memory: Option<Arc<dyn SharedMemory>>,
    ) -> io::Result<Chain> {
        let share = Share::new(&absolute(path)?);
        Ok(Chain {
            writer: Writer::new(share.clone()),
            share,
            candidate: competitor.candidate.clone(),
            lease: competitor.lease,
            task: competitor.task.clone().map(OnceTask::new),
            memory,
            runtime: competitor.runtime.clone(),
            mkdir_is_exclusive: competitor.mkdir_is_exclusive,
            ready: AtomicBool::new(false),
            state: Mutex::new(Progress {
                observed: Observed::new(fresh_nonce(), competitor.lease),
                tenure: None,
                mistrusted: None,
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

    pub(super) fn state(&self) -> MutexGuard<'_, Progress> {
        lock(&self.state)
    }

    pub(super) fn has_nothing(&self) -> bool {
        let state = self.state();
        // What was broken was ours, and whoever gives it back is to hear of that.
        let was_broken = state.tenure.is_some() && state.broken.is_some();
        let has_own = state.observed.own().is_some() || state.unconfirmed.is_some();
        !has_own && !was_broken && state.unwritten.is_none()
    }

    /// Looks at the lock, and takes it over if it may be.
    pub(super) fn compete(&self) -> Result<Won, Failure> {
        let left = {
            let mut state = self.state();
            state.broken = None;
            let tenure = state.tenure.take();
            if tenure.is_some() {
                // Left to run out. Whatever it was, it is waited for as others wait for it; under another nonce,
                // so that none of its late answers is taken for the next tenure's.
                state.observed.renounce(fresh_nonce(), Instant::now());
            }
            state.unwritten.take().is_some() || tenure.is_some()
        };
        if left {
            self.forget();
        }
        self.confirm()?;
        // Looked before anything is made: a standby that made a version to find out would have taken over.
        let look = self.look_for_record()?;
        let not_over = match self.is_over(&look) {
            Ok(None) => Ok(()),
            Ok(Some(over)) => return Err(Failure::AlreadyDone(over)),
            // Who holds it is known all the same.
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
            // After it was seen, and for this very version: who saw it earlier on this machine may have
            // watched it for most of a lease.
            if !std::mem::replace(&mut state.remembered, true)
                && let Some(seen) = &seen
                && let Some(stamp) = stamp::find(&self.runtime, self.share.path(), seen)
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
                "its version, and with it the fencing token, is the greatest there is: name another file",
            )),
        }
    }

    /// Refuses, at the first look, a user who could never take over: it would stand by for ever, and what it made
    /// before it is refused would keep all others out for a minute. Reports doubt where the drive refused a version and
    /// refuses the trial as well.
    fn try_taking_over(&self, look: &Look) -> Result<(), Failure> {
        let failed = self.state().failed;
        if look.version == 0 || (self.state().tried && !failed) {
            return Ok(());
        }
        // What is made in a version without a record changes what that one is known by (`fingerprint`).
        let tried = self
            .share
            .try_taking_over(look.version, look.record.is_some());
        match tried {
            Err(error) if is_for_good(&error) => return Err(self.share.refusal(TRYING, &error)),
            Err(error) if failed => return Err(self.share.doubt(TRYING, &error)),
            // Another instance's removal, a full disk, a drive that fails: that passes.
            _ => {}
        }
        let mut state = self.state();
        (state.tried, state.failed) = (true, false);
        Ok(())
    }

    /// Makes a version, and notes whether the drive refused that.
    fn make(&self, version: Version) -> io::Result<Made> {
        let made = self.share.make(version);
        self.state().failed = made.is_err();
        made
    }

    fn take_over(&self, version: Version, look: &Look) -> Result<Won, Failure> {
        // Before anything is made as well: who cannot read it for now keeps nobody out who can.
        let Carried { once, unread } = self.carried(look)?;
        let tenure = Tenure {
            record: Record {
                once,
                ..Record::begun(&self.candidate, version)
            },
            unread,
        };
        let taken = self.record_of(version, false, &tenure);
        // An ancient view that died after it made the last one may have left what means nothing.
        if !self.has_one_before(version - 1)? {
            return Err(self.mistrust(version));
        }
        // Before the request: whoever sees this version stamps later, and waits from there.
        let t0 = Instant::now();
        match self.make(version) {
            Ok(Made::Made) => {
                // First, so that the guardian gives it back should we die; but where more is to be read that is carried
                // along, not before that is done.
                if look.version == 0 || look.record.is_some() {
                    self.leave_note(t0, &taken);
                }
                self.state().unconfirmed = Some(Unconfirmed { version, t0 });
            }
            // Another was first, or our view is old; or it was ours and the answer was lost, which nobody can
            // tell without its record: waited for as if it were another's.
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
                    // Just begun: a cache does not show it yet, or it was removed and is begun anew.
                    0 => self.share.doubt("taking it over", &error),
                    _ => self.are_gone(),
                });
            }
            Err(error) => return Err(self.share.refusal("taking it over", &error)),
        }
        self.state().device = self.share.device();
        self.confirm()?;
        // What was seen is still the last before ours: the mkdir would have failed if another had come between.
        let Carried { once, unread } = self.carried(look)?;
        let failed = self.begin_task(&once, unread).inspect_err(|failure| {
            // Whoever leaves by this gives nothing back: the others would wait for a version without a record.
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
        self.write(version, false, &tenure);
        Ok(Won { t0, tenure, failed })
    }

    /// Whether the version before the one we made is there: else our view was older than what is
    /// kept, or somebody removed it all, and what we made means nothing. Nothing is ours, and nothing
    /// is made after it, before that is known.
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

    /// Whether there is a version before the last one, or the last alone is left: somebody has removed the others.
    // Known before anything is made: what one makes and withdraws, another may make and keep, and a removal can
    // be done once more. An old view shows the last one among those that were there with it.
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

    /// What we made has nothing before it.
    fn withdraw(&self, version: Version) -> Failure {
        // Removed, so that the next with an ancient view does not go on from it; where that fails it finds
        // nothing before it as well. But not the only one that is left: without any nobody gets control again.
        // A list that has the one before it is old.
        let is_behind = |all: Vec<Version>| all != [version] && !all.contains(&(version - 1));
        if self.share.list().is_ok_and(is_behind) {
            let _ = self.share.remove(version);
        }
        self.mistrust(version)
    }

    /// What we saw before this version means nothing.
    fn mistrust(&self, version: Version) -> Failure {
        let mut state = self.state();
        (state.mistrusted, state.unconfirmed) = (version.checked_sub(1), None);
        drop(state);
        self.ancient("its versions have been removed, or continue from unknown ones")
    }

    /// Nothing of it is ours, or known to us, any more.
    fn ancient(&self, why: &str) -> Failure {
        self.state().observed.is_ancient();
        self.forget();
        lost_at(self.share.path(), why)
    }

    /// What the versions from the next on say of the holder. Asks nothing of the drive.
    pub(super) fn tell(&self, drains: bool, health: String) -> Result<(), Failure> {
        match &mut self.state().tenure {
            Some(tenure) => tenure.record.tell(drains, health),
            None => return Err(lost_at(self.share.path(), "another instance has it")),
        }
        Ok(())
    }

    /// Makes the version after our last: renews, and announces a drain.
    pub(super) fn go_on(&self) -> Result<(), Failure> {
        let Some(tenure) = self.state().tenure.clone() else {
            return Err(lost_at(self.share.path(), "another instance has it"));
        };
        // The record only behind it: control comes of the version alone, and a server in its grace period
        // makes versions and opens no file.
        let version = self.step()?;
        self.write(version, false, &tenure);
        Ok(())
    }

    /// Makes the version after our last, and those after it that turn out to be ours.
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

    /// The version that we were to make exists; `Ok`: it is ours, and the next is to be made.
    fn step_over(&self, version: Version) -> Result<(), Failure> {
        let judge = |claim| self.state().observed.exists(version, claim, Instant::now());
        let found = whose(&self.share, version, judge);
        let found = found.map_err(|error| self.share.doubt("reading its version's owner", &error));
        match found? {
            // Its lease counts from an attempt of which we received nothing: the next one's counts from now.
            Whose::Ours => Ok(()),
            Whose::Others(record) => Err(self.lost_to(&record)),
            // Asked again with the next renewal.
            Whose::Unknown => Err(transient(format!(
                "{}: version {version} exists, and its record cannot be read",
                self.share.path().display()
            ))),
            Whose::Removed => Err(self.ancient("its versions have been removed")),
        }
    }

    /// The directory of the versions is gone, and not the drive with it.
    fn is_removed(&self, error: &io::Error) -> bool {
        let known = self.state().device;
        error.kind() == io::ErrorKind::NotFound && known.is_some() && self.share.device() == known
    }

    pub(super) fn fatal(&self, why: &str) -> Failure {
        fatal(format!("{}: {why}", self.share.path().display()))
    }
}
