//! The lock on a file of this machine's own disk: the kernel's. (A drive that machines share is
//! [`shared_file`](super::shared_file)'s.)
//!
//! The lock is an open-file-description lock (`F_OFD_SETLK`) on the whole file. It belongs to the
//! open file description, not to a process: supervisor, guardian and command share it, and the
//! kernel frees it when the last of them is gone. Giving it back earlier is an explicit unlock.
//!
//! | file | purpose |
//! |---|---|
//! | `store` | [`File`]: the trait, and the steps of acquire and release |
//! | `opening` | [`Config`], [`OpenError`]: opening and creating the file, what is refused and why |
//! | `line` | the record as bytes in the file, and what to make of damaged ones |
//! | `results` | the results of tasks that are to be done once, behind the record |
//! | `task` | such a task: looking for its result, the server's time, writing the result down |
//! | `lock` | the three system calls |
//! | `desk` | who has a claim on the description's lock just now; the waiter that the kernel wakes |
//! | `inspect` | looking at a lock without competing for it, and listing a directory |
//! | `reset` | forgetting such results, under the lock |
//! | `probe` | trying out whether locks exclude anybody here |
//! | `failures` | what goes wrong, in the core's words |
//! | `lane` | blocking work in threads, one at a time, with a time limit |
//!
//! The file is never truncated before it is written, never renamed and never unlinked. If somebody
//! else does that while we stand by, we stay behind whoever has the old file locked (he may still
//! run his command), and go over to the new file only when the old one is free.

pub(super) mod blocking;
pub(super) mod errors;
mod inspect;
mod lock;
mod once;
mod once_log;
mod open;
mod probe;
pub(super) mod record;
mod store;
mod waiter;

pub use inspect::{FileInspector, KERNEL_ON_SHARED};
pub use open::{Config, OpenError, is_shared};
pub use probe::{Probe, examine};
pub use store::File;
