//! Refused before any request: usage, connection strings, names.

use super::*;

const KEY: &str = "s3cr3t-k3y";

fn refused(words: &[&str], string: Option<&str>) -> Finished {
    let scene = Scene::new();
    let run = scene.verb("work").args(words);
    let run = match string {
        Some(string) => run.env(STRING, string),
        None => run,
    };
    run.command(["true"]).finish()
}

#[test]
fn usage_is_refused_by_the_name_of_the_option() {
    let string = format!("Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=n;SharedAccessKey={KEY}");
    for (words, said) in [
        (&[][..], "--service-bus"),
        (&["--queue", "q", "--service-bus", "q"], "choose one queue"),
        (&["--service-bus", "q", "--renew-at", "0"], "--renew-at"),
        (&["--service-bus", "q", "--renew-at", "100"], "--renew-at"),
        (&["--service-bus", "q", "--lock-time", "0s"], "--lock-time"),
        (&["--service-bus", "q", "--lock-time", "8d"], "--lock-time"),
        (&["--service-bus", "q", "-j", "0"], "-j 0"),
        (&["--service-bus", "q", "--create"], "--create"),
        (&["--service-bus", "q", "--emulator"], "--emulator"),
        (
            &["--service-bus", "q", "--poison-queue", "p"],
            "--poison-queue",
        ),
        (
            &["--service-bus", "q", "--encoding", "base64"],
            "--encoding",
        ),
        (
            &["--queue", "q", "--dead-letter-queue"],
            "--dead-letter-queue",
        ),
        (
            &["--service-bus", "q", "--connection-string-env", "NOT_SET"],
            "NOT_SET",
        ),
        (
            &["--queue", "q", "--sessions"],
            "--sessions cannot be used with --queue",
        ),
        (
            &["--queue", "q", "--session-idle", "5s"],
            "--session-idle has no meaning without --sessions",
        ),
        (
            &["--service-bus", "q", "--session-idle", "5s"],
            "--session-idle has no meaning without --sessions",
        ),
        (
            &["--service-bus", "q", "--session-messages", "5"],
            "--session-messages has no meaning without --sessions",
        ),
        (
            &["--service-bus", "q", "--lock-delay", "5s"],
            "--lock-delay has no meaning without --sessions",
        ),
        (
            &[
                "--service-bus",
                "q",
                "--sessions",
                "--session-messages",
                "0",
            ],
            "--session-messages",
        ),
        (
            &["--service-bus", "q", "--sessions", "--lock-delay", "6m"],
            "--lock-delay 6m: no session is locked for longer than 5m",
        ),
        (
            &["--service-bus", "q", "--sessions", "--dead-letter-queue"],
            "dead letters come in no order",
        ),
        (
            &["--service-bus", "q", "--sessions", "--link-settle"],
            "--link-settle",
        ),
        (&["--service-bus", "amqp://h/q"], "UseDevelopmentEmulator"),
        (&["--service-bus", "a/b/c"], "sb://HOST/NAME"),
    ] {
        let done = refused(words, Some(&string));
        assert_ended(&done, 64, said);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        assert!(!done.stderr.contains(KEY), "{}", done.stderr);
    }
    let scene = Scene::new();
    let none = scene.verb("work").args(["--service-bus", "q"]).finish();
    assert_ended(&none, 64, "no command");
}

#[test]
fn connection_strings_are_refused_by_the_name_of_the_part_and_no_key_is_shown() {
    let key = format!("SharedAccessKeyName=n;SharedAccessKey={KEY}");
    for (string, said) in [
        (format!("Endpoint=sb://h;{KEY}"), "without '='"),
        (key.clone(), "Endpoint"),
        (
            format!("Endpoint=sb://h;SharedAccessKey={KEY}"),
            "SharedAccessKeyName",
        ),
        (
            "Endpoint=sb://h;SharedAccessKeyName=n".into(),
            "SharedAccessKey",
        ),
        (
            format!(
                "Endpoint=sb://h;{key};SharedAccessSignature=SharedAccessSignature sr=a&sig={KEY}"
            ),
            "SharedAccessSignature",
        ),
        (
            format!("Endpoint=sb://h;{key};EntityPath=other"),
            "EntityPath",
        ),
        (format!("Endpoint=amqp://h;{key}"), "UseDevelopmentEmulator"),
        (format!("Endpoint=http://h;{key}"), "Endpoint"),
        (
            format!("Endpoint=sb://h;{key};UseDevelopmentEmulator={KEY}"),
            "UseDevelopmentEmulator",
        ),
    ] {
        let done = refused(&["--service-bus", "q"], Some(&string));
        assert_ended(&done, 64, said);
        assert!(!done.stderr.contains(KEY), "{}", done.stderr);
    }
    let done = refused(&["--service-bus", "q"], None);
    assert_ended(&done, 64, STRING);
}
