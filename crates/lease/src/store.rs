//! Traits of a store and of a lock's name, and the guardian's [`release_orphaned`].
//!
//! A store decides nothing: the core decides what an error means.

use std::future::pending;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::errors::{fatal, transient};
use super::inspect::Inspector;
use super::once::Task;
use super::record::Candidate;
use super::shared_file::{KEPT_VERSIONS, KeptVersions};
use super::{SharedMemory, blob, file, helper, shared_file, slots};
use trafficcop_core::clock::Instant;
use trafficcop_core::observed::{LONGEST_LEASE, SHORTEST_LEASE};
use trafficcop_core::{Failure, Grant, Outcome};

/// Properties of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreInfo {
    /// Address of the lock, without a secret.
    pub name: String,
    /// Slot that this instance holds, from 0.
    pub slot: u32,
    /// Start of the run's period (RFC 3339, UTC), if there are periods.
    pub period: Option<String>,
    /// Length of a grant; constant. `None`: the lock lasts while any process has its descriptor open.
    pub lease: Option<Duration>,
    /// Whether [`LeaseStore::until_free`] wakes this instance, which otherwise polls. Constant.
    pub wakes: bool,
}

/// Change that a holder makes to its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordUpdate {
    /// The drain has begun. Best effort.
    Draining {
        /// Problem, as in [`RecordUpdate::Health`].
        health: String,
    },
    /// Problem of the command: `hung: …` or `failing: …`; empty when it is over. Best effort: a renewal may
    /// write it later.
    Health(String),
    /// Outcome of a one-time task.
    Outcome(Outcome),
}

impl RecordUpdate {
    pub(crate) fn doing(&self) -> &'static str {
        match self {
            RecordUpdate::Draining { .. } => "announcing the drain",
            RecordUpdate::Health(_) => "recording the command's health",
            RecordUpdate::Outcome(_) => "recording the result",
        }
    }
}

/// Means to end an orphaned lease; empty where it runs out.
#[derive(Debug, Default)]
pub struct OrphanRelease {
    /// Duplicate of the lock's descriptor: the lock lives as long as guardian and command keep it open.
    pub descriptor: Option<OwnedFd>,
    /// Text for [`release_orphaned`]: at most 2048 bytes, without a secret.
    pub release_info: Option<Vec<u8>>,
}

/// Lock in a store, as one instance competes for it.
///
/// Methods may overlap, except `acquire`, `renew` and `release` with each other. Past its time limit
/// (`give_up_at`) a method returns [`Failure::Transient`]. If the reply to an `acquire` or `release` was lost,
/// the next call repeats it with the same lease id.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Returns the properties. With slots the name differs in every tenure.
    fn info(&self) -> StoreInfo;

    /// Acquires the lock if it is free, raises the fencing token and writes the record under the lease.
    ///
    /// It looks at a one-time task's results first, and again under the lease.
    ///
    /// # Errors
    /// `Held` if another instance has it, `AlreadyDone` if the task is done. After any error this instance
    /// holds nothing: the next `release` undoes an ambiguous acquire, or the next `acquire` recognises it.
    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure>;

    /// Checks, without competing, whether a task is left to do.
    ///
    /// # Errors
    /// `AlreadyDone` if it is over; otherwise those of `acquire`, except `Held`.
    async fn look_for_result(&self, _give_up_at: Instant) -> Result<(), Failure> {
        Ok(())
    }

    /// Renews the lease, which the store must have. The caller stamps `t0` before.
    ///
    /// # Errors
    /// `Lost` if the lease is definitely gone; `Transient` for every doubt.
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Gives the lease back, or undoes what an ambiguous `acquire` may have obtained.
    ///
    /// # Errors
    /// `Transient` if the store did not confirm it: the lease then runs out. `Lost` if the lease was taken
    /// away, not given back by a request of this instance.
    async fn release(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Changes the record under the lease. After doubt the caller repeats the same outcome. May overlap a
    /// renewal, never a release.
    ///
    /// # Errors
    /// `Lost` if the lease is gone; an earlier attempt in doubt may have recorded the outcome. `Fatal` for an
    /// outcome without a task.
    async fn update_record(&self, update: RecordUpdate, _: Instant) -> Result<(), Failure> {
        match update {
            RecordUpdate::Draining { .. } | RecordUpdate::Health(_) => Ok(()),
            RecordUpdate::Outcome(_) => Err(fatal(format!(
                "{}: this store keeps no results",
                self.info().name
            ))),
        }
    }

    /// Resolves when the lock is available, if [`StoreInfo::wakes`].
    async fn until_free(&self) {
        pending().await
    }

    /// Ends competing, and informs this user's next process.
    async fn leave(&self, _give_up_at: Instant) {}

    /// Returns the guardian's means to give the lease back.
    ///
    /// Ask again after every successful `acquire`: the store may have opened its file anew. The first answer
    /// also holds between tenures, for what an attempt has just obtained.
    ///
    /// # Errors
    /// Those of dup(2). Without the descriptor the caller must not start a process.
    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        Ok(OrphanRelease::default())
    }
}

/// Gives back a lease, in the guardian, once the tree is empty.
pub fn release_orphaned(release_info: &[u8]) {
    // By the text: the guardian was forked before there was a store.
    if shared_file::is_release(release_info) {
        shared_file::execute_release();
    } else if helper::is_release(release_info) {
        helper::execute_release();
    } else {
        blob::release_orphaned(release_info);
    }
}

