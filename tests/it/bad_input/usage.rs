//! Bad usage and settings that cannot work: refused before anything is opened or requested.

use std::process::Command;

use super::{bad_usage, bad_usage_on_blob, judge, left_behind, refused};
use crate::support::instance::Ended;
use crate::support::scene::Scene;

#[test]
fn no_command() {
    let scene = Scene::new();
    let finished = scene.run_on_file().finish();
    judge(
        &scene,
        &finished.stderr,
        finished.ended,
        64,
        &["no command", "--"],
    );
    let empty = scene.run_on_file().command([""]).finish();
    judge(&scene, &empty.stderr, empty.ended, 64, &["empty"]);
    assert_eq!(left_behind(&scene), [""; 0]);
}

#[test]
fn no_lock_or_two() {
    let scene = Scene::new();
    refused(&scene, scene.run(), 64, &["no lock", "--blob", "--file"]);
    bad_usage(
        &["--blob", "locks/one"],
        &["--file cannot be used with --blob", "exactly one lock"],
    );
}

#[test]
fn an_unknown_flag() {
    let scene = Scene::new();
    let run = scene
        .run_on_file()
        .args(["--leese", "30s"])
        .command(["true"]);
    let finished = run.finish();
    assert_eq!(finished.ended, Ended::Code(64));
    assert!(finished.stderr.contains("--leese"), "{}", finished.stderr);
    assert_eq!(left_behind(&scene), [""; 0]);
    bad_usage(
        &["--leese", "30s"],
        &["did you mean '--lease'?", "'trafficcop run --help'"],
    );
}

#[test]
fn mistyped_lines_are_answered_with_what_was_meant() {
    let scene = Scene::new();
    for (args, environment, words) in [
        (
            &[
                "run", "--auth", "managed", "--blob", "locks/x", "--", "true",
            ][..],
            None,
            ["--auth managed needs its name", "AZURE_STORAGE_ACCOUNT"],
        ),
        (
            &[
                "run",
                "--doorbell",
                "10.0.0.4",
                "--blob",
                "locks/x",
                "--",
                "true",
            ],
            None,
            ["after '='", "--doorbell=10.0.0.4"],
        ),
        (
            &["run", "--file", "my", "lock", "--", "true"],
            None,
            ["no flag takes 'lock'", "quote a value with spaces"],
        ),
        (
            &["run", "--blob", "mylock", "--emulator", "--", "true"],
            None,
            ["'mylock'", "CONTAINER/NAME"],
        ),
        (
            &["run", "--file", "x", "--once-per", "daily", "--", "true"],
            None,
            ["'daily'", "1d or 7d"],
        ),
        (
            &["status", "--blob", "locks/x"],
            Some((
                "AZURE_STORAGE_CONNECTION_STRING",
                "\"UseDevelopmentStorage=true\"",
            )),
            ["quotes around its value", "remove them"],
        ),
    ] {
        let mut verb = scene.verb(args[0]).args(&args[1..]);
        if let Some((name, value)) = environment {
            verb = verb.env(name, value);
        }
        let finished = verb.finish();
        assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        for word in words {
            assert!(finished.stderr.contains(word), "{}", finished.stderr);
        }
    }
}

#[test]
fn scripts_that_cannot_start_are_refused_before_control() {
    let scene = Scene::new();
    let script = scene.path("script");
    for (text, word) in [
        ("#!/bin/sh\r\necho\r\n", "CR LF"),
        ("#!/no/such\necho\n", "/no/such does not exist"),
    ] {
        std::fs::write(&script, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).unwrap();
        let run = scene.run_on_file().command([script.to_str().unwrap()]);
        let finished = run.finish();
        assert_eq!(finished.ended, Ended::Code(127), "{}", finished.stderr);
        assert!(finished.stderr.contains(word), "{}", finished.stderr);
        assert!(
            !finished.stderr.contains("in control"),
            "{}",
            finished.stderr
        );
    }
}

#[test]
fn flags_of_a_lease_warn_on_a_local_file() {
    let scene = Scene::new();
    let run = scene.run_on_file().args(["--lease", "30s", "--doorbell"]);
    let finished = run.command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    let warned = "has no lease, so --lease or --doorbell changes nothing";
    assert!(finished.stderr.contains(warned), "{}", finished.stderr);
    let finished = scene.run_on_file().command(["true"]).finish();
    assert!(!finished.stderr.contains("no lease"), "{}", finished.stderr);
}

#[test]
fn a_value_that_a_flag_cannot_have() {
    bad_usage(
        &["--restart", "often"],
        &["take never, on-failure or always"],
    );
    bad_usage(&["--no-wait=yes"], &["--no-wait takes no value"]);
    let scene = Scene::new();
    let run = || scene.run_on_file();
    refused(
        &scene,
        run().args(["--doorbell", "10.0.0.4"]),
        64,
        &["no flag takes '10.0.0.4'", "--doorbell", "with '='"],
    );
    refused(
        &scene,
        run().env("TRAFFICCOP_RESTART", "often"),
        64,
        &["TRAFFICCOP_RESTART=often: take never"],
    );
    refused(
        &scene,
        run().env("TRAFFICCOP_NO_WAIT", "perhaps"),
        64,
        &["TRAFFICCOP_NO_WAIT=perhaps: take true or false"],
    );
}

