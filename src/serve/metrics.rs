//! The metrics of `/metrics`: counters since the start, and gauges that are set on request.
//!
//! All labels are known beforehand, so that counters start at zero: otherwise an alert would miss the first loss
//! of a lease.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::shared_status::Snapshot;
use crate::core::{Cause, Exit, Failure, HandOverReason, HealthEvent, Notice, WorkloadEvent};
use crate::driver::Observation;
use crate::report::{EventKind, Happened};
use crate::status::{REFUSED, UNFIT};
use crate::util::lock;

pub(super) const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Content type of the older format.
pub(super) const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Drops what the older format does not know, and declares counters and infos by the names of their samples.
pub(super) fn plain(text: &str) -> String {
    let declared = |kind: &str| -> Vec<&str> {
        text.lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(kind))
            .collect()
    };
    let (counters, infos) = (declared(" counter"), declared(" info"));
    let mut plain = String::with_capacity(text.len());
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let line = match words[..] {
            ["#", "EOF"] | ["#", "UNIT", ..] => continue,
            ["#", what, name, rest] if counters.contains(&name) => {
                format!("# {what} {name}_total {rest}")
            }
            ["#", "TYPE", name, "info"] => format!("# TYPE {name}_info gauge"),
            ["#", what, name, rest] if infos.contains(&name) => {
                format!("# {what} {name}_info {rest}")
            }
            _ => line.to_owned(),
        };
        plain.push_str(&line);
        plain.push('\n');
    }
    plain
}

type One = [(&'static str, &'static str); 1];
type Counters = Family<One, Counter>;
type Seconds = Gauge<f64, AtomicU64>;
/// Gauge that is absent if its value has no end.
type MaybeGauge = Family<[(&'static str, &'static str); 0], Gauge>;
type MaybeSeconds = Family<[(&'static str, &'static str); 0], Seconds>;

const ACQUIRE: &[&str] = &["acquired", "held", "failure"];
const RENEW: &[&str] = &["success", "failure", "lost"];
const LOSS: &[&str] = &["doubt", "lost", "guardian"];
const DRAIN: &[&str] = &[
    "stop",
    "hand_over",
    "cordon",
    "hung",
    "left_behind",
    "doubt",
    "lost",
    "guardian",
];
const OUTCOME: &[&str] = &[
    "completed",
    "retried",
    "dead-lettered",
    "failed",
    "released",
    "expired",
    "lost",
    "unconfirmed",
    "unsettled",
];
/// From a command that does nothing to one that runs for a day, in seconds.
const RUNS: [f64; 12] = [
    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0,
];
const EXIT: &[&str] = &["success", "failure", "signal"];
/// States of the status file; others are added when they occur.
const STATES: &[&str] = &[
    "starting",
    "standby",
    "holding",
    "resting",
    "draining",
    "released",
    "cooling down",
    "cordoned",
    UNFIT,
    REFUSED,
];
/// From an answer on the same machine to the longest attempt, in seconds.
const LATENCIES: [f64; 11] = [
    0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];

/// Makes and registers all metrics, in the order of the page.
macro_rules! metrics {
    (all { $($field:ident: $type:ty = $zero:expr, $name:literal $(in $unit:ident)?, $help:literal;)* }
     workers { $($of:ident: $more:ty = $none:expr, $called:literal $(in $second:ident)?, $about:literal;)* }) => {
        pub(super) struct Metrics {
            registry: Registry,
            draining: Mutex<Option<&'static str>>,
            $($field: $type,)*
            $($of: $more,)*
        }

        impl Metrics {
            /// Creates the metrics; a worker's `lock` is its queue.
            pub(super) fn new(lock: &str, worker: bool) -> Metrics {
                // On every metric: one job scrapes several instances of one machine.
                let label = [("lock".into(), lock.to_owned().into())];
                let mut all = Registry::with_prefix_and_labels("trafficcop", label.into_iter());
                let version = [("version", env!("CARGO_PKG_VERSION"))];
                all.register("build", "Which trafficcop this is", Info::new(version));
                $(let $field = $zero;
                metrics!(@register all $field $name $help $($unit)?);)*
                $(let $of = $none;
                if worker {
                    metrics!(@register all $of $called $about $($second)?);
                })*
                Metrics { registry: all, draining: Mutex::default(), $($field,)* $($of,)* }
            }
        }
    };
    (@register $all:ident $field:ident $name:literal $help:literal) => {
        $all.register($name, $help, $field.clone())
    };
    (@register $all:ident $field:ident $name:literal $help:literal seconds) => {
        $all.register_with_unit($name, $help, Unit::Seconds, $field.clone())
    };
}

