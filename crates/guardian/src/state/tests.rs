use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(1000) + Duration::from_millis(millis)
}

fn steps(watch: &mut GuardianState, millis: u64, event: Input) -> Vec<Step> {
    watch.step(at(millis), event).iter().collect()
}

/// Command with TERM at 100 ms and KILL at 200 ms.
fn running() -> GuardianState {
    let mut watch = GuardianState::with_grace(Duration::from_secs(10));
    let forked = Input::Forked {
        deadlines: Deadlines {
            term_at: at(100),
            kill_at: at(200),
        },
        stop_signal: libc::SIGINT,
        pid: 7,
    };
    assert_eq!(steps(&mut watch, 0, forked), []);
    let started = Step::Tell(WorkloadEvent::Started { pid: 7 });
    assert_eq!(steps(&mut watch, 0, Input::Executed), [started]);
    watch
}

const ACTING: Step = Step::Tell(WorkloadEvent::Acting);

fn extended(term: u64, kill: u64) -> Input {
    Input::Extended(Deadlines {
        term_at: at(term),
        kill_at: at(kill),
    })
}

#[test]
fn deadlines_are_acted_on_when_they_pass() {
    let mut watch = running();
    assert_eq!(watch.next(), at(100));
    assert_eq!(steps(&mut watch, 99, Input::Ticked), []);
    let drain = [ACTING, Step::SignalGroup(libc::SIGINT)];
    assert_eq!(steps(&mut watch, 100, Input::Ticked), drain);
    assert_eq!(watch.next(), at(200));
    assert_eq!(steps(&mut watch, 200, Input::Ticked), [Step::Kill]);
}

#[test]
fn control_file_shows_control_until_it_is_in_doubt() {
    let mut watch = GuardianState::with_grace(Duration::from_secs(10));
    assert_eq!(watch.control().until, Instant::ZERO);
    watch = running();
    assert_eq!(watch.control().until, at(200));
    steps(&mut watch, 50, extended(300, 400));
    assert_eq!(watch.control().until, at(400));
    let drain = Input::DrainAsked {
        signal: libc::SIGTERM,
        end_of_grace: at(1000),
    };
    steps(&mut watch, 60, drain);
    assert_eq!(watch.control().until, at(400));
    steps(&mut watch, 70, extended(500, 600));
    assert_eq!(watch.control().until, at(600));
    steps(&mut watch, 80, Input::KillAsked);
    assert_eq!(watch.control().until, Instant::ZERO);

    let mut watch = running();
    steps(&mut watch, 100, Input::Ticked);
    assert_eq!(watch.control().until, Instant::ZERO);
    // Control does not come back.
    steps(&mut watch, 110, extended(900, 1000));
    assert_eq!(watch.control().until, Instant::ZERO);

    let mut watch = running();
    steps(&mut watch, 10, Input::Orphaned);
    assert_eq!(watch.control().until, at(200));
    steps(&mut watch, 20, Input::MainExited(Exit::Code(0)));
    steps(&mut watch, 20, Input::Emptied);
    assert_eq!(watch.control().until, Instant::ZERO);
}

#[test]
fn a_renewal_behind_the_deadline_is_an_expiry() {
    let mut watch = running();
    let acts = [ACTING, Step::Kill];
    assert_eq!(steps(&mut watch, 200, extended(900, 1000)), acts);
    assert_eq!(steps(&mut watch, 201, extended(900, 1000)), []);
    assert!(watch.is_killing());
}

#[test]
fn a_shorter_deadline_that_has_passed_is_acted_on_at_once() {
    let mut watch = running();
    assert_eq!(
        steps(&mut watch, 50, extended(10, 20)),
        [ACTING, Step::Kill]
    );
}

#[test]
fn a_renewal_moves_the_kill_of_a_drain_but_not_its_grace() {
    let mut watch = running();
    let asked = Input::DrainAsked {
        signal: libc::SIGTERM,
        end_of_grace: at(500),
    };
    let signalled = [Step::SignalGroup(libc::SIGTERM)];
    assert_eq!(steps(&mut watch, 10, asked), signalled);
    assert_eq!(watch.next(), at(200));
    assert_eq!(steps(&mut watch, 20, extended(900, 1000)), []);
    assert_eq!(watch.next(), at(500));
    // An order: the guardian does not act by itself.
    assert_eq!(steps(&mut watch, 500, Input::Ticked), [Step::Kill]);
}

