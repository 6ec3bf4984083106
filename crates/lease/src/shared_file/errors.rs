//! Errors of a lock on a shared drive as [`Failure`]s, with advice.

use std::io::{self, ErrorKind};
use std::path::Path;

use nix::errno::Errno;

use super::share::Share;
use crate::errors::{errno_of, fatal, is_passing, transient};
use trafficcop_core::Failure;

pub(super) const TRYING: &str = "trying whether this user could take it over";

impl Share {
    /// Maps an error before a tenure.
    pub(super) fn refusal(&self, what: &str, error: &io::Error) -> Failure {
        let errno = errno_of(error);
        let (at, there) = (self.path().display(), self.versions().display());
        let parent = self.path().parent();
        let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
        let why = match errno {
            _ if error.kind() == ErrorKind::InvalidInput && error.raw_os_error().is_none() => {
                format!("{at}: {error}")
            }
            Errno::EISDIR => format!("{at}: it is a directory: name a file in it"),
            Errno::ENOENT if parent.is_some_and(|parent| !parent.exists()) => {
                format!(
                    "{at}: its directory does not exist: mount its share, or create the directory"
                )
            }
            Errno::ENOTDIR | Errno::ELOOP if is_no_directory(self.versions()) => format!(
                "{there}: the versions of a shared lock are kept here, and it is no directory: remove it"
            ),
            Errno::ENOTDIR => {
                format!("{at}: a part of this path is not a directory: correct the path")
            }
            Errno::EACCES | Errno::EPERM => {
                format!(
                    "{at}: {what}: no permission: run as the owner of its directory (on SMB: mount it with that \
                     account), or give this user the directory and {there} with its contents (chown -R)"
                )
            }
            Errno::EROFS => {
                format!("{at}: {what}: the file system is read-only: name a file on a writable one")
            }
            Errno::ENOSPC | Errno::EDQUOT => format!("{at}: {what}: {}: make room", errno.desc()),
            Errno::EFBIG => {
                format!("{at}: {what}: {error}: raise the limit of files' sizes (ulimit -f)")
            }
            Errno::ENAMETOOLONG => {
                format!("{at}: its name is too long, also for {there}: take a shorter one")
            }
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

    /// Maps an error when a tenure may have begun. Before one, naming the missing permission loses nothing.
    pub(super) fn doubt_or_refusal(&self, began: bool, what: &str, error: &io::Error) -> Failure {
        match error.kind() {
            ErrorKind::PermissionDenied if !began => self.refusal(what, error),
            _ => self.doubt(what, error),
        }
    }

    /// Maps an error in a tenure: the lease runs, so it is never fatal.
    pub(super) fn doubt(&self, what: &str, error: &io::Error) -> Failure {
        let errno = errno_of(error);
        let advice = match errno {
            Errno::ENOSPC | Errno::EDQUOT => ": make room",
            _ if is_passing(errno) => "",
            _ => ": check what has changed there",
        };
        transient(format!(
            "{}: {what}: {error}{advice}",
            self.path().display()
        ))
    }

    pub(super) fn stranger(&self) -> Failure {
        fatal(format!(
            "{}: it is no lock of a shared drive: it has a lock of the kernel's (an earlier trafficcop, or one \
             on the server's own disk), or another program's: end its holder and remove it, or name another file",
            self.path().display()
        ))
    }

    pub(super) fn removed(&self) -> Failure {
        fatal(format!(
            "{}: its versions have been removed: end all instances on it, standbys too, then remove {} as well; \
             the lock and its fencing token begin anew",
            self.versions().display(),
            self.path().display()
        ))
    }
}

pub(super) fn is_for_good(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
    )
}

fn is_no_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir())
}
