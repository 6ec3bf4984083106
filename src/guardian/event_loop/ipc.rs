//! The guardian's end of the socket: frames in, frames out, nothing that waits.
//!
//! Part of [`EventLoop`]. It must never block on a supervisor that does not read, and never act on a
//! frame before all of it is there.

use nix::errno::Errno;

use super::super::WorkloadEvent;
use super::super::state::Input;
use super::super::wire::{Event, FRAME, Request};
use super::{EventLoop, System};

impl<S: System> EventLoop<S> {
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
            match self.system.send(&self.unsent[..self.unsent_len]) {
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
        let (length, passed) = self.system.receive(buffer)?;
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
