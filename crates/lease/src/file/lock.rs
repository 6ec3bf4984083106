//! System calls that lock a file, and [`Probe`], which tries whether they exclude other processes on this
//! mount.
//!
//! A locked file has two locks on one description: an open-file-description lock, which excludes other
//! instances and lockf(3), and flock(2)'s lock, which excludes flock(1). Linux keeps the two apart. Only EAGAIN
//! and EACCES may count as "held by another". The probe must never lock or write the lock's own file.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FlockArg, fcntl};
use time::OffsetDateTime;

use super::open;
use super::record::{self, Content};
use crate::mount::beside;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::{flock, is_locked_by_another, whole_file};

// Retries of flock(2), and the first pause, doubled each time: 102 ms in all.
const FLOCK_RETRIES: u32 = 10;
const FIRST_NAP: Duration = Duration::from_micros(100);

/// Takes both locks; `false` means "held by another".
pub(super) fn try_exclusive(file: &fs::File) -> Result<bool, Errno> {
    // Every instance uses this order: with the first lock it gets the second, or another program has that.
    if !set_ofd(file, Wait::Never, libc::F_WRLCK)? {
        return Ok(false);
    }
    let locked = try_flock(file);
    if locked != Ok(true) {
        set_ofd(file, Wait::Never, libc::F_UNLCK)?;
    }
    locked
}

/// Unlocks for every process that shares the description.
pub(super) fn unlock(file: &fs::File) -> Result<(), Errno> {
    // Not left to close(2): the description lives on in guardian and command. The second unlock wakes a waiter,
    // which finds the first lock free.
    let done = flock(file, FlockArg::Unlock);
    set_ofd(file, Wait::Never, libc::F_UNLCK)?;
    done
}

/// Lock of another description that keeps this one from locking the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Instance's lock, or that of a program that uses lockf(3).
    Ofd,
    /// Lock of flock(2) alone: another program's, no instance's.
    Flock,
}

/// Returns which lock of another description keeps `file` from being locked; `file` has none itself.
pub(super) fn locked_by_another(file: &fs::File) -> Result<Option<Kind>, Errno> {
    // This question disturbs no other program.
    if is_locked_by_another(file)? {
        return Ok(Some(Kind::Ofd));
    }
    Ok(is_flocked_by_another(file)?.then_some(Kind::Flock))
}

/// Whether other descriptions have both locks of `file`, which has none.
pub(super) fn is_excluded(file: &fs::File) -> Result<bool, Errno> {
    Ok(is_locked_by_another(file)? && is_flocked_by_another(file)?)
}

fn is_flocked_by_another(file: &fs::File) -> Result<bool, Errno> {
    // flock(2) can only be tried. An attempt that meets this shared lock tries again.
    let free = flock_at_once(file, FlockArg::LockSharedNonblock)?;
    if free {
        flock(file, FlockArg::Unlock)?;
    }
    Ok(!free)
}

#[derive(PartialEq, Eq)]
enum Wait {
    Never,
    UntilFree,
}