/// A log as JSON has this line as JSON, too.
#[test]
fn usage_error_is_a_line_of_the_json_log() {
    let scene = Scene::new();
    let run = scene
        .run_on_file()
        .args(["--log", "json", "--leese", "30s"]);
    let finished = run.command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    let line: serde_json::Value = serde_json::from_str(&finished.stderr).expect("one object");
    assert_eq!(
        (&line["level"], &line["exit"]),
        (&"error".into(), &64.into())
    );
    let message = line["message"].as_str().expect("words");
    assert!(message.contains("did you mean '--lease'?"), "{message}");
}

#[test]
fn a_verb_that_is_none() {
    let scene = Scene::new();
    for (words, wanted) in [
        (&["rnu", "--file", "x"][..], "did you mean 'run'?"),
        (
            &["--file", "x", "--", "true"],
            "'trafficcop run --file ...'",
        ),
        (&["status", "/tmp/x"], "'--file /tmp/x'"),
        (&["list"], "nothing to list"),
        (&["completions", "tcsh"], "bash, elvish"),
        (
            &["run", "true", "--file=x"],
            "--file after the command belongs to the command",
        ),
        (&["run", "--", "job", "-x"], "no lock: name one"),
        (
            &["run", "--lock", "x", "--", "true"],
            "did you mean '--file'?",
        ),
        // Invisible characters and terminal sequences are escaped.
        (
            &["work", "--queue", "ab\x1bcd", "--", "true"],
            "'ab\\u{1b}cd' cannot be a queue",
        ),
        (
            &[
                "run",
                "--file",
                "x",
                "--status-file",
                "no/a\tb",
                "--",
                "true",
            ],
            "--status-file $'no/a\\tb': there is no such directory",
        ),
    ] {
        let ran = Command::new(env!("CARGO_BIN_EXE_trafficcop"))
            .args(words)
            .output()
            .expect("the binary runs");
        let stderr = String::from_utf8_lossy(&ran.stderr);
        let status = ran.status.code().expect("a status");
        judge(&scene, &stderr, Ended::Code(status), 64, &[wanted]);
    }
}

#[test]
fn a_lease_outside_what_a_blob_can_have() {
    for lease in ["14s", "61s", "infinite", "-1", "0", "15.5s", "500ms"] {
        let lease = format!("--lease={lease}");
        bad_usage_on_blob(&["--blob", "locks/one", &lease], &["--lease"]);
    }
    bad_usage_on_blob(
        &["--blob", "locks/one", "--lease", "14s"],
        &["14s", "15s to 60s"],
    );
    bad_usage_on_blob(
        &["--blob", "locks/one", "--lease", "61s"],
        &["61s", "15s to 60s"],
    );
}

#[test]
fn a_page_blob_of_half_a_page() {
    for size in ["1000", "0", "-512", "9999T", "big"] {
        let size = format!("--page-blob={size}");
        bad_usage_on_blob(&["--blob", "locks/one", &size], &["--page-blob"]);
    }
    bad_usage_on_blob(&["--blob", "locks/one", "--page-blob=1000"], &["512"]);
}

#[test]
fn a_grace_that_does_not_fit() {
    let blob = ["--blob", "locks/one", "--lease", "15s"];
    let row = |more: &[&str], words: &[&str]| bad_usage_on_blob(&[&blob, more].concat(), words);
    row(
        &["--grace-on-loss", "10s"],
        &["--grace-on-loss", "10", "raise --lease"],
    );
    row(&["--grace-on-loss", "1h"], &["--grace-on-loss"]);
    row(&["--margin", "0"], &["--margin"]);
}

#[test]
fn numbers_and_durations_that_are_none() {
    bad_usage(&["-E", "600"], &["600", "0 to 255"]);
    bad_usage(&["-E=-1"], &["-1", "0 to 255"]);
    bad_usage(&["-w", "soon"], &["--wait", "soon"]);
    bad_usage(&["--grace", "10 parsecs"], &["--grace"]);
    bad_usage(&["--poll", "1ms"], &["--poll"]);
    bad_usage(&["--stop-signal", "SIGNONSENSE"], &["--stop-signal"]);
    bad_usage(&["-n", "-w", "3s"], &["--no-wait", "--wait"]);
    bad_usage(&["--identity", ""], &["--identity"]);
}

#[test]
fn a_task_that_cannot_be_done_once() {
    bad_usage(&["--once-per", "0"], &["--once-per 0s", "needs a length"]);
    bad_usage(&["--once-attempts", "2"], &["--once-attempts", "--once"]);
    for contradiction in [
        ["--restart", "always"],
        ["--max-hold", "1h"],
        ["--min-hold", "1h"],
        ["--slots", "2"],
    ] {
        let [flag, _] = contradiction;
        bad_usage(
            &[&["--once"], &contradiction[..]].concat(),
            &[flag, "cannot be used with --once", "leave"],
        );
    }
}

