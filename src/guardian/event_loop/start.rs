//! An order to start, and the process that comes of it: one that was forked ahead, or one that is
//! forked now.
//!
//! Part of [`EventLoop`]. What is ordered too late is not begun, and nothing is begun under a lock
//! that we do not keep.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;

use super::super::WorkloadEvent;
use super::super::spawn::{self, Ahead, Child, ExecImage, PassedFds};
use super::super::state::Input;
use super::super::wire::{self, Event, Request};
use super::{EventLoop, Main};
use crate::clock::Instant;
use crate::core::Deadlines;

/// How long to wait before another attempt to fork, where the machine has no process to spare now.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
];

impl EventLoop {
    /// Starts a program, and tells of it.
    pub(super) fn start(&mut self, request: Request, payload: usize) {
        let Request::Start {
            program,
            in_control,
            deadlines,
            stop_signal,
            env,
            release_info,
            lock,
            input,
        } = request
        else {
            return;
        };
        if !self.state.is_idle() {
            // The handle knows better than to ask.
            return;
        }
        let release_info_at = payload + env as usize;
        self.release_info.clear();
        self.release_info.extend_from_slice(
            &self.received[release_info_at..release_info_at + release_info as usize],
        );
        let handed = match (self.passed.take(), lock, input) {
            (_, false, false) => Ok((None, None)),
            (Some(passed), true, _) => Ok((Some(passed), None)),
            (Some(passed), false, true) => Ok((None, Some(passed))),
            // It was sent, and we could not have it. A lock that nobody keeps, or a message that is
            // not there, is worse than a command that is not started.
            (None, ..) => Err(Errno::EMFILE),
        };
        self.in_control = in_control;
        // The command may ask at once.
        self.show_control(deadlines.kill_at);
        let changes = payload..release_info_at;
        let forked = handed
            .and_then(|(lock, input)| self.fork_command(program, deadlines, changes, lock, input));
        match forked {
            Ok(pid) => self.happened(Input::Forked {
                deadlines,
                stop_signal,
                pid,
            }),
            Err(errno) => {
                self.containment.abandon();
                self.lock = None;
                self.control.set(Instant::ZERO);
                let errno = errno as i32;
                self.tell(Event::Workload(WorkloadEvent::NotStarted { errno }));
            }
        }
    }

    fn fork_command(
        &mut self,
        number: u8,
        deadlines: Deadlines,
        changes: Range<usize>,
        lock: Option<OwnedFd>,
        input: Option<OwnedFd>,
    ) -> Result<i32, Errno> {
        if self.in_control {
            self.containment.sweep()?;
        }
        let programs = &self.setup.programs;
        let program = programs.get(usize::from(number)).ok_or(Errno::EINVAL)?;
        let in_front = program.in_front;
        self.lock = lock;
        let child = match self.order_ahead(deadlines, changes.clone())? {
            Some(child) => child,
            None => self.fork_now(number, deadlines, changes, input.as_ref())?,
        };
        self.main = Some(Main {
            pid: child.pid,
            in_front,
            ended: false,
            reaped: false,
            exec_result: Some(child.exec_result),
        });
        self.told_len = 0;
        self.patience = 1;
        Ok(child.pid)
    }

    fn fork_now(
        &mut self,
        number: u8,
        deadlines: Deadlines,
        changes: Range<usize>,
        input: Option<&OwnedFd>,
    ) -> Result<Child, Errno> {
        let program = &self.setup.programs[usize::from(number)];
        let mut changes = wire::variables(&self.received[changes]);
        let withheld = self.setup.withheld.iter();
        changes.extend(withheld.map(|name| (name.clone(), None)));
        let mut image = ExecImage::prepare(program, changes, self.context.sockets)?;
        in_time(deadlines)?;
        let lock = self.lock.as_ref().map(AsFd::as_fd);
        self.containment.open(deadlines.kill_at, lock)?;
        if program.in_front {
            self.context.foreground.lend();
        }
        let handed = PassedFds {
            lock,
            input: input.map(AsFd::as_fd),
        };
        let mut pauses = PAUSES.iter();
        loop {
            match spawn::spawn(&mut image, &self.context, handed, &self.containment) {
                // Somebody else's processes may be gone in a moment. Nothing of ours runs meanwhile.
                Err(Errno::EAGAIN) => match pauses.next() {
                    Some(pause) if Instant::now() + *pause < deadlines.first() => {
                        std::thread::sleep(*pause);
                    }
                    _ => return Err(Errno::EAGAIN),
                },
                spawned => return spawned,
            }
        }
    }

    /// Forks what is to become the command, while the supervisor competes: where there is nothing but
    /// that to run, it needs no terminal, and its containment is there.
    pub(super) fn fork_ahead(&mut self) {
        let [program] = &*self.setup.programs else {
            return;
        };
        // Who has settled would not let go of it again.
        if self.settled || !self.state.is_idle() || self.ahead.is_some() {
            return;
        }
        let foreground = &self.context.foreground;
        if !program.in_front || foreground.is_there() || !self.containment.is_there() {
            return;
        }
        // What cannot be had now is tried again, and told of, when it is needed.
        self.ahead = Ahead::fork(
            program,
            &self.setup.withheld,
            &self.context,
            &self.containment,
            self.fds.socket.as_fd(),
        )
        .ok();
    }

    /// Has the process that was forked ahead become the command, if there is one.
    fn order_ahead(
        &mut self,
        deadlines: Deadlines,
        changes: Range<usize>,
    ) -> Result<Option<Child>, Errno> {
        // Where there is one, there is one program.
        let Some(ahead) = self.ahead.take() else {
            return Ok(None);
        };
        if let Err(errno) = in_time(deadlines) {
            ahead.dismiss();
            return Err(errno);
        }
        let lock = self.lock.as_ref().map(AsFd::as_fd);
        // One that was killed meanwhile is replaced.
        Ok(ahead.go(&self.received[changes], lock).ok())
    }

    pub(super) fn dismiss_ahead(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            ahead.dismiss();
        }
    }
}

/// Looked at last: what is only to be ended again is not begun.
fn in_time(deadlines: Deadlines) -> Result<(), Errno> {
    if Instant::now() >= deadlines.first() {
        return Err(Errno::ETIME);
    }
    Ok(())
}
