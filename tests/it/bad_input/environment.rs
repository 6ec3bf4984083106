//! Settings from the environment: what is typed beats them, what nobody reads is told of, and what a
//! command is told by trafficcop is no setting of a trafficcop inside it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use super::{judge, refused};
use crate::support::instance::{Ended, assert_ended};
use crate::support::scene::Scene;

#[test]
fn what_is_typed_beats_a_variable_that_excludes_it() {
    let scene = Scene::new();
    for (name, value, typed) in [
        ("TRAFFICCOP_BLOB", "locks/one", "--quiet"),
        ("TRAFFICCOP_WAIT", "5s", "--no-wait"),
        ("TRAFFICCOP_NO_WAIT", "1", "--wait=5s"),
        ("TRAFFICCOP_VERBOSE", "1", "--quiet"),
        ("TRAFFICCOP_QUIET", "1", "--verbose"),
        ("TRAFFICCOP_EMULATOR", "1", "--quiet"),
        ("TRAFFICCOP_RESTART", "always", "--once"),
        ("TRAFFICCOP_ONCE", "1", "--restart=on-failure"),
    ] {
        let run = scene.run_on_file().env(name, value).arg(typed);
        let finished = run.command(["true"]).finish();
        let said = format!("{name} {typed}: {}", finished.stderr);
        assert_eq!(finished.ended, Ended::Code(0), "{said}");
    }
    // What belongs to a file says nothing beside a blob that was typed.
    for name in ["TRAFFICCOP_SHARED", "TRAFFICCOP_HEARTBEAT"] {
        let blob = scene
            .run()
            .args(["-n", "--blob", "locks/one"])
            .env(name, "1");
        let said = blob.command(["true"]).finish().stderr;
        assert!(
            !said.contains("--shared") && !said.contains("--heartbeat"),
            "{said}"
        );
    }
    let file = scene.run_on_file().env("TRAFFICCOP_HEARTBEAT", "on");
    refused(&scene, file, 64, &["--heartbeat is gone"]);
    // It is no less a contradiction where neither was typed.
    let both = scene
        .run()
        .env("TRAFFICCOP_BLOB", "locks/one")
        .env("TRAFFICCOP_FILE", scene.lock());
    refused(&scene, both, 64, &["two locks"]);
}

#[test]
fn what_a_variable_says_is_refused_by_its_name() {
    let scene = Scene::new();
    let set = |name: &str, value: &str, words: &[&str]| {
        refused(&scene, scene.run_on_file().env(name, value), 64, words);
    };
    let wait = "TRAFFICCOP_WAIT: 'abc' is not a duration";
    set("TRAFFICCOP_WAIT", "abc", &[wait]);
    set("TRAFFICCOP_SLOTS", "abc", &["TRAFFICCOP_SLOTS=abc: take"]);
    set("TRAFFICCOP_POLL", "1ms", &["TRAFFICCOP_POLL=1ms: take"]);
    // Where it is found only by what is made of it.
    let words = ["--listen abc: take", "(TRAFFICCOP_LISTEN is set)"];
    set("TRAFFICCOP_LISTEN", "abc", &words);
    let run = scene.run_on_file().env("TRAFFICCOP_WAIT", "5s");
    let finished = run.args(["--wait", "abc"]).command(["true"]).finish();
    let said = &finished.stderr;
    assert!(said.contains("error: --wait: 'abc'"), "{said}");
    assert!(!said.contains("TRAFFICCOP"), "{said}");
    let bytes = OsStr::from_bytes(b"5\xff");
    let run = scene.run_on_file().env("TRAFFICCOP_GRACE", bytes);
    refused(&scene, run, 64, &["TRAFFICCOP_GRACE: no text in UTF-8"]);
}

#[test]
fn a_variable_that_nobody_reads_is_told_of_and_does_nothing() {
    let scene = Scene::new();
    let finished = scene
        .run_on_file()
        .env("TRAFFICCOP_GRCE", "5s")
        .env("TRAFFICCOP_GRACE", "5s")
        .env("TRAFFICCOP_LESE", "")
        .command(["true"])
        .finish();
    assert_ended(&finished, 0, "warning: TRAFFICCOP_GRCE");
    for known in ["TRAFFICCOP_GRACE ", "TRAFFICCOP_LESE"] {
        assert!(!finished.stderr.contains(known), "{}", finished.stderr);
    }
}

#[test]
fn what_a_command_is_told_is_no_setting_of_a_trafficcop_in_it() {
    let scene = Scene::new();
    let inner = scene.path("inner.lock");
    let script = format!(
        "exec {} run -v --file {} -- true",
        env!("CARGO_BIN_EXE_trafficcop"),
        inner.display()
    );
    let outer = scene.run_on_file().args(["-q", "--once-per", "1h"]);
    let finished = outer.shell(&script).finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    assert!(!finished.stderr.contains("warning"), "{}", finished.stderr);
}

#[test]
fn a_lock_that_is_held_for_us_is_refused_and_not_waited_for() {
    let scene = Scene::new();
    for verb in ["run", "elect"] {
        let words = if verb == "run" { "-- true" } else { "" };
        // Under another name, and from elsewhere.
        let script = format!(
            "ln -sf {lock} {link}; cd /; exec {} {verb} --file {link} {words}",
            env!("CARGO_BIN_EXE_trafficcop"),
            lock = scene.lock().display(),
            link = scene.path("link").display()
        );
        let finished = scene.run_on_file().arg("-q").shell(&script).finish();
        assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
        let first = finished.stderr.lines().next().unwrap_or_default();
        assert!(
            first.starts_with("trafficcop: error: ")
                && first.contains("held for the command that we are a part of"),
            "{verb}: {}",
            finished.stderr
        );
    }
    // Also where another one stands between.
    let script = format!(
        "exec {me} run -q --file {lock}.3 -- {me} run -w 1s --file {lock} -- true",
        me = env!("CARGO_BIN_EXE_trafficcop"),
        lock = scene.lock().display(),
    );
    let finished = scene.run_on_file().arg("-q").shell(&script).finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    // With another lock it works, and so it does on one of several slots.
    let script = format!(
        "{me} run -q --file {lock}.2 -- true && {me} run -q --slots 2 --file {lock} -- true",
        me = env!("CARGO_BIN_EXE_trafficcop"),
        lock = scene.lock().display(),
    );
    let run = scene.run_on_file().args(["-q", "--slots", "2"]);
    assert_ended(&run.shell(&script).finish(), 0, "");
}

#[test]
fn help_is_a_verb_too() {
    let scene = Scene::new();
    for (words, shown) in [
        (&[][..], "Usage: trafficcop"),
        (&["run"], "--grace-on-loss"),
        (&["status"], "trafficcop status"),
    ] {
        let finished = scene.verb("help").args(words).finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
        assert!(finished.stdout.contains(shown), "{}", finished.stdout);
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    let unheard = Command::new(env!("CARGO_BIN_EXE_trafficcop"))
        .arg("--version")
        .stdout(full.unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&unheard.stderr);
    assert_eq!(unheard.status.code(), Some(69), "{said}");
    assert!(said.contains("cannot write to stdout: No space"), "{said}");
    let finished = scene.verb("help").arg("nonsense").finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    let finished = scene.run_on_file().finish();
    judge(
        &scene,
        &finished.stderr,
        finished.ended,
        64,
        &["no command"],
    );
}
