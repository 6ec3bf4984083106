//! Tries out, on a file of its own beside the lock, whether locks exclude anybody there and what a
//! write costs: for `doctor`.
//!
//! Called from a thread that may hang with the file system. Must never lock or write the lock's own
//! file. The probe is removed when it is dropped.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;

use super::record::{self, Content};
use super::{lock, open};
use crate::clock::Instant;
use crate::lease::mount::beside;

/// Opens the lock's file for reading and writing, as an instance would, and says in words what stands in it,
/// or what is wrong with that; `None` if there is no file.
///
/// # Errors
/// One line, as `run` would say it.
pub fn examine(path: &Path) -> Result<Option<Result<String, String>>, open::OpenError> {
    let file = match open::open(path, false) {
        Ok(file) => file,
        Err(_) if matches!(open::open_to_look(path), Ok(None)) => return Ok(None),
        Err(why) => return Err(why),
    };
    Ok(Some(match open::read(&file) {
        Ok(Content::Record(record)) => Ok(format!("readable, token {}", record.token)),
        Ok(Content::Empty) => Ok("none yet".to_owned()),
        Ok(Content::Damaged(Some(token))) => Err(format!("damaged, token {token} or so")),
        Ok(Content::Damaged(None)) => Err("damaged beyond reading".to_owned()),
        Ok(Content::Shared) => Err("of a shared drive".to_owned()),
        Ok(Content::Foreign) => Err("something else".to_owned()),
        Err(error) => Err(error.to_string()),
    }))
}

/// A file to try things on.
pub struct Probe {
    path: PathBuf,
    file: fs::File,
}

impl Probe {
    /// Makes it: the lock's path followed by `suffix`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn beside(path: &Path, suffix: &str) -> io::Result<Probe> {
        let path = beside(path, suffix);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
        Ok(Probe { path, file })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Locks it, and tells whether a second descriptor of this process finds it locked.
    ///
    /// # Errors
    /// The kernel's.
    pub fn excludes(&self) -> io::Result<bool> {
        if !lock::try_exclusive(&self.file)? {
            return Err(io::Error::other("somebody else has locked it"));
        }
        Probe::is_excluded(&self.path)
    }

    /// Whether whoever opens this path anew finds it locked, and cannot lock it. What it locked
    /// nevertheless is unlocked with its descriptor.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_excluded(path: &Path) -> io::Result<bool> {
        let other = open::open_existing(path)?;
        Ok(lock::is_locked_by_another(&other)? && !lock::try_exclusive(&other)?)
    }

    /// Writes a record's length and sees it to the disk, so many times: how long each took.
    ///
    /// # Errors
    /// The kernel's.
    pub fn writes(&self, times: usize) -> io::Result<Vec<Duration>> {
        let mut bytes = vec![b' '; record::WIDTH];
        bytes[record::WIDTH - 1] = b'\n';
        let once = |_| {
            let begun = Instant::now();
            self.file.write_all_at(&bytes, 0)?;
            self.file.sync_data()?;
            Ok(Instant::now().since(begun))
        };
        (0..times).map(once).collect()
    }

    /// By how much the file system's clock is ahead of ours (negative: behind).
    ///
    /// # Errors
    /// The kernel's.
    pub fn clock(&mut self) -> io::Result<time::Duration> {
        let before = OffsetDateTime::now_utc();
        self.file.write_all(b"\n")?;
        self.file.sync_all()?;
        let after = OffsetDateTime::now_utc();
        let theirs = OffsetDateTime::from(self.file.metadata()?.modified()?);
        Ok(if theirs < before {
            theirs - before
        } else if theirs > after {
            theirs - after
        } else {
            time::Duration::ZERO
        })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // Where it cannot be removed it is empty enough to be left.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_proves_exclusion_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut probe = Probe::beside(&dir.path().join("lock"), ".probe").unwrap();
        assert!(!Probe::is_excluded(probe.path()).unwrap(), "nobody has it");
        assert!(probe.excludes().unwrap());
        assert_eq!(probe.writes(3).unwrap().len(), 3);
        assert!(probe.clock().unwrap().abs() < time::Duration::minutes(1));
        drop(probe);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
