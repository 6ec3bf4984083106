//! The guardian's loop: it waits, looks at the clock, the children and the socket, and does what
//! [`GuardianState`] decides.
//!
//! While a command runs it does not allocate (but for larger release info), and never waits for a supervisor
//! that does not read. It uses [`System`] only, so that the simulated fleet runs this very loop. It must never
//! act on an incomplete frame, begin what is ordered too late, or begin anything under a lock that it does not
//! hold.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;

use super::state::ControlState;
use super::state::{GuardianState, Input, Step, Steps};
use super::wire::{Event, FRAME, Request};
use trafficcop_core::clock::Instant;
use trafficcop_core::{Deadlines, WorkloadEvent};

mod kernel;
mod reaper;
mod system;

pub(super) use kernel::Kernel;
pub use system::{Ready, System, Wait};

/// Frames for a supervisor that does not read; a command's life makes ten.
const UNSENT: usize = 64;
/// Initial room for input, and for release info.
const ROOM: usize = 16 << 10;
/// Children outside the group that have had their SIGTERM.
const TOLD: usize = 256;
/// Milliseconds for a first command, before taking precedence.
const SETTLE: u8 = 20;
/// Milliseconds between looks at an ending tree.
const LONGEST_LOOK: u8 = 100;

/// The main process stays un-reaped until all else is gone: until then no other process can get its id or its
/// group's.
struct Main {
    pid: i32,
    ended: bool,
    reaped: bool,
    executing: bool,
}

/// The loop and its memory between turns.
pub struct EventLoop<S> {
    pub(super) system: S,
    state: GuardianState,
    main: Option<Main>,
    in_control: bool,
    lock: Option<OwnedFd>,
    release_info: Vec<u8>,
    armed: Instant,
    received: Vec<u8>,
    /// Handled length of `received`.
    obeyed: usize,
    /// Arrived before its frame was complete.
    passed: Option<OwnedFd>,
    unsent: [u8; UNSENT * FRAME],
    unsent_len: usize,
    told: [i32; TOLD],
    told_len: usize,
    /// Whether the supervisor's end is closed.
    deaf: bool,
    patience: u8,
    settled: bool,
    over: bool,
}

impl<S: System> EventLoop<S> {
    /// Sets the grace for what a command leaves behind.
    #[must_use]
    pub fn leaving(mut self, left_behind: Option<Duration>) -> EventLoop<S> {
        self.state = self.state.leaving(left_behind);
        self
    }

    /// Sets the longest grace after the supervisor's death.
    #[must_use]
    pub fn orphaned_for(mut self, orphan_grace: Option<Duration>) -> EventLoop<S> {
        self.state = self.state.orphaned_for(orphan_grace);
        self
    }

    /// Makes the loop and reports that it is ready. `grace` is for drains without a deadline.
    pub fn begin(system: S, grace: Duration) -> EventLoop<S> {
        let mut event_loop = EventLoop {
            system,
            state: GuardianState::with_grace(grace),
            main: None,
            in_control: false,
            lock: None,
            release_info: Vec::with_capacity(ROOM),
            armed: Instant::FOREVER,
            received: Vec::with_capacity(ROOM),
            obeyed: 0,
            passed: None,
            unsent: [0; UNSENT * FRAME],
            unsent_len: 0,
            told: [0; TOLD],
            told_len: 0,
            deaf: false,
            patience: 1,
            settled: false,
            over: false,
        };
        event_loop.tell(Event::Ready);
        event_loop
    }

    /// Whether it was dismissed, or has nothing to do as an orphan.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Sets the timer, and returns what to wait for.
    pub fn next_wait(&mut self) -> Wait {
        let next = self.state.next();
        if next != self.armed {
            self.armed = next;
            self.system.arm(next);
        }
        let ended = self.main.as_ref().is_some_and(|main| main.ended);
        let millis = if self.state.is_killing() || ended {
            // No signal announces orphans, nor their end in a PID namespace: look less and less often.
            self.patience = self.patience.saturating_mul(2).min(LONGEST_LOOK);
            Some(self.patience)
        } else if self.settled {
            None
        } else {
            Some(if self.main.is_some() { 0 } else { SETTLE })
        };
        Wait {
            millis,
            socket: !self.deaf,
            room: self.unsent_len > 0,
            exec: self.main.as_ref().is_some_and(|main| main.executing),
        }
    }

