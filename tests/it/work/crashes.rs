//! Deaths of a worker that has a message.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::support::journal::What;
use trafficcop::Instant;

/// Returns a journalist whose token is the attempt.
pub(super) fn journalist(scene: &Scene, tag: &str, options: &[&str]) -> Vec<std::ffi::OsString> {
    let wrapper =
        "TRAFFICCOP_TOKEN=$TRAFFICCOP_MESSAGE_ATTEMPT TRAFFICCOP_HOLDER=worker exec \"$@\"";
    let shell = ["sh", "-c", wrapper, "sh"].map(std::ffi::OsString::from);
    shell
        .into_iter()
        .chain(scene.journalist(tag, options))
        .collect()
}

#[test]
fn a_killed_worker_s_message_comes_again_after_its_lock_and_its_command_is_dead_before() {
    let (scene, mailbox) = with("x");
    let begin = Instant::now();
    let first = worker(&scene, &mailbox)
        .args(["--lock-time", "8s"])
        .command(journalist(&scene, "first", &["--term", "ignore"]))
        .start();
    scene.journal.await_tag(What::Start, "first");
    let second = worker(&scene, &mailbox)
        .args(["--lock-time", "8s", "--once"])
        .command(journalist(&scene, "second", &["--beats", "5"]))
        .start();
    scene.journal.await_sign_of_life("first");
    first.signal(Signal::SIGKILL);
    let done = second.finish();
    assert_ended(&done, 0, "completed, attempt 2");
    // A greater attempt, without an overlap.
    assert_eq!(scene.journal.judge(), ["first", "second"]);
    let lines = scene.journal.lines();
    let started = lines.iter().find(|line| line.tag == "second").unwrap();
    assert!(started.at >= (begin + std::time::Duration::from_secs(8)).as_nanos());
}

#[test]
fn a_killed_guardian_takes_its_command_with_it_and_the_message_is_given_back() {
    let (scene, mailbox) = with("x");
    let running = worker(&scene, &mailbox)
        .args(["--lock-time", "1h"])
        .command(journalist(&scene, "only", &["--term", "ignore"]))
        .start();
    scene.journal.await_tag(What::Start, "only");
    kill(Pid::from_raw(running.guardian()), Signal::SIGKILL).unwrap();
    let done = running.finish();
    assert_ended(&done, 70, "released");
    assert_eq!(mailbox.visible().len(), 1);
    scene.await_nobody();
}
