//! The system calls that containment needs and no crate wraps: `clone3` in the shape of `fork`,
//! pidfds, and the closing of what a helper process must not keep open.
//!
//! Called by the other files of this room. Nothing here allocates: all of it runs in the guardian
//! or between fork and exec.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicI32;

/// The C library's crate has it in a type that is too small for it (clone(2), Linux 5.7).
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a fork this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// The caller; the child has this pid.
    Parent(i32),
    /// The new process.
    Child,
}

/// What `clone3` is called with; all zero is a `fork` without an exit signal.
#[derive(Default)]
pub(super) struct Clone3<'a> {
    /// CLONE_ flags; never one that shares memory.
    pub(super) flags: u64,
    /// What the parent gets at the child's end; 0 with CLONE_PARENT.
    pub(super) exit_signal: i32,
    /// Where the child's pidfd is to go (close-on-exec).
    pub(super) pidfd: Option<&'a mut Option<OwnedFd>>,
    /// Where the kernel writes the child's pid, as we see it, before the child does anything.
    pub(super) parent_tid: Option<&'a AtomicI32>,
    /// The directory of the cgroup that the child is born in, if not in ours.
    pub(super) cgroup: Option<BorrowedFd<'a>>,
}

impl Clone3<'_> {
    /// Forks.
    ///
    /// # Errors
    /// Those of clone3(2).
    ///
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
        // SAFETY: no memory is shared and no stack given, so the child goes on here with a copy of
        // everything, as after fork; `args` and `pidfd` outlive the call.
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
                    // SAFETY: the kernel has just opened it for us.
                    *place = Some(unsafe { OwnedFd::from_raw_fd(pidfd) });
                }
                Ok(Forked::Parent(i32::try_from(pid).unwrap_or(-1)))
            }
        }
    }
}

/// Has a process be born in a cgroup, look at `events` from in there, and end; gives how many bytes it
/// has read into `text`. The process is reaped.
///
/// It shares our memory while we wait for it (what `vfork` does), so that nothing of ours is copied:
/// a third of what a fork costs, and no fault on every page that is written after it. In exchange the
/// child may touch no more than `text`: it is six instructions, and no compiler's.
///
/// # Errors
/// Those of clone3(2), and of pread(2) in the child.
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
    // What the child writes, and what it leaves alone where it is killed first.
    let mut read = -i64::from(libc::ECHILD);
    let born: i64;
    let _quiet = Quiet::begin();
    // SAFETY: clone3 with CLONE_VFORK holds us until the child has ended. The child runs on our stack
    // pointer but neither pushes nor calls: it makes two system calls, by which the kernel writes to
    // `text` (which we have borrowed for that) and the child to `read`, and ends. Its registers are its
    // own; no signal can run a handler in it, because all are blocked.
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

/// Only where its six instructions are written: elsewhere a child is forked for it.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn look_from_inside(
    _cgroup: BorrowedFd<'_>,
    _events: BorrowedFd<'_>,
    _text: &mut [u8],
) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// `fork` itself.
///
/// # Errors
/// Those of fork(2).
///
/// # Safety
/// If the process has other threads, the child may only make async-signal-safe calls.
pub(super) unsafe fn fork() -> io::Result<Forked> {
    // SAFETY: the caller keeps the child to what is allowed.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// A descriptor for a living (or un-reaped) process; close-on-exec.
pub(in crate::guardian) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Signals the process behind a pidfd: never another one that inherited its number.
pub(in crate::guardian) fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: takes integers and a null pointer for "no further information".
    let done = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Whether `fd` has `events` (or an error or a hang-up) within `timeout` milliseconds (-1: whenever).
pub(super) fn poll(fd: BorrowedFd<'_>, events: i16, timeout: i32) -> bool {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one entry, which outlives the call.
    unsafe { libc::poll(&raw mut entry, 1, timeout) > 0 }
}

/// Waits until one of the two is readable (or hung up); false, where it was interrupted.
pub(super) fn poll_two(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let mut entries = [one, other].map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: two entries, which outlive the call.
    unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) > 0 }
}

/// Waits for a child to end and reaps it. One that somebody else reaps (an ignored SIGCHLD) counts
/// as reaped.
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

/// Closes every descriptor but these (ascending): a helper process must not keep a pipe of ours,
/// or of the command's, open. Linux 5.9.
pub(super) fn close_all_but(kept: &[RawFd]) -> io::Result<()> {
    debug_assert!(kept.is_sorted());
    let mut from = 0_u32;
    for &fd in kept {
        let fd = fd.unsigned_abs();
        if fd > from {
            close_range(from, fd - 1)?;
        }
        from = fd + 1;
    }
    close_range(from, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: takes three integers; the caller is a process of its own that uses none of them.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Blocks every signal, for the time in which a helper process is made: no handler of ours may run
/// in it. The old mask comes back when this is dropped.
pub(super) struct Quiet(libc::sigset_t);

impl Quiet {
    pub(super) fn begin() -> Quiet {
        // SAFETY: both sets are ours and outlive the calls, which cannot fail.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            Quiet(old)
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the set was filled by the kernel.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}

/// The capabilities that this kernel knows.
pub(super) fn capabilities() -> impl Iterator<Item = u64> {
    // SAFETY: integers only.
    (0..64).take_while(|bit| unsafe { libc::prctl(libc::PR_CAPBSET_READ, *bit, 0, 0, 0) } >= 0)
}

/// Those that we, and whoever we become, can have.
pub(super) fn bounding_set() -> u64 {
    // SAFETY: integers only.
    let has = |bit: &u64| unsafe { libc::prctl(libc::PR_CAPBSET_READ, *bit, 0, 0, 0) } == 1;
    capabilities()
        .filter(has)
        .fold(0, |set, bit| set | 1 << bit)
}

/// Ends this process without a destructor or a hook.
pub(super) fn exit(status: i32) -> ! {
    // SAFETY: always allowed.
    unsafe { libc::_exit(status) }
}
