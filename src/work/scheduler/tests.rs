use super::*;

const T: Instant = Instant::from_nanos(1_000_000_000_000);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn terms() -> SchedulerConfig {
    SchedulerConfig {
        auth_patience: secs(300),
        batch: BATCH,
        concurrency: 4,
        max_messages: None,
        idle_exit: None,
        grace: secs(30),
        waits: false,
    }
}

fn scheduler(terms: SchedulerConfig) -> Scheduler {
    Scheduler::new(terms, 7, T)
}

fn take(scheduler: &mut Scheduler, now: Instant, count: usize) {
    assert!(matches!(scheduler.next(now), Next::Take(wanted) if wanted >= count));
    scheduler.takes(now, 4);
    assert_eq!(
        scheduler.next(now),
        Next::Wait(Instant::FOREVER),
        "one at a time"
    );
    scheduler.took(now, count);
}

#[test]
fn pauses_grow_while_the_queue_is_empty() {
    let mut scheduler = scheduler(terms());
    let (mut now, mut wanted) = (T, ms(100));
    for round in 0..20 {
        take(&mut scheduler, now, 0);
        let Next::Wait(at) = scheduler.next(now) else {
            panic!("{round}")
        };
        let wait = at.since(now);
        assert!(
            wait >= wanted * 8 / 10 && wait <= wanted * 12 / 10,
            "{round}: {wait:?}"
        );
        assert_eq!(scheduler.next(at - ms(1)), Next::Wait(at));
        now = at;
        wanted = (wanted * 2).min(secs(30));
    }
    take(&mut scheduler, now, 1);
    assert_eq!(scheduler.next(now), Next::Take(3), "there may be more");
    take(&mut scheduler, now, 0);
    let Next::Wait(at) = scheduler.next(now) else {
        panic!()
    };
    assert!(at.since(now) <= ms(120));
}

#[test]
fn requests_are_limited_by_free_processors_and_the_batch() {
    let mut four = scheduler(terms());
    assert_eq!(four.next(T), Next::Take(4));
    take(&mut four, T, 3);
    assert_eq!(four.next(T), Next::Take(1));
    take(&mut four, T, 1);
    assert_eq!(four.next(T), Next::Wait(Instant::FOREVER));
    four.done(T, true);
    assert_eq!(four.next(T), Next::Take(1), "at once");
    let many = SchedulerConfig {
        concurrency: 64,
        ..terms()
    };
    assert_eq!(scheduler(many).next(T), Next::Take(32));
}

#[test]
fn max_messages_is_never_exceeded() {
    let mut scheduler = scheduler(SchedulerConfig {
        max_messages: Some(3),
        ..terms()
    });
    assert_eq!(scheduler.next(T), Next::Take(3));
    take(&mut scheduler, T, 2);
    assert_eq!(scheduler.next(T), Next::Take(1));
    scheduler.done(T, false);
    assert_eq!(scheduler.next(T), Next::Take(2));
    take(&mut scheduler, T, 2);
    for _ in 0..3 {
        assert_eq!(scheduler.next(T), Next::Wait(Instant::FOREVER));
        scheduler.done(T, true);
    }
    assert_eq!(scheduler.next(T), Next::Leave(Why::Enough));
}

#[test]
fn idle_exit_needs_a_look_that_found_nothing() {
    let mut idle = scheduler(SchedulerConfig {
        idle_exit: Some(secs(10)),
        ..terms()
    });
    assert_eq!(
        idle.next(T + secs(60)),
        Next::Take(4),
        "a slow start is no idleness"
    );
    take(&mut idle, T, 1);
    assert_eq!(
        idle.next(T + secs(60)),
        Next::Take(3),
        "one is being worked on"
    );
    take(&mut idle, T + secs(60), 0);
    idle.done(T + secs(60), true);
    let mut now = T + secs(60);
    let left = loop {
        match idle.next(now) {
            Next::Take(_) => {
                idle.takes(now, 4);
                idle.took(now, 0);
            }
            Next::Wait(at) => now = at,
            Next::Leave(why) => break why,
        }
    };
    assert_eq!((left, now), (Why::Idle, T + secs(70)));
    let zero = SchedulerConfig {
        idle_exit: Some(Duration::ZERO),
        ..terms()
    };
    let mut zero = scheduler(zero);
    take(&mut zero, T, 0);
    assert_eq!(
        zero.next(T),
        Next::Leave(Why::Idle),
        "one look, and no message"
    );
}

