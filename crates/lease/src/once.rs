//! What stands in a lock's record of the tasks that are to be done once: which is over, and how;
//! which has failed, and how often.
//!
//! Called by the stores, which keep a [`TaskLog`] beside the rest of the record (the blob store as
//! one entry of its metadata, the file store in lines of its own) and ask it before they grant
//! control; and by whoever wants to read a result ([`TaskLog::get`]) or have it forgotten
//! ([`TaskLog::forget`]). Pure: what time it is comes in as the seconds of the store's own clock.
//! It must never take a result for another's: of another key, or of another period.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::record::Record;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::{lock, wall_clock};
use trafficcop_core::{Failure, Outcome, TaskResult};

/// The most keys of which a result is kept. Of more, the one whose last run is longest ago is
/// forgotten.
pub const KEPT: usize = 32;

/// The most bytes all results may take in a record, however many they are.
// Less than a page, which is a line's place in a lock file, and half of what a blob has for metadata.
pub const ROOM: usize = 3840;

// A result of a period that has not begun yet counts if it begins so soon: then the store's clock was
// set back a little, and what was done is not to be done again. One further ahead was recorded
// under a clock that was wrong.
const AHEAD: u64 = 3 * 3600;

/// What is to be done once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its name; each key on a lock is a task of its own.
    pub key: String,
    /// Once in each period of so many whole seconds, aligned to UTC, rather than once for all. With
    /// it a key is another task than without.
    pub per: Option<Duration>,
}

impl Task {
    /// The period that a moment lies in, as the second it begins with; 0 where there are no periods.
    fn period(&self, at: u64) -> u64 {
        let per = self.per.map_or(0, |per| per.as_secs());
        if per == 0 { 0 } else { at - at % per }
    }
}

/// Results and failures of all tasks of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskLog(Vec<Entry>);

/// What is known of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// It is done once in each period.
    #[serde(rename = "slots", default, skip_serializing_if = "std::ops::Not::not")]
    pub periods: bool,
    /// How it ended last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<RecordedResult>,
    /// The failures since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<Failures>,
}

/// A result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedResult {
    /// The period it belongs to, as the second (of the Unix epoch) it begins with; 0 without periods.
    #[serde(rename = "slot", default, skip_serializing_if = "is_zero")]
    pub period: u64,
    /// The exit status (128 + n for signal n); 0 is success.
    pub exit: u8,
    /// The fencing token of the run.
    pub token: u64,
    /// The identity of the instance that ran it.
    pub by: String,
    /// When it was recorded (RFC 3339, UTC).
    pub at: String,
}