/// Found by the search.
#[test]
fn renewal_after_term_at_does_not_move_the_kill() {
    let mut watch = running();
    let drain = [ACTING, Step::SignalGroup(libc::SIGINT)];
    assert_eq!(steps(&mut watch, 100, extended(5000, 5300)), drain);
    assert_eq!(watch.next(), at(200));
    assert_eq!(steps(&mut watch, 200, Input::Ticked), [Step::Kill]);
}

#[test]
fn a_dead_supervisor_leaves_the_grace_of_its_deadlines() {
    let mut watch = running();
    steps(&mut watch, 10, extended(5000, 5300));
    let signalled = [Step::SignalGroup(libc::SIGINT)];
    assert_eq!(steps(&mut watch, 20, Input::Orphaned), signalled);
    assert_eq!(watch.next(), at(320));
    assert_eq!(steps(&mut watch, 320, Input::Ticked), [Step::Kill]);
    let told = steps(&mut watch, 330, Input::Emptied);
    let empty = Step::Tell(WorkloadEvent::TreeEmpty { at: at(330) });
    assert_eq!(told, [empty, Step::Depart]);
}

#[test]
fn a_dead_supervisor_without_deadlines_leaves_ten_seconds() {
    let mut watch = running();
    let forever = Input::Extended(Deadlines {
        term_at: Instant::FOREVER,
        kill_at: Instant::FOREVER,
    });
    steps(&mut watch, 10, forever);
    steps(&mut watch, 20, Input::Orphaned);
    assert_eq!(watch.next(), at(10_020));
}

#[test]
fn orphan_grace_cuts_a_granted_grace() {
    let asked = Input::DrainAsked {
        signal: libc::SIGTERM,
        end_of_grace: at(10_020),
    };
    let long = || {
        let mut watch = running();
        steps(&mut watch, 10, extended(20_000, 30_000));
        watch
    };
    let mut watch = long().orphaned_for(Some(Duration::from_secs(1)));
    steps(&mut watch, 20, asked);
    assert_eq!(watch.next(), at(10_020));
    assert_eq!(steps(&mut watch, 30, Input::Orphaned), []);
    assert_eq!(watch.next(), at(1030));
    assert_eq!(steps(&mut watch, 1030, Input::Ticked), [Step::Kill]);
    // Never lengthened.
    let mut watch = long().orphaned_for(Some(Duration::from_secs(20)));
    steps(&mut watch, 20, asked);
    steps(&mut watch, 30, Input::Orphaned);
    assert_eq!(watch.next(), at(10_020));
    // The grace of the deadlines is cut, too.
    let mut watch = long().orphaned_for(Some(Duration::from_secs(1)));
    steps(&mut watch, 30, Input::Orphaned);
    assert_eq!(watch.next(), at(1030));
    // A lease outlives its supervisor.
    let mut watch = long();
    steps(&mut watch, 20, asked);
    steps(&mut watch, 30, Input::Orphaned);
    assert_eq!(watch.next(), at(10_020));
}

#[test]
fn orphan_grace_also_limits_the_next_command() {
    let mut watch = running().orphaned_for(Some(Duration::from_secs(1)));
    steps(&mut watch, 10, Input::MainExited(Exit::Code(0)));
    steps(&mut watch, 10, Input::Emptied);
    let forked = Input::Forked {
        deadlines: Deadlines {
            term_at: at(20_000),
            kill_at: at(30_000),
        },
        stop_signal: libc::SIGINT,
        pid: 8,
    };
    steps(&mut watch, 20, forked);
    steps(&mut watch, 30, Input::Orphaned);
    assert_eq!(watch.next(), at(1030));
}

