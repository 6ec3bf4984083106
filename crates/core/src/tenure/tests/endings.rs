//! Ends of tenures.

use super::*;

fn empty(seconds: u64) -> Event {
    Event::Workload(WorkloadEvent::TreeEmpty { at: at(seconds) })
}

fn over(ending: &Ending) -> Action {
    Action::TenureOver {
        cause: ending.cause.clone(),
    }
}

#[test]
fn lease_is_given_back_only_after_the_tree_is_empty() {
    let mut tenure = draining(rules());
    assert!(!releases(&tenure.step(at(1), exited(Exit::Code(0)))));
    assert!(releases(&tenure.step(at(2), empty(2))));
    let actions = tenure.step(at(2), Event::Released(Ok(())));
    let said = Action::Notify(Notice::Released);
    assert_eq!(actions, [said, over(ending(&tenure))]);
    let wanted = Ending {
        cause: Cause::Stopped(TERM),
        exit: Some(Exit::Code(0)),
        overlap: false,
        released: true,
    };
    assert_eq!(tenure.ending(), Some(&wanted));
    assert_eq!(tenure.wake_at(), Instant::FOREVER);
}

#[test]
fn exit_and_tree_empty_may_come_in_any_order() {
    let mut tenure = holding(rules());
    assert!(releases(&tenure.step(at(5), empty(5))));
    tenure.step(at(5), exited(Exit::Code(3)));
    tenure.step(at(5), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
    assert_eq!(ending(&tenure).exit, Some(Exit::Code(3)));
}

#[test]
fn empty_tree_of_an_earlier_round_does_not_count() {
    let mut tenure = acquiring(rules());
    tenure.step(at(3), grant(BEGIN));
    assert_eq!(tenure.step(at(4), empty(2)), []);
    assert_eq!(*tenure.state(), State::Holding);
}

#[test]
fn stop_while_standing_by_ends_the_instance_at_once() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, refused(held()));
    assert_eq!(tenure.step(at(1), Event::StopAsked(HUP)), []);
    assert_eq!(ending(&tenure).cause, Cause::Stopped(HUP));
}

#[test]
fn stop_after_an_unanswered_attempt_undoes_it_first() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, refused(transient()));
    assert!(releases(&tenure.step(at(1), Event::StopAsked(INT))));
    tenure.step(at(1), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(INT));
}

#[test]
fn stop_during_an_attempt_withdraws_it() {
    let mut tenure = acquiring(rules());
    let actions = tenure.step(at(1), Event::StopAsked(TERM));
    assert_eq!(actions, [Action::Withdraw { give_up_at: at(6) }]);
    assert_eq!(tenure.ending(), None, "it waits for the attempt");
    let actions = tenure.step(at(2), grant(BEGIN));
    assert!(releases(&actions) && start(&actions).is_none());
    tenure.step(at(2), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
}

#[test]
fn command_that_cannot_be_started_is_not_tried_again() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, grant(BEGIN));
    assert!(releases(&tenure.step(
        at(1),
        Event::Workload(WorkloadEvent::NotStarted { errno: 2 })
    )));
    tenure.step(at(1), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::NotStarted { errno: 2 });
    assert!(!ending(&tenure).overlap && ending(&tenure).exit.is_none());
}

#[test]
fn tree_that_outlived_the_lease_is_an_overlap_even_if_the_command_ended_by_itself() {
    // The lease lasts until 60 by this clock; by the store's it may have ended at 58.8.
    for (empty_at, overlap) in [(58, false), (59, true)] {
        let mut tenure = holding(rules());
        tenure.step(at(5), exited(Exit::Code(0)));
        tenure.step(at(36), Event::Ticked);
        tenure.step(at(empty_at), empty(empty_at));
        tenure.step(at(62), Event::Released(Ok(())));
        assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
        assert_eq!(ending(&tenure).overlap, overlap, "empty at {empty_at}");
    }
}

