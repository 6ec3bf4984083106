//! Restarts, handing control over, and keeping a lease.

use super::*;

fn max_hold(seconds: u64) -> Rules {
    Rules {
        hold_policy: HoldPolicy {
            max_hold: Some(secs(seconds)),
            ..HoldPolicy::default()
        },
        ..rules()
    }
}

fn confirmed(tenure: &mut Tenure, now: Instant) {
    assert_eq!(tenure.step(now, renewed(now)), []);
    assert_eq!(*tenure.state(), State::Resting);
}

fn failed(tenure: &mut Tenure, now: Instant) {
    fails(tenure, now);
    confirmed(tenure, now);
}

/// Lets time pass, with a store that answers everything.
fn pass(tenure: &mut Tenure, until: Instant) -> Vec<(Instant, Action)> {
    let mut done = Vec::new();
    while tenure.wake_at() <= until {
        let now = tenure.wake_at();
        for action in tenure.step(now, Event::Ticked) {
            if matches!(action, Action::Renew { .. }) {
                tenure.step(now, renewed(now));
            }
            done.push((now, action));
        }
    }
    done
}

fn starts(done: &[(Instant, Action)]) -> Vec<Instant> {
    let start = |action: &Action| matches!(action, Action::Start(_));
    done.iter()
        .filter_map(|(at, action)| start(action).then_some(*at))
        .collect()
}

#[test]
fn failed_command_is_started_again_after_a_back_off_under_the_same_lease() {
    let mut tenure = holding(restarting());
    let actions = fails(&mut tenure, at(5));
    let until = at(6);
    let said = Action::Notify(Notice::BackingOff { until, number: 1 });
    assert!(has(&actions, &said) && !releases(&actions));
    confirmed(&mut tenure, at(5));
    assert_eq!(tenure.wake_at(), at(6));
    let actions = tenure.step(at(6), Event::Ticked);
    assert_eq!(actions[0], Action::Notify(Notice::Restarting));
    let again = Action::Start(Start {
        deadlines: Deadlines {
            term_at: at(53),
            kill_at: at(63),
        },
        fresh_until: at(35),
        token: 7,
    });
    assert_eq!(actions[1], again);
    assert_eq!(*tenure.state(), State::Holding);
}

#[test]
fn success_ends_the_instance_that_restarts_on_failure() {
    let mut tenure = holding(restarting());
    assert!(releases(&ends(&mut tenure, at(5), Exit::Code(0))));
    tenure.step(at(5), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
}

#[test]
fn restart_after_any_end_includes_a_success() {
    let mut rules = restarting();
    rules.hold_policy.restart.as_mut().unwrap().after = After::Any;
    let mut tenure = holding(rules);
    ends(&mut tenure, at(5), Exit::Code(0));
    assert_eq!(starts(&pass(&mut tenure, at(6))), [at(6)]);
}

#[test]
fn leftovers_are_drained_unannounced_before_a_restart() {
    let mut tenure = holding(restarting());
    tenure.step(at(5), exited(Exit::Code(3)));
    assert_eq!(*tenure.state(), State::Draining);
    let done = pass(&mut tenure, at(25));
    assert!(starts(&done).is_empty());
    assert!(!done.iter().any(|(_, action)| *action == Action::Announce));
    tenure.step(at(26), emptied(at(26)));
    assert_eq!(*tenure.state(), State::Resting);
    assert_eq!(starts(&pass(&mut tenure, at(27))), [at(27)]);
}

#[test]
fn command_that_cannot_be_started_again_ends_the_instance() {
    let mut tenure = holding(restarting());
    failed(&mut tenure, at(5));
    pass(&mut tenure, at(6));
    assert!(releases(&tenure.step(
        at(6),
        Event::Workload(WorkloadEvent::NotStarted { errno: 2 })
    )));
    tenure.step(at(6), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::NotStarted { errno: 2 });
}

#[test]
fn restart_limit_leads_to_a_hand_over_and_a_cool_down() {
    let mut tenure = holding(Rules {
        wait: Some(secs(1)),
        ..restarting()
    });
    failed(&mut tenure, at(5));
    assert_eq!(starts(&pass(&mut tenure, at(6))), [at(6)]);
    failed(&mut tenure, at(6));
    assert_eq!(starts(&pass(&mut tenure, at(8))), [at(8)]);
    let actions = fails(&mut tenure, at(8));
    assert_eq!(actions[0], Action::Notify(Notice::RestartsSpent));
    assert!(releases(&actions));
    let until = at(12);
    let actions = tenure.step(at(8), Event::Released(Ok(())));
    assert!(has(
        &actions,
        &Action::Notify(Notice::CoolingDown { until })
    ));
    assert_eq!(*tenure.state(), State::Standby);
    assert!(!tenure.listens(), "it would keep a lock that it was handed");
    assert_eq!(tenure.wake_at(), until, "two polls");
    assert!(acquires(&tenure.step(until, Event::Ticked)));
    assert!(start(&tenure.step(until, grant(until))).is_some());
    fails(&mut tenure, at(13));
    assert_eq!(*tenure.state(), State::Resting);
}

#[test]
fn lease_is_renewed_all_through_a_back_off() {
    let mut rules = restarting();
    rules.hold_policy.restart.as_mut().unwrap().limit = 9;
    let mut tenure = holding(rules);
    let mut now = at(1);
    for _ in 0..8 {
        failed(&mut tenure, now);
        let done = pass(&mut tenure, now + secs(31));
        let [again] = starts(&done)[..] else {
            panic!("not one start in {done:?}");
        };
        now = now.max(again) + secs(31);
        assert_eq!(*tenure.state(), State::Holding);
    }
}

#[test]
fn stop_during_a_back_off_leaves_by_the_signal() {
    let mut tenure = holding(restarting());
    failed(&mut tenure, at(5));
    assert!(releases(&tenure.step(at(5), Event::StopAsked(HUP))));
    tenure.step(at(5), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(HUP));
    assert_eq!(ending(&tenure).exit, None, "the signal decides");
}

#[test]
fn stop_while_leftovers_are_drained_leaves_with_the_command_s_status() {
    let mut tenure = holding(restarting());
    tenure.step(at(5), exited(Exit::Code(3)));
    tenure.step(at(6), Event::StopAsked(TERM));
    assert!(releases(&tenure.step(at(7), emptied(at(7)))));
    tenure.step(at(7), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).exit, Some(Exit::Code(3)));
}

