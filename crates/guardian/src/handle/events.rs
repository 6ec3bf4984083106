//! Reports of a guardian to its supervisor, and the work of a lost one.
//!
//! A tree must never count as empty before it was seen empty.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use nix::errno::Errno;

use super::super::liveness::Beat;
use super::super::state;
use super::super::wire::{Event, FRAME, Request};
use super::{GuardianHandle, GuardianState, Peer};
use trafficcop_core::WorkloadEvent;
use trafficcop_core::clock::{Instant, sleep};
use trafficcop_core::retry::Backoff;

/// Longest gap between looks that counts fully; more is a pause of this process.
const GAP: Duration = Duration::from_millis(100);

impl GuardianHandle {
    /// Waits for the next event. Dropping the future loses nothing. Poll it while a command runs: it does the
    /// work of a silent or dead guardian.
    pub async fn next_event(&mut self) -> WorkloadEvent {
        loop {
            self.read();
            self.flush();
            if let Some(event) = self.inbox.pop_front() {
                return event;
            }
            match &mut self.state {
                GuardianState::Well => self.wait().await,
                GuardianState::Lost(rescue) => {
                    if rescue.is_done(&mut *self.peer) {
                        self.peer.retire();
                        self.state = GuardianState::Finished;
                        self.inbox
                            .push_back(WorkloadEvent::TreeEmpty { at: Instant::now() });
                    } else if rescue.is_stuck() {
                        self.state = GuardianState::Stuck(*rescue);
                        self.inbox.push_back(WorkloadEvent::TreeStuck);
                    } else {
                        sleep(rescue.pauses.next_pause()).await;
                    }
                }
                GuardianState::Stuck(_) | GuardianState::Finished => pending().await,
            }
        }
    }

    fn read(&mut self) {
        if !matches!(self.state, GuardianState::Well) {
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
                    // It guards nothing.
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

    async fn wait(&mut self) {
        let now = Instant::now();
        let beat = if !self.busy {
            self.liveness.look_idle(now)
        } else if now >= self.hurry_at {
            // It should be killing. If it is not, a second is too long to wait.
            match self.liveness.hurry(now) {
                Beat::Quiet => self.liveness.look(now),
                beat => beat,
            }
        } else {
            self.liveness.look(now)
        };
        match beat {
            Beat::Quiet => {}
            Beat::Ping(seq) => {
                self.carried = self.health_check.latest();
                self.send(Request::Ping(seq), &[]);
            }
            Beat::Silent => {
                // The answer may have come since the last read.
                self.read();
                if !self.liveness.is_answered() {
                    self.lose();
                }
                return;
            }
        }
        let until_look = self.busy.then(|| {
            let deadline = if now < self.hurry_at {
                self.hurry_at.since(now)
            } else {
                Duration::MAX
            };
            self.liveness.next(now).min(deadline)
        });
        let health_check = Arc::clone(&self.health_check);
        let (peer, full) = (&mut self.peer, !self.outgoing.is_empty());
        let word = poll_fn(|context| match peer.poll_children(context) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => peer.poll_socket(context, full).map(|()| false),
        });
        tokio::select! {
            // A fixed order lets a simulation repeat it; all are looked at next.
            biased;
            () = health_check.asked() => self.liveness.want(),
            // A stopped guardian's second begins now, not with the next ping.
            of_a_child = word => if of_a_child {
                self.liveness.want();
            },
            () = sleep(until_look.unwrap_or_default()), if until_look.is_some() => {}
        }
    }

    fn lose(&mut self) {
        if !matches!(self.state, GuardianState::Well) {
            return;
        }
        self.peer.take_over();
        self.busy = false;
        self.outgoing.clear();
        self.state = GuardianState::Lost(Rescue::begin());
        self.inbox.push_back(WorkloadEvent::Lost);
    }
}

#[derive(Clone, Copy)]
pub(super) struct Rescue {
    looked: Instant,
    /// Without pauses of this process.
    tried: Duration,
    pub(super) pauses: Backoff,
}

impl Rescue {
    fn begin() -> Rescue {
        Rescue {
            looked: Instant::now(),
            tried: Duration::ZERO,
            pauses: Backoff::new(Duration::from_millis(1), GAP / 2),
        }
    }

    fn is_stuck(&self) -> bool {
        self.tried >= state::STUCK_AFTER
    }

    /// Makes one round; returns whether nothing is left.
    pub(super) fn is_done(&mut self, peer: &mut dyn Peer) -> bool {
        let now = Instant::now();
        self.tried += now.since(self.looked).min(GAP);
        self.looked = now;
        peer.sweep(self.tried >= GAP)
    }
}
