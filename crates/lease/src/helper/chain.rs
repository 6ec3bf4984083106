//! Steps of an entry's tenure, by compare-and-swap: take over, go on, give back.
//!
//! A step whose caller has given up goes on, and the next step knows what it obtained. Every text seen for the
//! first time counts as one more version for [`Observed`], even if a store goes back in time. It must never
//! write over an entry that may be another holder's, nor begin anew at token 1 where an entry was.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use time::OffsetDateTime;

use super::call::{Helper, NONE, Put};
use super::release::{forget, leave_note};
use crate::Competitor;
use crate::errors::{fatal, lost, transient};
use crate::once::{OnceTask, TaskLog};
use crate::record::{Candidate, Record};
use crate::stamp::{self, Stamped};
use crate::version_record::{VersionRecord, VersionState, fresh_nonce, holder_info};
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::observed::{Next, Version};
use trafficcop_core::util::{check, lock};
use trafficcop_core::{Budget, Failure, Grant, Observed, Outcome};

const ATTEMPTS: usize = 4;
const MADE_UP: &str = "trafficcop-made-up-tag";
const LEAVE_TIMEOUT: Duration = Duration::from_millis(250);

pub(super) struct Chain {
    pub(super) helper: Helper,
    candidate: Candidate,
    pub(super) lease: Duration,
    pub(super) task: Option<OnceTask>,
    runtime_directories: Vec<PathBuf>,
    state: Mutex<EntryState>,
}

struct EntryState {
    observed: Observed,
    /// Text seen last, and its stamp.
    last: Option<(Vec<u8>, Stamped)>,
    /// Greatest version read or written.
    floor: Version,
    /// Just before the last `put` whose answer may be wrong or missing.
    asked: Option<Instant>,
    tenure: Option<Tenure>,
}

#[derive(Clone)]
struct Tenure {
    last: VersionRecord,
    /// Just before the request that wrote it.
    t0: Instant,
    /// A release was requested: another instance's version may follow.
    given_back: bool,
}

type Look = (String, Option<VersionRecord>);

pub(super) struct Won(Grant, Tenure);

