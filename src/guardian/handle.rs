//! The supervisor's side of a guardian: requests out, events in, and the guardian's work when it can
//! no longer do it itself.
//!
//! Made by [`Guardian::attend`](super::Guardian::attend), used by the driver's workloads. Its methods never block:
//! what the socket does not take is kept, and a guardian that takes nothing is a silent guardian.
//! It must never call a tree empty that it has not seen empty.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use nix::errno::Errno;
use tokio::net::UnixStream;

use super::containment::Containment;
use super::control::{self, ControlFile};
use super::liveness::{Beat, HealthCheck, LivenessTimer};
use super::wire::{PAYLOAD_MAX, Request};
use super::{SpawnRequest, WorkloadEvent, state};
use crate::clock::{Instant, sleep};
use crate::core::Deadlines;
use crate::core::retry::Backoff;

mod ipc;
mod peer;
#[cfg(test)]
pub(crate) mod scripted;

use ipc::OutFrame;
pub use peer::Peer;
use peer::Process;

/// How long a dismissed guardian may take.
const DISMISSAL: Duration = Duration::from_secs(1);
/// How often we look whether it has gone, where the kernel does not tell, and whether it can be
/// told more.
const NAP: Duration = Duration::from_millis(2);

/// Longer gaps between two looks are pauses of ours and count no more than this.
const GAP: Duration = Duration::from_millis(100);

enum State {
    /// The guardian is there.
    Well,
    /// The guardian was killed, and we do its work.
    Lost(Rescue),
    /// So it is, and the tree cannot be killed; that was said, and nothing more will come.
    Stuck(Rescue),
    /// Nothing more will come.
    Finished,
}

/// The supervisor's side of a guardian. Dropped, it is to the guardian as if the supervisor had
/// died: the tree is drained, and the lease given back.
pub struct GuardianHandle {
    peer: Box<dyn Peer>,
    state: State,
    /// From an order to its end; only meanwhile must the guardian answer.
    busy: bool,
    /// When the guardian kills on its own, as it was told last.
    kill_at: Instant,
    /// The guardian said that the tree cannot be killed.
    stuck: bool,
    /// The present or last tree has a lock, which lives as long as somebody keeps its descriptor.
    locked: bool,
    liveness: LivenessTimer,
    health_check: Arc<HealthCheck>,
    /// The latest question of `health_check` that the latest ping is for.
    carried: u64,
    outgoing: VecDeque<OutFrame>,
    incoming: Vec<u8>,
    inbox: VecDeque<WorkloadEvent>,
}

impl GuardianHandle {
    pub(super) fn new(
        pid: i32,
        socket: UnixStream,
        containment: Containment,
        control: ControlFile,
        health_check: Arc<HealthCheck>,
    ) -> GuardianHandle {
        let process = Process::new(pid, socket, containment, control);
        GuardianHandle::of(Box::new(process), health_check)
    }

    /// The same for a guardian that is no process of ours: of the simulated fleet.
    #[doc(hidden)]
    #[must_use]
    pub fn of(peer: Box<dyn Peer>, health_check: Arc<HealthCheck>) -> GuardianHandle {
        GuardianHandle {
            peer,
            state: State::Well,
            busy: false,
            kill_at: Instant::FOREVER,
            stuck: false,
            locked: false,
            liveness: LivenessTimer::new(),
            health_check,
            carried: 0,
            outgoing: VecDeque::new(),
            incoming: Vec::new(),
            inbox: VecDeque::new(),
        }
    }

