//! Looking at a lock without competing for it, and intervening in it.
//!
//! A look must never create, acquire, renew or write anything. Only [`Inspector::break_lease`] and
//! [`Inspector::forget`] write.

use std::time::Duration;

use async_trait::async_trait;

use super::once::TaskLog;
use super::record::Record;
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;

pub(super) const UNREADABLE: &str =
    "the results of its --once tasks cannot be read: 'trafficcop reset --all' forgets them";

// Time limit of a request, like a renewal's.
pub(super) const REQUEST: Duration = Duration::from_secs(5);
// Time to acquire, look, write and release, under a lease of 15 s.
pub(super) const FORGETTING: Duration = Duration::from_secs(15);

/// Looks and interventions, without competing for the lock.
#[async_trait]
pub trait Inspector: Send + Sync {
    /// Looks once.
    ///
    /// # Errors
    /// `Fatal` if this is no lock or may not be looked at, `Transient` if the state is unknown.
    async fn look(&self, give_up_at: Instant) -> Result<LockStatus, Failure>;

    /// Lists the locks whose names begin with this lock's name followed by `suffix`; if that text names a
    /// directory, the locks in it. Leaves out those without a record, unless another program leased them for ever.
    ///
    /// # Errors
    /// As [`Inspector::look`].
    async fn list(&self, suffix: &str, give_up_at: Instant) -> Result<Vec<LockStatus>, Failure>;

    /// Ends the tenure that was `seen`, and no other, after `period` seconds; `None`: at the lease's end.
    /// If the store records the break, the record names `by`.
    ///
    /// # Errors
    /// As [`Inspector::look`]. After `Transient` the lease may be broken or not.
    async fn break_lease(
        &self,
        seen: LockStatus,
        period: Option<u8>,
        by: &str,
    ) -> Result<BreakResult, Failure>;

    /// Forgets results if they are still those `seen`, and without `force` only if no instance has the lock.
    ///
    /// # Errors
    /// As [`Inspector::look`]. After `Transient` they may be forgotten or not.
    async fn forget(
        &self,
        tasks: &Tasks,
        seen: LockStatus,
        force: bool,
    ) -> Result<ResetResult, Failure>;
}

/// State of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockState {
    #[default]
    /// No such blob or file yet.
    Missing,
    /// No instance has it.
    Free,
    /// An instance or another program has it.
    Held,
    /// The broken lease still keeps others out.
    Breaking,
}

/// Result of a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockStatus {
    /// `CONTAINER/NAME`, or the path.
    pub name: String,
    /// Address of the lock, without a secret.
    pub lock: String,
    /// State.
    pub state: LockState,
    /// Last record. It may be an earlier holder's: a new holder writes its own later, another program writes none.
    pub record: Option<Record>,
    /// Whether another program has an endless lease.
    pub foreign: bool,
    /// Bytes of data in a lock's blob, which should have none.
    pub data: u64,
    /// The lock's problem, in one line.
    pub problem: Option<String>,
    /// Whether some results are unreadable.
    pub unreadable: bool,
    /// Text that changes with the record: a blob's ETag.
    pub tag: Option<String>,
}

impl LockStatus {
    /// Returns the results of one-time tasks.
    #[must_use]
    pub fn task_log(&self) -> TaskLog {
        let record = self.record.as_ref();
        record.map_or(TaskLog::EMPTY, |record| record.once.clone())
    }
}

/// Result of a break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakResult {
    /// The lease is broken. It ends after at most this time, and keeps others out until then.
    Within(Duration),
    /// Nothing was broken: the lease had ended.
    Free,
    /// The lock was no longer as `seen`.
    Changed,
    /// The holder wrote meanwhile: another attempt may succeed.
    Overtaken,
}

/// Choice of results to forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tasks {
    /// Those of one key.
    Of(String),
    /// All, including unreadable text in their place.
    All,
}

impl Tasks {
    /// Returns the results of `found` that remain after the reset; `unreadable`: some cannot be read.
    pub(super) fn remaining_of(
        &self,
        found: &TaskLog,
        unreadable: bool,
        shown: &TaskLog,
    ) -> Result<TaskLog, ResetResult> {
        let mut left = found.clone();
        // A person agreed to what was shown. Text that became unreadable since may hold the named key: only a
        // reset of all forgets it.
        if !self.are_same(shown, found) || unreadable && *self != Tasks::All {
            return Err(ResetResult::Changed);
        }
        let known = match self {
            Tasks::Of(key) => left.forget(key),
            Tasks::All => std::mem::take(&mut left) != TaskLog::EMPTY,
        };
        if known || unreadable {
            Ok(left)
        } else {
            Err(ResetResult::Nothing)
        }
    }

    fn are_same(&self, one: &TaskLog, other: &TaskLog) -> bool {
        let of = |task_log: &TaskLog| match self {
            Tasks::Of(key) => {
                let entries = task_log.entries().iter();
                entries.filter(|entry| entry.key == *key).cloned().collect()
            }
            Tasks::All => task_log.entries().to_vec(),
        };
        of(one) == of(other)
    }
}

/// Result of forgetting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetResult {
    /// The results are forgotten.
    Done,
    /// An instance has the lock.
    Held,
    /// The results are not those shown.
    Changed,
    /// There are no such results.
    Nothing,
}
