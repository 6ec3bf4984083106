//! Cordoned machines.

use super::*;

fn tell_cordoned() -> Action {
    Action::Notify(Notice::Cordoned {
        why: "a reboot".into(),
    })
}

fn cause() -> Cause {
    Cause::Cordoned {
        why: "a reboot".into(),
    }
}

fn given_away(tenure: &mut Tenure, seconds: u64) -> Vec<Action> {
    assert_eq!(*tenure.state(), State::Draining);
    let empty = Event::Workload(WorkloadEvent::TreeEmpty { at: at(seconds) });
    assert!(releases(&tenure.step(at(seconds), empty)));
    tenure.step(at(seconds), Event::Released(Ok(())))
}

#[test]
fn cordoned_holder_gives_the_lease_back_and_stays_out_until_the_cordon_is_over() {
    let mut tenure = holding(rules());
    let actions = tenure.step(at(5), cordoned());
    assert_eq!(end_of_grace(&actions), Some(at(35)));
    assert!(has(&actions, &Action::Notify(Notice::Draining(cause()))));
    let actions = given_away(&mut tenure, 6);
    assert!(has(&actions, &Action::TenureOver { cause: cause() }));
    assert_eq!(
        actions
            .iter()
            .filter(|said| **said == tell_cordoned())
            .count(),
        1
    );
    assert!(has(&actions, &Action::StandBy));
    assert_eq!(tenure.wake_at(), Instant::FOREVER);
    assert!(!tenure.listens());
    let actions = tenure.step(at(400), Event::Freed);
    assert!(releases(&actions) && actions.len() == 1, "{actions:?}");
    assert_eq!(tenure.step(at(400), Event::Released(Ok(()))), []);
    for event in [
        Event::Ticked,
        Event::Workload(WorkloadEvent::ClockJumped),
        cordoned(),
    ] {
        assert_eq!(tenure.step(at(500), event), []);
    }
    let actions = tenure.step(at(501), Event::Uncordoned);
    assert!(has(&actions, &Action::Notify(Notice::Uncordoned)));
    assert!(acquires(&actions));
}

#[test]
fn cordoned_standby_asks_nothing_and_reports_its_holder_afterwards() {
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, refused(held()));
    assert_eq!(tenure.step(at(1), cordoned()), [tell_cordoned()]);
    assert_eq!(tenure.wake_at(), Instant::FOREVER);
    assert!(acquires(&tenure.step(at(100), Event::Uncordoned)));
    let actions = tenure.step(at(100), refused(held()));
    let behind = Action::Notify(Notice::StandingBy(HolderInfo::default()));
    assert!(has(&actions, &behind), "{actions:?}");
}

#[test]
fn uncordoned_standby_that_the_store_wakes_looks_once_for_its_holder() {
    let mut tenure = acquiring(Rules {
        poll: None,
        ..rules()
    });
    tenure.step(BEGIN, refused(held()));
    assert!(tenure.listens());
    tenure.step(at(1), cordoned());
    assert!(!tenure.listens());
    assert!(acquires(&tenure.step(at(100), Event::Uncordoned)));
    tenure.step(at(100), refused(held()));
    assert!(tenure.listens());
}

#[test]
fn lock_kept_for_a_cordoned_machine_is_given_back() {
    // Woken again just after a wake-up in vain.
    let mut tenure = acquiring(Rules {
        poll: None,
        ..rules()
    });
    tenure.step(BEGIN, refused(held()));
    assert!(acquires(&tenure.step(at(1), Event::Freed)));
    tenure.step(at(1), refused(held()));
    assert_eq!(tenure.step(at(1), Event::Freed), []);
    let actions = tenure.step(at(1), cordoned());
    assert!(has(&actions, &tell_cordoned()) && releases(&actions));
    let actions = tenure.step(at(1), Event::Released(Ok(())));
    assert_eq!(actions, [], "reported once, and nothing more is given back");
    assert!(acquires(&tenure.step(at(100), Event::Uncordoned)));
    let mut tenure = acquiring(rules());
    tenure.step(at(1), refused(transient()));
    let actions = tenure.step(at(2), cordoned());
    assert!(has(&actions, &tell_cordoned()) && releases(&actions));
    tenure.step(at(2), Event::Released(Ok(())));
    assert_eq!(tenure.wake_at(), Instant::FOREVER);
}

#[test]
fn ring_during_a_cordon_is_followed_after_it() {
    let mut tenure = acquiring(rules());
    let bell = Bell {
        address: ([10, 0, 0, 4], 1).into(),
        nonce: 7,
    };
    let holder = HolderInfo {
        bell: Some(Box::new(bell)),
        ..HolderInfo::default()
    };
    tenure.step(BEGIN, refused(Failure::Held(holder)));
    tenure.rang(BEGIN, Ring::Greeted { rank: 0 });
    tenure.step(at(1), cordoned());
    assert_eq!(tenure.rang(at(2), Ring::Released), []);
    assert_eq!(tenure.wake_at(), Instant::FOREVER);
    assert!(acquires(&tenure.step(at(3), Event::Uncordoned)));
}

