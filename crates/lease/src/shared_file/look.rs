//! Looking: which version is the last, what its record says, and whether a task that is to be done once is
//! over by that.
//!
//! Called by `chain` at each attempt to get control, and by `store` when a run has ended. What it finds may be stale; it
//! decides nothing. A task's result counts when it stands in a version of ours on the server's disk; every
//! version after it carries it on. Its time is that of a directory made for the purpose.

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

// How many versions one look walks forward before it reads the whole directory: each step is a round trip,
// and the directory is one, but of thousands of names.
const WALK: usize = 16;
// Whoever makes the path or a version writes into it at once; who finds nothing there waits so often
// and so long.
const MOMENT: Duration = Duration::from_millis(50);
const MOMENTS: usize = 10;
// An error that may pass is waited for so long: a server's grace period, and more.
const PATIENCE: Duration = Duration::from_secs(300);

/// What was read; where nobody can say it, and that is no doubt any more, what it is `otherwise`.
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

/// What a look showed.
pub(super) struct Look {
    pub(super) version: Version,
    /// The record of that version, if it can be read.
    pub(super) record: Option<VersionRecord>,
}

/// What is carried along.
#[derive(Default)]
pub(super) struct Carried {
    pub(super) once: TaskLog,
    /// There may be more than could be read.
    pub(super) unread: bool,
}

impl Chain {
    /// Looks; at a version that is new to us for a moment longer if its record is not there yet, which
    /// follows it by one write: it may well say that the lock is free.
    pub(super) fn look_for_record(&self) -> Result<Look, Failure> {
        let known = self.state().observed.version();
        let mut look = self.look()?;
        for _ in 0..MOMENTS {
            if look.record.is_some() || look.version <= known {
                break;
            }
            clock::pause(MOMENT);
            look = self.look()?;
        }
        Ok(look)
    }

    /// What the version that was looked at is known by: its tenure's nonce, or, where its maker died before it
    /// wrote that or has yet to, when it was made by the server's clock.
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

