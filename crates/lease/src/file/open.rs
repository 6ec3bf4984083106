//! Opens the lock file: what it may be, what is refused, and why.
//!
//! It must never truncate, rename or unlink, and never block on what is not a file.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::once_log;
use super::record::{self, Content};
use crate::errors::{errno_of, is_passing, transient};
use crate::{mount, shared_file, version_record};
pub(super) use trafficcop_core::util::is_same_file as is_same;
use trafficcop_core::util::read_up_to;
use trafficcop_core::{Failure, HolderInfo};

/// Reason why a file cannot serve as a lock, with advice, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct OpenError {
    /// Whether permission is missing (exit status 77, otherwise 69).
    pub denied: bool,
    /// Text of the reason.
    pub why: String,
    /// Whether the next try may succeed.
    pub(crate) passing: bool,
}

impl OpenError {
    pub(super) fn refused(path: &Path, why: &str) -> OpenError {
        OpenError::in_words(format!("{}: {why}", path.display()))
    }

    pub(crate) fn in_words(why: String) -> OpenError {
        OpenError {
            denied: false,
            why,
            passing: false,
        }
    }

    fn from_io(path: &Path, create: bool, error: &io::Error) -> OpenError {
        OpenError::of(path, create, "reading and writing", error)
    }

    fn of(path: &Path, create: bool, purpose: &str, error: &io::Error) -> OpenError {
        let errno = errno_of(error);
        let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let why = match errno {
            Errno::ENOENT if parent.is_some_and(|dir| !dir.exists()) => {
                "its directory does not exist: mount its share, or create the directory".into()
            }
            Errno::ENOENT if create => {
                "it is a link to a place where no file can be created".into()
            }
            Errno::ENOENT => "there is no such file: create it first".into(),
            Errno::ENOTDIR => "a part of this path is not a directory: correct the path".into(),
            Errno::EISDIR => "it is a directory: name a file in it".into(),
            Errno::EACCES | Errno::EPERM => {
                format!(
                    "no permission to open it for {purpose}: run as its owner, or make it and its directory \
                     writable for this user"
                )
            }
            Errno::EROFS => "the file system is read-only: name a file on a writable one".into(),
            Errno::ENAMETOOLONG => "its name is too long: take a shorter one".into(),
            Errno::ELOOP => "its symbolic links lead in a circle: name the file itself".into(),
            Errno::ENOSPC | Errno::EDQUOT => {
                format!("it cannot be created ({}): make room", errno.desc())
            }
            _ => format!("cannot open it for {purpose}: {}", errno.desc()),
        };
        OpenError {
            denied: matches!(errno, Errno::EACCES | Errno::EPERM),
            passing: is_passing(errno),
            ..OpenError::refused(path, &why)
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        if error.passing {
            return transient(error.why);
        }
        Failure::Fatal {
            why: error.why,
            denied: error.denied,
        }
    }
}

pub(super) fn open(path: &Path, create: bool) -> Result<fs::File, OpenError> {
    // Opening a device can have effects. O_NONBLOCK helps with a fifo, not with a tape.
    if let Ok(found) = fs::metadata(path) {
        refuse_all_but_files(path, &found)?;
    }
    let failed = |error| OpenError::from_io(path, create, &error);
    let (file, created) = match open_existing(path) {
        Err(error) if create && error.kind() == io::ErrorKind::NotFound => {
            // In a sticky directory (/tmp) the kernel can deny O_CREAT on another user's file that opens
            // without it.
            let made = options().create(true).truncate(false).open(path);
            match made {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    (open_existing(path).map_err(|_again| failed(error))?, false)
                }
                made => (made.map_err(failed)?, true),
            }
        }
        opened => (opened.map_err(failed)?, false),
    };
    // The path may have changed in between.
    let found = file.metadata().map_err(failed)?;
    refuse_all_but_files(path, &found)?;
    // The command inherits it, and needs an ordinary one.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty())).map_err(|errno| failed(errno.into()))?;
    if created {
        // Otherwise a crash could take away the file with its token. Some file systems cannot sync a directory.
        let directory = path.parent().map(fs::File::open);
        if let Some(Ok(directory)) = directory {
            drop(directory.sync_all());
        }
    }
    // An unreadable file (a mandatory lock) is read again under the lock.
    match read(&file) {
        Ok(Content::Foreign) => Err(foreign(path)),
        Ok(Content::Shared) => Err(shared(path)),
        Ok(Content::Empty | Content::Record(_) | Content::Damaged(_)) | Err(_) => Ok(file),
    }
}

