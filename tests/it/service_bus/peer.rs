//! Microsoft's own Python client at both ends: its messages are processed byte for byte, despite a
//! killed worker, a stopped one and a cut network; and it reads dead letters.
//!
//! Needs `azure-servicebus` from PyPI in the Python that `TRAFFICCOP_TEST_PYTHON` names (default
//! python3). Without it, and in CI, the tests are skipped with a message.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::*;
use crate::support::exclusive::judge;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/service_bus/peer.py");

/// The first byte is the message's number: of ten, one is rejected, one always fails, and the
/// others succeed after a while, some after more than a lock.
const HANDLE: &str = "
n=$(head -c 1 \"$TRAFFICCOP_MESSAGE_FILE\" | od -An -tu1 | tr -d ' ')
cp \"$TRAFFICCOP_MESSAGE_FILE\" \"body-$n\"
case $((n % 10)) in 3) status=65 beats=1;; 7) status=9 beats=1;; 5) status=0 beats=160;; *) status=0 beats=$n;; esac
export TRAFFICCOP_TOKEN=$TRAFFICCOP_MESSAGE_ATTEMPT TRAFFICCOP_HOLDER=w
exec \"$0\" \"$1\" m$n --every 50 --beats $beats --status $status";

/// Prints a message without Microsoft's client, and in CI.
fn python() -> Option<String> {
    let python = std::env::var("TRAFFICCOP_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let is_there = Command::new(&python)
        .args(["-c", "import azure.servicebus"])
        .output()
        .is_ok_and(|output| output.status.success());
    if std::env::var_os("CI").is_some() || !is_there {
        println!(
            "SKIPPED: {python} has no azure-servicebus (pip install azure-servicebus): not tried against Microsoft's \
             client"
        );
        return None;
    }
    Some(python)
}

fn ask(python: &str, what: &str, connection: &str) -> String {
    let output = Command::new(python)
        .args([SCRIPT, what, connection, JOBS])
        .output()
        .expect("Python");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn microsoft_s_client_sends_and_reads_what_was_dead_lettered() {
    let Some(python) = python() else {
        return;
    };
    let stage = Stage::with(SHORT);
    let connection = stage.broker.connection_string();
    let ask = |what: &str| ask(&python, what, &connection);
    ask("send");
    assert_eq!(stage.counts(JOBS).ready, 50);
    let journalist = crate::support::programs::journalist()
        .to_str()
        .expect("a path");
    let journal = stage.scene.journal.path().to_str().expect("a path");
    let start = || {
        stage
            .worker()
            .args(["-j", "4", "--message", "file", "--max-attempts", "4"])
            .args(["--retry-delay", "0s"])
            .env("TMPDIR", stage.scene.directory())
            .current_dir(stage.scene.directory())
            .command(["sh", "-c", HANDLE, journalist, journal])
            .start()
    };
    let workers = [start(), start(), start()];
    for worker in &workers {
        worker.await_log("completed");
    }
    workers[0].signal(Signal::SIGKILL);
    workers[1].freeze();
    stage.broker.cut();
    // Stopped beyond its locks.
    std::thread::sleep(SHORT + Duration::from_secs(1));
    workers[1].signal(Signal::SIGCONT);
    stage.broker.cut();
    stage.wait("everything to be done", |view| {
        let counts = view.counts(JOBS);
        (counts.ready + counts.locked == 0).then_some(())
    });
    for worker in workers {
        worker.signal(Signal::SIGTERM);
        let _ended = worker.finish();
    }
    stage.scene.await_nobody();
    assert_eq!(ask("left").trim(), "0");
    let runs = judge(&stage.scene.journal.lines(), false);
    assert_eq!(runs.len(), 50, "each was run");
    let dead = ask("dead");
    let mut numbers = Vec::new();
    for line in dead.lines() {
        let letter: Value = serde_json::from_str(line).expect("JSON");
        let number = letter["number"].as_u64().expect("a number");
        numbers.push(number);
        assert_eq!(letter["whole"], true, "{line}");
        let (reason, text) = match number % 10 {
            3 => ("CommandRejected", "exit status 65"),
            7 => ("CommandFailed", "exit status 9, attempt 4 of 4"),
            // Its worker was killed, stopped or cut off too often.
            _ => continue,
        };
        if letter["reason"] == "TooManyAttempts" {
            continue;
        }
        assert_eq!(letter["reason"], reason, "{line}");
        assert_eq!(letter["description"], text, "{line}");
        if number % 10 == 7 {
            assert_eq!(letter["count"], 3, "{line}");
        }
    }
    for number in (0..50).filter(|number| matches!(number % 10, 3 | 7)) {
        assert!(numbers.contains(&number), "{number} is not there: {dead}");
    }
    // Each command got what was sent.
    for number in 0..50_u8 {
        let size = [0, 1, 255, 4096, 65_536, 300_000][usize::from(number) % 6];
        let mut sent = vec![number];
        sent.extend((0..size).map(|at: u32| ((u32::from(number) + at * 7) % 256) as u8));
        let path = stage.scene.path(&format!("body-{number}"));
        assert!(std::fs::read(path).expect("it was run") == sent, "{number}");
    }
    eprintln!("{} dead letters:\n{dead}", numbers.len());
}

/// Keeps its progress in the session's state, and repeats nothing: of ten, one is rejected, one
/// fails at first, and one takes longer than a lock.
const TALK: &str = "
n=$(cat) f=$TRAFFICCOP_SESSION_STATE_FILE
case $n$TRAFFICCOP_MESSAGE_ATTEMPT in 3*) exit 65;; 71) echo lost >>$f; exit 9;; 5*) sleep 6;; esac
case $(cat $f) in *$n) ;; *) printf %s $n >>$f;; esac";

