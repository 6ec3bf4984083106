//! The lock holder: a tiny process outside of the namespace that holds a file's lock until the namespace is
//! empty.
//!
//! A dying init first loses its descriptors; only then does the kernel kill the others. Supervisor and guardian
//! may be dead by then. Without another holder the lock would be free while a process of the command, which has
//! closed its copy, still runs its last instructions.
//!
//! It waits for init's pidfd, which becomes readable when the namespace is empty. Without a guardian, init
//! waits for the dead main process to be reaped: so a namespace of dead processes counts as empty.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::poll::{PollFlags, PollTimeout};

use super::super::raw::{self, Forked, Quiet};
use super::Pidns;

/// Spared by a kill by the product's name.
pub const NAME: &std::ffi::CStr = c"lock-until-gone";

/// Milliseconds.
const LONGEST_NAP: u8 = 50;

/// Starts the lock holder of `lock`, a child of the caller, which reaps it and spares it in kills.
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
    // A pipe that stays open is the smaller evil.
    let _ = super::close_all_but(&kept);
    while !raw::poll([end, guardian], PollFlags::POLLIN, PollTimeout::NONE) {}
    let mut nap = 1;
    while !raw::poll([end], PollFlags::POLLIN, nap.into()) && !namespace.holds_only_the_dead() {
        nap = LONGEST_NAP.min(nap * 2);
    }
    raw::exit(0)
}
