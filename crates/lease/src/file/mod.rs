//! Lock on a file of this machine's own disk, kept by the kernel. ([`shared_file`](super::shared_file) is for
//! drives that machines share.)
//!
//! The lock is an open-file-description lock (`F_OFD_SETLK`) on the whole file, with flock(2)'s lock beside it.
//! Both belong to the open file description, not to a process: supervisor, guardian and command share them, and
//! the kernel frees them when the last of these is gone. An earlier release is an explicit unlock.
//!
//! | file | purpose |
//! |---|---|
//! | `store` | [`File`]: the trait, and the steps of acquire and release |
//! | `open` | [`OpenError`]: opens and creates the file; what it refuses, and why |
//! | `record` | the record as bytes in the file, also a damaged one |
//! | `once_log` | results of a one-time task behind the record, and the file system's time |
//! | `lock` | the system calls, and a trial whether they exclude other processes here |
//! | `waiter` | the thread that waits for the kernel to grant the lock, on a description of its own |
//! | `inspect` | looks at a lock without competing for it, lists a directory, forgets results |
//!
//! The file is never truncated before it is written, never renamed and never unlinked. If another program does
//! that, a standby stays behind the holder of the old file (its command may still run), and goes over to the
//! new file only when the old one is free.

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
