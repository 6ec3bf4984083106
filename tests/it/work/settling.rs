//! Outcomes of a message: every row of the table.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::*;
use crate::support::instance::Instance;
use crate::support::proxy::{Call, Fate, Proxy};

#[test]
fn a_message_whose_command_succeeds_is_gone() {
    let (scene, mailbox) = with("x");
    let done = once(&scene, &mailbox, &[], "exit 0");
    assert_ended(&done, 0, "completed, attempt 1, exit 0");
    assert_eq!(mailbox.count(), 0);
    assert!(!mailbox.poison().exists());
}

#[test]
fn a_status_of_dead_letter_exit_puts_it_aside_as_it_was() {
    let (scene, mailbox) = with("a <b> & c");
    let done = once(&scene, &mailbox, &[], "exit 65");
    assert_ended(&done, 65, "dead-lettered, attempt 1, exit 65");
    let letter = poisoned(&mailbox);
    assert_eq!(letter.text, "a <b> & c");
    assert!(letter.expires.contains("9999"), "{}", letter.expires);
}

/// Stops a worker past a lock of 5 s; its command may end once it is stopped.
fn stand_still_past_the_lock(worker: &Instance, go: &Path) {
    worker.freeze();
    std::fs::write(go, "").unwrap();
    std::thread::sleep(Duration::from_secs(7));
    worker.signal(Signal::SIGCONT);
}

/// The lock is over, but no other worker has the message: the queue knows.
#[test]
fn success_during_a_pause_of_its_worker_is_settled() {
    let (scene, mailbox) = with("x");
    let go = scene.path("go");
    let running = worker(&scene, &mailbox)
        .args(["--once", "--lock-time", "5s"])
        .shell(&until_there(&go, 0))
        .start();
    running.await_log("runs");
    stand_still_past_the_lock(&running, &go);
    let done = running.finish();
    assert_ended(&done, 0, "completed, attempt 1");
    assert_eq!(mailbox.count(), 0);
}

#[test]
fn command_whose_message_expires_may_finish() {
    // Long, so that on a busy machine, too, it is taken early, and renewed until it expires.
    let lock = ["--lock-time", "8s", "--once"];
    let cases = [
        (0, "expired, attempt 1, exit 0"),
        (3, "expired, attempt 1, exit 3"),
        (65, "dead-lettered, attempt 1, exit 65"),
    ];
    std::thread::scope(|scope| {
        for (code, row) in cases {
            scope.spawn(move || {
                let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
                mailbox.put_for(16, "x");
                let go = scene.path("go");
                let running = worker(&scene, &mailbox)
                    .args(lock)
                    .shell(&until_there(&go, code))
                    .start();
                running.await_log("is gone: it has expired");
                std::fs::write(&go, "").unwrap();
                let done = running.finish();
                assert_ended(&done, code, row);
                assert!(
                    !done.stderr.contains("at the same time as"),
                    "{}",
                    done.stderr
                );
                assert_eq!(mailbox.poison().exists(), code == 65);
            });
        }
    });
}

#[test]
fn message_that_expires_before_its_lock_is_warned_of() {
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    mailbox.put_for(30, "x");
    let done = once(&scene, &mailbox, &[], "exit 0");
    assert_ended(&done, 0, "completed, attempt 1, exit 0, ");
    assert!(
        done.stderr.contains("before its lock of 60s ends"),
        "{}",
        done.stderr
    );
}

#[test]
fn command_whose_queue_is_deleted_may_finish_and_then_the_worker_is_idle() {
    let (scene, mailbox) = with("x");
    let go = scene.path("go");
    let running = worker(&scene, &mailbox)
        .args(["--lock-time", "8s", "--idle-exit", "1s"])
        .shell(&until_there(&go, 0))
        .start();
    running.await_log("runs");
    mailbox.delete();
    running.await_log("is gone: its queue was deleted");
    std::fs::write(&go, "").unwrap();
    let done = running.finish();
    assert_ended(&done, 0, "there was no message for --idle-exit");
    assert!(
        done.stderr.contains("expired, attempt 1, exit 0")
            && !done.stderr.contains("at the same time as"),
        "{}",
        done.stderr
    );
}

#[test]
fn worker_on_a_deleted_queue_waits_until_it_is_made_again() {
    let (scene, mailbox) = with("x");
    let running = worker(&scene, &mailbox).command(["true"]).start();
    running.await_log("completed");
    mailbox.delete();
    running.await_log("the queue was deleted");
    mailbox.create();
    mailbox.put("y");
    running.await_log_times("completed", 2);
    stopped_by(Signal::SIGTERM, running);
}

/// Ends with this status as soon as the file exists.
fn until_there(go: &Path, code: i32) -> String {
    let go = go.display();
    format!("echo runs >&2; until [ -e '{go}' ]; do sleep 0.05; done; exit {code}")
}

