//! Looks at a lock: its last version, that one's record, and whether a one-time task is over.
//!
//! What it finds may be stale. A task's result counts once it stands in an own version on the server's disk,
//! and every later version carries it on.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::chain::{Chain, Tenure};
use super::share::{Hint, Made};
use super::writer::Wanted;
use crate::errors::{errno_of, fatal, is_passing, lost_at, transient};
use crate::mount;
use crate::once::{OnceTask, TaskLog};
use crate::record::Record;
use crate::stamp::Stamped;
use crate::version_record::VersionRecord;
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::observed::Version;
use trafficcop_core::{Failure, Outcome, TaskResult};

// Versions that a look walks, a round trip each, before it lists thousands of names.
const WALK: usize = 16;
// Pauses for a new path's or version's content, which its maker writes at once.
const RECORD_RETRY: Duration = Duration::from_millis(50);
const RECORD_RETRIES: usize = 10;
// Time for errors that may pass: a server's grace period, and more.
const RETRY_LIMIT: Duration = Duration::from_secs(300);

/// Returns what was read. A passing error is doubt for a limited time; any other error means `otherwise`.
fn known<T>(
    read: io::Result<T>,
    otherwise: T,
    doubt: &mut impl FnMut(io::Error) -> Result<(), Failure>,
) -> Result<T, Failure> {
    match read {
        Err(error) if is_passing(errno_of(&error)) => doubt(error).map(|()| otherwise),
        read => Ok(read.unwrap_or(otherwise)),
    }
}

pub(super) struct Look {
    pub(super) version: Version,
    pub(super) record: Option<VersionRecord>,
}

#[derive(Default)]
pub(super) struct Carried {
    pub(super) once: TaskLog,
    /// Whether more may exist, unreadable.
    pub(super) unread: bool,
}

impl Chain {
    /// Waits a moment for the record of a new version, which may release the lock.
    pub(super) fn look_for_record(&self) -> Result<Look, Failure> {
        let known = self.state().observed.version();
        let mut look = self.look()?;
        for _ in 0..RECORD_RETRIES {
            if look.record.is_some() || look.version <= known {
                break;
            }
            clock::pause(RECORD_RETRY);
            look = self.look()?;
        }
        Ok(look)
    }

    /// Identifies a version by its tenure's nonce or, without a record, by the time of its making.
    pub(super) fn fingerprint(&self, look: &Look) -> Option<Stamped> {
        let made = || self.share.made_at(look.version).ok();
        let fingerprint = match &look.record {
            Some(record) => format!("{:032x}", record.nonce),
            None if look.version == 0 => return None,
            None => format!("made at {}", made()?.as_nanos()),
        };
        Some(Stamped {
            version: look.version,
            fingerprint,
        })
    }

    pub(super) fn look(&self) -> Result<Look, Failure> {
        let known = self.state().observed.version();
        let (mut version, hint) = match known {
            0 => self.first_look()?,
            known => (known, None),
        };
        let mut steps = 0;
        // A list may miss one that is made meanwhile.
        while let Some(next) = version.checked_add(1) {
            let exists = self.share.exists(next);
            if !exists.map_err(|error| self.share.refusal("reading its versions", &error))? {
                break;
            }
            version = next;
            steps += 1;
            if steps == WALK {
                version = version.max(self.greatest(true)?);
            }
        }
        self.ready.store(true, Ordering::Relaxed);
        let last = {
            let mut state = self.state();
            // Stamp before reading: opening a file can hang behind a machine that is gone.
            state.observed.saw(version, None, Instant::now());
            state.last.take()
        };
        let of_this = |record: &VersionRecord| record.version == version;
        let record = hint.or(last).filter(of_this);
        let record = record.or_else(|| {
            let read = || match self.share.hint() {
                Ok(Hint::Record(record)) => Some(*record).filter(of_this),
                _ => None,
            };
            (version > 0).then(|| self.share.record(version).or_else(read))?
        });
        self.state().last.clone_from(&record);
        Ok(Look { version, record })
    }

