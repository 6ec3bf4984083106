//! What goes wrong with a file, in the core's words. Used by the steps of `store` and `task`; it
//! decides nothing.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use crate::core::Failure;

pub(in crate::lease) fn transient(why: String) -> Failure {
    Failure::Transient {
        why,
        retry_after: None,
    }
}

pub(in crate::lease) fn lost(path: &Path, why: &str) -> Failure {
    Failure::Lost {
        until: None,
        why: format!("{}: {why}", path.display()),
    }
}

/// What never works, and whether for want of a permission.
pub(in crate::lease) fn fatal(path: &Path, what: &str, errno: Errno) -> Failure {
    Failure::Fatal {
        why: format!("{}: {what}: {}", path.display(), errno.desc()),
        denied: matches!(errno, Errno::EACCES | Errno::EPERM),
    }
}

/// What an error means that is not about a lock we have.
pub(super) fn failure(path: &Path, what: &str, errno: Errno) -> Failure {
    if is_passing(errno) {
        return transient(format!("{}: {what}: {}", path.display(), errno.desc()));
    }
    fatal(path, what, errno)
}

pub(in crate::lease) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

pub(in crate::lease) fn is_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

/// Whether an error may be gone the next time, rather than mean that it will never work.
pub(in crate::lease) fn is_passing(errno: Errno) -> bool {
    use Errno as E;
    matches!(
        errno,
        E::EMFILE | E::ENFILE | E::ENOMEM | E::EIO | E::EINTR | E::EAGAIN | E::EBUSY | E::ENOLCK
    ) || matches!(
        errno,
        E::ETIMEDOUT | E::EHOSTDOWN | E::EHOSTUNREACH | E::ENETDOWN | E::ENETUNREACH | E::ESTALE
    ) || matches!(
        errno,
        E::ECONNREFUSED | E::ECONNRESET | E::ECONNABORTED | E::ENOTCONN | E::EREMOTEIO
    )
}
