//! State of this instance: the supervisor's loop writes it, the server's thread reads it.
//!
//! The lock is held only to copy a few words. Whether this instance leads is not stored, but compared with the
//! clock ([`SharedStatus::snapshot`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::metrics::Metrics;
use crate::clock::Instant;
use crate::core::{Failure, Grant, HealthEvent, WorkloadEvent};
use crate::driver::Observation;
use crate::guardian::{HealthCheck, View, all_answer};
use crate::report::{EventKind, Fold, Happened};
use crate::status::Status;
use crate::util::lock;

// A process tree that lives for so long after the deadline is no fault: the kernel takes a while to end a large
// one.
const OVERDUE: Duration = Duration::from_secs(5);
// A sign of life counts for so long: frequent requests must not cause frequent checks.
const FRESH: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct SharedStatus {
    control: View,
    health_check: Vec<Arc<HealthCheck>>,
    alive_at: AtomicU64,
    /// Duration of a grant; `None` if the lock has no deadline.
    term: Option<Duration>,
    known: Mutex<Snapshot>,
    pub(super) metrics: Metrics,
}

impl SharedStatus {
    /// Creates the status of an instance that competes for `lock`, or of a `worker` on that queue.
    ///
    /// `term` is the length of a grant. `control` is the control file of the (first) guardian.
    #[must_use]
    pub(crate) fn new(
        lock: &str,
        worker: bool,
        term: Option<Duration>,
        control: View,
        health_check: Vec<Arc<HealthCheck>>,
    ) -> SharedStatus {
        let known = Snapshot {
            worker,
            ..Snapshot::default()
        };
        SharedStatus {
            control,
            health_check,
            alive_at: AtomicU64::new(0),
            term,
            known: Mutex::new(known),
            metrics: Metrics::new(lock, worker),
        }
    }

    pub(crate) fn works_on(&self, messages: usize) {
        lock(&self.known).competes = true;
        self.metrics.works_on(messages);
    }

    pub(crate) fn message(&self, outcome: &'static str, took: Option<Duration>) {
        self.metrics.message(outcome, took);
    }

    pub(crate) fn write(&self, status: &Status) {
        let status = Arc::new(status.clone());
        lock(&self.known).status = status;
    }

    pub(crate) fn take(&self, happened: &Happened<'_>) {
        let mut known = lock(&self.known);
        match *happened.observation {
            Observation::Acquired(&Ok(Grant { t0, .. }))
            | Observation::Renewed { t0, reply: Ok(()) } => {
                // From the sending of the request: the store may count from then on.
                known.lease_until = self.term.map_or(Instant::FOREVER, |term| t0 + term);
                known.confirmed = t0;
            }
            Observation::Renewed {
                reply: Err(Failure::Lost { .. } | Failure::Held(_)),
                ..
            } => known.lease_until = Instant::ZERO,
            Observation::Workload(WorkloadEvent::Health(HealthEvent::Answered { .. })) => {
                known.answered = happened.now;
            }
            _ => {}
        }
        match happened.row.event() {
            Some(EventKind::Standby | EventKind::Holding) => known.competes = true,
            Some(EventKind::Released | EventKind::Lost) => known.lease_until = Instant::ZERO,
            Some(EventKind::Starting) => (known.hung, known.answered) = (false, Instant::ZERO),
            Some(EventKind::Hung) => known.hung = true,
            Some(EventKind::TreeStuck) => known.stuck = true,
            _ => {}
        }
        drop(known);
        self.metrics.take(happened);
    }

    pub(super) async fn is_alive(&self) -> bool {
        let last = Instant::from_nanos(self.alive_at.load(Ordering::Acquire));
        let asked = Instant::now();
        if last > Instant::ZERO && asked.since(last) < FRESH {
            return true;
        }
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, all_answer(&self.health_check)).await;
        if answered.is_ok() {
            self.alive_at.store(asked.as_nanos(), Ordering::Release);
        }
        answered.is_ok()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let known = lock(&self.known).clone();
        Snapshot {
            control: self.control.read().until,
            // Last, so that a later time judges the values.
            now: Instant::now(),
            ..known
        }
    }
}

