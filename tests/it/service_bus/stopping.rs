//! A stopping worker takes no more messages, and leaves none locked.

use nix::sys::signal::Signal;

use super::*;
use crate::support::stopping::{
    finishes_what_runs, is_asked_after_the_grace, is_ended_by_the_second_signal,
    stopped_at_any_moment,
};

const LONG: Duration = Duration::from_secs(300);

#[test]
fn running_command_may_finish_while_its_lock_is_renewed() {
    let stage = Stage::brief("x");
    finishes_what_runs(stage.worker(), 7, || {
        stage.put("y");
        stage.put("z");
    });
    stage.assert_holds(2, 0);
    assert!(stage.messages(JOBS).iter().all(|m| m.failed == 0));
}

#[test]
fn after_the_grace_it_is_stopped_and_its_message_is_there_at_once_and_does_not_count() {
    let stage = Stage::with(LONG);
    stage.put("x");
    is_asked_after_the_grace(stage.worker());
    stage.assert_holds(1, 0);
    assert_eq!(stage.messages(JOBS)[0].failed, 0);
}

#[test]
fn the_second_signal_ends_everything_at_once_and_still_gives_back() {
    let stage = Stage::with(LONG);
    stage.put("x");
    is_ended_by_the_second_signal(stage.worker());
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
    assert_ended(&done, 0, "--max-messages is reached");
    let running = stage.worker().command(["true"]).start();
    running.await_log("takes messages");
    stopped_by(Signal::SIGTERM, running);
}

#[test]
fn repeated_stops_leave_no_lock_and_count_no_attempt() {
    let stage = Stage::with(LONG);
    for text in ["a", "b", "c", "d", "e"] {
        stage.put(text);
    }
    let worker = || {
        let worker = stage.worker().args(["-j", "3", "--grace", "0s"]);
        worker.shell("exec sleep 600").start()
    };
    // From before the first message to after several.
    let after = |round| Duration::from_millis(5 + 15 * round);
    stopped_at_any_moment(worker, after, |said| {
        // The broker may take a moment to close.
        stage.wait("nothing to be locked", |view| {
            (view.counts(JOBS).locked == 0).then_some(())
        });
        stage.assert_holds(5, 0);
        let counted = stage.messages(JOBS).iter().filter(|m| m.failed > 0).count();
        assert_eq!(counted, 0, "{said}");
        assert_eq!(stage.expired(), 0);
    });
}
