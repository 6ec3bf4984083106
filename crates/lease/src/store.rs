//! [`LeaseStore`], the trait of every store; [`release_orphaned`], which the guardian calls after the
//! supervisor's death; and [`NamedLock`], which opens a lock by its name.
//!
//! Each store implements both traits, and has a line where locks are parsed. The drivers, `run`, the library's
//! face and the commands call them. A store decides nothing: the core decides what an error means for the
//! tenure. A store gets no request before it is opened.

use std::ffi::OsString;
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
use super::{SharedMemory, blob, file, helper, shared_file, slots};
use trafficcop_core::clock::Instant;
use trafficcop_core::{Failure, Grant, Outcome};

/// Properties of a store, for the drivers' rules and for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreInfo {
    /// Address of the lock for people and for `TRAFFICCOP_LOCK`; never contains a secret.
    pub name: String,
    /// Slot that this instance holds, from 0; for `TRAFFICCOP_SLOT`. Meaningless without control.
    pub slot: u32,
    /// Start of the present run's period (RFC 3339, UTC), if the task has periods.
    pub period: Option<String>,
    /// Length of a grant or renewal. `None`: no deadline; the lock lasts while any process has its descriptor
    /// open. Constant.
    pub lease: Option<Duration>,
    /// Whether [`LeaseStore::until_free`] wakes this instance when the lock is available; otherwise it polls.
    /// Constant.
    pub wakes: bool,
}

/// Change that a holder makes to its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordUpdate {
    /// The holder has begun to drain. Best effort: an error is only logged.
    Draining {
        /// Problem of its command, as in [`RecordUpdate::Health`].
        health: String,
    },
    /// Problem of the holder's command, for people: `hung: …` or `failing: …`; empty when it is over. Best
    /// effort, at most once in a health check's interval. A store may leave it to a renewal that writes the
    /// record anyway.
    Health(String),
    /// Outcome of a one-time task's run.
    Outcome(Outcome),
}

impl RecordUpdate {
    /// Names the update, for a store's errors.
    pub(crate) fn doing(&self) -> &'static str {
        match self {
            RecordUpdate::Draining { .. } => "announcing the drain",
            RecordUpdate::Health(_) => "recording the command's health",
            RecordUpdate::Outcome(_) => "recording the result",
        }
    }
}

/// Means to end a lease with its orphaned tree; empty where the lease just runs out.
#[derive(Debug, Default)]
pub struct OrphanRelease {
    /// Duplicate of the lock's descriptor. Guardian and command keep it open, so that the lock lives exactly as
    /// long as the tree.
    pub descriptor: Option<OwnedFd>,
    /// Text by which [`release_orphaned`] gives the lease back. At most 2048 bytes, no secret in it.
    pub release_info: Option<Vec<u8>>,
}

/// Lock in a store, as one instance competes for it.
///
/// All methods may overlap, except that `acquire`, `renew` and `release` never overlap each other. Every method
/// returns [`Failure::Transient`] past its time limit (`give_up_at`). If the reply to an `acquire` or `release`
/// was lost, the next call repeats it with the same lease id.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Returns the store's name and properties. With slots the name differs in every tenure.
    fn info(&self) -> StoreInfo;

    /// Acquires the lock if a look shows it free, then raises the fencing token and writes the record under the
    /// lease.
    ///
    /// For a one-time task it also looks at the results: before, and again under the lease.
    ///
    /// # Errors
    /// `Held` if another instance has it, `AlreadyDone` if the task is done. After any error this instance
    /// holds nothing: the next `release` undoes an ambiguous acquire, or the next `acquire` recognises it.
    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure>;

    /// Checks whether there is anything to compete for, without competing. Without a one-time task there always
    /// is.
    ///
    /// # Errors
    /// `AlreadyDone` if the task is over; otherwise those of `acquire`, except `Held`.
    async fn look_for_result(&self, _give_up_at: Instant) -> Result<(), Failure> {
        Ok(())
    }

    /// Renews the lease. The caller stamped `t0` before the call; a store without leases is never asked.
    ///
    /// # Errors
    /// `Lost` if the lease is definitely gone; `Transient` for every doubt.
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Gives the lease back, or undoes what an interrupted or ambiguous `acquire` may have obtained; otherwise
    /// does nothing.
    ///
    /// # Errors
    /// `Transient` if the store did not confirm it; the lease then runs out by itself. `Lost` if this instance
    /// had the lease and none of its own requests can have given it back.
    async fn release(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Changes the record under the lease; after doubt the caller repeats the same outcome. May overlap a
    /// renewal, never a release.
    ///
    /// # Errors
    /// `Lost` if the lease is gone; the outcome may still be recorded, but only if an earlier attempt was in
    /// doubt. `Fatal` for an outcome without a task.
    async fn update_record(&self, update: RecordUpdate, _: Instant) -> Result<(), Failure> {
        match update {
            RecordUpdate::Draining { .. } | RecordUpdate::Health(_) => Ok(()),
            RecordUpdate::Outcome(_) => Err(fatal(format!(
                "{}: this store keeps no results",
                self.info().name
            ))),
        }
    }

    /// Resolves when the lock is available, for a store that [`StoreInfo::wakes`]; otherwise never.
    async fn until_free(&self) {
        pending().await
    }

    /// Ends competing, and leaves what it knows to the next process of this user.
    async fn leave(&self, _give_up_at: Instant) {}

    /// Returns what the guardian needs to give back the lease. Ask again after every successful `acquire`: the
    /// store may have opened its file anew. The answer before the first one also holds between tenures, for
    /// what an attempt has just obtained.
    ///
    /// # Errors
    /// Those of dup(2). Without the descriptor the caller must not start a process.
    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        Ok(OrphanRelease::default())
    }
}

