//! The supervisor's end of the socket to a guardian: frames out, frames in, nothing that waits.
//!
//! Called by [`super`] alone. It must never start a command without the descriptor meant for it.

use std::os::fd::{AsFd as _, OwnedFd};

use nix::errno::Errno;

use super::super::WorkloadEvent;
use super::super::wire::{Event, FRAME, Request};
use super::{GuardianHandle, Peer, State};

/// Bytes on their way, and the descriptor that goes with the first of them.
pub(super) struct OutFrame {
    bytes: Vec<u8>,
    sent: usize,
    lock: Option<OwnedFd>,
}

impl OutFrame {
    pub(super) fn new(bytes: Vec<u8>, lock: Option<OwnedFd>) -> OutFrame {
        OutFrame {
            bytes,
            sent: 0,
            lock,
        }
    }

    /// Whether all of it has gone.
    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Whether its descriptor is still to go, and so all of it.
    pub(super) fn has_descriptor(&self) -> bool {
        self.lock.is_some()
    }

    /// Sends as much as goes.
    pub(super) fn send(&mut self, peer: &mut dyn Peer) -> nix::Result<()> {
        let lock = self.lock.as_ref().map(|lock| lock.as_fd());
        self.sent += peer.send(&self.bytes[self.sent..], lock)?;
        // It went with the first byte.
        self.lock = None;
        Ok(())
    }
}

impl GuardianHandle {
    pub(super) fn send(&mut self, request: Request, payload: &[u8], lock: Option<OwnedFd>) {
        if !matches!(self.state, State::Well) {
            return;
        }
        let mut bytes = request.encode().to_vec();
        bytes.extend_from_slice(payload);
        self.outgoing.push_back(OutFrame::new(bytes, lock));
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        while let Some(frame) = self.outgoing.front_mut() {
            let result = frame.send(&mut *self.peer);
            match result {
                Ok(()) if frame.is_sent() => {
                    self.outgoing.pop_front();
                }
                Ok(()) | Err(Errno::EINTR) => {}
                // Full, or closed: reading will tell which.
                Err(Errno::EAGAIN | Errno::EPIPE | Errno::ECONNRESET) => return,
                // The kernel does not pass its descriptor on (too many are on their way): nothing is
                // started without.
                Err(errno) if frame.has_descriptor() => {
                    self.outgoing.pop_front();
                    self.busy = false;
                    self.refuse(errno as i32);
                }
                Err(_) => return,
            }
        }
    }

    /// Takes in everything that has arrived.
    pub(super) fn read(&mut self) {
        if !matches!(self.state, State::Well) {
            return;
        }
        let mut buffer = [0; 1024];
        loop {
            match self.peer.receive(&mut buffer) {
                Ok(0) => return self.lose(),
                Ok(length) => {
                    self.incoming.extend_from_slice(&buffer[..length]);
                    self.understand();
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                Err(_) => return self.lose(),
            }
        }
    }

    fn understand(&mut self) {
        while let Some(frame) = self.incoming.first_chunk::<FRAME>() {
            let report = Event::decode(frame);
            self.incoming.drain(..FRAME);
            let event = match report {
                Ok(Event::Pong(seq)) => {
                    self.liveness.answered(seq);
                    if self.liveness.is_answered() {
                        self.health_check.answer(self.carried);
                    }
                    continue;
                }
                Ok(Event::Workload(event)) => event,
                Ok(Event::Ready | Event::Unready { .. }) | Err(_) => {
                    // A guardian out of its mind guards nothing.
                    return self.lose();
                }
            };
            match event {
                WorkloadEvent::Started { .. } => self.liveness.started(),
                WorkloadEvent::NotStarted { .. } | WorkloadEvent::TreeEmpty { .. } => {
                    self.busy = false;
                }
                WorkloadEvent::TreeStuck => {
                    self.busy = false;
                    self.stuck = true;
                }
                WorkloadEvent::Stopped
                | WorkloadEvent::Exited(_)
                | WorkloadEvent::LeftBehind
                | WorkloadEvent::Acting
                | WorkloadEvent::ClockJumped
                | WorkloadEvent::Lost
                | WorkloadEvent::HookFailed { .. }
                | WorkloadEvent::Standby(_)
                | WorkloadEvent::Condition(_)
                | WorkloadEvent::Health(_) => {}
            }
            self.inbox.push_back(event);
        }
    }
}
