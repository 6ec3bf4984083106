//! Requests to a drive: system calls, and their answers as values.
//!
//! In a simulation the tests' drive answers. Nobody may repeat a request that was not answered: it may have been
//! carried out.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};

use crate::version_record::WIDTH;

const GROUP_OR_OTHERS_WRITE: u32 = 0o022;

/// Request to a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Makes a directory; fails if the path exists.
    MakeDirectory(PathBuf),
    /// Removes an empty directory.
    RemoveDirectory(PathBuf),
    /// Removes a file.
    RemoveFile(PathBuf),
    /// Renames a directory. If the new name exists, it must be an empty directory.
    Rename(PathBuf, PathBuf),
    /// Reads attributes; follows a link.
    Stat(PathBuf),
    /// Reads attributes; does not follow a link.
    StatLink(PathBuf),
    /// Reads a name's attributes in this directory. Opening it makes a network client drop stale names.
    StatIn(PathBuf, String),
    /// Lists a directory.
    List(PathBuf),
    /// Reads at most one byte more than a record has; follows no link.
    Read(PathBuf),
    /// Like [`Call::Read`], in this directory.
    ReadIn(PathBuf, &'static str),
    /// Writes a file from its beginning.
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Whether it must not exist yet; otherwise it must.
        new: bool,
        /// Whether the bytes must reach the disk.
        sync: bool,
        /// New beginning of the file.
        bytes: Vec<u8>,
    },
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Link,
    /// Device, fifo or socket.
    Other,
}

/// Attributes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Kind of the entry.
    pub kind: Kind,
    /// Whether a file has a second name (a hard link).
    pub has_another_name: bool,
    /// Length in bytes.
    pub length: u64,
    /// Time of the last change since 1970, by the server's clock.
    pub modified: Duration,
    /// Number of its file system.
    pub device: u64,
    /// Number of its owner.
    pub owner: u32,
    /// Whether its mode lets its group or others write.
    pub writable_by_group_or_others: bool,
}

/// Answer of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Success of a change.
    Done,
    /// Attributes.
    Found(Found),
    /// Names in a directory.
    Names(Vec<OsString>),
    /// Bytes of a file.
    Bytes(Vec<u8>),
}

/// Simulated drive. The simulation's clock carries it, so each thread that has the clock finds it.
#[cfg(debug_assertions)]
pub trait Drive: Send + Sync {
    /// Answers, in the thread that asks.
    ///
    /// # Errors
    /// Those of the system call.
    fn ask(&self, call: Call) -> io::Result<Answer>;
}

fn ask(call: Call) -> io::Result<Answer> {
    #[cfg(debug_assertions)]
    if let Some(drive) = trafficcop_core::clock::carried()
        && let Some(drive) = drive.downcast_ref::<Box<dyn Drive>>()
    {
        return drive.ask(call);
    }
    carry_out(call)
}

pub(super) fn make_directory(path: PathBuf) -> io::Result<()> {
    ask(Call::MakeDirectory(path)).map(drop)
}

pub(super) fn remove_directory(path: PathBuf) -> io::Result<()> {
    ask(Call::RemoveDirectory(path)).map(drop)
}

pub(super) fn remove_file(path: PathBuf) -> io::Result<()> {
    ask(Call::RemoveFile(path)).map(drop)
}

pub(super) fn rename(from: PathBuf, to: PathBuf) -> io::Result<()> {
    ask(Call::Rename(from, to)).map(drop)
}

pub(super) fn stat(path: &Path) -> io::Result<Found> {
    found(ask(Call::Stat(path.to_owned())))
}

pub(super) fn stat_link(path: &Path) -> io::Result<Found> {
    found(ask(Call::StatLink(path.to_owned())))
}

pub(super) fn stat_in(directory: PathBuf, name: String) -> io::Result<Found> {
    found(ask(Call::StatIn(directory, name)))
}

pub(super) fn list(path: &Path) -> io::Result<Vec<OsString>> {
    match ask(Call::List(path.to_owned()))? {
        Answer::Names(names) => Ok(names),
        _ => Err(strange()),
    }
}

pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    bytes(ask(Call::Read(path.to_owned())))
}

pub(super) fn read_in(directory: PathBuf, name: &'static str) -> io::Result<Vec<u8>> {
    bytes(ask(Call::ReadIn(directory, name)))
}

pub(super) fn write(path: PathBuf, new: bool, sync: bool, bytes: Vec<u8>) -> io::Result<()> {
    ask(Call::Write {
        path,
        new,
        sync,
        bytes,
    })
    .map(drop)
}

fn found(answer: io::Result<Answer>) -> io::Result<Found> {
    match answer? {
        Answer::Found(found) => Ok(found),
        _ => Err(strange()),
    }
}

