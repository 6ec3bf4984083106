//! [`File`]: steps of acquiring and giving back a file's lock, and the meaning of their errors.
//!
//! It must never take an error for "held by another", nor hold the lock of a file that left the path.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;

use super::inspect::{FileInspector, address_of};
use super::lock::{self, LockedFile};
use super::once_log;
use super::open::{self, OpenError};
use super::record::{self, Content};
use super::waiter::Waiter;
use crate::OpenError as NamedError;
use crate::blocking::BlockingJobs;
use crate::errors::{errno_of, failure_at, fatal, is_errno, lost_at, no_room, transient};
use crate::inspect::Inspector;
use crate::once::{OnceTask, TaskLog};
use crate::record::{Candidate, Record};
use crate::slots::path_of;
use crate::{Competitor, LeaseStore, LockInfo, NamedLock, OrphanRelease, RecordUpdate, StoreInfo};
use trafficcop_core::clock::Instant;
use trafficcop_core::machine::lasting;
use trafficcop_core::{Failure, Grant, util};

// New files that one attempt goes over to: a script that keeps replacing the file must not hold it up.
const REPLACEMENTS: usize = 4;
const REPLACED: &str =
    "the lock file was removed or replaced, so another instance may be in control";

/// Store of a file's lock, for one instance.
///
/// Dropping it during a tenure does not unlock: guardian and command keep the descriptor.
pub struct File {
    name: String,
    jobs: BlockingJobs,
    // Whether the next attempt runs in the caller's thread: a thread is much of the cost of a start. Later
    // steps have threads: no disk may hold up the end of a command.
    in_place: AtomicBool,
    waiter: Arc<Waiter>,
    place: LockFile,
}

/// Lock on a file of a local disk, by its path.
pub struct FileLock(pub PathBuf);

impl NamedLock for FileLock {
    fn info(&self) -> LockInfo {
        LockInfo {
            leases: Duration::ZERO..=Duration::MAX,
            // The kernel wakes the waiters, so no standby needs a ring.
            uses_doorbell: false,
            look_can_hang: true,
            // A kernel's lock cannot be taken from its process.
            shortest_break: None,
            ..LockInfo::new(address_of(&self.0), "on a local disk")
        }
    }

    fn open(&self, competitor: &Competitor) -> Result<Arc<dyn LeaseStore>, NamedError> {
        crate::mount::refuse_wrong_place(&self.0)?;
        Ok(Arc::new(File::open(&self.0, competitor)?))
    }

    fn slot(&self, slot: u32) -> Result<Arc<dyn NamedLock>, NamedError> {
        Ok(Arc::new(FileLock(path_of(&self.0, slot))))
    }

    fn inspector(&self) -> Result<Box<dyn Inspector>, NamedError> {
        Ok(Box::new(FileInspector::new(&self.0)?))
    }
}

#[derive(Clone)]
pub(super) struct LockFile {
    pub(super) path: PathBuf,
    pub(super) candidate: Candidate,
    state: Arc<Mutex<FileState>>,
    pub(super) task: Option<Arc<OnceTask>>,
}

struct FileState {
    // Open between attempts, too: a standby stays behind this file's holder when the file is replaced.
    file: Arc<fs::File>,
    record: Option<Record>,
    // Greatest token ever seen: removing the file must not restart the count.
    seen: u64,
    // Whether a release was requested: if its caller no longer waits, the step under way makes it.
    leaving: bool,
}

/// Successful attempt; dropping it undoes it.
struct Won {
    locked: LockedFile,
    record: Record,
    failed: u32,
}