#[test]
fn a_health_that_cannot_be_looked_after() {
    bad_usage(
        &["--watchdog", "900ms"],
        &["--watchdog 900ms", "take 1s or more"],
    );
    bad_usage(&["--watchdog", "soon"], &["--watchdog"]);
    bad_usage(
        &["--watchdog-start", "9s"],
        &["--watchdog-start", "no meaning without --watchdog"],
    );
    bad_usage(
        &[
            "--health",
            "true",
            "--health-every",
            "2s",
            "--health-timeout",
            "3s",
        ],
        &[
            "--health-timeout 3s",
            "--health-every 2s",
            "take 2s or less",
        ],
    );
    bad_usage(
        &["--health", "true", "--health-every", "0"],
        &["--health-every"],
    );
    bad_usage(
        &["--health", "true", "--health-timeout", "0"],
        &["--health-timeout"],
    );
    bad_usage(
        &["--health", "true", "--health-failures", "0"],
        &["--health-failures 0", "take 1 or more"],
    );
    bad_usage(&["--health", " "], &["--health is empty"]);
    let scene = Scene::new();
    let elect = scene.elect().arg("--file").arg(scene.lock());
    let finished = elect.args(["--health", "./is-it-well.sh"]).finish();
    judge(
        &scene,
        &finished.stderr,
        finished.ended,
        64,
        &["elect asks a URL"],
    );
    for flag in ["--health-every", "--health-timeout", "--health-delay"] {
        bad_usage(&[flag, "1s"], &[flag, "no meaning without --health"]);
    }
    bad_usage(
        &["--health-failures", "2"],
        &["--health-failures", "no meaning"],
    );
    for (url, why) in [
        ("ftp://localhost/", "take http or https"),
        ("file:///etc/passwd", "take http or https"),
        ("http://example.com/", "example.com is neither this machine"),
        ("http://8.8.8.8/", "8.8.8.8 is neither"),
        ("http://[2001:db8::1]/", "is neither this machine"),
        ("http://user:c2VjcmV0@localhost/", "a user or a password"),
        ("http://[", "no URL"),
    ] {
        bad_usage(&["--health", url], &["--health: ", why]);
    }
}

#[test]
fn flags_that_belong_to_the_other_kind_of_lock() {
    bad_usage(&["--page-blob"], &["--page-blob"]);
    bad_usage(&["--emulator"], &["--emulator"]);
    bad_usage(&["--no-create"], &["--no-create"]);
    bad_usage_on_blob(&["--blob", "locks/one", "--shared"], &["--shared"]);
    bad_usage(&["--shared", "--lease", "70s"], &["--lease", "take 60s"]);
    bad_usage_on_blob(
        &["--blob", "locks/one", "--no-create", "--page-blob"],
        &["--no-create"],
    );
}

#[test]
fn a_status_file_that_is_the_lock() {
    let scene = Scene::new();
    let status = scene.lock();
    bad_usage(&["--status-file", "/"], &["--status-file"]);
    refused(
        &scene,
        scene.run_on_file().arg("--status-file").arg(&status),
        64,
        &["--status-file", "lock"],
    );
    assert!(!status.exists());
    // Nor through a dangling link.
    let link = scene.path("link");
    std::os::unix::fs::symlink(&status, &link).unwrap();
    let run = scene.run().arg("--file").arg(&link);
    let run = run.arg("--status-file").arg(&status);
    refused(&scene, run, 64, &["--status-file", "is the lock's file"]);
    assert!(!status.exists());
}

/// Replaced as root, /dev/stdout would be gone for good.
#[test]
fn a_status_file_that_would_replace_what_is_no_file() {
    let scene = Scene::new();
    let (pipe, stdout) = (scene.path("pipe"), scene.path("stdout"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("/proc/self/fd/1", &stdout).unwrap();
    let words = [
        "--status-file",
        "replaces it at every change",
        "not a regular file",
    ];
    for there in [&pipe, &stdout] {
        let before = there.symlink_metadata().unwrap().file_type();
        let run = scene.run_on_file().arg("--status-file").arg(there);
        refused(&scene, run, 64, &words);
        let after = there.symlink_metadata().unwrap().file_type();
        assert_eq!(before, after, "it was replaced");
    }
    let link = scene.elect().arg("--file").arg(scene.lock());
    let finished = link.arg("--control-file").arg(&stdout).finish();
    let words = ["--control-file", "another program's symbolic link"];
    judge(&scene, &finished.stderr, finished.ended, 64, &words);
    assert!(stdout.symlink_metadata().unwrap().is_symlink());
    let file = scene.path("status");
    std::fs::write(&file, "{}").unwrap();
    std::os::unix::fs::symlink(&file, scene.path("to-status")).unwrap();
    for there in [file, scene.path("to-status")] {
        let run = scene.run_on_file().arg("--status-file").arg(there);
        assert_eq!(run.command(["true"]).finish().ended, Ended::Code(0));
    }
}
