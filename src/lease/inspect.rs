//! What can be seen of a lock without competing for it.
//!
//! Made by the inspectors of the stores, read by the verbs. Nobody who looks may create, acquire,
//! renew or write anything: a lock that is looked at must not notice. Only what is said to
//! [`Tasks`] is written, under the lock itself.

use std::time::Duration;

use super::once::TaskLog;
use super::record::Record;

/// The flaw of a record whose results cannot be read.
pub(super) const UNREAD: &str =
    "its results of --once cannot be read: 'trafficcop reset --all' forgets them";

/// Whether somebody has the lock, as its store says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockState {
    /// There is no such blob or file yet: the first who competes makes it.
    Missing,
    /// Nobody.
    Free,
    /// Somebody.
    Held,
    /// Somebody broke the lease; it still keeps others out.
    Breaking,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockStatus {
    /// A short name: `CONTAINER/NAME`, or the path.
    pub name: String,
    /// The lock's address, without a secret: what `TRAFFICCOP_LOCK` says.
    pub lock: String,
    /// Whether somebody has it.
    pub state: LockState,
    /// The record that stands with it: of the holder, or of the last one. It only tells; the state
    /// is the store's. A holder that began this moment, or a lease that another program took, has
    /// not written one.
    pub record: Option<Record>,
    /// What is wrong with the record or the place: one line.
    pub flaw: Option<String>,
    /// There are results of tasks that are to be done once, and they cannot be read.
    pub unread: bool,
    /// Changes when the record does (a blob's ETag).
    pub version: Option<String>,
}

/// How a break went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The lease keeps others out for so long still.
    Within(Duration),
    /// Nobody has a lease.
    Free,
    /// It is not as it was shown: look again.
    Changed,
    /// Its holder wrote meanwhile, and nothing was broken: to be asked again.
    Overtaken,
}

/// Which results of tasks that are to be done once are to be forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tasks {
    /// Those of this key.
    Of(String),
    /// All, and what stands in their place and cannot be read.
    All,
}

impl Tasks {
    /// Forgets them; whether there was anything.
    pub(super) fn leave(&self, task_log: &mut TaskLog) -> bool {
        match self {
            Tasks::Of(key) => task_log.forget(key),
            Tasks::All => std::mem::take(task_log) != TaskLog::EMPTY,
        }
    }

    /// Whether what is to be forgotten is the same in both.
    pub(super) fn are_same(&self, one: &TaskLog, other: &TaskLog) -> bool {
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

/// How forgetting went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetResult {
    /// It is forgotten.
    Done,
    /// Somebody has the lock: nothing was changed.
    Held,
    /// It is not what was shown any more: nothing was changed.
    Changed,
    /// There is nothing of the kind any more.
    Nothing,
}
