//! What the guardian waits for, and its end of the socket: frames in, frames out, nothing that waits.
//!
//! Part of [`EventLoop`]. The descriptors are opened once: setting a timer needs no memory and none of
//! them. It must never block on a supervisor that does not read, and never act on a
//! frame before all of it is there.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::super::WorkloadEvent;
use super::super::fork;
use super::super::state::Input;
use super::super::wire::{Event, FRAME, Request};
use super::EventLoop;
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

impl EventLoop {
    /// Queues a frame; what a supervisor that does not read has not fetched is kept for it.
    pub(super) fn tell(&mut self, report: Event) {
        if self.deaf || self.unsent_len + FRAME > self.unsent.len() {
            return;
        }
        let matters = !matches!(
            report,
            Event::Pong(_) | Event::Workload(WorkloadEvent::ClockJumped)
        );
        if !matters && self.unsent_len > self.unsent.len() / 2 {
            return;
        }
        self.unsent[self.unsent_len..self.unsent_len + FRAME].copy_from_slice(&report.encode());
        self.unsent_len += FRAME;
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while self.unsent_len > 0 && !self.deaf {
            let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
            let socket = self.fds.socket.as_raw_fd();
            match send(socket, &self.unsent[..self.unsent_len], flags) {
                Ok(sent) => {
                    self.unsent.copy_within(sent..self.unsent_len, 0);
                    self.unsent_len -= sent;
                }
                Err(Errno::EINTR) => {}
                // Full, or closed: reading will tell which.
                Err(_) => return,
            }
        }
    }

    pub(super) fn read_socket(&mut self) {
        loop {
            let mut buffer = [0; 4096];
            match self.receive(&mut buffer) {
                Ok(0) => return self.orphaned(),
                Ok(length) => self.received.extend_from_slice(&buffer[..length]),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return,
                Err(_) => return self.orphaned(),
            }
            self.read_frames();
            if self.over || self.deaf {
                return;
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<usize> {
        let (length, passed) =
            fork::receive(self.fds.socket.as_raw_fd(), buffer, &mut self.rights)?;
        if passed.is_some() {
            self.passed = passed;
        }
        Ok(length)
    }

    fn read_frames(&mut self) {
        let mut at = 0;
        while let Some(frame) = self.received[at..].first_chunk::<FRAME>() {
            let Ok(request) = Request::decode(frame) else {
                return self.orphaned();
            };
            let end = at + FRAME + request.payload();
            if self.received.len() < end {
                break;
            }
            self.obey(request, at + FRAME);
            if self.over {
                return;
            }
            at = end;
        }
        self.received.drain(..at);
    }

    /// The supervisor is dead, or out of its mind.
    fn orphaned(&mut self) {
        self.deaf = true;
        self.unsent_len = 0;
        self.happened(Input::Orphaned);
    }
}