/// Gives back a lease as [`OrphanRelease::release_info`] says. The guardian calls it after the supervisor's
/// death, once the tree is empty.
pub fn release_orphaned(release_info: &[u8]) {
    // Chosen by the text and not by a store: the guardian was forked before there was one.
    if shared_file::is_release(release_info) {
        shared_file::execute_release();
    } else if helper::is_release(release_info) {
        helper::execute_release();
    } else {
        blob::release_orphaned(release_info);
    }
}

/// Makes memory that later forks share, if the system has any.
pub type MakeMemory = fn() -> Option<Arc<dyn SharedMemory>>;

/// Instance that competes for a lock, and its terms.
#[derive(Clone)]
pub struct Competitor {
    /// Identity for the record.
    pub candidate: Candidate,
    /// Length of a lease, where the lock has one.
    pub lease: Duration,
    /// One-time task, if there is one.
    pub task: Option<Task>,
    /// Memory that tells the guardian what to release; without it a shared drive's lease runs out.
    pub memory: Option<MakeMemory>,
    /// Directory of this user that does not outlast the boot (`XDG_RUNTIME_DIR`), if there is one.
    pub runtime: Option<PathBuf>,
    /// Promise of the operator that exactly one of two machines makes a directory on the lock's drive, whatever
    /// its file system.
    pub mkdir_is_exclusive: bool,
    /// Whether a first attempt without network may run in the caller's thread: the process has one thread yet,
    /// and nothing else to do.
    pub in_place: bool,
}

impl Competitor {
    /// Returns a competitor with only what every store needs.
    #[must_use]
    pub fn new(candidate: Candidate, lease: Duration) -> Competitor {
        Competitor {
            candidate,
            lease,
            task: None,
            memory: None,
            runtime: None,
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
    /// Error of a file on a local disk.
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

/// Lock by its name, from which its store and its inspector are made.
pub trait NamedLock: Send + Sync {
    /// Returns the range of lease lengths.
    fn leases(&self) -> RangeInclusive<Duration> {
        Duration::ZERO..=Duration::MAX
    }

    /// Returns the host of the service that keeps it, if there is one.
    fn host(&self) -> Option<String> {
        None
    }

    /// Whether a holder can ring for its standbys. Where the kernel wakes them, none listens.
    fn rings(&self) -> bool {
        true
    }

    /// Logs warnings about a lock that is kept here.
    fn warn(&self) {}

    /// Names the variables with the store's credentials, which `--no-credentials` keeps from the command.
    fn hides(&self) -> Vec<OsString> {
        Vec::new()
    }

    /// Opens the store that competes for it.
    ///
    /// # Errors
    /// If this cannot be a lock.
    fn open(&self, competitor: &Competitor) -> Result<Arc<dyn LeaseStore>, OpenError>;

    /// Returns the lock of a slot, beside this one: `NAME.SLOT`.
    ///
    /// # Errors
    /// If the name becomes too long.
    fn slot(&self, slot: u32) -> Result<Arc<dyn NamedLock>, OpenError>;

    /// Makes the inspector, which looks without competing.
    ///
    /// # Errors
    /// As [`NamedLock::open`].
    fn inspector(&self) -> Result<Box<dyn Inspector>, OpenError>;
}

/// Returns the lock at this path, with so many slots. `shared` keeps it as on a shared drive, whatever the path
/// lies on.
///
/// # Errors
/// If it is not known what the path lies on.
pub fn at_path(path: &Path, shared: bool, slots: u32) -> Result<Arc<dyn NamedLock>, OpenError> {
    // Ask about the slots, not about their common name, where no file lies: a lock on the server's own disk
    // says in its file that it is shared. Ask about all: each is begun by the instance that gets it first.
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
        let leases = |slots| at_path(&path, false, slots).unwrap().leases();
        assert_eq!(leases(3), Duration::ZERO..=Duration::MAX);
        // A client of this disk's server began it: it got that slot first.
        std::fs::create_dir(dir.path().join("sem.2.versions")).unwrap();
        assert_ne!(leases(3), Duration::ZERO..=Duration::MAX);
        assert_eq!(leases(2), Duration::ZERO..=Duration::MAX);
    }
}
