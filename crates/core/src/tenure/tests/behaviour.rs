//! Standing by, holding and draining.

use super::*;

#[test]
fn the_first_attempt_is_made_at_once() {
    let mut tenure = Tenure::new(rules(), BEGIN);
    assert_eq!(tenure.wake_at(), BEGIN);
    let actions = tenure.step(BEGIN, Event::Ticked);
    assert_eq!(actions, [Action::Acquire { give_up_at: at(5) }]);
}

#[test]
fn standby_polls_with_a_spread_and_reports_its_holder_once() {
    let mut tenure = acquiring(rules());
    let actions = tenure.step(BEGIN, refused(held()));
    let notice = Action::Notify(Notice::StandingBy(HolderInfo::default()));
    assert_eq!(actions, [notice, Action::StandBy]);
    let wake = tenure.wake_at();
    assert!(wake > BEGIN && wake <= BEGIN + ms(2400));
    assert!(acquires(&tenure.step(wake, Event::Ticked)));
    assert_eq!(tenure.step(wake, refused(held())), [], "no noise per poll");
    let next = tenure.wake_at();
    assert!(next >= wake + ms(1600) && next <= wake + ms(2400));
}

#[test]
fn store_that_wakes_its_waiters_is_not_polled() {
    let mut tenure = acquiring(Rules {
        poll: None,
        ..rules()
    });
    tenure.step(BEGIN, refused(held()));
    assert_eq!(tenure.wake_at(), Instant::FOREVER);
    assert!(acquires(&tenure.step(at(9), Event::Freed)));
}

#[test]
fn wake_ups_in_vain_are_followed_with_a_gap() {
    let mut tenure = acquiring(Rules {
        poll: None,
        ..rules()
    });
    tenure.step(BEGIN, refused(held()));
    assert!(acquires(&tenure.step(at(1), Event::Freed)), "at once");
    tenure.step(at(1), refused(held()));
    assert!(!acquires(&tenure.step(at(1), Event::Freed)), "in vain");
    assert_eq!(tenure.wake_at(), at(1) + ms(50));
    assert!(acquires(&tenure.step(at(1) + ms(50), Event::Ticked)));
}

#[test]
fn one_look_ends_with_the_first_answer() {
    let mut tenure = acquiring(Rules {
        wait: Some(Duration::ZERO),
        ..rules()
    });
    tenure.step(at(1), refused(held()));
    assert_eq!(
        ending(&tenure).cause,
        Cause::NotObtained(HolderInfo::default())
    );
}

#[test]
fn a_limited_wait_ends_at_its_time_after_a_last_look_before_it() {
    let mut tenure = acquiring(Rules {
        poll: Some(secs(60)),
        wait: Some(secs(5)),
        ..rules()
    });
    tenure.step(BEGIN, refused(held()));
    let last = tenure.wake_at();
    assert!(last < at(5) && acquires(&tenure.step(last, Event::Ticked)));
    tenure.step(last, refused(held()));
    assert_eq!(tenure.wake_at(), at(5));
    assert!(!acquires(&tenure.step(at(5), Event::Ticked)));
    assert_eq!(
        ending(&tenure).cause,
        Cause::NotObtained(HolderInfo::default())
    );
}

#[test]
fn store_never_reached_is_left_after_the_patience() {
    for (wait, patience, end) in [
        (None, 30, 30),
        (None, 300, 300),
        (None, 1, 1),
        // Five seconds in total, with the undoing.
        (Some(Duration::ZERO), 30, 3),
        (Some(Duration::ZERO), 2, 2),
    ] {
        let rules = Rules {
            wait,
            patience: secs(patience),
            ..rules()
        };
        never_reached(rules, at(end));
    }
}

fn never_reached(rules: Rules, end: Instant) {
    let mut tenure = acquiring(rules);
    let mut now = BEGIN;
    while tenure.ending().is_none() {
        match tenure.state() {
            State::Acquiring => tenure.step(now, refused(transient())),
            State::Releasing => tenure.step(now, Event::Released(Ok(()))),
            _ => {
                now = tenure.wake_at();
                tenure.step(now, Event::Ticked)
            }
        };
    }
    assert_eq!(now, end);
    let why = "no answer".into();
    let denied = false;
    assert_eq!(ending(&tenure).cause, Cause::Store { why, denied });
}