fn bytes(answer: io::Result<Answer>) -> io::Result<Vec<u8>> {
    match answer? {
        Answer::Bytes(bytes) => Ok(bytes),
        _ => Err(strange()),
    }
}

fn strange() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

pub(super) fn carry_out(call: Call) -> io::Result<Answer> {
    Ok(match call {
        Call::MakeDirectory(path) => {
            fs::DirBuilder::new().mode(0o777).create(path)?;
            Answer::Done
        }
        Call::RemoveDirectory(path) => {
            fs::remove_dir(path)?;
            Answer::Done
        }
        Call::RemoveFile(path) => {
            fs::remove_file(path)?;
            Answer::Done
        }
        Call::Rename(from, to) => {
            fs::rename(from, to)?;
            Answer::Done
        }
        Call::Stat(path) => Answer::Found(from_metadata(&fs::metadata(path)?)),
        Call::StatLink(path) => Answer::Found(from_metadata(&fs::symlink_metadata(path)?)),
        Call::StatIn(path, name) => {
            let found = fstatat(directory(&path)?, name.as_str(), AtFlags::empty())?;
            Answer::Found(from_stat(&found))
        }
        Call::List(path) => {
            // Whole or not at all: a missing name would pass for removed.
            let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name()));
            Answer::Names(names.collect::<io::Result<Vec<_>>>()?)
        }
        Call::Read(path) => Answer::Bytes(read_limited(safe_options().read(true).open(path)?)?),
        Call::ReadIn(path, name) => {
            let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
            let file = openat(directory(&path)?, name, flags, Mode::empty())?;
            Answer::Bytes(read_limited(File::from(file))?)
        }
        Call::Write {
            path,
            new,
            sync,
            bytes,
        } => {
            if sync {
                put(&path, new, &bytes)?;
            } else {
                let file = safe_options().write(true).create_new(new).open(path)?;
                file.write_all_at(&bytes, 0)?;
            }
            Answer::Done
        }
    })
}

fn from_metadata(found: &fs::Metadata) -> Found {
    let kind = found.file_type();
    Found {
        kind: match kind {
            _ if kind.is_file() => Kind::File,
            _ if kind.is_dir() => Kind::Directory,
            _ if kind.is_symlink() => Kind::Link,
            _ => Kind::Other,
        },
        has_another_name: found.nlink() > 1,
        length: found.len(),
        modified: since_1970(found.mtime(), found.mtime_nsec()),
        device: found.dev(),
        owner: found.uid(),
        writable_by_group_or_others: found.mode() & GROUP_OR_OTHERS_WRITE != 0,
    }
}

fn from_stat(found: &FileStat) -> Found {
    Found {
        kind: match SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFREG => Kind::File,
            SFlag::S_IFDIR => Kind::Directory,
            SFlag::S_IFLNK => Kind::Link,
            _ => Kind::Other,
        },
        has_another_name: found.st_nlink > 1,
        length: u64::try_from(found.st_size).unwrap_or(0),
        modified: since_1970(found.st_mtime, found.st_mtime_nsec),
        device: found.st_dev,
        owner: found.st_uid,
        writable_by_group_or_others: found.st_mode & GROUP_OR_OTHERS_WRITE != 0,
    }
}

fn since_1970(seconds: i64, nanos: i64) -> Duration {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Duration::new(seconds, u32::try_from(nanos).unwrap_or(0))
}

fn directory(path: &Path) -> nix::Result<OwnedFd> {
    // No link: another user could make one to another lock's versions.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    open(path, flags, Mode::empty())
}

/// Options that do not wait at a fifo, take no terminal, and follow no link.
const SAFE_FLAGS: i32 = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;

fn safe_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(SAFE_FLAGS);
    options
}

/// Writes and syncs a file, past the page cache where that works: dirty pages keep a process from ending while
/// the server is gone.
fn put(path: &Path, new: bool, bytes: &[u8]) -> io::Result<()> {
    let write = |flags: i32, new: bool| -> io::Result<()> {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create_new(new)
            .custom_flags(SAFE_FLAGS | flags);
        let file = options.open(path)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()
    };
    match write(libc::O_DIRECT, new) {
        // O_DIRECT fails on a disk with another alignment, perhaps after making the file.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            write(0, new && !path.try_exists().unwrap_or(false))
        }
        written => written,
    }
}

fn read_limited(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(WIDTH);
    file.take(WIDTH as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symlinks_are_never_read_or_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let (precious, trap) = (dir.path().join("precious"), dir.path().join("trap"));
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, &trap).unwrap();
        for sync in [false, true] {
            let written = write(trap.clone(), false, sync, b"hint".to_vec());
            assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::ELOOP));
        }
        assert!(read(&trap).is_err());
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
    }
}
