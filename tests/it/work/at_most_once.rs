//! `--at-most-once`: a message is deleted before its command starts, which never runs twice.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::crashes::journalist;
use super::exclusive::OnStorage;
use super::*;
use crate::support::await_for;
use crate::support::exclusive::{Stand as _, WORKERS};
use crate::support::instance::Instance;
use crate::support::journal::What;
use crate::support::proxy::{Call, Fate, Mode, Proxy, Seen};
use trafficcop::Instant;

const FLAG: &str = "--at-most-once";

/// Runs a worker for one message through this proxy; its command leaves a file.
fn once_by(scene: &Scene, mailbox: &Mailbox, proxy: &Proxy, more: &[&str]) -> Finished {
    worker_at(scene, mailbox, proxy.port)
        .args([FLAG, "--lock-time", "2s"])
        .args(more)
        .current_dir(scene.directory())
        .shell("echo x >> ran")
        .finish()
}

fn starts(scene: &Scene) -> usize {
    let ran = std::fs::read_to_string(scene.path("ran"));
    ran.map_or(0, |text| text.lines().count())
}

#[test]
fn message_is_deleted_before_its_command_starts() {
    let (scene, mailbox) = with("x");
    let go = scene.path("go");
    let proxy = Proxy::before(queues().port);
    let running = worker_at(&scene, &mailbox, proxy.port)
        .args([FLAG, "--once", "--lock-time", "2s"])
        .shell(&format!(
            "echo runs >&2; until [ -e {0} ]; do sleep 0.1; done; cat",
            go.display()
        ))
        .start();
    running.await_log("runs");
    assert_eq!(mailbox.count(), 0);
    // Neither the queue nor a lock is needed any more.
    proxy.set(Mode::Freeze);
    std::thread::sleep(Duration::from_secs(3));
    std::fs::write(&go, "").unwrap();
    let done = running.finish();
    assert_ended(&done, 0, "completed, attempt 1, exit 0");
    assert!(done.stderr.contains("0 renewals"), "{}", done.stderr);
    assert!(
        done.stderr.contains("at most once: a message is deleted"),
        "{}",
        done.stderr
    );
}

#[test]
fn message_whose_command_fails_after_its_deletion_is_reported_as_failed_and_does_not_come_again() {
    for (more, script, code, words) in [
        (
            &[][..],
            "exit 3",
            3,
            "failed, attempt 1, exit 3, * CommandFailed",
        ),
        (
            &[],
            "exit 65",
            65,
            "failed, attempt 1, exit 65, * CommandRejected",
        ),
        (
            &["--timeout", "1s"],
            "trap 'exit 0' TERM; while :; do sleep 0.1; done",
            70,
            "failed, attempt 1, exit 0, * CommandTimedOut",
        ),
    ] {
        let (scene, mailbox) = with("x");
        let done = worker(&scene, &mailbox)
            .args([FLAG, "--once"])
            .args(more)
            .shell(script)
            .finish();
        let (before, after) = words.split_once('*').unwrap();
        assert_ended(&done, code, before);
        assert!(done.stderr.contains(after), "{}", done.stderr);
        assert_eq!(mailbox.count(), 0);
        assert!(!mailbox.poison().exists());
    }
}

#[test]
fn command_whose_message_cannot_be_deleted_does_not_start_and_the_worker_leaves() {
    let mailbox = Mailbox::fresh();
    let scene = Scene::new();
    for _ in 0..6 {
        mailbox.put("x");
    }
    let proxy = Proxy::before(queues().port);
    for _ in 0..100 {
        let refused = Fate::Refuse(403, "AuthorizationPermissionMismatch");
        proxy.next(Call::DeleteMessage, refused);
    }
    let done = once_by(&scene, &mailbox, &proxy, &[]);
    assert_ended(&done, 69, "attempt 1, 0 renewals: NotSettled (403");
    assert!(
        done.stderr
            .contains("cannot be settled before their commands start"),
        "{}",
        done.stderr
    );
    assert_eq!(starts(&scene), 0);
    assert_eq!(mailbox.count(), 6, "nothing was lost");
}

#[test]
fn deletion_whose_answer_is_lost_is_asked_again_and_the_command_starts_once() {
    let (scene, mailbox) = with("x");
    let proxy = Proxy::before(queues().port);
    proxy.next(Call::DeleteMessage, Fate::LoseReply);
    let done = once_by(&scene, &mailbox, &proxy, &["--once"]);
    assert_ended(&done, 0, "completed, attempt 1, exit 0");
    assert_eq!((starts(&scene), mailbox.count()), (1, 0));
}

#[test]
fn command_does_not_start_while_it_is_not_known_whether_its_message_is_deleted() {
    let (scene, mailbox) = with("x");
    let proxy = Proxy::before(queues().port);
    // Deleted, with no answer before the lock's end.
    proxy.next(Call::DeleteMessage, Fate::LoseReply);
    for _ in 0..100 {
        let busy = Fate::Answer(503, "text/plain", "busy");
        proxy.next(Call::DeleteMessage, busy);
    }
    let done = once_by(&scene, &mailbox, &proxy, &["--idle-exit", "0s"]);
    assert_ended(&done, 0, "unconfirmed, attempt 1, 0 renewals: NotSettled (");
    assert_eq!((starts(&scene), mailbox.count()), (0, 0), "it is lost");
}