#[test]
fn silent_queue_is_not_an_empty_one() {
    let mut silent = scheduler(SchedulerConfig {
        idle_exit: Some(secs(10)),
        ..terms()
    });
    take(&mut silent, T, 0);
    let mut now = T;
    let left = loop {
        match silent.next(now) {
            Next::Take(_) => {
                silent.takes(T, 4);
                silent.took_nothing(now, "503".into(), None);
            }
            Next::Wait(at) => {
                assert!(at > now, "spinning");
                now = at;
            }
            Next::Leave(why) => break why,
        }
    };
    let (why, denied) = ("503".to_owned(), false);
    assert_eq!(left, Why::CannotTake { why, denied });
    assert!(now >= T + secs(30), "{now:?}");
    let mut scheduler = scheduler(SchedulerConfig {
        idle_exit: Some(secs(10)),
        ..terms()
    });
    scheduler.takes(T, 4);
    scheduler.took_nothing(T, "503".into(), None);
    assert!(
        matches!(scheduler.next(T), Next::Wait(at) if at > T),
        "later"
    );
    take(&mut scheduler, T + secs(20), 0);
    assert_eq!(scheduler.next(T + secs(20)), Next::Leave(Why::Idle));
}

#[test]
fn refusal_ends_a_worker_only_before_the_first_answer() {
    let mut new = scheduler(terms());
    new.takes(T, 4);
    new.took_nothing(T, "403".into(), Some(true));
    let (why, denied) = ("403".to_owned(), true);
    assert_eq!(new.next(T), Next::Leave(Why::CannotTake { why, denied }));
    let mut old = scheduler(terms());
    take(&mut old, T, 0);
    old.takes(T, 4);
    old.took_nothing(T + secs(1), "403".into(), Some(true));
    assert!(matches!(old.next(T + secs(1)), Next::Wait(at) if at > T + secs(1)));
}

#[test]
fn queue_that_refuses_for_auth_patience_is_left_once_nothing_runs() {
    let refuse = |scheduler: &mut Scheduler, seconds| {
        scheduler.takes(T + secs(seconds), 1);
        scheduler.took_nothing(T + secs(seconds), "403".into(), Some(true));
        scheduler.next(T + secs(seconds))
    };
    let mut worker = scheduler(terms());
    take(&mut worker, T, 1);
    assert!(matches!(refuse(&mut worker, 1), Next::Wait(_)));
    assert!(worker.is_refused());
    assert!(
        matches!(refuse(&mut worker, 302), Next::Wait(_)),
        "a message is worked on"
    );
    worker.done(T + secs(303), true);
    let (why, denied) = ("403".to_owned(), true);
    let leave = Next::Leave(Why::CannotTake { why, denied });
    assert_eq!(refuse(&mut worker, 304), leave);
    let mut silent = scheduler(terms());
    take(&mut silent, T, 0);
    assert!(matches!(refuse(&mut silent, 1), Next::Wait(_)));
    silent.takes(T + secs(200), 1);
    silent.took_nothing(T + secs(200), "no answer".into(), None);
    assert!(
        matches!(refuse(&mut silent, 400), Next::Wait(_)),
        "an outage is no refusal"
    );
}

#[test]
fn stop_ends_running_commands_after_the_grace() {
    let mut scheduler = scheduler(terms());
    take(&mut scheduler, T, 2);
    assert_eq!(scheduler.asked_to_stop(T, 15), Stop::Requested);
    assert_eq!(scheduler.next(T), Next::Wait(T + secs(30)));
    assert_eq!(scheduler.ends(T + secs(29)), None);
    scheduler.done(T + secs(10), true);
    assert_eq!(scheduler.ends(T + secs(30)), Some(15));
    assert_eq!(scheduler.ends(T + secs(31)), None, "said once");
    assert_eq!(scheduler.next(T + secs(31)), Next::Wait(Instant::FOREVER));
    scheduler.done(T + secs(32), true);
    assert_eq!(scheduler.next(T + secs(32)), Next::Leave(Why::Stopped(15)));
}

