//! A task that is to be done once, on a shared drive: its result goes through the versions, its time
//! is the server's clock.
//!
//! Called by `store` in the lane, while it competes and when a run has ended. A result counts when it
//! stands in a version of ours on the server's disk; every version after it carries it on. The
//! clock is that of a directory made for the purpose.

use std::sync::{Mutex, MutexGuard};

use super::chain::Chain;
use super::look::Look;
use super::record::fits;
use crate::clock::Instant;
use crate::core::{Failure, Outcome, TaskResult};
use crate::lease::once::{NoRoom, Task, TaskClock, TaskLog, tell_forgotten};
use crate::lease::record::Record;
use crate::util::lock;

/// The task of one instance, and what it knows of the time.
pub(super) struct Clock {
    task: Task,
    clock: Mutex<TaskClock>,
}

impl Clock {
    pub(super) fn new(task: Task) -> Clock {
        Clock {
            task,
            clock: Mutex::default(),
        }
    }

    fn clock(&self) -> MutexGuard<'_, TaskClock> {
        lock(&self.clock)
    }

    /// See [`StoreInfo::period`](crate::lease::StoreInfo::period).
    pub(super) fn period(&self) -> Option<String> {
        self.clock().slot_text(&self.task)
    }
}

impl Chain {
    /// Whether the task is over, by the last record that can be read.
    pub(super) fn is_over(&self, look: &Look) -> Result<Option<TaskResult>, Failure> {
        let Some(clock) = &self.clock else {
            return Ok(None);
        };
        if clock.task.per.is_some() && !clock.clock().has_heard() {
            self.ask_the_time(clock)?;
        }
        let carried = self.carried(look);
        Ok(clock.clock().verdict(&clock.task, &carried.once))
    }

    /// Control is ours, and nothing runs yet: there is room for the result, and it is known which
    /// slot the run belongs to; how often it failed in it before.
    pub(super) fn begin_task(&self, task_log: &TaskLog, unread: bool) -> Result<u32, Failure> {
        let Some(clock) = &self.clock else {
            return Ok(0);
        };
        if unread {
            return Err(self.fatal(
                "its results cannot be read, so nobody knows what has been done: 'trafficcop reset --all' has everything done anew",
            ));
        }
        if !task_log.has_room(&clock.task, &self.candidate.identity, fits) {
            return Err(self.no_room());
        }
        if clock.task.per.is_some() {
            self.ask_the_time(clock)?;
        }
        Ok(clock.clock().begin(&clock.task, task_log))
    }

    /// Notes in `record` what the run came to; not twice.
    pub(super) fn note(&self, record: &mut Record, outcome: &Outcome) -> Result<(), Failure> {
        let Some(clock) = &self.clock else {
            return Err(self.fatal("there is no task to record"));
        };
        if record.once.bears(&clock.task, record.token) {
            return Ok(());
        }
        let (slot, at) = {
            let clock = clock.clock();
            (clock.slot(), clock.stamp())
        };
        let by = &self.candidate.identity;
        record
            .once
            .note(&clock.task, slot, outcome, record.token, by, &at);
        match record.once.fit(&clock.task, fits) {
            Ok(forgotten) => {
                tell_forgotten(&forgotten);
                Ok(())
            }
            Err(NoRoom) => Err(self.no_room()),
        }
    }

    fn ask_the_time(&self, clock: &Clock) -> Result<(), Failure> {
        let said = self.share.time();
        let said = said.map_err(|error| self.failure("asking the server's time", &error))?;
        let asked = Instant::now();
        clock.clock().hear(&clock.task, said.as_secs(), asked);
        Ok(())
    }

    fn no_room(&self) -> Failure {
        self.fatal(
            "the result of --once has no room in it: take a shorter --once-key or --identity",
        )
    }
}