/// Sets or removes the first lock; `false` means "held by another".
fn set_ofd(file: &fs::File, wait: Wait, kind: libc::c_int) -> Result<bool, Errno> {
    let request = whole_file(kind);
    loop {
        let request = match wait {
            Wait::Never => FcntlArg::F_OFD_SETLK(&request),
            Wait::UntilFree => FcntlArg::F_OFD_SETLKW(&request),
        };
        match fcntl(file, request) {
            Ok(_) => return Ok(true),
            // POSIX allows either. Nothing else means "held": with ENOLCK, a standby would wait for a holder
            // that does not exist.
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(false),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn flock_at_once(file: &fs::File, how: FlockArg) -> Result<bool, Errno> {
    match flock(file, how) {
        Ok(()) => Ok(true),
        Err(Errno::EWOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn try_flock(file: &fs::File) -> Result<bool, Errno> {
    // A look or a waiter has it only for a moment: without retries an instance with -n would take it for a
    // holder.
    for nap in 0..FLOCK_RETRIES {
        if flock_at_once(file, FlockArg::LockExclusiveNonblock)? {
            return Ok(true);
        }
        thread::sleep(FIRST_NAP * (1 << nap));
    }
    flock_at_once(file, FlockArg::LockExclusiveNonblock)
}

/// Locked file; dropping it unlocks.
pub(super) struct LockedFile {
    file: Arc<fs::File>,
    kept: bool,
}

impl LockedFile {
    /// Locks the file; `None` means "held by another".
    pub(super) fn of(file: &Arc<fs::File>) -> Result<Option<LockedFile>, Errno> {
        Ok(try_exclusive(file)?.then(|| LockedFile::new(Arc::clone(file))))
    }

    pub(super) fn wait(file: fs::File) -> Result<LockedFile, Errno> {
        // Any failure below drops it, which unlocks.
        let locked = LockedFile::new(Arc::new(file));
        let file = locked.file();
        // Wait for either without the other: another program may wait in the other order.
        loop {
            set_ofd(file, Wait::UntilFree, libc::F_WRLCK)?;
            if try_flock(file)? {
                break;
            }
            set_ofd(file, Wait::Never, libc::F_UNLCK)?;
            flock(file, FlockArg::LockExclusive)?;
            if set_ofd(file, Wait::Never, libc::F_WRLCK)? {
                break;
            }
            flock(file, FlockArg::Unlock)?;
        }
        Ok(locked)
    }

    fn new(file: Arc<fs::File>) -> LockedFile {
        LockedFile { file, kept: false }
    }

    pub(super) fn file(&self) -> &fs::File {
        &self.file
    }

    /// Keeps the file locked until an unlock, or until the last copy of its descriptor is closed.
    pub(super) fn keep(mut self) -> Arc<fs::File> {
        self.kept = true;
        Arc::clone(&self.file)
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if !self.kept
            && let Err(errno) = unlock(&self.file)
        {
            tracing::warn!(%errno, "the file's lock could not be given back");
        }
    }
}

/// Opens the lock's file as an instance would, and describes its record or the problem with it.
///
/// # Errors
/// The line that `run` would report.
pub fn examine(path: &Path) -> Result<Option<Result<String, String>>, open::OpenError> {
    // Closing a description ends no other lock.
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

/// File to try locks and writes on.
pub struct Probe {
    path: PathBuf,
    file: fs::File,
}

impl Probe {
    /// Makes it: the lock's path followed by `suffix`.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn beside(path: &Path, suffix: &str) -> io::Result<Probe> {
        // New, so that no other file is written to; private, so that no other process locks it.
        let path = beside(path, suffix);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
        Ok(Probe { path, file })
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Locks it, and returns whether a second descriptor finds it locked.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn excludes(&self) -> io::Result<bool> {
        if !try_exclusive(&self.file)? {
            return Err(io::Error::other("another process has locked it"));
        }
        Probe::is_excluded(&self.path)
    }

    /// Whether a new descriptor of this path finds it locked, and cannot lock it.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn is_excluded(path: &Path) -> io::Result<bool> {
        // Where the two disagree, the mount excludes no process.
        let other = open::open_existing(path)?;
        Ok(is_excluded(&other)? && !try_exclusive(&other)?)
    }

    /// Writes a record's length to the disk `times` times; returns how long each took.
    ///
    /// # Errors
    /// Those of the system calls.
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

    /// Writes, and returns the file system's time of that.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn written_at(&mut self) -> io::Result<OffsetDateTime> {
        self.file.write_all(b"\n")?;
        self.file.sync_all()?;
        Ok(self.file.metadata()?.modified()?.into())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
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
        assert_eq!(locked_by_another(&second), Ok(Some(Kind::Ofd)));
        assert_eq!(is_excluded(&second), Ok(true));
        let duplicate = first.try_clone().expect("a duplicate");
        assert_eq!(try_exclusive(&duplicate), Ok(true));
        unlock(&duplicate).expect("to unlock");
        assert_eq!(locked_by_another(&second), Ok(None));
        assert_eq!(try_exclusive(&second), Ok(true));
    }

    #[test]
    fn locked_file_is_unlocked_on_drop_unless_kept() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let [first, second] = [0; 2].map(|_| Arc::new(file.reopen().expect("a description")));
        let locked = LockedFile::of(&first).expect("asked").expect("free");
        assert!(LockedFile::of(&second).expect("asked").is_none());
        // Not only closed: a process that is just being started has a copy.
        drop(locked);
        let locked = LockedFile::of(&second).expect("asked").expect("free again");
        let kept = locked.keep();
        assert_eq!(locked_by_another(&first), Ok(Some(Kind::Ofd)));
        unlock(&kept).expect("to unlock");
        assert_eq!(locked_by_another(&first), Ok(None));
    }

    #[test]
    fn flock_excludes_an_instance_and_an_instance_excludes_flock() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let [stranger, ours, other] = [0; 3].map(|_| file.reopen().expect("a description"));
        for how in [
            FlockArg::LockSharedNonblock,
            FlockArg::LockExclusiveNonblock,
        ] {
            flock(&stranger, how).expect("free");
            assert_eq!(try_exclusive(&ours), Ok(false));
            assert_eq!(is_locked_by_another(&other), Ok(false));
            assert_eq!(is_excluded(&other), Ok(false));
            flock(&stranger, FlockArg::Unlock).expect("to unlock");
        }
        flock(&stranger, FlockArg::LockExclusive).expect("free");
        assert_eq!(locked_by_another(&other), Ok(Some(Kind::Flock)));
        flock(&stranger, FlockArg::Unlock).expect("to unlock");
        assert_eq!(try_exclusive(&ours), Ok(true));
        let refused = flock(&stranger, FlockArg::LockSharedNonblock);
        assert_eq!(refused, Err(Errno::EWOULDBLOCK));
        unlock(&ours).expect("to unlock");
        flock(&stranger, FlockArg::LockExclusiveNonblock).expect("free again");
    }

    /// Several rounds: on a busy machine the look may outlast the attempt.
    #[test]
    fn an_attempt_outlasts_a_look_that_it_meets() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let [looks, ours, asks] = [0; 3].map(|_| file.reopen().expect("a description"));
        let meet = |_| {
            flock(&looks, FlockArg::LockShared).expect("free");
            let locked = thread::scope(|scope| {
                let attempt = scope.spawn(|| try_exclusive(&ours).expect("asked"));
                while is_locked_by_another(&asks) == Ok(false) && !attempt.is_finished() {}
                thread::sleep(FIRST_NAP * 50);
                flock(&looks, FlockArg::Unlock).expect("to unlock");
                attempt.join().expect("it ends")
            });
            unlock(&ours).expect("to unlock");
            locked
        };
        assert!((0..10).any(meet));
    }

    #[test]
    fn waiters_for_both_locks_never_block_each_other() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let inside = std::sync::atomic::AtomicU32::new(0);
        let enter = || {
            use std::sync::atomic::Ordering::SeqCst;
            assert_eq!(inside.fetch_add(1, SeqCst), 0, "another is inside");
            thread::yield_now();
            inside.fetch_sub(1, SeqCst);
        };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let file = file.reopen().expect("a description");
                        let locked = LockedFile::wait(file).expect("locked");
                        enter();
                        drop(locked);
                    }
                });
            }
            scope.spawn(|| {
                let stranger = file.reopen().expect("a description");
                for _ in 0..200 {
                    flock(&stranger, FlockArg::LockExclusive).expect("locked");
                    enter();
                    flock(&stranger, FlockArg::Unlock).expect("to unlock");
                }
            });
        });
    }

    #[test]
    fn a_probe_proves_exclusion_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut probe = Probe::beside(&dir.path().join("lock"), ".probe").unwrap();
        assert!(!Probe::is_excluded(probe.path()).unwrap(), "it is free");
        assert!(probe.excludes().unwrap());
        assert_eq!(probe.writes(3).unwrap().len(), 3);
        let skew = OffsetDateTime::now_utc() - probe.written_at().unwrap();
        assert!(skew.abs() < time::Duration::minutes(1));
        drop(probe);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