impl File {
    /// Opens the lock file, or creates it; writes nothing. Synchronous, for the time before there are threads.
    ///
    /// # Errors
    /// If the file cannot be opened for reading and writing, is not a regular file, or has other content.
    pub fn open(path: &Path, competitor: &Competitor) -> Result<File, OpenError> {
        // The command may start elsewhere.
        let path = std::path::absolute(path).map_err(|error| {
            OpenError::refused(path, &format!("cannot be made absolute: {error}"))
        })?;
        let file = open::open(&path, true)?;
        let task = competitor.task.clone();
        Ok(File {
            name: path.display().to_string(),
            jobs: BlockingJobs::new(),
            in_place: AtomicBool::new(competitor.in_place),
            waiter: Arc::default(),
            place: LockFile {
                path,
                candidate: competitor.candidate.clone(),
                state: Arc::new(Mutex::new(FileState {
                    file: Arc::new(file),
                    record: None,
                    seen: 0,
                    leaving: false,
                })),
                task: task.map(|task| Arc::new(OnceTask::new(task))),
            },
        })
    }

    /// Returns `true` at most once.
    fn begins_in_place(&self) -> bool {
        self.in_place.swap(false, Ordering::Relaxed) && self.place.task.is_none()
    }

    async fn blocking<T: Send + 'static>(
        &self,
        what: &str,
        give_up_at: Instant,
        step: impl FnOnce(LockFile) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let place = self.place.clone();
        let step = move || {
            let done = step(place.clone());
            if place.state().leaving {
                let _ = place.give_back();
            }
            done
        };
        self.jobs.step(&self.name, what, give_up_at, step).await
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A tenure's lock stays: it belongs to the tree, too.
        drop(self.waiter.take());
    }
}

#[async_trait]
impl LeaseStore for File {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            name: self.name.clone(),
            period: self.place.task.as_ref().and_then(|task| task.period()),
            wakes: true,
            ..StoreInfo::default()
        }
    }

    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure> {
        let t0 = Instant::now();
        let granted = self.waiter.take();
        let won = if self.begins_in_place() {
            self.place.compete(granted)?
        } else {
            self.blocking("locking it", give_up_at, |place| place.compete(granted))
                .await?
        };
        let (token, failed) = (won.record.token, won.failed);
        // Only now: a caller that gave up dropped the result, which unlocked.
        self.place.begin_tenure(won);
        Ok(Grant { t0, token, failed })
    }

    async fn look_for_result(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.blocking("looking at it", give_up_at, |place| place.check_result())
            .await
    }

    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.blocking("looking at it", give_up_at, |place| place.confirm())
            .await
    }

    async fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        drop(self.waiter.take());
        self.place.state().leaving = true;
        self.blocking("unlocking it", give_up_at, |place| place.give_back())
            .await
    }

    async fn update_record(
        &self,
        update: RecordUpdate,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        let what = update.doing();
        self.blocking(what, give_up_at, move |place| match update {
            RecordUpdate::Draining { health } => place.announce(true, health),
            RecordUpdate::Health(health) => place.announce(false, health),
            RecordUpdate::Outcome(outcome) => place.record(&outcome),
        })
        .await
    }

    async fn until_free(&self) {
        self.waiter.until_free(&self.place.file()).await;
    }

    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        Ok(OrphanRelease {
            descriptor: Some(self.place.file().try_clone()?.into()),
            release_info: None,
        })
    }
}

