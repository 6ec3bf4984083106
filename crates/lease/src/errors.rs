//! What goes wrong, in the core's words. Used by all stores; it decides nothing.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use trafficcop_core::Failure;

pub(super) fn transient(why: String) -> Failure {
    Failure::Transient {
        why,
        retry_after: None,
    }
}

/// It never works as it is.
pub(super) fn fatal(why: String) -> Failure {
    Failure::Fatal { why, denied: false }
}

/// It is not ours any more, and may be another's at this moment.
// Without an `until`: the tree is killed at once. To be said only of what the store itself has said.
pub(super) fn lost(why: String) -> Failure {
    Failure::Lost { until: None, why }
}

pub(super) fn lost_at(path: &Path, why: &str) -> Failure {
    lost(format!("{}: {why}", path.display()))
}

/// What an error means that never works, and whether for want of a permission.
pub(super) fn fatal_at(path: &Path, what: &str, errno: Errno) -> Failure {
    Failure::Fatal {
        why: format!("{}: {what}: {}", path.display(), errno.desc()),
        denied: matches!(errno, Errno::EACCES | Errno::EPERM),
    }
}

/// What an error means that is not about a lock we have.
pub(super) fn failure_at(path: &Path, what: &str, errno: Errno) -> Failure {
    if is_passing(errno) {
        return transient(format!("{}: {what}: {}", path.display(), errno.desc()));
    }
    fatal_at(path, what, errno)
}

/// What an error means, said in these words, that is one of a full disk or of a limit; nothing, if it is not.
pub(super) fn no_room(why: &str, errno: Errno) -> Option<Failure> {
    let advice = match errno {
        Errno::ENOSPC | Errno::EDQUOT => "make room",
        Errno::EFBIG => "raise the limit of files' sizes (ulimit -f)",
        _ => return None,
    };
    Some(fatal(format!("{why}: {advice}")))
}

pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

pub(super) fn is_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

/// Whether an error may be gone the next time, rather than mean that it will never work.
pub(super) fn is_passing(errno: Errno) -> bool {
    use Errno as E;
    // Our own limits and the kernel's, then a server that is away, then a connection to it. What is not named
    // ends the instance: one that polls for ever with a wrong path looks like a standby and is none.
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
