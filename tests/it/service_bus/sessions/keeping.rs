//! A session's lock is renewed while it is needed; a command ends when its session is lost, or may
//! be.

use super::*;
use crate::support::journal::What;

/// Reports that it runs, and never ends by itself.
const DEAF: &str = "trap '' TERM; echo runs >&2; while :; do sleep 1; done";

#[test]
fn session_is_renewed_with_and_without_a_command() {
    let stage = Stage::of_sessions(SHORT);
    stage.talk("a", &["1"]);
    let running = stage
        .session_worker()
        .args(["--session-idle", "1h"])
        .shell("sleep 12")
        .start();
    running.await_log("message 1 of session a: completed");
    let renewed = || stage.count(|event| matches!(event, Event::SessionRenewed { .. }));
    let before = renewed();
    assert!(before >= 3, "{before}");
    // For two more locks.
    stage.wait("renewals without a command", move |view| {
        let all = view.journal().iter();
        let renewed = all.filter(|entry| matches!(entry.event, Event::SessionRenewed { .. }));
        (renewed.count() >= before + 3).then_some(())
    });
    assert!(stage.is_held("a"));
    running.signal(Signal::SIGTERM);
    let _ended = running.finish();
    assert_eq!(stage.accepted(), 1);
}

#[test]
fn a_renewal_whose_answer_is_lost_costs_nothing() {
    let stage = Stage::of_sessions(Duration::from_secs(10));
    stage.talk("a", &["1"]);
    let lost = Fault::new(On::RenewSession, Act::Lose).at(JOBS).after(1);
    stage.broker.fault(lost);
    let done = stage.all(&[], "sleep 14");
    assert_ended(&done, 0, "message 1 of session a: completed, attempt 1");
    assert_eq!(stage.accepted(), 1);
    stage.assert_holds(0, 0);
}

/// Loses the session by `lose`: the command must die at once, long before its deadline, with
/// nothing settled; the message has failed this often by then.
#[track_caller]
fn lost(lose: impl Fn(&Broker), failed: u32) {
    let stage = Stage::of_sessions(Duration::from_secs(120));
    stage.talk("a", &["1"]);
    let running = stage.session_worker().args(["--once"]).shell(DEAF).start();
    running.await_log("runs");
    let begin = trafficcop::Instant::now();
    lose(&stage.broker);
    let done = running.finish();
    let took = trafficcop::Instant::now().since(begin);
    assert_ended(&done, 70, "message 1 of session a: lost, attempt 1");
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert!(
        done.stderr.contains("killing the command"),
        "{}",
        done.stderr
    );
    stage.scene.await_nobody();
    assert_eq!(stage.settled(), 0);
    assert_eq!(stage.messages(JOBS)[0].failed, failed);
    assert!(!stage.is_held("a"));
}

#[test]
fn a_session_whose_link_is_ended_is_lost_at_once() {
    lost(|broker| assert_eq!(broker.detach_sessions(JOBS), 1), 0);
}

#[test]
fn a_session_whose_connection_is_cut_is_lost_at_once() {
    lost(Broker::cut, 0);
}

#[test]
fn a_session_whose_lock_the_service_ends_is_lost_at_once() {
    lost(|broker| assert_eq!(broker.lose_sessions(JOBS), 1), 1);
}

#[test]
fn a_service_that_falls_silent_costs_the_command_before_its_lock_has_ended() {
    let stage = Stage::of_sessions(SHORT);
    stage.talk("a", &["1"]);
    let worker = stage.session_worker().args(["--once", "--log", "json"]);
    let running = worker.shell(DEAF).start();
    running.await_log("runs");
    stage.broker.freeze();
    let done = running.finish();
    stage.scene.await_nobody();
    let lost = done
        .stderr
        .lines()
        .find(|line| line.contains("message 1 of session a: lost"));
    let lost: serde_json::Value =
        serde_json::from_str(lost.unwrap_or_else(|| panic!("{}", done.stderr))).expect("JSON");
    let format = time::format_description::well_known::Rfc3339;
    let dead = time::OffsetDateTime::parse(lost["ts"].as_str().expect("a time"), &format);
    // Asked of both, because this process may look late.
    let held_until = stage.freed_at("a");
    assert!(
        dead.expect("a time") < held_until,
        "{held_until} {}",
        done.stderr
    );
    stage.broker.thaw();
    assert_eq!(stage.settled(), 0);
}

#[test]
fn a_settlement_that_is_not_confirmed_ends_the_session_and_the_next_begins_with_it() {
    let stage = Stage::of_sessions(SHORT);
    stage.talk("a", &["1", "2"]);
    let ignored = Fault::new(On::Settle, Act::Ignore).at(JOBS);
    stage.broker.fault(ignored.times(3));
    let done = stage.all(&[], "n=$(cat); echo $n");
    assert!(
        done.stderr.contains("message 1 of session a: unconfirmed"),
        "{}",
        done.stderr
    );
    assert!(
        done.stdout.starts_with("1\n1\n"),
        "never the next: {}",
        done.stdout
    );
    assert!(done.stdout.ends_with("1\n2\n"), "{}", done.stdout);
    stage.assert_holds(0, 0);
}

