//! `--at-most-once`: a message is completed before its command starts, which never runs twice.

use nix::sys::signal::Signal;
use service_bus_stand_in::{Act, Fault, On};

use super::*;
use crate::support::await_for;

const FLAG: &str = "--at-most-once";

#[test]
fn message_is_completed_before_its_command_starts_and_stays_so_if_that_fails() {
    let stage = Stage::brief("x");
    let running = stage
        .worker()
        .args([FLAG, "--once"])
        .shell("echo runs >&2; sleep 6; exit 3")
        .start();
    running.await_log("runs");
    stage.assert_holds(0, 0);
    // Longer than the lock.
    let done = running.finish();
    assert_ended(&done, 3, "failed, attempt 1, exit 3");
    stage.assert_holds(0, 0);
    assert_eq!((stage.settled(), stage.expired()), (1, 0));
}

#[test]
fn command_whose_message_cannot_be_completed_does_not_start() {
    let refuse = Act::Refuse {
        status: 401,
        condition: "amqp:unauthorized-access".into(),
        text: "Unauthorized access. 'Listen' claim(s) are required.".into(),
    };
    let stage = Stage::with(SHORT);
    for _ in 0..6 {
        stage.put("x");
    }
    let on = Fault::new(On::UpdateDisposition, refuse).times(u32::MAX);
    stage.broker.fault(on);
    let done = stage
        .worker()
        .args([FLAG, "-j", "5"])
        .current_dir(stage.scene.directory())
        .shell("touch never")
        .finish();
    assert_ended(&done, 69, "cannot be settled before their commands start");
    assert!(!stage.scene.path("never").exists());
    let counts = stage.counts(JOBS);
    assert_eq!(counts.ready + counts.locked, 6, "nothing was lost");
}

#[test]
fn completion_that_is_refused_for_now_is_asked_again_and_the_command_starts_once() {
    let stage = Stage::one("x");
    let busy = Fault::new(On::UpdateDisposition, Act::server_busy()).at(JOBS);
    stage.broker.fault(busy);
    let done = stage.once(&[FLAG], "echo runs >&2");
    assert_ended(&done, 0, "completed");
    assert_eq!(done.stderr.matches("runs\n").count(), 1, "{}", done.stderr);
    stage.assert_holds(0, 0);
}

/// The service forgets a lock token with its message, and answers the same for another worker's
/// lock.
#[test]
fn completion_whose_answer_is_lost_starts_no_command() {
    for act in [Act::Lose, Act::CutAfter] {
        let stage = Stage::brief("x");
        let lost = Fault::new(On::UpdateDisposition, act.clone()).at(JOBS);
        stage.broker.fault(lost);
        let done = stage
            .worker()
            .args([FLAG, "--idle-exit", "0s"])
            .current_dir(stage.scene.directory())
            .shell("touch never")
            .finish();
        assert_ended(&done, 0, "unconfirmed, attempt 1, 0 renewals: NotSettled (");
        assert!(!stage.scene.path("never").exists());
        stage.assert_holds(0, 0);
    }
}

#[test]
fn killed_worker_loses_the_message_and_never_runs_it_twice() {
    let stage = Stage::brief("x");
    let first = stage
        .worker()
        .arg(FLAG)
        .current_dir(stage.scene.directory())
        .command(["sh", "-c", "echo x >> started; sleep 600"])
        .start();
    first.await_log("first and last time");
    await_for(
        "a start",
        || (starts(&stage) == 1).then_some(()),
        String::new,
    );
    first.signal(Signal::SIGKILL);
    drop(first.finish());
    stage.scene.await_nobody();
    // Longer than the lock.
    let second = stage
        .worker()
        .args([FLAG, "--idle-exit", "6s"])
        .current_dir(stage.scene.directory())
        .shell("echo x >> started")
        .finish();
    assert_ended(&second, 0, "no message for --idle-exit");
    assert_eq!(starts(&stage), 1);
}

fn starts(stage: &Stage) -> usize {
    let text = std::fs::read_to_string(stage.scene.path("started"));
    text.map_or(0, |text| text.lines().count())
}
