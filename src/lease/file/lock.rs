//! The system calls of an open-file-description lock on a whole file. Called by `store` and
//! `waiter`; must never tell "held by another" from anything but EAGAIN and EACCES.

use std::fs;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// A request for the whole file, however long it grows.
fn whole(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        // The kernel demands a zero here for this family of locks.
        l_pid: 0,
    }
}

/// Locks the file if nobody else has it locked: `false` means "held by another". Locking again
/// what this description has locked already succeeds and changes nothing.
pub(super) fn try_exclusive(file: &fs::File) -> Result<bool, Errno> {
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&whole(libc::F_WRLCK))) {
            Ok(_) => return Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(false),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Locks the file, however long that takes.
pub(super) fn wait_exclusive(file: &fs::File) -> Result<(), Errno> {
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLKW(&whole(libc::F_WRLCK))) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Unlocks the file for every process that shares the description.
pub(super) fn unlock(file: &fs::File) -> Result<(), Errno> {
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&whole(libc::F_UNLCK))) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether a description other than `file`'s keeps it from locking. Locks nothing.
pub(super) fn is_locked_by_another(file: &fs::File) -> Result<bool, Errno> {
    let mut request = whole(libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut request))?;
    Ok(libc::c_int::from(request.l_type) != libc::F_UNLCK)
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
}
