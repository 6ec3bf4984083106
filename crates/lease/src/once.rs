//! Task log: which one-time tasks are over, and how; which have failed, and how often.
//!
//! The stores keep it beside the record and ask it before they grant control. Time comes in as seconds of the
//! store's own clock. It must never take a result for another key's or another period's.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::record::Record;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::{lock, wall_clock};
use trafficcop_core::{Failure, Outcome, TaskResult};

/// Greatest number of keys; beyond it the one that ran longest ago is forgotten.
pub const KEPT: usize = 32;

/// Greatest size of all results, in bytes.
// Less than a page, a line's place in a lock file, and half of a blob's room.
pub const ROOM: usize = 3840;

// Seconds that a result's period may lie in the future, because the store's clock was set back a little. A
// result further ahead came from a wrong clock.
const AHEAD: u64 = 3 * 3600;

/// One-time task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Name; each key on a lock is a separate task.
    pub key: String,
    /// Length of a period in whole seconds, aligned to UTC. A key with periods is another task than without.
    pub per: Option<Duration>,
}

impl Task {
    /// Returns the second with which a moment's period begins, or 0.
    fn period(&self, at: u64) -> u64 {
        let per = self.per.map_or(0, |per| per.as_secs());
        if per == 0 { 0 } else { at - at % per }
    }
}

/// Results and failures of a lock's tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskLog(Vec<Entry>);

/// Entry of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Key of the task.
    pub key: String,
    /// Whether the task has periods.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub periods: bool,
    /// Last result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<RecordedResult>,
    /// Failures since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<Failures>,
}

/// Result of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedResult {
    /// Second (of the Unix epoch) with which its period begins, or 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub period: u64,
    /// Exit status (128 + n for signal n).
    pub exit: u8,
    /// Fencing token of the run.
    pub token: u64,
    /// Instance that ran it.
    pub by: String,
    /// Time (RFC 3339, UTC).
    pub at: String,
}