#[test]
fn message_that_another_worker_was_given_first_starts_no_command() {
    let (scene, mailbox) = with("x");
    let proxy = Proxy::before(queues().port);
    // Repeated requests, too: an answered one could delete the message before the test takes it.
    for _ in 0..3 {
        proxy.next(Call::DeleteMessage, Fate::Swallow);
    }
    let first = worker_at(&scene, &mailbox, proxy.port)
        // The worker would race with the test for a second message.
        .args([FLAG, "--lock-time", "2s", "--max-messages", "1"])
        .current_dir(scene.directory())
        .shell("echo x >> ran")
        .start();
    let asked = |seen: &Seen| seen.call == Call::DeleteMessage;
    let sent = || proxy.log().iter().any(asked).then_some(());
    await_for("a request to delete it", sent, || first.stderr());
    // The lock ends while the first worker waits for the answer.
    mailbox.await_take(600);
    first.await_log("NotSettled");
    first.signal(Signal::SIGTERM);
    let done = first.finish();
    assert!(!done.stderr.contains("first and last"), "{}", done.stderr);
    assert_eq!((starts(&scene), mailbox.count()), (0, 1));
}

#[test]
fn killed_worker_loses_the_message_and_never_runs_it_twice() {
    let (scene, mailbox) = with("x");
    let first = worker(&scene, &mailbox)
        .args([FLAG, "--lock-time", "2s"])
        .command(journalist(&scene, "first", &["--term", "ignore"]))
        .start();
    scene.journal.await_sign_of_life("first");
    first.signal(Signal::SIGKILL);
    drop(first.finish());
    scene.await_nobody();
    let second = worker(&scene, &mailbox)
        .args([FLAG, "--idle-exit", "3s"])
        .command(journalist(&scene, "second", &[]))
        .finish();
    assert_ended(&second, 0, "no message for --idle-exit");
    let starts = scene.journal.lines();
    let starts = starts.iter().filter(|line| line.what == What::Start);
    assert_eq!(starts.count(), 1);
}

#[test]
fn stop_lets_a_command_finish_and_loses_what_it_has_not_finished() {
    for (grace, script, words) in [
        (
            "30s",
            "echo runs >&2; sleep 1",
            "completed, attempt 1, exit 0",
        ),
        ("0s", "echo runs >&2; sleep 600", "WorkerStopped"),
    ] {
        let (scene, mailbox) = with("x");
        let running = worker(&scene, &mailbox)
            .args([FLAG, "--grace", grace])
            .shell(script)
            .start();
        running.await_log("runs");
        running.signal(Signal::SIGTERM);
        let done = running.finish();
        assert!(done.stderr.contains(words), "{}", done.stderr);
        assert_eq!(mailbox.count(), 0);
    }
}

#[test]
fn command_that_cannot_be_started_loses_its_message_and_ends_the_worker() {
    use std::os::unix::fs::PermissionsExt as _;
    let (scene, mailbox) = with("x");
    mailbox.put("y");
    let script = scene.path("script");
    std::fs::write(&script, "#!/etc\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let done = worker(&scene, &mailbox)
        .arg(FLAG)
        .command([&script])
        .finish();
    assert_ended(&done, 126, "failed, attempt 1, 0 renewals: NotStarted");
    assert_eq!(mailbox.count(), 1, "no other was taken");
}

#[test]
fn no_message_is_run_twice_whatever_the_network_and_the_workers_do() {
    let (stand, scene) = (OnStorage::fresh(), Scene::new());
    let all = 120;
    for number in 0..all {
        stand.put(&format!("m{number}"));
    }
    let ran = scene.path("ran");
    let start = |which| {
        let script = format!("read id; echo \"$id\" >> {}; sleep 0.3", ran.display());
        let worker = stand.worker(&scene, which);
        let worker = worker.args([FLAG, "-j", "4", "--quiet", "--max-attempts", "1000"]);
        worker.shell(&script).start()
    };
    let mut rng = fastrand::Rng::with_seed(36);
    let mut workers: Vec<Instance> = (0..WORKERS).map(start).collect();
    let begin = Instant::now();
    while stand.left() > 0 && Instant::now().since(begin) < Duration::from_secs(60) {
        let which = rng.usize(0..WORKERS);
        match rng.u32(0..=OnStorage::TROUBLES) {
            OnStorage::TROUBLES => {
                workers[which].signal(Signal::SIGKILL);
                let new = start(which);
                drop(std::mem::replace(&mut workers[which], new).finish());
            }
            what => stand.go_wrong(&mut rng, what, which),
        }
    }
    await_for(
        "an empty queue",
        || (stand.left() == 0).then_some(()),
        String::new,
    );
    for worker in workers {
        worker.signal(Signal::SIGTERM);
        drop(worker.finish());
    }
    let ran = std::fs::read_to_string(ran).expect("some have run");
    let mut ids: Vec<&str> = ran.lines().collect();
    let starts = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), starts, "one has run twice: {ran}");
    // Some are lost with killed workers and answers.
    assert!((all / 2..=all).contains(&starts), "{starts}");
}
