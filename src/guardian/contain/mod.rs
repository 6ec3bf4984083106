//! Containment: what keeps the command's tree together beyond subreaper and walk.
//!
//! - [`Cgroup`]: a cgroup of its own, killed as one by the kernel when somebody asks for it.
//! - [`Pidns`]: a PID namespace of its own, killed by the kernel when its init dies, for any reason,
//!   and its init dies with the guardian or at the deadline. [`lock_holder`] holds a file's lock until
//!   the namespace is empty.
//!
//! In each of them the guardian stays the parent of the command's main process. Called by `fork`
//! (to probe), by the guardian (to spawn, to kill) and by the supervisor (to finish what a dead
//! guardian left). Nothing here decides when to kill.

mod cgroup;
pub mod lock_holder;
mod pidns;
mod probe;
pub(super) mod raw;
mod shared_deadline;

pub use cgroup::Cgroup;
pub use pidns::Pidns;
use probe::Probe;
pub use raw::Forked;
