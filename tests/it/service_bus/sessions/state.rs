//! A session's state, which commands see as a file.

use super::*;

const ADD: &str = "n=$(cat); printf %s $n >>\"$TRAFFICCOP_SESSION_STATE_FILE\"; \
    echo \"$n $(cat \"$TRAFFICCOP_SESSION_STATE_FILE\")\"";

#[test]
fn a_command_has_what_the_one_before_it_left_on_whichever_worker() {
    for how in ["stdin", "file"] {
        let stage = Stage::of_sessions(Duration::from_secs(60));
        stage.talk("a", &["1", "2"]);
        stage.talk("b", &["x"]);
        let done = stage.all(
            &["--message", how],
            &ADD.replace("$(cat)", "$(cat ${TRAFFICCOP_MESSAGE_FILE-/dev/stdin})"),
        );
        assert_eq!(done.stdout, "1 1\n2 12\nx x\n", "{how}: {}", done.stderr);
        stage.talk("a", &["3"]);
        let done = stage.all(&[], ADD);
        assert_eq!(done.stdout, "3 123\n", "{}", done.stderr);
        assert_eq!(stage.state("a").as_deref(), Some(&b"123"[..]));
        assert_eq!(stage.state("b").as_deref(), Some(&b"x"[..]));
        // Nothing of it stays on disk.
        let left = std::fs::read_dir(stage.scene.directory()).expect("a directory");
        let left = left.filter(|entry| {
            let name = entry.as_ref().expect("an entry").file_name();
            name.to_string_lossy().contains("trafficcop-message")
        });
        assert_eq!(left.count(), 0, "{how}");
    }
}

#[test]
fn state_is_private_and_every_byte_is_kept() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1", "2"]);
    let script = "f=$TRAFFICCOP_SESSION_STATE_FILE
        stat -c %a $(dirname $f) $f
        if [ $(cat) = 1 ]; then printf '\\0\\377\\n' >$f; else od -An -tx1 $f; fi";
    let done = stage.all(&[], script);
    assert_eq!(done.stdout, "700\n600\n700\n600\n 00 ff 0a\n");
}

#[test]
fn state_is_stored_just_before_the_completion_if_it_changed() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1", "2", "3"]);
    // The second fails at first, the third changes nothing.
    let script = "n=$(cat); test $n = 3 && exit 0
        printf $n >>\"$TRAFFICCOP_SESSION_STATE_FILE\"; test $n$TRAFFICCOP_MESSAGE_ATTEMPT != 21";
    let done = stage.all(&["--retry-delay", "0s"], script);
    assert_ended(&done, 0, "message 2 of session a: retried, attempt 1");
    let mut seen = Vec::new();
    for event in stage.events() {
        match event {
            Event::StateSet { state, .. } => {
                seen.push(String::from_utf8(state.expect("a state")).expect("text"));
            }
            Event::Settled { outcome, .. } => seen.push(format!("{outcome:?}")),
            _ => {}
        }
    }
    assert_eq!(
        seen,
        ["1", "Complete", "Abandon", "12", "Complete", "Complete"]
    );
}

#[test]
fn emptied_or_removed_state_is_no_state() {
    for script in [
        ": >$TRAFFICCOP_SESSION_STATE_FILE",
        "rm $TRAFFICCOP_SESSION_STATE_FILE",
    ] {
        let stage = Stage::of_sessions(Duration::from_secs(60));
        stage.talk("a", &["1", "2"]);
        let script = format!(
            "if [ $(cat) = 1 ]; then echo x >$TRAFFICCOP_SESSION_STATE_FILE; else {script}; fi"
        );
        let done = stage.all(&[], &script);
        assert_ended(&done, 0, "message 2 of session a: completed");
        assert_eq!(stage.state("a"), None);
    }
}

#[test]
fn unstorable_state_dead_letters_its_message_with_a_reason() {
    for (script, words) in [
        (
            "head -c 262145 /dev/zero >$f",
            "it has 262145 bytes, and no more than 256 KiB are kept",
        ),
        ("rm $f; ln -s /etc/passwd $f", "cannot be stored"),
        ("rm $f; mkfifo $f", "it is not a file any more"),
    ] {
        let stage = Stage::of_sessions(Duration::from_secs(60));
        stage.talk("a", &["1", "2"]);
        let script =
            format!("f=$TRAFFICCOP_SESSION_STATE_FILE; test $(cat) = 2 || {{ {script}; }}");
        let done = stage.all(&[], &script);
        assert_ended(
            &done,
            0,
            "message 1 of session a: dead-lettered, attempt 1, exit 0",
        );
        assert!(done.stderr.contains(words), "{}", done.stderr);
        assert!(done.stderr.contains("message 2 of session a: completed"));
        assert_eq!(stage.state("a"), None);
        let reason = stage.messages(DEAD)[0].dead_letter().0;
        assert_eq!(reason.as_deref(), Some("StateNotStored"));
    }
}

/// The largest allowed state is larger than a request may carry.
#[test]
fn oversized_state_dead_letters_its_message_and_keeps_the_connection() {
    let settings = Settings {
        max_message_size: 256 * 1024,
        ..Settings::default()
    };
    let queue = QueueSettings {
        lock: Duration::from_secs(60),
        sessions: true,
        ..QueueSettings::default()
    };
    let stage = Stage::of(settings, queue);
    stage.talk("a", &["1", "2"]);
    let script = "test $(cat) = 2 || head -c 262100 /dev/zero >\"$TRAFFICCOP_SESSION_STATE_FILE\"";
    let done = stage.all(&[], script);
    assert_ended(
        &done,
        0,
        "message 1 of session a: dead-lettered, attempt 1, exit 0",
    );
    assert!(done.stderr.contains("message 2 of session a: completed"));
    let reason = stage.messages(DEAD)[0].dead_letter().0;
    assert_eq!(reason.as_deref(), Some("StateNotStored"));
    assert_eq!(stage.count(|e| matches!(e, Event::Connected { .. })), 1);
}

#[test]
fn lost_answer_stores_the_state_again_and_completes_once() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1"]);
    stage
        .broker
        .fault(Fault::new(On::SetState, Act::Lose).at(JOBS));
    let done = stage.all(&[], ADD);
    assert_ended(&done, 0, "message 1 of session a: completed");
    assert_eq!(stage.state("a").as_deref(), Some(&b"1"[..]));
    let completed = |event: &Event| {
        matches!(
            event,
            Event::Settled {
                outcome: Outcome::Complete,
                ..
            }
        )
    };
    assert_eq!(stage.count(completed), 1);
}

#[test]
fn unreadable_state_starts_no_command() {
    let stage = Stage::of_sessions(Duration::from_secs(60));
    stage.talk("a", &["1"]);
    let refused = Act::Refuse {
        status: 500,
        condition: "amqp:internal-error".into(),
        text: "Broken.".into(),
    };
    let fault = Fault::new(On::OtherRequest, refused).at(JOBS);
    stage.broker.fault(fault.times(3));
    let done = stage.all(&[], "cat; echo");
    assert!(
        done.stderr.contains("session a: not started"),
        "{}",
        done.stderr
    );
    assert_eq!(done.stdout, "1\n", "the next time");
}
