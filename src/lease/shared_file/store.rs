//! [`SharedFile`]: the steps of acquiring, renewing and releasing a lock that is a chain of versions,
//! and what each of their errors means. Called through [`Store`]. It must never take anything but
//! the drive's own "made" for control, nor wait for the drive where something else could be late.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;

use super::record::{State, VersionRecord};
use super::release;
use super::share::{Hint, Made, Share};
use super::stamp;
use super::task::Clock;
use super::writer::{Writer, Written};
use super::{Config, refusal};
use crate::clock::Instant;
use crate::core::observed::{Exists, LONGEST_LEASE, Next, Version};
use crate::core::{Failure, Grant, Observed, Outcome, Sight};
use crate::lease::file::failures::{errno_of, is_passing, lost, transient};
use crate::lease::file::lane::{Lane, Stalled};
use crate::lease::once::Ledger;
use crate::lease::record::{Candidate, Record};
use crate::lease::{SharedMemory, Store, Terms};

/// How many versions one look walks forward before it reads the whole directory.
const WALK: usize = 16;
/// How many versions of our own a renewal steps over whose answers were lost.
const STEPS: usize = 4;
/// How far a version of another must be ahead to mean that our whole view is old: what is closer
/// is met by the next renewal.
const FAR_AHEAD: Version = 32;
/// Whoever makes the path writes its first line at once; who finds it empty waits for that.
const MOMENT: Duration = Duration::from_millis(50);
const MOMENTS: usize = 10;
/// How long a word to those who come after us may keep us.
const FAREWELL: Duration = Duration::from_millis(250);

/// A lock on a shared drive, as one instance competes for it.
pub struct SharedFile {
    name: String,
    lane: Lane,
    chain: Arc<Chain>,
}

/// What the threads of the lane work on.
pub(super) struct Chain {
    pub(super) share: Share,
    pub(super) candidate: Candidate,
    lease: Duration,
    pub(super) clock: Option<Clock>,
    writer: Writer,
    /// Where the guardian finds what to release.
    memory: Option<Arc<dyn SharedMemory>>,
    /// The path and the directory were seen to be what they should be.
    ready: AtomicBool,
    pub(super) state: Mutex<Progress>,
}

pub(super) struct Progress {
    observed: Observed,
    /// The tenure that was granted.
    tenure: Option<Tenure>,
    /// The version that the hint spoke of when it was found to be none.
    mistrusted: Option<Version>,
    /// What we made while it is not known yet whether the version before it is there, and when.
    unconfirmed: Option<(Version, Instant)>,
    /// A stamp of an earlier process was looked for.
    remembered: bool,
    /// The file system that the lock was found on.
    device: Option<u64>,
}

/// A tenure: what its versions say.
#[derive(Clone)]
struct Tenure {
    record: Record,
    unread: bool,
}

/// What a look showed.
pub(super) struct Look {
    pub(super) version: Version,
    /// The record of that version, if it can be read.
    pub(super) record: Option<VersionRecord>,
}

/// What is carried along.
#[derive(Default)]
pub(super) struct Carried {
    pub(super) once: Ledger,
    /// There may be more than could be read.
    pub(super) unread: bool,
}

/// An attempt that succeeded.
struct Won {
    t0: Instant,
    tenure: Tenure,
    failed: u32,
}

impl SharedFile {
    /// Nothing is asked of the drive yet: it may hang, and this is called before there is a thread.
    ///
    /// # Errors
    /// Where there is no working directory to a relative path.
    pub fn open(config: Config) -> io::Result<SharedFile> {
        let path = std::path::absolute(&config.path)?;
        let share = Share::new(&path);
        Ok(SharedFile {
            name: path.display().to_string(),
            lane: Lane::new(),
            chain: Arc::new(Chain {
                writer: Writer::new(share.clone()),
                share,
                candidate: config.candidate,
                lease: config.lease,
                clock: config.task.map(Clock::new),
                memory: config.memory,
                ready: AtomicBool::new(false),
                state: Mutex::new(Progress {
                    observed: Observed::new(fresh_nonce(), config.lease),
                    tenure: None,
                    mistrusted: None,
                    unconfirmed: None,
                    remembered: false,
                    device: None,
                }),
            }),
        })
    }

