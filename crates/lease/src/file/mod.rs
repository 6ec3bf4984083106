//! Lock on a file of this machine's own disk, kept by the kernel.
//!
//! The lock is an open-file-description lock (`F_OFD_SETLK`) on the whole file, with flock(2)'s lock beside it.
//! Both belong to the open file description: supervisor, guardian and command share them, and the kernel frees
//! them when the last of these is gone. An earlier release is an explicit unlock.
//!
//! The file is never truncated before it is written, never renamed and never unlinked. If another program does
//! that, a standby stays behind the old file's holder, whose command may still run, until that file is free.

mod inspect;
mod lock;
#[doc(hidden)]
pub mod once_log;
mod open;
#[doc(hidden)]
pub mod record;
mod store;
mod waiter;

pub(crate) use inspect::address_of;
pub use inspect::{FileInspector, KERNEL_ON_SHARED};
pub use lock::{Probe, examine};
pub use open::{OpenError, is_shared};
pub use store::{File, FileLock};
