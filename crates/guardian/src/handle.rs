//! The supervisor's side of a guardian. `events` has its reports, and the work of a lost one.
//!
//! The methods never block: frames that do not fit into the socket wait. A command must never start without its
//! descriptor.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use tokio::net::UnixStream;

use super::SpawnRequest;
use super::containment::Containment;
use super::control::{self, ControlFile};
use super::liveness::{HealthCheck, LivenessTimer};
use super::wire::{PAYLOAD_MAX, Request};
use trafficcop_core::clock::{Instant, sleep};
use trafficcop_core::{Deadlines, WorkloadEvent};

mod events;
mod peer;
#[cfg(debug_assertions)]
pub mod scripted;

use events::Rescue;
pub use peer::Peer;
use peer::Process;

/// Time for a dismissed guardian to end.
const DISMISSAL: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

enum GuardianState {
    Well,
    /// The guardian was killed; the supervisor does its work.
    Lost(Rescue),
    /// The tree cannot be killed; no event follows.
    Stuck(Rescue),
    /// No event follows.
    Finished,
}

struct OutFrame {
    bytes: Vec<u8>,
    sent: usize,
    descriptor: Option<OwnedFd>,
}

impl OutFrame {
    fn new(request: Request, payload: &[u8], descriptor: Option<OwnedFd>) -> OutFrame {
        OutFrame {
            bytes: [&request.encode()[..], payload].concat(),
            sent: 0,
            descriptor,
        }
    }
}

/// The supervisor's side of a guardian. Dropping it looks like the supervisor's death: the guardian drains the
/// tree, and gives the lease back.
pub struct GuardianHandle {
    peer: Box<dyn Peer>,
    state: GuardianState,
    /// Whether an order is unfinished: the guardian must answer.
    busy: bool,
    hurry_at: Instant,
    stuck: bool,
    /// Whether the last tree has a lock, which lasts until all its descriptors are closed.
    locked: bool,
    liveness: LivenessTimer,
    health_check: Arc<HealthCheck>,
    /// Latest question in a ping.
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

