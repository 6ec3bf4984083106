//! [`Observation`] and [`Observer`]: events of an instance, and their receivers.

use crate::clock::Instant;
use crate::core::{Failure, Grant, Notice, Ring, WorkloadEvent};

/// Receiver of observations: the log, a file, a service manager, a watch channel. It must neither wait nor decide
/// anything.
pub trait Observer: Send {
    /// Takes an observation.
    fn observe(&mut self, now: Instant, observation: &Observation<'_>);
}

/// Event of an instance. All but the first and the last come from [`drive`](super::drive).
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// The competition is about to begin.
    Begins,
    /// A change of state in the core.
    Notice {
        /// The change.
        notice: &'a Notice,
        /// Name of the lock; with slots each tenure has another one.
        lock: &'a str,
    },
    /// A standby heard the holder's doorbell.
    Rang(Ring),
    /// An attempt to acquire ended.
    Acquired(&'a Result<Grant, Failure>),
    /// The workload starts.
    Starts {
        /// When it is killed without further news of the lease.
        kill_at: Instant,
        /// When the lease expires then ([`Instant::FOREVER`]: never).
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
        /// When it is killed without further news of the lease.
        kill_at: Instant,
        /// When the lease expires then.
        expires: Instant,
    },
    /// The workload is told to end.
    Drains {
        /// When it is killed at the latest.
        kill_at: Instant,
    },
    /// An event of the tree, from the guardian.
    Workload(&'a WorkloadEvent),
    /// The instance got a stop request, or is about to end.
    Stops,
    /// The end.
    Done {
        /// The reason.
        cause: &'a str,
        /// An overlap with another holder cannot be excluded.
        overlap: bool,
        /// Exit status of trafficcop.
        exit: i32,
    },
}