/// Failed runs that did not settle the task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// Period of the failures.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub period: u64,
    /// Number of failures.
    pub failed: u32,
    /// Fencing token of the last one.
    pub token: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Lack of room for a task's own result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl TaskLog {
    /// Log without any task.
    pub const EMPTY: TaskLog = TaskLog(Vec::new());

    /// Reads the text of [`TaskLog::text`]; `None` if it is another.
    #[must_use]
    pub fn parse(text: &str) -> Option<TaskLog> {
        serde_json::from_str(text).ok()
    }

    /// Whether these results fit into a record.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.text().len() <= ROOM
    }

    /// Returns one line of JSON; empty if there are no results.
    #[must_use]
    pub fn text(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns all known tasks.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Returns the entry of a task.
    #[must_use]
    pub fn get(&self, task: &Task) -> Option<&Entry> {
        self.0.iter().find(|entry| is_of(entry, task))
    }

    /// Forgets this key; returns whether it was known.
    pub fn forget(&mut self, key: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|entry| entry.key != key);
        self.0.len() < before
    }

    /// Returns the result for a candidate that came in the period `came`.
    #[must_use]
    pub fn result(&self, task: &Task, came: u64, now: u64) -> Option<TaskResult> {
        let over = self.get(task)?.over.as_ref()?;
        // The length of a period may have changed since.
        let period = task.period(over.period);
        if period < came || period > now.saturating_add(AHEAD) {
            return None;
        }
        Some(TaskResult {
            status: over.exit,
            holder: over.by.clone(),
            at: over.at.clone(),
            token: over.token,
        })
    }

    /// Returns the failures in this period.
    #[must_use]
    pub fn failed(&self, task: &Task, period: u64) -> u32 {
        let tries = self.get(task).and_then(|entry| entry.tries.as_ref());
        tries
            .filter(|tries| tries.period == period)
            .map_or(0, |tries| tries.failed)
    }

    /// Notes the outcome of a run.
    pub fn note(
        &mut self,
        task: &Task,
        period: u64,
        outcome: &Outcome,
        token: u64,
        by: &str,
        at: &str,
    ) {
        // Before the entry changes: failures of another period do not count.
        let failed = self.failed(task, period).saturating_add(1);
        let at_entry = self.0.iter().position(|entry| is_of(entry, task));
        let index = at_entry.unwrap_or_else(|| {
            self.0.push(Entry {
                key: task.key.clone(),
                periods: task.per.is_some(),
                ..Entry::default()
            });
            self.0.len() - 1
        });
        let entry = &mut self.0[index];
        if outcome.over {
            entry.tries = None;
            entry.over = Some(RecordedResult {
                period,
                exit: u8::try_from(outcome.exit.as_status()).unwrap_or(u8::MAX),
                token,
                by: by.to_owned(),
                at: at.to_owned(),
            });
        } else {
            entry.tries = Some(Failures {
                period,
                failed,
                token,
            });
        }
    }

    /// Whether the run with this token is noted.
    #[must_use]
    pub fn bears(&self, task: &Task, token: u64) -> bool {
        self.get(task).is_some_and(|entry| age(entry) == token)
    }

    /// Forgets the tasks that ran longest ago, but never this one, until at most [`KEPT`] are left and they
    /// fit. Returns the forgotten keys.
    ///
    /// # Errors
    /// If not even this task's entry fits.
    pub fn fit(
        &mut self,
        task: &Task,
        fits: impl Fn(&TaskLog) -> bool,
    ) -> Result<Vec<String>, NoRoom> {
        // By tokens, not by times, which come from many clocks.
        let mut forgotten = Vec::new();
        while self.0.len() > KEPT || !fits(self) {
            let others = self.0.iter().enumerate();
            let oldest = others
                .filter(|(_, entry)| !is_of(entry, task))
                .min_by_key(|(_, entry)| age(entry))
                .map(|(index, _)| index);
            forgotten.push(self.0.remove(oldest.ok_or(NoRoom)?).key);
        }
        Ok(forgotten)
    }

    /// Whether this task's result will fit, however it ends.
    #[must_use]
    pub fn has_room(&self, task: &Task, by: &str, fits: impl Fn(&TaskLog) -> bool) -> bool {
        // If the longest result found no room after the run, the task would be done again.
        let worst = Outcome {
            exit: trafficcop_core::Exit::Code(u8::MAX),
            over: true,
        };
        let mut trial = self.clone();
        trial.note(task, u64::MAX, &worst, u64::MAX, by, "9999-12-31T23:59:59Z");
        trial.fit(task, fits).is_ok()
    }
}

fn is_of(entry: &Entry, task: &Task) -> bool {
    entry.key == task.key && entry.periods == task.per.is_some()
}

/// Returns the token of the last write: tokens grow.
fn age(entry: &Entry) -> u64 {
    let over = entry.over.as_ref().map_or(0, |over| over.token);
    let tries = entry.tries.as_ref().map_or(0, |tries| tries.token);
    over.max(tries)
}

/// Task of one instance. Its only clock is the store's.
pub(super) struct OnceTask {
    task: Task,
    clock: Mutex<TaskClock>,
}

#[derive(Default)]
struct TaskClock {
    // Period in which this instance came. Its result ends the waiting, even if seen in the next.
    came: Option<u64>,
    /// Last time that the store reported, and when.
    received: Option<(u64, Instant)>,
    // Fixed at the beginning, because the run may end in the next period.
    period: u64,
}

impl TaskClock {
    fn now(&self) -> u64 {
        // By a clock that counts suspend: the store is not asked at every look.
        self.received.map_or(0, |(said, at)| {
            said.saturating_add(Instant::now().since(at).as_secs())
        })
    }
}

impl OnceTask {
    pub(super) fn new(task: Task) -> OnceTask {
        OnceTask {
            task,
            clock: Mutex::default(),
        }
    }

