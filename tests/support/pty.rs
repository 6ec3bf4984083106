//! Pseudo-terminals without stray ends: `openpty` leaves both ends open in processes that
//! concurrent tests start, and such a terminal never hangs up.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::fcntl::OFlag;
use nix::pty::{Winsize, grantpt, posix_openpt, ptsname_r, unlockpt};

pub(crate) struct Pty {
    pub(crate) master: OwnedFd,
    pub(crate) slave: OwnedFd,
}

pub(crate) fn open(size: Option<&Winsize>) -> Pty {
    const HAD: &str = "a terminal";
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(flags).expect(HAD);
    grantpt(&master).expect(HAD);
    unlockpt(&master).expect(HAD);
    let mut slave = File::options();
    slave.read(true).write(true).custom_flags(libc::O_NOCTTY);
    let slave = slave.open(ptsname_r(&master).expect(HAD)).expect(HAD);
    if let Some(size) = size {
        // SAFETY: reads a size that lives long enough, and writes nothing.
        let done = unsafe { libc::ioctl(slave.as_raw_fd(), libc::TIOCSWINSZ, size) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
    Pty {
        // SAFETY: an open descriptor without another owner.
        master: unsafe { OwnedFd::from_raw_fd(master.into_raw_fd()) },
        slave: slave.into(),
    }
}
