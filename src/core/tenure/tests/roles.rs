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
