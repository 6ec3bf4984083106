//! Tests of the configuration. They do not read the environment: variables are tested with the binary.

use super::*;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use crate::args;
use crate::core::{After, HoldPolicy, IfLost, Restart};
use crate::doorbell::DoorbellAddress;
use crate::guardian::Contain;
use crate::lease::record::COMMAND_LIMIT;
use clap::FromArgMatches as _;

fn place() -> Host {
    Host {
        host: "web1".into(),
        pid: 42,
        seed: 7,
        outer: Vec::new(),
    }
}

/// The variables of the user who runs the tests must change nothing.
fn parsed(verb: &str, words: &[&str]) -> Result<args::Verb, UsageError> {
    let define = || {
        args::definition().mut_subcommand(verb, |verb| {
            verb.mut_args(|arg| arg.env(None::<&'static str>))
        })
    };
    let line: Vec<OsString> = ["trafficcop", verb]
        .iter()
        .chain(words)
        .map(Into::into)
        .collect();
    let matches = args::settled(define, &line);
    let matches = matches.map_err(|error| args::refusal(&error, &[]).expect("a refusal"))?;
    Ok(args::Cli::from_arg_matches(&matches).expect("it fits").verb)
}

fn configured(words: &[&str]) -> Result<Config, UsageError> {
    match parsed("run", words)? {
        args::Verb::Run(run) => Config::new(*run, &place()),
        other => panic!("not a run: {other:?}"),
    }
}

fn config(line: &str) -> Result<Config, UsageError> {
    let words: Vec<&str> = line.split_whitespace().collect();
    configured(&words)
}

#[test]
fn defaults_are_the_documented_ones() {
    let config = config("--blob locks/a -- job --now").unwrap();
    assert_eq!(
        config.lock,
        Lock::Blob {
            target: "locks/a".into(),
            options: crate::azure::AuthOptions::default(),
            create: true,
            page_blob: None
        }
    );
    let seconds = Duration::from_secs;
    assert_eq!(config.lease, seconds(60));
    let budget = config.rules.budget.unwrap();
    assert_eq!(budget.renew_every, seconds(20));
    assert_eq!(budget.grace_on_loss, seconds(10));
    assert_eq!(budget.margin, seconds(2));
    assert_eq!(config.rules.poll, Some(Duration::from_secs(2)));
    assert_eq!(config.rules.wait, None);
    assert_eq!(config.rules.grace, seconds(30));
    assert_eq!(config.rules.stop_signal, libc::SIGTERM);
    assert_eq!(config.rules.if_lost, IfLost::Compete);
    assert_eq!(config.rules.seed, 7);
    assert_eq!(config.conflict_status, 75);
    assert_eq!(config.candidate.identity, "web1-42");
    assert_eq!(config.candidate.command, "job --now");
    assert_eq!(config.contain, Contain::Auto);
    assert!(config.status_file.is_none());
}

#[test]
fn budget_scales_with_the_lease_unless_it_is_set() {
    for (lease, grace, margin) in [(60, 10, 2), (30, 5, 1), (15, 3, 1)] {
        let config = config(&format!("--blob c/a --lease {lease}s job")).unwrap();
        let budget = config.rules.budget.unwrap();
        assert_eq!(budget.grace_on_loss.as_secs(), grace, "{lease}");
        assert_eq!(budget.margin.as_secs(), margin, "{lease}");
    }
    let config = config("--blob c/a --grace-on-loss 4s --margin 1500ms job").unwrap();
    let budget = config.rules.budget.unwrap();
    assert_eq!(budget.grace_on_loss, Duration::from_secs(4));
    assert_eq!(budget.margin, Duration::from_millis(1500));
}

#[test]
fn grace_may_be_longer_than_the_lease() {
    assert_eq!(
        config("--blob c/a --lease 15 --grace 5m job")
            .unwrap()
            .rules
            .grace,
        Duration::from_secs(300)
    );
}

#[test]
fn file_has_no_limit_of_the_lease() {
    let config = config("--file /tmp/x --lease 80s job").unwrap();
    assert_eq!(config.rules.poll, Some(Duration::from_secs(2)));
    assert_eq!(config.lease, Duration::from_secs(80));
}

#[test]
fn wait_flags_and_conflict_status_are_parsed() {
    let wait = |line: &str| config(line).unwrap().rules.wait;
    assert_eq!(wait("--file x job"), None);
    assert_eq!(wait("-n --file x job"), Some(Duration::ZERO));
    assert_eq!(wait("-w 1m --file x job"), Some(Duration::from_secs(60)));
    assert_eq!(config("-nE0 --file x job").unwrap().conflict_status, 0);
    assert_eq!(config("-E 255 --file x job").unwrap().conflict_status, 255);
}

#[test]
fn hold_policy_is_off_unless_it_is_set() {
    let hold_policy = |line: &str| config(line).unwrap().rules.hold_policy;
    assert_eq!(hold_policy("--file x job"), HoldPolicy::default());
    assert_eq!(
        hold_policy("--file x --restart never job"),
        HoldPolicy::default()
    );
    let restart = |after, limit, window| {
        Some(Restart {
            after,
            limit,
            window: Duration::from_secs(window),
        })
    };
    assert_eq!(
        hold_policy("--file x --restart always job").restart,
        restart(After::Any, 5, 300)
    );
    let line = "--blob c/a --restart on-failure --restart-limit 3 --restart-window 1m --max-hold 1h --min-hold 1m \
        --cooldown 10s job";
    let wanted = HoldPolicy {
        restart: restart(After::Failure, 3, 60),
        max_hold: Some(Duration::from_secs(3600)),
        min_hold: Some(Duration::from_secs(60)),
        cooldown: Some(Duration::from_secs(10)),
    };
    assert_eq!(hold_policy(line), wanted);
    assert!(config("--blob c/a --lease 15 --max-hold 15s job").is_ok());
}

#[test]
fn bad_settings_are_refused_in_one_line_with_a_remedy() {
    for (line, words) in [
        ("--file x", &["no command", "--"][..]),
        ("job", &["--blob", "--file"]),
        (
            "--blob c/a --file x job",
            &["--file cannot be used with --blob", "exactly one"],
        ),
        ("--blob c/a --lease 14s job", &["--lease 14s", "take 15s"]),
        ("--blob c/a --lease 61s job", &["--lease 61s", "take 60s"]),
        (
            "--blob c/a --lease 15500ms job",
            &["whole seconds", "take 15s"],
        ),
        (
            "--blob c/a --lease infinite job",
            &["infinite", "15s to 60s"],
        ),
        ("--file x --lease=-1 job", &["infinite"]),
        (
            "--blob c/a --lease soon job",
            &["--lease", "'soon'", "1m30s"],
        ),
        (
            "--blob c/a --page-blob=1000 job",
            &["--page-blob", "512", "take 1024"],
        ),
        ("--blob c/a --page-blob=9T job", &["--page-blob", "8T"]),
        (
            "--blob c/a --page-blob --no-create job",
            &["--page-blob", "--no-create"],
        ),
        ("--blob c/a --shared job", &["--shared", "on a file"]),
        (
            "--blob c/a --mkdir-is-exclusive job",
            &["--mkdir-is-exclusive", "on a file"],
        ),
        ("--blob c/a --poll 0 job", &["--poll 0s", "100ms"]),
        ("--blob c/a --poll 2h job", &["--poll 2h", "1h"]),
        ("--file x --emulator job", &["--emulator", "on a blob"]),
        ("--file x --no-create job", &["--no-create", "on a blob"]),
        ("--file x --page-blob job", &["--page-blob", "on a blob"]),
        (
            "--file x -n -w 3 job",
            &["--wait cannot be used with --no-wait", "choose one"],
        ),
        ("--file x -E 600 job", &["600", "0 to 255"]),
        ("--file x -E-1 job", &["-1", "0 to 255"]),
        (
            "--file x --stop-signal FOO job",
            &["--stop-signal", "'FOO'"],
        ),
        ("--file x --stop-signal STOP job", &["--stop-signal", "end"]),
        (
            "--file x --status-file / job",
            &["--status-file", "directory"],
        ),
        ("--file x -q -v job", &["--quiet", "--verbose"]),
        ("--file x --event-log / job", &["--event-log", "directory"]),
        (
            "--file x --event-log ./x job",
            &["--event-log", "lock's file"],
        ),
        (
            "--file x --slots 2 --event-log ./x.1 job",
            &["--event-log", "lock's file"],
        ),
        (
            "--file x --status-file s --event-log ./s job",
            &["--event-log", "status file"],
        ),
        (
            "--file x --event-log there/is/none job",
            &["--event-log", "no such directory"],
        ),
        (
            "--file x --status-file ./x job",
            &["--status-file", "lock's file"],
        ),
        (
            "--file x --restart always --restart-limit 0 job",
            &["--restart-limit 0", "--restart never"],
        ),
        (
            "--file x --restart always --restart-limit=-1 job",
            &["--restart-limit", "'-1'"],
        ),
        (
            "--file x --restart always --restart-limit 10 --restart-window 3m job",
            &["--restart-limit 10", "never be reached", "3m1s", "3m"],
        ),
        (
            "--file x --restart always --restart-window 0 job",
            &["--restart-limit 5", "31s", "--restart-window 0s"],
        ),
        (
            "--file x --restart-limit 3 job",
            &["--restart-limit", "without --restart: add it"],
        ),
        (
            "--file x --restart never --restart-window 3m job",
            &["--restart-window", "nothing is restarted"],
        ),
        (
            "--blob c/a --max-hold 59s job",
            &["--max-hold 59s", "--lease (60s)"],
        ),
        ("--file x --max-hold 10ms job", &["--max-hold 10ms", "1s"]),
        ("--file x --min-hold 0 job", &["--min-hold 0s"]),
        (
            "--file x --min-hold 1m --restart always job",
            &["--min-hold", "--restart always", "cannot be used"],
        ),
        (
            "--file x --min-hold 2m --max-hold 1m job",
            &["--min-hold 2m", "--max-hold 60s"],
        ),
        (
            "--file x --cooldown 1m job",
            &["--cooldown", "--max-hold", "--on-acquire", "--once"],
        ),
        (
            "--file x --restart never --cooldown 1m job",
            &["--cooldown", "--restart"],
        ),
        (
            "--blob c/a --max-hold 5m --cooldown 2s job",
            &["--cooldown 2s", "2s400ms"],
        ),
        (
            "--file x --max-hold 5m --cooldown 0 job",
            &["--cooldown 0s", "100ms"],
        ),
        (
            "--file x --shared --max-hold 5m --cooldown 1s job",
            &["--cooldown 1s", "2s400ms"],
        ),
        (
            "--file x --slots 2 --poll 5s --max-hold 5m --cooldown 5s job",
            &["--cooldown 5s", "6s"],
        ),
        ("--file x --ca-file y job", &["--ca-file", "on a blob"]),
        (
            "--file x --ca-file y --health http://localhost/ job",
            &["--ca-file", "on a blob"],
        ),
        ("--blob c/a --grace-on-loss 50s job", &[]),
        ("--blob c/a --lease 15 --margin 9s job", &[]),
    ] {
        let refusal = config(line).map(|_| ()).expect_err(line);
        assert_eq!(refusal.status(), 64);
        let text = refusal.to_string();
        assert!(!text.contains('\n') && !text.is_empty(), "{line}: {text}");
        for word in words {
            assert!(
                text.contains(word),
                "{line}: '{text}' does not contain '{word}'"
            );
        }
    }
}

#[test]
fn cooldown_is_accepted_with_each_flag_that_hands_control_over() {
    for flags in [
        "--max-hold 5m",
        "--restart always",
        "--watchdog 5s",
        "--health true",
        "--on-acquire true",
        "--once",
        "--once-key one",
        "--once-per 1h --once-attempts 3",
    ] {
        let line = format!("--file x --cooldown 1m {flags} job");
        let config = config(&line).unwrap_or_else(|why| panic!("{line}: {why}"));
        let cooldown = config.rules.hold_policy.cooldown;
        assert_eq!(cooldown, Some(Duration::from_secs(60)), "{line}");
    }
}

/// The path turns out to lie on a drive that machines share.
#[test]
fn cooldown_shorter_than_a_poll_is_refused() {
    let judged = |line: &str| config(line).unwrap().refuse_short_cooldown();
    let line = "--file x --max-hold 5m --poll 1s --cooldown";
    let why = judged(&format!("{line} 1s job")).unwrap_err().to_string();
    assert!(why.contains("take 1s200ms or more"), "{why}");
    assert_eq!(judged(&format!("{line} 1200ms job")), Ok(()));
    assert_eq!(judged("--file x --max-hold 5m job"), Ok(()));
}

#[test]
fn ca_file_is_used_for_https_health_checks_with_every_lock() {
    for lock in ["--blob c/a", "--file x"] {
        let line = format!("{lock} --ca-file y --health HTTPS://localhost/ job");
        let config = config(&line).unwrap_or_else(|why| panic!("{line}: {why}"));
        assert_eq!(config.health.ca_file, Some("y".into()), "{line}");
    }
}

#[test]
fn health_server_without_a_scheme_is_refused() {
    let asked = |health: &str| config(&format!("--file x --health {health} job"));
    for server in [
        "localhost:8080",
        "localhost:8080/healthz",
        "localhost/healthz",
        "127.0.0.1:8080",
        "10.0.0.4/healthz",
        "[::1]:8080/healthz",
        "[::1]/healthz",
    ] {
        let why = asked(server).map(|_| ()).expect_err(server).to_string();
        assert!(why.contains(&format!("http://{server}?")), "{why}");
    }
    let secret = asked("localhost:8080/healthz?key=s3cret").map(|_| ());
    assert!(!secret.unwrap_err().to_string().contains("s3cret"));
    for command in [
        "true",
        "localhost",
        "./localhost/check",
        "host:80",
        "/127.0.0.1/check",
    ] {
        assert!(asked(command).is_ok(), "{command}");
    }
    let words = ["--file", "x", "--health", "localhost:8080/check now", "job"];
    assert!(configured(&words).is_ok());
}

#[test]
fn a_url_with_a_signature_is_withheld_with_the_credentials() {
    let withheld = |line: &str| {
        config(&format!("{line} --no-credentials job"))
            .unwrap()
            .withheld
    };
    let signed = "--blob https://a.blob.core.windows.net/c/a?sig=x";
    assert!(withheld(signed).contains(&"IDENTITY_HEADER".into()));
    for variable in ["TRAFFICCOP_BLOB", "TRAFFICCOP_QUEUE"] {
        assert!(withheld(signed).contains(&variable.into()), "{variable}");
        assert!(!withheld("--blob c/a").contains(&variable.into()));
    }
    assert_eq!(withheld("--file x"), [""; 0]);
    assert_eq!(config(&format!("{signed} job")).unwrap().withheld, [""; 0]);
}

#[test]
fn doorbell_without_an_address_or_with_auto_finds_one() {
    for text in ["", "=auto", "=true", "=1"] {
        let config = config(&format!("--file x --doorbell{text} job"));
        assert_eq!(
            config.unwrap().doorbell,
            Some(DoorbellAddress::default()),
            "{text}"
        );
    }
    let why = config("--file x --doorbell=no job")
        .map(|_| ())
        .unwrap_err();
    assert!(why.to_string().contains("or auto"), "{why}");
}

fn election(line: &str) -> Result<Config, UsageError> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match parsed("elect", &words)? {
        args::Verb::Elect(elect) => Config::of_elect(*elect, &place()).map(|(config, _)| config),
        other => panic!("not an election: {other:?}"),
    }
}

#[test]
fn elect_refuses_a_cooldown_with_its_own_flags_named() {
    let why = election("--file x --cooldown 5s").unwrap_err().to_string();
    assert!(
        why.contains("without --max-hold or --health: add one of them"),
        "{why}"
    );
}

/// An election polls a local file, too, to name the holder.
#[test]
fn elect_refuses_a_cooldown_shorter_than_a_poll() {
    let line = "--file x --max-hold 5m --cooldown";
    let why = election(&format!("{line} 1s")).unwrap_err().to_string();
    assert!(why.contains("take 2s400ms or more"), "{why}");
    assert!(election(&format!("{line} 2400ms")).is_ok());
    assert!(election(&format!("{line} 1s --poll 200ms")).is_ok());
    assert!(election("--file x --max-hold 5m").is_ok());
}

#[test]
fn empty_and_unprintable_values_are_refused() {
    for words in [
        &["--file", "", "job"][..],
        &["--blob", "", "job"],
        &["--file", "x", ""],
        &["--file", "x", "--identity", "", "job"],
        &["--file", "x", "--identity", "a\nb", "job"],
        &["--file", "x", "--identity", &"a".repeat(129), "job"],
        &["--file", "x", "--status-file", "", "job"],
        &["--file", "x", "--event-log", "", "job"],
    ] {
        assert!(configured(words).is_err(), "{words:?}");
    }
}

#[test]
fn status_file_cannot_be_the_lock_by_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("lock"), "").unwrap();
    std::fs::hard_link(at("lock"), at("hard")).unwrap();
    std::os::unix::fs::symlink(at("lock"), at("soft")).unwrap();
    std::os::unix::fs::symlink(dir.path(), at("round")).unwrap();
    let refused = |lock: &str, status: &str| {
        let (lock, status) = (at(lock), at(status));
        let words = [
            "--file",
            lock.to_str().unwrap(),
            "--status-file",
            status.to_str().unwrap(),
            "job",
        ];
        configured(&words).is_err()
    };
    assert!(refused("lock", "hard"));
    assert!(refused("soft", "lock"));
    assert!(refused("lock", "soft"));
    assert!(refused("lock", "round/lock"));
    assert!(refused("new", "round/new"));
    assert!(!refused("lock", "status"));
}

