//! Input that cannot work is refused in one line, before a message is taken.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::support::proxy::{Call, Fate, Mode, Proxy};

/// Checks for this status and these words, without a request to the queue.
#[track_caller]
fn never_asked(queue: &str, more: &[&str], command: &[&str], code: i32, words: &str) {
    let scene = Scene::new();
    let proxy = Proxy::before(queues().port);
    let done = worker_at(&scene, &Mailbox::named(queue), proxy.port)
        .args(more)
        .command(command)
        .finish();
    assert_ended(&done, code, words);
    assert!(proxy.log().is_empty(), "{:?}", proxy.log());
    let errors = done.stderr.lines().filter(|line| line.contains("error"));
    assert_eq!(errors.count(), 1, "{}", done.stderr);
}

#[test]
fn settings_that_cannot_be() {
    for (more, words) in [
        (["-j", "0"], "-j 0: take a number from 1 to 128"),
        (["-j", "129"], "-j 129: take a number from 1 to 128"),
        (["-j", "two"], "-j two: take a number"),
        (["--lock-time", "1s"], "--lock-time 1s: take 2s to 7d"),
        (["--lock-time", "8d"], "take 2s to 7d"),
        (["--lock-time", "0"], "take 2s to 7d"),
        (["--lock-time", "2500ms"], "whole seconds: take 2s"),
        (["--renew-at", "91%"], "--renew-at 91%: take 10% to 90%"),
        (["--max-attempts", "0"], "--max-attempts 0: take a number"),
        (["--max-messages", "0"], "--max-messages 0: take a number"),
        (["--timeout", "0"], "--timeout 0s"),
        (["--max-body", "0"], "--max-body 0"),
        (["--max-body", "much"], "--max-body much"),
        (["--dead-letter-exit", "0"], "--dead-letter-exit 0"),
        (["--dead-letter-exit", "256"], "--dead-letter-exit 256"),
        (["--poison-queue", "No"], "No"),
        (["--retry-delay", "10s..1s"], "--retry-delay"),
    ] {
        never_asked("jobs", &more, &["true"], 64, words);
    }
    never_asked("no_such_name", &[], &["true"], 64, "no_such_name");
    never_asked(&"q".repeat(57), &[], &["true"], 64, "poison");
}

#[test]
fn a_command_that_is_not_there_or_cannot_be_run_takes_no_message() {
    never_asked("jobs", &[], &["no-such-command"], 127, "no-such-command");
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    std::fs::write(&text, "no program").unwrap();
    let command = [text.to_str().unwrap()];
    never_asked("jobs", &[], &command, 126, "cannot run");
}

#[test]
fn a_command_that_turns_out_not_to_run_gives_its_message_back_and_ends_the_worker() {
    let (scene, mailbox) = with("x");
    mailbox.put("y");
    let script = scene.path("script");
    std::fs::write(&script, "#!/etc\n").unwrap();
    set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let done = worker(&scene, &mailbox)
        .args(["--lock-time", "1h"])
        .command([&script])
        .finish();
    assert_ended(&done, 126, "released, attempt 1");
    let mut left = mailbox.visible();
    left.sort_by_key(|letter| letter.count);
    let counts: Vec<u32> = left.iter().map(|letter| letter.count).collect();
    assert_eq!(counts, [0, 1], "visible at once, and no other was taken");
    assert!(!mailbox.poison().exists());
}

#[test]
fn unusable_body_is_dead_lettered_with_its_reason() {
    for (more, text, reason) in [
        (["--max-body", "9"], "0123456789", "TooLarge"),
        (["--encoding", "base64"], "no base64!", "NotBase64"),
    ] {
        let (scene, mailbox) = with(text);
        let done = worker(&scene, &mailbox)
            .args(["--idle-exit", "0"])
            .args(more)
            .current_dir(scene.directory())
            .shell("touch never")
            .finish();
        assert_ended(
            &done,
            0,
            &format!("dead-lettered, attempt 1, 0 renewals: {reason} ("),
        );
        assert_eq!(poisoned(&mailbox).text, text);
        assert!(!scene.path("never").exists());
    }
    // A body that just fits is passed on.
    let (scene, mailbox) = with("0123456789");
    let done = once(&scene, &mailbox, &["--max-body", "10"], "cat");
    assert_ended(&done, 0, "completed");
    assert_eq!(done.stdout, "0123456789");
}

#[test]
fn message_taken_too_often_is_dead_lettered_unrun() {
    let (scene, mailbox) = with("x");
    for _ in 0..2 {
        mailbox.await_take(1);
    }
    let done = worker(&scene, &mailbox)
        .args(["--max-attempts", "2", "--idle-exit", "3s"])
        .current_dir(scene.directory())
        .shell("touch never")
        .finish();
    assert_ended(
        &done,
        0,
        "dead-lettered, attempt 3, 0 renewals: TooManyAttempts",
    );
    assert_eq!(poisoned(&mailbox).text, "x");
    assert!(!scene.path("never").exists());
}

#[test]
fn a_queue_that_is_out_of_reach_at_the_start_is_status_69() {
    let scene = Scene::new();
    let nobody = Proxy::alone(Mode::Cut);
    let done = worker_at(&scene, &Mailbox::named("jobs"), nobody.port)
        .command(["true"])
        .finish();
    assert_ended(&done, 69, "cannot reach the queue: ");
    assert!(done.stderr.contains("; retrying"), "{}", done.stderr);
    assert!(nobody.log().is_empty() || nobody.log().len() > 1);
}

#[test]
fn worker_without_the_right_to_take_exits_77() {
    let (scene, mailbox) = with("x");
    let proxy = Proxy::before(queues().port);
    proxy.next(
        Call::Take,
        Fate::Refuse(403, "AuthorizationPermissionMismatch"),
    );
    let done = worker_at(&scene, &mailbox, proxy.port)
        .args(["--idle-exit", "0"])
        .command(["true"])
        .finish();
    assert_ended(&done, 77, "cannot take");
    assert!(done.stderr.contains("AuthorizationPermissionMismatch"));
    assert_eq!(mailbox.visible().len(), 1);
}

#[test]
fn a_queue_that_stops_answering_is_not_an_empty_one() {
    let (scene, mailbox) = with("x");
    let proxy = Proxy::before(queues().port);
    let running = worker_at(&scene, &mailbox, proxy.port)
        .args(["--idle-exit", "1s"])
        .shell("echo runs >&2; sleep 1")
        .start();
    running.await_log("runs");
    for _ in 0..3 {
        proxy.next(Call::Take, Fate::Answer(503, "text/plain", "busy"));
    }
    running.await_log("retrying");
    // Another message arrives meanwhile; it is taken as soon as the queue answers again.
    mailbox.put("y");
    let done = running.finish();
    assert_ended(&done, 0, "the queue answers again");
    assert_eq!(
        done.stderr.matches("completed").count(),
        2,
        "{}",
        done.stderr
    );
}
