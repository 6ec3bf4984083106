//! [`LeaseStore`]: what a lock can be asked, whatever it is kept in; what the guardian does after the
//! supervisor's death; and [`NamedLock`]: from the name of a lock to its store.
//!
//! Both traits are implemented by each store; where locks are parsed each has a line. Called by the drivers,
//! by `run`, the library's face and the commands. A store decides nothing: what an error means for the tenure
//! is the core's. Nothing is asked of a store before it is opened.

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

/// What the drivers must know of a store before they make their rules, and what they tell people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreInfo {
    /// The lock's address for people and for `TRAFFICCOP_LOCK`; never with a secret in it.
    pub name: String,
    /// Which of several locks is ours, from 0; for `TRAFFICCOP_SLOT`. Has a meaning only while we
    /// have control.
    pub slot: u32,
    /// Which period the present run belongs to, where a task is to be done once in each:
    /// its beginning (RFC 3339, UTC).
    pub period: Option<String>,
    /// For how long a grant or a renewal lasts. `None`: as long as somebody has the lock's
    /// descriptor open, so there is no deadline. The same for as long as the store lives.
    pub lease: Option<Duration>,
    /// The store wakes us by [`LeaseStore::until_free`] when the lock can be had; otherwise it is
    /// polled. The same for as long as the store lives.
    pub wakes: bool,
}

/// What a holder changes in the record of the lease it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordUpdate {
    /// It has begun to drain. Best effort: an error is for the log only.
    Draining {
        /// What is wrong with its command's health, as [`RecordUpdate::Health`] has it.
        health: String,
    },
    /// What is wrong with its command's health, for people: `hung: …` or `failing: …`; empty where nothing is
    /// any more. Best effort, and asked for at most once in a health check's interval. A store whose record is
    /// written by the next renewal anyway may leave it to that.
    Health(String),
    /// What the run of the task came to that is to be done once.
    Outcome(Outcome),
}

impl RecordUpdate {
    /// What a store is at, for its errors.
    pub(crate) fn doing(&self) -> &'static str {
        match self {
            RecordUpdate::Draining { .. } => "announcing the drain",
            RecordUpdate::Health(_) => "recording the command's health",
            RecordUpdate::Outcome(_) => "recording the result",
        }
    }
}

/// What the guardian needs so that a lease does not outlast its orphaned tree; nothing, where the lease just
/// runs out.
#[derive(Debug, Default)]
pub struct OrphanRelease {
    /// A duplicate of the lock's descriptor, that guardian and command keep open, so that the lock
    /// lives as long as anything of the tree, and no longer.
    pub descriptor: Option<OwnedFd>,
    /// What [`release_orphaned`] gives the lease back with. At most 2048 bytes, no secret in it.
    pub release_info: Option<Vec<u8>>,
}

/// A lock in a store, as one instance competes for it.
///
/// All methods take `&self` and may be called while another call is under way, with one exception:
/// `acquire`, `renew` and `release` never overlap each other. Every method keeps its own time
/// limit (`give_up_at`), past which it returns [`Failure::Transient`]. An `acquire` or `release`
/// whose reply was lost is asked again with the same lease id by the next call.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// What this store is called and promises. With slots the name is another one in every tenure.
    fn info(&self) -> StoreInfo;

    /// Looks whether the lock is free and, only if it is, acquires it, raises the fencing token
    /// and writes the record, all under the lease.
    ///
    /// A store with a task that is to be done once looks at its record, too: before, and again under
    /// the lease.
    ///
    /// # Errors
    /// `Held` if another has it, `AlreadyDone` if there is no task to do any more; nothing is held by us after any error (an ambiguous acquire is
    /// remembered, and undone by the next `release` or recognised by the next `acquire`).
    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure>;

    /// Looks whether there is anything to get control for, and competes for nothing: of a store without a
    /// task that is to be done once there always is.
    ///
    /// # Errors
    /// `AlreadyDone` if the task is over; those of `acquire`, but for `Held`.
    async fn look_for_result(&self, _give_up_at: Instant) -> Result<(), Failure> {
        Ok(())
    }

    /// Renews the lease we have. The caller has stamped the moment before the call as `t0`; a store
    /// whose lock has no lease is never asked.
    ///
    /// # Errors
    /// `Lost` if it is definitely not ours any more; `Transient` for everything that is doubt.
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Gives the lease back, or undoes what an interrupted or ambiguous `acquire` may have
    /// obtained. Without either it does nothing.
    ///
    /// # Errors
    /// `Transient` if it could not be said; the lease then runs out by itself. `Lost` if it was
    /// ours, is not any more, and no request of ours can have given it back: somebody took it from
    /// us, or it has run out and was taken.
    async fn release(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Changes the record under the lease we have; asked again with the same outcome if that was in
    /// doubt. It may overlap a renewal, and never a release.
    ///
    /// # Errors
    /// `Lost` if the lease is not ours any more; then it may be recorded all the same only if an
    /// earlier attempt was in doubt. `Fatal` for an outcome where no task is.
    async fn update_record(&self, update: RecordUpdate, _: Instant) -> Result<(), Failure> {
        match update {
            RecordUpdate::Draining { .. } | RecordUpdate::Health(_) => Ok(()),
            RecordUpdate::Outcome(_) => Err(fatal(format!(
                "{}: this store keeps no results",
                self.info().name
            ))),
        }
    }

    /// Resolves when the lock can be had now, for a store that [`StoreInfo::wakes`]; else never.
    async fn until_free(&self) {
        pending().await
    }

    /// We compete no more: leaves behind what the next process of this user need not find out anew.
    async fn leave(&self, _give_up_at: Instant) {}

    /// What the guardian needs to give back the lease we have; ask again after every successful
    /// `acquire`, because a store may have had to open its file anew. What a store says before the first one holds
    /// between tenures, too: by it the guardian gives back what an attempt has just obtained.
    ///
    /// # Errors
    /// Those of dup(2). Nothing may be started without the descriptor then.
    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        Ok(OrphanRelease::default())
    }
}

