//! What goes wrong with a file, in the core's words. Used by the steps of `store` and `task`; it
//! decides nothing.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use crate::core::Failure;

pub(super) fn transient(why: String) -> Failure {
    Failure::Transient {
        why,
        retry_after: None,
    }
}

pub(super) fn lost(path: &Path, why: &str) -> Failure {
    Failure::Lost {
        until: None,
        why: format!("{}: {why}", path.display()),
    }
}

pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

pub(super) fn is_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}
