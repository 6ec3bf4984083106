//! A task that is to be done once, on a shared drive: its result goes through the versions, its time
//! is the server's clock.
//!
//! Called by `store` in the lane, while it competes and when a run has ended. A result counts when it
//! stands in a version of ours on the server's disk; every version after it carries it on. The
//! clock is that of a directory made for the purpose.

use super::chain::Chain;
use super::look::Look;
use super::record::fits;
use crate::clock::Instant;
use crate::core::{Failure, Outcome, TaskResult};
use crate::lease::once::{NoRoom, OnceTask, TaskLog};
use crate::lease::record::Record;

impl Chain {
    /// Whether the task is over, by the last record that can be read.
    pub(super) fn is_over(&self, look: &Look) -> Result<Option<TaskResult>, Failure> {
        let Some(task) = &self.task else {
            return Ok(None);
        };
        if task.lacks_the_time() {
            self.ask_the_time(task)?;
        }
        Ok(task.verdict(&self.carried(look).once))
    }

    /// Control is ours, and nothing runs yet: there is room for the result, and it is known which
    /// slot the run belongs to; how often it failed in it before.
    pub(super) fn begin_task(&self, task_log: &TaskLog, unread: bool) -> Result<u32, Failure> {
        let Some(task) = &self.task else {
            return Ok(0);
        };
        if unread {
            return Err(self.fatal(
                "its results cannot be read, so nobody knows what has been done: 'trafficcop reset --all' has everything done anew",
            ));
        }
        if task.is_periodic() {
            self.ask_the_time(task)?;
        }
        task.begin(task_log, &self.candidate.identity, fits)
            .map_err(|NoRoom| self.no_room())
    }

    /// Notes in `record` what the run came to; not twice.
    pub(super) fn note(&self, record: &mut Record, outcome: &Outcome) -> Result<(), Failure> {
        let Some(task) = &self.task else {
            return Err(self.fatal("there is no task to record"));
        };
        task.note(record, outcome, &self.candidate.identity, fits)
            .map_err(|NoRoom| self.no_room())
    }

    fn ask_the_time(&self, task: &OnceTask) -> Result<(), Failure> {
        let said = self.share.time();
        let said = said.map_err(|error| self.failure("asking the server's time", &error))?;
        let asked = Instant::now();
        task.hear(said.as_secs(), asked);
        Ok(())
    }

    fn no_room(&self) -> Failure {
        self.fatal(
            "the result of --once has no room in it: take a shorter --once-key or --identity",
        )
    }
}