#[test]
fn store_that_answered_once_is_never_left_and_its_silence_is_reported_each_minute() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, refused(held()));
    let mut reports = 0;
    for n in 1..5000 {
        let now = tenure.wake_at();
        assert!(acquires(&tenure.step(now, Event::Ticked)));
        let failure = if n % 2 == 0 { transient() } else { fatal() };
        reports += tenure.step(now, refused(failure)).len();
    }
    let minutes = tenure.wake_at().since(BEGIN).as_secs() as usize / 60;
    assert!(
        reports > 1 && reports <= minutes + 1 && reports >= minutes * 9 / 10,
        "doubt is reported at once and once a minute: {reports} in {minutes} minutes"
    );
    let now = tenure.wake_at();
    tenure.step(now, Event::Ticked);
    let actions = tenure.step(now, refused(held()));
    assert!(has(&actions, &Action::Notify(Notice::Recovered)));
}

#[test]
fn refusal_before_the_first_contact_ends_the_instance_at_once() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, refused(fatal()));
    let why = "forbidden".into();
    let denied = true;
    assert_eq!(ending(&tenure).cause, Cause::Store { why, denied });
}

#[test]
fn retry_after_is_honoured_while_standing_by() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, refused(held()));
    let now = tenure.wake_at();
    tenure.step(now, Event::Ticked);
    let busy = Failure::Transient {
        why: "429".into(),
        retry_after: Some(secs(20)),
    };
    tenure.step(now, refused(busy));
    assert!(tenure.wake_at() >= now + secs(20) && tenure.wake_at() <= now + secs(24));
}

#[test]
fn deadlines_count_from_before_the_request_was_sent() {
    let mut tenure = acquiring(rules());
    let actions = tenure.step(at(4), grant(BEGIN));
    assert_eq!(start(&actions), Some((at(48), at(58))));
    assert!(renews(&tenure.step(at(20), Event::Ticked)));
    let actions = tenure.step(at(24), renewed(at(20)));
    assert_eq!(extend(&actions), Some((at(68), at(78))));
    assert!(matches!(actions[0], Action::Extend(_)), "goes first");
}

#[test]
fn lease_without_time_is_held_for_ever() {
    let mut tenure = acquiring(Rules {
        budget: None,
        ..rules()
    });
    let actions = tenure.step(BEGIN, grant(BEGIN));
    let forever = Instant::FOREVER;
    assert_eq!(start(&actions), Some((forever, forever)));
    assert_eq!(tenure.wake_at(), forever);
    assert_eq!(tenure.step(at(1_000_000), Event::Ticked), []);
}

#[test]
fn slow_acquire_is_renewed_before_the_command_starts() {
    let mut tenure = acquiring(rules());
    let actions = tenure.step(at(31), grant(BEGIN));
    assert!(renews(&actions) && start(&actions).is_none());
    let actions = tenure.step(at(32), renewed(at(31)));
    assert_eq!(start(&actions), Some((at(79), at(89))));
}

#[test]
fn slow_acquire_that_cannot_be_confirmed_is_given_back_unused() {
    let mut tenure = acquiring(rules());
    tenure.step(at(31), grant(BEGIN));
    tenure.step(at(32), unrenewed(transient()));
    assert!(releases(&tenure.step(at(48), Event::Ticked)));
    tenure.step(at(48), Event::Released(Ok(())));
    assert_eq!(*tenure.state(), State::Standby);
}

#[test]
fn grant_that_came_too_late_never_starts_anything() {
    let mut tenure = acquiring(rules());
    let actions = tenure.step(at(48), grant(BEGIN));
    assert!(start(&actions).is_none() && releases(&actions));
    tenure.step(at(48), Event::Released(Ok(())));
    assert_eq!(*tenure.state(), State::Standby);
    assert!(acquires(&tenure.step(at(60), Event::Ticked)));
}

#[test]
fn failed_renewal_is_retried_from_start_to_start_and_reported_once() {
    let mut tenure = holding(rules());
    let actions = tenure.step(at(20), Event::Ticked);
    assert_eq!(actions, [Action::Renew { give_up_at: at(25) }]);
    let why = "no answer".into();
    let term_at = Some(at(48));
    let doubt = Action::Notify(Notice::Doubt { why, term_at });
    assert_eq!(tenure.step(at(21), unrenewed(transient())), [doubt]);
    let again = tenure.wake_at();
    assert!(again >= at(20) + ms(1600) && again <= at(20) + ms(2400));
    assert!(renews(&tenure.step(again, Event::Ticked)));
    assert_eq!(tenure.step(again, unrenewed(fatal())), []);
    tenure.step(tenure.wake_at(), Event::Ticked);
    let actions = tenure.step(at(30), renewed(at(29)));
    assert!(has(&actions, &Action::Notify(Notice::Recovered)));
    assert_eq!(*tenure.state(), State::Holding);
}

#[test]
fn no_attempt_outlasts_term_at() {
    let mut tenure = holding(rules());
    let actions = tenure.step(at(46), Event::Ticked);
    assert_eq!(actions, [Action::Renew { give_up_at: at(48) }]);
}

