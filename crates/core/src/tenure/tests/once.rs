//! Tasks that are to be done once.

use super::*;

fn asked_to_record(actions: &[Action]) -> Option<Outcome> {
    actions.iter().find_map(|action| match action {
        Action::Record { outcome, .. } => Some(*outcome),
        _ => None,
    })
}

fn recorded(tenure: &mut Tenure, now: Instant) -> Vec<Action> {
    tenure.step(now, Event::Recorded(Ok(())))
}

fn unrecorded(failure: Failure) -> Event {
    Event::Recorded(Err(failure))
}

fn over(status: u8) -> Failure {
    Failure::AlreadyDone(TaskResult {
        status,
        holder: "web2".into(),
        at: "then".into(),
        token: 3,
    })
}

/// The command ended at the fifth second, and the record is in flight.
fn recording_of(rules: Rules, exit: Exit) -> (Tenure, Outcome) {
    let mut tenure = holding(rules);
    let actions = ends(&mut tenure, at(5), exit);
    assert_eq!(*tenure.state(), State::Recording);
    assert!(!releases(&actions), "released before the record");
    let outcome = asked_to_record(&actions).expect("a result to record");
    (tenure, outcome)
}

fn attempts(most: u32) -> Rules {
    Rules {
        once: Some(Once {
            on_failure: OnFailure::Retry,
            attempts: Some(most),
        }),
        ..once()
    }
}

fn stop_at_failure() -> Rules {
    Rules {
        once: Some(Once {
            on_failure: OnFailure::Stop,
            attempts: None,
        }),
        ..once()
    }
}