    /// Looks by the hint, which shows the protocol and saves a list. Later looks avoid it: a dead client can
    /// hold up those who open it.
    fn first_look(&self) -> Result<(Version, Option<VersionRecord>), Failure> {
        let hint = self.hint()?;
        match hint.as_ref().map_or(0, |record| record.version) {
            // A wrong hint still shows that there were versions.
            0 => {
                // Not in one statement: the state must not be locked while the drive is asked.
                let known = self.state().rejected.is_some();
                Ok((self.greatest(known)?, None))
            }
            hinted => Ok((hinted, hint)),
        }
    }

    fn hint(&self) -> Result<Option<VersionRecord>, Failure> {
        let failed = |error: io::Error| self.share.refusal("reading it", &error);
        let versions = self.share.examine().map_err(failed)?;
        if let Some(found) = versions {
            self.state().device.get_or_insert(found.device);
        }
        let mut hint = self.share.hint().map_err(failed)?;
        if !self.ready.load(Ordering::Relaxed) {
            self.share.refuse_strangers(versions).map_err(failed)?;
            if !self.mkdir_is_exclusive {
                let path = self.share.path();
                mount::of(path).refuse_unproven(path).map_err(fatal)?;
            }
            // Only at the first look: an operator who removes it later means that.
            if hint == Hint::Missing {
                let made = self.share.make_hint();
                made.map_err(|error| self.share.refusal("making it", &error))?;
                hint = self.share.hint().map_err(failed)?;
            }
            for _ in 0..RECORD_RETRIES {
                if hint != Hint::Empty {
                    break;
                }
                clock::pause(RECORD_RETRY);
                hint = self.share.hint().map_err(failed)?;
            }
            // Its maker died, or a user made an empty file.
            if hint == Hint::Empty {
                let begun = self.share.begin_hint();
                begun.map_err(|error| self.share.refusal("writing its first line", &error))?;
                hint = Hint::Unread;
            }
        }
        match hint {
            Hint::Foreign => Err(self.share.stranger()),
            Hint::Record(record) => {
                let rejected = self.state().rejected;
                Ok(Some(*record).filter(|record| rejected != Some(record.version)))
            }
            Hint::Missing | Hint::Empty | Hint::Unread => Ok(None),
        }
    }

    /// Lists the greatest version; makes the directory unless one is `known` to have been.
    fn greatest(&self, known: bool) -> Result<Version, Failure> {
        let failed = |what: &str, error| self.share.refusal(what, &error);
        let versions = match self.share.list() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            listed => listed.map_err(|error| failed("reading its versions", error))?,
        };
        if let Some(greatest) = versions.last() {
            return Ok(*greatest);
        }
        // A new chain would restart the fencing token while a holder may have the old one.
        if known {
            return Err(self.are_gone());
        }
        let begun = self.share.begin();
        let begun = begun.map_err(|error| failed("making the directory of its versions", error))?;
        // An instance with a kernel lock here looks for this directory, and this one now for that one's record:
        // one of the two sees the other.
        match self.share.hint() {
            Ok(Hint::Foreign) => return Err(self.share.stranger()),
            Ok(_) => {}
            Err(error) => return Err(failed("reading it again", error)),
        }
        if begun == Made::Made {
            return Ok(0);
        }
        // An SMB client can hide for a second what another instance made.
        for _ in 0..RECORD_RETRIES {
            if let Some(greatest) = self.share.list().unwrap_or_default().last() {
                return Ok(*greatest);
            }
            clock::pause(RECORD_RETRY * 3);
        }
        Err(transient(format!(
            "{}: another instance has just begun its versions, and this machine does not see them yet; if this \
             lasts, remove other files there",
            self.share.versions().display()
        )))
    }

    pub(super) fn are_gone(&self) -> Failure {
        let known = self.state().device;
        if known.is_none() || self.share.device() == known {
            return self.share.removed();
        }
        transient(format!(
            "{}: its versions are not there, and another file system is: is the drive mounted?",
            self.share.path().display()
        ))
    }

    /// Returns the results that the last readable record carries.
    ///
    /// # Errors
    /// While records cannot be read.
    pub(super) fn carried(&self, look: &Look) -> Result<Carried, Failure> {
        // Go back version by version: a maker that died writes no record, and the one before it has the
        // results.
        let (mut unread, mut failed) = (false, false);
        let mut doubt = |error: io::Error| {
            failed = true;
            self.doubt_for_now(look.version, &error)
        };
        let mut next = look.version;
        let mut record = look.record.clone();
        while next > 0 && record.is_none() {
            // It may have a result. Check first: a record written in between can be read.
            let is_there = known(self.share.bears_record(next), true, &mut doubt)?;
            record = known(self.share.read_record(next), None, &mut doubt)?;
            unread |= record.is_none() && is_there;
            next -= 1;
            if record.is_none() && !known(self.share.exists(next), false, &mut doubt)? {
                unread = true;
                break;
            }
        }
        if next < look.version && !failed {
            self.state().unreadable = None;
        }
        Ok(match record {
            Some(record) => Carried {
                unread: unread || record.unread,
                once: record.record.once,
            },
            None => Carried {
                unread,
                once: TaskLog::EMPTY,
            },
        })
    }

    fn doubt_for_now(&self, version: Version, error: &io::Error) -> Result<(), Failure> {
        // One lost answer must not cost results, and a disk that failed for good must not keep all instances
        // out.
        let now = Instant::now();
        let mut state = self.state();
        // Errors long apart, behind different versions, have passed.
        let before = state
            .unreadable
            .filter(|(_, last, of)| now.since(*last) < RETRY_LIMIT || *of == version);
        let since = before.map_or(now, |(since, ..)| since);
        state.unreadable = Some((since, now, version));
        match now.since(since) < RETRY_LIMIT {
            true => Err(self.share.doubt("reading its records", error)),
            false => Ok(()),
        }
    }

    /// Returns a tenure that was never granted, with the results.
    pub(super) fn ungranted_tenure(&self, version: Version) -> Result<Tenure, Failure> {
        let Carried { once, unread } = self.carried(&Look {
            version: version - 1,
            record: self.share.record(version - 1),
        })?;
        Ok(Tenure {
            unread,
            record: Record {
                once,
                ..Record::begun(&self.candidate, version - 1)
            },
        })
    }
}