#[test]
fn left_behind_processes_are_drained() {
    let mut watch = running();
    let exit = Input::MainExited(Exit::Code(0));
    let told = Step::Tell(WorkloadEvent::Exited(Exit::Code(0)));
    assert_eq!(steps(&mut watch, 10, exit), [told]);
    let drained = [
        Step::Tell(WorkloadEvent::LeftBehind),
        Step::SignalGroup(libc::SIGTERM),
        Step::TermRest,
    ];
    assert_eq!(steps(&mut watch, 10, Input::OthersLive), drained);
    assert_eq!(steps(&mut watch, 20, Input::OthersLive), [Step::TermRest]);
    assert_eq!(watch.next(), at(110));
}

#[test]
fn left_behind_processes_get_the_grace_of_a_stop_while_the_supervisor_lives() {
    let long = Some(Duration::from_millis(150));
    let exit = Input::MainExited(Exit::Code(0));
    let mut watch = running().leaving(long);
    steps(&mut watch, 10, exit);
    steps(&mut watch, 10, Input::OthersLive);
    assert_eq!(watch.next(), at(160));
    let mut watch = running().leaving(Some(Duration::from_secs(5)));
    steps(&mut watch, 10, exit);
    steps(&mut watch, 10, Input::OthersLive);
    assert_eq!(watch.next(), at(200));
    let mut orphan = running().leaving(long);
    steps(&mut orphan, 5, Input::Orphaned);
    steps(&mut orphan, 10, exit);
    steps(&mut orphan, 10, Input::OthersLive);
    assert_eq!(orphan.next(), at(105));
}

#[test]
fn stop_to_main_signals_the_main_process_only() {
    let mut watch = running();
    watch.stops(StopTo::Main);
    let drain = [ACTING, Step::SignalMain(libc::SIGINT)];
    assert_eq!(steps(&mut watch, 100, Input::Ticked), drain);
    // The rest of the tree gets even the same signal.
    steps(&mut watch, 110, Input::MainExited(Exit::Code(0)));
    let left = Step::Tell(WorkloadEvent::LeftBehind);
    let rest = [left, Step::SignalGroup(libc::SIGTERM), Step::TermRest];
    assert_eq!(steps(&mut watch, 110, Input::OthersLive), rest);
    assert_eq!(steps(&mut watch, 120, Input::OthersLive), [Step::TermRest]);
    assert_eq!(steps(&mut watch, 200, Input::Ticked), [Step::Kill]);
    // After the supervisor's death, too.
    let mut orphan = running();
    orphan.stops(StopTo::Main);
    let drain = [Step::SignalMain(libc::SIGINT)];
    assert_eq!(steps(&mut orphan, 10, Input::Orphaned), drain);
}

#[test]
fn no_process_is_signalled_without_a_stop_signal_and_all_are_killed_at_the_end_of_the_grace() {
    let silent = || {
        let mut watch = running();
        watch.stop_signal = 0;
        watch
    };
    let asked = Input::DrainAsked {
        signal: 0,
        end_of_grace: at(150),
    };
    let mut watch = silent();
    assert_eq!(steps(&mut watch, 50, asked), []);
    assert_eq!(watch.control().drain, at(150));
    assert_eq!(steps(&mut watch, 150, Input::Ticked), [Step::Kill]);
    let mut watch = silent();
    assert_eq!(steps(&mut watch, 100, Input::Ticked), [ACTING]);
    assert_eq!(steps(&mut watch, 200, Input::Ticked), [Step::Kill]);
    let mut watch = silent();
    steps(&mut watch, 10, Input::MainExited(Exit::Code(0)));
    let left = [Step::Tell(WorkloadEvent::LeftBehind)];
    assert_eq!(steps(&mut watch, 10, Input::OthersLive), left);
    assert_eq!(steps(&mut watch, 110, Input::Ticked), [Step::Kill]);
}

#[test]
fn same_stop_signal_is_not_sent_twice() {
    let mut watch = running();
    let asked = |signal, end| Input::DrainAsked {
        signal,
        end_of_grace: at(end),
    };
    let drain = [ACTING, Step::SignalGroup(libc::SIGINT)];
    assert_eq!(steps(&mut watch, 100, Input::Ticked), drain);
    assert_eq!(steps(&mut watch, 101, asked(libc::SIGINT, 180)), []);
    assert_eq!(watch.next(), at(180));
    let other = [Step::SignalGroup(libc::SIGTERM)];
    assert_eq!(steps(&mut watch, 102, asked(libc::SIGTERM, 190)), other);
    assert_eq!(watch.next(), at(180));
}

