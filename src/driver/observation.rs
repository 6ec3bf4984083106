//! [`Observation`] and [`Observer`]: what happened, and who is told.
//!
//! Said by the driver, and by whoever lets it work. Nothing is decided by it.

use crate::clock::Instant;
use crate::core::{Failure, Grant, Notice, Ring, WorkloadEvent};

/// Who is told what happens: the log, a file, a service manager, a watch channel. It never waits, and
/// nothing is decided by it.
pub trait Observer: Send {
    /// This happened.
    fn observe(&mut self, now: Instant, observation: &Observation<'_>);
}

/// What happened, for those who are told. All but the first and the last comes from [`drive`](super::drive).
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// The competition is about to begin.
    Begins,
    /// A change of state, as the core puts it.
    Notice {
        /// The change.
        notice: &'a Notice,
        /// The lock's name; with slots it is another one in every tenure.
        lock: &'a str,
    },
    /// While standing by: the holder's doorbell was heard.
    Rang(Ring),
    /// An attempt to acquire ended.
    Acquired(&'a Result<Grant, Failure>),
    /// The workload is started.
    Starts {
        /// When it is killed if nothing is heard of the lease.
        kill_at: Instant,
        /// When the lease runs out then ([`Instant::FOREVER`]: it has no end).
        expires: Instant,
        /// The number of the lock's slot.
        slot: u32,
    },
    /// An attempt to renew ended.
    Renewed {
        /// When it was sent.
        t0: Instant,
        /// What came of it.
        reply: &'a Result<(), Failure>,
    },
    /// The workload's deadline has moved.
    Extended {
        /// When it is killed if nothing more is heard of the lease.
        kill_at: Instant,
        /// When the lease runs out then.
        expires: Instant,
    },
    /// The workload is asked to end.
    Drains {
        /// When it is killed at the latest.
        kill_at: Instant,
    },
    /// Something of the tree, as the guardian puts it.
    Workload(&'a WorkloadEvent),
    /// We were asked to stop, or are about to end.
    Stops,
    /// The end.
    Done {
        /// Why.
        cause: &'a str,
        /// An overlap with another holder cannot be excluded.
        overlap: bool,
        /// Our exit status.
        exit: i32,
    },
}