/// Opens the file for reading only; `None` if it is missing from an existing directory.
pub(super) fn open_to_look(path: &Path) -> Result<Option<fs::File>, OpenError> {
    let failed = |error: io::Error| OpenError::of(path, false, "reading", &error);
    match fs::metadata(path) {
        Ok(found) => refuse_all_but_files(path, &found)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            // A mistyped directory must not look like a free lock.
            return match parent.is_none_or(Path::is_dir) {
                true => Ok(None),
                false => Err(failed(error)),
            };
        }
        Err(error) => return Err(failed(error)),
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(path).map(Some).map_err(failed)
}

pub(super) fn foreign(path: &Path) -> OpenError {
    OpenError::refused(
        path,
        "it holds something that is not a lock record: name another file, or empty this one",
    )
}

pub(super) fn shared(path: &Path) -> OpenError {
    OpenError::refused(
        path,
        "it is a lock of a shared drive, which the kernel's locks do not keep: add --shared, or name another file",
    )
}

/// Whether the lock at this path is a shared drive's. Asks a shared drive nothing.
///
/// # Errors
/// If the kernel's table of mounts cannot be read: a guess could make a local lock a shared one for good.
pub fn is_shared(path: &Path) -> Result<bool, OpenError> {
    // In this order: a request to a shared drive hangs if its server is gone.
    Ok(mount::known(path)?.shared || bears_versions(path))
}

/// Whether the path bears a shared drive's lock, or has versions beside it.
pub(super) fn bears_versions(path: &Path) -> bool {
    let begins = |mut file: fs::File| {
        let mut bytes = [0; version_record::FIRST_LINE.len()];
        file.read_exact(&mut bytes).is_ok() && bytes == *version_record::FIRST_LINE
    };
    open_to_look(path).ok().flatten().is_some_and(begins) || has_versions(path)
}

pub(super) fn has_versions(path: &Path) -> bool {
    mount::beside(path, shared_file::VERSIONS).is_dir()
}

pub(super) fn read(file: &fs::File) -> io::Result<Content> {
    // One byte more than a lock file can have.
    let mut bytes = vec![0; once_log::LENGTH + 1];
    let filled = read_up_to(file, &mut bytes, 0)?;
    // On a shared drive this is a hint, whatever follows.
    if bytes[..filled].starts_with(version_record::FIRST_LINE) {
        return Ok(Content::Shared);
    }
    if filled <= record::READ_LIMIT {
        return Ok(record::decode(&bytes[..filled]));
    }
    // A longer file is a lock's if results follow the record, with nothing in between.
    let (record, rest) = bytes[..filled].split_at(record::WIDTH);
    let gap = &rest[..record::READ_LIMIT - record::WIDTH];
    if filled > once_log::LENGTH || !record::is_blank(gap) {
        return Ok(Content::Foreign);
    }
    Ok(record::decode(record))
}

pub(super) fn holder_info(file: &fs::File) -> HolderInfo {
    let some = |text: String| (!text.is_empty()).then_some(text);
    match read(file) {
        Ok(Content::Record(record)) => HolderInfo {
            holder: some(record.holder),
            token: Some(record.token),
            command: some(record.command).map(Into::into),
            draining: record.draining,
            since: some(record.since).map(Into::into),
            ..HolderInfo::default()
        },
        _ => HolderInfo::default(),
    }
}

/// Never waits for the other end of a fifo.
pub(super) fn open_existing(path: &Path) -> io::Result<fs::File> {
    options().open(path)
}

/// Opens the same file, wherever its path leads by now, with a description of its own.
pub(super) fn reopen(file: &fs::File) -> io::Result<fs::File> {
    // Without O_NONBLOCK: the command may inherit it.
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(true).open(link)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options
}

/// Whether `path` names another file than `ours`, or none; `false` if that cannot be seen.
pub(super) fn is_replaced(path: &Path, ours: &fs::File) -> bool {
    // A stat alone does not make a network file system ask its server.
    let found = open_existing(path)
        .and_then(|other| other.metadata())
        .or_else(|_| fs::metadata(path));
    match (ours.metadata(), found) {
        (Ok(ours), Ok(found)) => !is_same(&ours, &found),
        (Ok(_), Err(error)) => error.kind() == io::ErrorKind::NotFound,
        (Err(_), _) => false,
    }
}

fn refuse_all_but_files(path: &Path, found: &fs::Metadata) -> Result<(), OpenError> {
    if found.is_file() {
        return Ok(());
    }
    let why = if found.is_dir() {
        "it is a directory: name a file in it"
    } else {
        "it is not a regular file: name one"
    };
    Err(OpenError::refused(path, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_file_is_not_created_for_an_intervention() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let refused = open(&path, false).unwrap_err();
        assert!(refused.why.contains("no such file") && !refused.denied);
        assert!(!path.exists());
    }
}