#[test]
fn failed_exec_is_reported_as_not_started() {
    let mut watch = GuardianState::with_grace(Duration::from_secs(10));
    let forked = Input::Forked {
        deadlines: Deadlines {
            term_at: Instant::FOREVER,
            kill_at: Instant::FOREVER,
        },
        stop_signal: libc::SIGTERM,
        pid: 7,
    };
    steps(&mut watch, 0, forked);
    assert_eq!(steps(&mut watch, 1, Input::NotExecuted { errno: 2 }), []);
    let exit = Input::MainExited(Exit::Code(127));
    assert_eq!(steps(&mut watch, 2, exit), []);
    let told = [Step::Tell(WorkloadEvent::NotStarted { errno: 2 })];
    assert_eq!(steps(&mut watch, 3, Input::Emptied), told);
    assert!(watch.is_idle());
}

#[test]
fn a_tree_that_does_not_die_is_called_stuck_and_never_empty() {
    let mut watch = running();
    steps(&mut watch, 10, Input::KillAsked);
    let stuck = [Step::Tell(WorkloadEvent::TreeStuck)];
    assert_eq!(steps(&mut watch, 10_010, Input::Ticked), stuck);
    assert_eq!(watch.next(), Instant::FOREVER);
    assert_eq!(steps(&mut watch, 20_000, Input::Emptied), []);
}

fn event() -> impl Strategy<Value = Input> {
    let soon = (0_u64..2000).prop_map(at);
    let when = prop_oneof![9 => soon, 1 => Just(Instant::FOREVER)];
    prop_oneof![
        4 => Just(Input::Ticked),
        4 => (when.clone(), when.clone())
            .prop_map(|(term_at, kill_at)| Input::Extended(Deadlines { term_at, kill_at })),
        2 => when.prop_map(|end_of_grace| Input::DrainAsked {
            signal: libc::SIGTERM,
            end_of_grace
        }),
        1 => Just(Input::KillAsked),
        1 => Just(Input::Orphaned),
        1 => Just(Input::Executed),
        1 => Just(Input::NotExecuted { errno: 2 }),
        1 => Just(Input::MainExited(Exit::Code(0))),
        2 => Just(Input::OthersLive),
        1 => Just(Input::Emptied),
    ]
}

proptest! {
    /// Past the deadline in force the tree is being killed, until its end, which is reported once.
    #[test]
    fn no_order_of_events_outlasts_the_deadline(
        events in prop::collection::vec((0_u64..100, event()), 0..60)
    ) {
        let mut watch = running();
        let mut kill_at = at(200);
        let (mut now, mut asked, mut killed, mut ends) = (0, false, false, 0);
        for (gap, event) in events {
            now += gap;
            let was_killing = watch.is_killing();
            let was_idle = watch.is_idle();
            // A renewal counts before the deadline in force.
            if let Input::Extended(Deadlines { kill_at: told, .. }) = event
                && at(now) < kill_at && !was_killing
            {
                kill_at = told;
            }
            for step in steps(&mut watch, now, event) {
                killed |= step == Step::Kill;
                asked |= matches!(step, Step::SignalGroup(_) | Step::TermRest);
                ends += usize::from(matches!(
                    step,
                    Step::Tell(WorkloadEvent::TreeEmpty { .. } | WorkloadEvent::NotStarted { .. })
                ));
            }
            let ControlState { until, drain } = watch.control();
            prop_assert!(until <= kill_at && (drain <= kill_at || watch.is_killing()));
            prop_assert!(!asked || watch.is_idle() || drain != Instant::ZERO);
            prop_assert!(at(now) < kill_at || watch.is_idle() || (watch.is_killing() && killed));
            if was_killing {
                prop_assert!(watch.is_killing() || event == Input::Emptied);
            }
            if was_idle {
                prop_assert!(watch.is_idle());
            }
            prop_assert!(watch.is_idle() || watch.is_killing() || watch.next() > at(now));
        }
        prop_assert!(ends <= 1);
    }
}
