//! Hooks before the command, and the standby command.

use super::*;

const FAILED: Failed = Failed::Exited(Exit::Code(1));

fn unprepared(at: Instant) -> Event {
    Event::Workload(WorkloadEvent::HookFailed { at, how: FAILED })
}

#[test]
fn failed_hook_leads_to_a_hand_over_and_a_cool_down() {
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
fn failed_hook_after_a_stop_ends_with_the_stop() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, grant(BEGIN));
    tenure.step(at(2), Event::StopAsked(TERM));
    assert!(releases(&tenure.step(at(3), unprepared(at(3)))));
    tenure.step(at(4), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
    assert_eq!(ending(&tenure).exit, None);
}

#[test]
fn hook_failure_after_the_command_s_exit_is_ignored() {
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
fn hook_that_outlived_the_lease_is_an_overlap() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, grant(BEGIN));
    let actions = tenure.step(at(70), unprepared(at(65)));
    assert!(has(&actions, &Action::Notify(Notice::Overlapped)));
}

fn waiting(wait: Duration) -> Tenure {
    let wait = Some(wait);
    let mut tenure = acquiring(Rules { wait, ..rules() });
    tenure.step(BEGIN, grant(BEGIN));
    tenure
}

const GIVEN_UP: Cause = Cause::GivenUp(HandOverReason::HookFailed(FAILED));

#[test]
fn failed_hook_ends_an_instance_with_one_look() {
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
fn failed_hook_is_retried_until_the_wait_is_over() {
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

    // Another holder by then is the reason for the end.
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
fn wait_limit_ends_with_the_first_start_even_if_a_hook_fails_later() {
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
fn instance_with_one_look_never_stands_by() {
    let mut tenure = acquiring(Rules {
        wait: Some(Duration::ZERO),
        ..rules()
    });
    let actions = tenure.step(BEGIN, refused(held()));
    assert!(!has(&actions, &Action::StandBy));
    assert!(matches!(ending(&tenure).cause, Cause::NotObtained(_)));
}

#[test]
fn wait_limit_ends_with_the_first_start_even_if_a_restart_s_hook_fails() {
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