#[test]
fn any_other_status_and_a_signal_bring_it_back_after_the_delay() {
    for (script, ended) in [
        ("exit 3", Ended::Code(3)),
        ("exit 75", Ended::Code(75)),
        ("kill -9 $$", Ended::Died(Signal::SIGKILL)),
    ] {
        let (scene, mailbox) = with("x");
        let done = once(&scene, &mailbox, &[], script);
        assert_eq!(done.ended, ended, "{}", done.stderr);
        assert!(done.stderr.contains("retried"), "{}", done.stderr);
        // It stays hidden for an hour.
        assert_eq!((mailbox.count(), mailbox.visible()), (1, vec![]));
    }
}

#[test]
fn failed_message_is_retried_and_dead_lettered_on_the_last_attempt() {
    let (scene, mailbox) = with("x");
    let done = worker(&scene, &mailbox)
        .args([
            "--max-attempts",
            "3",
            "--retry-delay",
            "1s",
            "--max-messages",
            "3",
        ])
        .shell("echo $TRAFFICCOP_MESSAGE_ATTEMPT of $TRAFFICCOP_MESSAGE_MAX_ATTEMPTS; exit 9")
        .finish();
    assert_ended(&done, 0, "CommandFailed (exit status 9, attempt 3 of 3)");
    assert_eq!(done.stdout, "1 of 3\n2 of 3\n3 of 3\n");
    assert_eq!(poisoned(&mailbox).text, "x");
}

#[test]
fn a_command_that_takes_too_long_is_stopped_and_has_failed() {
    let (scene, mailbox) = with("x");
    let limits = ["--timeout", "1s", "--kill-after", "1s"];
    // It ignores the signal, then exits 0.
    let done = once(
        &scene,
        &mailbox,
        &limits,
        "trap 'sleep 60' TERM; sleep 60 & wait; exit 0",
    );
    assert!(
        done.stderr.contains("retried") && done.stderr.contains("CommandTimedOut"),
        "{}",
        done.stderr
    );
    assert_eq!(done.ended, Ended::Died(Signal::SIGKILL));
    let (scene, mailbox) = with("x");
    let done = once(
        &scene,
        &mailbox,
        &["--timeout", "1s"],
        "trap 'exit 0' TERM; sleep 60 & wait",
    );
    assert_ended(&done, 70, "CommandTimedOut");
    assert_eq!((mailbox.count(), mailbox.visible()), (1, vec![]));
    scene.await_nobody();
}