#[test]
fn definite_loss_cannot_exclude_an_overlap_and_gives_nothing_back() {
    let if_lost = IfLost::Exit;
    let mut tenure = holding(Rules { if_lost, ..rules() });
    tenure.step(at(20), Event::Ticked);
    tenure.step(at(21), unrenewed(lost()));
    let actions = tenure.step(at(22), empty(22));
    assert_eq!(actions, [Action::Abandon, over(ending(&tenure))]);
    assert!(ending(&tenure).overlap && !ending(&tenure).released);
    assert!(matches!(ending(&tenure).cause, Cause::Lost { .. }));
}

#[test]
fn instance_that_competes_again_reports_a_possible_overlap() {
    for (empty_at, overlap) in [(28, false), (29, true)] {
        let mut tenure = holding(rules());
        tenure.step(at(20), Event::Ticked);
        tenure.step(at(21), unrenewed(breaking(at(28))));
        let actions = tenure.step(at(empty_at), empty(empty_at));
        assert_eq!(tenure.ending(), None, "it competes again");
        let said = has(&actions, &Action::Notify(Notice::Overlapped));
        assert_eq!(said, overlap, "empty at {empty_at}");
    }
}

#[test]
fn loss_with_notice_is_no_overlap_if_the_tree_ended_in_time() {
    for (empty_at, overlap) in [(28, false), (29, true)] {
        let if_lost = IfLost::Exit;
        let mut tenure = holding(Rules { if_lost, ..rules() });
        tenure.step(at(20), Event::Ticked);
        tenure.step(at(21), unrenewed(breaking(at(28))));
        tenure.step(at(empty_at), empty(empty_at));
        assert_eq!(ending(&tenure).overlap, overlap, "empty at {empty_at}");
    }
}

#[test]
fn instance_competes_again_after_a_doubt_that_stopped_the_command() {
    let mut tenure = holding(Rules {
        wait: Some(secs(10)),
        ..rules()
    });
    tenure.step(at(48), Event::Ticked);
    tenure.step(at(50), exited(Exit::Signal(15)));
    tenure.step(at(50), empty(50));
    tenure.step(at(53), Event::Ticked);
    assert_eq!(*tenure.state(), State::Releasing);
    tenure.step(at(53), Event::Released(Ok(())));
    assert_eq!(*tenure.state(), State::Standby);
    let wake = tenure.wake_at();
    assert!(wake > at(54), "after a cool-down of a poll");
    assert!(acquires(&tenure.step(wake, Event::Ticked)), "no wait limit");
    assert!(start(&tenure.step(wake, grant(wake))).is_some());
}

/// The guardian may read of a renewal after its timer. Then it drains a command that
/// the core holds for safe.
#[test]
fn command_that_the_guardian_stopped_has_not_ended_by_itself() {
    let mut tenure = holding(rules());
    tenure.step(at(47), Event::Ticked);
    tenure.step(at(47), renewed(at(47)));
    let said = tenure.step(at(48), Event::Workload(WorkloadEvent::Acting));
    assert!(
        matches!(said[..], [Action::Notify(Notice::Draining(_))]),
        "{said:?}"
    );
    tenure.step(at(48), exited(Exit::Signal(TERM)));
    assert!(releases(&tenure.step(at(48), empty(48))));
    tenure.step(at(48), Event::Released(Ok(())));
    assert_eq!(*tenure.state(), State::Standby);
}