    /// Starts the command: [`WorkloadEvent::Started`] or [`WorkloadEvent::NotStarted`] follows. One at a time: the
    /// next one only after [`WorkloadEvent::TreeEmpty`] (or `NotStarted`). An order whose deadline has
    /// passed by the time the guardian reads it is not started (ETIME).
    pub fn start(&mut self, order: SpawnRequest) {
        let refuse = |errno: Errno| WorkloadEvent::NotStarted {
            errno: errno as i32,
        };
        if !matches!(self.state, State::Well) {
            return self.inbox.push_back(refuse(Errno::ESRCH));
        }
        if self.busy || self.stuck {
            return self.inbox.push_back(refuse(Errno::EBUSY));
        }
        let mut payload = Vec::new();
        // Empty where there is none: an outer trafficcop's would answer for another lock.
        let path = self
            .peer
            .control_path()
            .map(|path| path.as_os_str().to_owned());
        let control = (control::VARIABLE.into(), path.unwrap_or_default());
        let set = order.env.iter().chain([&control]);
        let set = set.map(|(name, value)| (name, Some(value)));
        for (name, value) in set.chain(order.unset.iter().map(|name| (name, None))) {
            let name = name.as_bytes();
            let value = value.map(|value| value.as_bytes());
            let is_bad = |bytes: &[u8]| bytes.contains(&0);
            if name.is_empty() || name.contains(&b'=') || is_bad(name) || value.is_some_and(is_bad)
            {
                return self.inbox.push_back(refuse(Errno::EINVAL));
            }
            payload.extend_from_slice(name);
            if let Some(value) = value {
                payload.push(b'=');
                payload.extend_from_slice(value);
            }
            payload.push(0);
        }
        let env = payload.len();
        payload.extend_from_slice(&order.release_info);
        let (Ok(env), Ok(release_info)) =
            (u32::try_from(env), u32::try_from(order.release_info.len()))
        else {
            return self.inbox.push_back(refuse(Errno::E2BIG));
        };
        // One descriptor goes with a frame.
        if order.lock.is_some() && order.input.is_some() {
            return self.inbox.push_back(refuse(Errno::EINVAL));
        }
        if payload.len() > PAYLOAD_MAX {
            return self.inbox.push_back(refuse(Errno::E2BIG));
        }
        let frame = Request::Start {
            program: order.program,
            in_control: order.in_control,
            deadlines: order.deadlines,
            stop_signal: order.stop_signal,
            env,
            release_info,
            lock: order.lock.is_some(),
            input: order.input.is_some(),
        };
        self.busy = true;
        self.locked = order.lock.is_some();
        self.kill_at = order.deadlines.kill_at;
        self.liveness.starts();
        self.send(frame, &payload, order.lock.or(order.input));
    }

    /// An order that could not be made, for this error number: [`WorkloadEvent::NotStarted`] follows as if it
    /// had been given.
    pub fn refuse(&mut self, errno: i32) {
        self.inbox.push_back(WorkloadEvent::NotStarted { errno });
    }

    /// Tells new deadlines; they hold whether later or earlier than before. Too late when the tree
    /// is being killed already.
    pub fn extend(&mut self, deadlines: Deadlines) {
        self.kill_at = deadlines.kill_at;
        self.send(Request::Extend(deadlines), &[], None);
    }

    /// Sends `signal` to the command's group, and SIGKILL to the tree at the earlier of
    /// `end_of_grace` and the deadline to kill.
    pub fn drain(&mut self, signal: i32, end_of_grace: Instant) {
        let request = Request::Drain {
            signal,
            end_of_grace,
        };
        self.send(request, &[], None);
    }

    /// Kills the whole tree, now.
    pub fn kill(&mut self) {
        // Who insists does not wait for a start.
        self.liveness.started();
        self.send(Request::Kill, &[], None);
    }

    /// Passes a signal on to the command: those of job control (TSTP, STOP, CONT) to its whole
    /// group, others to its main process.
    pub fn signal(&mut self, signal: i32) {
        self.send(Request::Signal(signal), &[], None);
    }

    /// Continues a command that was stopped, in the foreground of the terminal if it was there.
    pub fn resume(&mut self) {
        self.send(Request::Resume, &[], None);
    }

    /// Replaces the last release info; an empty one is none. It outlasts the tree: the guardian gives
    /// the lease back by it, too, when the supervisor dies between two commands.
    ///
    /// # Panics
    /// If it is longer than 4 MiB.
    pub fn set_release_info(&mut self, release_info: &[u8]) {
        assert!(
            release_info.len() <= PAYLOAD_MAX,
            "release info of {} bytes",
            release_info.len()
        );
        let length = u32::try_from(release_info.len()).unwrap_or(0);
        self.send(
            Request::SetReleaseInfo {
                release_info: length,
            },
            release_info,
            None,
        );
    }

    /// Waits for the next event. Dropping the future loses nothing. It has to be polled
    /// while a command runs: it is here that the guardian's silence is noticed, and that its work is
    /// done when it is dead.
    pub async fn next_event(&mut self) -> WorkloadEvent {
        loop {
            self.read();
            self.flush();
            if let Some(event) = self.inbox.pop_front() {
                return event;
            }
            match &mut self.state {
                State::Well => self.wait().await,
                State::Lost(rescue) => {
                    if rescue.is_done(&mut *self.peer) {
                        self.peer.retire();
                        self.state = State::Finished;
                        self.inbox
                            .push_back(WorkloadEvent::TreeEmpty { at: Instant::now() });
                    } else if rescue.is_stuck() {
                        self.state = State::Stuck(*rescue);
                        self.inbox.push_back(WorkloadEvent::TreeStuck);
                    } else {
                        sleep(rescue.pauses.next_pause()).await;
                    }
                }
                State::Stuck(_) | State::Finished => pending().await,
            }
        }
    }

