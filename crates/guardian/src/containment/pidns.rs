//! A PID namespace of the command's own: when its init dies, the kernel kills all of it at one stroke.
//!
//! ```text
//! guardian ─┬─ init (pid 1 of the namespace): reaps orphans, dies with the guardian or at the deadline
//!           └─ the command's main process, in the namespace, with a /proc of its own
//! ```
//! The guardian stays the parent of the main process: statuses, job control and kills of direct children work as
//! without a namespace. For that a midwife, a short-lived child of the guardian, joins the namespace and forks the
//! main process on the guardian's behalf.
//!
//! Init dies with the guardian (PDEATHSIG, and the end of their socket). It also dies at the deadline, which it
//! reads from a shared page, even if guardian and supervisor are both stopped.
//!
//! Without privilege there is a user namespace around, in which the command keeps its user id. Nothing here
//! allocates after the probe.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFlags, PollTimeout};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, send, socketpair};
use nix::sys::stat::Mode;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::{getegid, geteuid, getpid, pipe2, read, write};

use super::super::raw::{self, Clone3, Forked, Quiet};
use super::super::shared_memory::{Mapping, SharedDeadline};
use trafficcop_core::clock::Instant;

/// The guardian acts and reports before init.
const INIT_MARGIN: Duration = Duration::from_millis(100);

/// Living namespace.
#[derive(Debug)]
pub struct Pidns {
    init: i32,
    pidfd: OwnedFd,
    /// Socket to init: a byte is a signal for all, its end the guardian's death.
    control: OwnedFd,
    /// Shows the main process that the guardian lives: inside, `getppid` is 0.
    guardian: OwnedFd,
    deadline: Mapping<SharedDeadline>,
    /// The guardian's capability bounding set, for a user namespace, which begins with a full one.
    user: Option<u64>,
}

impl Pidns {
    /// Checks with a process that such a namespace is available.
    ///
    /// # Errors
    /// One line: what is missing and what to do.
    pub fn available() -> Result<(), String> {
        probe().map_err(|why| format!("no PID namespace available: {why}"))
    }

    /// Makes a namespace with init alone, a child of the caller. It lasts until [`Pidns::kill`], the death of
    /// the calling thread, or a little after `kill_at`.
    ///
    /// # Errors
    /// Those of clone3(2) and of user_namespaces(7).
    pub fn open(kill_at: Instant) -> io::Result<Pidns> {
        let (user_id, group_id) = (geteuid(), getegid());
        let user = !user_id.is_root();
        let mut flags = libc::CLONE_NEWPID as u64;
        if user {
            flags |= libc::CLONE_NEWUSER as u64;
        }
        let guardian = raw::pidfd_open(getpid().as_raw())?;
        let deadline = Mapping::<SharedDeadline>::new()?;
        deadline
            .kill_at
            .store(kill_at.as_nanos(), Ordering::Release);
        let (control, inner) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        let mut pidfd = None;
        let quiet = Quiet::begin();
        let wanted = Clone3 {
            flags,
            exit_signal: libc::SIGCHLD,
            pidfd: Some(&mut pidfd),
            parent_tid: None,
            cgroup: None,
        };
        // SAFETY: the child makes system calls only.
        match unsafe { wanted.fork() }? {
            Forked::Child => {
                drop(control);
                run_init(
                    &inner,
                    &deadline,
                    user.then_some((user_id.as_raw(), group_id.as_raw())),
                )
            }
            Forked::Parent(init) => {
                drop(quiet);
                drop(inner);
                let pidfd = pidfd.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
                let namespace = Pidns {
                    init,
                    pidfd,
                    control,
                    guardian,
                    deadline,
                    user: user.then(raw::bounding_set),
                };
                match namespace.greeting() {
                    Ok(()) => Ok(namespace),
                    Err(e) => {
                        namespace.kill();
                        raw::reap(init);
                        Err(e)
                    }
                }
            }
        }
    }

    fn greeting(&self) -> io::Result<()> {
        let mut reply = [0; 4];
        loop {
            return match recv(self.control.as_raw_fd(), &mut reply, MsgFlags::empty()) {
                Ok(4) => match i32::from_ne_bytes(reply) {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                },
                Ok(_) => Err(io::Error::from_raw_os_error(libc::ECHILD)),
                Err(Errno::EINTR) => continue,
                Err(e) => Err(e.into()),
            };
        }
    }

