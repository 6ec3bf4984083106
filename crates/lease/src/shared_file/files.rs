//! What is asked of a drive, one call at a time: the system calls, and their answers as values.
//!
//! Called by `share` alone. In a simulation ([`SimulatedClock`](trafficcop_core::clock::SimulatedClock)) a drive of the tests'
//! own answers: late, from an old view, more than once. It decides nothing, and must never ask twice.

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

// Of a mode: what the group and all others may do.
const OTHERS_WRITE: u32 = 0o022;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Makes a directory, where nothing is.
    MakeDirectory(PathBuf),
    /// Removes a directory with nothing in it.
    RemoveDirectory(PathBuf),
    /// Removes a file.
    RemoveFile(PathBuf),
    /// To where nothing is, or a directory with nothing in it.
    Rename(PathBuf, PathBuf),
    /// What is there; behind a link, what that leads to.
    Stat(PathBuf),
    /// What is there, be it a link.
    StatLink(PathBuf),
    /// What is called so in this directory, which is opened first: where opening asks the server, what is
    /// remembered of names is given up if it changed.
    StatIn(PathBuf, String),
    /// The names in a directory.
    List(PathBuf),
    /// As much of a file as anything of ours can be in.
    Read(PathBuf),
    /// The same, as [`Call::StatIn`], and of no link.
    ReadIn(PathBuf, &'static str),
    /// Writes a file from its beginning.
    Write {
        /// The file.
        path: PathBuf,
        /// Only where nothing is; else only where it is.
        new: bool,
        /// Sees it to the disk.
        sync: bool,
        /// What it begins with from then on.
        bytes: Vec<u8>,
    },
}

/// What was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, a fifo, a socket.
    Other,
}

/// What is known of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is.
    pub kind: Kind,
    /// It has a second name (a hard link).
    pub has_another_name: bool,
    /// In bytes.
    pub length: u64,
    /// When it was changed, by the server's clock: since 1970.
    pub modified: Duration,
    /// The file system it is on, by its number.
    pub device: u64,
    /// The user whose it is, by number.
    pub owner: u32,
    /// Somebody else than that user may make something in it, by its mode.
    pub is_others_to_write: bool,
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was made, removed, renamed or written.
    Done,
    /// What is there.
    Found(Found),
    /// Those in a directory.
    Names(Vec<OsString>),
    /// Those of a file.
    Bytes(Vec<u8>),
}

/// A drive of a simulation; `Box<dyn Drive>` is what its clock carries.
#[cfg(debug_assertions)]
pub trait Drive: Send + Sync {
    /// Answers, in the thread that asks.
    ///
    /// # Errors
    /// As the system call.
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

/// The answer to another question.
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
        Call::Stat(path) => Answer::Found(known(&fs::metadata(path)?)),
        Call::StatLink(path) => Answer::Found(known(&fs::symlink_metadata(path)?)),
        Call::StatIn(path, name) => {
            let found = fstatat(directory(&path)?, name.as_str(), AtFlags::empty())?;
            Answer::Found(known_at(&found))
        }
        Call::List(path) => {
            // Whole or not at all: what is missing in it would pass for removed.
            let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name()));
            Answer::Names(names.collect::<io::Result<Vec<_>>>()?)
        }
        Call::Read(path) => Answer::Bytes(whole(quietly().read(true).open(path)?)?),
        Call::ReadIn(path, name) => {
            let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
            let file = openat(directory(&path)?, name, flags, Mode::empty())?;
            Answer::Bytes(whole(File::from(file))?)
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
                let file = quietly().write(true).create_new(new).open(path)?;
                file.write_all_at(&bytes, 0)?;
            }
            Answer::Done
        }
    })
}

fn known(found: &fs::Metadata) -> Found {
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
        is_others_to_write: found.mode() & OTHERS_WRITE != 0,
    }
}

fn known_at(found: &FileStat) -> Found {
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
        is_others_to_write: found.st_mode & OTHERS_WRITE != 0,
    }
}

fn since_1970(seconds: i64, nanos: i64) -> Duration {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Duration::new(seconds, u32::try_from(nanos).unwrap_or(0))
}

fn directory(path: &Path) -> nix::Result<OwnedFd> {
    // No link is followed: somebody who may write here could lead us to the versions of another lock.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    open(path, flags, Mode::empty())
}

/// Options that wait for nobody at the other end of a fifo, make no terminal ours, and follow no link: one is refused
/// at the first look, and one that has come since is somebody's trap.
const QUIETLY: i32 = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;

fn quietly() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(QUIETLY);
    options
}

/// Writes a file from its beginning, and sees it to the disk. Where that can be, past the cache of
/// pages: what is not written yet of those keeps a process from ending while the server is gone.
fn put(path: &Path, new: bool, bytes: &[u8]) -> io::Result<()> {
    let write = |flags: i32, new: bool| -> io::Result<()> {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create_new(new)
            .custom_flags(QUIETLY | flags);
        let file = options.open(path)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()
    };
    match write(libc::O_DIRECT, new) {
        // A disk of this machine wants its own alignment. The file is made by then, and is ours.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            write(0, new && !path.try_exists().unwrap_or(false))
        }
        written => written,
    }
}

/// All of a file, as far as anything of ours can be in it.
fn whole(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(WIDTH);
    file.take(WIDTH as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_or_read_through_a_link() {
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