    /// Ends the guardian, which should have nothing to guard (what it has is killed first), and
    /// reaps it. The lease is not given back.
    ///
    /// Whoever is the last to keep the lock of a tree that cannot be killed stays as long as that
    /// lives: the guardian, or, where that is dead, we.
    pub async fn dismiss(mut self) {
        if self.busy {
            self.kill();
            while self.busy && matches!(self.state, State::Well) {
                self.next_event().await;
            }
        }
        while matches!(self.state, State::Lost(_)) {
            self.next_event().await;
        }
        match &mut self.state {
            State::Well if self.stuck => {
                // It finds itself alone, and goes when nothing of the tree is left.
                let guardian = self.peer.pid();
                tracing::warn!(
                    guardian,
                    "the guardian (process {guardian}) stays until the last process of the command has ended"
                );
                return;
            }
            State::Well | State::Lost(_) => {}
            State::Stuck(rescue) if self.locked => {
                tracing::warn!(
                    "without a guardian it is for us to keep the lock: waiting for the last process of the command to end"
                );
                while !rescue.is_done(&mut *self.peer) {
                    sleep(rescue.pauses.next_pause()).await;
                }
                return self.peer.retire();
            }
            State::Stuck(_) | State::Finished => return,
        }
        self.send(Request::Dismiss, &[], None);
        let mut until = Instant::now() + DISMISSAL;
        for last in [false, true] {
            while Instant::now() < until {
                if self.peer.has_ended() {
                    return self.peer.retire();
                }
                self.flush();
                // Told by the kernel: a nap would be most of the life of a short command. Under a
                // debugger its end is not ours to reap at that moment.
                tokio::select! {
                    () = poll_fn(|context| self.peer.poll_children(context)) => {}
                    () = sleep(NAP) => {}
                }
            }
            if !last {
                self.peer.kill();
                until = Instant::now() + DISMISSAL;
            }
        }
    }

    /// Waits until there is something to read, to write, or to be worried about.
    async fn wait(&mut self) {
        let now = Instant::now();
        let beat = if !self.busy {
            self.liveness.look_idle(now)
        } else if now >= self.kill_at {
            // It should be killing. If it is not, there is no second to wait for its answer.
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
                self.send(Request::Ping(seq), &[], None);
            }
            Beat::Silent => {
                // The answer may have come since we read.
                self.read();
                if !self.liveness.is_answered() {
                    self.lose();
                }
                return;
            }
        }
        let until_look = self.busy.then(|| {
            let deadline = if now < self.kill_at {
                self.kill_at.since(now)
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
            // Whichever it is, all of them are looked at next; in this order a simulation plays it again.
            biased;
            () = health_check.asked() => self.liveness.want(),
            // Perhaps the guardian was stopped: it has its second from now on, and not from the next ping.
            of_a_child = word => if of_a_child {
                self.liveness.want();
            },
            () = sleep(until_look.unwrap_or_default()), if until_look.is_some() => {}
        }
    }

    /// The guardian is dead, or as good as dead.
    fn lose(&mut self) {
        if !matches!(self.state, State::Well) {
            return;
        }
        self.peer.take_over();
        self.busy = false;
        self.outgoing.clear();
        self.state = State::Lost(Rescue::begin());
        self.inbox.push_back(WorkloadEvent::Lost);
    }
}

/// The killing of a dead guardian's tree, round by round, in the guardian's place. It must never call a tree
/// empty that it has not seen empty.
#[derive(Clone, Copy)]
struct Rescue {
    looked: Instant,
    /// How long it has been tried, pauses of ours left out.
    tried: Duration,
    pauses: Backoff,
}

impl Rescue {
    fn begin() -> Rescue {
        Rescue {
            looked: Instant::now(),
            tried: Duration::ZERO,
            pauses: Backoff::new(Duration::from_millis(1), GAP / 2),
        }
    }

    /// It has been tried for as long as any tree may take.
    fn is_stuck(&self) -> bool {
        self.tried >= state::STUCK_AFTER
    }

    /// One round of killing what a dead guardian left, and whether nothing of it is left.
    fn is_done(&mut self, peer: &mut dyn Peer) -> bool {
        let now = Instant::now();
        self.tried += now.since(self.looked).min(GAP);
        self.looked = now;
        peer.sweep(self.tried >= GAP)
    }
}
