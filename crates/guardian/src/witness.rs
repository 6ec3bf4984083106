//! A process in the command's group that shows the terminal's SIGINT or SIGQUIT by dying of it.
//!
//! The terminal signals the foreground group alone. If the command handles that and exits 0, nothing else shows
//! that a person wanted to end the whole job.

use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{Pid, getpid, getppid, setpgid};
use trafficcop_core::Exit;
use trafficcop_core::clock::Instant;

use super::raw::{self, WaitTarget};

const TYPED: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];
// A signalled witness only has to be scheduled.
const LOOKS: u32 = 50;
const LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct Witness {
    pid: Option<i32>,
    group: i32,
    /// Last typed signal, and when.
    typed: Option<(i32, Instant)>,
}

impl Witness {
    /// If the fork fails, no signal is noticed.
    pub(super) fn begin(&mut self, group: i32) {
        *self = Witness {
            group,
            ..Witness::default()
        };
        self.fork();
    }

    fn fork(&mut self) {
        let guardian = getpid();
        let (member, group) = (|pid| Pid::from_raw(pid), Pid::from_raw(self.group));
        let forked = raw::fork_helper(|| {
            let is_in = setpgid(member(0), group).is_ok();
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            if !is_in || getppid() != guardian {
                raw::exit(0);
            }
            // It must not keep the guardian's lock or socket open.
            if raw::close_range(0, u32::MAX).is_err() {
                raw::exit(0);
            }
            let ends = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
            for signal in 1..libc::SIGRTMAX() {
                match ends.contains(&signal) {
                    true => raw::set_default(signal),
                    false => raw::ignore(signal),
                }
            }
            let _ = SigSet::empty().thread_set_mask();
            loop {
                nix::unistd::pause();
            }
        });
        if let Ok(pid) = forked {
            // Both processes do this, so that it is done before either relies on it.
            let _ = setpgid(member(pid), group);
            self.pid = Some(pid);
        }
    }

    pub(super) fn is(&self, pid: i32) -> bool {
        self.pid == Some(pid)
    }

    /// Reaps a witness that died of a typed signal, and replaces it.
    pub(super) fn look(&mut self, now: Instant) {
        if self.take_in(now) {
            self.fork();
        }
    }

    /// Returns whether a typed signal killed it.
    fn take_in(&mut self, now: Instant) -> bool {
        let Some(pid) = self.pid else { return false };
        let Ok(Some((_, exit))) = raw::waitid(WaitTarget::Child(pid), libc::WEXITED) else {
            return false;
        };
        raw::reap(pid);
        self.pid = None;
        match exit {
            Exit::Signal(signal) if TYPED.contains(&signal) => self.typed = Some((signal, now)),
            Exit::Signal(_) | Exit::Code(_) => return false,
        }
        true
    }

    /// Returns the last typed signal, and when.
    pub(super) fn end(&mut self, now: Instant) -> Option<(i32, Instant)> {
        if let Some(pid) = self.pid {
            // Pending signals come smallest number first: an interrupt before this SIGTERM.
            raw::kill(pid, libc::SIGTERM);
            raw::kill(pid, libc::SIGCONT);
            for _ in 0..LOOKS {
                self.take_in(now);
                if self.pid.is_none() {
                    break;
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
        if let Some(pid) = self.pid.take() {
            raw::kill(pid, libc::SIGKILL);
        }
        self.typed.take()
    }
}
