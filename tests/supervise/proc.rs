//! Processes by identity: the journal that the commands write, and pidfds that show each end.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use trafficcop::Instant;

/// Longer than anything takes on a slow machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct Kin {
    pub(crate) role: String,
    pub(crate) pid: i32,
    born: u64,
}

impl Kin {
    /// Whether this process (and no other with its pid) lives; a zombie does not.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(stat(self.pid), Some((state, born)) if born == self.born && !"ZX".contains(state))
    }
}

pub(crate) struct Watched {
    pub(crate) kin: Kin,
    pidfd: Option<OwnedFd>,
}

impl Watched {
    pub(crate) fn new(kin: Kin) -> Watched {
        // SAFETY: a number in, a new descriptor or an error out.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, kin.pid, 0) };
        // SAFETY: the kernel has just made it.
        let pidfd = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) });
        // The pid may have been another's by then.
        let pidfd = pidfd.filter(|_| stat(kin.pid).is_some_and(|(_, born)| born == kin.born));
        Watched { kin, pidfd }
    }

    pub(crate) fn of(pid: i32) -> Watched {
        let born = stat(pid).map_or(0, |(_, born)| born);
        Watched::new(Kin {
            role: "process".to_owned(),
            pid,
            born,
        })
    }

    /// Waits until it is dead; returns when.
    pub(crate) fn death(&self) -> Instant {
        if let Some(pidfd) = &self.pidfd {
            let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
            let ready = poll(&mut fds, PollTimeout::try_from(LONG).unwrap()).unwrap();
            assert!(ready > 0, "{:?} lives", self.kin);
        }
        Instant::now()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.kin.is_alive()
    }

    pub(crate) fn kill(&self) {
        if let Some(pidfd) = &self.pidfd {
            // SAFETY: a valid descriptor, a number, no siginfo.
            unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    pidfd.as_raw_fd(),
                    libc::SIGKILL,
                    std::ptr::null::<libc::siginfo_t>(),
                    0,
                )
            };
        }
    }
}

pub(crate) fn me() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

pub(crate) fn kill(pid: i32, signal: i32) {
    // SAFETY: numbers only.
    unsafe { libc::kill(pid, signal) };
}

pub(crate) fn stat(pid: i32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some((fields[0].chars().next()?, fields[19].parse().ok()?))
}

/// Writes this process, which belongs to a command, into the journal in one write.
pub(crate) fn record(journal: &str, role: &str) {
    let pid = me();
    let (_, born) = stat(pid).unwrap();
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(journal)
        .unwrap();
    let space = namespace("self").unwrap();
    file.write_all(format!("{role} {pid} {born} {space}\n").as_bytes())
        .unwrap();
}

pub(crate) fn journal(path: &str) -> Vec<Kin> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let born = words[2].parse().unwrap();
            Kin {
                role: words[0].to_owned(),
                pid: as_we_see_it(words[1].parse().unwrap(), born, words[3]),
                born,
            }
        })
        .collect()
}

fn namespace(pid: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
    Some(link.display().to_string())
}

/// Returns the pid in the tests' namespace of a process that knows another one.
fn as_we_see_it(pid: i32, born: u64, space: &str) -> i32 {
    if namespace("self").as_deref() == Some(space) {
        return pid;
    }
    let ours = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut same = ours.filter(|ours: &i32| {
        let status = fs::read_to_string(format!("/proc/{ours}/status")).unwrap_or_default();
        let names = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let own = names.and_then(|names| names.split_whitespace().next_back()?.parse().ok());
        own == Some(pid)
            && stat(*ours).is_some_and(|(_, its)| its == born)
            && namespace(&ours.to_string()).as_deref() == Some(space)
    });
    // The pid of a dead process is not known any more.
    same.next().unwrap_or(0)
}

pub(crate) fn await_journal(path: &str, count: usize) -> Vec<Kin> {
    wait_for(&format!("{count} processes in the journal"), || {
        let kin = journal(path);
        (kin.len() >= count).then_some(kin)
    })
}

pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

pub(crate) fn limit_files(pid: i32, most: u64) {
    let (_, hard) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: hard,
    };
    // SAFETY: a valid limit to be read; nothing is written back.
    let done = unsafe {
        libc::prlimit(
            pid,
            libc::RLIMIT_NOFILE,
            &raw const limit,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(done, 0, "the limit of {pid}");
}

pub(crate) fn try_lock(file: &fs::File) -> bool {
    let whole = libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).unwrap(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_OFD_SETLK(&whole)).is_ok()
}
