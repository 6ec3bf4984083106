//! Containment: what keeps the command's tree together beyond subreaper and walk.
//!
//! - [`Cgroup`]: a cgroup of its own, killed as one by the kernel when somebody asks for it.
//! - [`Pidns`]: a PID namespace of its own, killed by the kernel when its init dies, for any reason,
//!   and its init dies with the guardian or at the deadline. [`keeper`] holds a file's lock until
//!   the namespace is empty.
//!
//! In each of them the guardian stays the parent of the command's main process. Called by `fork`
//! (to probe), by the guardian (to spawn, to kill) and by the supervisor (to finish what a dead
//! guardian left). Nothing here decides when to kill.

mod cgroup;
pub mod keeper;
mod page;
mod pidns;
pub(super) mod raw;
mod rehearsal;

pub use cgroup::Cgroup;
pub use pidns::Pidns;
pub use raw::Forked;
use rehearsal::Rehearsal;