impl LockFile {
    fn state(&self) -> MutexGuard<'_, FileState> {
        util::lock(&self.state)
    }

    fn file(&self) -> Arc<fs::File> {
        Arc::clone(&self.state().file)
    }

    pub(super) fn tenure(&self) -> Result<(Arc<fs::File>, Record), Failure> {
        let state = self.state();
        let record = state.record.clone();
        let record = record.ok_or_else(|| lost_at(&self.path, "another process has its lock"))?;
        Ok((Arc::clone(&state.file), record))
    }

    pub(super) fn set_record(&self, record: Record) {
        self.state().record = Some(record);
    }

    fn see(&self, token: u64) -> u64 {
        let mut state = self.state();
        state.seen = state.seen.max(token);
        state.seen
    }

    fn begin_tenure(&self, won: Won) {
        self.see(won.record.token);
        let mut state = self.state();
        state.file = won.locked.keep();
        lasting::add(&state.file);
        state.record = Some(won.record);
    }

    /// Locks the file at the path, or continues with the waiter's lock, and writes the record.
    fn compete(&self, mut granted: Option<LockedFile>) -> Result<Won, Failure> {
        // This attempt takes over what a failed release left, and undoes it with its own.
        let mut state = self.state();
        (state.record, state.leaving) = (None, false);
        drop(state);
        for _ in 0..REPLACEMENTS {
            let file = self.file();
            let locked = match granted.take() {
                Some(locked) => Ok(Some(locked)),
                None => LockedFile::of(&file),
            };
            let locked = match locked {
                Ok(Some(locked)) => locked,
                Ok(None) => return Err(self.held(&file)),
                Err(Errno::ESTALE) => {
                    self.go_over()?;
                    continue;
                }
                Err(errno) => return Err(self.failure("locking it", errno)),
            };
            // Lock first, then look: a file replaced in between would leave a lock that no other process meets.
            if self.is_at_path(locked.file())? {
                let (record, failed) = self.begin_record(locked.file())?;
                return Ok(Won {
                    locked,
                    record,
                    failed,
                });
            }
            // The old file's holder has ended. Tokens in the new file must not be below its token.
            if let Ok(content) = open::read(locked.file()) {
                self.see(content.token().unwrap_or(0));
            }
            self.go_over()?;
            // Only now: without a new file, that error is reported instead.
            tracing::warn!(path = %self.path.display(), "the lock file was replaced; competing for the new one");
        }
        Err(transient(format!(
            "{}: another program replaces it again and again: find it and stop it",
            self.path.display()
        )))
    }

    fn go_over(&self) -> Result<(), Failure> {
        let file = Arc::new(open::open(&self.path, true)?);
        self.state().file = file;
        Ok(())
    }

    /// Whether the locked `file` is at the path, and another description finds it locked.
    fn is_at_path(&self, file: &fs::File) -> Result<bool, Failure> {
        let failed = |error: io::Error| self.io_failure("looking at it again", &error);
        // Through a separate description: some file systems grant every lock to everyone.
        let other = match open::open_existing(&self.path) {
            Ok(other) => other,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) if is_errno(&error, Errno::ESTALE) => return Ok(false),
            Err(error) => return Err(failed(error)),
        };
        let ours = file.metadata().map_err(failed)?;
        if !open::is_same(&ours, &other.metadata().map_err(failed)?) {
            return Ok(false);
        }
        match lock::is_excluded(&other) {
            Ok(true) => Ok(true),
            Ok(false) => Err(fatal(format!(
                "{}: locks on this mount exclude no other process: use a file on another mount",
                self.path.display()
            ))),
            Err(errno) => Err(self.failure("testing its lock", errno)),
        }
    }

    /// Raises the token and writes a new tenure's record. Also returns how often the task failed.
    fn begin_record(&self, file: &fs::File) -> Result<(Record, u32), Failure> {
        // Read again under the lock: the file may have become a script.
        let content =
            open::read(file).map_err(|error| self.io_failure("reading its record", &error))?;
        let old = match &content {
            Content::Foreign => {
                return Err(fatal(open::foreign(&self.path).why));
            }
            Content::Shared => {
                return Err(fatal(open::shared(&self.path).why));
            }
            Content::Damaged(None) => {
                // Microseconds: no tenure is as short, so the clock stays ahead of the count.
                let micros = time::OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000;
                let token = u64::try_from(micros).unwrap_or(0);
                tracing::warn!(
                    path = %self.path.display(),
                    token,
                    "the lock record cannot be read; the fencing token continues from the wall clock"
                );
                token
            }
            readable => readable.token().unwrap_or(0),
        };
        // Before any write: a finished task leaves no trace of this instance.
        let once = self.results(file)?;
        let token = self.see(old).checked_add(1).ok_or(fatal(format!(
            "{}: its fencing token is the greatest there is: set a smaller one, and reset what remembers the old one",
            self.path.display()
        )))?;
        let record = Record {
            once,
            ..Record::begun(&self.candidate, token)
        };
        write(file, &record).map_err(|error| self.write_failure("writing its record", &error))?;
        // An instance of a shared drive's lock makes the versions before it looks for this record: one of the
        // two sees the other.
        if open::has_versions(&self.path) {
            return Err(fatal(open::shared(&self.path).why));
        }
        let failed = self.begin_task(file, &record.once)?;
        Ok((record, failed))
    }

    pub(super) fn write_failure(&self, what: &str, error: &io::Error) -> Failure {
        let why = format!("{}: {what}: {error}", self.path.display());
        match errno_of(error) {
            // A person must mend the disk.
            Errno::EROFS | Errno::EIO => fatal(why),
            errno => no_room(&why, errno).unwrap_or_else(|| self.failure(what, errno)),
        }
    }

    pub(super) fn confirm(&self) -> Result<(), Failure> {
        let (file, _) = self.tenure()?;
        let failed = |error: io::Error| self.io_failure("looking at it again", &error);
        let ours = file.metadata().map_err(failed)?;
        let other = match open::open_existing(&self.path) {
            Ok(other) => other,
            // The next candidate makes a new file there, and locks that.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(lost_at(&self.path, REPLACED));
            }
            // The file may be there, and no longer open to this user.
            Err(error) => {
                let found = fs::metadata(&self.path).map_err(|_| failed(error))?;
                return if open::is_same(&ours, &found) {
                    Ok(())
                } else {
                    Err(lost_at(&self.path, REPLACED))
                };
            }
        };
        if !open::is_same(&ours, &other.metadata().map_err(failed)?) {
            return Err(lost_at(&self.path, REPLACED));
        }
        match lock::is_excluded(&other) {
            Ok(true) => Ok(()),
            Ok(false) => Err(lost_at(&self.path, "its lock is gone")),
            Err(errno) => Err(self.failure("testing its lock", errno)),
        }
    }

    fn announce(&self, drains: bool, health: String) -> Result<(), Failure> {
        let (file, mut record) = self.tenure()?;
        record.tell(drains, health);
        // Not synced: the token is on the disk, and a release must wait for this write.
        file.write_all_at(&record::encode(&record), 0)
            .map_err(|error| transient(format!("{}: {error}", self.path.display())))?;
        self.set_record(record);
        Ok(())
    }

    /// Unlocks the file; reports one that was replaced meanwhile.
    fn give_back(&self) -> Result<(), Failure> {
        self.state().leaving = false;
        let Ok((file, mut record)) = self.tenure() else {
            return Ok(()); // An abandoned attempt has undone itself.
        };
        // Before the unlock: after it the file and its record are another holder's.
        let replaced = open::is_replaced(&self.path, &file);
        if record.draining || !record.health.is_empty() {
            (record.draining, record.health) = (false, String::new());
            // Best effort: the next holder writes its own record.
            drop(file.write_all_at(&record::encode(&record), 0));
        }
        lock::unlock(&file).map_err(|errno| {
            transient(format!("{}: unlocking it: {errno}", self.path.display()))
        })?;
        self.state().record = None;
        if replaced {
            let path = self.path.display();
            tracing::warn!(%path, "{REPLACED}: check what both have written, and leave the file where it is");
            return Err(lost_at(&self.path, REPLACED));
        }
        Ok(())
    }

    fn io_failure(&self, what: &str, error: &io::Error) -> Failure {
        self.failure(what, errno_of(error))
    }

    fn failure(&self, what: &str, errno: Errno) -> Failure {
        failure_at(&self.path, what, errno)
    }
}

/// Overwrites the record, and puts back results that another program emptied.
fn write(file: &fs::File, record: &Record) -> io::Result<()> {
    // Never truncate first: a crash in between would lose the token.
    file.write_all_at(&record::encode(record), 0)?;
    let length = file.metadata()?.len();
    if length > record::WIDTH as u64 && length <= record::READ_LIMIT as u64 {
        file.set_len(record::WIDTH as u64)?;
    }
    if record.once != TaskLog::EMPTY && length <= record::READ_LIMIT as u64 {
        once_log::make_room(file, &record.once)?;
    }
    // A token that a crash takes back would be given out twice.
    file.sync_data()
}

#[cfg(test)]
mod tests;