#[test]
fn loss_during_a_back_off_starts_nothing_and_competes() {
    for failure in [held(), lost(), breaking(at(50))] {
        let mut tenure = holding(restarting());
        failed(&mut tenure, at(5));
        let actions = tenure.step(at(6) - ms(1), unrenewed(failure.clone()));
        assert!(has(&actions, &Action::Abandon), "{failure:?}");
        assert!(
            !has(&actions, &Action::Notify(Notice::Overlapped)),
            "{failure:?}"
        );
        assert_eq!(*tenure.state(), State::Standby, "{failure:?}");
    }
}

#[test]
fn loss_before_the_lease_was_confirmed_cannot_exclude_an_overlap() {
    let mut tenure = holding(restarting());
    fails(&mut tenure, at(5));
    let actions = tenure.step(at(5), unrenewed(lost()));
    assert!(has(&actions, &Action::Notify(Notice::Overlapped)));
    // Nor can it after the confirmation of a request that was sent while something lived.
    let mut tenure = holding(restarting());
    fails(&mut tenure, at(5));
    tenure.step(at(5), renewed(at(4)));
    let actions = tenure.step(at(5), unrenewed(lost()));
    assert!(has(&actions, &Action::Notify(Notice::Overlapped)));
}

#[test]
fn loss_during_a_back_off_ends_an_instance_that_exits_on_loss() {
    let mut tenure = holding(Rules {
        if_lost: IfLost::Exit,
        ..restarting()
    });
    failed(&mut tenure, at(5));
    tenure.step(at(5), unrenewed(lost()));
    assert!(matches!(ending(&tenure).cause, Cause::Lost { .. }));
    assert!(!ending(&tenure).overlap);
}

#[test]
fn no_restart_under_a_deadline_that_has_passed() {
    let mut tenure = holding(restarting());
    fails(&mut tenure, at(5));
    let actions = tenure.step(at(48), Event::Ticked);
    assert!(releases(&actions) && start(&actions).is_none());
    tenure.step(at(48), Event::Released(Ok(())));
    assert_eq!(*tenure.state(), State::Standby);
}

#[test]
fn half_gone_lease_is_confirmed_before_a_restart() {
    let mut tenure = holding(restarting());
    fails(&mut tenure, at(30));
    assert_eq!(tenure.wake_at(), at(31));
    assert_eq!(tenure.step(at(31), Event::Ticked), []);
    assert!(tenure.wake_at() > at(31));
    assert!(renews(&tenure.step(at(33), unrenewed(transient()))));
    let actions = tenure.step(at(34), renewed(at(33)));
    assert_eq!(start(&actions), Some((at(81), at(91))));
}

