//! The system calls of an open-file-description lock on a whole file, and [`Probe`]: whether they exclude
//! anybody on this mount, tried on a file beside the lock.
//!
//! [`LockedFile`] is a file that one of our descriptions has locked. Called by `store`, `waiter` and `inspect`; the probe by `doctor`, in a thread that may hang with the file
//! system. Must never tell "held by another" from anything but EAGAIN and EACCES, and the probe must never
//! lock or write the lock's own file.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use time::OffsetDateTime;

use super::open;
use super::record::{self, Content};
use crate::clock::Instant;
use crate::lease::mount::beside;
pub(super) use crate::util::is_locked_by_another;
use crate::util::whole_file;

/// Locks the file if nobody else has it locked: `false` means "held by another". Locking again
/// what this description has locked already succeeds and changes nothing.
pub(super) fn try_exclusive(file: &fs::File) -> Result<bool, Errno> {
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK))) {
            Ok(_) => return Ok(true),
            // POSIX lets the kernel answer either. Nothing else means that it is held: ENOLCK taken for it
            // would have a standby wait for a holder who is not there.
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(false),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Unlocks the file for every process that shares the description.
pub(super) fn unlock(file: &fs::File) -> Result<(), Errno> {
    // Said and not left to close(2): the description lives on in the guardian and in the command.
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_UNLCK))) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// A file that one of our descriptions has locked; dropped, it is unlocked.
pub(super) struct LockedFile {
    file: Arc<fs::File>,
    kept: bool,
}

impl LockedFile {
    /// Locks the file if nobody else has it locked: `None` means "held by another".
    pub(super) fn of(file: &Arc<fs::File>) -> Result<Option<LockedFile>, Errno> {
        Ok(try_exclusive(file)?.then(|| LockedFile::new(Arc::clone(file))))
    }

    /// Locks the file, however long that takes.
    pub(super) fn wait(file: fs::File) -> Result<LockedFile, Errno> {
        loop {
            match fcntl(&file, FcntlArg::F_OFD_SETLKW(&whole_file(libc::F_WRLCK))) {
                Ok(_) => return Ok(LockedFile::new(Arc::new(file))),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn new(file: Arc<fs::File>) -> LockedFile {
        LockedFile { file, kept: false }
    }

    pub(super) fn file(&self) -> &fs::File {
        &self.file
    }

    /// It stays locked until it is unlocked, or the last copy of its descriptor is closed.
    pub(super) fn keep(mut self) -> Arc<fs::File> {
        self.kept = true;
        Arc::clone(&self.file)
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // It can fail only where there is nothing to unlock any more.
        if !self.kept
            && let Err(errno) = unlock(&self.file)
        {
            tracing::warn!(%errno, "the file's lock could not be given back");
        }
    }
}

/// Opens the lock's file for reading and writing, as an instance would, and says in words what stands in it,
/// or what is wrong with that; `None` if there is no file.
///
/// # Errors
/// One line, as `run` would say it.
pub fn examine(path: &Path) -> Result<Option<Result<String, String>>, open::OpenError> {
    // Closed again without a lock: closing a description ends no lock but its own.
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
        // Beside it, because that is the same mount; new, so that nothing of anybody's is written to; and
        // private, so that nobody locks it meanwhile and we call the mount broken.
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
        if !try_exclusive(&self.file)? {
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
        // Asked and tried: a mount on which the two disagree keeps nobody out.
        let other = open::open_existing(path)?;
        Ok(is_locked_by_another(&other)? && !try_exclusive(&other)?)
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

    /// Writes, and tells when that was by the file system's clock.
    ///
    /// # Errors
    /// The kernel's.
    pub fn written_at(&mut self) -> io::Result<OffsetDateTime> {
        self.file.write_all(b"\n")?;
        self.file.sync_all()?;
        Ok(self.file.metadata()?.modified()?.into())
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
    fn two_descriptions_exclude_each_other_and_duplicates_do_not() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let first = file.as_file();
        let second = file.reopen().expect("a second description");
        assert_eq!(try_exclusive(first), Ok(true));
        assert_eq!(try_exclusive(&second), Ok(false));
        assert_eq!(is_locked_by_another(&second), Ok(true));
        assert_eq!(is_locked_by_another(first), Ok(false));
        let duplicate = first.try_clone().expect("a duplicate");
        assert_eq!(try_exclusive(&duplicate), Ok(true));
        unlock(&duplicate).expect("to unlock");
        assert_eq!(is_locked_by_another(&second), Ok(false));
        assert_eq!(try_exclusive(&second), Ok(true));
    }

    #[test]
    fn what_is_locked_is_free_when_it_is_dropped_and_not_kept() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let [first, second] = [0; 2].map(|_| Arc::new(file.reopen().expect("a description")));
        let locked = LockedFile::of(&first).expect("asked").expect("free");
        assert!(LockedFile::of(&second).expect("asked").is_none());
        // Unlocked, and not only closed: a process that is just being started has a copy.
        drop(locked);
        let locked = LockedFile::of(&second).expect("asked").expect("free again");
        let kept = locked.keep();
        assert_eq!(is_locked_by_another(&first), Ok(true));
        unlock(&kept).expect("to unlock");
        assert_eq!(is_locked_by_another(&first), Ok(false));
    }

    #[test]
    fn a_probe_proves_exclusion_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut probe = Probe::beside(&dir.path().join("lock"), ".probe").unwrap();
        assert!(!Probe::is_excluded(probe.path()).unwrap(), "nobody has it");
        assert!(probe.excludes().unwrap());
        assert_eq!(probe.writes(3).unwrap().len(), 3);
        let skew = OffsetDateTime::now_utc() - probe.written_at().unwrap();
        assert!(skew.abs() < time::Duration::minutes(1));
        drop(probe);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