#[test]
fn retry_after_leaves_time_for_a_last_attempt_before_term_at() {
    let mut tenure = holding(rules());
    tenure.step(at(20), Event::Ticked);
    let busy = Failure::Transient {
        why: "503".into(),
        retry_after: Some(secs(600)),
    };
    tenure.step(at(20), unrenewed(busy));
    assert_eq!(tenure.wake_at(), at(46));
    assert!(renews(&tenure.step(at(46), Event::Ticked)));
}

#[test]
fn doubt_becomes_a_drain_at_term_at_and_a_kill_at_kill_at() {
    let mut tenure = holding(rules());
    tenure.step(at(20), Event::Ticked);
    tenure.step(at(20), unrenewed(transient()));
    let actions = tenure.step(at(48), Event::Ticked);
    assert_eq!(end_of_grace(&actions), Some(at(58)));
    let actions = tenure.step(at(58), Event::Ticked);
    assert!(has(&actions, &Action::Kill));
}

#[test]
fn clock_comes_before_a_reply_that_waited_during_a_long_pause() {
    let mut tenure = holding(rules());
    tenure.step(at(20), Event::Ticked);
    let actions = tenure.step(at(58), renewed(at(20)));
    assert!(has(&actions, &Action::Kill));
    assert_eq!(
        extend(&actions),
        None,
        "a success after kill_at does not count"
    );
}

#[test]
fn definite_loss_kills_at_once() {
    for failure in [lost(), held()] {
        let mut tenure = holding(rules());
        tenure.step(at(20), Event::Ticked);
        let actions = tenure.step(at(21), unrenewed(failure));
        assert_eq!(actions[0], Action::Kill);
        assert_eq!(tenure.wake_at(), Instant::FOREVER, "no more renewals");
    }
}

#[test]
fn lease_that_is_being_broken_is_drained_in_the_time_it_has() {
    let mut tenure = holding(rules());
    tenure.step(at(20), Event::Ticked);
    let actions = tenure.step(at(21), unrenewed(breaking(at(28))));
    assert_eq!(extend(&actions), Some((at(26), at(26))), "a margin before");
    assert_eq!(end_of_grace(&actions), Some(at(26)));
    assert!(has(&tenure.step(at(26), Event::Ticked), &Action::Kill));
}

#[test]
fn lease_that_is_being_broken_is_asked_for_again_because_it_can_be_broken_again() {
    let mut tenure = holding(rules());
    tenure.step(at(10), Event::Ticked);
    tenure.step(at(10), unrenewed(breaking(at(40))));
    assert_eq!(*tenure.state(), State::Draining);
    assert_eq!(tenure.wake_at(), at(10) + ms(200), "the announcement");
    tenure.step(at(10) + ms(200), Event::Ticked);
    assert_eq!(tenure.wake_at(), at(11));
    assert!(renews(&tenure.step(at(11), Event::Ticked)));
    let same = tenure.step(at(11), unrenewed(breaking(at(40))));
    assert_eq!(extend(&same), Some((at(38), at(38))));
    assert!(renews(&tenure.step(at(12), Event::Ticked)));
    tenure.step(at(13), unrenewed(transient()));
    assert!(renews(&tenure.step(at(15), Event::Ticked)));
    let later = tenure.step(at(15), unrenewed(breaking(at(50))));
    assert_eq!(extend(&later), Some((at(38), at(38))));
    // Broken again, with a period; then at once.
    tenure.step(at(16), Event::Ticked);
    let shorter = tenure.step(at(16), unrenewed(breaking(at(20))));
    assert_eq!(extend(&shorter), Some((at(18), at(18))));
    assert!(renews(&tenure.step(at(17), Event::Ticked)));
    let none = tenure.step(at(17), unrenewed(lost()));
    assert!(has(&none, &Action::Kill));
    let actions = tenure.step(
        at(18),
        Event::Workload(WorkloadEvent::TreeEmpty { at: at(18) }),
    );
    assert!(has(&actions, &Action::Notify(Notice::Overlapped)));
}

#[test]
fn lease_broken_for_later_than_it_lasts_ends_when_it_would_have() {
    let mut tenure = holding(rules());
    tenure.step(at(20), Event::Ticked);
    let actions = tenure.step(at(47), unrenewed(breaking(at(500))));
    assert_eq!(extend(&actions), Some((at(48), at(58))));
    assert_eq!(end_of_grace(&actions), Some(at(57)), "grace on loss");
}

#[test]
fn drain_renews_and_its_grace_may_outlast_the_lease() {
    let mut tenure = holding(Rules {
        grace: secs(300),
        ..rules()
    });
    let actions = tenure.step(at(10), Event::StopAsked(TERM));
    assert_eq!(end_of_grace(&actions), Some(at(310)));
    let mut now = at(10);
    while *tenure.state() == State::Draining {
        now = tenure.wake_at();
        if renews(&tenure.step(now, Event::Ticked)) {
            assert!(extend(&tenure.step(now, renewed(now))).is_some());
        }
    }
    assert_eq!((now, *tenure.state()), (at(310), State::Killing));
}

