//! A message's lock is kept while its command runs, and counts only as long as it is certain.

use nix::sys::signal::Signal;
use service_bus_stand_in::{Act, Fault, On};

use super::*;

/// Runs a worker with one message, whose command takes this long.
fn runs_for(stage: &Stage, seconds: f32) -> Finished {
    stage.put("x");
    stage.once(&[], &format!("sleep {seconds}"))
}

fn delivered(stage: &Stage) -> usize {
    stage.count(|event| matches!(event, Event::Delivered { .. }))
}

#[test]
fn a_command_that_runs_for_five_lock_times_completes_once() {
    let stage = Stage::with(SHORT);
    let done = runs_for(&stage, 25.0);
    assert_ended(&done, 0, "completed, attempt 1, exit 0");
    assert_eq!(stage.expired(), 0);
    assert_eq!(delivered(&stage), 1);
    stage.assert_holds(0, 0);
}

#[test]
fn a_clock_that_is_wrong_costs_no_lock() {
    // A lock of 30 s that looks like 40 s: each renewal comes before 30 s are over. With the other
    // skews it looks shorter, or like no lock.
    std::thread::scope(|scope| {
        for skew in [10_000, -10_000, 3_600_000, -3_600_000] {
            scope.spawn(move || {
                let stage = Stage::with(Duration::from_secs(30));
                stage.broker.skew(skew);
                let done = runs_for(&stage, if skew == 10_000 { 34.0 } else { 12.0 });
                assert_ended(&done, 0, "completed, attempt 1, exit 0");
                assert_eq!(stage.expired(), 0, "{skew}");
                let warned = done.stderr.contains("clock");
                assert_eq!(warned, skew.abs() > 10_000, "{}", done.stderr);
            });
        }
    });
}

/// Deadlines for the length believed at first would count on the lock for minutes while the network
/// is down.
#[test]
fn a_lock_whose_renewal_shows_it_to_be_shorter_is_not_counted_on_any_longer() {
    let stage = Stage::with(Duration::from_secs(24));
    stage.broker.skew(200_000);
    stage.put("x");
    let worker = stage.worker().arg("--once");
    let running = worker.shell("echo runs >&2; exec sleep 120").start();
    running.await_log("runs");
    stage.broker.skew(0);
    let done = running.finish();
    assert_ended(&done, 70, "lost, attempt 1");
    assert!(done.stderr.contains("renewed for 2"), "{}", done.stderr);
    assert_eq!(stage.settled(), 0);
}

#[test]
fn set_lock_time_takes_precedence_over_clocks() {
    let stage = Stage::with(SHORT);
    // It looks like a lock of 15 s.
    stage.broker.skew(10_000);
    stage.put("x");
    let done = stage.once(&["--lock-time", "5s"], "sleep 12");
    assert_ended(&done, 0, "completed, attempt 1, exit 0");
    assert_eq!(stage.expired(), 0);
}

#[test]
fn answers_that_come_late_twice_or_out_of_order_cost_no_lock() {
    let late = Duration::from_millis(1300);
    let acts = [
        Act::Delay(late),
        Act::Hold(late),
        Act::Duplicate,
        Act::Shift,
        Act::Uncorrelated,
        Act::Lose,
        Act::Ignore,
        Act::server_busy(),
        Act::Cut,
        Act::CutAfter,
        Act::Detach {
            condition: "amqp:link:detach-forced".into(),
        },
    ];
    std::thread::scope(|scope| {
        for act in acts {
            scope.spawn(move || {
                let stage = Stage::with(Duration::from_secs(20));
                stage
                    .broker
                    .fault(Fault::new(On::RenewLock, act.clone()).at(JOBS));
                let done = runs_for(&stage, 22.0);
                assert_ended(&done, 0, "completed, attempt 1, exit 0");
                assert_eq!(stage.expired(), 0, "{act:?}");
                assert!(stage.count(|event| matches!(event, Event::Renewed { .. })) > 0);
            });
        }
    });
}

