//! Order of messages, and a session's end at a worker.

use super::*;
use crate::support::stopping::is_ended_by_the_second_signal;

#[test]
fn the_command_is_run_for_each_message_of_a_session_in_order_and_knows_whose_it_is() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1", "2"]);
    stage.talk("b \u{e9}", &["x"]);
    stage.talk("a", &["3"]);
    let done = stage.all(&[], "echo \"$TRAFFICCOP_SESSION_ID:$(cat)\"");
    assert_ended(
        &done,
        0,
        "message 1 of session a: completed, attempt 1, exit 0",
    );
    assert_eq!(done.stdout, "a:1\na:2\na:3\nb \u{e9}:x\n");
    stage.assert_holds(0, 0);
    assert_eq!(stage.accepted(), 2);
    assert!(done.stderr.contains("session a: given up after 3 messages"));
}

#[test]
fn concurrency_limits_the_sessions_in_progress() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    for session in ["a", "b", "c"] {
        stage.talk(session, &["1", "2"]);
    }
    // Each waits for the other, which works only if both sessions are processed at once.
    let script = "touch ran-$TRAFFICCOP_SESSION_ID
        case $TRAFFICCOP_SESSION_ID in a) other=b;; b) other=a;; *) exit 0;; esac
        while ! [ -e ran-$other ]; do sleep 0.05; done";
    let done = stage.all(&["-j", "2"], script);
    assert_ended(&done, 0, "--idle-exit");
    stage.assert_holds(0, 0);
}

#[test]
fn failed_message_is_retried_before_the_next_and_dead_lettered_at_last() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1", "2", "3"]);
    let begin = trafficcop::Instant::now();
    let done = stage.all(
        &["--retry-delay", "1s", "--max-attempts", "2"],
        "n=$(cat); echo $n:$TRAFFICCOP_MESSAGE_ATTEMPT; test $n != 2",
    );
    assert_ended(
        &done,
        0,
        "message 2 of session a: retried, attempt 1, exit 1",
    );
    assert_eq!(done.stdout, "1:1\n2:1\n2:2\n3:1\n");
    let took = trafficcop::Instant::now().since(begin);
    assert!(took >= Duration::from_secs(1), "the delay: {took:?}");
    assert_eq!(stage.accepted(), 1, "it is kept meanwhile");
    stage.assert_holds(0, 1);
    let reason = stage.messages(DEAD)[0].dead_letter();
    let (reason, text) = (reason.0.as_deref(), reason.1.as_deref());
    assert_eq!(reason, Some("CommandFailed"));
    assert_eq!(text, Some("exit status 1, attempt 2 of 2"));
}

#[test]
fn message_dead_lettered_by_the_queue_does_not_stop_the_next() {
    let stage = Stage::of(
        Settings::default(),
        QueueSettings {
            sessions: true,
            max_delivery_count: 2,
            ..QueueSettings::default()
        },
    );
    stage.talk("a", &["1", "2"]);
    let done = stage.all(
        &["--retry-delay", "0s"],
        "n=$(cat); echo $n:$TRAFFICCOP_MESSAGE_ATTEMPT; test $n != 1",
    );
    assert_eq!(done.stdout, "1:1\n1:2\n2:1\n");
    assert_eq!(stage.accepted(), 1);
    stage.assert_holds(0, 1);
}

#[test]
fn delayed_retry_is_waited_for_and_not_overtaken() {
    let stage = Stage::of(
        Settings::default(),
        QueueSettings {
            sessions: true,
            abandon_takes: Duration::from_millis(1500),
            ..QueueSettings::default()
        },
    );
    stage.talk("a", &["1", "2", "3"]);
    let done = stage.all(
        &["--retry-delay", "0s", "--session-idle", "5s"],
        "n=$(cat); echo $n:$TRAFFICCOP_MESSAGE_ATTEMPT; test $n$TRAFFICCOP_MESSAGE_ATTEMPT != 11",
    );
    assert_eq!(done.stdout, "1:1\n1:2\n2:1\n3:1\n", "{}", done.stderr);
    assert_eq!(stage.accepted(), 1);
    // The second was sent, and given back.
    let given_back = |event: &Event| {
        matches!(
            event,
            Event::Settled {
                sequence: 2,
                outcome: Outcome::Release,
                ..
            }
        )
    };
    assert!(stage.count(given_back) > 0);
    stage.assert_holds(0, 0);
}