#[test]
fn command_that_ended_before_a_pause_is_not_restarted_under_the_rest_of_the_lease() {
    let mut tenure = holding(restarting());
    tenure.step(at(500), exited(Exit::Code(3)));
    let actions = tenure.step(at(500), emptied(at(30)));
    assert_eq!(start(&actions), None);
    assert_eq!(*tenure.state(), State::Standby, "it competes again");
    assert!(!has(&actions, &Action::Notify(Notice::Overlapped)));
}

#[test]
fn lease_lost_while_the_command_ended_allows_no_restart() {
    let mut tenure = holding(restarting());
    tenure.step(at(20), Event::Ticked);
    tenure.step(at(20), exited(Exit::Code(3)));
    tenure.step(at(21), unrenewed(lost()));
    assert_eq!(*tenure.state(), State::Killing);
    let actions = tenure.step(at(22), emptied(at(22)));
    assert!(has(&actions, &Action::Notify(Notice::Overlapped)));
    assert_eq!(*tenure.state(), State::Standby);
}

#[test]
fn no_restart_without_a_guardian() {
    let mut idle = holding(restarting());
    failed(&mut idle, at(5));
    assert!(releases(
        &idle.step(at(5), Event::Workload(WorkloadEvent::Lost))
    ));
    let mut draining = holding(restarting());
    draining.step(at(5), exited(Exit::Code(3)));
    draining.step(at(5), Event::Workload(WorkloadEvent::Lost));
    assert!(releases(&draining.step(at(6), emptied(at(6)))));
    for mut tenure in [idle, draining] {
        tenure.step(at(6), Event::Released(Ok(())));
        assert_eq!(ending(&tenure).cause, Cause::GuardianLost);
    }
}

#[test]
fn longest_tenure_ends_in_a_drain_a_release_and_a_new_competition() {
    let mut tenure = holding(max_hold(100));
    let done = pass(&mut tenure, at(100));
    assert_eq!(*tenure.state(), State::Draining);
    let drain = Action::Drain {
        signal: TERM,
        end_of_grace: at(130),
    };
    let said = Action::Notify(Notice::Draining(Cause::HandOver));
    assert!(done.contains(&(at(100), drain)) && done.contains(&(at(100), said)));
    let done = pass(&mut tenure, at(129));
    assert_eq!(
        done[0].1,
        Action::Announce,
        "standbys are told to look often"
    );
    tenure.step(at(129), exited(Exit::Code(9)));
    assert!(releases(&tenure.step(at(129), emptied(at(129)))));
    tenure.step(at(129), Event::Released(Ok(())));
    assert_eq!(*tenure.state(), State::Standby);
    assert_eq!(tenure.wake_at(), at(133), "two polls");
    assert!(acquires(&tenure.step(at(133), Event::Ticked)));
    assert!(start(&tenure.step(at(133), grant(at(133)))).is_some());
    assert!(
        !pass(&mut tenure, at(232))
            .iter()
            .any(|(_, action)| matches!(action, Action::Drain { .. })),
        "a new tenure has its own time"
    );
}

#[test]
fn cool_down_lasts_as_long_as_set() {
    let mut rules = max_hold(100);
    rules.hold_policy.cooldown = Some(secs(77));
    let mut tenure = holding(rules);
    pass(&mut tenure, at(100));
    tenure.step(at(101), emptied(at(101)));
    tenure.step(at(101), Event::Released(Ok(())));
    assert_eq!(tenure.wake_at(), at(178));
}

#[test]
fn cool_down_is_short_where_the_store_wakes_the_others() {
    let mut tenure = holding(Rules {
        poll: None,
        ..max_hold(100)
    });
    pass(&mut tenure, at(100));
    tenure.step(at(101), emptied(at(101)));
    tenure.step(at(101), Event::Released(Ok(())));
    assert_eq!(tenure.wake_at(), at(101) + ms(500));
}

