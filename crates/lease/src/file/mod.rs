//! The lock on a file of this machine's own disk: the kernel's. (A drive that machines share is
//! [`shared_file`](super::shared_file)'s.)
//!
//! The lock is an open-file-description lock (`F_OFD_SETLK`) on the whole file, and flock(2)'s lock beside it.
//! Both belong to the open file description, not to a process: supervisor, guardian and command share
//! them, and the kernel frees them when the last of them is gone. Giving them back earlier is an explicit unlock.
//!
//! | file | purpose |
//! |---|---|
//! | `store` | [`File`]: the trait, and the steps of acquire and release |
//! | `open` | [`OpenError`]: opening and creating the file, what is refused and why |
//! | `record` | the record as bytes in the file, and what to make of damaged ones |
//! | `once_log` | a task that is to be done once: its result behind the record, the file system's time |
//! | `lock` | the system calls, and trying out whether they exclude anybody here |
//! | `waiter` | the thread that waits for the kernel to grant the lock, on a description of its own |
//! | `inspect` | looking at a lock without competing for it, listing a directory, forgetting results |
//!
//! The file is never truncated before it is written, never renamed and never unlinked. If somebody
//! else does that while we stand by, we stay behind whoever has the old file locked (he may still
//! run his command), and go over to the new file only when the old one is free.

mod inspect;
mod lock;
#[doc(hidden)]
pub mod once_log;
mod open;
#[doc(hidden)]
pub mod record;
mod store;
mod waiter;

pub use inspect::{FileInspector, KERNEL_ON_SHARED};
pub use lock::{Probe, examine};
pub use open::{OpenError, is_shared};
pub use store::{File, FileLock};