#[test]
fn success_is_recorded_before_the_lease_is_given_back() {
    let (mut tenure, outcome) = recording_of(once(), Exit::Code(0));
    assert_eq!((outcome.exit, outcome.over), (Exit::Code(0), true));
    let actions = recorded(&mut tenure, at(6));
    assert!(releases(&actions));
    let said = Notice::Recorded {
        outcome,
        attempt: 1,
    };
    assert!(has(&actions, &Action::Notify(said)));
    tenure.step(at(6), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
    assert_eq!(ending(&tenure).exit, Some(Exit::Code(0)));
}

#[test]
fn result_is_recorded_only_after_the_whole_tree_has_ended() {
    let mut tenure = holding(once());
    let actions = tenure.step(at(5), Event::Workload(WorkloadEvent::Exited(Exit::Code(0))));
    assert_eq!(asked_to_record(&actions), None);
    let actions = tenure.step(
        at(7),
        Event::Workload(WorkloadEvent::TreeEmpty { at: at(7) }),
    );
    assert!(asked_to_record(&actions).is_some_and(|outcome| outcome.over));
}

#[test]
fn lease_is_renewed_while_the_record_is_written() {
    let (mut tenure, _) = recording_of(once(), Exit::Code(0));
    assert_eq!(tenure.wake_at(), at(20));
    assert!(renews(&tenure.step(at(20), Event::Ticked)));
    tenure.step(at(20), renewed(at(20)));
    assert!(renews(&tenure.step(at(40), Event::Ticked)));
    tenure.step(at(40), renewed(at(40)));
    // The first grant would have run out by now.
    assert!(releases(&recorded(&mut tenure, at(70))));
}

#[test]
fn failed_record_is_tried_again_and_reported_once() {
    let (mut tenure, outcome) = recording_of(once(), Exit::Code(0));
    let actions = tenure.step(at(6), unrecorded(transient()));
    let why = "no answer".to_owned();
    assert_eq!(actions, [Action::Notify(Notice::Unrecorded { why })]);
    let again = tenure.wake_at();
    assert!(again > at(6) && again <= at(8));
    let actions = tenure.step(again, Event::Ticked);
    assert_eq!(asked_to_record(&actions), Some(outcome));
    assert_eq!(tenure.step(again, unrecorded(transient())), []);
}

#[test]
fn store_that_takes_no_record_until_the_lease_ends_ends_the_instance_without_one() {
    let (mut tenure, _) = recording_of(once(), Exit::Code(0));
    let mut last = BEGIN;
    while tenure.ending().is_none() {
        let now = tenure.wake_at();
        assert!(now <= at(120), "the lease is over");
        let actions = tenure.step(now, Event::Ticked);
        if asked_to_record(&actions).is_some() || *tenure.state() == State::Recording {
            last = now;
            tenure.step(now, unrecorded(transient()));
        }
        if renews(&actions) {
            tenure.step(now, unrenewed(transient()));
        }
        if releases(&actions) {
            tenure.step(now, Event::Released(Err(transient())));
        }
    }
    assert!(
        last > at(50) && last <= at(58),
        "as long as the lease allows: {last:?}"
    );
    let why = "no answer".to_owned();
    assert_eq!(ending(&tenure).cause, Cause::NotRecorded { why });
    assert!(!ending(&tenure).overlap, "nothing lived so long");
}

#[test]
fn hopeless_record_is_given_up_at_once_and_the_lease_given_back() {
    for (failure, is_lost) in [
        (fatal(), false),
        (over(0), false),
        (lost(), true),
        (held(), true),
    ] {
        let (mut tenure, _) = recording_of(once(), Exit::Code(0));
        let actions = tenure.step(at(6), unrecorded(failure.clone()));
        assert_eq!(releases(&actions), !is_lost, "{failure:?}");
        tenure.step(at(6), Event::Released(Ok(())));
        // The lease may have been lost while the command lived.
        assert_eq!(ending(&tenure).overlap, is_lost, "{failure:?}");
        let cause = &ending(&tenure).cause;
        assert!(
            matches!(cause, Cause::NotRecorded { .. }),
            "{failure:?}: {cause:?}"
        );
    }
}

#[test]
fn lease_lost_before_the_record_was_confirmed_may_have_overlapped() {
    let mut tenure = holding(once());
    tenure.step(at(20), Event::Ticked);
    let actions = ends(&mut tenure, at(21), Exit::Code(0));
    assert!(asked_to_record(&actions).is_some());
    tenure.step(at(22), unrenewed(lost()));
    assert_eq!(
        *tenure.state(),
        State::Recording,
        "the record may still succeed"
    );
    tenure.step(at(22), unrecorded(transient()));
    assert!(ending(&tenure).overlap, "it is unknown when it was lost");
    let Cause::NotRecorded { why } = &ending(&tenure).cause else {
        panic!("{:?}", ending(&tenure));
    };
    assert!(why.contains("broken"), "{why}");
}

#[test]
fn late_confirmation_of_a_record_counts_and_proves_the_lease() {
    let mut tenure = holding(once());
    tenure.step(at(20), Event::Ticked);
    ends(&mut tenure, at(21), Exit::Code(0));
    tenure.step(at(22), unrenewed(lost()));
    recorded(&mut tenure, at(23));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
    assert!(!ending(&tenure).overlap);
}

#[test]
fn failed_run_is_counted_and_the_next_candidate_tries_after_a_back_off() {
    let (mut tenure, outcome) = recording_of(once(), Exit::Code(3));
    assert!(!outcome.over);
    let until = at(7);
    let actions = recorded(&mut tenure, at(6));
    assert!(!releases(&actions), "no candidate tries at once");
    assert!(has(&actions, &Action::Notify(Notice::Pausing { until })));
    assert_eq!(tenure.wake_at(), until);
    assert!(releases(&tenure.step(until, Event::Ticked)));
    tenure.step(until, Event::Released(Ok(())));
    assert_eq!(*tenure.state(), State::Standby);
    assert!(tenure.wake_at() > until, "others go first");
    let again = tenure.wake_at();
    assert!(acquires(&tenure.step(again, Event::Ticked)));
    tenure.step(again, refused(over(0)));
    tenure.step(again, Event::Released(Ok(())));
    assert!(matches!(ending(&tenure).cause, Cause::AlreadyDone(_)));
}

#[test]
fn last_attempt_is_a_result_even_if_it_failed() {
    for (rules, failed, is_last) in [
        (attempts(3), 0, false),
        (attempts(3), 1, false),
        (attempts(3), 2, true),
        (stop_at_failure(), 0, true),
        (once(), 1000, false),
    ] {
        let mut tenure = acquiring(rules);
        let grant = Grant {
            t0: BEGIN,
            token: 7,
            failed,
        };
        tenure.step(BEGIN, Event::Acquired(Ok(grant)));
        tenure.step(BEGIN, Event::Workload(WorkloadEvent::Started { pid: 1 }));
        let actions = ends(&mut tenure, at(5), Exit::Signal(9));
        let outcome = asked_to_record(&actions).expect("a result");
        assert_eq!(outcome.over, is_last, "after {failed}");
        assert_eq!(releases(&recorded(&mut tenure, at(6))), is_last);
        if is_last {
            tenure.step(at(6), Event::Released(Ok(())));
            assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
            assert_eq!(ending(&tenure).exit, Some(Exit::Signal(9)));
        }
    }
}

#[test]
fn lease_of_a_back_off_is_renewed_and_its_loss_ends_nothing() {
    let mut tenure = acquiring(once());
    let grant = Grant {
        t0: BEGIN,
        token: 7,
        failed: 9,
    };
    tenure.step(BEGIN, Event::Acquired(Ok(grant)));
    tenure.step(BEGIN, Event::Workload(WorkloadEvent::Started { pid: 1 }));
    fails(&mut tenure, at(5));
    recorded(&mut tenure, at(6));
    assert_eq!(tenure.wake_at(), at(20), "thirty seconds of back-off");
    assert!(renews(&tenure.step(at(20), Event::Ticked)));
    let actions = tenure.step(at(21), unrenewed(lost()));
    assert!(has(&actions, &Action::Abandon));
    assert_eq!(*tenure.state(), State::Standby);
}

#[test]
fn stop_during_a_back_off_leaves_with_the_failed_run_s_status() {
    let (mut tenure, _) = recording_of(once(), Exit::Code(3));
    recorded(&mut tenure, at(6));
    assert!(releases(&tenure.step(at(6), Event::StopAsked(TERM))));
    tenure.step(at(6), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
    assert_eq!(ending(&tenure).exit, Some(Exit::Code(3)));
}

#[test]
fn first_stop_does_not_prevent_the_record_of_a_success_and_a_second_one_does() {
    let (mut tenure, _) = recording_of(once(), Exit::Code(0));
    assert_eq!(tenure.step(at(6), Event::StopAsked(TERM)), []);
    recorded(&mut tenure, at(7));
    tenure.step(at(7), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).exit, Some(Exit::Code(0)));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);

    let (mut tenure, _) = recording_of(once(), Exit::Code(0));
    tenure.step(at(6), Event::StopAsked(TERM));
    tenure.step(at(7), Event::StopAsked(TERM));
    tenure.step(at(7), Event::Released(Ok(())));
    assert!(matches!(ending(&tenure).cause, Cause::NotRecorded { .. }));
}

