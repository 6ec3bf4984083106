//! Settings, files and log, as operators see and touch them.

use std::os::unix::fs::symlink;

use nix::sys::signal::Signal;

use super::{instance, let_end};
use crate::support::await_for;
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::scene::Scene;

#[test]
fn settings_come_from_the_environment_and_the_command_line_wins() {
    let scene = Scene::new();
    let holder = instance(&scene, "holder", &[], &[]);
    scene.journal.await_tag(What::Beat, "holder");
    let settings = || {
        scene
            .run()
            .env("TRAFFICCOP_FILE", scene.lock())
            .env("TRAFFICCOP_NO_WAIT", "true")
            .env("TRAFFICCOP_CONFLICT_EXIT_CODE", "21")
    };
    let finished = settings().command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(21), "{}", finished.stderr);
    let finished = settings().args(["-E", "22"]).command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(22), "{}", finished.stderr);
    let finished = settings()
        .arg("--file")
        .arg(scene.path("other"))
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    drop(holder);
}

#[test]
fn the_status_file_says_what_happens() {
    let scene = Scene::new();
    let file = scene.path("status.json");
    let options = ["--status-file", file.to_str().unwrap(), "--contain", "none"];
    let mut one = instance(&scene, "one", &options, &["--status", "4"]);
    let command = scene.journal.await_tag(What::Beat, "one").pid;
    let read = || -> Option<serde_json::Value> {
        serde_json::from_str(&std::fs::read_to_string(&file).ok()?).expect("whole JSON, always")
    };
    let status = await_for(
        "the status to name the command",
        || read().filter(|status| !status["command_pid"].is_null()),
        || format!("{:?}\n{}", read(), one.stderr()),
    );
    assert_eq!(status["state"], "holding");
    assert_eq!(status["command_pid"], command);
    assert_eq!(status["pid"], one.pid());
    assert_eq!(status["guardian_pid"], one.guardian());
    assert_eq!(status["token"], 1);
    assert_eq!(status["identity"], "one");
    assert_eq!(status["contain"], "none");
    assert!(
        status["lock"]
            .as_str()
            .unwrap()
            .contains(scene.lock().to_str().unwrap())
    );
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(4));
    let status = read().unwrap();
    assert_eq!(status["state"], "done");
    assert_eq!(status["exit"], 4);
    assert_eq!(status["command_exit"], 4);
    assert_eq!(status["overlap"], false);
    assert!(status["command_pid"].is_null());
}

#[test]
fn the_json_log_is_json() {
    let scene = Scene::new();
    let options = ["--log", "json"];
    let mut one = instance(&scene, "one", &options, &[]);
    scene.journal.await_tag(What::Beat, "one");
    one.signal(Signal::SIGTERM);
    one.wait();
    let lines: Vec<serde_json::Value> = one
        .stderr()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}")))
        .collect();
    assert!(lines.len() >= 3, "{lines:?}");
    for line in &lines {
        assert!(
            line["level"].is_string() && line["message"].is_string(),
            "{line}"
        );
        assert!(line["ts"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    let control = lines
        .iter()
        .find(|line| line["token"] == 1)
        .expect("a line with the token");
    assert_eq!(control["identity"], "one");
}

#[test]
fn unread_log_stops_nothing() {
    let scene = Scene::new();
    let finished = scene
        .run_on_file()
        .with_broken_stderr()
        .journalist("one", &["--beats", "20", "--status", "6", "--daemon"])
        .args(["--grace", "100ms"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(6));
    assert_eq!(scene.journal.judge(), ["one"]);
    scene.await_nobody();
}

#[test]
fn the_lock_file_stays_and_tells_the_last_holder() {
    let scene = Scene::new();
    for token in 1..=2 {
        let run = scene
            .run_on_file()
            .args(["--identity", "web1"])
            .shell("exit 3");
        assert_eq!(run.finish().ended, Ended::Code(3));
        let text = std::fs::read_to_string(scene.lock()).unwrap();
        let record: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(record["token"], token);
        assert_eq!(record["holder"], "web1");
        assert_eq!(record["command"], "sh -c 'exit 3'");
    }
}

#[test]
fn a_link_to_the_lock_is_the_same_lock() {
    let scene = Scene::new();
    let holder = instance(&scene, "holder", &[], &[]);
    scene.journal.await_tag(What::Beat, "holder");
    let link = scene.path("link");
    symlink(scene.lock(), &link).unwrap();
    let finished = scene
        .run()
        .arg("--file")
        .arg(link)
        .arg("-n")
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(75), "{}", finished.stderr);
    drop(holder);
}
