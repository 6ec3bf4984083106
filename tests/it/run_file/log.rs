//! The log for cron, systemd's journal, and others.

use std::process::Command;

use nix::sys::signal::Signal;

use super::{instance, let_end};
use crate::support::instance::{Ended, assert_ended};
use crate::support::journal::What;
use crate::support::processes::MARK;
use crate::support::scene::Scene;

#[test]
fn a_job_of_many_crontabs_says_nothing_where_nothing_is_wrong() {
    let scene = Scene::new();
    let job = |command: &str| {
        let run = scene.run_on_file().args(["-n", "-E", "0"]);
        run.shell(command).finish()
    };
    let winner = job("true");
    assert_ended(&winner, 0, "");
    assert_eq!(winner.stderr, "");
    let holder = instance(&scene, "holder", &[], &[]);
    scene.journal.await_tag(What::Beat, "holder");
    let other = job("true");
    assert_ended(&other, 0, "");
    assert_eq!(other.stderr, "");
    // With -v the log has all lines, without it one.
    let run = scene.run_on_file().arg("-n").shell("true").finish();
    assert_ended(&run, 75, "error: control not obtained: holder");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    let run = scene.run_on_file().args(["-n", "-E0", "-v"]);
    assert_ended(&run.shell("true").finish(), 0, "competes for");
    drop(holder);
    let run = scene
        .run()
        .args(["-n", "-E", "0", "--file", "/no/such/lock"]);
    assert_ended(&run.shell("true").finish(), 69, "/no/such/lock");
}

#[test]
fn a_stop_that_was_asked_for_is_no_warning() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), Ended::Died(Signal::SIGTERM));
    let said = one.stderr();
    assert!(said.contains("the command was killed by SIGTERM"), "{said}");
    assert!(!said.contains("warning"), "{said}");
    // Ended by a signal that trafficcop did not send.
    let run = scene.run_on_file().shell("kill -TERM $$");
    let finished = run.finish();
    assert!(
        finished.stderr.contains("warning: the command was killed"),
        "{}",
        finished.stderr
    );
}

#[test]
fn each_line_says_when_and_who() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    let_end(&scene, "one");
    one.wait();
    for line in one.stderr().lines() {
        let (when, rest) = line.split_once(' ').unwrap();
        assert!(when.starts_with("20") && when.ends_with('Z'), "{line}");
        assert!(rest.starts_with("trafficcop[one]: "), "{line}");
    }
}

#[test]
fn the_journal_is_told_priorities() {
    let scene = Scene::new();
    let log = scene.path("journal-of-systemd");
    let script = "exec 2>\"$LOG\"; export JOURNAL_STREAM=$(stat -Lc %d:%i /dev/fd/2); exec \"$@\"";
    let status = Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_trafficcop"), "run"])
        .args(["--identity", "one", "--file"])
        .arg(scene.lock())
        .args(["--", "sh", "-c", "kill -9 $$"])
        .env(MARK, scene.directory())
        .env("LOG", &log)
        .status()
        .unwrap();
    assert_eq!(Ended::from(status), Ended::Died(Signal::SIGKILL));
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("<6>one: in control, token 1"), "{said}");
    assert!(
        said.contains("<4>one: warning: the command was killed"),
        "{said}"
    );
    assert!(said.lines().all(|line| line.starts_with('<')), "{said}");
}