#[test]
fn stopped_run_is_no_success_whatever_its_status() {
    for (exit, shown) in [
        (Exit::Code(0), None),
        (Exit::Code(3), Some(Exit::Code(3))),
        (Exit::Signal(TERM), Some(Exit::Signal(TERM))),
    ] {
        let mut tenure = holding(once());
        tenure.step(at(5), Event::StopAsked(HUP));
        let actions = ends(&mut tenure, at(6), exit);
        assert_eq!(asked_to_record(&actions), None, "{exit:?}");
        assert!(releases(&actions) && has(&actions, &Action::Notify(Notice::NotDone)));
        tenure.step(at(6), Event::Released(Ok(())));
        assert_eq!(ending(&tenure).cause, Cause::Stopped(HUP));
        assert_eq!(ending(&tenure).exit, shown, "{exit:?}");
    }
}

#[test]
fn command_that_ended_by_itself_before_the_stop_is_a_success() {
    let mut tenure = holding(once());
    tenure.step(at(5), Event::Workload(WorkloadEvent::Exited(Exit::Code(0))));
    tenure.step(at(6), Event::StopAsked(TERM));
    let actions = tenure.step(
        at(7),
        Event::Workload(WorkloadEvent::TreeEmpty { at: at(7) }),
    );
    assert!(asked_to_record(&actions).is_some_and(|outcome| outcome.over));
}

#[test]
fn run_that_lost_control_has_no_result_and_the_instance_competes_again() {
    let mut tenure = holding(once());
    tenure.step(at(20), Event::Ticked);
    tenure.step(at(21), unrenewed(lost()));
    tenure.step(
        at(21),
        Event::Workload(WorkloadEvent::Exited(Exit::Code(0))),
    );
    let actions = tenure.step(
        at(22),
        Event::Workload(WorkloadEvent::TreeEmpty { at: at(22) }),
    );
    assert_eq!(asked_to_record(&actions), None);
    assert_eq!(*tenure.state(), State::Standby);
}