    /// Forks a child of the caller in the namespace, with a /proc of its own. PDEATHSIG is set, and the child
    /// has checked that the caller lives.
    ///
    /// # Errors
    /// The child could not be brought there; there is no child then.
    ///
    /// # Safety
    /// If the process has other threads, the child may only make async-signal-safe calls.
    pub unsafe fn fork(&self) -> io::Result<Forked> {
        let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
        // SAFETY: passed on to the caller.
        match unsafe { raw::fork() }? {
            Forked::Child => {
                drop(ours);
                // SAFETY: passed on to the caller.
                match unsafe { self.deliver() } {
                    Ok(Forked::Child) => match self.settle_in() {
                        Ok(()) => {
                            tell(&theirs, Note::Settled, 0);
                            Ok(Forked::Child)
                        }
                        Err(e) => {
                            tell(&theirs, Note::Failed, e as i32);
                            raw::exit(125)
                        }
                    },
                    Ok(Forked::Parent(pid)) => {
                        tell(&theirs, Note::Born, pid);
                        raw::exit(0)
                    }
                    Err(e) => {
                        tell(&theirs, Note::Failed, e.raw_os_error().unwrap_or(libc::EIO));
                        raw::exit(125)
                    }
                }
            }
            Forked::Parent(midwife) => {
                drop(theirs);
                let (mut born, mut settled, mut failed) = (None, false, None);
                while let Some((word, value)) = hear(&ours) {
                    match word {
                        Note::Born => born = Some(value),
                        Note::Settled => settled = true,
                        Note::Failed => failed = Some(value),
                    }
                    if settled && born.is_some() {
                        break;
                    }
                }
                raw::reap(midwife);
                match born {
                    Some(pid) if settled => Ok(Forked::Parent(pid)),
                    other => {
                        if let Some(pid) = other {
                            raw::reap(pid);
                        }
                        Err(io::Error::from_raw_os_error(failed.unwrap_or(libc::ECHILD)))
                    }
                }
            }
        }
    }

    unsafe fn deliver(&self) -> io::Result<Forked> {
        let mut kinds = CloneFlags::CLONE_NEWPID;
        if self.user.is_some() {
            kinds |= CloneFlags::CLONE_NEWUSER;
        }
        setns(&self.pidfd, kinds)?;
        let wanted = Clone3 {
            flags: libc::CLONE_PARENT as u64,
            parent_tid: Some(&self.deadline.main),
            ..Clone3::default()
        };
        // SAFETY: passed on to the caller.
        unsafe { wanted.fork() }
    }

    fn settle_in(&self) -> nix::Result<()> {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if raw::is_readable(self.guardian.as_fd()) {
            return Err(Errno::ESRCH);
        }
        unshare(CloneFlags::CLONE_NEWNS)?;
        // Later mounts outside appear inside, too.
        mount(
            None::<&str>,
            "/",
            None::<&str>,
            MsFlags::MS_REC | MsFlags::MS_SLAVE,
            None::<&str>,
        )?;
        mount(
            Some("proc"),
            "/proc",
            Some("proc"),
            MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
            None::<&str>,
        )?;
        if let Some(bounding) = self.user {
            for capability in raw::capabilities().filter(|bit| bounding & (1 << bit) == 0) {
                raw::drop_capability(capability);
            }
        }
        Ok(())
    }

    /// Moves the deadline.
    pub fn extend(&self, kill_at: Instant) {
        self.deadline
            .kill_at
            .store(kill_at.as_nanos(), Ordering::Release);
    }

    /// Makes init signal all other processes inside.
    ///
    /// # Errors
    /// Init is dead (EPIPE), or does not read (EAGAIN).
    pub fn signal_all(&self, signal: i32) -> io::Result<()> {
        let byte = [u8::try_from(signal).unwrap_or(0)];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        send(self.control.as_raw_fd(), &byte, flags)?;
        Ok(())
    }

    /// Kills init, and so everything inside. Returns at once: init dies only after the caller has reaped the
    /// main process.
    pub fn kill(&self) {
        let _ = raw::pidfd_signal(self.pidfd.as_fd(), libc::SIGKILL);
    }

    /// Whether only init is left, after the main process was reaped. Returns false if that is unknown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        if self.is_over() {
            return true;
        }
        let mut path = [0; 64];
        let mut rest = &mut path[..];
        let pid = self.init;
        if write!(rest, "/proc/{pid}/task/{pid}/children\0").is_err() {
            return false;
        }
        let Ok(path) = std::ffi::CStr::from_bytes_until_nul(&path) else {
            return false;
        };
        match open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()) {
            Ok(file) => read(&file, &mut [0; 16]) == Ok(0),
            Err(_) => self.is_over(),
        }
    }

    /// Without a guardian, the dead main process may stay unreaped.
    pub(super) fn holds_only_the_dead(&self) -> bool {
        let is_dead = match self.deadline.main.load(Ordering::Acquire) {
            0 => true,
            pid => match raw::pidfd_open(pid) {
                Ok(pidfd) => raw::is_readable(pidfd.as_fd()),
                Err(e) => e.raw_os_error() == Some(libc::ESRCH),
            },
        };
        // In this order: children of the main process are init's before its end is visible.
        is_dead && self.is_empty()
    }

    pub(super) fn guardian(&self) -> BorrowedFd<'_> {
        self.guardian.as_fd()
    }

    /// Whether init is dead, and so the namespace empty.
    #[must_use]
    pub fn is_over(&self) -> bool {
        raw::is_readable(self.pidfd.as_fd())
    }

    /// Returns init's pid outside, to be reaped.
    #[must_use]
    pub fn init(&self) -> i32 {
        self.init
    }

    /// Returns a descriptor that is readable when init is dead.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

#[derive(Clone, Copy)]
enum Note {
    Born = 1,
    Settled = 2,
    Failed = 3,
}