#[test]
fn command_is_quoted_as_a_user_would_type_it() {
    let shown = |words: &[&[u8]]| {
        let words: Vec<OsString> = words.iter().map(|w| OsStr::from_bytes(w).into()).collect();
        quoted(&words)
    };
    assert_eq!(
        shown(&[b"sh", b"-c", b"echo $HOME; it's"]),
        r"sh -c 'echo $HOME; it'\''s'"
    );
    assert_eq!(
        shown(&[b"", b"a=b", "\u{e9}t\u{e9}".as_bytes()]),
        "'' a=b 'été'"
    );
    assert_eq!(shown(&[b"a\nb\t'\\\x1b\xff"]), r"$'a\nb\t\'\\\x1b\xff'");
}

#[test]
fn a_long_command_is_cut_between_characters() {
    let word = "é".repeat(200);
    let config = configured(&["--file", "x", "job", &word]).unwrap();
    let shown = config.candidate.command;
    assert!(shown.len() <= COMMAND_LIMIT && shown.len() > COMMAND_LIMIT - 2);
    assert!(shown.starts_with("job 'é") && shown.ends_with('é'));
    assert_eq!(config.command[1], *word);
}

#[test]
fn slots_are_counted_from_one_to_a_thousand() {
    let slots = |line: &str| config(&format!("--file a {line} -- job")).map(|config| config.slots);
    assert_eq!(slots(""), Ok(1));
    assert_eq!(slots("--slots 1000"), Ok(1000));
    for (line, words) in [
        ("--slots 0", "1 to 1000"),
        ("--slots 1001", "1 to 1000"),
        ("--slots=-1", "1 to 1000"),
        ("--slots two", "1 to 1000"),
    ] {
        let why = slots(line).unwrap_err().to_string();
        assert!(why.contains(words), "{line}: {why}");
    }
}

