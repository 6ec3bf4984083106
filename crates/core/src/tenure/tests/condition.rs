//! Machines that are not fit to take control.

use super::*;

const NO: Unfit = Unfit::Failed(Failed::Exited(Exit::Code(1)));

fn yes() -> Event {
    Event::Workload(WorkloadEvent::Condition(Ok(())))
}

fn no() -> Event {
    Event::Workload(WorkloadEvent::Condition(Err(NO)))
}

fn asks(actions: &[Action]) -> Option<Instant> {
    actions.iter().find_map(|action| match action {
        Action::Ask { give_up_at } => Some(*give_up_at),
        _ => None,
    })
}

fn looks(actions: &[Action]) -> bool {
    actions.iter().any(|a| matches!(a, Action::Look { .. }))
}

fn says(actions: &[Action], notice: Notice) -> bool {
    has(actions, &Action::Notify(notice))
}

fn asked(rules: Rules) -> Tenure {
    let mut tenure = Tenure::new(rules, BEGIN).only_if(Some(secs(2)));
    let actions = tenure.step(BEGIN, Event::Ticked);
    assert_eq!(actions, [Action::Ask { give_up_at: at(5) }]);
    tenure
}

fn unfit(rules: Rules) -> Tenure {
    let mut tenure = asked(rules);
    tenure.step(BEGIN, no());
    tenure
}

fn waiting(wait: u64) -> Rules {
    Rules {
        wait: Some(secs(wait)),
        ..rules()
    }
}

fn woken() -> Rules {
    Rules {
        budget: None,
        poll: None,
        ..rules()
    }
}

#[test]
fn condition_is_asked_before_the_first_attempt_and_then_with_each_poll() {
    let mut tenure = asked(rules());
    assert_eq!(tenure.wake_at(), Instant::FOREVER);
    assert_eq!(tenure.step(BEGIN + ms(900), Event::Ticked), []);
    assert!(acquires(&tenure.step(at(1), yes())));
    let actions = tenure.step(at(1), refused(held()));
    assert!(asks(&actions).is_none() && has(&actions, &Action::StandBy));
    // The next look or the next question, whichever comes first.
    let mut now = tenure.wake_at();
    for _ in 0..20 {
        let actions = tenure.step(now, Event::Ticked);
        if acquires(&actions) {
            tenure.step(now, refused(held()));
        } else if asks(&actions).is_some() {
            tenure.step(now, yes());
        }
        assert!(tenure.wake_at() > now);
        now = tenure.wake_at();
    }
}

#[test]
fn unfit_machine_reports_it_once_and_never_competes() {
    let mut tenure = asked(rules());
    let actions = tenure.step(BEGIN, no());
    assert_eq!(
        actions,
        [Action::Notify(Notice::Unfit(NO)), Action::StandBy]
    );
    for second in [2, 4, 6, 800] {
        assert!(tenure.wake_at() <= at(second));
        let actions = tenure.step(at(second), Event::Ticked);
        assert!(asks(&actions).is_some() && !acquires(&actions));
        assert_eq!(tenure.step(at(second), no()), []);
    }
    tenure.step(at(802), Event::Ticked);
    let late = Event::Workload(WorkloadEvent::Condition(Err(Unfit::TimedOut)));
    assert!(says(
        &tenure.step(at(803), late),
        Notice::Unfit(Unfit::TimedOut)
    ));
    tenure.step(at(805), Event::Ticked);
    let actions = tenure.step(at(805), yes());
    assert!(says(&actions, Notice::Fit) && acquires(&actions));
}

#[test]
fn holder_is_not_asked_and_a_late_no_does_not_stop_it() {
    let mut tenure = asked(rules());
    tenure.step(BEGIN, yes());
    assert!(start(&tenure.step(BEGIN, grant(BEGIN))).is_some());
    tenure.step(BEGIN, Event::Workload(WorkloadEvent::Started { pid: 1 }));
    assert_eq!(tenure.step(at(1), no()), []);
    assert_eq!(*tenure.state(), State::Holding);
    let actions = tenure.step(at(20), Event::Ticked);
    assert!(renews(&actions) && asks(&actions).is_none());
    // An answer without a question is forgotten, so the condition is asked before the next tenure.
    let actions = tenure.step(at(21), unrenewed(lost()));
    assert!(has(&actions, &Action::Kill));
    let actions = tenure.step(at(21), emptied(at(21)));
    assert!(asks(&actions).is_some(), "{actions:?}");
    assert!(acquires(&tenure.step(at(24), yes())));
}