#[test]
fn possible_overlap_overrides_every_reason_to_leave() {
    let leaves = |first: fn(&mut Scheduler), second: fn(&mut Scheduler)| {
        let mut scheduler = scheduler(terms());
        first(&mut scheduler);
        second(&mut scheduler);
        scheduler.next(T)
    };
    let stop: fn(&mut Scheduler) = |scheduler| {
        let _: Stop = scheduler.asked_to_stop(T, 15);
    };
    let stuck: fn(&mut Scheduler) = |scheduler| scheduler.leave(T, OVERLAP);
    let enough: fn(&mut Scheduler) = |scheduler| scheduler.leave(T, Why::Enough);
    for other in [stop, enough] {
        assert_eq!(leaves(other, stuck), Next::Leave(OVERLAP));
        assert_eq!(leaves(stuck, other), Next::Leave(OVERLAP));
    }
    assert_eq!(leaves(enough, stop), Next::Leave(Why::Stopped(15)));
}

#[test]
fn stop_waits_for_the_request_under_way() {
    let mut scheduler = scheduler(terms());
    scheduler.takes(T, 4);
    assert_eq!(scheduler.asked_to_stop(T, 2), Stop::Requested);
    for now in [T, T + secs(31)] {
        assert_eq!(scheduler.ends(now), None);
        assert_eq!(
            scheduler.next(now),
            Next::Wait(Instant::FOREVER),
            "no spinning"
        );
    }
    scheduler.took(T, 2);
    assert_eq!(scheduler.next(T), Next::Wait(T + secs(30)));
    assert!(scheduler.is_leaving());
    scheduler.done(T, false);
    scheduler.done(T, false);
    assert_eq!(scheduler.next(T), Next::Leave(Why::Stopped(2)));
}

#[test]
fn second_stop_is_at_once_and_an_echo_is_ignored() {
    let mut scheduler = scheduler(terms());
    take(&mut scheduler, T, 1);
    assert_eq!(scheduler.asked_to_stop(T, 15), Stop::Requested);
    assert_eq!(scheduler.asked_to_stop(T + ms(50), 15), Stop::Again);
    assert_eq!(scheduler.asked_to_stop(T + secs(1), 1), Stop::Again);
    assert_eq!(scheduler.asked_to_stop(T + secs(1), 2), Stop::AtOnce);
}

#[test]
fn deleted_queue_counts_as_empty() {
    let idle_exit = Some(secs(5));
    let mut scheduler = scheduler(SchedulerConfig {
        idle_exit,
        ..terms()
    });
    take(&mut scheduler, T, 0);
    for second in 1..5 {
        scheduler.takes(T + secs(second), 4);
        scheduler.took_from_deleted(T + secs(second));
        assert!(matches!(scheduler.next(T + secs(second)), Next::Wait(_)));
    }
    assert_eq!(scheduler.next(T + secs(5)), Next::Leave(Why::Idle));
}

fn waiting(idle_exit: Option<Duration>) -> Scheduler {
    scheduler(SchedulerConfig {
        idle_exit,
        waits: true,
        ..terms()
    })
}

#[test]
fn waiting_request_is_replaced_when_more_processors_are_free() {
    let mut scheduler = waiting(None);
    assert_eq!(scheduler.next(T), Next::Take(4));
    scheduler.takes(T, 4);
    assert_eq!(scheduler.next(T + secs(50)), Next::Wait(Instant::FOREVER));
    // One came; three are requested again, a fourth when a processor is free.
    scheduler.took(T + secs(50), 1);
    assert_eq!(scheduler.next(T + secs(50)), Next::Take(3));
    scheduler.takes(T + secs(50), 3);
    assert_eq!(scheduler.next(T + secs(50)), Next::Wait(Instant::FOREVER));
    scheduler.done(T + secs(51), true);
    assert_eq!(scheduler.next(T + secs(51)), Next::Take(4));
    scheduler.takes(T + secs(51), 4);
    scheduler.took(T + secs(111), 0);
    assert_eq!(scheduler.next(T + secs(111)), Next::Take(4));
    // An answer without a wait is followed by a pause, and so is a failure.
    scheduler.takes(T + secs(111), 4);
    scheduler.took(T + secs(111), 0);
    assert!(matches!(scheduler.next(T + secs(111)), Next::Wait(at) if at > T + secs(111)));
    scheduler.took_nothing(T + secs(112), "503".into(), None);
    assert!(matches!(scheduler.next(T + secs(112)), Next::Wait(at) if at > T + secs(112)));
}