    /// Handles the result of the wait.
    pub fn turn(&mut self, ready: Ready) {
        // After the start of a first command, but before a long wait.
        if !self.settled && (ready.nothing || self.main.is_some()) {
            self.settled = true;
            self.system.take_precedence();
        }
        // The timer goes before everything, and children before the socket: what has happened
        // cannot be undone by a frame that lay there meanwhile.
        self.happened(Input::Ticked);
        if ready.wall && self.system.wall_clock_jumped() {
            self.tell(Event::Workload(WorkloadEvent::ClockJumped));
        }
        if ready.children || self.main.is_some() {
            self.system.take_child_signal();
            self.look_after_children();
        }
        if ready.socket && !self.deaf {
            while let Some((request, payload)) = self.next_request() {
                self.obey(request, payload);
            }
        }
        self.flush();
    }

    fn happened(&mut self, event: Input) {
        let steps = self.state.step(Instant::now(), event);
        // A process that gets a signal finds the truth there.
        self.show_control(self.state.control());
        self.perform(&steps);
    }

    fn show_control(&self, control: ControlState) {
        let yielded = self.system.yields() && control.drain != Instant::ZERO;
        self.system.show_control(if self.in_control && !yielded {
            control
        } else {
            ControlState::NONE
        });
    }

    fn perform(&mut self, steps: &Steps) {
        for step in steps.iter() {
            match step {
                Step::Tell(event) => self.tell(Event::Workload(event)),
                Step::SignalGroup(signal) => self.signal_group(signal),
                Step::SignalMain(signal) => self.signal_main(signal),
                Step::TermRest => self.term_rest(),
                Step::Kill => self.kill_and_reap(),
                Step::Depart => self.depart(),
            }
        }
    }

    fn obey(&mut self, request: Request, payload: usize) {
        match request {
            // The handle never sends a second one.
            Request::Start { .. } if !self.state.is_idle() => {}
            Request::Start {
                program,
                in_control,
                deadlines,
                stop_signal,
                stop_to,
                env,
                release_info,
                lock,
                input,
            } => {
                let changes = payload..payload + env as usize;
                self.set_release_info(changes.end, release_info);
                self.in_control = in_control;
                // The command may ask at once.
                self.show_control(ControlState::until(deadlines.kill_at));
                let forked = self.descriptors(lock, input).and_then(|(lock, input)| {
                    self.lock = lock;
                    self.prepare(program, changes, deadlines)?;
                    let lock = self.lock.as_ref().map(AsFd::as_fd);
                    let input = input.as_ref().map(AsFd::as_fd);
                    self.system.fork(deadlines, lock, input)
                });
                match forked {
                    Ok(pid) => {
                        self.forked(pid, deadlines, stop_signal);
                        self.state.stops(stop_to);
                    }
                    Err(errno) => self.not_started(errno),
                }
            }
            Request::Extend(deadlines) => {
                self.system.extend(deadlines.kill_at);
                self.happened(Input::Extended(deadlines));
            }
            Request::Drain {
                signal,
                end_of_grace,
            } => self.happened(Input::DrainAsked {
                signal,
                end_of_grace,
            }),
            Request::Kill => self.happened(Input::KillAsked),
            Request::Signal(signal) => self.pass_on(signal),
            Request::Resume => {
                if let Some(main) = &self.main {
                    self.system.lend_terminal_again(main.pid);
                }
                self.pass_on(libc::SIGCONT);
            }
            Request::SetReleaseInfo { release_info } => {
                self.set_release_info(payload, release_info);
            }
            Request::Ping(seq) => self.tell(Event::Pong(seq)),
            // Never leave a tree.
            Request::Dismiss => self.over = self.state.is_idle(),
        }
    }

