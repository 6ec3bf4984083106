//! Azure's announcements: the instance gives control away before the event, and competes again
//! after it.

use std::fs;
use std::path::PathBuf;

use nix::sys::signal::Signal;

use crate::support::await_for;
use crate::support::instance::{Ended, Run};
use crate::support::metadata::{Manner, Metadata};
use crate::support::scene::Scene;

const ENDPOINT: &str = "TRAFFICCOP_SCHEDULED_EVENTS_ENDPOINT";

fn guest<'a>(scene: &'a Scene, metadata: &Metadata, name: &str) -> Run<'a> {
    scene
        .run_on_file()
        .args(["--identity", name, "--scheduled-events"])
        .env(ENDPOINT, &metadata.url)
}

fn lasting(scene: &Scene, name: &str) -> String {
    format!(
        "while [ ! -e {} ]; do sleep 0.05; done",
        go(scene, name).display()
    )
}

fn go(scene: &Scene, name: &str) -> PathBuf {
    scene.path(&format!("{name}.go"))
}

#[test]
fn a_notice_hands_control_over_before_it_is_approved_and_stays_out_until_it_is_gone() {
    let scene = Scene::new();
    let metadata = Metadata::of("web-1");
    // It takes a while to end, and reports when it has.
    let over = scene.path("over");
    let slow = format!(
        "trap 'sleep 0.5; : > {}; exit 0' TERM; {}",
        over.display(),
        lasting(&scene, "web1")
    );
    let mut first = guest(&scene, &metadata, "web1")
        .arg("--ack-events")
        .shell(&slow)
        .start();
    first.await_log("in control, token 1");
    let mut second = scene
        .run_on_file()
        .args(["--identity", "web2"])
        .shell(&lasting(&scene, "web2"))
        .start();
    second.await_log("standing by: web1 is in control");
    let log = first.stderr_path();
    metadata.witness(move || {
        let log = fs::read_to_string(&log).unwrap_or_default();
        let given_back = log.contains("gave the lock back");
        format!("over: {}, given back: {given_back}", over.exists())
    });

    metadata.announce("0-1-2", "Reboot", "WEB-1");
    second.await_log("in control, token 2");
    first.await_log("stopping the command: a reboot of this machine is announced (event 0-1-2)");
    first.await_log("cordoned: a reboot of this machine is announced");
    first.await_log("approved what Azure announced for this machine (event 0-1-2)");
    let (approved, seen) = metadata.approved();
    assert_eq!(approved, ["0-1-2"]);
    assert_eq!(seen, ["over: true, given back: true"]);

    // No instance takes the free lock.
    fs::write(go(&scene, "web2"), "").expect("written");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    metadata.await_asked(2);
    first.assert_running();
    assert_eq!(
        first.stderr().matches("in control").count(),
        1,
        "{}",
        first.stderr()
    );
    assert_eq!(metadata.approved().0.len(), 1, "approved once");

    metadata.announce_nothing();
    first.await_log("nothing is announced for this machine any more");
    first.await_log("in control, token 3");
    fs::write(go(&scene, "web1"), "").expect("written");
    assert_eq!(first.wait(), Ended::Code(0), "{}", first.stderr());
    scene.await_nobody();
}

#[test]
fn a_standby_is_cordoned_too_and_then_stands_by_again() {
    let scene = Scene::new();
    let metadata = Metadata::of("web-2");
    let mut holder = scene
        .run_on_file()
        .args(["--identity", "web1"])
        .command(["sleep", "600"])
        .start();
    holder.await_log("in control");
    let mut standby = guest(&scene, &metadata, "web2").command(["true"]).start();
    standby.await_log("standing by: web1 is in control");
    metadata.announce("x", "Freeze", "web-2");
    standby.await_log("cordoned: a freeze of this machine is announced (event x)");
    metadata.announce_nothing();
    standby.await_log_times("standing by: web1 is in control", 2);
    assert_eq!(metadata.approved().0, [""; 0], "no approval was needed");
    for instance in [&mut standby, &mut holder] {
        instance.signal(Signal::SIGTERM);
        instance.wait();
    }
}