#[test]
fn answer_that_waited_during_a_pause_does_not_count() {
    let mut tenure = asked(rules());
    let actions = tenure.step(at(3600), yes());
    assert!(says(&actions, Notice::Unfit(Unfit::TimedOut)) && !acquires(&actions));
    // Nor does an answer before the pause.
    let mut tenure = asked(rules());
    tenure.step(BEGIN, yes());
    tenure.step(BEGIN, refused(held()));
    let actions = tenure.step(at(3600), Event::Ticked);
    assert!(asks(&actions).is_some() && !acquires(&actions));
}

#[test]
fn lock_that_wakes_its_waiters_is_waited_for_only_by_a_fit_machine() {
    let mut tenure = asked(woken());
    assert!(!tenure.listens(), "not before the first answer");
    tenure.step(BEGIN, yes());
    tenure.step(BEGIN, refused(held()));
    assert!(tenure.listens());
    assert_eq!(tenure.wake_at(), at(2));
    assert!(asks(&tenure.step(at(2), Event::Ticked)).is_some());
    assert!(!tenure.listens());
    tenure.step(at(2), no());
    assert!(!tenure.listens());
    assert!(asks(&tenure.step(at(4), Event::Ticked)).is_some());
    // It learns which holder it stands behind.
    assert!(acquires(&tenure.step(at(4), yes())));
    tenure.step(at(4), refused(held()));
    assert!(tenure.listens());
}

#[test]
fn lock_kept_for_an_unfit_machine_is_given_back() {
    let mut tenure = asked(woken());
    tenure.step(BEGIN, yes());
    tenure.step(BEGIN, refused(held()));
    // The process was stopped, and the lock was handed to it meanwhile.
    assert!(asks(&tenure.step(at(3600), Event::Ticked)).is_some());
    assert_eq!(tenure.step(at(3600), Event::Freed), []);
    let actions = tenure.step(at(3601), no());
    assert!(releases(&actions) && !acquires(&actions));
    let actions = tenure.step(at(3601), Event::Released(Ok(())));
    assert!(!has(&actions, &Action::Notify(Notice::Released)));
    assert!(!tenure.listens());
    // The possible gain of an unanswered attempt is given back once.
    let mut tenure = asked(rules());
    tenure.step(BEGIN, yes());
    tenure.step(at(1), refused(transient()));
    tenure.step(at(2), Event::Ticked);
    assert!(releases(&tenure.step(at(2), no())));
    tenure.step(at(2), Event::Released(Ok(())));
    tenure.step(at(4), Event::Ticked);
    assert_eq!(tenure.step(at(4), no()), []);
}

#[test]
fn one_look_of_an_unfit_machine_obtains_nothing() {
    let mut tenure = asked(waiting(0));
    assert_eq!(
        tenure.step(BEGIN, no()),
        [],
        "no report but that of the end"
    );
    assert_eq!(ending(&tenure).cause, Cause::Unfit(NO));
    let mut tenure = asked(waiting(0));
    assert!(acquires(&tenure.step(BEGIN, yes())));
}

#[test]
fn unfit_time_counts_against_the_wait() {
    let mut tenure = unfit(waiting(20));
    for second in [2, 4, 6, 8, 10, 12, 14, 16, 18] {
        tenure.step(at(second), Event::Ticked);
        tenure.step(at(second), no());
    }
    assert_eq!(tenure.wake_at(), at(20));
    tenure.step(at(20), Event::Ticked);
    assert_eq!(ending(&tenure).cause, Cause::Unfit(NO));
}

#[test]
fn condition_that_hangs_does_not_outlast_the_wait() {
    let mut tenure = Tenure::new(waiting(3), BEGIN).only_if(Some(secs(2)));
    let give_up_at = asks(&tenure.step(BEGIN, Event::Ticked)).expect("a question");
    assert!(give_up_at < at(3));
    assert_eq!(tenure.wake_at(), at(3));
    tenure.step(at(3), Event::Ticked);
    assert_eq!(ending(&tenure).cause, Cause::Unfit(Unfit::TimedOut));
}

