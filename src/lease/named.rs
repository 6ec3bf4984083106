//! From the name of a lock to its store: [`NamedLock`] is implemented by each store, and where locks are
//! parsed each has a line.
//!
//! Called by `run` and by the commands. Nothing is asked of a store before it is opened.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::inspect::Inspector;
use super::once::Task;
use super::record::Candidate;
#[cfg(debug_assertions)]
use super::scripted::ScriptedLock;
use super::{LeaseStore, SharedMemory, blob, file, shared_file, slots};
use crate::core::Failure;
use crate::lease::errors::{fatal, transient};

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
    /// The process has one thread yet, and nothing else to do: a first attempt that needs no network may be
    /// made in it.
    pub in_place: bool,
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

    /// Says in the log what is to be known of a lock that is kept here.
    fn warn(&self) {}

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
#[must_use]
pub fn at_path(path: &Path, shared: bool, slots: u32) -> Arc<dyn NamedLock> {
    #[cfg(debug_assertions)]
    if let Some(lock) = ScriptedLock::at(path) {
        return Arc::new(lock);
    }
    let first = match slots {
        1 => path.to_owned(),
        _ => slots::path_of(path, 0),
    };
    let path = path.to_owned();
    match shared || file::is_shared(&first) {
        true => Arc::new(shared_file::SharedFileLock(path)),
        false => Arc::new(file::FileLock(path)),
    }
}