impl Chain {
    pub(super) fn new(helper: Helper, competitor: &Competitor) -> Chain {
        Chain {
            helper,
            candidate: competitor.candidate.clone(),
            lease: competitor.lease,
            task: competitor.task.clone().map(OnceTask::new),
            runtime_directories: competitor.runtime_directories.clone(),
            state: Mutex::new(EntryState {
                observed: Observed::new(fresh_nonce(), competitor.lease),
                last: None,
                floor: 0,
                asked: None,
                tenure: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, EntryState> {
        lock(&self.state)
    }

    pub(super) fn has_nothing_to_release(&self) -> bool {
        let state = self.state();
        state.tenure.is_none() && state.asked.is_none() && state.observed.own().is_none()
    }

    fn is_ours(&self, record: &VersionRecord) -> bool {
        record.claim().nonce == self.state().observed.claim(false).nonce
    }

    /// Reads the entry, and begins a missing one.
    fn look(&self, give_up_at: Instant) -> Result<Look, Failure> {
        let mut entry = self.helper.get(give_up_at)?;
        if entry.is_none() {
            // Every token is gone, and another holder may be at work.
            if self.state().last.is_some() {
                return Err(fatal(self.helper.about(
                    "its entry is gone (deleted, or forgotten by the store): start again when no instance runs",
                )));
            }
            let first = self.record_of(0, VersionState::Released, Record::default(), false);
            self.helper.put(NONE, &first.encode(), give_up_at)?;
            entry = self.helper.get(give_up_at)?;
        }
        let missing = || transient(self.helper.about("the store does not show its entry yet"));
        let entry = entry.ok_or_else(missing)?;
        // After the read: a lease counts from when its version was seen.
        let now = Instant::now();
        let record = VersionRecord::decode(&entry.text);
        let ours = record.as_ref().is_some_and(|record| self.is_ours(record));
        let mut state = self.state();
        let is_new = state
            .last
            .as_ref()
            .is_none_or(|(text, _)| *text != entry.text);
        let version = state.observed.version().saturating_add(is_new.into());
        match state.asked.filter(|_| ours) {
            // The answer to the last `put` was lost or wrong.
            Some(asked) => state.observed.made(version, asked),
            None => {
                let claim = record.as_ref().map(VersionRecord::claim);
                state.observed.saw(version, claim, now);
            }
        }
        let read = record.as_ref().map_or(0, |record| record.version);
        state.floor = state.floor.max(read);
        if is_new {
            let fingerprint = check(&entry.text);
            let stamped = Stamped {
                version: read,
                fingerprint,
            };
            if state.last.is_none()
                && let Some(stamp) =
                    stamp::find(&self.runtime_directories, &self.helper.place(), &stamped)
            {
                state.observed.remember(version, stamp);
            }
            state.last = Some((entry.text, stamped));
        }
        Ok((entry.tag, record))
    }

    /// Refuses, once in a process, a helper that ignores tags.
    fn prove(&self, give_up_at: Instant) -> Result<(), Failure> {
        // One process has one helper, and may have many slots.
        static PROVEN: AtomicBool = AtomicBool::new(false);
        if PROVEN.load(Ordering::Relaxed) {
            return Ok(());
        }
        let last = self.state().last.clone();
        let text = last.map_or(Vec::new(), |(text, _)| text);
        // With the present text: where tags are ignored nothing is lost.
        for tag in [MADE_UP, NONE] {
            if self.helper.put(tag, &text, give_up_at)? == Put::Done {
                return Err(fatal(self.helper.about(&format!(
                    "its helper wrote with the tag '{tag}', which does not hold, so two instances could have control: \
                     take a helper and a store that compare tags"
                ))));
            }
        }
        PROVEN.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn compete(&self, give_up_at: Instant) -> Result<Won, Failure> {
        if self.state().tenure.take().is_some() {
            let mut state = self.state();
            state.asked = None;
            state.observed.abandon(fresh_nonce(), Instant::now());
            drop(state);
            forget(&self.helper);
        }
        let mut due = None;
        let mut seen = None;
        for _ in 0..ATTEMPTS {
            let (tag, record) = self.look(give_up_at)?;
            self.prove(give_up_at)?;
            self.refuse_done(record.as_ref(), give_up_at)?;
            let next = self.state().observed.next(Instant::now());
            if let Next::Wait(until) = next {
                (due, seen) = (Some(until), record);
                break;
            }
            if let Some(won) = self.take_over(&tag, record.as_ref(), give_up_at)? {
                return Ok(won);
            }
            seen = record;
        }
        Err(Failure::Held(holder_info(seen.as_ref(), due)))
    }

    /// Writes a tenure's first version; `None`: the tag did not hold.
    fn take_over(
        &self,
        tag: &str,
        read: Option<&VersionRecord>,
        give_up_at: Instant,
    ) -> Result<Option<Won>, Failure> {
        let (once, unread) = match read {
            Some(read) => (read.record.once.clone(), read.unread),
            None => (TaskLog::EMPTY, true),
        };
        let failed = match &self.task {
            Some(task) => {
                task.ask_if(task.is_periodic(), || self.helper.time(give_up_at))?;
                let begun = task.begin_known(&once, unread, &self.candidate.identity);
                begun.map_err(|why| fatal(self.helper.about(why)))?
            }
            None => 0,
        };
        // An unreadable text hides the last token: go on from the seconds since 1970.
        let since_1970 = OffsetDateTime::now_utc().unix_timestamp();
        let since_1970 = u64::try_from(since_1970).unwrap_or(0);
        let version = self.next_version(read.map_or(since_1970, |read| read.version));
        let record = Record {
            once,
            ..Record::begun(&self.candidate, version)
        };
        let last = self.record_of(version, VersionState::Held, record, unread);
        let t0 = Instant::now();
        self.state().asked = Some(t0);
        leave_note(&self.helper, t0, &last);
        if !self.put(tag, &last, t0, give_up_at)? {
            return Ok(None);
        }
        let grant = Grant {
            t0,
            token: version,
            failed,
        };
        Ok(Some(Won(
            grant,
            Tenure {
                last,
                t0,
                given_back: false,
            },
        )))
    }

    /// Begins the tenure, for a caller that is still there. Otherwise the next look or release finds what an
    /// attempt obtained.
    pub(super) fn begins(&self, won: Won) -> Grant {
        self.state().tenure = Some(won.1);
        won.0
    }

    fn next_version(&self, read: Version) -> Version {
        let mut state = self.state();
        state.floor = state.floor.max(read).saturating_add(1);
        state.floor
    }

    /// Writes under this tag; `false`: it did not hold.
    fn put(
        &self,
        tag: &str,
        record: &VersionRecord,
        t0: Instant,
        give_up_at: Instant,
    ) -> Result<bool, Failure> {
        let text = record.encode();
        let is_done = self.helper.put(tag, &text, give_up_at)? == Put::Done;
        if is_done {
            let text = text.trim_ascii().to_owned();
            let mut state = self.state();
            let version = state.observed.version().saturating_add(1);
            state.observed.made(version, t0);
            let fingerprint = check(&text);
            let version = record.version;
            state.last = Some((
                text,
                Stamped {
                    version,
                    fingerprint,
                },
            ));
        }
        Ok(is_done)
    }

    /// Writes the tenure's next version: a renewal, a drain, a result or the release.
    pub(super) fn go_on(&self, released: bool, give_up_at: Instant) -> Result<(), Failure> {
        for _ in 0..ATTEMPTS {
            let Some(tenure) = self.state().tenure.clone() else {
                return Err(lost(self.helper.about("another instance has it")));
            };
            let Some(entry) = self.helper.get(give_up_at)? else {
                return Err(self.ends(None, "its entry is gone"));
            };
            let Some(read) = VersionRecord::decode(&entry.text) else {
                return Err(transient(self.helper.about("its text cannot be read")));
            };
            if !self.is_ours(&read) {
                if tenure.given_back {
                    return Ok(());
                }
                if read.version <= tenure.last.version {
                    return Err(transient(
                        self.helper.about("the store shows an old version"),
                    ));
                }
                let until = read.is_break_of(&tenure.last.record).then(|| {
                    let left = Budget::for_lease(self.lease.min(read.claim().lease));
                    left.others_from(tenure.t0)
                });
                return Err(self.ends(until, &format!("held by {}", read.record.holder)));
            }
            let shown = match (released, tenure.last.record.draining) {
                (true, _) => VersionState::Released,
                (false, true) => VersionState::Draining,
                (false, false) => VersionState::Held,
            };
            let version = self.next_version(read.version);
            let next = self.record_of(version, shown, tenure.last.record, tenure.last.unread);
            if let Some(ours) = &mut self.state().tenure {
                ours.last.version = read.version;
                ours.given_back |= released;
            }
            let t0 = Instant::now();
            if self.put(&entry.tag, &next, t0, give_up_at)? {
                leave_note(&self.helper, t0, &next);
                if let Some(ours) = &mut self.state().tenure {
                    (ours.t0, ours.last.version) = (t0, version);
                }
                return Ok(());
            }
            clock::pause(Duration::from_millis(20));
        }
        Err(transient(
            self.helper
                .about("its tags did not hold, several times in a row"),
        ))
    }

    fn ends(&self, until: Option<Instant>, why: &str) -> Failure {
        // A broken lease is checked again until its end.
        if until.is_none() {
            let mut state = self.state();
            (state.tenure, state.asked) = (None, None);
            // If the store goes back to a version of this tenure, it must count as another's.
            state.observed.abandon(fresh_nonce(), Instant::now());
        }
        forget(&self.helper);
        let why = self.helper.about(why);
        Failure::Lost { until, why }
    }

    /// Gives back the entry, and what an unanswered attempt may have obtained.
    pub(super) fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        if self.state().tenure.is_none() {
            let (_, read) = self.look(give_up_at)?;
            let read = read.filter(|read| self.is_ours(read));
            let mut state = self.state();
            if let Some((last, t0)) = read.zip(state.observed.t0()) {
                state.tenure = Some(Tenure {
                    last,
                    t0,
                    given_back: false,
                });
            }
        }
        if self.state().tenure.is_some() {
            self.go_on(true, give_up_at)?;
        }
        let mut state = self.state();
        (state.tenure, state.asked) = (None, None);
        state.observed.released(fresh_nonce(), Instant::now());
        drop(state);
        forget(&self.helper);
        Ok(())
    }

    fn record_of(
        &self,
        version: Version,
        state: VersionState,
        record: Record,
        unread: bool,
    ) -> VersionRecord {
        let claim = self.state().observed.claim(false);
        VersionRecord::new(version, state, (claim.nonce, claim.lease), record, unread)
    }

    pub(super) fn tell(&self, drains: bool, health: String) {
        if let Some(tenure) = &mut self.state().tenure {
            tenure.last.record.tell(drains, health);
        }
    }

    pub(super) fn look_for_result(&self, give_up_at: Instant) -> Result<(), Failure> {
        let (_, record) = self.look(give_up_at)?;
        self.refuse_done(record.as_ref(), give_up_at)
    }

    fn refuse_done(
        &self,
        read: Option<&VersionRecord>,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        task.ask_if(task.lacks_the_time(), || self.helper.time(give_up_at))?;
        let result = read.and_then(|read| task.result(&read.record.once));
        result.map_or(Ok(()), |result| Err(Failure::AlreadyDone(result)))
    }

    pub(super) fn record(&self, outcome: &Outcome, give_up_at: Instant) -> Result<(), Failure> {
        if let Some(tenure) = &mut self.state().tenure {
            let by = &self.candidate.identity;
            let noted =
                OnceTask::note_known(self.task.as_ref(), &mut tenure.last.record, outcome, by);
            noted.map_err(|why| fatal(self.helper.about(why)))?;
        }
        self.go_on(false, give_up_at)
    }

    /// Stamps how long the last version was watched.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        let last = state.last.take().filter(|_| state.tenure.is_none());
        if let Some(((_, stamped), (_, since))) = last.zip(state.observed.seen()) {
            stamp::leave(
                &self.runtime_directories,
                &self.helper.place(),
                stamped,
                since,
                LEAVE_TIMEOUT,
            );
        }
    }
}
