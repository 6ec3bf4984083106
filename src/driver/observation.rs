//! [`Observation`] and [`Observer`]: events of an instance, and their receivers.

use crate::clock::Instant;
use crate::core::{Failure, Grant, Notice, Ring, WorkloadEvent};

/// Receiver of observations, which must neither wait nor decide anything.
pub trait Observer: Send {
    /// Takes an observation.
    fn observe(&mut self, now: Instant, observation: &Observation<'_>);
}

/// Event of an instance.
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// The competition is about to begin.
    Begins,
    /// A change of state in the core.
    Notice {
        /// The change.
        notice: &'a Notice,
        /// Name of the lock, or of the tenure's slot.
        lock: &'a str,
    },
    /// A standby heard the holder's doorbell.
    Rang(Ring),
    /// An attempt to acquire ended.
    Acquired(&'a Result<Grant, Failure>),
    /// The workload starts.
    Starts {
        /// When it is killed without further news.
        kill_at: Instant,
        /// When the lease expires ([`Instant::FOREVER`]: never).
        expires: Instant,
        /// Number of the lock's slot.
        slot: u32,
    },
    /// An attempt to renew ended.
    Renewed {
        /// When it was sent.
        t0: Instant,
        /// The result.
        reply: &'a Result<(), Failure>,
    },
    /// The workload's deadline moved.
    Extended {
        /// New time of its kill.
        kill_at: Instant,
        /// New end of the lease.
        expires: Instant,
    },
    /// The workload is told to end.
    Drains {
        /// Latest time of its kill.
        kill_at: Instant,
    },
    /// An event of the tree, from the guardian.
    Workload(&'a WorkloadEvent),
    /// A stop was requested, or the end is near.
    Stops,
    /// The end.
    Done {
        /// The reason.
        cause: &'a str,
        /// Whether an overlap cannot be excluded.
        overlap: bool,
        /// Exit status of trafficcop.
        exit: i32,
    },
}
