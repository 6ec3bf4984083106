//! The lock holder: a tiny process outside of the namespace that holds a file's lock until the namespace is
//! empty.
//!
//! When a namespace's init dies, the kernel closes init's descriptors first and only then kills the others;
//! supervisor and guardian may be dead before that. A lock that only these held would be free while a process
//! of the command, which has closed its copy, still runs its last instructions.
//!
//! The lock holder outlives all three: it waits for init's pidfd, which becomes readable only when the
//! namespace is empty, and ends. Without a guardian, the dead main process waits for a foreign process to reap
//! it, and init waits for that: so a namespace with only dead processes counts as empty, too. The lock holder
//! must never do anything else.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::poll::{PollFlags, PollTimeout};

use super::super::raw::{self, Forked, Quiet};
use super::Pidns;

/// Name of the lock holder. A kill by name that hits supervisor and guardian spares it.
pub const NAME: &std::ffi::CStr = c"lock-until-gone";

/// Longest wait between two looks at a namespace without a guardian, in ms.
const LONGEST_NAP: u8 = 50;

/// Starts the lock holder of `lock` for a namespace, as a child of the caller with a session of its own. It
/// ends by itself; the caller reaps it, and spares it when it kills its children.
///
/// # Errors
/// Those of fork(2).
pub fn start(lock: BorrowedFd<'_>, namespace: &Pidns) -> io::Result<i32> {
    let quiet = Quiet::begin();
    // SAFETY: the child makes system calls only.
    match unsafe { raw::fork() }? {
        Forked::Parent(pid) => {
            drop(quiet);
            Ok(pid)
        }
        Forked::Child => keep(lock, namespace),
    }
}

fn keep(lock: BorrowedFd<'_>, namespace: &Pidns) -> ! {
    let _ = nix::unistd::setsid();
    let _ = nix::sys::prctl::set_name(NAME);
    let (end, guardian) = (namespace.pidfd(), namespace.guardian());
    let mut kept = [lock, end, guardian].map(|fd| fd.as_raw_fd());
    kept.sort_unstable();
    // If they cannot be closed, a pipe that stays open is the smaller evil.
    let _ = super::close_all_but(&kept);
    while !raw::poll([end, guardian], PollFlags::POLLIN, PollTimeout::NONE) {}
    let mut nap = 1;
    while !raw::poll([end], PollFlags::POLLIN, nap.into()) && !namespace.holds_only_the_dead() {
        nap = LONGEST_NAP.min(nap * 2);
    }
    raw::exit(0)
}