impl Fold for Arc<SharedStatus> {
    fn take(&mut self, happened: &Happened<'_>) {
        SharedStatus::take(self, happened);
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) status: Arc<Status>,
    pub(super) control: Instant,
    /// End of the lease for the store, as far as known; zero without a lease.
    pub(super) lease_until: Instant,
    /// When the last grant was requested; zero before the first.
    pub(super) confirmed: Instant,
    pub(super) competes: bool,
    pub(super) stuck: bool,
    pub(super) hung: bool,
    /// When the command last proved its health; zero before the first time.
    pub(super) answered: Instant,
    /// A worker never leads.
    pub(super) worker: bool,
    pub(super) now: Instant,
}

impl Snapshot {
    pub(super) fn leads(&self) -> bool {
        // A hung command does not lead any more, whatever its grace.
        self.status.command_pid.is_some() && self.now < self.control && !self.hung
    }

    /// Returns whether the lease is held, as the store counts.
    pub(super) fn holds(&self) -> bool {
        self.now < self.lease_until
    }

    pub(super) fn control_left(&self) -> Option<Duration> {
        left(self.control, self.now)
    }

    /// Returns how long the lease lasts without a renewal; `None` if it has no end.
    pub(super) fn lease_left(&self) -> Option<Duration> {
        left(self.lease_until, self.now)
    }

    pub(super) fn confirmed_ago(&self) -> Option<Duration> {
        (self.confirmed > Instant::ZERO).then(|| self.now.since(self.confirmed))
    }

    pub(super) fn answered_ago(&self) -> Option<Duration> {
        let is_known = self.answered > Instant::ZERO && self.status.command_pid.is_some();
        is_known.then(|| self.now.since(self.answered))
    }

    pub(super) fn fault(&self) -> Option<&'static str> {
        let runs = self.status.command_pid.is_some();
        if self.stuck {
            Some("a process of the command cannot be killed")
        } else if runs && self.control > Instant::ZERO && self.now.since(self.control) >= OVERDUE {
            Some("the command outlives its deadline")
        } else {
            None
        }
    }
}

fn left(until: Instant, now: Instant) -> Option<Duration> {
    (until != Instant::FOREVER).then(|| until.since(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SharedStatus {
        /// Returns the last status, `/status` and `/metrics`.
        pub(crate) fn pages(&self) -> (Arc<Status>, String, String) {
            let snapshot = self.snapshot();
            let page = super::super::status(&snapshot).body;
            let metrics = self.metrics.text(&snapshot);
            (snapshot.status, page, metrics)
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1000 + seconds)
    }

    fn snapshot(now: Instant, control: Instant, pid: Option<i32>) -> Snapshot {
        Snapshot {
            status: Arc::new(Status {
                state: "holding".into(),
                command_pid: pid,
                ..Status::default()
            }),
            control,
            now,
            ..Snapshot::default()
        }
    }

    #[test]
    fn leader_has_a_running_command_and_time_before_its_deadline() {
        for (now, control, pid, leads) in [
            (at(0), at(1), Some(7), true),
            (at(0), Instant::FOREVER, Some(7), true),
            (at(1), at(1), Some(7), false),
            (at(2), at(1), Some(7), false),
            (at(0), Instant::ZERO, Some(7), false),
            (at(0), at(1), None, false),
            (at(0), Instant::FOREVER, None, false),
        ] {
            let snapshot = snapshot(now, control, pid);
            assert_eq!(snapshot.leads(), leads, "{snapshot:?}");
        }
    }

    #[test]
    fn a_command_that_outlives_its_deadline_is_a_fault() {
        let fault = |now, control, pid| snapshot(now, control, pid).fault();
        assert!(fault(at(5), at(0), Some(7)).is_some());
        assert!(fault(at(4), at(0), Some(7)).is_none());
        assert!(fault(at(5), at(0), None).is_none());
        assert!(fault(at(5), Instant::FOREVER, Some(7)).is_none());
        // Its guardian is killing it, which has its own time limit.
        assert!(fault(at(5), Instant::ZERO, Some(7)).is_none());
        let mut stuck = snapshot(at(0), at(1), None);
        stuck.stuck = true;
        assert!(stuck.fault().is_some());
    }
}
