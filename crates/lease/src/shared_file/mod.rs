//! The lock on a drive that machines share: an observed lease on a chain of versions.
//!
//! Kernel locks are not trusted here. On SMB a lock is given away when a duplicate of its handle is
//! closed, on NFSv3 it is forgotten when the server's lock daemon restarts, on NFSv4 a server's grace
//! period stops who only wants to prove it. If two machines make one directory, exactly one succeeds, on every
//! file system that is used here (`mount` has the list); no cache answers that. So the truth is a chain of
//! directories, `PATH.versions/V` (with the record of V in `V-1/next`), and [`Observed`](trafficcop_core::Observed) says who may make the next.
//!
//! | file | purpose |
//! |---|---|
//! | `store` | [`SharedFile`]: the trait |
//! | `chain` | the steps of acquire, renew and release |
//! | `give_back` | giving it back, and what is written of our versions |
//! | `broken` | what is left of a lease that an operator has broken |
//! | `whose` | whose a version is that its holder was to make, and that exists |
//! | `look` | what is seen of a lock at each attempt, a task that is to be done once, and the server's time |
//! | `share` | the requests to the drive, and what their errors mean |
//! | `files` | the system calls, and a simulation's drive in their place |
//! | `writer` | records, hints and the removal of old versions, behind the making of new ones |
//! | `release` | giving the lock back from the guardian |
//! | `inspect` | looking, breaking, and forgetting results without competing; trying out whether makers exclude each other here |
//! | `meeting` | a race between the doctors of two machines |
//!
//! Nothing of the share is open between two steps, and no descriptor of it reaches guardian or
//! command: a server that is gone keeps no process from ending. The lock's path is never removed,
//! renamed or locked.

mod broken;
mod chain;
mod errors;
mod files;
mod give_back;
mod inspect;
mod look;
mod meeting;
mod release;
mod share;
mod store;
mod whose;
mod writer;

#[cfg(debug_assertions)]
pub use files::Drive;
pub use files::{Answer, Call, Found, Kind};
pub(super) use inspect::forget;
pub use inspect::{Race, break_lock, look, race, round_trips, try_taking_over};
pub use meeting::{Meeting, meet};
pub use release::{LIMIT as RELEASE_LIMIT, release_orphaned_by};
pub(super) use release::{execute as execute_release, is_meant as is_release};
pub(super) use share::VERSIONS;
pub use store::{SharedFile, SharedFileLock};
