//! System calls that no crate wraps, or wraps so that it allocates or refuses real-time signals.
//!
//! They keep `unsafe` out of other files, but for forks. Nothing allocates: all of it may run in the guardian or
//! between fork and exec.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::AtomicI32;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};

use trafficcop_core::Exit;

/// Flag of clone(2), Linux 5.7; its type in `libc` is too small.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Rest of a loop that cannot wait (poll(2) has no memory, say): at real-time priority it would starve others.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Side of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// The caller, with the child's pid.
    Parent(i32),
    /// The new process.
    Child,
}

/// Arguments of `clone3`; all zero is a `fork` without an exit signal.
#[derive(Default)]
pub(super) struct Clone3<'a> {
    /// CLONE_ flags; never one that shares memory.
    pub(super) flags: u64,
    /// 0 with CLONE_PARENT.
    pub(super) exit_signal: i32,
    /// Receives the child's pidfd.
    pub(super) pidfd: Option<&'a mut Option<OwnedFd>>,
    /// Receives the child's pid before the child runs.
    pub(super) parent_tid: Option<&'a AtomicI32>,
    /// Cgroup that the child is born in.
    pub(super) cgroup: Option<BorrowedFd<'a>>,
}

impl Clone3<'_> {
    /// # Safety
    /// If the process has other threads, the child may only make async-signal-safe calls.
    pub(super) unsafe fn fork(self) -> io::Result<Forked> {
        debug_assert_eq!(self.flags & (libc::CLONE_VM | libc::CLONE_THREAD) as u64, 0);
        let mut pidfd: RawFd = -1;
        // SAFETY: a structure of integers, for which zero is a value.
        let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
        args.flags = self.flags;
        args.exit_signal = u64::from(self.exit_signal.unsigned_abs());
        if self.pidfd.is_some() {
            args.flags |= libc::CLONE_PIDFD as u64;
            args.pidfd = (&raw mut pidfd) as u64;
        }
        if let Some(place) = self.parent_tid {
            args.flags |= libc::CLONE_PARENT_SETTID as u64;
            args.parent_tid = place.as_ptr() as u64;
        }
        if let Some(cgroup) = &self.cgroup {
            args.flags |= CLONE_INTO_CGROUP;
            args.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
        }
        // SAFETY: neither memory nor stack is shared, so the child goes on with a copy, as after fork; `args`
        // and `pidfd` outlive the call.
        let pid = unsafe {
            libc::syscall(
                libc::SYS_clone3,
                &raw mut args,
                size_of::<libc::clone_args>(),
            )
        };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(Forked::Child),
            pid => {
                if let Some(place) = self.pidfd {
                    // SAFETY: the kernel has just opened it for this process.
                    *place = Some(unsafe { OwnedFd::from_raw_fd(pidfd) });
                }
                Ok(Forked::Parent(i32::try_from(pid).unwrap_or(-1)))
            }
        }
    }
}