#[test]
fn a_command_that_cannot_be_started_costs_the_message_nothing() {
    let (scene, mailbox) = with("x");
    let script = scene.path("script");
    std::fs::write(&script, "#!/etc\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let done = worker(&scene, &mailbox).command([&script]).finish();
    assert_ended(&done, 126, "released, attempt 1");
    assert_eq!(mailbox.visible().len(), 1, "visible at once");
    // What can be checked is checked before a message is taken.
    for (command, code) in [("no-such-command", 127), ("/etc/passwd", 126)] {
        let done = worker(&scene, &mailbox).command([command]).finish();
        assert_ended(&done, code, "cannot run");
    }
    assert_eq!(mailbox.await_take(60).count, 2, "taken once before");
}

#[test]
fn exhausted_or_unreadable_message_is_dead_lettered_unrun() {
    let never = "touch never";
    for (text, more, reason) in [
        ("not base64!", &["--encoding", "base64"][..], "NotBase64"),
        ("too long for this", &["--max-body", "4"][..], "TooLarge"),
        (
            "taken twice",
            &["--max-attempts", "2"][..],
            "TooManyAttempts",
        ),
    ] {
        let (scene, mailbox) = with(text);
        for _ in 0..2 {
            mailbox.await_take(1);
        }
        let done = worker(&scene, &mailbox)
            .args(["--idle-exit", "4s"])
            .args(more)
            .current_dir(scene.directory())
            .shell(never)
            .finish();
        assert_ended(&done, 0, "dead-lettered, attempt 3");
        assert!(done.stderr.contains(reason), "{reason}: {}", done.stderr);
        assert!(!scene.path("never").exists());
        assert_eq!(poisoned(&mailbox).text, text);
    }
}

#[test]
fn message_that_cannot_be_dead_lettered_is_not_run_and_five_end_the_worker() {
    let (scene, mailbox) = with("0");
    for text in ["1", "2", "3", "4", "5"] {
        mailbox.put(text);
    }
    for _ in 0..6 {
        mailbox.await_take(1);
    }
    let proxy = Proxy::before(queues().port);
    for _ in 0..5 {
        proxy.next(
            Call::Put,
            Fate::Refuse(403, "AuthorizationPermissionMismatch"),
        );
    }
    let done = worker_at(&scene, &mailbox, proxy.port)
        .args(["--max-attempts", "1", "--lock-time", "60s"])
        .current_dir(scene.directory())
        .shell("touch never")
        .finish();
    assert_ended(&done, 69, "unsettled");
    assert!(!scene.path("never").exists());
    assert_eq!(mailbox.count(), 6, "nothing was lost");
}

#[test]
fn a_settlement_that_is_not_answered_is_asked_for_again_and_then_unconfirmed() {
    let (scene, mailbox) = with("x");
    let proxy = Proxy::before(queues().port);
    proxy.next(Call::DeleteMessage, Fate::Answer(503, "text/plain", "busy"));
    let done = worker_at(&scene, &mailbox, proxy.port)
        .arg("--once")
        .shell("exit 0")
        .finish();
    assert_ended(&done, 0, "completed");
    let (scene, mailbox) = with("x");
    for _ in 0..100 {
        proxy.next(Call::DeleteMessage, Fate::Answer(503, "text/plain", "busy"));
    }
    let done = worker_at(&scene, &mailbox, proxy.port)
        .args(["--once", "--lock-time", "5s"])
        .shell("exit 0")
        .finish();
    assert_ended(&done, 70, "unconfirmed");
    assert_eq!(mailbox.await_take(60).count, 2, "it comes again");
}

#[test]
fn a_lock_that_is_lost_or_in_doubt_ends_the_command_and_settles_nothing() {
    // Deleted by another: certainly lost.
    let (scene, mailbox) = with("x");
    let running = worker(&scene, &mailbox)
        .args(["--once", "--lock-time", "12s"])
        .shell("echo runs >&2; sleep 600")
        .start();
    running.await_log("runs");
    mailbox.clear();
    let done = running.finish();
    // Another worker may have deleted it.
    assert_ended(&done, 71, "lost, attempt 1");
    scene.await_nobody();
    // Without an answer: in doubt.
    let (scene, mailbox) = with("x");
    let proxy = Proxy::before(queues().port);
    let running = worker_at(&scene, &mailbox, proxy.port)
        .args(["--once", "--lock-time", "4s"])
        .shell("echo runs >&2; sleep 600")
        .start();
    running.await_log("runs");
    proxy.set(crate::support::proxy::Mode::Freeze);
    let done = running.finish();
    assert_ended(&done, 70, "LockInDoubt");
    scene.await_nobody();
    proxy.set(crate::support::proxy::Mode::Pass);
    assert_eq!(mailbox.await_take(60).count, 2);
    let deletes = proxy.log();
    let deletes = deletes
        .iter()
        .filter(|seen| seen.call == Call::DeleteMessage);
    assert_eq!(deletes.count(), 0);
}

#[test]
fn no_queue_and_a_wrong_key_have_their_statuses() {
    let scene = Scene::new();
    let none = Mailbox::named("there-is-none");
    let done = worker(&scene, &none).command(["true"]).finish();
    assert_ended(&done, 66, "no such queue");
    let done = worker(&scene, &none).args(["--create", "--idle-exit", "0s"]);
    assert_ended(&done.command(["true"]).finish(), 0, "--idle-exit");
    assert!(none.exists());
    let wrong = KEY.replace("Eby8", "AAAA");
    let done = worker(&scene, &none)
        .env(CONNECTION, queue_string(queues().port, &wrong))
        .command(["true"])
        .finish();
    assert_eq!(done.ended, Ended::Code(77), "{}", done.stderr);
    assert!(!done.stderr.contains(&wrong));
}

#[test]
fn a_command_that_ends_while_its_lock_is_being_renewed_is_completed() {
    let (scene, mailbox) = with("x");
    let (proxy, go) = (Proxy::before(queues().port), scene.path("go"));
    // The first is the probe at the start for the right to renew.
    for seconds in [0, 4] {
        let late = Fate::DelayReply(std::time::Duration::from_secs(seconds));
        proxy.next(Call::Update, late);
    }
    let running = worker_at(&scene, &mailbox, proxy.port)
        .args(["--once", "--lock-time", "60s", "--renew-at", "10%"])
        .shell(&format!(
            "echo runs >&2; while [ ! -e {} ]; do sleep 0.05; done",
            go.display()
        ))
        .start();
    // Done, not answered yet.
    let renewals = || {
        let log = proxy.log();
        let updates = log.iter().filter(|seen| seen.call == Call::Update);
        updates.filter(|seen| seen.status == Some(204)).count()
    };
    crate::support::await_for(
        "a renewal",
        || (renewals() > 0).then_some(()),
        || running.stderr(),
    );
    std::fs::write(&go, "").unwrap();
    let done = running.finish();
    assert_ended(&done, 0, "completed, attempt 1, exit 0");
    assert_eq!(mailbox.count(), 0, "its receipt was in the answer");
}

#[test]
fn timeout_during_a_pause_of_its_worker_is_a_failure() {
    let (scene, mailbox) = with("x");
    let go = scene.path("go");
    let running = worker(&scene, &mailbox)
        .args(["--once", "--lock-time", "5s", "--timeout", "1s"])
        .args(["--kill-after", "10s"])
        .shell(&format!(
            "trap 'echo asked >&2; until [ -e \"{}\" ]; do sleep 0.05; done; exit 0' TERM
            echo runs >&2; sleep 60 & wait",
            go.display()
        ))
        .start();
    running.await_log("asked");
    stand_still_past_the_lock(&running, &go);
    let done = running.finish();
    assert_ended(&done, 70, "CommandTimedOut");
    assert!(done.stderr.contains("retried"), "{}", done.stderr);
    assert_eq!(mailbox.count(), 1, "it comes again");
}
