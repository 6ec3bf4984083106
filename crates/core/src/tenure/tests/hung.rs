//! A command that does not work any more: ended like one that is asked to, and then taken for one that
//! has failed.

use super::*;

fn because() -> Cause {
    Cause::GivenUp(HandOverReason::Hung(Hung::Triggered))
}

#[test]
fn it_is_drained_for_the_grace_and_the_lease_renewed_meanwhile() {
    let mut tenure = holding(rules());
    let actions = tenure.step(at(1), hung());
    assert_eq!(end_of_grace(&actions), Some(at(31)));
    assert!(has(&actions, &Action::Notify(Notice::Draining(because()))));
    assert!(renews(&tenure.step(at(20), Event::Ticked)));
    assert!(tenure.step(at(22), hung()).is_empty(), "once");
    tenure.step(at(22), renewed(at(20)));
    assert!(has(&tenure.step(at(31), Event::Ticked), &Action::Kill));
}

#[test]
fn without_restarts_control_is_handed_over_and_competed_for_after_a_lease() {
    for if_lost in [IfLost::Compete, IfLost::Exit] {
        let mut tenure = holding(Rules { if_lost, ..rules() });
        tenure.step(at(1), hung());
        tenure.step(at(2), exited(Exit::Code(0)));
        assert!(releases(&tenure.step(at(2), emptied(at(2)))));
        let actions = tenure.step(at(2), Event::Released(Ok(())));
        let cause = because();
        assert!(has(&actions, &Action::TenureOver { cause }));
        assert_eq!(*tenure.state(), State::Standby);
        assert_eq!(tenure.wake_at(), at(62), "a lease");
    }
}

#[test]
fn the_cool_down_is_what_was_asked_for_and_ten_seconds_without_a_lease() {
    let cooled = |rules: Rules| {
        let mut tenure = holding(rules);
        tenure.step(at(1), hung());
        tenure.step(at(2), exited(Exit::Signal(15)));
        tenure.step(at(2), emptied(at(2)));
        tenure.step(at(2), Event::Released(Ok(())));
        tenure.wake_at()
    };
    let mut asked_for = rules();
    asked_for.hold_policy.cooldown = Some(secs(7));
    assert_eq!(cooled(asked_for), at(9));
    let local = Rules {
        budget: None,
        poll: None,
        ..rules()
    };
    assert_eq!(cooled(local), at(12));
}

#[test]
fn with_restarts_it_is_a_failure_whatever_it_exited_with() {
    for exit in [Exit::Code(0), Exit::Code(3), Exit::Signal(9)] {
        let mut tenure = holding(restarting());
        tenure.step(at(1), hung());
        tenure.step(at(2), exited(exit));
        assert!(!releases(&tenure.step(at(2), emptied(at(2)))));
        assert_eq!(*tenure.state(), State::Resting);
        tenure.step(at(2), renewed(at(2)));
        assert!(start(&tenure.step(at(3), Event::Ticked)).is_some());
        // The limit counts them.
        tenure.step(at(4), hung());
        tenure.step(at(4), emptied(at(4)));
        tenure.step(at(4), renewed(at(4)));
        tenure.step(at(6), Event::Ticked);
        tenure.step(at(7), hung());
        let actions = tenure.step(at(7), emptied(at(7)));
        assert!(has(&actions, &Action::Notify(Notice::RestartsSpent)));
        assert!(releases(&actions));
    }
}