#[test]
fn rejected_message_is_dead_lettered_and_the_next_runs() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1", "much too long", "3"]);
    let done = stage.all(&["--max-body", "2"], "test $(cat) = 3 || exit 65");
    assert_ended(&done, 0, "TooLarge");
    stage.assert_holds(0, 2);
    assert!(done.stderr.contains("message 3 of session a: completed"));
}

#[test]
fn a_session_is_given_up_when_it_is_idle_and_taken_again_when_it_is_not() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1"]);
    let running = stage.session_worker().command(["true"]).start();
    running.await_log("session a: given up after 1 messages: it has no more messages");
    stage.await_free("a");
    stage.talk("a", &["2"]);
    running.await_log("message 2 of session a: completed");
    running.signal(Signal::SIGTERM);
    let _ended = running.finish();
    assert_eq!(stage.accepted(), 2);
}

#[test]
fn a_message_that_comes_while_its_session_idles_is_run_without_taking_it_anew() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1"]);
    let running = stage
        .session_worker()
        .args(["--session-idle", "1h"])
        .command(["true"])
        .start();
    running.await_log("message 1 of session a: completed");
    stage.talk("a", &["2"]);
    running.await_log("message 2 of session a: completed");
    running.signal(Signal::SIGTERM);
    let _ended = running.finish();
    assert_eq!(stage.accepted(), 1);
    stage.await_free("a");
}

#[test]
fn after_so_many_messages_the_others_have_their_turn() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1", "2", "3"]);
    let done = stage.all(&["--session-messages", "1"], "cat; echo");
    assert_eq!(done.stdout, "1\n2\n3\n");
    assert!(done.stderr.contains("--session-messages is reached"));
    assert_eq!(stage.accepted(), 3);
    stage.assert_holds(0, 0);
}

#[test]
fn messages_are_counted_across_sessions() {
    for (more, left) in [
        (&["--once"][..], 3),
        (&["--max-messages", "3", "-j", "2"], 1),
    ] {
        let stage = Stage::of_sessions(Duration::from_secs(60));
        stage.talk("a", &["1", "2"]);
        stage.talk("b", &["3", "4"]);
        let done = stage.session_worker().args(more).command(["true"]).finish();
        assert_ended(&done, 0, "--max-messages is reached");
        stage.assert_holds(left, 0);
        assert_eq!(
            stage
                .messages(JOBS)
                .iter()
                .filter(|it| it.failed > 0)
                .count(),
            0
        );
    }
}

#[test]
fn no_session_is_taken_for_messages_that_another_has_begun() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1", "2"]);
    let worker = stage.session_worker();
    let worker = worker.args(["--max-messages", "2", "-j", "2"]);
    let script = "test $(cat) = 1 || { echo last >&2; sleep 5; }";
    let running = worker.shell(script).start();
    running.await_log("last");
    stage.talk("b", &["3"]);
    let done = running.finish();
    assert_ended(&done, 0, "--max-messages is reached");
    // The pending request may have brought it once.
    assert!(stage.accepted() <= 2, "{}", done.stderr);
    stage.assert_holds(1, 0);
}

#[test]
fn a_stop_lets_the_message_finish_and_begins_no_other_of_its_session() {
    let stage = Stage::of_sessions(SHORT);
    stage.talk("a", &["1", "2"]);
    let running = stage
        .session_worker()
        .shell("echo runs >&2; sleep 7; cat; echo")
        .start();
    running.await_log("runs");
    running.signal(Signal::SIGTERM);
    let done = running.finish();
    assert_eq!(done.stdout, "1\n", "{}", done.stderr);
    stage.assert_holds(1, 0);
    assert_eq!(stage.messages(JOBS)[0].failed, 0);
    assert!(!stage.is_held("a"));
}

#[test]
fn a_second_signal_gives_it_back_and_its_attempt_does_not_count() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1"]);
    is_ended_by_the_second_signal(stage.session_worker());
    stage.assert_holds(1, 0);
    assert_eq!(stage.messages(JOBS)[0].failed, 0);
    stage.scene.await_nobody();
}

#[test]
fn a_queue_of_the_other_kind_is_refused_with_the_flag_to_use() {
    let stage = Stage::of_sessions(SHORT);
    stage.broker.create("plain", QueueSettings::default());
    for (queue, more, words) in [
        (
            JOBS,
            &[][..],
            "its messages come in sessions: add --sessions",
        ),
        (
            "plain",
            &["--sessions"],
            "its messages do not come in sessions: leave out --sessions",
        ),
    ] {
        let worker = stage.worker_on(queue).args(more);
        assert_ended(&worker.command(["true"]).finish(), 64, words);
    }
}