    /// Makes one without a process, for the simulated fleet.
    #[doc(hidden)]
    #[must_use]
    pub fn of(peer: Box<dyn Peer>, health_check: Arc<HealthCheck>) -> GuardianHandle {
        GuardianHandle {
            peer,
            state: GuardianState::Well,
            busy: false,
            hurry_at: Instant::FOREVER,
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

    /// Starts the command: [`WorkloadEvent::Started`] or [`WorkloadEvent::NotStarted`] follows. Start the next
    /// after [`WorkloadEvent::TreeEmpty`] or `NotStarted`. ETIME: the deadline passed before the start.
    pub fn start(&mut self, request: SpawnRequest) {
        if !matches!(self.state, GuardianState::Well) {
            return self.refuse(Errno::ESRCH as i32);
        }
        if self.busy || self.stuck {
            return self.refuse(Errno::EBUSY as i32);
        }
        let mut payload = Vec::new();
        // Even if it is empty: an outer trafficcop's would answer for another lock.
        let path = self
            .peer
            .control_path()
            .map(|path| path.as_os_str().to_owned());
        let control = (control::VARIABLE.into(), path.unwrap_or_default());
        let set = request.env.iter().chain([&control]);
        let set = set.map(|(name, value)| (name, Some(value)));
        for (name, value) in set.chain(request.unset.iter().map(|name| (name, None))) {
            let name = name.as_bytes();
            let value = value.map(|value| value.as_bytes());
            let is_bad = |bytes: &[u8]| bytes.contains(&0);
            if name.is_empty() || name.contains(&b'=') || is_bad(name) || value.is_some_and(is_bad)
            {
                return self.refuse(Errno::EINVAL as i32);
            }
            payload.extend_from_slice(name);
            if let Some(value) = value {
                payload.push(b'=');
                payload.extend_from_slice(value);
            }
            payload.push(0);
        }
        let env = payload.len();
        payload.extend_from_slice(&request.release_info);
        let (Ok(env), Ok(release_info)) = (
            u32::try_from(env),
            u32::try_from(request.release_info.len()),
        ) else {
            return self.refuse(Errno::E2BIG as i32);
        };
        if request.lock.is_some() && request.input.is_some() {
            return self.refuse(Errno::EINVAL as i32);
        }
        if payload.len() > PAYLOAD_MAX {
            return self.refuse(Errno::E2BIG as i32);
        }
        let frame = Request::Start {
            program: request.program,
            in_control: request.in_control,
            deadlines: request.deadlines,
            stop_signal: request.stop_signal,
            stop_to: request.stop_to,
            env,
            release_info,
            lock: request.lock.is_some(),
            input: request.input.is_some(),
        };
        self.busy = true;
        self.locked = request.lock.is_some();
        self.hurry_at = request.deadlines.kill_at;
        self.liveness.starts();
        let descriptor = request.lock.or(request.input);
        self.outgoing
            .push_back(OutFrame::new(frame, &payload, descriptor));
        self.flush();
    }

    /// Refuses an order with this error number: [`WorkloadEvent::NotStarted`] follows.
    pub fn refuse(&mut self, errno: i32) {
        self.inbox.push_back(WorkloadEvent::NotStarted { errno });
    }

    /// Tells new deadlines; they hold whether later or earlier than before. Too late when the tree
    /// is being killed already.
    pub fn extend(&mut self, deadlines: Deadlines) {
        self.hurry_at = deadlines.kill_at;
        self.send(Request::Extend(deadlines), &[]);
    }

    /// Sets a later time from which silence matters. The last deadline was the command's alone: no lease ends
    /// before, so the guardian has its whole second to answer.
    pub fn hurry_at(&mut self, kill_at: Instant) {
        self.hurry_at = kill_at;
    }

    /// Signals the command's group, and kills the tree at the earlier of `end_of_grace` and the deadline.
    pub fn drain(&mut self, signal: i32, end_of_grace: Instant) {
        let request = Request::Drain {
            signal,
            end_of_grace,
        };
        self.send(request, &[]);
    }

    /// Kills the whole tree now.
    pub fn kill(&mut self) {
        // A kill does not wait for a start.
        self.liveness.started();
        self.send(Request::Kill, &[]);
    }

    /// Passes a signal on: of job control (TSTP, STOP, CONT) to the command's group, others to its main
    /// process.
    pub fn signal(&mut self, signal: i32) {
        self.send(Request::Signal(signal), &[]);
    }

    /// Continues a stopped command, in the foreground if it was there.
    pub fn resume(&mut self) {
        self.send(Request::Resume, &[]);
    }

    /// Replaces the release info. The guardian gives the lease back with it even between two commands.
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
        let request = Request::SetReleaseInfo {
            release_info: length,
        };
        self.send(request, release_info);
    }

    /// Kills a remaining tree, and ends and reaps the guardian. The lease is not given back.
    ///
    /// A tree that cannot be killed keeps its lock: the guardian stays as long, or else this process.
    pub async fn dismiss(mut self) {
        if self.busy {
            self.kill();
            while self.busy && matches!(self.state, GuardianState::Well) {
                self.next_event().await;
            }
        }
        while matches!(self.state, GuardianState::Lost(_)) {
            self.next_event().await;
        }
        match &mut self.state {
            GuardianState::Well if self.stuck => {
                // Alone, it goes when nothing of the tree is left.
                let guardian = self.peer.pid();
                tracing::warn!(
                    guardian,
                    "the guardian (process {guardian}) stays until the last process of the command has ended"
                );
                return;
            }
            GuardianState::Well | GuardianState::Lost(_) => {}
            GuardianState::Stuck(rescue) if self.locked => {
                tracing::warn!(
                    "without a guardian this process keeps the lock: waiting for the last process of the command to end"
                );
                while !rescue.is_done(&mut *self.peer) {
                    sleep(rescue.pauses.next_pause()).await;
                }
                return self.peer.retire();
            }
            GuardianState::Stuck(_) | GuardianState::Finished => return,
        }
        self.send(Request::Dismiss, &[]);
        let mut until = Instant::now() + DISMISSAL;
        for last in [false, true] {
            while Instant::now() < until {
                if self.peer.has_ended() {
                    return self.peer.retire();
                }
                self.flush();
                // Wait for the kernel's report: a pause would be most of a short command's life. The timer is
                // for a debugger, under which reaping is not possible then.
                tokio::select! {
                    () = poll_fn(|context| self.peer.poll_children(context)) => {}
                    () = sleep(POLL_INTERVAL) => {}
                }
            }
            if !last {
                self.peer.kill();
                until = Instant::now() + DISMISSAL;
            }
        }
    }

    fn send(&mut self, request: Request, payload: &[u8]) {
        if matches!(self.state, GuardianState::Well) {
            self.outgoing
                .push_back(OutFrame::new(request, payload, None));
            self.flush();
        }
    }

    fn flush(&mut self) {
        while let Some(frame) = self.outgoing.front_mut() {
            let descriptor = frame
                .descriptor
                .as_ref()
                .map(|descriptor| descriptor.as_fd());
            match self.peer.send(&frame.bytes[frame.sent..], descriptor) {
                Ok(sent) => {
                    frame.sent += sent;
                    frame.descriptor = None;
                    if frame.sent == frame.bytes.len() {
                        self.outgoing.pop_front();
                    }
                }
                Err(Errno::EINTR) => {}
                // Full, or closed: reading tells which.
                Err(Errno::EAGAIN | Errno::EPIPE | Errno::ECONNRESET) => return,
                // Too many descriptors are on their way.
                Err(errno) if frame.descriptor.is_some() => {
                    self.outgoing.pop_front();
                    self.busy = false;
                    self.refuse(errno as i32);
                }
                Err(_) => return,
            }
        }
    }
}