#[test]
fn a_stop_that_is_asked_for_meanwhile_ends_us() {
    let mut tenure = holding(restarting());
    tenure.step(at(1), hung());
    tenure.step(at(2), Event::StopAsked(TERM));
    tenure.step(at(3), exited(Exit::Signal(15)));
    assert!(releases(&tenure.step(at(3), emptied(at(3)))));
    tenure.step(at(3), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
    assert_eq!(ending(&tenure).exit, Some(Exit::Signal(15)));
}

#[test]
fn one_that_ended_by_itself_before_that_has_ended() {
    let mut tenure = holding(rules());
    tenure.step(at(2), hung());
    tenure.step(at(2), exited(Exit::Code(3)));
    tenure.step(at(2), emptied(at(1)));
    tenure.step(at(2), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
    assert_eq!(ending(&tenure).exit, Some(Exit::Code(3)));
}

#[test]
fn a_loss_while_it_is_drained_is_a_loss() {
    let mut tenure = holding(Rules {
        if_lost: IfLost::Exit,
        ..rules()
    });
    tenure.step(at(1), hung());
    assert!(has(&tenure.step(at(2), unrenewed(lost())), &Action::Kill));
    tenure.step(at(2), emptied(at(2)));
    let why = "broken".into();
    assert_eq!(ending(&tenure).cause, Cause::Lost { why });
}

#[test]
fn a_task_that_hung_has_failed_and_is_no_success_whatever_it_exited_with() {
    let mut tenure = holding(once());
    tenure.step(at(1), hung());
    tenure.step(at(2), exited(Exit::Code(0)));
    let actions = tenure.step(at(2), emptied(at(2)));
    let recorded = actions.iter().find_map(|action| match action {
        Action::Record { outcome, .. } => Some(*outcome),
        _ => None,
    });
    let outcome = recorded.expect("recorded");
    assert_eq!((outcome.exit, outcome.over), (Exit::Signal(TERM), false));
}

#[test]
fn without_the_guardian_of_the_probes_it_ends_in_order_and_that_is_the_end() {
    let mut tenure = holding(restarting());
    let event = Event::Workload(WorkloadEvent::Health(HealthEvent::GuardianLost));
    assert_eq!(end_of_grace(&tenure.step(at(1), event)), Some(at(31)));
    tenure.step(at(2), exited(Exit::Code(0)));
    tenure.step(at(2), emptied(at(2)));
    tenure.step(at(2), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::GuardianLost);
}

fn failed() -> Event {
    Event::Workload(WorkloadEvent::Health(HealthEvent::Failed {
        how: ProbeFailure::TimedOut,
        number: 1,
        of: 3,
    }))
}

fn words(event: &HealthEvent) -> Option<String> {
    match event {
        HealthEvent::Answered { .. } => Some(String::new()),
        HealthEvent::Failed { .. } => Some("failing".to_owned()),
        HealthEvent::Hung(_) => Some("hung".to_owned()),
        HealthEvent::NotAsked { .. } | HealthEvent::GuardianLost => None,
    }
}

/// In control, and telling of its command's health every ten seconds at most.
fn telling(rules: Rules) -> Tenure {
    let mut tenure = Tenure::new(rules, BEGIN).telling_health(Some(secs(10)), words);
    tenure.step(BEGIN, Event::Ticked);
    tenure.step(BEGIN, grant(BEGIN));
    tenure.step(BEGIN, Event::Workload(WorkloadEvent::Started { pid: 1 }));
    tenure
}

fn written(tenure: &mut Tenure, now: Instant) -> Option<String> {
    let due = tenure.health_due() <= now;
    let record = tenure.health_record().expect("it tells of it");
    due.then(|| record.write(now)).flatten()
}

#[test]
fn the_record_tells_that_checks_fail_and_a_drain_why_it_drains() {
    let mut tenure = telling(rules());
    tenure.step(at(1), failed());
    assert_eq!(written(&mut tenure, at(1)).as_deref(), Some("failing"));
    tenure.step(at(2), hung());
    assert_eq!(
        tenure.health_due(),
        Instant::FOREVER,
        "the announcement says it"
    );
    let actions = tenure.step(at(3), Event::Ticked);
    assert!(has(&actions, &Action::Announce));
    let record = tenure.health_record().expect("it tells of it");
    assert_eq!(record.announce(), "hung");
    assert_eq!(tenure.health_due(), Instant::FOREVER);
}

#[test]
fn where_the_lease_is_kept_for_a_restart_nothing_is_announced_and_the_hang_is_told() {
    let mut tenure = telling(restarting());
    tenure.step(at(1), hung());
    assert!(!has(&tenure.step(at(2), Event::Ticked), &Action::Announce));
    assert_eq!(written(&mut tenure, at(2)).as_deref(), Some("hung"));
    tenure.step(at(3), exited(Exit::Signal(15)));
    tenure.step(at(3), emptied(at(3)));
    assert_eq!(*tenure.state(), State::Resting);
    tenure.step(at(3), renewed(at(3)));
    assert!(start(&tenure.step(at(4), Event::Ticked)).is_some());
    tenure.step(at(4), Event::Workload(WorkloadEvent::Started { pid: 2 }));
    assert_eq!(
        tenure.health_due(),
        at(12),
        "the next one is well, ten seconds later"
    );
    assert_eq!(written(&mut tenure, at(12)).as_deref(), Some(""));
}

#[test]
fn nothing_is_told_where_the_lease_is_about_to_be_given_back() {
    let mut tenure = telling(rules());
    tenure.step(at(1), failed());
    tenure.step(at(1), Event::StopAsked(TERM));
    assert_eq!(tenure.health_due(), Instant::FOREVER);
    tenure.step(at(2), exited(Exit::Signal(15)));
    assert!(releases(&tenure.step(at(2), emptied(at(2)))));
    assert_eq!(tenure.health_due(), Instant::FOREVER);
}