metrics! {
    all {
        leader: Gauge = Gauge::default(), "leader",
            "1 while the command runs and no other instance can have been given control, as /leader";
        state: Family<[(&'static str, String); 1], Gauge> = Family::default(), "state",
            "1 for what the instance does, as in the status file";
        token: Gauge = Gauge::default(), "token", "The fencing token of the present tenure, or of the last";
        control_left: MaybeSeconds = Family::default(), "control_remaining" in seconds,
            "Until the command is killed if the lease is not renewed; 0 without control, \
             missing where the lock has no deadline";
        lease_held: Gauge = Gauge::default(), "lease_held",
            "1 while this instance has the lease, whether or not a command runs";
        lease_left: MaybeSeconds = Family::default(), "lease_remaining" in seconds,
            "Until the lease ends if it is not renewed; 0 without one, missing where the lock has no deadline";
        doorbell: Gauge = Gauge::default(), "doorbell_heard",
            "1 while a standby hears the holder's doorbell (--doorbell)";
        fit: Gauge = Gauge::default(), "fit", "1 unless --if fails on this machine";
        command_running: Gauge = Gauge::default(), "command_running", "1 while the command's main process runs";
        health: MaybeGauge = Family::default(), "health",
            "1 while the last thing heard of the command's health was good, 0 if it was not; \
             missing before the first (--watchdog, --health)";
        health_not_asked: Counter = Counter::default(), "health_not_asked",
            "Health checks that could not begin because this machine had no process, \
             memory or descriptor for them; they are no failures";
        health_failures: Counter = Counter::default(), "health_failures",
            "Health checks that failed, and watchdogs that were not fed";
        health_answered: MaybeSeconds = Family::default(), "health_answer_age" in seconds,
            "Since the command was last heard of to work; missing before the first time";
        acquire_attempts: Counters = family("result", ACQUIRE), "acquire_attempts",
            "Attempts to acquire the lease that ended: it was free, held by another, or the store did not do it";
        acquisitions: Counter = Counter::default(), "acquisitions",
            "Tenures begun: how often a standby became the holder";
        renew_attempts: Counters = family("result", RENEW), "renew_attempts", "Attempts to renew the lease that ended";
        renew_duration: Histogram = Histogram::new(LATENCIES), "renew_duration" in seconds,
            "How long attempts to renew took, whatever became of them";
        losses: Counters = family("cause", LOSS), "lease_losses",
            "Commands ended because control was in doubt, lost, or no longer guarded";
        left_to_run_out: Counter = Counter::default(), "leases_left_to_run_out",
            "Leases that were not given back, so that a standby had to wait for their end";
        drains: Counters = family("cause", DRAIN), "drains",
            "Drains begun: the command, or what it left behind, was asked to end";
        kills: Counters = family("cause", DRAIN), "kills", "Drains in which the command was ended by SIGKILL";
        starts: Counter = Counter::default(), "command_starts", "Commands started";
        restarts: Counter = Counter::default(), "command_restarts", "Commands started again within a tenure";
        exits: Counters = family("result", EXIT), "command_exits", "Ends of the command's main process";
        overlaps: Counter = Counter::default(), "overlaps",
            "Tenures after which an overlap with another holder cannot be excluded";
        requests: Family<[(&'static str, String); 2], Counter> = Family::default(), "http_requests",
            "Requests answered";
    }
    workers {
        messages: Counters = family("outcome", OUTCOME), "messages",
            "Messages that were done with, by what became of them";
        message_duration: Histogram = Histogram::new(RUNS), "message_duration" in seconds,
            "How long the commands of messages ran";
        in_flight: Gauge = Gauge::default(), "messages_in_flight", "Messages that are being worked on";
    }
}

fn family(label: &'static str, values: &[&'static str]) -> Counters {
    let family = Counters::default();
    for value in values {
        drop(family.get_or_create(&[(label, *value)]));
    }
    family
}

fn count(family: &Counters, label: &'static str, value: &'static str) {
    family.get_or_create(&[(label, value)]).inc();
}

impl Metrics {
    pub(super) fn message(&self, outcome: &'static str, took: Option<Duration>) {
        count(&self.messages, "outcome", outcome);
        if let Some(took) = took {
            self.message_duration.observe(took.as_secs_f64());
        }
    }

    pub(super) fn works_on(&self, messages: usize) {
        self.in_flight
            .set(i64::try_from(messages).unwrap_or(i64::MAX));
    }

    pub(super) fn take(&self, happened: &Happened<'_>) {
        if let Some(event) = happened.row.event() {
            self.event(event);
        }
        match *happened.observation {
            Observation::Notice {
                notice: Notice::Draining(cause),
                ..
            } => {
                let cause = label(cause);
                *lock(&self.draining) = Some(cause);
                count(&self.drains, "cause", cause);
                // A loss, too: people alert on losses, and count drains.
                if LOSS.contains(&cause) {
                    count(&self.losses, "cause", cause);
                }
            }
            Observation::Workload(WorkloadEvent::Exited(exit)) => {
                let result = match exit {
                    Exit::Code(0) => "success",
                    Exit::Code(_) => "failure",
                    Exit::Signal(_) => "signal",
                };
                count(&self.exits, "result", result);
                // Outside of a drain the SIGKILL is not trafficcop's; mostly the kernel is out of memory.
                if let (Exit::Signal(libc::SIGKILL), Some(cause)) = (exit, *lock(&self.draining)) {
                    count(&self.kills, "cause", cause);
                }
            }
            Observation::Workload(WorkloadEvent::Health(HealthEvent::NotAsked { .. })) => {
                self.health_not_asked.inc();
            }
            Observation::Rang(ring) => drop(self.doorbell.set(ring.is_alive().into())),
            Observation::Acquired(reply) => {
                let result = match reply {
                    Ok(_) => "acquired",
                    Err(Failure::Held(_)) => "held",
                    // No label from the start: it comes only with --once, with the last attempt.
                    Err(Failure::AlreadyDone(_)) => "over",
                    Err(_) => "failure",
                };
                count(&self.acquire_attempts, "result", result);
            }
            Observation::Renewed { t0, reply } => {
                let result = match reply {
                    Ok(()) => "success",
                    Err(Failure::Lost { .. } | Failure::Held(_)) => "lost",
                    Err(_) => "failure",
                };
                count(&self.renew_attempts, "result", result);
                let took = happened.now.since(t0);
                self.renew_duration.observe(took.as_secs_f64());
            }
            _ => {}
        }
    }

    fn event(&self, event: EventKind) {
        if let EventKind::Holding = event {
            self.doorbell.set(0);
        }
        if let EventKind::Holding | EventKind::Restarting = event {
            *lock(&self.draining) = None;
        }
        let counter = match event {
            EventKind::Holding => &self.acquisitions,
            EventKind::CommandStarted => &self.starts,
            EventKind::Restarting => &self.restarts,
            EventKind::Unhealthy | EventKind::Hung => &self.health_failures,
            EventKind::Overlap => &self.overlaps,
            EventKind::LeftToRunOut => &self.left_to_run_out,
            _ => return,
        };
        counter.inc();
    }

    /// `path` is a page's name, or [`super::OTHER`].
    pub(super) fn requested(&self, path: &'static str, code: u16) {
        let labels = [("path", path.to_owned()), ("code", code.to_string())];
        self.requests.get_or_create(&labels).inc();
    }

    pub(super) fn text(&self, snapshot: &Snapshot) -> String {
        self.leader.set(i64::from(snapshot.leads()));
        self.lease_held.set(i64::from(snapshot.holds()));
        let runs = snapshot.status.command_pid.is_some();
        self.command_running.set(i64::from(runs));
        self.fit.set(i64::from(snapshot.status.state != UNFIT));
        let token = snapshot.status.token.unwrap_or(0);
        self.token.set(i64::try_from(token).unwrap_or(i64::MAX));
        set(&self.control_left, snapshot.control_left());
        set(&self.lease_left, snapshot.lease_left());
        set(&self.health_answered, snapshot.answered_ago());
        self.health.clear();
        if let Some(health) = &snapshot.status.health {
            let is_good = i64::from(health == "ok");
            self.health.get_or_create(&[]).set(is_good);
        }
        let now = &*snapshot.status.state;
        // Also removes a state that was added.
        self.state.clear();
        for state in STATES.iter().copied().chain([now]) {
            let is = [("state", state.to_owned())];
            self.state.get_or_create(&is).set(i64::from(state == now));
        }
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn set(gauge: &MaybeSeconds, span: Option<Duration>) {
    match span {
        Some(span) => drop(gauge.get_or_create(&[]).set(span.as_secs_f64())),
        // Zero would cause an alarm, and a large number would be wrong.
        None => gauge.clear(),
    }
}

fn label(cause: &Cause) -> &'static str {
    match cause {
        Cause::Stopped(_) => "stop",
        Cause::HandOver => "hand_over",
        Cause::Cordoned { .. } => "cordon",
        Cause::GivenUp(HandOverReason::Hung(_)) => "hung",
        Cause::Doubt { .. } => "doubt",
        Cause::Lost { .. } => "lost",
        Cause::GuardianLost => "guardian",
        // The command ended by itself: no other cause is left.
        _ => "left_behind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_format_declares_the_names_of_its_samples() {
        let newer = "# HELP a_renewals How often.\n# TYPE a_renewals counter\na_renewals_total 3\n\
                     # HELP a_left_seconds Left.\n# TYPE a_left_seconds gauge\n# UNIT a_left_seconds seconds\n\
                     a_left_seconds 1.5\n# TYPE a_build info\na_build_info{v=\"1\"} 1\n# EOF\n";
        assert_eq!(
            plain(newer),
            "# HELP a_renewals_total How often.\n# TYPE a_renewals_total counter\na_renewals_total 3\n\
             # HELP a_left_seconds Left.\n# TYPE a_left_seconds gauge\n\
             a_left_seconds 1.5\n# TYPE a_build_info gauge\na_build_info{v=\"1\"} 1\n"
        );
    }
}