#[test]
fn status_file_cannot_be_a_slot() {
    let status = |line: &str| config(&format!("--file a {line} -- job"));
    assert!(status("--status-file a.1 --slots 2").is_err());
    assert!(status("--status-file a.2 --slots 2").is_ok());
    assert!(status("--status-file a --slots 2").is_ok());
    assert!(status("--status-file a.0").is_ok());
}

#[test]
fn key_or_period_implies_once() {
    use crate::core::{OnFailure, Once};
    let task = |line: &str| {
        let config = config(&format!("--file a {line} -- job"))?;
        Ok::<_, UsageError>(config.rules.once.zip(config.task))
    };
    assert_eq!(task(""), Ok(None));
    let (once, task_of) = task("--once").unwrap().expect("a task");
    assert_eq!((&*task_of.key, task_of.per), ("once", None));
    assert_eq!((once.on_failure, once.attempts), (OnFailure::Retry, None));
    let (_, by_key) = task("--once-key v7").unwrap().expect("a task");
    assert_eq!((&*by_key.key, by_key.per), ("v7", None));
    let (once, hourly) = task("--once-per 1h --once-attempts 3").unwrap().unwrap();
    assert_eq!(
        (&*hourly.key, hourly.per),
        ("once", Some(Duration::from_secs(3600)))
    );
    assert_eq!(once.attempts, Some(3));
    let (once, _) = task("--once --once-on-failure stop --once-attempts 1")
        .unwrap()
        .unwrap();
    let stop = Once {
        on_failure: OnFailure::Stop,
        attempts: Some(1),
    };
    assert_eq!(once, stop);
    assert!(task("--once --slots 1 --restart never").unwrap().is_some());
}

