//! The scripts for `work` treat a message as they say, whatever it contains.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use crate::documents::root;

/// Plays a script with this message on stdin, in a shell in which `trafficcop check` succeeds.
fn play(script: &str, variables: &[(&str, &str)], body: &str) -> Output {
    let mut shell = Command::new("sh")
        .args(["-c", "trafficcop() { true; }; . \"$1\"", "sh"])
        .arg(root().join("examples/work").join(script))
        .env_remove("TRAFFICCOP_MESSAGE_MAX_ATTEMPTS")
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut stdin = shell.stdin.take().expect("its stdin");
    let _ = stdin.write_all(body.as_bytes());
    drop(stdin);
    shell.wait_with_output().expect("its end")
}

#[test]
fn the_handler_needs_no_number_of_attempts_where_the_queue_alone_counts() {
    let message = [
        ("TRAFFICCOP_MESSAGE_ID", "one"),
        ("TRAFFICCOP_MESSAGE_ATTEMPT", "1"),
    ];
    for (most, says) in [(None, "of as many as"), (Some("5"), "of 5)")] {
        let most = most.map(|most| ("TRAFFICCOP_MESSAGE_MAX_ATTEMPTS", most));
        let variables: Vec<(&str, &str)> = message.into_iter().chain(most).collect();
        let played = play("handle.sh", &variables, "{}");
        assert_eq!(played.status.code(), Some(0), "{played:?}");
        let said = String::from_utf8_lossy(&played.stdout);
        assert!(said.contains(says), "{said}");
    }
    let played = play("handle.sh", &message, "no object");
    assert_eq!(played.status.code(), Some(65), "{played:?}");
}

#[test]
fn a_message_of_a_session_is_booked_once_whatever_its_id_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("state");
    let book = |id: &str, amount: &str| {
        let variables = [
            ("TRAFFICCOP_SESSION_ID", "s"),
            (
                "TRAFFICCOP_SESSION_STATE_FILE",
                state.to_str().expect("text"),
            ),
            ("TRAFFICCOP_MESSAGE_ID", id),
        ];
        let played = play("session.sh", &variables, amount);
        (played.status.code(), format!("{played:?}"))
    };
    let kept = || std::fs::read_to_string(&state).expect("the state");
    for id in [
        "one",
        "with a blank",
        "a blank at its end ",
        "back\\nslash",
        "none",
        "total[$(exit 9)]",
    ] {
        std::fs::write(&state, "").expect("no state yet");
        for _ in 0..2 {
            let (status, played) = book(id, "5");
            assert_eq!(status, Some(0), "{id}: {played}");
            assert_eq!(kept(), format!("5 {id}\n"), "{id}");
        }
        let (status, played) = book("next", "7");
        assert_eq!(status, Some(0), "{id}: {played}");
        assert_eq!(kept(), "12 next\n", "{id}");
    }
    // An amount that is no number is refused, and so is one in the file.
    for amount in ["", "x", "-1", "010", "99999999999999999999"] {
        let (status, played) = book("other", amount);
        assert_eq!(status, Some(65), "{amount}: {played}");
    }
    assert_eq!(kept(), "12 next\n");
    std::fs::write(&state, "PATH 5\n").expect("another's state");
    let (status, played) = book("other", "5");
    assert_eq!(status, Some(1), "{played}");
    assert_eq!(kept(), "PATH 5\n");
}