    /// Runs a step in the lane. Where nobody waits for it any more it goes on all the same, and what
    /// it obtained is known to the next step.
    async fn blocking<T: Send + 'static>(
        &self,
        what: &str,
        give_up_at: Instant,
        step: impl FnOnce(&Chain) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let chain = Arc::clone(&self.chain);
        let stalled = match self.lane.run(give_up_at, move || step(&chain)).await {
            Ok(result) => return result,
            Err(Stalled::Occupied) => "the request before it still hangs",
            Err(Stalled::Overtime) => "no answer in time",
            Err(Stalled::NoThread) => "no thread could be started",
        };
        Err(transient(format!("{}: {what}: {stalled}", self.name)))
    }
}

#[async_trait]
impl Store for SharedFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn terms(&self) -> Terms {
        Terms {
            lease: Some(self.chain.lease),
            wakes: false,
        }
    }

    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure> {
        let won = self
            .blocking("looking at it", give_up_at, |chain| chain.compete())
            .await?;
        let token = won.tenure.record.token;
        self.chain.state().tenure = Some(won.tenure);
        Ok(Grant {
            t0: won.t0,
            token,
            failed: won.failed,
        })
    }

    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.blocking("renewing it", give_up_at, |chain| chain.go_on(false))
            .await
    }

    async fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        if self.chain.has_nothing() && self.lane.is_idle() {
            return Ok(());
        }
        self.blocking("releasing it", give_up_at, move |chain| {
            chain.release(give_up_at)
        })
        .await
    }

    async fn announce(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.blocking("announcing the drain", give_up_at, |chain| {
            chain.go_on(true)
        })
        .await
    }

    async fn record(&self, outcome: Outcome, give_up_at: Instant) -> Result<(), Failure> {
        self.blocking("recording the result", give_up_at, move |chain| {
            chain.record(&outcome, give_up_at)
        })
        .await
    }

    fn period(&self) -> Option<String> {
        self.chain.clock.as_ref()?.period()
    }

    async fn leave(&self, _give_up_at: Instant) {
        let seen = {
            let state = self.chain.state();
            state.observed.seen().filter(|_| state.tenure.is_none())
        };
        if let Some((version, stamp)) = seen {
            stamp::leave(self.chain.share.path(), version, stamp, FAREWELL);
        }
    }

    async fn freed(&self) {
        std::future::pending().await
    }

    fn descriptor(&self) -> Option<std::os::fd::OwnedFd> {
        None
    }

    fn will(&self) -> Option<Vec<u8>> {
        let tenure = self.chain.state().tenure.is_some();
        (tenure && self.chain.memory.is_some()).then(|| release::MARK.to_vec())
    }
}