#[test]
fn settings_that_contradict_once_are_refused_with_the_reason() {
    let long = "k".repeat(129);
    for (line, words) in [
        ("--once-attempts 3", "without --once, --once-key or"),
        ("--once-on-failure stop", "without --once, --once-key or"),
        ("--once --restart always", "--once-attempts"),
        (
            "--once --restart on-failure",
            "--restart on-failure cannot be used with --once",
        ),
        ("--once-key a --max-hold 1h", "never done"),
        (
            "--once-per 1h --min-hold 5m",
            "--min-hold cannot be used with --once-per",
        ),
        ("--once --slots 2", "--slots cannot be used with --once"),
        ("--once-per 0", "a period needs a length"),
        ("--once-per 0s", "a period needs a length"),
        ("--once-per 1.5s", "whole seconds: take 1s"),
        ("--once-per 500ms", "take 1s"),
        ("--once-per soon", "--once-per"),
        ("--once-key=", "is empty"),
        (&format!("--once-key {long}"), "129 bytes"),
        ("--once --once-attempts 0", "no run at all"),
        ("--once --once-attempts many", "not a number"),
        (
            "--once --once-on-failure stop --once-attempts 2",
            "choose one",
        ),
    ] {
        let why = config(&format!("--file a {line} -- job"))
            .unwrap_err()
            .to_string();
        assert!(why.contains(words), "{line}: {why}");
    }
}
