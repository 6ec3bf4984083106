//! Commands that hang.

use super::*;

fn because() -> Cause {
    Cause::GivenUp(HandOverReason::Hung(Hung::Triggered))
}

#[test]
fn hung_command_is_drained_for_the_grace_under_a_renewed_lease() {
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
fn hung_command_without_restarts_hands_over_for_a_lease() {
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
fn cool_down_after_a_hang_is_the_set_one_or_ten_seconds_without_a_lease() {
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
fn hung_command_with_restarts_has_failed_whatever_its_status() {
    for exit in [Exit::Code(0), Exit::Code(3), Exit::Signal(9)] {
        let mut tenure = holding(restarting());
        tenure.step(at(1), hung());
        tenure.step(at(2), exited(exit));
        assert!(!releases(&tenure.step(at(2), emptied(at(2)))));
        assert_eq!(*tenure.state(), State::Resting);
        tenure.step(at(2), renewed(at(2)));
        assert!(start(&tenure.step(at(3), Event::Ticked)).is_some());
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
fn stop_during_the_drain_of_a_hung_command_ends_the_instance() {
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
fn command_that_ended_before_it_was_found_hung_ended_by_itself() {
    let mut tenure = holding(rules());
    tenure.step(at(2), hung());
    tenure.step(at(2), exited(Exit::Code(3)));
    tenure.step(at(2), emptied(at(1)));
    tenure.step(at(2), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
    assert_eq!(ending(&tenure).exit, Some(Exit::Code(3)));
}

#[test]
fn loss_during_the_drain_of_a_hung_command_is_a_loss() {
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
fn hung_task_has_failed_whatever_its_status() {
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
fn loss_of_the_probes_guardian_drains_the_command_and_ends_the_instance() {
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

fn telling(rules: Rules) -> Tenure {
    let mut tenure = Tenure::new(rules, BEGIN).telling_health(Some(secs(10)), words);
    tenure.step(BEGIN, Event::Ticked);
    tenure.step(BEGIN, grant(BEGIN));
    tenure.step(BEGIN, Event::Workload(WorkloadEvent::Started { pid: 1 }));
    tenure
}

fn written(tenure: &mut Tenure, now: Instant) -> Option<String> {
    let due = tenure.health_due() <= now;
    let record = tenure.health_record().expect("a health record");
    due.then(|| record.write(now)).flatten()
}

#[test]
fn record_reports_failing_checks_and_the_reason_of_a_drain() {
    let mut tenure = telling(rules());
    tenure.step(at(1), failed());
    assert_eq!(written(&mut tenure, at(1)).as_deref(), Some("failing"));
    tenure.step(at(2), hung());
    assert_eq!(
        tenure.health_due(),
        Instant::FOREVER,
        "the announcement reports it"
    );
    let actions = tenure.step(at(3), Event::Ticked);
    assert!(has(&actions, &Action::Announce));
    let record = tenure.health_record().expect("a health record");
    assert_eq!(record.announce(), "hung");
    assert_eq!(tenure.health_due(), Instant::FOREVER);
}

#[test]
fn hang_before_a_restart_is_recorded_and_not_announced() {
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
        "the next command is well, ten seconds later"
    );
    assert_eq!(written(&mut tenure, at(12)).as_deref(), Some(""));
}

#[test]
fn health_is_not_recorded_when_the_lease_is_about_to_be_given_back() {
    let mut tenure = telling(rules());
    tenure.step(at(1), failed());
    tenure.step(at(1), Event::StopAsked(TERM));
    assert_eq!(tenure.health_due(), Instant::FOREVER);
    tenure.step(at(2), exited(Exit::Signal(15)));
    assert!(releases(&tenure.step(at(2), emptied(at(2)))));
    assert_eq!(tenure.health_due(), Instant::FOREVER);
}
