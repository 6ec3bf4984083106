//! Settings from the environment: flags override them, unused ones are reported, and a command's
//! variables are no settings of a trafficcop inside it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use super::{judge, refused};
use crate::support::instance::{Ended, assert_ended};
use crate::support::scene::Scene;

#[test]
fn flag_overrides_a_conflicting_variable() {
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
    // A variable for files is ignored if a blob is named by a flag.
    let blob = scene.run().args(["-n", "--blob", "locks/one"]);
    let said = blob
        .env("TRAFFICCOP_SHARED", "1")
        .command(["true"])
        .finish()
        .stderr;
    assert!(!said.contains("--shared"), "{said}");
    let both = scene
        .run()
        .env("TRAFFICCOP_BLOB", "locks/one")
        .env("TRAFFICCOP_FILE", scene.lock());
    refused(&scene, both, 64, &["exactly one lock"]);
}

#[test]
fn flag_overrides_dependents_of_a_variable_that_it_overrides() {
    let scene = Scene::new();
    for (variables, typed) in [
        (["RESTART=always", "RESTART_LIMIT=3"], "--once"),
        (["RESTART=always", "RESTART_WINDOW=9m"], "--min-hold=1ms"),
        (["RESTART=always", "COOLDOWN=3s"], "--min-hold=1ms"),
        (["MAX_HOLD=1h", "COOLDOWN=3s"], "--once"),
        (["ONCE=1", "ONCE_ON_FAILURE=stop"], "--restart=on-failure"),
        (["ONCE_PER=1h", "ONCE_ATTEMPTS=3"], "--max-hold=1h"),
    ] {
        let mut run = scene.run_on_file().arg(typed);
        for variable in variables {
            let (name, value) = variable.split_once('=').unwrap();
            run = run.env(&format!("TRAFFICCOP_{name}"), value);
        }
        let finished = run.command(["true"]).finish();
        let said = format!("{variables:?} {typed}: {}", finished.stderr);
        assert_eq!(finished.ended, Ended::Code(0), "{said}");
    }
    // Found after a queue's settings, and before a request to the queue.
    let bus = "--service-bus=contoso/q";
    for (variables, typed) in [
        (
            ["SERVICE_BUS=contoso/q", "SESSIONS=1"],
            &["--queue=qqq"][..],
        ),
        (["SESSIONS=1", "SESSION_IDLE=9s"], &["--queue=qqq"]),
        (
            ["SESSIONS=1", "LOCK_DELAY=9s"],
            &[bus, "--dead-letter-queue"],
        ),
        (
            ["DEAD_LETTER_QUEUE=1", "LINK_SETTLE=1"],
            &[bus, "--sessions"],
        ),
    ] {
        let mut run = scene.verb("work").args(typed).args(["--grace", "soon"]);
        for variable in variables {
            let (name, value) = variable.split_once('=').unwrap();
            run = run.env(&format!("TRAFFICCOP_{name}"), value);
        }
        refused(&scene, run, 64, &["--grace"]);
    }
    // A flag that depends on an overridden variable is refused.
    let run = scene.run_on_file().env("TRAFFICCOP_RESTART", "always");
    let run = run.args(["--once", "--restart-limit", "3"]);
    let finished = run.command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    // A variable that depends on a variable which is not overridden is refused, too.
    let run = scene.run_on_file().env("TRAFFICCOP_MAX_HOLD", "1h");
    let run = run.env("TRAFFICCOP_COOLDOWN", "1ms");
    let run = run.args(["--once-key", "other", "--restart=never"]);
    refused(&scene, run, 64, &["--cooldown"]);
}

#[test]
fn flag_without_a_conflict_overrides_no_variable() {
    let scene = Scene::new();
    let run = || {
        let run = scene.run_on_file().env("TRAFFICCOP_ONCE", "1");
        run.args(["--slots", "1"]).shell("echo ran").finish()
    };
    for wanted in ["ran\n", ""] {
        let finished = run();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
        assert_eq!(finished.stdout, wanted, "{}", finished.stderr);
    }
    for (variable, typed) in [
        ("TRAFFICCOP_CONCURRENCY", "--max-messages=1"),
        ("TRAFFICCOP_MAX_MESSAGES", "--concurrency=1"),
    ] {
        let work = scene.verb("work").env("TRAFFICCOP_ONCE", "1");
        let work = work.env(variable, "2").args(["--queue=qqq", typed]);
        refused(&scene, work, 64, &["cannot be used with --once"]);
    }
}

