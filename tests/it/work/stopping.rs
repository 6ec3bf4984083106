//! A stopping worker takes no more messages, and leaves none locked.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::*;
use crate::support::proxy::{Call, Fate, Proxy};
use crate::support::stopping::{
    finishes_what_runs, is_asked_after_the_grace, is_ended_by_the_second_signal,
    stopped_at_any_moment, stopped_twice_by,
};

#[test]
fn running_command_may_finish_while_its_lock_is_renewed() {
    let (scene, mailbox) = with("x");
    mailbox.put("y");
    let worker = worker(&scene, &mailbox).args(["--lock-time", "10s"]);
    finishes_what_runs(worker, 12, || {});
    let left = mailbox.visible();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].count, 0, "the other one was never taken");
}

#[test]
fn after_the_grace_it_is_stopped_and_its_message_is_there_at_once() {
    let (scene, mailbox) = with("x");
    is_asked_after_the_grace(worker(&scene, &mailbox).args(["--lock-time", "1h"]));
    assert_eq!(mailbox.visible().len(), 1, "not in an hour, now");
}

#[test]
fn the_second_signal_ends_everything_at_once_and_still_gives_back() {
    let (scene, mailbox) = with("x");
    is_ended_by_the_second_signal(worker(&scene, &mailbox).args(["--lock-time", "1h"]));
    assert_eq!(mailbox.visible().len(), 1);
    scene.await_nobody();
}

#[test]
fn repeated_stops_leave_no_lock() {
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    for text in ["a", "b", "c", "d", "e"] {
        mailbox.put(text);
    }
    let worker = || {
        worker(&scene, &mailbox)
            .args(["-j", "3", "--lock-time", "1h", "--grace", "0s"])
            .args(["--max-attempts", "1000000", "--retry-delay", "0s"])
            .shell("sleep 0.2; exit 75")
            .start()
    };
    // From before the first look to after several messages.
    let after = |round| Duration::from_millis(10 + 60 * round);
    stopped_at_any_moment(worker, after, |said| {
        assert_eq!(mailbox.visible().len(), 5, "{said}");
    });
}

#[test]
fn the_second_signal_does_not_wait_for_a_queue_that_does_not_settle() {
    let (scene, mailbox) = with("x");
    let proxy = Proxy::before(queues().port);
    for _ in 0..100 {
        proxy.next(Call::DeleteMessage, Fate::Answer(503, "text/plain", "busy"));
    }
    let running = worker_at(&scene, &mailbox, proxy.port)
        .args(["--lock-time", "1h"])
        .command(["true"])
        .start();
    let asked = || {
        let log = proxy.log();
        let deletes = log.iter().filter(|seen| seen.call == Call::DeleteMessage);
        deletes.count()
    };
    let begun = || (asked() > 0).then_some(());
    crate::support::await_for("a settlement", begun, || running.stderr());
    let done = stopped_twice_by(Signal::SIGTERM, running);
    assert!(done.stderr.contains("unconfirmed"), "{}", done.stderr);
    // There would be twice as many in the minute that a settlement gets.
    assert!(asked() <= 8, "{}", asked());
}