/// Creates a process in a cgroup that reads `events` into `text` from inside, and reaps it. Returns how much it
/// read.
///
/// The child shares the caller's memory while the caller waits, as with `vfork`: a third of a fork's cost. In
/// exchange it may touch only `text`: it is six instructions that no compiler wrote.
#[cfg(target_arch = "x86_64")]
pub(super) fn look_from_inside(
    cgroup: BorrowedFd<'_>,
    events: BorrowedFd<'_>,
    text: &mut [u8],
) -> io::Result<usize> {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (libc::CLONE_VM | libc::CLONE_VFORK) as u64 | CLONE_INTO_CGROUP;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    let mut read = -i64::from(libc::ECHILD);
    let born: i64;
    let _quiet = Quiet::begin();
    // SAFETY: CLONE_VFORK holds this process until the child has ended. On the shared stack the child neither
    // pushes nor calls. The kernel writes to `text`, the child to `read`. No handler runs in it: all signals
    // are blocked.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov edi, r12d",
            "mov rsi, r13",
            "mov rdx, r14",
            "xor r10d, r10d",
            "mov eax, {pread}",
            "syscall",
            "mov [r15], rax",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            pread = const libc::SYS_pread64,
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone3 => born,
            in("rdi") &raw mut args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") events.as_raw_fd(),
            in("r13") text.as_mut_ptr(),
            in("r14") text.len(),
            in("r15") &raw mut read,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    let failed = |errno: i64| io::Error::from_raw_os_error(i32::try_from(-errno).unwrap_or(0));
    if born < 0 {
        return Err(failed(born));
    }
    reap(i32::try_from(born).unwrap_or(0));
    usize::try_from(read).map_err(|_negative| failed(read))
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn look_from_inside(
    _cgroup: BorrowedFd<'_>,
    _events: BorrowedFd<'_>,
    _text: &mut [u8],
) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// # Safety
/// If the process has other threads, the child may only make async-signal-safe calls.
pub(super) unsafe fn fork() -> io::Result<Forked> {
    // SAFETY: passed on to the caller.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// Forks a helper that runs `run` and exits. The guardian has one thread, so its memory is consistent.
pub(super) fn fork_helper(run: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: one thread, and the child does not return from here.
    let Forked::Parent(pid) = (unsafe { fork() })? else {
        run();
        exit(0)
    };
    Ok(pid)
}

/// The process must not be reaped.
pub(super) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: takes integers and a null pointer.
    let done = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    Ok(Errno::result(done).map(drop)?)
}

/// Whether one of `fds` has `events` (or an error or a hang-up) in time. A failed poll(2) is a `false` after a
/// [`PAUSE`], because the caller tries again.
pub(super) fn poll<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    events: PollFlags,
    timeout: PollTimeout,
) -> bool {
    let mut entries = fds.map(|fd| PollFd::new(fd, events));
    let ready = nix::poll::poll(&mut entries, timeout);
    if ready.is_err() && timeout != PollTimeout::ZERO {
        std::thread::sleep(PAUSE);
    }
    ready.is_ok_and(|ready| ready > 0)
}

pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll([fd], PollFlags::POLLIN, PollTimeout::ZERO)
}

/// `None`: it reaped itself (SIGCHLD is ignored).
pub(super) fn reap(pid: i32) -> Option<i32> {
    let mut status = 0;
    loop {
        // SAFETY: `status` outlives the call.
        let got = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
        if got == pid {
            return Some(status);
        }
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return None;
        }
    }
}

/// Linux 5.9.
pub(super) fn close_range(first: u32, last: u32) -> nix::Result<()> {
    // SAFETY: three integers; the caller's process uses none of these descriptors.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    Errno::result(done).map(drop)
}

/// Blocks all signals until it is dropped: no handler runs in a helper that is forked meanwhile.
pub(super) struct Quiet(Option<SigSet>);

impl Quiet {
    pub(super) fn begin() -> Quiet {
        Quiet(SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).ok())
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = self.0.map(|mask| mask.thread_set_mask());
    }
}

/// A signal may be real-time; a negative number is a group.
pub(super) fn kill(whom: i32, signal: i32) {
    // SAFETY: numbers only. On an error, the callers see that the process stays.
    unsafe { libc::kill(whom, signal) };
}

#[derive(Clone, Copy, Debug)]
pub(super) enum WaitTarget {
    Any,
    Child(i32),
}

