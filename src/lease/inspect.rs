//! What can be seen of a lock without competing for it.
//!
//! Made by the inspectors of the stores, read by the verbs. Nobody who looks may create, acquire,
//! renew or write anything: a lock that is looked at must not notice.

use super::record::Record;

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
pub struct Sighting {
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
    /// Changes when the record does (a blob's ETag).
    pub version: Option<String>,
}
