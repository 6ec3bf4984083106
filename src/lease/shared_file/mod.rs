//! The lock on a drive that machines share: an observed lease on a chain of versions.
//!
//! Kernel locks are not trusted here. On SMB a lock is given away when a duplicate of its handle is
//! closed, on NFSv3 it is forgotten when the server's lock daemon restarts, on NFSv4 a server's grace
//! period stops who only wants to prove it. What every shared drive keeps is that of two who make
//! one directory, one is told that it exists; no cache answers that. So the truth is a chain of
//! directories, `PATH.versions/V` (with the record of V in `V-1/next`), and [`Observed`](crate::core::Observed) says who may make the next.
//!
//! | file | purpose |
//! |---|---|
//! | `store` | [`SharedFile`]: the trait |
//! | `chain` | the steps of acquire, renew and release |
//! | `look` | what is seen of a lock at each attempt, a task that is to be done once, and the server's time |
//! | `share` | the requests to the drive |
//! | `record` | the record of a version as bytes, and the hint at the lock's path |
//! | `writer` | records, hints and the removal of old versions, behind the making of new ones |
//! | `release` | giving the lock back from the guardian |
//! | `stamp` | what an instance that looked and ended leaves to the next one on its machine |
//! | `inspect` | looking, breaking, and forgetting results without competing |
//! | `probe` | trying out whether makers exclude each other here |
//! | `refusal` | what keeps a lock from being used, in words |
//!
//! Nothing of the share is open between two steps, and no descriptor of it reaches guardian or
//! command: a server that is gone keeps no process from ending. The lock's path is never removed,
//! renamed or locked.

mod chain;
mod inspect;
mod look;
mod probe;
mod record;
mod refusal;
mod release;
mod share;
mod stamp;
mod store;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::SharedMemory;
use super::once::Task;
use super::record::Candidate;

pub(super) use inspect::{break_lock, forget, look};
pub use probe::{Race, race, round_trips};
pub(super) use record::FIRST_LINE;
pub(super) use release::{execute as execute_release, is_meant as is_release};
pub(super) use share::VERSIONS;
pub use store::{SharedFile, SharedFileLock};

/// How to compete for a lock on a shared drive.
#[derive(Clone)]
pub struct Config {
    /// The lock's path. A symbolic link is followed.
    pub path: PathBuf,
    /// Who competes.
    pub candidate: Candidate,
    /// The lease: 10 to 60 s.
    pub lease: Duration,
    /// What is to be done once.
    pub task: Option<Task>,
    /// Where the guardian finds what to release; without it the lease
    /// runs out after our death.
    pub memory: Option<Arc<dyn SharedMemory>>,
    /// A directory of this user's that does not outlast the boot (`XDG_RUNTIME_DIR`), if there is one:
    /// what was seen of the lock is left there for the next instance on this machine.
    pub runtime: Option<PathBuf>,
}