/// Makes memory that later forks share, if it can.
pub type MakeMemory = fn() -> Option<Arc<dyn SharedMemory>>;

/// Instance that competes, and its terms.
#[derive(Clone)]
pub struct Competitor {
    /// Identity for the record.
    pub candidate: Candidate,
    /// Length of a lease.
    pub lease: Duration,
    /// One-time task.
    pub task: Option<Task>,
    /// Memory for the guardian, without which a shared drive's lease runs out.
    pub memory: Option<MakeMemory>,
    /// Directories for notes that must not outlast the boot, the best first.
    pub runtime_directories: Vec<PathBuf>,
    /// Old versions that stay on a shared drive.
    pub kept_versions: KeptVersions,
    /// Promise that `mkdir` is exclusive on the drive, whatever its file system.
    pub mkdir_is_exclusive: bool,
    /// Whether a first attempt without network may run in the caller's thread.
    pub in_place: bool,
}

impl Competitor {
    /// Returns a competitor with the required fields.
    #[must_use]
    pub fn new(candidate: Candidate, lease: Duration) -> Competitor {
        Competitor {
            candidate,
            lease,
            task: None,
            memory: None,
            runtime_directories: super::stamp::runtime_directories(None),
            kept_versions: KEPT_VERSIONS,
            mkdir_is_exclusive: false,
            in_place: false,
        }
    }
}

/// Reason why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum OpenError {
    /// Error of a blob.
    Blob(#[from] blob::OpenError),
    /// File on a local disk.
    File(#[from] file::OpenError),
    /// Relative path without a working directory.
    Io(#[from] io::Error),
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        match error {
            OpenError::File(error) => error.into(),
            OpenError::Blob(error) => fatal(error.to_string()),
            OpenError::Io(error) => transient(error.to_string()),
        }
    }
}

/// Properties of a lock, known without a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// Address, without a secret.
    pub address: String,
    /// Where it is, in words: `on a shared drive`.
    pub place: &'static str,
    /// Host of its service.
    pub host: Option<String>,
    /// Range of lease lengths.
    pub leases: RangeInclusive<Duration>,
    /// Whether a holder can ring for its standbys; the kernel's waiters do not listen.
    pub uses_doorbell: bool,
    /// Whether a look can hang: a second one would only wait behind it.
    pub look_can_hang: bool,
    /// Shortest period of a break in seconds, besides 0; `None`: a kernel's lock cannot be broken.
    pub shortest_break: Option<u8>,
    /// Whether forgetting by force breaks the holder's lease first.
    pub force_breaks: bool,
    /// Warning for whoever competes for it.
    pub warning: Option<String>,
}

impl LockInfo {
    /// Returns the common properties: a record that every instance may replace.
    pub(crate) fn new(address: String, place: &'static str) -> LockInfo {
        LockInfo {
            address,
            place,
            host: None,
            leases: SHORTEST_LEASE..=LONGEST_LEASE,
            uses_doorbell: true,
            look_can_hang: false,
            // No instance accepts a shorter lease.
            shortest_break: u8::try_from(SHORTEST_LEASE.as_secs()).ok(),
            force_breaks: false,
            warning: None,
        }
    }

    /// Logs the warning.
    pub fn warn(&self) {
        if let Some(warning) = &self.warning {
            tracing::warn!("{warning}");
        }
    }
}

/// Lock by its name.
pub trait NamedLock: Send + Sync {
    /// Returns the properties.
    fn info(&self) -> LockInfo;

    /// Opens the store.
    ///
    /// # Errors
    /// If this cannot be a lock.
    fn open(&self, competitor: &Competitor) -> Result<Arc<dyn LeaseStore>, OpenError>;

    /// Returns the lock of a slot: `NAME.SLOT`.
    ///
    /// # Errors
    /// If the name becomes too long.
    fn slot(&self, slot: u32) -> Result<Arc<dyn NamedLock>, OpenError>;

    /// Makes the inspector.
    ///
    /// # Errors
    /// As [`NamedLock::open`].
    fn inspector(&self) -> Result<Box<dyn Inspector>, OpenError>;
}

/// Returns the lock at this path. `shared` keeps it as on a shared drive, wherever the path lies.
///
/// # Errors
/// If it is not known what the path lies on.
pub fn at_path(path: &Path, shared: bool, slots: u32) -> Result<Arc<dyn NamedLock>, OpenError> {
    // Ask about each slot: the common name has no file. On the server's own disk only the file shows that the
    // lock is shared.
    let names: Vec<PathBuf> = match slots {
        1 => vec![path.to_owned()],
        _ => (0..slots).map(|slot| slots::path_of(path, slot)).collect(),
    };
    let path = path.to_owned();
    for name in &names {
        if shared || file::is_shared(name)? {
            return Ok(Arc::new(shared_file::SharedFileLock(path)));
        }
    }
    Ok(Arc::new(file::FileLock(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shared_slot_makes_all_slots_shared() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sem");
        let leases = |slots| at_path(&path, false, slots).unwrap().info().leases;
        assert_eq!(leases(3), Duration::ZERO..=Duration::MAX);
        // A client of this disk's server got that slot first.
        std::fs::create_dir(dir.path().join("sem.2.versions")).unwrap();
        assert_ne!(leases(3), Duration::ZERO..=Duration::MAX);
        assert_eq!(leases(2), Duration::ZERO..=Duration::MAX);
    }
}