fn tell(to: &OwnedFd, word: Note, value: i32) {
    let mut record = [0; 8];
    record[..4].copy_from_slice(&(word as i32).to_ne_bytes());
    record[4..].copy_from_slice(&value.to_ne_bytes());
    let _ = write(to, &record);
}

fn hear(from: &OwnedFd) -> Option<(Note, i32)> {
    let mut record = [0; 8];
    loop {
        match read(from, &mut record) {
            Ok(8) => {}
            Err(Errno::EINTR) => continue,
            _ => return None,
        }
        let [a, b, c, d, e, f, g, h] = record;
        let value = i32::from_ne_bytes([e, f, g, h]);
        return match i32::from_ne_bytes([a, b, c, d]) {
            1 => Some((Note::Born, value)),
            2 => Some((Note::Settled, value)),
            3 => Some((Note::Failed, value)),
            _ => None,
        };
    }
}

/// Init blocks all signals (those from inside have no effect on it anyway), and ignores SIGCHLD, so that the
/// kernel reaps for it.
fn run_init(control: &OwnedFd, deadline: &SharedDeadline, user: Option<(u32, u32)>) -> ! {
    let ready = ascend(control, user);
    let errno = ready.as_ref().map_or_else(|e| *e as i32, |_| 0);
    let told = send(
        control.as_raw_fd(),
        &errno.to_ne_bytes(),
        MsgFlags::MSG_NOSIGNAL,
    );
    let (Ok(timer), Ok(_)) = (ready, told) else {
        raw::exit(125)
    };
    loop {
        let until = Instant::from_nanos(deadline.kill_at.load(Ordering::Acquire)) + INIT_MARGIN;
        if Instant::now() >= until || arm(&timer, until).is_err() {
            end_all();
        }
        raw::poll(
            [control.as_fd(), timer.as_fd()],
            PollFlags::POLLIN,
            PollTimeout::NONE,
        );
        let mut byte = [0];
        match recv(control.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT) {
            Ok(1) if i32::from(byte[0]) == libc::SIGKILL => end_all(),
            // -1: every process of the namespace but init.
            Ok(1) => raw::kill(-1, i32::from(byte[0])),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            _ => end_all(),
        }
    }
}

/// The kernel would kill the others only late in init's end.
fn end_all() -> ! {
    raw::kill(-1, libc::SIGKILL);
    raw::exit(0)
}

fn ascend(control: &OwnedFd, user: Option<(u32, u32)>) -> nix::Result<TimerFd> {
    if let Some((user, group)) = user {
        // The kernel demands this order: no gid_map before setgroups is denied.
        put(c"/proc/self/setgroups", b"deny")?;
        put_map(c"/proc/self/uid_map", user)?;
        put_map(c"/proc/self/gid_map", group)?;
    }
    // After the change of user namespace, and before the first look at the socket: an earlier end is seen there.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let _ = prctl::set_name(c"namespace-init");
    raw::ignore(libc::SIGCHLD);
    let _ = nix::unistd::setsid();
    super::close_all_but(&[control.as_raw_fd()])?;
    TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC)
}

fn arm(timer: &TimerFd, until: Instant) -> nix::Result<()> {
    // The kernel's limit is below the greatest `Instant`.
    let at = Duration::from_nanos(until.as_nanos().min(i64::MAX as u64));
    timer.set(
        Expiration::OneShot(TimeSpec::from(at)),
        TimerSetTimeFlags::TFD_TIMER_ABSTIME,
    )
}

fn put_map(path: &std::ffi::CStr, id: u32) -> nix::Result<()> {
    let mut line = [0; 32];
    let mut rest = &mut line[..];
    write!(rest, "{id} {id} 1").map_err(|_| Errno::EOVERFLOW)?;
    let length = 32 - rest.len();
    put(path, &line[..length])
}

fn put(path: &std::ffi::CStr, text: &[u8]) -> nix::Result<()> {
    let file = open(path, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    write(&file, text)?;
    Ok(())
}

fn probe() -> Result<(), String> {
    let advice = if geteuid().is_root() {
        "it needs Linux 5.9 and CAP_SYS_ADMIN, which containers do not give by default"
    } else {
        "without root it needs Linux 5.9 and user namespaces that are allowed to mount \
         (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns, seccomp)"
    };
    let namespace = Pidns::open(Instant::FOREVER).map_err(|e| format!("{e}; {advice}"))?;
    let quiet = Quiet::begin();
    // SAFETY: the child only exits.
    let born = unsafe { namespace.fork() };
    let outcome = match born {
        Ok(Forked::Child) => raw::exit(0),
        Ok(Forked::Parent(pid)) => {
            raw::reap(pid);
            if namespace.is_empty() {
                Ok(())
            } else {
                Err("the kernel does not list a process's children (CONFIG_PROC_CHILDREN)".into())
            }
        }
        Err(e) => Err(format!(
            "no process with a /proc of its own in it: {e}; {advice}"
        )),
    };
    drop(quiet);
    namespace.kill();
    raw::reap(namespace.init);
    outcome
}