/// What the guardian calls after the supervisor's death, when nothing of the tree lives any more: does what
/// [`OrphanRelease::release_info`] says, and nothing else.
pub fn release_orphaned(release_info: &[u8]) {
    // By what it bears and not by a store: the guardian was forked before there was any.
    if shared_file::is_release(release_info) {
        shared_file::execute_release();
    } else if helper::is_release(release_info) {
        helper::execute_release();
    } else {
        blob::release_orphaned(release_info);
    }
}

/// Makes memory that is shared with what is forked later, if there is any to be had.
pub type MakeMemory = fn() -> Option<Arc<dyn SharedMemory>>;

/// Who competes for a lock, and how.
#[derive(Clone)]
pub struct Competitor {
    /// What stands in the record.
    pub candidate: Candidate,
    /// How long a lease is to last, where the lock has one.
    pub lease: Duration,
    /// What is to be done once.
    pub task: Option<Task>,
    /// For what the guardian is to release; without it, the lease of a shared drive runs out after our death.
    pub memory: Option<MakeMemory>,
    /// A directory of this user's that does not outlast the boot (`XDG_RUNTIME_DIR`), if there is one.
    pub runtime: Option<PathBuf>,
    /// The operator promises that exactly one of two machines makes a directory on the lock's drive, whatever its
    /// file system.
    pub mkdir_is_exclusive: bool,
    /// The process has one thread yet, and nothing else to do: a first attempt that needs no network may be
    /// made in it.
    pub in_place: bool,
}

impl Competitor {
    /// One with nothing but what every store asks for.
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

/// Why a store could not be made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum OpenError {
    /// A blob's.
    Blob(#[from] blob::OpenError),
    /// That of a file on a local disk.
    File(#[from] file::OpenError),
    /// There is no working directory to a relative path.
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

/// A lock that was named: what competes for it and what looks at it is made from this.
pub trait NamedLock: Send + Sync {
    /// How long its leases can be.
    fn leases(&self) -> RangeInclusive<Duration> {
        Duration::ZERO..=Duration::MAX
    }

    /// The host of the service that keeps it, if there is one.
    fn host(&self) -> Option<String> {
        None
    }

    /// Whether its holder can ring for its standbys; where the kernel wakes them nobody listens.
    fn rings(&self) -> bool {
        true
    }

    /// Says in the log what is to be known of a lock that is kept here.
    fn warn(&self) {}

    /// Variables that hold what the store's client proves itself by: `--no-credentials` keeps them from the command.
    fn hides(&self) -> Vec<OsString> {
        Vec::new()
    }

    /// The store that competes for it.
    ///
    /// # Errors
    /// What cannot be a lock here.
    fn open(&self, competitor: &Competitor) -> Result<Arc<dyn LeaseStore>, OpenError>;

    /// The lock of this slot, which is one beside it: `NAME.SLOT`.
    ///
    /// # Errors
    /// A name that becomes too long.
    fn slot(&self, slot: u32) -> Result<Arc<dyn NamedLock>, OpenError>;

    /// What looks at it without competing.
    ///
    /// # Errors
    /// As [`NamedLock::open`].
    fn inspector(&self) -> Result<Box<dyn Inspector>, OpenError>;
}

/// The lock at this path, of which there are so many slots; `shared`: it is to be kept as on a drive that
/// machines share, whatever it lies on.
///
/// # Errors
/// Where it cannot be found out what the path lies on.
pub fn at_path(path: &Path, shared: bool, slots: u32) -> Result<Arc<dyn NamedLock>, OpenError> {
    // Asked of the slots and not of their common name, at which nothing ever lies: what a lock on the
    // server's own disk says of itself stands in its file. Of all of them: each is begun by whoever gets it first.
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
        // Begun by a client of this disk's server, which got that slot first.
        std::fs::create_dir(dir.path().join("sem.2.versions")).unwrap();
        assert_ne!(leases(3), Duration::ZERO..=Duration::MAX);
        assert_eq!(leases(2), Duration::ZERO..=Duration::MAX);
    }
}