    /// Looks: whether the version after the last one that we know is there, and on from it.
    pub(super) fn look(&self) -> Result<Look, Failure> {
        let known = self.state().observed.version();
        let (mut version, hint) = match known {
            0 => self.first_look()?,
            known => (known, None),
        };
        let mut steps = 0;
        // Name by name from what is known: a listing is thousands of names, and may leave out one that is made
        // meanwhile.
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
            // Stamped before anything is read: what opens a file can hang behind a machine that is gone.
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

    /// The first look: what stands at the path says which protocol is spoken there, and saves reading the
    /// whole directory. Later ones do without it: whoever is gone can hold up those who open it.
    fn first_look(&self) -> Result<(Version, Option<VersionRecord>), Failure> {
        let hint = self.hint()?;
        match hint.as_ref().map_or(0, |record| record.version) {
            // A hint that was found to lie still says that there were versions.
            0 => {
                // Not in one: what is known is asked for by those who must not wait for the drive.
                let known = self.state().mistrusted.is_some();
                Ok((self.greatest(known)?, None))
            }
            hinted => Ok((hinted, hint)),
        }
    }

    /// The hint's record. Where nothing is there it is made.
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
            // Only at the first look: who removes the path later means that, and is not contradicted.
            if hint == Hint::Missing {
                let made = self.share.make_hint();
                made.map_err(|error| self.share.refusal("making it", &error))?;
                hint = self.share.hint().map_err(failed)?;
            }
            for _ in 0..MOMENTS {
                if hint != Hint::Empty {
                    break;
                }
                clock::pause(MOMENT);
                hint = self.share.hint().map_err(failed)?;
            }
            // Its maker died between making and writing it, or somebody has touched it.
            if hint == Hint::Empty {
                let begun = self.share.begin_hint();
                begun.map_err(|error| self.share.refusal("writing its first line", &error))?;
                hint = Hint::Unread;
            }
        }
        match hint {
            Hint::Stranger => Err(self.share.stranger()),
            Hint::Record(record) => {
                let mistrusted = self.state().mistrusted;
                Ok(Some(*record).filter(|record| mistrusted != Some(record.version)))
            }
            Hint::Missing | Hint::Empty | Hint::Unread => Ok(None),
        }
    }

    /// The greatest version of the whole directory; the directory is made if none is `known` to have been.
    fn greatest(&self, known: bool) -> Result<Version, Failure> {
        let failed = |what: &str, error| self.share.refusal(what, &error);
        let versions = match self.share.list() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            listed => listed.map_err(|error| failed("reading its versions", error))?,
        };
        if let Some(greatest) = versions.last() {
            return Ok(*greatest);
        }
        // Begun anew, the count of the fencing token would begin anew under whoever still has the old one.
        if known {
            return Err(self.are_gone());
        }
        let begun = self.share.begin();
        let begun = begun.map_err(|error| failed("making the directory of its versions", error))?;
        // Whoever has this path by a lock of the kernel's looks for our directory, and we, from now on,
        // for its record: one of the two sees the other.
        match self.share.hint() {
            Ok(Hint::Stranger) => return Err(self.share.stranger()),
            Ok(_) => {}
            Err(error) => return Err(failed("reading it again", error)),
        }
        if begun == Made::Made {
            return Ok(0);
        }
        // Another instance was first. An SMB client can hide for a second what that one made.
        for _ in 0..MOMENTS {
            if let Some(greatest) = self.share.list().unwrap_or_default().last() {
                return Ok(*greatest);
            }
            clock::pause(MOMENT * 3);
        }
        Err(transient(format!(
            "{}: another instance has just begun its versions, and this machine does not see them yet; if this lasts, remove other files there",
            self.share.versions().display()
        )))
    }

    /// The versions are not there any more: they were removed, or the drive was unmounted.
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

    /// What is carried along from tenure to tenure, by the last record that can be read.
    ///
    /// # Errors
    /// Where that cannot be read for now.
    pub(super) fn carried(&self, look: &Look) -> Result<Carried, Failure> {
        // Back from version to version: a record may never come (its maker died), and then the one before it
        // is the last that says what is done.
        let (mut unread, mut failed) = (false, false);
        let mut doubt = |error: io::Error| {
            failed = true;
            self.doubt_for_now(look.version, &error)
        };
        let mut next = look.version;
        let mut record = look.record.clone();
        while next > 0 && record.is_none() {
            // One that is there and cannot be read may have borne a result. Looked for before: one that is
            // written between the two can be read.
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

    /// Nobody can say for now what is to be read, at a look at this version.
    ///
    /// # Errors
    /// That it is to be asked again; not for ever.
    fn doubt_for_now(&self, version: Version, error: &io::Error) -> Result<(), Failure> {
        // By one answer that does not come results would be forgotten, or be unreadable for everybody from then on.
        // But where a disk has failed for good nobody is to be kept out for ever.
        let now = Instant::now();
        let mut state = self.state();
        // One now, and another behind another version in an hour, are two that passed.
        let before = state
            .unreadable
            .filter(|(_, last, of)| now.since(*last) < PATIENCE || *of == version);
        let since = before.map_or(now, |(since, ..)| since);
        state.unreadable = Some((since, now, version));
        match now.since(since) < PATIENCE {
            true => Err(self.share.doubt("reading its records", error)),
            false => Ok(()),
        }
    }

    /// A tenure that was never granted: results of tasks go on through it.
    pub(super) fn of_before(&self, version: Version) -> Result<Tenure, Failure> {
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
    /// Whether the task is over, by the last record that can be read.
    pub(super) fn is_over(&self, look: &Look) -> Result<Option<TaskResult>, Failure> {
        let Some(task) = &self.task else {
            return Ok(None);
        };
        // Once: a standby need not make a directory with every look, its own clock goes on from the answer.
        task.ask_if(task.lacks_the_time(), || self.time())?;
        Ok(task.result(&self.carried(look)?.once))
    }

    /// Control is ours, and nothing runs yet: there is room for the result, and it is known which
    /// period the run belongs to; how often it failed in it before.
    pub(super) fn begin_task(&self, task_log: &TaskLog, unread: bool) -> Result<u32, Failure> {
        let Some(task) = &self.task else {
            return Ok(0);
        };
        // Asked anew under control: after hours of standing by two clocks have drifted apart.
        task.ask_if(task.is_periodic() && !unread, || self.time())?;
        let begun = task.begin_known(task_log, unread, &self.candidate.identity);
        begun.map_err(|why| self.fatal(why))
    }

    /// Records what the run of a task came to.
    pub(super) fn record(&self, outcome: &Outcome, give_up_at: Instant) -> Result<(), Failure> {
        let Some(mut tenure) = self.state().tenure.clone() else {
            return Err(lost_at(self.share.path(), "another instance has it"));
        };
        let by = &self.candidate.identity;
        let noted = OnceTask::note_known(self.task.as_ref(), &mut tenure.record, outcome, by);
        noted.map_err(|why| self.fatal(why))?;
        // In a version of its own: a record is written once, so that none is ever half old and half new.
        let version = self.step()?;
        if let Some(ours) = &mut self.state().tenure {
            // Every version from here on bears it.
            ours.record.once = tenure.record.once.clone();
        }
        self.write(version, false, &tenure);
        // The hint does not count: the next version's is written over it.
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

// In a simulation, which has a drive that fails and need not wait for a minute.
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

    /// A disk of this machine, on which what lies in this directory cannot be read so often.
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

    /// A lock whose first version bears a result, and whose second bears no record.
    fn lock() -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let share = Share::new(&path);
        share.make_hint().unwrap();
        share.begin().unwrap();
        let released = VersionRecord {
            version: 1,
            state: crate::version_record::State::Released,
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

    /// Does this with the lock at this path, whose result cannot be read so often; what it tells.
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
    fn a_record_that_cannot_be_read_for_a_moment_is_read_later_and_forgets_nothing() {
        let (_dir, path) = lock();
        let told = play(&path, 1, |chain, told| {
            assert!(matches!(chain.compete(), Err(Failure::Held(_))));
            clock::pause(LONGEST_LEASE);
            let doubt = chain.compete().map(drop).unwrap_err();
            assert!(matches!(doubt, Failure::Transient { .. }), "{doubt:?}");
            let made = chain.share.list().unwrap();
            assert_eq!(made, [0, 1, 2], "it keeps no instance out meanwhile");
            let Ok(won) = chain.compete() else {
                panic!("it can be read");
            };
            let _ = told.send((won.tenure.record.once, won.tenure.unread));
        });
        let once = TaskLog::parse(ONE).unwrap();
        assert_eq!(told.recv(), Ok((once, false)));
    }

    #[test]
    fn a_record_that_is_lost_for_good_keeps_nobody_out_for_ever() {
        for poll in [Duration::from_secs(10), PATIENCE * 2] {
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
            let longest = PATIENCE + LONGEST_LEASE + poll * 2;
            assert!(unread && took > PATIENCE && took < longest, "{took:?}");
        }
    }
}
