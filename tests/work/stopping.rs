//! A worker that is asked to stop takes no more, and leaves nothing locked.

use nix::sys::signal::Signal;

use super::*;
use support::proxy::{Call, Fate, Proxy};

#[test]
fn what_runs_may_finish_while_its_lock_is_renewed() {
    let (scene, mailbox) = with("x");
    mailbox.put("y");
    let running = worker(&scene, &mailbox)
        .args(["--lock-time", "10s", "--grace", "60s"])
        .shell("echo runs >&2; sleep 12")
        .start();
    running.await_log("runs");
    running.signal(Signal::SIGTERM);
    let done = running.finish();
    assert_eq!(done.ended, Ended::Died(Signal::SIGTERM), "{}", done.stderr);
    assert!(
        done.stderr.contains("completed, attempt 1"),
        "{}",
        done.stderr
    );
    assert_eq!(done.stderr.matches("runs").count(), 1, "{}", done.stderr);
    let left = mailbox.visible();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].count, 0, "the other one was never taken");
}

#[test]
fn after_the_grace_it_is_stopped_and_its_message_is_there_at_once() {
    let (scene, mailbox) = with("x");
    let running = worker(&scene, &mailbox)
        .args(["--lock-time", "1h", "--grace", "1s"])
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
    assert_eq!(mailbox.visible().len(), 1, "not in an hour, now");
}

#[test]
fn the_second_signal_ends_everything_at_once_and_still_gives_back() {
    let (scene, mailbox) = with("x");
    let running = worker(&scene, &mailbox)
        .args(["--lock-time", "1h", "--grace", "1h", "--kill-after", "1h"])
        .shell("trap '' TERM INT; echo runs >&2; while :; do sleep 1; done")
        .start();
    running.await_log("runs");
    running.signal(Signal::SIGINT);
    running.await_log("asked to stop: taking no more");
    // The same request twice within a tenth of a second is one.
    std::thread::sleep(std::time::Duration::from_millis(150));
    running.signal(Signal::SIGINT);
    let done = running.finish();
    assert_eq!(done.ended, Ended::Died(Signal::SIGINT), "{}", done.stderr);
    assert!(done.stderr.contains("released"), "{}", done.stderr);
    assert_eq!(mailbox.visible().len(), 1);
    scene.await_nobody();
}

#[test]
fn however_often_and_whenever_it_is_stopped_nothing_stays_locked() {
    // TRAFFICCOP_TEST_STOPS=200 for the long version.
    let stops = std::env::var("TRAFFICCOP_TEST_STOPS");
    let stops: u64 = stops.map_or(20, |text| text.parse().unwrap());
    let mailbox = Mailbox::fresh();
    for text in ["a", "b", "c", "d", "e"] {
        mailbox.put(text);
    }
    let mut chance = trafficcop::core::retry::Chance::new(7);
    for round in 0..stops {
        let scene = Scene::new();
        let running = worker(&scene, &mailbox)
            .args([
                "-j",
                "3",
                "--lock-time",
                "1h",
                "--max-attempts",
                "1000000",
                "--grace",
                "0s",
            ])
            .shell("sleep 0.2; exit 75")
            .args(["--retry-delay", "0s"])
            .start();
        running.await_log("takes messages");
        // From before the first look to after several messages.
        let wait = chance.spread(std::time::Duration::from_millis(10 + 60 * (round % 10)));
        std::thread::sleep(wait);
        running.signal(Signal::SIGTERM);
        let done = running.finish();
        assert_eq!(done.ended, Ended::Died(Signal::SIGTERM), "{}", done.stderr);
        assert_eq!(mailbox.visible().len(), 5, "round {round}\n{}", done.stderr);
    }
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
    support::await_for("a settlement", begun, || running.stderr());
    running.signal(Signal::SIGTERM);
    running.await_log("asked to stop: taking no more");
    std::thread::sleep(std::time::Duration::from_millis(150));
    running.signal(Signal::SIGTERM);
    let done = running.finish();
    assert_eq!(done.ended, Ended::Died(Signal::SIGTERM), "{}", done.stderr);
    assert!(done.stderr.contains("unconfirmed"), "{}", done.stderr);
    // In the minute that a settlement is given there are twice as many.
    assert!(asked() <= 8, "{}", asked());
}