#[test]
fn grace_is_cut_by_a_lease_that_is_not_renewed() {
    let mut tenure = holding(Rules {
        grace: secs(300),
        ..rules()
    });
    tenure.step(at(10), Event::StopAsked(TERM));
    tenure.step(at(20), Event::Ticked);
    assert_eq!(*tenure.state(), State::Draining);
    assert!(has(&tenure.step(at(58), Event::Ticked), &Action::Kill));
}

#[test]
fn recovery_during_a_doubtful_drain_moves_kill_at_but_not_the_end_of_grace() {
    let mut tenure = holding(rules());
    tenure.step(at(20), Event::Ticked);
    tenure.step(at(20), unrenewed(transient()));
    assert!(renews(&tenure.step(at(48), Event::Ticked)));
    let actions = tenure.step(at(49), renewed(at(48)));
    assert_eq!(extend(&actions), Some((at(96), at(106))));
    assert_eq!(*tenure.state(), State::Draining);
    assert!(has(&tenure.step(at(58), Event::Ticked), &Action::Kill));
}

#[test]
fn second_term_or_int_kills_at_once_and_another_signal_does_not() {
    let mut tenure = draining(rules());
    assert_eq!(
        tenure.step(at(1), Event::StopAsked(HUP)),
        [Action::Announce]
    );
    assert_eq!(tenure.step(at(2), Event::StopAsked(INT)), [Action::Kill]);
}

#[test]
fn two_stops_within_an_instant_are_one_request() {
    let mut tenure = draining(rules());
    let actions = tenure.step(BEGIN + ms(1), Event::StopAsked(TERM));
    assert_eq!(actions, [], "timeout(1) signals its child twice");
    assert_eq!(*tenure.state(), State::Draining);
}

#[test]
fn slow_drain_is_announced_once() {
    let mut tenure = draining(rules());
    assert_eq!(tenure.wake_at(), BEGIN + ms(200));
    assert_eq!(tenure.step(BEGIN + ms(199), Event::Ticked), []);
    let actions = tenure.step(BEGIN + ms(200), Event::Ticked);
    assert_eq!(actions, [Action::Announce]);
    assert_eq!(tenure.step(at(1), Event::Ticked), []);
}

#[test]
fn leftovers_of_a_command_are_drained_with_grace() {
    let mut tenure = holding(rules());
    let actions = tenure.step(at(3), Event::Workload(WorkloadEvent::Exited(Exit::Code(0))));
    assert_eq!(end_of_grace(&actions), Some(at(33)));
    assert_eq!(*tenure.state(), State::Draining);
    assert!(has(&tenure.step(at(33), Event::Ticked), &Action::Kill));
}

#[test]
fn well_behaved_store_never_costs_a_drain() {
    for lease in [15, 20, 30, 60] {
        let budget = Some(Budget::for_lease(secs(lease)));
        let mut tenure = holding(Rules { budget, ..rules() });
        let mut now = BEGIN;
        let mut problem = 0;
        while now < at(6 * 3600) {
            now = tenure.wake_at() + ms(3);
            if !renews(&tenure.step(now, Event::Ticked)) {
                continue;
            }
            problem += 1;
            if problem % 3 == 0 {
                now = now + secs(5);
                tenure.step(now, unrenewed(transient()));
            } else {
                let actions = tenure.step(now + ms(700), renewed(now + ms(1)));
                assert!(extend(&actions).is_some());
                now = now + ms(700);
            }
            assert_eq!(*tenure.state(), State::Holding, "lease {lease} at {now:?}");
        }
    }
}

#[test]
fn loss_learnt_by_the_way_verifies_the_lease_at_once() {
    let mut tenure = holding(rules());
    assert!(renews(&tenure.doubted(at(5))));
    assert!(!renews(&tenure.doubted(at(6))), "one is in flight");
    let mut tenure = holding(rules());
    tenure.step(at(5), Event::StopAsked(libc::SIGTERM));
    assert!(renews(&tenure.doubted(at(6))));
}

#[test]
fn clock_jump_verifies_the_lease_at_once() {
    let mut tenure = holding(rules());
    assert!(!renews(&tenure.step(at(5), Event::Ticked)));
    assert!(renews(
        &tenure.step(at(5), Event::Workload(WorkloadEvent::ClockJumped))
    ));
    assert!(
        !renews(&tenure.step(at(6), Event::Workload(WorkloadEvent::ClockJumped))),
        "one is in flight"
    );
}
