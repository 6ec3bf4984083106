//! A task that is to be done once, on a file: its result behind the record, its time from the file
//! system's clock.
//!
//! Called by `store` in the lane, while it competes and when a run has ended. The clock is the
//! modification time that the file system gives to a write of ours: the newline at the end of the
//! record, which is always the same byte and so harms nobody, whoever has the lock. A result counts
//! when it was written, and the lock and the file at the path were still ours after that.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::Duration;

use super::once_log::{self, Lookup};
use super::store::LockFile;
use super::{open, record};
use crate::clock::Instant;
use crate::core::{Failure, Outcome};
use crate::lease::errors::{fatal, lost_at, transient};
use crate::lease::once::{NoRoom, OnceTask, TaskLog};

/// Whoever has the lock writes its record at once; a standby that looks in between waits for it.
const MOMENT: Duration = Duration::from_millis(20);
const MOMENTS: usize = 10;

impl LockFile {
    /// What there is to say when another has the lock.
    pub(super) fn held(&self, file: &fs::File) -> Failure {
        let held = Failure::Held(open::sight(file));
        let Some(task) = &self.task else {
            return held;
        };
        if task.lacks_the_time() {
            for _ in 0..MOMENTS {
                let whole = file.metadata().map_or(0, |found| found.len());
                if whole >= record::WIDTH as u64 {
                    break;
                }
                thread::sleep(MOMENT);
            }
            // Not everybody lets us write where another has a lock; then we learn it under our own.
            if let Err(error) = self.ask_the_time(task, file) {
                tracing::debug!(%error, "the file system's clock cannot be asked without the lock");
            }
        }
        let Ok(Lookup::Results { task_log, .. }) = once_log::read(file) else {
            return held;
        };
        let verdict = task.verdict(&task_log);
        verdict.map_or(held, Failure::AlreadyDone)
    }

    /// Under the lock, before anything is written: the results there are, if the task is still to
    /// be done, and how often it has failed.
    pub(super) fn results(&self, file: &fs::File) -> Result<TaskLog, Failure> {
        let found =
            once_log::read(file).map_err(|error| self.results_failure("reading", &error))?;
        let Some(task) = &self.task else {
            return Ok(found.into_ledger());
        };
        if found == Lookup::Damaged {
            return Err(fatal(format!(
                "{}: its results cannot be read, so nobody knows what has been done: empty it to have everything done anew",
                self.path.display()
            )));
        }
        let task_log = found.into_ledger();
        let whole = file.metadata().map_or(0, |found| found.len()) >= record::WIDTH as u64;
        if task.is_periodic() && whole {
            self.ask_the_time(task, file)
                .map_err(|error| self.results_failure("asking the time by", &error))?;
        }
        match task.verdict(&task_log) {
            Some(verdict) => Err(Failure::AlreadyDone(verdict)),
            None => Ok(task_log),
        }
    }

    /// Under the lock, when the record was written: there is room for the result, and it is known
    /// which slot the run belongs to; how often it failed in it before.
    pub(super) fn begin_task(&self, file: &fs::File, task_log: &TaskLog) -> Result<u32, Failure> {
        let Some(task) = &self.task else {
            return Ok(0);
        };
        let failed = |error| self.results_failure("making room for", &error);
        if once_log::read(file).map_err(failed)? == Lookup::Nothing {
            once_log::make_room(file, task_log).map_err(failed)?;
        }
        if task.lacks_the_time() {
            self.ask_the_time(task, file)
                .map_err(|error| self.results_failure("asking the time by", &error))?;
        }
        task.begin(task_log, &self.candidate.identity, once_log::fits)
            .map_err(|NoRoom| self.no_room())
    }

    /// Writes down what the run came to.
    pub(super) fn record(&self, outcome: &Outcome) -> Result<(), Failure> {
        let Some((file, mut record)) = self.waiter.tenure() else {
            return Err(lost_at(&self.path, "its lock is not ours"));
        };
        let Some(task) = &self.task else {
            return Err(fatal(format!(
                "{}: there is no task to record",
                self.path.display()
            )));
        };
        // What stands there counts, and not what was read when the tenure began: somebody may have
        // had a result forgotten since (`reset --force`).
        if let Ok(Lookup::Results { task_log, .. }) = once_log::read(&file) {
            record.once = task_log;
        }
        task.note(
            &mut record,
            outcome,
            &self.candidate.identity,
            once_log::fits,
        )
        .map_err(|NoRoom| self.no_room())?;
        once_log::write(&file, &record.once).map_err(|error| {
            transient(format!(
                "{}: writing the result: {error}",
                self.path.display()
            ))
        })?;
        self.waiter.set_record(record);
        // Nobody finds what was written into a file that is not at the path any more, and a lock
        // that was lost meanwhile is somebody else's.
        self.confirm()
    }

    /// Has the file system tell its time.
    fn ask_the_time(&self, task: &OnceTask, file: &fs::File) -> io::Result<()> {
        let found = file.metadata()?;
        if found.len() < record::WIDTH as u64 {
            return Err(io::Error::other("it has no record yet"));
        }
        file.write_all_at(b"\n", record::WIDTH as u64 - 1)?;
        let asked = Instant::now();
        let said = u64::try_from(file.metadata()?.mtime()).unwrap_or(0);
        task.hear(said, asked);
        Ok(())
    }

    fn no_room(&self) -> Failure {
        fatal(format!(
            "{}: the result of --once has no room in it: take a shorter --once-key or --identity",
            self.path.display()
        ))
    }

    fn results_failure(&self, what: &str, error: &io::Error) -> Failure {
        self.write_failure(&format!("{what} its results"), error)
    }
}