#[test]
fn command_that_ended_before_the_doubt_is_not_run_twice() {
    let mut tenure = holding(rules());
    tenure.step(at(47), exited(Exit::Code(0)));
    tenure.step(at(58), empty(57));
    tenure.step(at(59), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
}

#[test]
fn command_that_ended_during_a_pause_is_not_run_twice() {
    let mut tenure = holding(rules());
    tenure.step(at(500), exited(Exit::Code(0)));
    tenure.step(at(500), empty(30));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
    assert_eq!(ending(&tenure).exit, Some(Exit::Code(0)));
    assert!(!ending(&tenure).overlap);
}

#[test]
fn stop_during_a_doubtful_drain_ends_the_instance() {
    let mut tenure = holding(rules());
    tenure.step(at(48), Event::Ticked);
    tenure.step(at(49), Event::StopAsked(TERM));
    assert_eq!(*tenure.state(), State::Draining, "the first is no kill");
    tenure.step(at(50), empty(50));
    tenure.step(at(53), Event::Ticked);
    tenure.step(at(53), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
}

#[test]
fn stop_while_releasing_keeps_the_ending_of_a_command_that_ended_by_itself() {
    let mut tenure = holding(rules());
    tenure.step(at(5), empty(5));
    tenure.step(at(5), Event::StopAsked(TERM));
    tenure.step(at(6), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
}

#[test]
fn release_waits_for_the_renewal_in_flight_but_not_for_ever() {
    let mut tenure = holding(rules());
    tenure.step(at(20), Event::Ticked);
    assert!(!releases(&tenure.step(at(21), empty(21))));
    assert_eq!(tenure.wake_at(), at(25));
    let mut other = holding(rules());
    other.step(at(20), Event::Ticked);
    other.step(at(21), empty(21));
    assert!(releases(&tenure.step(at(22), renewed(at(20)))));
    assert!(releases(&other.step(at(25), Event::Ticked)));
}

#[test]
fn loss_learnt_from_the_last_renewal_cannot_exclude_an_overlap() {
    let mut tenure = holding(rules());
    tenure.step(at(20), Event::Ticked);
    tenure.step(at(21), empty(21));
    let actions = tenure.step(at(22), unrenewed(lost()));
    assert_eq!(actions, [Action::Abandon, over(ending(&tenure))]);
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
    assert!(ending(&tenure).overlap);
}

#[test]
fn conflict_on_release_means_released() {
    let mut tenure = releasing(rules());
    tenure.step(at(1), Event::Released(Err(held())));
    assert!(ending(&tenure).released);
}

#[test]
fn lease_found_lost_on_release_was_taken_while_the_command_ran() {
    let mut tenure = holding(rules());
    tenure.step(at(5), exited(Exit::Code(0)));
    assert!(releases(&tenure.step(at(5), empty(5))));
    let actions = tenure.step(at(6), Event::Released(Err(lost())));
    let why = "broken".to_owned();
    assert_eq!(actions[0], Action::Notify(Notice::FoundLost { why }));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
    assert!(ending(&tenure).overlap && !ending(&tenure).released);
}

#[test]
fn lease_broken_at_its_end_was_held_until_then() {
    for (until, overlap) in [(at(50), false), (at(4), true)] {
        let mut tenure = holding(rules());
        tenure.step(at(5), exited(Exit::Code(0)));
        assert!(releases(&tenure.step(at(5), empty(5))));
        tenure.step(at(6), Event::Released(Err(breaking(until))));
        assert_eq!(ending(&tenure).overlap, overlap, "{until:?}");
    }
}

#[test]
fn lease_confirmed_after_the_tree_was_empty_was_not_taken_from_it() {
    let mut tenure = holding(keeping());
    assert!(renews(&ends(&mut tenure, at(5), Exit::Code(0))));
    tenure.step(at(6), renewed(at(5) + ms(1)));
    tenure.step(at(7), Event::StopAsked(TERM));
    tenure.step(at(8), Event::Released(Err(lost())));
    assert!(!ending(&tenure).overlap);
}

#[test]
fn lease_that_may_have_run_out_before_its_release_was_not_taken() {
    // By the store's clock the lease may have ended at 58.8.
    for (answered_at, overlap) in [(58, true), (59, false)] {
        let if_lost = IfLost::Exit;
        let mut tenure = holding(Rules { if_lost, ..rules() });
        tenure.step(at(48), Event::Ticked);
        tenure.step(at(50), exited(Exit::Signal(15)));
        tenure.step(at(50), empty(50));
        tenure.step(at(53), Event::Ticked);
        tenure.step(at(answered_at), Event::Released(Err(lost())));
        assert_eq!(ending(&tenure).overlap, overlap, "at {answered_at}");
    }
}

#[test]
fn instance_that_finds_its_lease_taken_reports_an_overlap_and_competes_again() {
    let mut tenure = holding(rules());
    tenure.step(at(48), Event::Ticked);
    tenure.step(at(50), exited(Exit::Signal(15)));
    tenure.step(at(50), empty(50));
    tenure.step(at(53), Event::Ticked);
    let actions = tenure.step(at(54), Event::Released(Err(lost())));
    assert!(has(&actions, &Action::Notify(Notice::Overlapped)));
    assert_eq!(*tenure.state(), State::Standby);
}

#[test]
fn lease_without_a_command_cannot_have_overlapped() {
    let mut tenure = acquiring(rules());
    tenure.step(at(1), Event::StopAsked(TERM));
    tenure.step(at(2), grant(BEGIN));
    tenure.step(at(2), Event::Released(Err(lost())));
    assert!(!ending(&tenure).overlap);
}

#[test]
fn failed_release_is_retried_and_then_left_to_run_out() {
    let mut tenure = releasing(rules());
    let mut now = BEGIN;
    let mut asked = 1;
    let mut last = Vec::new();
    while tenure.ending().is_none() {
        last = tenure.step(now, Event::Released(Err(transient())));
        now = tenure.wake_at();
        asked += usize::from(releases(&tenure.step(now, Event::Ticked)));
    }
    assert!((4..=7).contains(&asked), "asked {asked} times in 10 s");
    assert_eq!(last[0], Action::Abandon);
    assert!(!ending(&tenure).released && !ending(&tenure).overlap);
}

#[test]
fn second_stop_does_not_wait_for_a_store_that_hangs() {
    let mut tenure = releasing(rules());
    let actions = tenure.step(at(1), Event::StopAsked(INT));
    assert_eq!(actions[0], Action::Abandon);
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
}

#[test]
fn lost_guardian_ends_the_instance_once_the_tree_is_empty() {
    let mut tenure = holding(rules());
    assert!(!releases(
        &tenure.step(at(5), Event::Workload(WorkloadEvent::Lost))
    ));
    assert!(releases(&tenure.step(at(6), empty(6))));
    tenure.step(at(6), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::GuardianLost);
}

#[test]
fn guardian_lost_during_a_doubtful_drain_ends_the_instance() {
    let mut tenure = holding(rules());
    tenure.step(at(48), Event::Ticked);
    tenure.step(at(53), Event::Workload(WorkloadEvent::Lost));
    tenure.step(at(54), empty(54));
    tenure.step(at(54), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::GuardianLost);
}

#[test]
fn stuck_tree_is_never_released() {
    let mut tenure = draining(rules());
    tenure.step(at(30), Event::Ticked);
    let actions = tenure.step(at(31), Event::Workload(WorkloadEvent::TreeStuck));
    assert_eq!(actions[0], Action::Abandon);
    assert!(ending(&tenure).overlap && !ending(&tenure).released);
}

#[test]
fn tree_that_dies_slowly_keeps_its_lease() {
    let mut tenure = draining(rules());
    tenure.step(at(10), Event::StopAsked(TERM));
    assert_eq!(*tenure.state(), State::Killing);
    let mut now = at(10);
    while now < at(300) {
        now = tenure.wake_at();
        assert!(renews(&tenure.step(now, Event::Ticked)));
        tenure.step(now, renewed(now));
    }
    tenure.step(now, Event::Workload(WorkloadEvent::TreeEmpty { at: now }));
    tenure.step(now, Event::Released(Ok(())));
    assert!(!ending(&tenure).overlap);
}

#[test]
fn renewal_that_succeeds_after_kill_at_excludes_no_overlap() {
    let if_lost = IfLost::Exit;
    let mut tenure = holding(Rules { if_lost, ..rules() });
    tenure.step(at(20), Event::Ticked);
    tenure.step(at(58), Event::Ticked);
    tenure.step(at(59), renewed(at(20)));
    tenure.step(at(61), empty(61));
    tenure.step(at(61), Event::Released(Ok(())));
    assert!(ending(&tenure).overlap);
}

#[test]
fn overlap_is_reported_by_an_instance_that_competes_on() {
    let mut tenure = holding(rules());
    tenure.step(at(1), unrenewed(lost()));
    let actions = tenure.step(at(2), emptied(at(2)));
    assert_eq!(*tenure.state(), State::Standby);
    assert!(has(&actions, &Action::Notify(Notice::Overlapped)));
}
