//! Tests of the state machine in virtual time.

mod behaviour;
mod condition;
mod cordon;
mod endings;
mod hold_policy;
mod hung;
mod once;
mod polling;
mod properties;
mod refused;
mod roles;
mod table;

use std::time::Duration;

use super::*;
use crate::{
    After, Bell, Cause, Cordon, Deadlines, Exit, Failed, Failure, Grant, HandOverReason,
    HealthEvent, HolderInfo, Hung, Notice, OnFailure, Outcome, ProbeFailure, Restart, Ring, Start,
    TaskResult, Unfit, WorkloadEvent,
};

const TERM: i32 = 15;
const INT: i32 = 2;
const HUP: i32 = 1;

const BEGIN: Instant = Instant::from_nanos(1_000_000_000_000);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at(seconds: u64) -> Instant {
    BEGIN + secs(seconds)
}

fn rules() -> Rules {
    Rules {
        budget: Some(Budget::for_lease(secs(60))),
        poll: Some(secs(2)),
        wait: None,
        patience: Duration::from_secs(30),
        auth_patience: AUTH_PATIENCE,
        grace: secs(30),
        stop_signal: TERM,
        if_lost: IfLost::Compete,
        hold_policy: HoldPolicy::default(),
        once: None,
        on_terminal: false,
        seed: 1,
    }
}

fn held() -> Failure {
    Failure::Held(HolderInfo::default())
}

fn transient() -> Failure {
    Failure::Transient {
        why: "no answer".into(),
        retry_after: None,
    }
}

fn fatal() -> Failure {
    Failure::Fatal {
        why: "forbidden".into(),
        denied: true,
    }
}

fn lost() -> Failure {
    Failure::Lost {
        until: None,
        why: "broken".into(),
    }
}

fn breaking(until: Instant) -> Failure {
    Failure::Lost {
        until: Some(until),
        why: "breaking".into(),
    }
}

fn grant(t0: Instant) -> Event {
    Event::Acquired(Ok(Grant {
        t0,
        token: 7,
        failed: 0,
    }))
}

fn refused(failure: Failure) -> Event {
    Event::Acquired(Err(failure))
}

fn renewed(t0: Instant) -> Event {
    Event::Renewed { t0, reply: Ok(()) }
}

fn unrenewed(failure: Failure) -> Event {
    Event::Renewed {
        t0: BEGIN,
        reply: Err(failure),
    }
}

fn cordoned() -> Event {
    cordoned_before(Instant::FOREVER)
}

fn cordoned_before(before: Instant) -> Event {
    Event::Cordoned(Cordon {
        why: "a reboot".into(),
        before,
    })
}

fn has(actions: &[Action], wanted: &Action) -> bool {
    actions.contains(wanted)
}

fn start(actions: &[Action]) -> Option<(Instant, Instant)> {
    actions.iter().find_map(|action| match action {
        Action::Start(start) => Some((start.deadlines.term_at, start.deadlines.kill_at)),
        _ => None,
    })
}

fn extend(actions: &[Action]) -> Option<(Instant, Instant)> {
    actions.iter().find_map(|action| match action {
        Action::Extend(deadlines) => Some((deadlines.term_at, deadlines.kill_at)),
        _ => None,
    })
}

fn end_of_grace(actions: &[Action]) -> Option<Instant> {
    actions.iter().find_map(|action| match action {
        Action::Drain { end_of_grace, .. } => Some(*end_of_grace),
        _ => None,
    })
}

fn renews(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::Renew { .. }))
}

fn releases(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::Release { .. }))
}

fn acquires(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::Acquire { .. }))
}

/// An attempt is in flight since the beginning.
fn acquiring(rules: Rules) -> Tenure {
    let mut tenure = Tenure::new(rules, BEGIN);
    assert!(acquires(&tenure.step(BEGIN, Event::Ticked)));
    tenure
}

/// The command runs since the beginning.
fn holding(rules: Rules) -> Tenure {
    let mut tenure = acquiring(rules);
    assert!(start(&tenure.step(BEGIN, grant(BEGIN))).is_some());
    tenure.step(BEGIN, Event::Workload(WorkloadEvent::Started { pid: 4711 }));
    tenure
}

fn draining(rules: Rules) -> Tenure {
    let mut tenure = holding(rules);
    tenure.step(BEGIN, Event::StopAsked(TERM));
    assert_eq!(*tenure.state(), State::Draining);
    tenure
}

/// The tree is empty, and the release is in flight.
fn releasing(rules: Rules) -> Tenure {
    let mut tenure = draining(rules);
    assert!(releases(&tenure.step(
        BEGIN,
        Event::Workload(WorkloadEvent::TreeEmpty { at: BEGIN })
    )));
    tenure
}

/// Twice in five minutes.
fn restarting() -> Rules {
    Rules {
        hold_policy: HoldPolicy {
            restart: Some(Restart {
                after: After::Failure,
                limit: 2,
                window: secs(300),
            }),
            ..HoldPolicy::default()
        },
        ..rules()
    }
}

/// For two minutes.
fn keeping() -> Rules {
    Rules {
        hold_policy: HoldPolicy {
            min_hold: Some(secs(120)),
            ..HoldPolicy::default()
        },
        ..rules()
    }
}

fn once() -> Rules {
    Rules {
        once: Some(Once {
            on_failure: OnFailure::Retry,
            attempts: None,
        }),
        ..rules()
    }
}

fn fails(tenure: &mut Tenure, now: Instant) -> Vec<Action> {
    ends(tenure, now, Exit::Code(3))
}

fn ends(tenure: &mut Tenure, now: Instant, exit: Exit) -> Vec<Action> {
    tenure.step(now, exited(exit));
    tenure.step(now, emptied(now))
}

fn exited(exit: Exit) -> Event {
    Event::Workload(WorkloadEvent::Exited(exit))
}

fn hung() -> Event {
    Event::Workload(WorkloadEvent::Health(HealthEvent::Hung(Hung::Triggered)))
}

fn emptied(at: Instant) -> Event {
    Event::Workload(WorkloadEvent::TreeEmpty { at })
}

fn ending(tenure: &Tenure) -> &Ending {
    tenure.ending().expect("it is over")
}
