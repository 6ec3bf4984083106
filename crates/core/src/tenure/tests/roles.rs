//! What has to succeed before the command is started, and what runs without control.

use super::*;

const FAILED: Failed = Failed::Exited(Exit::Code(1));

fn unprepared(at: Instant) -> Event {
    Event::Workload(WorkloadEvent::HookFailed { at, how: FAILED })
}

#[test]
fn what_was_not_prepared_is_handed_over_and_stood_back_from() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, grant(BEGIN));
    let actions = tenure.step(at(3), unprepared(at(3)));
    assert!(has(&actions, &Action::Notify(Notice::HookFailed(FAILED))));
    assert!(releases(&actions));
    let actions = tenure.step(at(4), Event::Released(Ok(())));
    let cause = Cause::GivenUp(HandOverReason::HookFailed(FAILED));
    assert!(has(&actions, &Action::TenureOver { cause }));
    let until = at(8);
    assert!(has(
        &actions,
        &Action::Notify(Notice::CoolingDown { until })
    ));
    assert!(has(&actions, &Action::StandBy));
    assert_eq!(tenure.wake_at(), until);
}

#[test]
fn what_was_not_prepared_when_a_stop_was_asked_for_is_the_stop_s_end() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, grant(BEGIN));
    tenure.step(at(2), Event::StopAsked(TERM));
    assert!(releases(&tenure.step(at(3), unprepared(at(3)))));
    tenure.step(at(4), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
    assert_eq!(ending(&tenure).exit, None);
}

#[test]
fn what_has_ended_was_prepared_whatever_is_said_later() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, grant(BEGIN));
    tenure.step(at(2), Event::Workload(WorkloadEvent::Exited(Exit::Code(0))));
    let actions = tenure.step(at(3), unprepared(at(3)));
    assert!(!releases(&actions), "the tree may live");
    let actions = tenure.step(
        at(3),
        Event::Workload(WorkloadEvent::TreeEmpty { at: at(3) }),
    );
    assert!(releases(&actions));
    tenure.step(at(4), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).exit, Some(Exit::Code(0)));
}

#[test]
fn what_was_not_prepared_and_lived_too_long_is_an_overlap() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, grant(BEGIN));
    // We stood still, and so did whoever had to kill it.
    let actions = tenure.step(at(70), unprepared(at(65)));
    assert!(has(&actions, &Action::Notify(Notice::Overlapped)));
}

/// An instance that waits so long, in control at `BEGIN`.
fn waiting(wait: Duration) -> Tenure {
    let wait = Some(wait);
    let mut tenure = acquiring(Rules { wait, ..rules() });
    tenure.step(BEGIN, grant(BEGIN));
    tenure
}

const GIVEN_UP: Cause = Cause::GivenUp(HandOverReason::HookFailed(FAILED));

#[test]
fn who_looks_once_and_is_not_prepared_does_not_look_again() {
    let mut tenure = waiting(Duration::ZERO);
    assert!(releases(&tenure.step(at(3), unprepared(at(3)))));
    let actions = tenure.step(at(4), Event::Released(Ok(())));
    let cause = GIVEN_UP;
    assert_eq!(
        actions,
        [
            Action::Notify(Notice::Released),
            Action::TenureOver { cause },
        ]
    );
    assert_eq!(ending(&tenure).cause, GIVEN_UP);
    assert!(ending(&tenure).released);
}

#[test]
fn who_waits_for_a_while_and_is_not_prepared_tries_again_until_that_is_over() {
    let mut tenure = waiting(Duration::from_secs(10));
    tenure.step(at(3), unprepared(at(3)));
    tenure.step(at(4), Event::Released(Ok(())));
    assert_eq!(tenure.wake_at(), at(8));
    assert!(acquires(&tenure.step(at(8), Event::Ticked)));
    tenure.step(at(8), grant(at(8)));
    tenure.step(at(9), unprepared(at(9)));
    let actions = tenure.step(at(9), Event::Released(Ok(())));
    assert_eq!(tenure.wake_at(), at(10), "{actions:?}");
    tenure.step(at(10), Event::Ticked);
    assert_eq!(ending(&tenure).cause, GIVEN_UP);

    // Somebody else has it by then: that is why we have it not.
    let mut tenure = waiting(Duration::from_secs(10));
    tenure.step(at(3), unprepared(at(3)));
    tenure.step(at(4), Event::Released(Ok(())));
    tenure.step(at(8), Event::Ticked);
    tenure.step(at(8), refused(held()));
    tenure.step(at(10), Event::Ticked);
    if tenure.ending().is_none() {
        tenure.step(at(10), refused(held()));
    }
    assert!(matches!(ending(&tenure).cause, Cause::NotObtained(_)));
}

#[test]
fn whose_command_was_started_once_is_bound_by_no_wait_when_it_is_not_prepared_later() {
    let mut tenure = waiting(Duration::from_secs(10));
    tenure.step(at(1), Event::Workload(WorkloadEvent::Started { pid: 7 }));
    let lost = Failure::Lost {
        until: None,
        why: "broken".to_owned(),
    };
    tenure.step(
        at(20),
        Event::Renewed {
            t0: at(20),
            reply: Err(lost),
        },
    );
    tenure.step(
        at(21),
        Event::Workload(WorkloadEvent::TreeEmpty { at: at(21) }),
    );
    let again = tenure.wake_at();
    assert!(acquires(&tenure.step(again, Event::Ticked)));
    tenure.step(again, grant(again));
    tenure.step(again, unprepared(again));
    tenure.step(again, Event::Released(Ok(())));
    assert_eq!(tenure.ending(), None);
}

#[test]
fn who_never_waits_never_stands_by() {
    let mut tenure = acquiring(Rules {
        wait: Some(Duration::ZERO),
        ..rules()
    });
    let actions = tenure.step(BEGIN, refused(held()));
    assert!(!has(&actions, &Action::StandBy));
    assert!(matches!(ending(&tenure).cause, Cause::NotObtained(_)));
}

#[test]
fn whose_command_ran_is_bound_by_no_wait_when_its_restart_is_not_prepared() {
    let wait = Some(Duration::ZERO);
    let mut tenure = acquiring(Rules {
        wait,
        ..restarting()
    });
    tenure.step(BEGIN, grant(BEGIN));
    tenure.step(at(1), Event::Workload(WorkloadEvent::Started { pid: 7 }));
    fails(&mut tenure, at(2));
    tenure.step(at(2), renewed(at(2)));
    let restarts = at(3);
    tenure.step(restarts, Event::Ticked);
    assert!(releases(&tenure.step(restarts, unprepared(restarts))));
    tenure.step(restarts, Event::Released(Ok(())));
    assert_eq!(tenure.ending(), None, "it competes for the next tenure");
}
