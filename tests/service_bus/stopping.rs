//! A worker that is asked to stop takes no more, and leaves nothing locked.

use nix::sys::signal::Signal;

use super::*;

#[test]
fn what_runs_may_finish_while_its_lock_is_renewed() {
    let stage = Stage::with(SHORT);
    stage.put("x");
    let running = stage
        .worker()
        .args(["--grace", "60s"])
        .shell("echo runs >&2; sleep 7")
        .start();
    running.await_log("runs");
    stage.put("y");
    stage.put("z");
    running.signal(Signal::SIGTERM);
    let done = running.finish();
    assert_eq!(done.ended, Ended::Died(Signal::SIGTERM), "{}", done.stderr);
    assert!(
        done.stderr.contains("completed, attempt 1"),
        "{}",
        done.stderr
    );
    assert_eq!(done.stderr.matches("runs").count(), 1, "{}", done.stderr);
    stage.assert_holds(2, 0);
    assert!(stage.messages(JOBS).iter().all(|m| m.failed == 0));
}

#[test]
fn after_the_grace_it_is_stopped_and_its_message_is_there_at_once_and_does_not_count() {
    let stage = Stage::with(Duration::from_secs(300));
    stage.put("x");
    let running = stage
        .worker()
        .args(["--grace", "1s"])
        .shell("trap 'echo asked >&2; exit 0' TERM; echo runs >&2; sleep 600 & wait")
        .start();
    running.await_log("runs");
    running.signal(Signal::SIGTERM);
    let done = running.finish();
    assert_eq!(done.ended, Ended::Died(Signal::SIGTERM), "{}", done.stderr);
    assert!(done.stderr.contains("asked"), "{}", done.stderr);
    assert!(
        done.stderr.contains("released, attempt 1"),
        "{}",
        done.stderr
    );
    stage.assert_holds(1, 0);
    assert_eq!(stage.messages(JOBS)[0].failed, 0);
}

#[test]
fn the_second_signal_ends_everything_at_once_and_still_gives_back() {
    let stage = Stage::with(Duration::from_secs(300));
    stage.put("x");
    let running = stage
        .worker()
        .args(["--grace", "1h", "--kill-after", "1h"])
        .shell("trap '' TERM INT; echo runs >&2; while :; do sleep 1; done")
        .start();
    running.await_log("runs");
    running.signal(Signal::SIGINT);
    running.await_log("asked to stop: taking no more");
    // The same request twice within a tenth of a second is one.
    std::thread::sleep(Duration::from_millis(150));
    running.signal(Signal::SIGINT);
    let done = running.finish();
    assert_eq!(done.ended, Ended::Died(Signal::SIGINT), "{}", done.stderr);
    assert!(done.stderr.contains("released"), "{}", done.stderr);
    stage.assert_holds(1, 0);
    stage.scene.await_nobody();
}

#[test]
fn a_worker_that_idles_leaves_when_there_was_nothing_and_at_once_when_it_is_told() {
    let stage = Stage::with(SHORT);
    let done = stage
        .worker()
        .args(["--idle-exit", "0s"])
        .command(["true"])
        .finish();
    assert_ended(&done, 0, "--idle-exit");
    stage.put("x");
    let done = stage
        .worker()
        .args(["--max-messages", "1"])
        .command(["true"])
        .finish();
    assert_ended(&done, 0, "as many messages as asked for");
    let running = stage.worker().command(["true"]).start();
    running.await_log("takes messages");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.finish().ended, Ended::Died(Signal::SIGTERM));
}

#[test]
fn however_often_and_whenever_it_is_stopped_nothing_stays_locked_and_nothing_counts() {
    // TRAFFICCOP_TEST_STOPS=200 for the long version.
    let stops = std::env::var("TRAFFICCOP_TEST_STOPS");
    let stops: u64 = stops.map_or(20, |text| text.parse().expect("a number"));
    let stage = Stage::with(Duration::from_secs(300));
    for text in ["a", "b", "c", "d", "e"] {
        stage.put(text);
    }
    let mut chance = trafficcop::core::retry::Chance::new(7);
    for round in 0..stops {
        let running = stage
            .worker()
            .args(["-j", "3", "--grace", "0s"])
            .shell("exec sleep 600")
            .start();
        running.await_log("takes messages");
        // From before the first message to after several.
        let wait = chance.spread(Duration::from_millis(5 + 15 * (round % 10)));
        std::thread::sleep(wait);
        running.signal(Signal::SIGTERM);
        let done = running.finish();
        assert_eq!(done.ended, Ended::Died(Signal::SIGTERM), "{}", done.stderr);
        // The broker's side of the farewell may take a moment.
        stage.wait("nothing to be locked", |view| {
            (view.counts(JOBS).locked == 0).then_some(())
        });
        stage.assert_holds(5, 0);
        let counted = stage.messages(JOBS).iter().filter(|m| m.failed > 0).count();
        assert_eq!(counted, 0, "round {round}\n{}", done.stderr);
        assert_eq!(stage.count(|e| matches!(e, Event::LockExpired { .. })), 0);
    }
}