impl Chain {
    pub(super) fn is_over(&self, look: &Look) -> Result<Option<TaskResult>, Failure> {
        let Some(task) = &self.task else {
            return Ok(None);
        };
        // Once: this instance's clock continues from the answer.
        task.ask_if(task.lacks_the_time(), || self.time())?;
        Ok(task.result(&self.carried(look)?.once))
    }

    /// Begins the task under control, before anything runs. Returns how often it failed in this period.
    pub(super) fn begin_task(&self, task_log: &TaskLog, unread: bool) -> Result<u32, Failure> {
        let Some(task) = &self.task else {
            return Ok(0);
        };
        // Ask again: after hours of waiting two clocks have drifted apart.
        task.ask_if(task.is_periodic() && !unread, || self.time())?;
        let begun = task.begin_known(task_log, unread, &self.candidate.identity);
        begun.map_err(|why| self.fatal(why))
    }

    pub(super) fn record(&self, outcome: &Outcome, give_up_at: Instant) -> Result<(), Failure> {
        let Some(mut tenure) = self.state().tenure.clone() else {
            return Err(lost_at(self.share.path(), "another instance has it"));
        };
        let by = &self.candidate.identity;
        let noted = OnceTask::note_known(self.task.as_ref(), &mut tenure.record, outcome, by);
        noted.map_err(|why| self.fatal(why))?;
        // In a new version: a record is written once, so it is never half old and half new.
        let version = self.step()?;
        if let Some(ours) = &mut self.state().tenure {
            ours.record.once = tenure.record.once.clone();
        }
        self.queue_record(version, false, &tenure);
        // Not the hint: the next version overwrites it.
        let written = self.writer.outcome(version, give_up_at, Wanted::Record);
        if written.record {
            return Ok(());
        }
        Err(transient(format!(
            "{}: writing the result: no answer in time, or no room",
            self.share.path().display()
        )))
    }

    fn time(&self) -> Result<u64, Failure> {
        let told = self.share.time();
        let told = told.map_err(|error| self.share.refusal("asking the server's time", &error))?;
        Ok(told.as_secs())
    }
}