#[test]
fn error_for_a_variables_value_names_the_variable() {
    let scene = Scene::new();
    let set = |name: &str, value: &str, words: &[&str]| {
        refused(&scene, scene.run_on_file().env(name, value), 64, words);
    };
    let wait = "TRAFFICCOP_WAIT: 'abc' is not a duration";
    set("TRAFFICCOP_WAIT", "abc", &[wait]);
    set("TRAFFICCOP_SLOTS", "abc", &["TRAFFICCOP_SLOTS=abc: take"]);
    set("TRAFFICCOP_POLL", "1ms", &["TRAFFICCOP_POLL=1ms: take"]);
    // Found only when the value is used.
    let words = ["--listen abc: take", "(TRAFFICCOP_LISTEN is set)"];
    set("TRAFFICCOP_LISTEN", "abc", &words);
    let run = scene.run_on_file().env("TRAFFICCOP_WAIT", "5s");
    let finished = run.args(["--wait", "abc"]).command(["true"]).finish();
    let said = &finished.stderr;
    assert!(said.contains("error: --wait: 'abc'"), "{said}");
    assert!(!said.contains("TRAFFICCOP"), "{said}");
    let bytes = OsStr::from_bytes(b"5\xff");
    let run = scene.run_on_file().env("TRAFFICCOP_GRACE", bytes);
    refused(&scene, run, 64, &["TRAFFICCOP_GRACE is not UTF-8"]);
}

#[test]
fn unknown_variable_is_reported_and_ignored() {
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
fn variables_of_a_command_are_no_settings_of_an_inner_trafficcop() {
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
fn lock_of_an_outer_trafficcop_is_refused_at_once() {
    let scene = Scene::new();
    for verb in ["run", "elect"] {
        let words = if verb == "run" { "-- true" } else { "" };
        // Under another name, and from another directory.
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
                && first.contains("held for the command that this trafficcop is a part of"),
            "{verb}: {}",
            finished.stderr
        );
    }
    // Also under a name that is no text.
    let lock = scene
        .path("lock")
        .with_file_name(OsStr::from_bytes(b"lock\xff"));
    let script = format!(
        "exec {} run -q -w 1s --file \"$LOCK\" -- true",
        env!("CARGO_BIN_EXE_trafficcop")
    );
    let run = scene
        .run()
        .env("LOCK", &lock)
        .args(["-q", "--file"])
        .arg(&lock);
    let finished = run.shell(&script).finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    // With another instance in between.
    let script = format!(
        "exec {me} run -q --file {lock}.3 -- {me} run -w 1s --file {lock} -- true",
        me = env!("CARGO_BIN_EXE_trafficcop"),
        lock = scene.lock().display(),
    );
    let finished = scene.run_on_file().arg("-q").shell(&script).finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    // Another lock works, or one of several slots.
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

#[test]
fn a_proxy_that_cannot_be_used_is_refused_where_a_connection_would_go_through_it() {
    let scene = Scene::new();
    let account = || {
        let run = scene.run().args(["-n", "--blob", "locks/x"]);
        run.env("AZURE_STORAGE_ACCOUNT", "contoso")
            .env("AZURE_STORAGE_KEY", super::WRONG_KEY)
    };
    for proxy in [
        "http:://proxy:3128",
        "socks5h://proxy:1080",
        "http://u:hush#x@proxy:3128",
    ] {
        let run = account().env("HTTPS_PROXY", proxy);
        refused(&scene, run, 64, &["HTTPS_PROXY", "http://HOST:PORT"]);
        let file = scene
            .run_on_file()
            .env("HTTPS_PROXY", proxy)
            .command(["true"]);
        assert_ended(&file.finish(), 0, "");
    }
    // A proxy that answers each request like this.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            use std::io::{Read as _, Write as _};
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let run = account().env("HTTPS_PROXY", format!("http://u:hush@{at}"));
    let named = format!("through the proxy {at} (HTTPS_PROXY), which answers '403 Forbidden'");
    let finished = run.command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(69), "{}", finished.stderr);
    assert!(finished.stderr.contains(&named), "{}", finished.stderr);
    assert!(!finished.stderr.contains("hush"), "{}", finished.stderr);
}