#[test]
fn command_whose_end_is_not_known_has_no_result() {
    let mut tenure = holding(once());
    let actions = tenure.step(
        at(5),
        Event::Workload(WorkloadEvent::TreeEmpty { at: at(5) }),
    );
    assert_eq!(asked_to_record(&actions), None);
    tenure.step(at(5), Event::Workload(WorkloadEvent::Exited(Exit::Code(0))));
    tenure.step(at(5), Event::Released(Ok(())));
    assert!(matches!(ending(&tenure).cause, Cause::NotRecorded { .. }));
}

#[test]
fn command_that_cannot_be_started_is_no_attempt() {
    let mut tenure = acquiring(stop_at_failure());
    tenure.step(BEGIN, grant(BEGIN));
    let actions = tenure.step(
        at(1),
        Event::Workload(WorkloadEvent::NotStarted { errno: 2 }),
    );
    assert_eq!(asked_to_record(&actions), None);
    assert!(releases(&actions));
}

#[test]
fn finished_task_is_not_run_and_a_possible_lease_is_given_back() {
    let mut tenure = acquiring(once());
    let actions = tenure.step(at(1), refused(over(3)));
    assert!(start(&actions).is_none() && releases(&actions));
    tenure.step(at(1), Event::Released(Ok(())));
    let Cause::AlreadyDone(result) = &ending(&tenure).cause else {
        panic!("{:?}", ending(&tenure));
    };
    assert_eq!((result.status, result.token), (3, 3));
}

#[test]
fn one_look_ends_with_held_or_with_the_result() {
    let one_look = || Rules {
        wait: Some(Duration::ZERO),
        ..once()
    };
    let mut tenure = acquiring(one_look());
    tenure.step(at(1), refused(held()));
    assert!(matches!(ending(&tenure).cause, Cause::NotObtained(_)));
    let mut tenure = acquiring(one_look());
    tenure.step(at(1), refused(over(0)));
    tenure.step(at(1), Event::Released(Ok(())));
    assert!(matches!(ending(&tenure).cause, Cause::AlreadyDone(_)));
}

#[test]
fn signal_typed_at_the_terminal_is_a_stop_and_no_failure() {
    for signal in [2, 3] {
        let mut tenure = holding(Rules {
            on_terminal: true,
            ..stop_at_failure()
        });
        let actions = ends(&mut tenure, at(5), Exit::Signal(signal));
        assert!(asked_to_record(&actions).is_none() && releases(&actions));
        tenure.step(at(5), Event::Released(Ok(())));
        assert_eq!(ending(&tenure).cause, Cause::Stopped(signal));
        assert_eq!(ending(&tenure).exit, Some(Exit::Signal(signal)));
    }
    for (on_terminal, signal) in [(true, 15), (false, 2)] {
        let mut tenure = holding(Rules {
            on_terminal,
            ..stop_at_failure()
        });
        let actions = ends(&mut tenure, at(5), Exit::Signal(signal));
        assert!(asked_to_record(&actions).is_some_and(|result| result.over));
    }
}

#[test]
fn command_interrupted_at_its_terminal_is_not_started_again() {
    let mut tenure = holding(Rules {
        on_terminal: true,
        ..restarting()
    });
    assert!(releases(&ends(&mut tenure, at(5), Exit::Signal(2))));
    tenure.step(at(5), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(2));
}

/// The lease was taken after the tree was empty.
#[test]
fn lease_lost_during_the_record_may_have_had_another_holder_before_the_end() {
    for (confirmed, overlaps) in [(at(20), true), (at(22), false)] {
        let mut tenure = holding(once());
        tenure.step(at(20), Event::Ticked);
        ends(&mut tenure, at(21), Exit::Code(0));
        tenure.step(at(23), renewed(confirmed));
        for second in [24, 25] {
            tenure.step(at(second), Event::StopAsked(TERM));
        }
        tenure.step(at(26), Event::Released(Err(lost())));
        assert_eq!(ending(&tenure).overlap, overlaps);
    }
}

#[test]
fn loss_during_the_drain_is_named_as_the_reason_for_a_missing_record() {
    let mut tenure = holding(once());
    tenure.step(at(5), exited(Exit::Code(0)));
    tenure.step(at(20), Event::Ticked);
    tenure.step(at(21), unrenewed(lost()));
    tenure.step(at(22), emptied(at(22)));
    tenure.step(at(23), Event::Released(Ok(())));
    let Cause::NotRecorded { why } = &ending(&tenure).cause else {
        panic!("{:?}", ending(&tenure));
    };
    assert_eq!(why, "the lease was lost");
}