impl Chain {
    pub(super) fn state(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_nothing(&self) -> bool {
        let state = self.state();
        state.observed.own().is_none() && state.unconfirmed.is_none()
    }

    /// Looks at the lock, and takes it over if it may be.
    fn compete(&self) -> Result<Won, Failure> {
        {
            let mut state = self.state();
            if state.tenure.take().is_some() {
                // Left to run out. Whatever it was, it is waited for as others wait for it.
                state.observed.renounce(fresh_nonce(), Instant::now());
            }
        }
        self.confirm()?;
        let look = self.look()?;
        if let Some(over) = self.is_over(&look)? {
            return Err(Failure::Over(over));
        }
        let now = Instant::now();
        let next = {
            let mut state = self.state();
            let claim = look.record.as_ref().map(VersionRecord::claim);
            state.observed.saw(look.version, claim, now);
            if !std::mem::replace(&mut state.remembered, true)
                && let Some(stamp) = stamp::find(self.share.path(), look.version)
            {
                state.observed.remember(look.version, stamp);
            }
            state.observed.next(now)
        };
        match next {
            Next::Make(version) => self.take_over(version, &look),
            Next::Wait(due) => Err(Failure::Held(sight(look.record.as_ref(), Some(due)))),
            Next::Exhausted => Err(self.fatal(
                "its version, and with it the fencing token, is the greatest there is: name another file",
            )),
        }
    }

    fn take_over(&self, version: Version, look: &Look) -> Result<Won, Failure> {
        let t0 = Instant::now();
        match self.share.make(version) {
            Ok(Made::Made) => self.state().unconfirmed = Some((version, t0)),
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
                return Err(Failure::Held(sight(record.as_ref(), due)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && look.version > 0 => {
                return Err(refusal::removed(&self.share));
            }
            Err(error) => return Err(self.failure("taking it over", &error)),
        }
        let device = self.device();
        self.state().device = device;
        // Two of them: an ancient view that died here may have left one that means nothing.
        let before = version
            .checked_sub(2)
            .map(|before| self.share.is_there(before));
        let before = before.unwrap_or(Ok(true));
        if !before.map_err(|error| self.doubt("confirming it", &error))? {
            return Err(self.withdraw(version));
        }
        self.confirm()?;
        // Whoever has this lock on the server's own disk looks for our directory, and we for its record.
        match self.share.hint() {
            Ok(Hint::Record(_) | Hint::Unread | Hint::Missing | Hint::Empty) => {}
            Ok(Hint::Stranger) => return Err(refusal::stranger(self.share.path())),
            Err(error) => return Err(self.failure("reading it again", &error)),
        }
        let Carried { once, unread } = self.carried(look);
        let failed = self.begin_task(&once, unread)?;
        let tenure = Tenure {
            record: Record {
                once,
                ..Record::begun(&self.candidate, version)
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
        let Some((version, t0)) = self.state().unconfirmed else {
            return Ok(());
        };
        let there = self.share.is_there(version.saturating_sub(1));
        if !there.map_err(|error| self.doubt("confirming it", &error))? {
            return Err(self.withdraw(version));
        }
        let mut state = self.state();
        state.unconfirmed = None;
        state.observed.made(version, t0);
        Ok(())
    }

    /// What we made has nothing before it.
    fn withdraw(&self, version: Version) -> Failure {
        let _ = self.share.remove(version);
        let mut state = self.state();
        state.mistrusted = version.checked_sub(1);
        state.unconfirmed = None;
        state.observed.is_ancient();
        lost(
            self.share.path(),
            "its versions have been removed, or go on from others than we know",
        )
    }

    /// Makes the version after our last: renews, and announces a drain.
    fn go_on(&self, drains: bool) -> Result<(), Failure> {
        let tenure = {
            let mut state = self.state();
            let Some(tenure) = &mut state.tenure else {
                return Err(lost(self.share.path(), "it is not ours"));
            };
            tenure.record.draining |= drains;
            tenure.clone()
        };
        let version = self.step()?;
        self.write(version, false, &tenure);
        Ok(())
    }

    /// Makes the version after our last, and those after it that turn out to be ours.
    fn step(&self) -> Result<Version, Failure> {
        self.confirm()?;
        for _ in 0..STEPS {
            let own = self.state().observed.own();
            let surpassed = self.writer.surpassed().unwrap_or(0);
            let Some(version) = own
                .filter(|own| surpassed <= own.saturating_add(FAR_AHEAD))
                .and_then(|own| own.checked_add(1))
            else {
                self.state().observed.is_ancient();
                return Err(lost(self.share.path(), "it is not ours any more"));
            };
            let t0 = Instant::now();
            match self.share.make(version) {
                Ok(Made::Made) => {
                    self.state().unconfirmed = Some((version, t0));
                    self.confirm()?;
                    return Ok(version);
                }
                Ok(Made::Exists) => {
                    // Without opening anything where there is nothing to open.
                    let record = self
                        .share
                        .has_record(version)
                        .then(|| self.share.record(version))
                        .flatten();
                    let claim = record.as_ref().map(VersionRecord::claim);
                    let meaning = self.state().observed.exists(version, claim, Instant::now());
                    match meaning {
                        // Its lease counts from an attempt of which we heard nothing: the next one's
                        // counts from now.
                        Exists::Ours => {
                            let there = self.share.is_there(version - 1);
                            if !there.map_err(|error| self.doubt("confirming it", &error))? {
                                return Err(self.withdraw(version));
                            }
                        }
                        Exists::Lost => {
                            let who = record.map(|record| record.record.holder);
                            let who = who.filter(|who| !who.is_empty());
                            let who = who.as_deref().unwrap_or("another");
                            return Err(lost(self.share.path(), &format!("held by {who}")));
                        }
                        Exists::Unknown => {
                            return Err(transient(format!(
                                "{}: version {version} exists, and its record cannot be read",
                                self.share.path().display()
                            )));
                        }
                    }
                }
                Err(error) if self.is_removed(&error) => {
                    self.state().observed.is_ancient();
                    return Err(lost(self.share.path(), "its versions have been removed"));
                }
                Err(error) => return Err(self.doubt("making its next version", &error)),
            }
        }
        Err(transient(format!(
            "{}: the answers to {STEPS} versions of ours were lost",
            self.share.path().display()
        )))
    }

    /// The directory of the versions is gone, and not the drive with it.
    fn is_removed(&self, error: &io::Error) -> bool {
        let known = self.state().device;
        error.kind() == io::ErrorKind::NotFound && known.is_some() && self.device() == known
    }

    /// Which file system the lock lies on now.
    fn device(&self) -> Option<u64> {
        let directory = self.share.path().parent()?;
        Some(directory.metadata().ok()?.dev())
    }

    fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        if self.has_nothing() {
            self.state().tenure = None;
            return Ok(());
        }
        let (had, tenure) = {
            let state = self.state();
            let begun = || Tenure {
                // What an attempt obtained that nobody waited for.
                record: Record::begun(&self.candidate, state.observed.own().unwrap_or(0)),
                unread: false,
            };
            let had = state.tenure.clone();
            (had.is_some(), had.unwrap_or_else(begun))
        };
        match self.step() {
            Ok(version) => {
                let tenure = if had {
                    tenure
                } else {
                    self.of_before(tenure, version)
                };
                self.write(version, true, &tenure);
                let written = self.writer.outcome(version, give_up_at);
                let mut state = self.state();
                state.tenure = None;
                state.observed.released(fresh_nonce(), Instant::now());
                match written {
                    Some(Written { record, hint }) if record || hint => Ok(()),
                    _ => Err(transient(format!(
                        "{}: that it is free could not be written",
                        self.share.path().display()
                    ))),
                }
            }
            Err(Failure::Lost { .. }) if !had => Ok(()),
            Err(failure @ Failure::Lost { .. }) => {
                self.state().tenure = None;
                Err(failure)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Results of tasks go on through a tenure that was never granted.
    fn of_before(&self, tenure: Tenure, version: Version) -> Tenure {
        let look = Look {
            version: version - 1,
            record: self.share.record(version - 1),
        };
        let Carried { once, unread } = self.carried(&look);
        Tenure {
            unread,
            record: Record {
                once,
                ..tenure.record
            },
        }
    }

    /// Records what the run of a task came to.
    fn record(&self, outcome: &Outcome, give_up_at: Instant) -> Result<(), Failure> {
        let Some(mut tenure) = self.state().tenure.clone() else {
            return Err(lost(self.share.path(), "it is not ours"));
        };
        self.note(&mut tenure.record, outcome)?;
        let version = self.step()?;
        if let Some(ours) = &mut self.state().tenure {
            // Every version from here on bears it.
            ours.record.once = tenure.record.once.clone();
        }
        self.write(version, false, &tenure);
        match self.writer.outcome(version, give_up_at) {
            Some(Written { record: true, .. }) => Ok(()),
            _ => Err(transient(format!(
                "{}: writing the result: no answer in time, or no room",
                self.share.path().display()
            ))),
        }
    }

    /// Has the record of a version of ours written, and the guardian know of it.
    fn write(&self, version: Version, released: bool, tenure: &Tenure) {
        let (claim, own) = {
            let progress = self.state();
            (progress.observed.claim(false), progress.observed.own())
        };
        let record = VersionRecord {
            version,
            state: match tenure.record.draining {
                _ if released => State::Released,
                true => State::Draining,
                false => State::Held,
            },
            nonce: claim.nonce,
            lease: claim.lease,
            record: tenure.record.clone(),
            unread: tenure.unread,
        };
        if let Some(memory) = &self.memory
            && !released
            && own == Some(version)
        {
            memory.put(&release::note(self.share.path(), &record));
        }
        self.writer.put(record);
    }

    /// Looks: the hint first, then whether the version after it is there, and on from it.
    pub(super) fn look(&self) -> Result<Look, Failure> {
        let hint = self.hint()?;
        let known = self.state().observed.version();
        let hinted = hint.as_ref().map_or(0, |record| record.version);
        let mut version = known.max(hinted);
        if version == 0 {
            version = self.greatest(hint.as_ref())?;
        }
        let mut steps = 0;
        while let Some(next) = version.checked_add(1) {
            let exists = self.share.exists(next);
            if !exists.map_err(|error| self.failure("reading its versions", &error))? {
                break;
            }
            version = next;
            steps += 1;
            if steps == WALK {
                version = version.max(self.greatest(hint.as_ref())?);
            }
        }
        self.ready.store(true, Ordering::Relaxed);
        let record = hint.filter(|record| record.version == version);
        let record = record.or_else(|| (version > 0).then(|| self.share.record(version)).flatten());
        Ok(Look { version, record })
    }

    /// The hint's record. Where nothing is there it is made.
    fn hint(&self) -> Result<Option<VersionRecord>, Failure> {
        let failed = |error: io::Error| self.failure("reading it", &error);
        let mut hint = self.share.hint().map_err(failed)?;
        if !self.ready.load(Ordering::Relaxed) {
            let examined = self.share.examine();
            examined.map_err(|error| self.failure("looking at its versions", &error))?;
            if hint == Hint::Missing {
                let made = self.share.make_hint();
                made.map_err(|error| self.failure("making it", &error))?;
                hint = self.share.hint().map_err(failed)?;
            }
            for _ in 0..MOMENTS {
                if hint != Hint::Empty {
                    break;
                }
                std::thread::sleep(MOMENT);
                hint = self.share.hint().map_err(failed)?;
            }
            if hint == Hint::Empty {
                let begun = self.share.begin_hint();
                begun.map_err(|error| self.failure("writing its first line", &error))?;
                hint = Hint::Unread;
            }
        }
        match hint {
            Hint::Stranger => Err(refusal::stranger(self.share.path())),
            Hint::Record(record) => {
                let mistrusted = self.state().mistrusted;
                Ok(Some(*record).filter(|record| mistrusted != Some(record.version)))
            }
            Hint::Missing | Hint::Empty | Hint::Unread => Ok(None),
        }
    }

    /// The greatest version of the whole directory; the directory is made if there never was one.
    fn greatest(&self, hint: Option<&VersionRecord>) -> Result<Version, Failure> {
        let known =
            self.state().observed.version() > 0 || hint.is_some_and(|hint| hint.version > 0);
        let failed = |what: &str, error| self.failure(what, &error);
        let versions = match self.share.list() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            listed => listed.map_err(|error| failed("reading its versions", error))?,
        };
        if let Some(greatest) = versions.last() {
            return Ok(*greatest);
        }
        if known {
            return Err(refusal::removed(&self.share));
        }
        let begun = self.share.begin();
        match begun.map_err(|error| failed("making the directory of its versions", error))? {
            Made::Made => Ok(0),
            // Somebody was first; what he makes is seen with the next look.
            Made::Exists => Ok(self
                .share
                .list()
                .ok()
                .and_then(|all| all.last().copied())
                .unwrap_or(0)),
        }
    }

    /// What is carried along from tenure to tenure, by the last record that can be read.
    pub(super) fn carried(&self, look: &Look) -> Carried {
        let mut unread = false;
        let mut next = look.version;
        let mut record = look.record.clone();
        while next > 0 && record.is_none() {
            record = self.share.record(next);
            // One that is there and cannot be read may have borne a result.
            unread |= record.is_none() && self.share.has_record(next);
            next -= 1;
            if record.is_none() && !self.share.exists(next).unwrap_or(false) {
                unread = true;
                break;
            }
        }
        match record {
            Some(record) => Carried {
                unread: unread || record.unread,
                once: record.record.once,
            },
            None => Carried {
                unread,
                once: Ledger::EMPTY,
            },
        }
    }

    /// What an error means before there is a tenure.
    pub(super) fn failure(&self, what: &str, error: &io::Error) -> Failure {
        refusal::of(self.share.path(), self.share.versions(), what, error)
    }

    pub(super) fn fatal(&self, why: &str) -> Failure {
        Failure::Fatal {
            why: format!("{}: {why}", self.share.path().display()),
            denied: false,
        }
    }

    /// What an error means in a tenure: whatever it is, the lease runs.
    fn doubt(&self, what: &str, error: &io::Error) -> Failure {
        let errno = errno_of(error);
        let advice = match errno {
            Errno::ENOSPC | Errno::EDQUOT => ": make room",
            _ if is_passing(errno) => "",
            _ => ": see what has changed there",
        };
        transient(format!(
            "{}: {what}: {error}{advice}",
            self.share.path().display()
        ))
    }
}

/// What people, and the pace of those who wait, are told of a version.
fn sight(record: Option<&VersionRecord>, due: Option<Instant>) -> Sight {
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let Some(record) = record else {
        return Sight {
            expires: due,
            ..Sight::default()
        };
    };
    Sight {
        holder: some(&record.record.holder),
        token: Some(record.record.token),
        draining: record.state == State::Draining,
        since: some(&record.record.since),
        expires: due,
        ..Sight::default()
    }
}

/// Another one for each tenure.
fn fresh_nonce() -> u128 {
    fastrand::u128(..)
}

// A version without a record is held for as long as any lease may be.
const _: () = assert!(LONGEST_LEASE.as_secs() == 60);