#[test]
fn grant_to_a_cordoned_machine_is_given_back() {
    let mut tenure = acquiring(rules());
    assert_eq!(tenure.step(at(1), cordoned()), []);
    let actions = tenure.step(at(2), grant(BEGIN));
    assert!(releases(&actions) && start(&actions).is_none());
    let actions = tenure.step(at(2), Event::Released(Ok(())));
    assert!(has(&actions, &tell_cordoned()), "{actions:?}");
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, grant(BEGIN - secs(31)));
    assert_eq!(*tenure.state(), State::Confirming);
    tenure.step(at(1), cordoned());
    assert_eq!(*tenure.state(), State::Releasing);
}

#[test]
fn grace_ends_before_the_machine_goes_away_but_leaves_time_to_end() {
    let end = |before| {
        let mut tenure = holding(rules());
        end_of_grace(&tenure.step(at(5), cordoned_before(before)))
    };
    assert_eq!(end(at(900)), Some(at(35)), "time for the whole grace");
    assert_eq!(end(at(25)), Some(at(22)), "released before the reboot");
    assert_eq!(end(at(6)), Some(at(10)), "SIGTERM is not SIGKILL");
    assert_eq!(end(BEGIN), Some(at(10)));
}

#[test]
fn stop_ends_a_cordoned_instance_during_its_drain_and_while_it_waits() {
    let mut tenure = holding(rules());
    tenure.step(at(5), cordoned());
    tenure.step(at(6), Event::StopAsked(TERM));
    given_away(&mut tenure, 7);
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
    let mut tenure = acquiring(rules());
    tenure.step(BEGIN, refused(held()));
    tenure.step(at(1), cordoned());
    tenure.step(at(2), Event::StopAsked(HUP));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(HUP));
}

#[test]
fn machine_that_is_cordoned_from_the_beginning_never_asks() {
    let Event::Cordoned(cordon) = cordoned() else {
        unreachable!()
    };
    let mut tenure = Tenure::new(rules(), BEGIN).cordoned_by(Some(cordon));
    assert_eq!(
        tenure.step(BEGIN, Event::Ticked),
        [tell_cordoned(), Action::StandBy]
    );
    assert!(acquires(&tenure.step(at(9), Event::Uncordoned)));
}

#[test]
fn limited_wait_ends_on_a_cordoned_machine_too() {
    for (wait, end) in [(secs(0), 0), (secs(20), 20)] {
        let Event::Cordoned(cordon) = cordoned() else {
            unreachable!()
        };
        let limited = Rules {
            wait: Some(wait),
            ..rules()
        };
        let mut tenure = Tenure::new(limited, BEGIN).cordoned_by(Some(cordon));
        tenure.step(BEGIN, Event::Ticked);
        if end > 0 {
            assert_eq!(tenure.wake_at(), at(end));
            tenure.step(at(end), Event::Ticked);
        }
        assert_eq!(ending(&tenure).cause, cause());
    }
    // After a first tenure there is no limit.
    let limited = Rules {
        wait: Some(secs(20)),
        ..rules()
    };
    let mut tenure = holding(limited);
    tenure.step(at(5), cordoned());
    given_away(&mut tenure, 30);
    assert_eq!(tenure.wake_at(), Instant::FOREVER);
    assert!(tenure.ending().is_none());
}

#[test]
fn restart_is_left_to_another_machine() {
    let mut tenure = holding(restarting());
    fails(&mut tenure, at(5));
    assert_eq!(*tenure.state(), State::Resting);
    tenure.step(at(6), cordoned());
    assert_eq!(*tenure.state(), State::Releasing);
    let mut tenure = holding(restarting());
    tenure.step(at(5), Event::Workload(WorkloadEvent::Exited(Exit::Code(3))));
    tenure.step(at(5), cordoned());
    let actions = tenure.step(
        at(6),
        Event::Workload(WorkloadEvent::TreeEmpty { at: at(6) }),
    );
    assert!(releases(&actions), "{actions:?}");
    tenure.step(at(6), Event::Released(Ok(())));
    assert_eq!(*tenure.state(), State::Standby);
}

#[test]
fn cordon_does_not_end_a_kept_lease_or_change_the_ending_of_a_command() {
    let mut tenure = holding(keeping());
    ends(&mut tenure, at(5), Exit::Code(0));
    assert!(!releases(&tenure.step(at(6), cordoned())));
    let mut tenure = holding(rules());
    tenure.step(at(5), Event::Workload(WorkloadEvent::Exited(Exit::Code(0))));
    tenure.step(at(5), cordoned());
    given_away(&mut tenure, 6);
    assert_eq!(ending(&tenure).cause, Cause::CommandEnded);
}

#[test]
fn task_that_was_stopped_for_a_cordon_is_not_done() {
    let mut tenure = holding(once());
    tenure.step(at(5), cordoned());
    tenure.step(at(6), Event::Workload(WorkloadEvent::Exited(Exit::Code(0))));
    let actions = tenure.step(
        at(6),
        Event::Workload(WorkloadEvent::TreeEmpty { at: at(6) }),
    );
    assert!(has(&actions, &Action::Notify(Notice::NotDone)));
    assert!(releases(&actions), "nothing is recorded: {actions:?}");
}

#[test]
fn cordon_withdrawn_during_the_drain_leads_to_a_new_competition() {
    let mut tenure = holding(rules());
    tenure.step(at(5), cordoned());
    tenure.step(at(6), Event::Uncordoned);
    assert_eq!(*tenure.state(), State::Draining);
    let actions = given_away(&mut tenure, 7);
    assert!(!has(&actions, &tell_cordoned()));
    assert!(acquires(&tenure.step(tenure.wake_at(), Event::Ticked)));
}