    fn clock(&self) -> MutexGuard<'_, TaskClock> {
        lock(&self.clock)
    }

    pub(super) fn is_periodic(&self) -> bool {
        self.task.per.is_some()
    }

    pub(super) fn lacks_the_time(&self) -> bool {
        self.is_periodic() && self.clock().received.is_none()
    }

    pub(super) fn hear(&self, said: u64, at: Instant) {
        let mut clock = self.clock();
        clock.came.get_or_insert(self.task.period(said));
        clock.received = Some((said, at));
    }

    pub(super) fn result(&self, task_log: &TaskLog) -> Option<TaskResult> {
        if self.lacks_the_time() {
            return None;
        }
        let clock = self.clock();
        task_log.result(&self.task, clock.came.unwrap_or(0), clock.now())
    }

    /// Decides the run's period, under the lease. Returns its failures.
    pub(super) fn begin(
        &self,
        task_log: &TaskLog,
        by: &str,
        fits: impl Fn(&TaskLog) -> bool,
    ) -> Result<u32, NoRoom> {
        if !task_log.has_room(&self.task, by, fits) {
            return Err(NoRoom);
        }
        let mut clock = self.clock();
        // Not before the first period: the clocks of several front ends differ a little.
        clock.period = self.task.period(clock.now()).max(clock.came.unwrap_or(0));
        Ok(task_log.failed(&self.task, clock.period))
    }

    pub(super) fn failed(&self, task_log: &TaskLog) -> u32 {
        task_log.failed(&self.task, self.clock().period)
    }

    pub(super) fn period(&self) -> Option<String> {
        self.task.per?;
        Some(moment(self.clock().period))
    }

    pub(super) fn is_noted(&self, record: &Record) -> bool {
        record.once.bears(&self.task, record.token)
    }

    /// Asks the store's clock (seconds since 1970) if `wanted`.
    pub(super) fn ask_if(
        &self,
        wanted: bool,
        time: impl FnOnce() -> Result<u64, Failure>,
    ) -> Result<(), Failure> {
        if wanted {
            self.hear(time()?, Instant::now());
        }
        Ok(())
    }

    pub(super) fn begin_known(
        &self,
        log: &TaskLog,
        unread: bool,
        by: &str,
    ) -> Result<u32, &'static str> {
        if unread {
            return Err(
                "its results cannot be read, so it is not known which tasks are done: \
                 'trafficcop reset --all' has all of them run again",
            );
        }
        self.begin(log, by, TaskLog::fits).map_err(|NoRoom| NO_ROOM)
    }

    pub(super) fn note_known(
        task: Option<&OnceTask>,
        record: &mut Record,
        outcome: &Outcome,
        by: &str,
    ) -> Result<(), &'static str> {
        let task = task.ok_or("there is no task to record")?;
        task.note(record, outcome, by, TaskLog::fits)
            .map_err(|NoRoom| NO_ROOM)
    }

    /// Notes the outcome, and logs the results that made room. Does nothing if an unanswered attempt succeeded.
    pub(super) fn note(
        &self,
        record: &mut Record,
        outcome: &Outcome,
        by: &str,
        fits: impl Fn(&TaskLog) -> bool,
    ) -> Result<(), NoRoom> {
        if self.is_noted(record) {
            return Ok(());
        }
        let (period, at) = {
            let clock = self.clock();
            // People compare it with the period beside it.
            let told = clock.received.map(|_| moment(clock.now()));
            (clock.period, told.unwrap_or_else(wall_clock))
        };
        let task_log = &mut record.once;
        task_log.note(&self.task, period, outcome, record.token, by, &at);
        for key in task_log.fit(&self.task, fits)? {
            tracing::warn!(
                key,
                "the result of --once-key {key} is forgotten to make room: that task would now run again"
            );
        }
        Ok(())
    }
}

const NO_ROOM: &str =
    "it has no room for the result of --once: take a shorter --once-key or --identity";

/// Formats seconds of the Unix epoch (RFC 3339, UTC).
#[must_use]
pub fn moment(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    OffsetDateTime::from_unix_timestamp(seconds)
        .ok()
        .and_then(|at| at.format(&Rfc3339).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
