//! What keeps a lock on a shared drive from being used, in words that say what to do.
//!
//! Called by `store`, `inspect` and `reset`. It decides nothing but whether it may pass.

use std::io::{self, ErrorKind};
use std::path::Path;

use nix::errno::Errno;

use super::share::Share;
use crate::core::Failure;
use crate::lease::errors::{errno_of, fatal, is_passing, transient};

/// What an error means before there is a tenure.
pub(super) fn of(path: &Path, versions: &Path, what: &str, error: &io::Error) -> Failure {
    let errno = errno_of(error);
    let (at, there) = (path.display(), versions.display());
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let why = match errno {
        _ if error.kind() == ErrorKind::InvalidInput && error.raw_os_error().is_none() => {
            format!("{at}: {error}")
        }
        Errno::EISDIR => format!("{at}: it is a directory: name a file in it"),
        Errno::ENOENT if parent.is_some_and(|parent| !parent.exists()) => {
            format!("{at}: its directory does not exist: create the directory")
        }
        Errno::ENOTDIR | Errno::ELOOP if is_no_directory(versions) => format!(
            "{there}: the versions of a shared lock are kept here, and it is no directory: remove it"
        ),
        Errno::ENOTDIR => format!("{at}: a part of this path is not a directory: correct the path"),
        Errno::EACCES | Errno::EPERM => {
            format!("{at}: {what}: no permission: give this user its directory and {there}")
        }
        Errno::EROFS => {
            format!("{at}: {what}: the file system is read-only: name a file on a writable one")
        }
        Errno::ENOSPC | Errno::EDQUOT => format!("{at}: {what}: {}: make room", errno.desc()),
        errno if is_passing(errno) => {
            return transient(format!("{at}: {what}: {}", errno.desc()));
        }
        _ => format!("{at}: {what}: {error}"),
    };
    Failure::Fatal {
        why,
        denied: matches!(errno, Errno::EACCES | Errno::EPERM),
    }
}

fn is_no_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir())
}

/// Something else stands at the path.
pub(super) fn stranger(path: &Path) -> Failure {
    fatal(format!(
        "{}: it is no lock of a shared drive: it bears a lock of the kernel's (an earlier trafficcop, or one on the server's own disk), or is another program's: end what holds it and remove it, or name another file",
        path.display()
    ))
}

/// The versions are gone, and the path says that there were some.
pub(super) fn removed(share: &Share) -> Failure {
    fatal(format!(
        "{}: its versions have been removed: when nothing holds it, remove {} too, and it begins anew (its fencing token as well)",
        share.versions().display(),
        share.path().display()
    ))
}