// Simulated: no test waits for a minute.
#[cfg(test)]
#[cfg(debug_assertions)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use nix::errno::Errno;
    use tempfile::TempDir;

    use super::super::files::{self, Answer, Call, Drive};
    use super::super::share::Share;
    use super::*;
    use crate::Competitor;
    use crate::record::Candidate;
    use trafficcop_core::clock::{SimulatedClock, start_thread};
    use trafficcop_core::observed::LONGEST_LEASE;

    const ONE: &str = r#"[{"key":"a","over":{"exit":0,"token":1,"by":"b","at":"c"}}]"#;

    /// Local disk on which reading here fails so many times.
    struct Fails {
        place: PathBuf,
        times: AtomicU32,
    }

    impl Drive for Fails {
        fn ask(&self, call: Call) -> io::Result<Answer> {
            let less = |left: u32| left.checked_sub(1);
            let is_it = matches!(&call, Call::ReadIn(place, _) if *place == self.place);
            let order = Ordering::Relaxed;
            if is_it && self.times.fetch_update(order, order, less).is_ok() {
                return Err(Errno::EIO.into());
            }
            files::carry_out(call)
        }
    }

    /// Makes a lock with a result in version 1, and no record of version 2.
    fn lock() -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let share = Share::new(&path);
        share.make_hint().unwrap();
        share.begin().unwrap();
        let released = VersionRecord {
            version: 1,
            state: crate::version_record::VersionState::Released,
            nonce: 1,
            lease: Duration::from_secs(15),
            record: Record {
                token: 1,
                once: TaskLog::parse(ONE).unwrap(),
                ..Record::default()
            },
            unread: false,
        };
        share.make(1).unwrap();
        share.write_record(&released).unwrap();
        share.make(2).unwrap();
        (dir, path)
    }

    /// Runs `work` on a lock whose result cannot be read so many times.
    fn play<T: Send + 'static>(
        path: &Path,
        times: u32,
        work: impl FnOnce(&Chain, Sender<T>) + Send + 'static,
    ) -> Receiver<T> {
        let place = Share::new(path).versions().join(format!("{:020}/next", 0));
        let drive: Box<dyn Drive> = Box::new(Fails {
            place,
            times: times.into(),
        });
        let candidate = Candidate {
            identity: "it".into(),
            host: "here".into(),
            pid: 1,
            command: "job".into(),
            bell: None,
        };
        let competitor = Competitor::new(candidate, Duration::from_secs(15));
        let chain = Chain::new(path, &competitor, None).unwrap();
        let (tell, told) = channel();
        let clock: Rc<SimulatedClock> = Rc::default();
        clock.carry(Arc::new(drive));
        let begun = Instant::ZERO + Duration::from_secs(1000);
        clock.enter(begun, Duration::ZERO, || {
            start_thread("work", move || work(&chain, tell)).unwrap();
        });
        while let Some(next) = clock.next() {
            clock.enter(next, Duration::ZERO, || {});
        }
        told
    }

    #[test]
    fn passing_read_error_delays_a_take_over_and_loses_no_result() {
        let (_dir, path) = lock();
        let told = play(&path, 1, |chain, told| {
            assert!(matches!(chain.compete(), Err(Failure::Held(_))));
            clock::pause(LONGEST_LEASE);
            let doubt = chain.compete().map(drop).unwrap_err();
            assert!(matches!(doubt, Failure::Transient { .. }), "{doubt:?}");
            let made = chain.share.list().unwrap();
            assert_eq!(made, [0, 1, 2], "no version is made meanwhile");
            let Ok(won) = chain.compete() else {
                panic!("the record can be read by now");
            };
            let _ = told.send((won.tenure.record.once, won.tenure.unread));
        });
        let once = TaskLog::parse(ONE).unwrap();
        assert_eq!(told.recv(), Ok((once, false)));
    }

    #[test]
    fn record_that_is_lost_for_good_delays_a_take_over_for_a_limited_time() {
        for poll in [Duration::from_secs(10), RETRY_LIMIT * 2] {
            let (_dir, path) = lock();
            let told = play(&path, u32::MAX, move |chain, told| {
                let begun = Instant::now();
                let unread = loop {
                    if let Ok(won) = chain.compete() {
                        break won.tenure.unread;
                    }
                    clock::pause(poll);
                };
                let _ = told.send((unread, Instant::now().since(begun)));
            });
            let (unread, took) = told.recv().unwrap();
            let longest = RETRY_LIMIT + LONGEST_LEASE + poll * 2;
            assert!(unread && took > RETRY_LIMIT && took < longest, "{took:?}");
        }
    }
}