#[test]
fn microsoft_s_client_reads_back_what_became_of_sessions() {
    let Some(python) = python() else {
        return;
    };
    let stage = Stage::of(
        Settings::default(),
        QueueSettings {
            lock: SHORT,
            sessions: true,
            ..QueueSettings::default()
        },
    );
    let connection = stage.broker.connection_string();
    let ask = |what: &str| ask(&python, what, &connection);
    ask("talk");
    assert_eq!(stage.counts(JOBS).ready, 100);
    let start = || {
        let worker = stage
            .worker()
            .args(["--sessions", "-j", "4", "--retry-delay", "0s"]);
        let worker = worker.args(["--lock-delay", "5s", "--session-idle", "1s"]);
        worker
            .env("TMPDIR", stage.scene.directory())
            .shell(TALK)
            .start()
    };
    let workers = [start(), start(), start()];
    for worker in &workers {
        worker.await_log("completed");
    }
    workers[0].signal(Signal::SIGKILL);
    workers[1].freeze();
    stage.broker.cut();
    std::thread::sleep(SHORT + Duration::from_secs(1));
    workers[1].signal(Signal::SIGCONT);
    stage.broker.detach_sessions(JOBS);
    stage.wait("everything to be done", |view| {
        let counts = view.counts(JOBS);
        (counts.ready + counts.locked == 0).then_some(())
    });
    for worker in workers {
        worker.signal(Signal::SIGTERM);
        let _ended = worker.finish();
    }
    stage.scene.await_nobody();
    let states = ask("states");
    assert_eq!(states.lines().count(), 10);
    for line in states.lines() {
        let session: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(
            session["state"], "012456789",
            "in order, and none twice: {line}"
        );
        assert_eq!(session["left"], serde_json::json!([]), "{line}");
    }
    let letters = ask("letters");
    let mut of = std::collections::BTreeSet::new();
    for line in letters.lines() {
        let letter: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(letter["body"], "3", "{line}");
        assert_eq!(letter["reason"], "CommandRejected", "{line}");
        of.insert(letter["session"].to_string());
    }
    assert_eq!((of.len(), letters.lines().count()), (10, 10), "{letters}");
    eprintln!("{states}{letters}");
}