#[test]
fn failing_metadata_service_stops_no_command() {
    for manner in [
        Manner::Status(404),
        Manner::Status(500),
        Manner::Nonsense("<html>"),
        Manner::Nonsense(r#"{"Events": "none"}"#),
        Manner::Hangs,
    ] {
        let scene = Scene::new();
        let metadata = Metadata::of("web-1");
        metadata.announce("x", "Reboot", "web-1");
        metadata.answers(manner.clone());
        let mut instance = guest(&scene, &metadata, "web1")
            .shell(&lasting(&scene, "web1"))
            .start();
        instance.await_log("in control");
        instance.await_log("scheduled events are not available");
        fs::write(go(&scene, "web1"), "").expect("written");
        assert_eq!(
            instance.wait(),
            Ended::Code(0),
            "{manner:?}: {}",
            instance.stderr()
        );
        assert_eq!(
            instance.stderr().matches("warning: ").count(),
            1,
            "{}",
            instance.stderr()
        );
    }
    // Without a metadata service the result is the same.
    let scene = Scene::new();
    let finished = scene
        .run_on_file()
        .arg("--scheduled-events")
        .env(ENDPOINT, "http://127.0.0.1:1")
        .shell("exit 3")
        .finish();
    assert_eq!(finished.ended, Ended::Code(3));
    assert_eq!(
        finished.stderr.matches("cannot be reached").count(),
        1,
        "{}",
        finished.stderr
    );
}

#[test]
fn irrelevant_announcements_are_ignored() {
    let scene = Scene::new();
    let metadata = Metadata::of("web-1");
    let mut instance = guest(&scene, &metadata, "web1")
        .command(["sleep", "600"])
        .start();
    instance.await_log("in control");
    for (kind, machine) in [("Reboot", "web-10"), ("Celebration", "web-1")] {
        metadata.announce("x", kind, machine);
        metadata.await_asked(2);
    }
    assert!(
        !instance.stderr().contains("announced"),
        "{}",
        instance.stderr()
    );
    // It did watch.
    metadata.announce("y", "Preempt", "web-1");
    instance
        .await_log("stopping the command: the preemption of this machine is announced (event y)");
    instance.signal(Signal::SIGTERM);
    instance.wait();
}

#[test]
fn a_machine_is_known_by_what_was_typed_by_the_metadata_or_by_its_own_name() {
    let host = nix::unistd::gethostname().expect("a name");
    let host = host.to_string_lossy().into_owned();
    for (told, typed, announced) in [
        ("web-1", None, "web-1"),
        ("web-1", Some("other"), "other"),
        ("", None, host.as_str()),
    ] {
        let scene = Scene::new();
        let metadata = Metadata::of(told);
        metadata.announce("x", "Terminate", announced);
        let mut run = guest(&scene, &metadata, "web1").args(["-n", "-E", "9"]);
        if let Some(name) = typed {
            run = run.args(["--vm-name", name]);
        }
        // An announcement before the first attempt keeps it from competing.
        let finished = run.command(["true"]).finish();
        assert_eq!(finished.ended, Ended::Code(9), "{}", finished.stderr);
        assert!(
            finished
                .stderr
                .contains("control not obtained: the termination of this machine"),
            "{}",
            finished.stderr
        );
        assert!(
            !finished.stderr.contains("in control"),
            "{}",
            finished.stderr
        );
    }
}

#[test]
fn metadata_service_is_not_queried_unless_enabled() {
    let scene = Scene::new();
    let metadata = Metadata::of("web-1");
    metadata.announce("x", "Reboot", "web-1");
    metadata.answers(Manner::Hangs);
    let finished = scene
        .run_on_file()
        .env(ENDPOINT, &metadata.url)
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    assert_eq!(metadata.asked(), 0);
}

#[test]
fn an_election_hands_over_too() {
    let scene = Scene::new();
    let metadata = Metadata::of("web-1");
    let mut instance = scene
        .elect()
        .arg("--file")
        .arg(scene.lock())
        .args(["--scheduled-events", "--grace", "100ms"])
        .env(ENDPOINT, &metadata.url)
        .start();
    let lines = |wanted: usize| {
        await_for(
            "a line on stdout",
            || {
                let said = instance.stdout();
                (said.lines().count() >= wanted).then_some(said)
            },
            || instance.stderr(),
        )
    };
    assert!(lines(1).starts_with("holder "));
    metadata.announce("x", "Redeploy", "web-1");
    assert!(
        lines(2)
            .lines()
            .last()
            .expect("two")
            .starts_with("standby ")
    );
    instance.await_log("cordoned: a redeployment of this machine");
    metadata.announce_nothing();
    assert!(
        lines(3)
            .lines()
            .last()
            .expect("three")
            .starts_with("holder ")
    );
    instance.signal(Signal::SIGTERM);
    instance.wait();
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    for (options, words) in [
        (
            &["--ack-events"][..],
            "--ack-events has no meaning without --scheduled-events",
        ),
        (
            &["--vm-name", "x"],
            "--vm-name has no meaning without --scheduled-events",
        ),
        (
            &["--scheduled-events", "--vm-name", ""],
            "--vm-name is no name",
        ),
        (&["--ready", "soon"], "--ready"),
    ] {
        let scene = Scene::new();
        let finished = scene.run_on_file().args(options).command(["true"]).finish();
        assert_eq!(
            finished.ended,
            Ended::Code(64),
            "{options:?}: {}",
            finished.stderr
        );
        assert!(finished.stderr.contains(words), "{}", finished.stderr);
    }
    let scene = Scene::new();
    let run = scene.run_on_file().args(["--scheduled-events"]);
    let finished = run
        .env(ENDPOINT, "https://127.0.0.1")
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    let words = "TRAFFICCOP_SCHEDULED_EVENTS_ENDPOINT: take http://ADDRESS";
    assert!(finished.stderr.contains(words), "{}", finished.stderr);
}