    fn set_release_info(&mut self, at: usize, len: u32) {
        self.release_info.clear();
        self.release_info
            .extend_from_slice(&self.received[at..at + len as usize]);
    }

    fn descriptors(
        &mut self,
        lock: bool,
        input: bool,
    ) -> Result<(Option<OwnedFd>, Option<OwnedFd>), Errno> {
        match (self.passed.take(), lock, input) {
            (_, false, false) => Ok((None, None)),
            (Some(passed), true, _) => Ok((Some(passed), None)),
            (Some(passed), false, true) => Ok((None, Some(passed))),
            // This process could not take it. Better not to start than to lack a lock or a message.
            (None, ..) => Err(Errno::EMFILE),
        }
    }

    /// Does the slow part of a start.
    fn prepare(
        &mut self,
        program: u8,
        changes: Range<usize>,
        deadlines: Deadlines,
    ) -> Result<(), Errno> {
        if self.in_control {
            self.system.sweep()?;
        }
        self.system.prepare(program, &self.received[changes])?;
        // Looked at last: what is only to be ended again is not begun.
        if Instant::now() >= deadlines.first() {
            return Err(Errno::ETIME);
        }
        Ok(())
    }

    fn forked(&mut self, pid: i32, deadlines: Deadlines, stop_signal: i32) {
        self.main = Some(Main {
            pid,
            ended: false,
            reaped: false,
            executing: true,
        });
        self.told_len = 0;
        self.patience = 1;
        self.happened(Input::Forked {
            deadlines,
            stop_signal,
            pid,
        });
    }

    fn not_started(&mut self, errno: Errno) {
        self.system.abandon();
        self.lock = None;
        self.system.show_control(ControlState::NONE);
        let errno = errno as i32;
        self.tell(Event::Workload(WorkloadEvent::NotStarted { errno }));
    }

    fn tell(&mut self, report: Event) {
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
        let frame = report.encode();
        // A command can be stopped without end (`cpulimit`), and its end must still find room.
        let stopped = report == Event::Workload(WorkloadEvent::Stopped);
        if stopped && self.unsent[..self.unsent_len].ends_with(&frame) {
            return;
        }
        self.unsent[self.unsent_len..self.unsent_len + FRAME].copy_from_slice(&frame);
        self.unsent_len += FRAME;
        self.flush();
    }

    fn flush(&mut self) {
        while self.unsent_len > 0 && !self.deaf {
            match self.system.send(&self.unsent[..self.unsent_len]) {
                Ok(sent) => {
                    self.unsent.copy_within(sent..self.unsent_len, 0);
                    self.unsent_len -= sent;
                }
                Err(Errno::EINTR) => {}
                // Full, or closed: reading tells which.
                Err(_) => return,
            }
        }
    }

    /// Returns a complete request, and its payload's offset in `received`.
    fn next_request(&mut self) -> Option<(Request, usize)> {
        while !self.over && !self.deaf {
            if let Some(frame) = self.received[self.obeyed..].first_chunk::<FRAME>() {
                let Ok(request) = Request::decode(frame) else {
                    self.orphaned();
                    break;
                };
                let payload = self.obeyed + FRAME;
                let end = payload + request.payload();
                if self.received.len() >= end {
                    self.obeyed = end;
                    return Some((request, payload));
                }
            }
            self.received.drain(..self.obeyed);
            self.obeyed = 0;
            let mut buffer = [0; 4096];
            match self.system.receive(&mut buffer) {
                Ok((0, _)) => self.orphaned(),
                Ok((length, passed)) => {
                    self.received.extend_from_slice(&buffer[..length]);
                    if passed.is_some() {
                        self.passed = passed;
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => self.orphaned(),
            }
        }
        None
    }

    fn orphaned(&mut self) {
        self.deaf = true;
        self.unsent_len = 0;
        self.happened(Input::Orphaned);
    }

    fn depart(&mut self) {
        self.over = true;
        if !self.release_info.is_empty() {
            self.system.give_up_precedence();
            self.system.release(&self.release_info);
        }
    }
}
