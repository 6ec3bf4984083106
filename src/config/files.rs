//! The files that were typed, besides the lock's own: they need a place to be, and may not be one
//! another. Called by the plan. It only looks.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::quote::quoted_word;
use super::{Lock, UsageError};
use crate::args;

/// The status file is replaced by renaming. If it were the lock's file, the next instance would
/// find a new file there, lock it, and run beside us.
pub(super) fn status_file(
    typed: &args::Common,
    lock: &Lock,
    slots: u32,
) -> Result<Option<PathBuf>, UsageError> {
    let Some(status) = &typed.status_file else {
        return Ok(None);
    };
    if status.as_os_str().is_empty() || status.file_name().is_none() || status.is_dir() {
        return Err(UsageError::new(format!(
            "--status-file {}: name a file, not a directory",
            quoted_word(status.as_os_str())
        )));
    }
    has_directory("--status-file", status)?;
    if let Lock::File { path, .. } = lock
        && locks(path, slots).any(|path| same_file(status, &path))
    {
        return Err(UsageError::new(format!(
            "--status-file {} is the lock's file, and would be replaced under the lock: name another one",
            status.display()
        )));
    }
    Ok(Some(status.clone()))
}

/// What is to be written from the first moment to the last needs a place to be, now.
pub(super) fn has_directory(flag: &str, file: &Path) -> Result<(), UsageError> {
    let directory = file.parent().filter(|path| !path.as_os_str().is_empty());
    if directory.unwrap_or(Path::new(".")).is_dir() {
        return Ok(());
    }
    Err(UsageError::new(format!(
        "{flag} {}: there is no such directory: create it, or name another file",
        file.display()
    )))
}

/// The files that are locked: the path itself, or one for each slot.
pub(super) fn locks(path: &Path, slots: u32) -> impl Iterator<Item = PathBuf> {
    (0..slots).map(move |slot| {
        let mut path = path.as_os_str().to_owned();
        if slots > 1 {
            path.push(format!(".{slot}"));
        }
        path.into()
    })
}

pub(super) fn same_file(one: &Path, other: &Path) -> bool {
    if let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) {
        return (one.dev(), one.ino()) == (other.dev(), other.ino());
    }
    // What does not exist yet is where its directory says it will be.
    let place = |path: &Path| {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(parent.join(path.file_name()?))
    };
    place(one).is_some_and(|one| place(other).is_some_and(|other| one == other))
}