#[test]
fn waiting_queue_counts_as_empty_only_after_a_silence() {
    let mut scheduler = waiting(Some(Duration::ZERO));
    let start = T + secs(9);
    assert_eq!(scheduler.next(start), Next::Take(4), "a slow start");
    assert_eq!(scheduler.listens_until(start), start + secs(2));
    scheduler.takes(start, 4);
    assert_eq!(
        scheduler.next(start + secs(1)),
        Next::Wait(Instant::FOREVER)
    );
    scheduler.took(start + secs(1), 1);
    scheduler.takes(start + secs(1), 3);
    scheduler.took(start + secs(3), 0);
    assert_eq!(
        scheduler.next(start + secs(3)),
        Next::Take(3),
        "one is being worked on"
    );
    scheduler.takes(start + secs(3), 3);
    scheduler.done(start + secs(4), true);
    assert_eq!(scheduler.next(start + secs(4)), Next::Take(4));
    scheduler.takes(start + secs(4), 4);
    scheduler.took(start + secs(6), 0);
    assert_eq!(scheduler.next(start + secs(6)), Next::Leave(Why::Idle));

    let mut scheduler = waiting(Some(secs(10)));
    assert_eq!(scheduler.listens_until(T), T + secs(10));
    assert_eq!(scheduler.listens_until(T + secs(9)), T + secs(11));
    scheduler.takes(T, 4);
    scheduler.took(T + secs(5), 0);
    assert_eq!(scheduler.next(T + secs(5)), Next::Take(4), "too early");
    scheduler.takes(T + secs(5), 4);
    scheduler.took(T + secs(10), 0);
    assert_eq!(scheduler.next(T + secs(10)), Next::Leave(Why::Idle));
    assert_eq!(waiting(None).listens_until(T), T + secs(60));
    assert_eq!(waiting(Some(secs(600))).listens_until(T), T + secs(60));
}

#[test]
fn waiting_request_is_withdrawn_on_a_stop() {
    let mut scheduler = waiting(None);
    scheduler.takes(T, 4);
    assert_eq!(scheduler.asked_to_stop(T, 15), Stop::Requested);
    assert!(scheduler.is_taking(), "something may still be on its way");
    assert_eq!(scheduler.next(T), Next::Wait(Instant::FOREVER));
    scheduler.withdrawn();
    assert_eq!(scheduler.next(T), Next::Leave(Why::Stopped(15)));
}

#[test]
fn waiting_queue_gets_a_pause_after_a_failed_dead_lettering() {
    let mut scheduler = waiting(None);
    scheduler.takes(T, 4);
    scheduler.took(T, 1);
    scheduler.takes(T, 3);
    scheduler.put_aside(T, T, Err("403".to_owned()));
    scheduler.done(T, false);
    assert!(!scheduler.is_taking());
    assert!(matches!(scheduler.next(T), Next::Wait(at) if at > T));
}

#[test]
fn failed_dead_letterings_slow_the_worker_and_then_end_it() {
    let mut scheduler = scheduler(terms());
    take(&mut scheduler, T, 4);
    let refused = || Err("403".to_owned());
    // Each was taken after the one before it had failed.
    for n in 0..4 {
        let now = T + secs(60) * n;
        scheduler.put_aside(now, now, refused());
    }
    let mut now = T + secs(300);
    scheduler.put_aside(now, now, Ok(()));
    for _ in 0..4 {
        scheduler.put_aside(now, now, refused());
        scheduler.done(now, false);
        let Next::Wait(at) = scheduler.next(now) else {
            panic!()
        };
        assert!(at > now);
        now = at;
    }
    scheduler.put_aside(now, now, refused());
    let why = "403".to_owned();
    assert_eq!(scheduler.next(now), Next::Leave(Why::CannotSettle { why }));
}

#[test]
fn failed_dead_letterings_of_one_outage_count_once() {
    let mut scheduler = scheduler(SchedulerConfig {
        concurrency: 8,
        ..terms()
    });
    scheduler.takes(T, 8);
    scheduler.took(T, 8);
    for n in 0..8 {
        let now = T + secs(n);
        scheduler.put_aside(now, T, Err("503".to_owned()));
        scheduler.done(now, false);
        assert!(matches!(scheduler.next(now), Next::Wait(at) if at > now));
    }
    assert!(!scheduler.is_leaving());
}

