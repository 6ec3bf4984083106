//! Maps errors to the core's words.

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

pub(super) fn fatal(why: String) -> Failure {
    Failure::Fatal { why, denied: false }
}

// Without an `until` the tree is killed at once: use it only for what the store itself reported.
pub(super) fn lost(why: String) -> Failure {
    Failure::Lost { until: None, why }
}

pub(super) fn lost_at(path: &Path, why: &str) -> Failure {
    lost(format!("{}: {why}", path.display()))
}

pub(super) fn fatal_at(path: &Path, what: &str, errno: Errno) -> Failure {
    Failure::Fatal {
        why: format!("{}: {what}: {}", path.display(), errno.desc()),
        denied: matches!(errno, Errno::EACCES | Errno::EPERM),
    }
}

pub(super) fn failure_at(path: &Path, what: &str, errno: Errno) -> Failure {
    if is_passing(errno) {
        return transient(format!("{}: {what}: {}", path.display(), errno.desc()));
    }
    fatal_at(path, what, errno)
}

/// Advises on a full disk or a size limit.
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

pub(super) fn is_passing(errno: Errno) -> bool {
    use Errno as E;
    // Limits of process and kernel, a server that is away, a broken connection. Every other error ends the
    // instance: one that polls a wrong path for ever looks like a standby and is none.
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
