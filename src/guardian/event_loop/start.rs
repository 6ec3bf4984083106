//! An order to start, and the process that comes of it.
//!
//! Part of [`EventLoop`]. What is ordered too late is not begun, and nothing is begun under a lock
//! that we do not keep.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;

use super::super::WorkloadEvent;
use super::super::state::Input;
use super::super::wire::{Event, Request};
use super::{EventLoop, Main, System};
use crate::clock::Instant;
use crate::core::Deadlines;

impl<S: System> EventLoop<S> {
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
                self.system.abandon();
                self.lock = None;
                self.system.show_control(Instant::ZERO);
                let errno = errno as i32;
                self.tell(Event::Workload(WorkloadEvent::NotStarted { errno }));
            }
        }
    }

    fn fork_command(
        &mut self,
        program: u8,
        deadlines: Deadlines,
        changes: Range<usize>,
        lock: Option<OwnedFd>,
        input: Option<OwnedFd>,
    ) -> Result<i32, Errno> {
        if self.in_control {
            self.system.sweep()?;
        }
        self.lock = lock;
        let changes = &self.received[changes];
        self.system.prepare(program, changes)?;
        // Looked at last: what is only to be ended again is not begun.
        if Instant::now() >= deadlines.first() {
            return Err(Errno::ETIME);
        }
        let lock = self.lock.as_ref().map(AsFd::as_fd);
        let input = input.as_ref().map(AsFd::as_fd);
        let pid = self.system.fork(program, deadlines, lock, input)?;
        self.main = Some(Main {
            pid,
            ended: false,
            reaped: false,
            executing: true,
        });
        self.told_len = 0;
        self.patience = 1;
        Ok(pid)
    }
}