#[test]
fn late_batch_is_halved() {
    let slow = |concurrency| {
        scheduler(SchedulerConfig {
            concurrency,
            ..terms()
        })
    };
    let mut many = slow(64);
    let mut now = T;
    for most in [32, 16, 8, 4, 2, 1, 1] {
        assert_eq!(many.next(now), Next::Take(most));
        many.takes(now, most);
        many.took_nothing(now, "no answer".into(), None);
        let Next::Wait(at) = many.next(now) else {
            panic!()
        };
        now = at;
    }
    for most in 1..4 {
        assert_eq!(many.next(now), Next::Take(most));
        many.takes(now, most);
        many.took(now, most);
    }
    many.takes(now, 4);
    many.took(now, 1);
    assert_eq!(many.next(now), Next::Take(4));
    // Each retry of too large a batch costs every message an attempt.
    let (mut poor, mut now, mut lost) = (slow(64), T, 0);
    for _ in 0..300 {
        let most = match poor.next(now) {
            Next::Take(most) => most,
            Next::Wait(at) => {
                now = at;
                continue;
            }
            other => panic!("{other:?}"),
        };
        poor.takes(now, most);
        if most > 2 {
            lost += most;
            poor.took_nothing(now, "no answer".into(), None);
        } else {
            poor.took(now, most);
            (0..most).for_each(|_| poor.done(now, true));
        }
        now = now + secs(1);
    }
    assert!(lost < 100, "{lost}");
    let mut four = slow(4);
    four.takes(T, 4);
    four.took_nothing(T, "no answer".into(), None);
    assert_eq!(four.next(T + secs(1)), Next::Take(2));
    // A waiting queue's messages on their way are not lost.
    let mut waits = waiting(None);
    waits.takes(T, 4);
    waits.took_nothing(T, "cut".into(), None);
    assert_eq!(waits.next(T + secs(1)), Next::Take(4));
}

fn of_sessions(max_messages: Option<u64>, idle_exit: Option<Duration>) -> Scheduler {
    scheduler(SchedulerConfig {
        batch: 1,
        max_messages,
        idle_exit,
        waits: true,
        ..terms()
    })
}

#[test]
fn no_session_is_taken_beyond_max_messages() {
    let mut scheduler = of_sessions(Some(10), None);
    scheduler.may_begin(10);
    assert_eq!(scheduler.next(T), Next::Take(1));
    scheduler.takes(T, 1);
    scheduler.took(T, 1);
    assert_eq!(scheduler.next(T), Next::Take(1));
    scheduler.takes(T, 1);
    // The session has started one: nine are left for another.
    scheduler.may_begin(9);
    assert!(scheduler.is_taking());
    scheduler.may_begin(0);
    assert!(!scheduler.is_taking());
    assert_eq!(scheduler.next(T), Next::Wait(Instant::FOREVER));
    scheduler.may_begin(1);
    assert_eq!(scheduler.next(T), Next::Take(1));
    scheduler.takes(T, 1);
    scheduler.may_begin(0);
    scheduler.session_done(T + secs(1), true, 9, None);
    assert_eq!(scheduler.next(T + secs(1)), Next::Leave(Why::Enough));
}

/// The idle session ends after the busy one.
#[test]
fn idle_session_does_not_shorten_the_time_since_another_was_busy() {
    let mut scheduler = of_sessions(None, Some(secs(10)));
    for _ in 0..2 {
        scheduler.takes(T, 1);
        scheduler.took(T, 1);
    }
    scheduler.session_done(T + secs(95), true, 0, None);
    scheduler.session_done(T + secs(100), true, 0, Some(T + secs(90)));
    scheduler.takes(T + secs(100), 1);
    scheduler.took(T + secs(102), 0);
    assert_eq!(scheduler.next(T + secs(104)), Next::Take(1));
    assert_eq!(scheduler.next(T + secs(105)), Next::Leave(Why::Idle));
    // A single session counts from its last message.
    let mut scheduler = of_sessions(None, Some(secs(10)));
    scheduler.takes(T, 1);
    scheduler.took(T, 1);
    scheduler.session_done(T + secs(100), true, 0, Some(T + secs(90)));
    scheduler.takes(T + secs(100), 1);
    scheduler.took(T + secs(102), 0);
    assert_eq!(scheduler.next(T + secs(102)), Next::Leave(Why::Idle));
}