#[test]
fn stop_during_a_hand_over_ends_the_instance() {
    let mut tenure = holding(max_hold(100));
    pass(&mut tenure, at(100));
    tenure.step(at(101), Event::StopAsked(TERM));
    tenure.step(at(102), exited(Exit::Signal(15)));
    tenure.step(at(102), emptied(at(102)));
    tenure.step(at(102), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
    assert_eq!(ending(&tenure).exit, Some(Exit::Signal(15)));
}

#[test]
fn command_that_ended_just_before_a_hand_over_ended_by_itself() {
    let mut tenure = holding(max_hold(100));
    pass(&mut tenure, at(100));
    tenure.step(at(100) + ms(1), exited(Exit::Code(0)));
    let at_ = at(100) - ms(1);
    tenure.step(at(100) + ms(1), emptied(at_));
    tenure.step(at(101), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
}

#[test]
fn lease_lost_during_a_hand_over_is_lost() {
    let mut tenure = holding(Rules {
        if_lost: IfLost::Exit,
        ..max_hold(100)
    });
    pass(&mut tenure, at(100));
    tenure.step(at(101), unrenewed(lost()));
    tenure.step(at(102), emptied(at(102)));
    assert!(matches!(ending(&tenure).cause, Cause::Lost { .. }));
    assert!(ending(&tenure).overlap);
}

#[test]
fn back_off_does_not_outlast_the_longest_tenure() {
    let mut rules = restarting();
    rules.hold_policy.max_hold = Some(secs(60));
    let mut tenure = holding(rules);
    pass(&mut tenure, at(59));
    failed(&mut tenure, at(59) + ms(500));
    assert_eq!(tenure.wake_at(), at(60));
    let actions = tenure.step(at(60), Event::Ticked);
    assert_eq!(actions[0], Action::Notify(Notice::HoldOver));
    assert!(releases(&actions));
    tenure.step(at(60), Event::Released(Ok(())));
    assert_eq!(tenure.wake_at(), at(64));
}

#[test]
fn lease_of_a_short_command_is_kept_for_the_shortest_tenure() {
    let mut tenure = holding(keeping());
    let actions = ends(&mut tenure, at(5), Exit::Code(4));
    let until = at(120);
    assert!(has(&actions, &Action::Notify(Notice::Keeping { until })));
    confirmed(&mut tenure, at(5));
    let done = pass(&mut tenure, at(119));
    let renewals = done.len();
    assert!(renewals >= 5 && done.iter().all(|(_, a)| matches!(a, Action::Renew { .. })));
    assert!(releases(&tenure.step(at(120), Event::Ticked)));
    tenure.step(at(120), Event::Released(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
    assert_eq!(ending(&tenure).exit, Some(Exit::Code(4)));
}

#[test]
fn shortest_tenure_that_is_over_keeps_nothing() {
    let mut tenure = holding(keeping());
    pass(&mut tenure, at(120));
    assert!(releases(&ends(&mut tenure, at(120), Exit::Code(0))));
}

#[test]
fn end_of_the_keeping_leaves_the_command_s_status_and_restarts_nothing() {
    let end = |event: Event, now: Instant| {
        let mut tenure = holding(keeping());
        ends(&mut tenure, at(5), Exit::Code(4));
        confirmed(&mut tenure, at(5));
        tenure.step(now, event);
        let mut now = now;
        while tenure.ending().is_none() {
            assert_eq!(*tenure.state(), State::Releasing);
            now = now.max(tenure.wake_at().min(now + secs(1)));
            tenure.step(now, Event::Released(Ok(())));
            tenure.step(now, Event::Ticked);
        }
        assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
        assert_eq!(ending(&tenure).exit, Some(Exit::Code(4)));
        assert!(!ending(&tenure).overlap);
    };
    end(Event::StopAsked(TERM), at(6));
    end(unrenewed(lost()), at(6));
    end(unrenewed(held()), at(6));
    end(Event::Ticked, at(64));
    end(Event::Ticked, at(1000));
}

#[test]
fn lease_is_kept_without_a_guardian_and_for_as_long_as_it_lasts() {
    let mut tenure = holding(keeping());
    ends(&mut tenure, at(5), Exit::Code(0));
    confirmed(&mut tenure, at(5));
    tenure.step(at(6), Event::Workload(WorkloadEvent::Lost));
    tenure.step(at(6), emptied(at(6)));
    assert_eq!(*tenure.state(), State::Resting);
    // Past term_at, which means nothing without a command.
    let mut now = at(25);
    while now < at(60) {
        tenure.step(now, Event::Ticked);
        tenure.step(now, unrenewed(transient()));
        assert_eq!(*tenure.state(), State::Resting, "{now:?}");
        now = tenure.wake_at();
    }
}

#[test]
fn failures_are_retried_and_the_success_is_kept() {
    let mut rules = restarting();
    rules.hold_policy.min_hold = Some(secs(120));
    let mut tenure = holding(rules);
    failed(&mut tenure, at(5));
    assert_eq!(starts(&pass(&mut tenure, at(6))), [at(6)]);
    ends(&mut tenure, at(7), Exit::Code(0));
    confirmed(&mut tenure, at(7));
    pass(&mut tenure, at(119));
    assert_eq!(*tenure.state(), State::Resting);
    assert!(releases(&tenure.step(at(120), Event::Ticked)));
}

#[test]
fn unseen_end_is_not_a_failure() {
    let mut tenure = holding(restarting());
    assert!(releases(&tenure.step(at(5), emptied(at(5)))));
}