/// The service delays the next session.
#[test]
fn a_stop_while_another_session_is_waited_for_costs_the_one_that_runs_nothing() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1"]);
    // After the connection's own and the one that took the session.
    let late = Act::Delay(Duration::from_secs(5));
    stage.broker.fault(Fault::new(On::Begin, late).after(2));
    let worker = stage.session_worker().args(["-j", "2", "--grace", "60s"]);
    let running = worker.shell("echo runs >&2; sleep 10").start();
    running.await_log("runs");
    stage.wait("the next one to be waited for", |view| {
        let mut journal = view.journal().iter();
        let begun = |entry: &service_bus_stand_in::Entry| {
            matches!(entry.event, Event::Faulted { on: On::Begin, .. })
        };
        journal.any(begun).then_some(())
    });
    let done = stopped_by(Signal::SIGTERM, running);
    let completed = "message 1 of session a: completed, attempt 1";
    assert!(done.stderr.contains(completed), "{}", done.stderr);
    stage.assert_holds(0, 0);
}

#[test]
fn a_settlement_that_is_refused_ends_the_session_too() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1", "2"]);
    let refused = Act::Refuse {
        status: 410,
        condition: "com.microsoft:session-lock-lost".into(),
        text: "The session lock has expired.".into(),
    };
    let fault = Fault::new(On::Settle, refused).at(JOBS);
    stage.broker.fault(fault);
    let done = stage.all(&[], "cat; echo");
    assert_eq!(done.stdout, "1\n1\n2\n", "{}", done.stderr);
    assert_eq!(stage.accepted(), 2);
}

#[test]
fn a_settlement_that_is_refused_for_now_is_asked_for_again_and_nothing_runs_twice() {
    let stage = Stage::of_sessions(SHORT);
    stage.talk("a", &["1", "2"]);
    let busy = Fault::new(On::Settle, Act::server_busy()).at(JOBS);
    stage.broker.fault(busy);
    let done = stage.all(&[], "cat; echo");
    assert_eq!(done.stdout, "1\n2\n", "{}", done.stderr);
    assert_eq!(stage.accepted(), 1);
    stage.assert_holds(0, 0);
}

#[test]
fn the_first_command_of_a_session_waits_for_the_lock_delay_and_the_others_do_not() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1", "2", "3"]);
    let worker = stage.session_worker().args(["--lock-delay", "3s"]);
    let begin = trafficcop::Instant::now();
    let running = worker.command(["true"]).start();
    stage.wait("the session to be taken", |view| {
        view.is_held(JOBS, "a").then_some(())
    });
    running.await_log("message 1 of session a: completed");
    let took = trafficcop::Instant::now().since(begin);
    assert!(took >= Duration::from_secs(3), "{took:?}");
    running.await_log("message 3 of session a: completed");
    let took = trafficcop::Instant::now().since(begin);
    assert!(took < Duration::from_secs(9), "{took:?}");
    running.signal(Signal::SIGTERM);
    let _ended = running.finish();
}

#[test]
fn a_stop_during_the_lock_delay_is_no_fault_of_the_session() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1"]);
    let worker = stage.session_worker().args(["--lock-delay", "30s", "-v"]);
    let running = worker.command(["true"]).start();
    running.await_log("session a: taken");
    let done = stopped_by(Signal::SIGTERM, running);
    let given_up = "session a: given up after 0 messages: a stop was requested";
    assert!(done.stderr.contains(given_up), "{}", done.stderr);
    assert!(!done.stderr.contains("not begun"), "{}", done.stderr);
    stage.assert_holds(1, 0);
}

/// Kills a worker after `before`; its command, which only SIGKILL ends, must be dead before the
/// next begins.
fn killed(options: &[&str], before: impl FnOnce(&Stage, &Instance)) {
    let stage = Stage::of_sessions(Duration::from_secs(120));
    stage.talk("a", &["1"]);
    let script = "export TRAFFICCOP_TOKEN=1 TRAFFICCOP_HOLDER=w; exec \"$0\" \"$@\"";
    let start = |tag: &str, options: &[&str]| {
        let journalist = stage
            .scene
            .journalist(tag, &["--every", "20", "--term", "600000:9"]);
        let words = ["sh", "-c", script].map(std::ffi::OsString::from);
        let worker = stage.session_worker().arg("--once").args(options);
        worker.command(words.into_iter().chain(journalist))
    };
    let first = start("first", options).start();
    stage.scene.journal.await_sign_of_life("first");
    let second = start("second", &[]).start();
    before(&stage, &first);
    first.signal(Signal::SIGKILL);
    for _ in 0..5 {
        stage.scene.journal.await_sign_of_life("second");
    }
    let lines = stage.scene.journal.lines();
    let of = |tag: &str| {
        let tag = tag.to_owned();
        lines
            .iter()
            .filter(move |line| line.command() == tag)
            .map(|line| line.at)
    };
    let (last, began) = (of("first").max(), of("second").min());
    assert!(last < began, "{last:?} {began:?}");
    second.signal(Signal::SIGTERM);
    second.await_log("asked to stop");
    second.signal(Signal::SIGTERM);
    let _ended = second.finish();
    stage.scene.await_nobody();
}

#[test]
fn a_worker_that_is_killed_has_its_command_dead_before_the_next_one_begins() {
    killed(&[], |_, _| {});
}

/// The command had more time left than the next worker waits.
#[test]
fn a_worker_that_is_killed_while_its_command_ends_has_it_dead_before_the_next_one_begins() {
    killed(&["--grace", "0s", "--kill-after", "20s"], |stage, first| {
        first.signal(Signal::SIGTERM);
        stage.scene.journal.await_tag(What::Term, "first");
    });
}

/// The next worker has the shortest delay, the default.
#[test]
fn worker_with_a_longer_lock_delay_has_its_command_dead_before_a_worker_with_the_default_begins() {
    killed(&["--lock-delay", "8s"], |_, _| {});
}