/// Runs that failed, and did not settle it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// The period they belong to.
    #[serde(rename = "slot", default, skip_serializing_if = "is_zero")]
    pub period: u64,
    /// How many.
    pub failed: u32,
    /// The fencing token of the last of them.
    pub token: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// There is no room for a task's own result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl TaskLog {
    /// Nothing is known of any task.
    pub const EMPTY: TaskLog = TaskLog(Vec::new());

    /// Reads what [`TaskLog::text`] wrote; `None` if it is not that.
    #[must_use]
    pub fn parse(text: &str) -> Option<TaskLog> {
        serde_json::from_str(text).ok()
    }

    /// Whether these results find room in a file's record.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.text().len() <= ROOM
    }

    /// As one line of JSON; empty if there is nothing in it.
    #[must_use]
    pub fn text(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        serde_json::to_string(self).unwrap_or_default()
    }

    /// All tasks that anything is known of.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// What is known of a task.
    #[must_use]
    pub fn get(&self, task: &Task) -> Option<&Entry> {
        self.0.iter().find(|entry| is_of(entry, task))
    }

    /// Forgets everything of this key, so that it can be run again; whether there was anything.
    pub fn forget(&mut self, key: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|entry| entry.key != key);
        self.0.len() < before
    }

    /// How the task ended for a candidate that came in the period `came`, now that it is `now`.
    #[must_use]
    pub fn result(&self, task: &Task, came: u64, now: u64) -> Option<TaskResult> {
        let over = self.get(task)?.over.as_ref()?;
        // By today's division of time, whatever it was when this was recorded.
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

    /// How often the task has failed in this period.
    #[must_use]
    pub fn failed(&self, task: &Task, period: u64) -> u32 {
        let tries = self.get(task).and_then(|entry| entry.tries.as_ref());
        tries
            .filter(|tries| tries.period == period)
            .map_or(0, |tries| tries.failed)
    }

    /// Writes down what a run came to.
    pub fn note(
        &mut self,
        task: &Task,
        period: u64,
        outcome: &Outcome,
        token: u64,
        by: &str,
        at: &str,
    ) {
        // Before the entry is changed: of another period's failures none counts.
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

    /// Whether the run with this token is written down.
    #[must_use]
    pub fn bears(&self, task: &Task, token: u64) -> bool {
        self.get(task).is_some_and(|entry| age(entry) == token)
    }

    /// Forgets the tasks that were run the longest ago, but never this one, until what is left is
    /// not more than [`KEPT`] and fits; the keys of what was forgotten.
    ///
    /// # Errors
    /// If not even this task's own entry fits.
    pub fn fit(
        &mut self,
        task: &Task,
        fits: impl Fn(&TaskLog) -> bool,
    ) -> Result<Vec<String>, NoRoom> {
        // By tokens and not by times: those are of many clocks, and some were set.
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

    /// Whether the result of this task, however it ends, would fit: asked before it is run.
    #[must_use]
    pub fn has_room(&self, task: &Task, by: &str, fits: impl Fn(&TaskLog) -> bool) -> bool {
        // The longest that can come: a result that finds no room after the run is one that nobody hears of,
        // and the task is done again.
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

/// When an entry was written last: tokens grow with time.
fn age(entry: &Entry) -> u64 {
    let over = entry.over.as_ref().map_or(0, |over| over.token);
    let tries = entry.tries.as_ref().map_or(0, |tries| tries.token);
    over.max(tries)
}

/// The task of one instance, and what it remembers of it: in which period it came, and for which it runs.
/// The only clock in here is the store's own, as far as the store has told it.
pub(super) struct OnceTask {
    task: Task,
    clock: Mutex<TaskClock>,
}

#[derive(Default)]
struct TaskClock {
    // What the store's clock said first, in the period we came for: a result of it ends our waiting, even if
    // the next period has begun by the time we see it.
    came: Option<u64>,
    /// What it said last, and when that was.
    received: Option<(u64, Instant)>,
    // The period of the present run: fixed when it begins, because it may end in the next one.
    period: u64,
}

impl TaskClock {
    /// The store's time.
    fn now(&self) -> u64 {
        // Carried on by our clock that counts suspend: the store is not asked at every look.
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

    /// Whether it is to be done once in each period, so that the store's clock is needed.
    pub(super) fn is_periodic(&self) -> bool {
        self.task.per.is_some()
    }

    /// Whether the store's clock is needed, and has not been heard yet.
    pub(super) fn lacks_the_time(&self) -> bool {
        self.is_periodic() && self.clock().received.is_none()
    }

    /// The store's clock said so at `at`.
    pub(super) fn hear(&self, said: u64, at: Instant) {
        let mut clock = self.clock();
        clock.came.get_or_insert(self.task.period(said));
        clock.received = Some((said, at));
    }

    /// How the task ended, as far as it concerns us. Nothing can be said of periods before the
    /// store's clock was received.
    pub(super) fn result(&self, task_log: &TaskLog) -> Option<TaskResult> {
        if self.lacks_the_time() {
            return None;
        }
        let clock = self.clock();
        task_log.result(&self.task, clock.came.unwrap_or(0), clock.now())
    }

    /// Decides, under the lease, which period the run belongs to; how often it failed in it before.
    ///
    /// # Errors
    /// If its result, however it ends, would find no room: that is known before it is run.
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
        // Not one before we came: clocks of several front ends differ a little.
        clock.period = self.task.period(clock.now()).max(clock.came.unwrap_or(0));
        Ok(task_log.failed(&self.task, clock.period))
    }

    /// How often it had failed before in the present run's period.
    pub(super) fn failed(&self, task_log: &TaskLog) -> u32 {
        task_log.failed(&self.task, self.clock().period)
    }

    /// The beginning of the present run's period, for people and commands.
    pub(super) fn period(&self) -> Option<String> {
        self.task.per?;
        Some(moment(self.clock().period))
    }

    /// Whether what the run with this token came to is written down.
    pub(super) fn is_noted(&self, record: &Record) -> bool {
        record.once.bears(&self.task, record.token)
    }

    /// Asks the store's clock where it is `wanted`.
    ///
    /// # Errors
    /// Those of `time`, which returns seconds since 1970.
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

    /// Begins under the lease, by results that were read whole.
    ///
    /// # Errors
    /// Why the task cannot run here.
    pub(super) fn begin_known(
        &self,
        log: &TaskLog,
        unread: bool,
        by: &str,
    ) -> Result<u32, &'static str> {
        if unread {
            return Err(
                "its results cannot be read, so it is not known which tasks are done: 'trafficcop reset --all' has all of them run again",
            );
        }
        self.begin(log, by, TaskLog::fits).map_err(|NoRoom| NO_ROOM)
    }

    /// Notes in `record` what the run came to; not twice.
    ///
    /// # Errors
    /// Why it cannot be noted.
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

    /// Writes into what is to be the record what the run came to, and says what had to make room for it.
    /// Not twice, if an attempt before this one succeeded without our hearing of it.
    ///
    /// # Errors
    /// If there is no room.
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
            // By the store's clock where it is known: people compare it with the period it is written beside.
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

/// Seconds of the Unix epoch as people read them (RFC 3339, UTC).
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