/// Pid and exit of a child that changed as `what` says. Neither waits nor reaps. ECHILD: no such child.
pub(super) fn waitid(target: WaitTarget, what: i32) -> Result<Option<(i32, Exit)>, Errno> {
    let (kind, id) = match target {
        WaitTarget::Any => (libc::P_ALL, 0),
        WaitTarget::Child(pid) => (libc::P_PID, libc::id_t::from(pid.unsigned_abs())),
    };
    // Consume a stop, or it would be reported again and again.
    let keep = if what == libc::WSTOPPED {
        0
    } else {
        libc::WNOWAIT
    };
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: waitid(2) writes to a valid siginfo of zeros, which mean "nothing to report" on every kernel.
    let (answer, info) = unsafe {
        let answer = libc::waitid(kind, id, info.as_mut_ptr(), what | libc::WNOHANG | keep);
        (answer, info.assume_init())
    };
    Errno::result(answer)?;
    // SAFETY: the kernel filled in a SIGCHLD's fields, or they are zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    let exit = if info.si_code == libc::CLD_EXITED {
        Exit::Code((status & 0xff).to_le_bytes()[0])
    } else {
        Exit::Signal(status)
    };
    Ok((pid != 0).then_some((pid, exit)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    Default,
    Ignored,
    Handled,
}

/// The C library's own signals count as `Default`.
pub(super) fn disposition(signal: i32) -> Disposition {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: sigaction(2) only writes the old action to a valid pointer; zeros mean "default".
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    match action.sa_sigaction {
        libc::SIG_DFL => Disposition::Default,
        libc::SIG_IGN => Disposition::Ignored,
        _ => Disposition::Handled,
    }
}

pub(super) fn ignore(signal: i32) {
    dispose(signal, libc::SIG_IGN);
}

pub(super) fn set_default(signal: i32) {
    dispose(signal, libc::SIG_DFL);
}

/// Ignores errors: signals that refuse it (the C library's own, SIGKILL) keep their action.
fn dispose(signal: i32, disposition: libc::sighandler_t) {
    // SAFETY: integers and an empty set, for which zero is a value; neither disposition runs code of this
    // program.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = disposition;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}

/// Default action until the returned value is dropped.
pub(super) fn take_default(signal: Signal) -> Result<impl Drop, Errno> {
    struct Before(Signal, SigAction);
    impl Drop for Before {
        fn drop(&mut self) {
            // SAFETY: restores the earlier action.
            let _ = unsafe { sigaction(self.0, &self.1) };
        }
    }
    let plain = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this program.
    Ok(Before(signal, unsafe { sigaction(signal, &plain) }?))
}

pub(super) fn nice() -> i32 {
    // SAFETY: takes numbers; it cannot fail for the caller itself.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

pub(super) fn set_nice(nice: i32) {
    // SAFETY: numbers only.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

/// A system call, because musl's functions of these names always fail.
pub(super) fn is_scheduled_normally() -> bool {
    // SAFETY: a number, and no pointer.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    policy == libc::c_long::from(libc::SCHED_OTHER)
}

/// Fails silently where it is not allowed.
pub(super) fn schedule(policy: libc::c_int, priority: libc::c_int) {
    // SAFETY: numbers, and a pointer to one number, which outlives the call.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
}

/// Whether an exec closes this descriptor; `None`: it is not open.
pub(super) fn closes_on_exec(fd: RawFd) -> Option<bool> {
    // SAFETY: numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    (flags != -1).then_some(flags & libc::FD_CLOEXEC != 0)
}

pub(super) fn keep_through_exec(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: a valid descriptor, and numbers.
    Errno::result(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) }).map(drop)
}

/// Closes a number, in a forked process that leaves by `_exit` or exec and uses no owner of a descriptor.
pub(super) fn close(fd: RawFd) {
    // SAFETY: nothing in this process relies on the number (see above).
    unsafe { libc::close(fd) };
}

/// Replaces stdin, in a forked process: see [`close`]. The copy is not close-on-exec.
pub(super) fn put_on_stdin(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    match fd.as_raw_fd() {
        // The process was started without a stdin.
        0 => keep_through_exec(fd),
        // SAFETY: a valid descriptor and a number.
        other => Errno::result(unsafe { libc::dup2(other, 0) }).map(drop),
    }
}

/// Reads entries in the kernel's format; returns their length in bytes.
pub(super) fn getdents(directory: BorrowedFd<'_>, entries: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: getdents64(2) writes no more than its length argument.
    let read = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            directory.as_raw_fd(),
            entries.as_mut_ptr(),
            entries.len(),
        )
    };
    Errno::result(read).map(|read| usize::try_from(read).unwrap_or(0))
}

pub(super) fn capabilities() -> impl Iterator<Item = u64> {
    // SAFETY: integers only.
    (0..64).take_while(|bit| unsafe { libc::prctl(libc::PR_CAPBSET_READ, *bit, 0, 0, 0) } >= 0)
}

/// Capabilities that this process, and what it executes, can have.
pub(super) fn bounding_set() -> u64 {
    // SAFETY: integers only.
    let has = |bit: &u64| unsafe { libc::prctl(libc::PR_CAPBSET_READ, *bit, 0, 0, 0) } == 1;
    capabilities()
        .filter(has)
        .fold(0, |set, bit| set | 1 << bit)
}

pub(super) fn drop_capability(capability: u64) {
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
}

pub(super) fn exit(status: i32) -> ! {
    // SAFETY: always allowed.
    unsafe { libc::_exit(status) }
}