#[test]
fn finished_task_goes_before_an_unfit_machine() {
    let over = || TaskResult {
        status: 0,
        holder: "web2".into(),
        at: "then".into(),
        token: 3,
    };
    for wait in [None, Some(secs(0)), Some(secs(20))] {
        let mut tenure = asked(Rules { wait, ..once() });
        let actions = tenure.step(BEGIN, no());
        assert!(looks(&actions) && !acquires(&actions), "{actions:?}");
        let result = Event::Looked(Err(Failure::AlreadyDone(over())));
        assert_eq!(tenure.step(BEGIN, result), []);
        assert_eq!(ending(&tenure).cause, Cause::AlreadyDone(over()));
    }
}

#[test]
fn unfinished_task_is_looked_at_with_each_poll() {
    let mut tenure = unfit(once());
    tenure.step(BEGIN, Event::Looked(Ok(())));
    let mut looked = 0;
    while tenure.wake_at() < at(20) {
        let now = tenure.wake_at();
        let actions = tenure.step(now, Event::Ticked);
        assert!(!acquires(&actions));
        if looks(&actions) {
            looked += 1;
            tenure.step(now, Event::Looked(Ok(())));
        } else {
            assert!(asks(&actions).is_some(), "{actions:?}");
            tenure.step(now, no());
        }
        assert!(tenure.wake_at() > now);
    }
    assert!((8..=13).contains(&looked), "{looked}");
    let mut tenure = unfit(Rules {
        wait: Some(secs(0)),
        ..once()
    });
    tenure.step(BEGIN, Event::Looked(Ok(())));
    assert_eq!(ending(&tenure).cause, Cause::Unfit(NO));
}

#[test]
fn ring_leads_to_one_look_at_a_task() {
    let bell = Bell {
        address: ([10, 0, 0, 4], 80).into(),
        nonce: 7,
    };
    let holder = HolderInfo {
        bell: Some(Box::new(bell)),
        ..HolderInfo::default()
    };
    let mut tenure = asked(once());
    tenure.step(BEGIN, yes());
    tenure.step(BEGIN, refused(Failure::Held(holder)));
    tenure.rang(BEGIN, Ring::Greeted { rank: 0 });
    assert!(asks(&tenure.step(at(2), Event::Ticked)).is_some());
    tenure.rang(at(2), Ring::Draining);
    assert!(looks(&tenure.step(at(2), no())));
    let actions = tenure.step(at(2), Event::Looked(Ok(())));
    assert!(!looks(&actions), "{actions:?}");
    assert!(tenure.wake_at() > at(2));
}

#[test]
fn silent_store_is_asked_for_a_result_as_it_is_for_control() {
    let mut tenure = unfit(once());
    let actions = tenure.step(at(1), Event::Looked(Err(transient())));
    assert!(matches!(
        actions[0],
        Action::Notify(Notice::Doubt { term_at: None, .. })
    ));
    assert!(tenure.wake_at() < at(5));
    let mut tenure = unfit(once());
    tenure.step(at(1), Event::Looked(Err(fatal())));
    assert!(matches!(ending(&tenure).cause, Cause::Store { .. }));
}

#[test]
fn cordon_goes_before_the_condition_and_suspends_its_questions() {
    let mut tenure = unfit(rules());
    tenure.step(at(1), cordoned());
    assert_eq!(tenure.wake_at(), Instant::FOREVER);
    assert_eq!(tenure.step(at(100), Event::Ticked), []);
    let actions = tenure.step(at(101), Event::Uncordoned);
    assert!(asks(&actions).is_some() && !acquires(&actions));
}

#[test]
fn stop_ends_an_unfit_or_asking_standby() {
    let mut tenure = asked(rules());
    tenure.step(at(1), Event::StopAsked(TERM));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
    let mut tenure = unfit(once());
    tenure.step(at(1), Event::StopAsked(TERM));
    assert_eq!(ending(&tenure).cause, Cause::Stopped(TERM));
}