#[test]
fn an_answer_that_comes_after_its_time_never_stands_for_the_next_one() {
    let stage = Stage::with(Duration::from_secs(10));
    stage.put("x");
    // The first is answered with yes after its limit; the second with no.
    let late = Act::Delay(Duration::from_secs(3));
    stage.broker.fault(Fault::new(On::RenewLock, late));
    stage
        .broker
        .fault(Fault::new(On::RenewLock, Act::lock_lost()));
    let done = stage.once(&[], "trap '' TERM; while :; do sleep 1; done");
    assert_ended(&done, 71, "lost, attempt 1");
    stage.scene.await_nobody();
}

#[test]
fn worker_paused_past_the_lock_settles_nothing_and_its_command_is_dead() {
    let stage = Stage::brief("x");
    let frozen = stage
        .worker()
        .args(["--retry-delay", "0s"])
        .shell("echo runs >&2; exec sleep 600")
        .start();
    frozen.await_log("runs");
    frozen.freeze();
    let next = stage.once(&[], "exit 0");
    assert_ended(&next, 0, "completed, attempt 2");
    frozen.signal(Signal::SIGCONT);
    frozen.await_log("attempt 1");
    let done = stopped_by(Signal::SIGTERM, frozen);
    assert!(!done.stderr.contains("completed"), "{}", done.stderr);
    stage.assert_holds(0, 0);
}

#[test]
fn message_that_arrived_during_a_pause_is_not_run_on_an_old_lock() {
    let stage = Stage::with(SHORT);
    let frozen = stage
        .worker()
        .shell("read text; echo runs $text >&2; exec true")
        .start();
    frozen.await_log("takes messages");
    // The next message must come to this worker, so its credit must be out.
    stage.wait("its credit to be out", |view| {
        (view.credit(JOBS) > 0).then_some(())
    });
    frozen.freeze();
    stage.put("x");
    stage.wait("the message to be delivered", |view| {
        (view.counts(JOBS).locked == 1).then_some(())
    });
    // Its lock ends meanwhile, and another worker processes the message.
    stage.wait("the lock to end", |view| {
        let ended =
            |entry: &service_bus_stand_in::Entry| matches!(entry.event, Event::LockExpired { .. });
        view.journal().iter().any(ended).then_some(())
    });
    let other = stage
        .worker()
        .arg("--once")
        .shell("echo mine >&2; sleep 8")
        .start();
    other.await_log("mine");
    frozen.signal(Signal::SIGCONT);
    assert_ended(&other.finish(), 0, "completed, attempt 2");
    let log = stopped_by(Signal::SIGTERM, frozen).stderr;
    assert!(!log.contains("runs"), "{log}");
    stage.assert_holds(0, 0);
}

#[test]
fn a_worker_that_is_killed_leaves_its_message_to_the_next_after_its_command_is_dead() {
    let stage = Stage::brief("x");
    let script =
        "export TRAFFICCOP_TOKEN=$TRAFFICCOP_MESSAGE_ATTEMPT TRAFFICCOP_HOLDER=w; exec \"$@\"";
    let journalist = |tag: &str, options: &[&str]| {
        let shell = ["sh", "-c", script, "sh"].map(std::ffi::OsString::from);
        let mut words = shell.to_vec();
        words.extend(stage.scene.journalist(tag, options));
        words
    };
    let first = stage
        .worker()
        .command(journalist("first", &["--term", "ignore"]))
        .start();
    stage.scene.journal.await_sign_of_life("first");
    let second = stage
        .worker()
        .arg("--once")
        .command(journalist("second", &["--beats", "5"]))
        .start();
    first.signal(Signal::SIGKILL);
    assert_ended(&second.finish(), 0, "completed, attempt 2");
    assert_eq!(stage.scene.journal.judge(), ["first", "second"]);
    stage.assert_holds(0, 0);
}

#[test]
fn a_command_that_does_not_read_its_message_holds_up_no_renewal() {
    let stage = Stage::with(SHORT);
    stage.broker.put(JOBS, Message::data(&[b'x'; 500_000]));
    let done = stage.once(&[], "exec 0<&-; sleep 8");
    assert_ended(&done, 0, "completed, attempt 1");
    assert_eq!(stage.expired(), 0);
}
