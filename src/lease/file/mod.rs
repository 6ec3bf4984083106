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
//! | `open` | [`Config`], [`OpenError`]: opening and creating the file, what is refused and why |
//! | `record` | the record as bytes in the file, and what to make of damaged ones |
//! | `once_log` | the results of tasks that are to be done once, behind the record |
//! | `once` | such a task: looking for its result, the file system's time, writing the result down |
//! | `lock` | the four system calls |
//! | `waiter` | who has a claim on the description's lock just now; the waiter that the kernel wakes |
//! | `inspect` | looking at a lock without competing for it, listing a directory, forgetting results |
//! | `probe` | trying out whether locks exclude anybody here |
//! | `blocking` | blocking work in threads, one at a time, with a time limit |
//!
//! The file is never truncated before it is written, never renamed and never unlinked. If somebody
//! else does that while we stand by, we stay behind whoever has the old file locked (he may still
//! run his command), and go over to the new file only when the old one is free.

pub(super) mod blocking;
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
pub use store::{File, FileLock};
