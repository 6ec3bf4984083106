//! Stopping workers: what every queue must do. The tests judge the messages.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::instance::{Ended, Finished, Instance, Run};

/// Stops it; it must die of that signal after its work.
#[track_caller]
pub(crate) fn stopped_by(number: Signal, running: Instance) -> Finished {
    running.signal(number);
    let done = running.finish();
    assert_eq!(done.ended, Ended::Died(number), "{}", done.stderr);
    done
}

/// Repeats the signal once the first is noticed.
#[track_caller]
pub(crate) fn stopped_twice_by(number: Signal, running: Instance) -> Finished {
    running.signal(number);
    running.await_log("asked to stop: taking no more");
    // A repetition within a tenth of a second does not count.
    std::thread::sleep(Duration::from_millis(150));
    stopped_by(number, running)
}

/// Checks that the command of a worker of one message, which takes `seconds`, may finish although
/// the worker is stopped, after `meanwhile`.
pub(crate) fn finishes_what_runs(worker: Run<'_>, seconds: u32, meanwhile: impl FnOnce()) {
    let script = format!("echo runs >&2; sleep {seconds}");
    let running = worker.args(["--grace", "60s"]).shell(&script).start();
    running.await_log("runs");
    meanwhile();
    let done = stopped_by(Signal::SIGTERM, running);
    let said = done.stderr;
    assert!(said.contains("completed, attempt 1"), "{said}");
    assert_eq!(said.matches("runs").count(), 1, "{said}");
}

/// Checks that a command longer than the grace gets the stop signal when its worker is stopped, and
/// the message is released.
pub(crate) fn is_asked_after_the_grace(worker: Run<'_>) {
    let running = worker
        .args(["--grace", "1s"])
        .shell("trap 'echo asked >&2; exit 0' TERM; echo runs >&2; sleep 600 & wait")
        .start();
    running.await_log("runs");
    let said = stopped_by(Signal::SIGTERM, running).stderr;
    assert!(said.contains("asked"), "{said}");
    assert!(said.contains("released, attempt 1"), "{said}");
}

/// Checks that a second stop releases the message without the grace, although the command ignores
/// the signal.
pub(crate) fn is_ended_by_the_second_signal(worker: Run<'_>) {
    let running = worker
        .args(["--grace", "1h", "--kill-after", "1h"])
        .shell("trap '' TERM INT; echo runs >&2; while :; do sleep 1; done")
        .start();
    running.await_log("runs");
    let said = stopped_twice_by(Signal::SIGINT, running).stderr;
    assert!(said.contains("released"), "{said}");
}

/// Stops workers one after another, each after about the time for its round (ten that repeat), and
/// judges each.
///
/// `TRAFFICCOP_TEST_STOPS=200` gives the long version.
pub(crate) fn stopped_at_any_moment(
    worker: impl Fn() -> Instance,
    after: impl Fn(u64) -> Duration,
    judge: impl Fn(&str),
) {
    let stops = std::env::var("TRAFFICCOP_TEST_STOPS");
    let stops: u64 = stops.map_or(20, |text| text.parse().expect("a number"));
    let mut jitter = trafficcop_core::retry::Jitter::new(7);
    for round in 0..stops {
        let running = worker();
        running.await_log("takes messages");
        std::thread::sleep(jitter.spread(after(round % 10)));
        let done = stopped_by(Signal::SIGTERM, running);
        judge(&format!("round {round}\n{}", done.stderr));
    }
}
