//! The fencing example refuses a stale token atomically, even when supervisor and guardian are
//! stopped and the command runs on in the next tenure.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string};
use crate::support::instance::{Ended, Instance};
use crate::support::processes::{self, Process};
use crate::support::scene::Scene;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/fencing");

fn resource(database: &Path, words: &[&str]) -> Output {
    Command::new("python3")
        .arg(Path::new(EXAMPLE).join("resource.py"))
        .arg(database)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| {
            panic!("the fencing example cannot be tried: python3 does not start ({error})")
        })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(database: &Path) -> Vec<(u64, String)> {
    let output = resource(database, &["read"]);
    assert!(output.status.success(), "{output:?}");
    let parse = |line: &str| {
        let (token, rest) = line.split_once(' ').expect("a token and a text");
        (token.parse().expect("a token"), rest.to_owned())
    };
    text(&output.stdout).lines().map(parse).collect()
}

fn blocks(kind: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(Path::new(EXAMPLE).join("README.md")).expect("a README");
    let mut found = Vec::new();
    let mut rest = &*readme;
    while let Some((_, after)) = rest.split_once(&format!("\n```{kind}\n")) {
        let (block, after) = after.split_once("\n```\n").expect("the end of a block");
        found.push(block.to_owned());
        rest = after;
    }
    found
}

#[test]
fn the_readme_s_first_commands_print_what_it_shows() {
    // A missing Python has its own message.
    drop(resource(Path::new(":memory:"), &["read"]));
    let output = Command::new("sh")
        .args(["-c", &format!("exec 2>&1\n{}", blocks("sh")[0])])
        .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .output()
        .expect("a shell");
    assert_eq!(text(&output.stdout).trim_end(), blocks("text")[0]);
}

#[test]
fn a_stale_token_is_refused_and_leaves_nothing() {
    let scene = Scene::new();
    let database = scene.path("db");
    for (token, status) in [("5", 0), ("5", 0), ("9", 0), ("8", 3), ("9", 0), ("10", 0)] {
        let output = resource(&database, &["write", token, token]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
    }
    for wrong in ["-1", "x", "", "99999999999999999999", "1.5"] {
        let output = resource(&database, &["write", wrong, "wrong"]);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
    }
    let tokens: Vec<u64> = lines(&database).iter().map(|line| line.0).collect();
    assert_eq!(tokens, [5, 5, 9, 9, 10]);
}

#[test]
fn writers_side_by_side_leave_tokens_that_never_go_back() {
    let scene = Scene::new();
    let database = scene.path("db");
    std::thread::scope(|scope| {
        for writer in 0..4_u32 {
            let database = &database;
            scope.spawn(move || {
                for round in 0..10 {
                    let token = (round * 4 + (writer * 7 + round * 3) % 11).to_string();
                    let output = resource(database, &["write", &token, "line"]);
                    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
                }
            });
        }
    });
    let lines = lines(&database);
    assert!(!lines.is_empty());
    assert!(lines.is_sorted_by_key(|line| line.0), "{lines:?}");
}

#[test]
fn the_token_of_an_ended_tenure_is_refused_after_the_next_one_wrote() {
    let scene = Scene::new();
    let database = scene.path("db");
    for name in ["first", "second"] {
        let writer = format!("{EXAMPLE}/writer.sh");
        let words = [&*writer, database.to_str().unwrap(), name, "1"];
        let finished = scene.run_on_file().command(words).finish();
        assert_eq!(finished.ended, Ended::Code(0), "{finished:?}");
    }
    let written = lines(&database);
    let [(old, first), (new, second)] = &*written else {
        panic!("two lines, one of each tenure: {written:?}");
    };
    assert!(old < new, "{written:?}");
    assert_eq!((&**first, &**second), ("first 1", "second 1"));
    let replayed = resource(&database, &["write", &old.to_string(), "replayed"]);
    assert_eq!(replayed.status.code(), Some(3), "{replayed:?}");
    assert_eq!(lines(&database), written);
}

/// Returns the supervisor and its children: all between trafficcop and the command.
fn watchers(instance: &Instance) -> Vec<i32> {
    let supervisor = instance.pid();
    let list = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = std::fs::read_to_string(list).expect("the supervisor is there");
    let children = children.split_ascii_whitespace().map(str::parse::<i32>);
    let mut all = vec![supervisor];
    all.extend(children.map(|pid| pid.expect("a process id")));
    assert_eq!(all.len(), 2, "a supervisor and a guardian");
    all
}

#[test]
fn writer_with_stopped_watchers_is_refused_once_the_next_holder_wrote() {
    let scene = Scene::new();
    let database = scene.path("db");
    let instance = |name: &str, lines: &str| {
        let writer = format!("{EXAMPLE}/writer.sh");
        scene
            .run()
            .env(
                "AZURE_STORAGE_CONNECTION_STRING",
                connection_string(azurite().port),
            )
            .args(["--blob", "fencing/singleton", "--lease", "15s"])
            .args(["--poll", "500ms", "--identity", name])
            .command([&*writer, database.to_str().unwrap(), name, lines])
            .start()
    };
    let first = instance("first", "3600");
    await_for(
        "the first line",
        || (!lines(&database).is_empty()).then_some(()),
        || first.stderr(),
    );
    let stopped = watchers(&first);
    for pid in &stopped {
        kill(Pid::from_raw(*pid), Signal::SIGSTOP).expect("it is there and ours");
        processes::await_stopped(*pid);
    }

    // The next instance has control while the first one's command runs on.
    let second = instance("second", "5").finish();
    assert_eq!(second.ended, Ended::Code(0), "{second:?}");
    await_for(
        "the stale writer to be refused",
        || first.stderr().contains("is stale").then_some(()),
        || first.stderr(),
    );
    for pid in &stopped {
        let state = Process::read(*pid).map(|process| process.state);
        assert_eq!(state, Some('T'), "the fence alone did it");
    }
    let written = lines(&database);
    assert!(written.is_sorted_by_key(|line| line.0), "{written:?}");
    let of = |name: &str| {
        written
            .iter()
            .filter(|line| line.1.starts_with(name))
            .count()
    };
    assert!(of("first") >= 1, "{written:?}");
    assert_eq!(of("second"), 5, "{written:?}");
}
