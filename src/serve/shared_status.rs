//! What is known of this instance, for those who ask: written by the supervisor's loop, read by
//! the server's thread.
//!
//! Nobody waits here: a lock is held for as long as it takes to copy a few words. Whether we lead is
//! not written down at all; it is a comparison of the deadline with the clock ([`SharedStatus::snapshot`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::metrics::Metrics;
use crate::clock::Instant;
use crate::core::{Failure, HealthEvent, Notice, WorkloadEvent};
use crate::driver::{Observation, Observer};
use crate::guardian::{HealthCheck, View, all_answer};
use crate::status::Status;
use crate::util::lock;

// How long after its deadline a tree may be seen alive before that is a fault of ours: the guardian
// kills at the deadline, and how long a great tree takes to die is the kernel's affair.
const OVERDUE: Duration = Duration::from_secs(5);
// How long a sign of life counts: however often we are asked, nobody is bothered more often.
const FRESH: Duration = Duration::from_secs(1);
// How long supervisor and guardian may take for one, on a machine that has better things to do.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of this instance.
pub(crate) struct SharedStatus {
    /// The deadline, as guardian and command have it: not ours to write.
    control: View,
    /// Those of every guardian.
    health_check: Vec<Arc<HealthCheck>>,
    /// When the last sign of life was asked for that came.
    alive_at: AtomicU64,
    /// How long a grant lasts; `None` where the lock has no deadline.
    term: Option<Duration>,
    known: Mutex<Snapshot>,
    pub(super) metrics: Metrics,
}

impl SharedStatus {
    /// The status of an instance that competes for `lock`, whose grants last for `term`, or of a
    /// `worker` on the messages of this queue; the deadline is in `control`, the control file of its
    /// (first) guardian.
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

    /// So many messages are being worked on.
    pub(crate) fn works_on(&self, messages: usize) {
        lock(&self.known).competes = true;
        self.metrics.works_on(messages);
    }

    /// A message was done with: what became of it, and how long its command ran.
    pub(crate) fn message(&self, outcome: &'static str, took: Option<Duration>) {
        self.metrics.message(outcome, took);
    }

    /// What the status file says now.
    pub(crate) fn write(&self, status: &Status) {
        let status = Arc::new(status.clone());
        lock(&self.known).status = status;
    }

    /// What happens, for who asks later.
    pub(crate) fn observe(&self, now: Instant, observation: &Observation<'_>) {
        let mut known = lock(&self.known);
        let confirmed = match *observation {
            Observation::Acquired(Ok(grant)) => Some(grant.t0),
            Observation::Renewed { t0, reply: Ok(()) } => Some(t0),
            _ => None,
        };
        if let Some(t0) = confirmed {
            // From when the request was sent, as everywhere: the store may count from then on.
            known.lease_until = self.term.map_or(Instant::FOREVER, |term| t0 + term);
            known.confirmed = t0;
        }
        match *observation {
            Observation::Notice {
                notice: Notice::StandingBy(_) | Notice::InControl { .. },
                ..
            } => known.competes = true,
            Observation::Notice {
                notice: Notice::Released | Notice::FoundLost { .. },
                ..
            }
            | Observation::Renewed {
                reply: Err(Failure::Lost { .. } | Failure::Held(_)),
                ..
            } => known.lease_until = Instant::ZERO,
            Observation::Workload(WorkloadEvent::TreeStuck) => known.stuck = true,
            Observation::Workload(WorkloadEvent::Health(HealthEvent::Answered { .. })) => {
                known.answered = now;
            }
            Observation::Workload(WorkloadEvent::Health(HealthEvent::Hung(_))) => known.hung = true,
            Observation::Starts { .. } => (known.hung, known.answered) = (false, Instant::ZERO),
            _ => {}
        }
        drop(known);
        self.metrics.observe(now, observation);
    }

    /// Whether supervisor and guardians answer.
    pub(super) async fn is_alive(&self) -> bool {
        let last = Instant::from_nanos(self.alive_at.load(Ordering::Acquire));
        let asked = Instant::now();
        // Or a probe every millisecond would keep supervisor and guardian busy with proofs of life.
        if last > Instant::ZERO && asked.since(last) < FRESH {
            return true;
        }
        let answered = tokio::time::timeout(PATIENCE, all_answer(&self.health_check)).await;
        if answered.is_ok() {
            self.alive_at.store(asked.as_nanos(), Ordering::Release);
        }
        answered.is_ok()
    }

    /// Everything as it is at this moment.
    pub(super) fn snapshot(&self) -> Snapshot {
        let known = lock(&self.known).clone();
        Snapshot {
            control: self.control.read().until,
            // The clock goes last: what was true when it was read is judged by a later time.
            now: Instant::now(),
            ..known
        }
    }
}

impl Observer for Arc<SharedStatus> {
    fn observe(&mut self, now: Instant, observation: &Observation<'_>) {
        SharedStatus::observe(self, now, observation);
    }
}

/// What was seen at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) status: Arc<Status>,
    /// Until when the command may believe in its control.
    pub(super) control: Instant,
    /// When the lease ends for the store, as far as we can know; zero without one.
    pub(super) lease_until: Instant,
    /// When the last successful acquire or renewal was sent; zero before the first.
    pub(super) confirmed: Instant,
    /// The store has answered: we stand by, or have stood by or been in control.
    pub(super) competes: bool,
    /// The tree could not be killed.
    pub(super) stuck: bool,
    /// The command does not work any more, and is to end.
    pub(super) hung: bool,
    /// When the command was last heard of to work; zero before the first time.
    pub(super) answered: Instant,
    /// It is of a worker, which leads nobody.
    pub(super) worker: bool,
    pub(super) now: Instant,
}

impl Snapshot {
    /// Whether we lead: the command runs, and nobody else can have been given control.
    pub(super) fn leads(&self) -> bool {
        // One that hangs does not lead any more, whatever the grace is that it has to end.
        self.status.command_pid.is_some() && self.now < self.control && !self.hung
    }

    /// Whether the lease is ours as far as the store is concerned.
    pub(super) fn holds(&self) -> bool {
        self.now < self.lease_until
    }

    /// For how long control is certain; `None` where the lock has no deadline.
    pub(super) fn control_left(&self) -> Option<Duration> {
        left(self.control, self.now)
    }

    /// For how long the lease lasts if it is not renewed; `None` where it has no end.
    pub(super) fn lease_left(&self) -> Option<Duration> {
        left(self.lease_until, self.now)
    }

    /// How long ago the request was sent that obtained or renewed the lease last.
    pub(super) fn confirmed_ago(&self) -> Option<Duration> {
        (self.confirmed > Instant::ZERO).then(|| self.now.since(self.confirmed))
    }

    /// How long ago the command was last heard of to work, while it runs.
    pub(super) fn answered_ago(&self) -> Option<Duration> {
        let is_known = self.answered > Instant::ZERO && self.status.command_pid.is_some();
        is_known.then(|| self.now.since(self.answered))
    }

    /// What is wrong with the processes, if something is.
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

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1000 + seconds)
    }

    fn snapshot(now: Instant, control: Instant, pid: Option<i32>) -> Snapshot {
        Snapshot {
            status: Arc::new(Status {
                // A flag that nobody may believe.
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
    fn who_leads_has_a_command_that_runs_and_time_ahead() {
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
        // Being killed by its guardian: that has a limit of its own.
        assert!(fault(at(5), Instant::ZERO, Some(7)).is_none());
        let mut stuck = snapshot(at(0), at(1), None);
        stuck.stuck = true;
        assert!(stuck.fault().is_some());
    }
}
