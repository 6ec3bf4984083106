//! The descriptors that the guardian waits for, and how its timers are set.
//!
//! Part of [`EventLoop`](super::EventLoop), opened once: setting a timer needs no memory and no descriptor.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::clock::Instant;

/// The descriptors the loop waits for.
pub(super) struct PollFds {
    pub(super) socket: UnixStream,
    pub(super) children: SignalFd,
    /// On the clock that counts suspend.
    pub(super) deadline: TimerFd,
    /// On the wall clock, cancelled when that is set.
    pub(super) wall: TimerFd,
}

impl PollFds {
    pub(super) fn open(socket: UnixStream) -> Result<PollFds, (UnixStream, Errno)> {
        match PollFds::timers() {
            Ok((children, deadline, wall)) => Ok(PollFds {
                socket,
                children,
                deadline,
                wall,
            }),
            Err(errno) => Err((socket, errno)),
        }
    }

    fn timers() -> nix::Result<(SignalFd, TimerFd, TimerFd)> {
        nix::sys::prctl::set_child_subreaper(true)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let children = SignalFd::with_flags(
            &SigSet::from(Signal::SIGCHLD),
            SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
        )?;
        Ok((
            children,
            TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?,
            TimerFd::new(ClockId::CLOCK_REALTIME, flags)?,
        ))
    }

    /// Sets the timer to `next`; never, if that is for ever.
    pub(super) fn arm(&self, next: Instant) {
        // A failure is a bug of ours in the numbers; the pings still make the loop go round.
        let _ = if next == Instant::FOREVER {
            self.deadline.unset()
        } else {
            // Zero would mean "never"; an instant that has passed fires at once.
            let nanos = next.as_nanos().max(1);
            let spec = TimeSpec::new(
                i64::try_from(nanos / 1_000_000_000).unwrap_or(i64::MAX),
                i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
            );
            self.deadline.set(
                Expiration::OneShot(spec),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )
        };
    }

    /// Asks to be woken when the wall clock is set.
    pub(super) fn arm_wall(&self) {
        // Far away: only the cancelling is of interest.
        let _ = self.wall.set(
            Expiration::OneShot(TimeSpec::new(i64::from(u32::MAX) * 2, 0)),
            TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET,
        );
    }

    /// Whether the wall clock was set since the last time.
    pub(super) fn wall_clock_jumped(&self) -> bool {
        let mut count = [0; 8];
        let jumped = nix::unistd::read(self.wall.as_fd(), &mut count) == Err(Errno::ECANCELED);
        if jumped {
            self.arm_wall();
        }
        jumped
    }
}
