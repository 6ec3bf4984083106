//! What can be seen of a lock without competing for it, and how others intervene.
//!
//! [`Inspector`] is implemented by each store and used by the commands. Nobody who looks may create, acquire,
//! renew or write anything: a lock that is looked at must not notice. Only what is said to
//! [`Tasks`] is written, under the lock itself.

use std::time::Duration;

use async_trait::async_trait;

use super::once::TaskLog;
use super::record::Record;
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;

pub(super) const UNREAD: &str =
    "its results of --once cannot be read: 'trafficcop reset --all' forgets them";

// How long one request of an intervention may take: as long as one of a renewal.
pub(super) const REQUEST: Duration = Duration::from_secs(5);
// How long forgetting may take: acquire, look, write and release, under a lease of 15 s.
pub(super) const FORGETTING: Duration = Duration::from_secs(15);

/// A lock as those see it who do not compete for it.
#[async_trait]
pub trait Inspector: Send + Sync {
    /// The lock's address, without a secret.
    fn lock(&self) -> String;

    /// What it means to intervene here.
    fn manner(&self) -> Manner;

    /// Whether it can hang: then what was asked once is not asked a second time, because it would wait
    /// behind the first.
    fn hangs(&self) -> bool {
        false
    }

    /// Looks once.
    ///
    /// # Errors
    /// `Fatal` where it is no lock or may not be looked at, `Transient` where it is not known.
    async fn look(&self, give_up_at: Instant) -> Result<LockStatus, Failure>;

    /// The locks whose names are the lock's own followed by `suffix` and more, without those that bear no
    /// record of ours; where the name is that of a directory and the suffix is empty, those in it.
    ///
    /// # Errors
    /// As [`Inspector::look`].
    async fn list(&self, suffix: &str, give_up_at: Instant) -> Result<Vec<LockStatus>, Failure>;

    /// Ends the tenure that was `seen`, and no other: others can have control after `period` seconds, or
    /// without one when the lease ends. `by` is named in the record, where it has to be written.
    ///
    /// # Errors
    /// As [`Inspector::look`]. After `Transient` it may be broken or not.
    async fn break_lease(
        &self,
        seen: LockStatus,
        period: Option<u8>,
        by: &str,
    ) -> Result<Broken, Failure>;

    /// Forgets these results, if they are still what was `seen`, and nobody has the lock; with
    /// `force` also while somebody has it.
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

/// What it means to intervene in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// The shortest time in seconds, but for none, after which a lease can be broken; `None`: the lock is
    /// the kernel's, and cannot be broken at all.
    pub shortest_break: Option<u8>,
    /// What is forgotten by force is forgotten under a lease of our own, so the holder's is broken first.
    pub force_breaks: bool,
}

/// Whether somebody has the lock, as its store says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockState {
    #[default]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Another program has the lease, without an end: the record is of the last holder.
    pub foreign: bool,
    /// Bytes of data in a lock's blob, which should have none.
    pub data: u64,
    /// What is wrong with the record or the place: one line.
    pub flaw: Option<String>,
    /// There are results of tasks that are to be done once, and they cannot be read.
    pub unread: bool,
    /// Changes when the record does (a blob's ETag).
    pub version: Option<String>,
}

impl LockStatus {
    /// What was seen of the results of tasks that are to be done once.
    #[must_use]
    pub fn task_log(&self) -> TaskLog {
        let record = self.record.as_ref();
        record.map_or(TaskLog::EMPTY, |record| record.once.clone())
    }
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
    /// What is to stand in the record instead of what was `found` there; `unread`: there is more, that
    /// cannot be read.
    ///
    /// # Errors
    /// How forgetting went, where nothing is to be written.
    pub(super) fn left_out_of(
        &self,
        found: &TaskLog,
        unread: bool,
        shown: &TaskLog,
    ) -> Result<TaskLog, ResetResult> {
        // Compared with what was shown, because a person said yes to that: a result that came since is news.
        let mut left = found.clone();
        // What cannot be read may be just what one key names, so it goes with all or not at all.
        if !self.are_same(shown, found) || unread && *self != Tasks::All {
            return Err(ResetResult::Changed);
        }
        let known = match self {
            Tasks::Of(key) => left.forget(key),
            Tasks::All => std::mem::take(&mut left) != TaskLog::EMPTY,
        };
        if known || unread {
            Ok(left)
        } else {
            Err(ResetResult::Nothing)
        }
    }

    /// Whether what is to be forgotten is the same in both.
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
