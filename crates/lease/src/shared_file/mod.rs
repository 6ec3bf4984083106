//! Lock on a drive that machines share: an observed lease on a chain of versions.
//!
//! Kernel locks are not trusted here: SMB gives a lock away when a duplicate of its handle is closed, NFSv3
//! forgets it when the server's lock daemon restarts, and NFSv4 does not confirm it in a grace period. But if
//! two machines make one directory, exactly one succeeds (`mount` has the list of file systems), and no cache
//! answers that. So the truth is a chain of directories, `PATH.versions/V` (with the record of V in
//! `V-1/next`), and [`Observed`](trafficcop_core::Observed) decides who may make the next.
//!
//! Nothing of the share stays open between two steps, and no descriptor of it reaches guardian or command: a
//! server that is gone keeps no process from ending. The lock's path is never removed, renamed or locked.

mod broken;
mod chain;
mod errors;
mod files;
mod give_back;
mod inspect;
mod look;
mod meeting;
mod owner;
mod release;
mod share;
mod store;
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
pub(crate) use writer::KEPT_VERSIONS;
pub use writer::KeptVersions;
