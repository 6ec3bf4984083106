//! `--event-log` and `trafficcop timeline`: records of instances that are killed, stopped and
//! handed control, and the report.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::await_for;
use crate::support::instance::{Ended, Instance};
use crate::support::journal::What;
use crate::support::namespaces::mounts_or_say_so;
use crate::support::scene::Scene;

fn instance(scene: &Scene, name: &str, log: &Path, options: &[&str]) -> Instance {
    scene
        .run_on_file()
        .args(["--identity", name, "--event-log"])
        .arg(log)
        .args(options)
        .journalist(name, &[])
        .start()
}

fn timeline<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(crate::support::programs::trafficcop())
        .arg("timeline")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn records(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).expect("a log");
    let parsed = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    parsed.collect()
}

fn words(log: &Path, identity: &str) -> Vec<String> {
    let records = records(log).into_iter();
    let ours = records.filter(|record| record["identity"] == identity);
    ours.map(|record| record["event"].as_str().expect("a word").to_owned())
        .collect()
}

/// Returns the holder once its command has written a line and its log says that it runs: a process
/// that is killed loses what its log's thread has not written.
fn in_control(
    scene: &Scene,
    instances: &[(&'static str, Instance)],
    logs: [&Path; 2],
    tenures: usize,
) -> &'static str {
    let tag = await_for(
        "the next tenure",
        || {
            let tenures_seen = scene.journal.tenures();
            let last = tenures_seen.get(tenures - 1)?;
            let told = logs.iter().any(|log| {
                let text = std::fs::read_to_string(log).unwrap_or_default();
                let token = format!("\"token\":{},", last.token);
                let mut lines = text.lines();
                lines.any(|line| line.contains("\"command-started\"") && line.contains(&token))
            });
            told.then(|| last.tag.clone())
        },
        || scene.journal.to_string(),
    );
    let found = instances.iter().find(|(name, _)| *name == tag);
    found.expect("one of them").0
}

#[test]
fn a_chaotic_run_on_a_file_comes_to_tenures_in_order_without_an_overlap() {
    let scene = Scene::new();
    let shared = scene.path("shared.events");
    let own = scene.path("own.events");
    let mut instances = vec![
        ("one", instance(&scene, "one", &shared, &[])),
        ("two", instance(&scene, "two", &shared, &[])),
        ("three", instance(&scene, "three", &own, &[])),
    ];
    for (round, signal) in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGKILL]
        .into_iter()
        .enumerate()
    {
        let name = in_control(&scene, &instances, [&shared, &own], round + 1);
        let at = instances.iter().position(|(one, _)| *one == name).unwrap();
        let (name, mut ended) = instances.remove(at);
        ended.signal(signal);
        assert_eq!(ended.wait(), Ended::Died(signal));
        let log = if name == "three" { &own } else { &shared };
        instances.push((name, instance(&scene, name, log, &[])));
    }
    in_control(&scene, &instances, [&shared, &own], 4);
    for (_, mut instance) in instances {
        instance.signal(Signal::SIGTERM);
        instance.wait();
    }
    scene.await_nobody();
    scene.journal.judge();

    let picture = scene.path("control.svg");
    let files = [shared.as_os_str(), own.as_os_str()];
    let said = timeline(
        ["--svg".as_ref(), picture.as_os_str()]
            .into_iter()
            .chain(files),
    );
    assert!(said.status.success(), "{}", stdout(&said));
    // It may have taken over while the others were being stopped.
    let json = timeline(["--json".as_ref()].into_iter().chain(files));
    assert_eq!(json.status.code(), Some(0));
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["overlap"], false);
    let lock = &json["locks"][0];
    let tenures = lock["tenures"].as_array().expect("a list");
    let tokens: Vec<u64> = tenures
        .iter()
        .map(|one| one["token"].as_u64().unwrap())
        .collect();
    assert!(tokens.len() >= 4, "{json:#}");
    assert!(tokens.is_sorted_by(|one, next| one < next), "{json:#}");
    let ends: Vec<&str> = tenures
        .iter()
        .map(|one| one["end"].as_str().unwrap())
        .collect();
    assert_eq!(ends[..3], ["unseen", "released", "unseen"], "{json:#}");
    assert!(ends[3..].iter().all(|end| *end == "released"), "{json:#}");
    assert_eq!(tenures[0]["known_by"], "next");
    assert!(tenures[1]["cause"].as_str().unwrap().contains("SIGTERM"));
    assert_eq!(lock["instances"].as_array().unwrap().len(), 3);
    let text = stdout(&said);
    assert!(text.ends_with("no overlap; 2 ends not seen\n"), "{text}");
    let svg = std::fs::read_to_string(picture).expect("a picture");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    for name in ["one", "two", "three"] {
        assert!(svg.contains(&format!(">{name}<")), "{name}");
    }

    // Without a name, the first log would be taken for the picture.
    let before = std::fs::read(&shared).expect("a log");
    let slip = timeline(["--svg".as_ref()].into_iter().chain(files));
    let why = String::from_utf8_lossy(&slip.stderr);
    assert_eq!(slip.status.code(), Some(64), "{why}");
    assert!(why.contains("seems to be an event log"), "{why}");
    assert_eq!(std::fs::read(&shared).expect("a log"), before);

    // In one file, from stdin, with half a line at its end.
    let mut both = std::fs::read(&own).unwrap();
    both.extend(std::fs::read(&shared).unwrap());
    both.extend(b"{\"v\":1,\"time\":\"20");
    let piped = scene.path("both.events");
    std::fs::write(&piped, both).unwrap();
    let said = Command::new(crate::support::programs::trafficcop())
        .args(["timeline", "-"])
        .stdin(std::fs::File::open(&piped).unwrap())
        .output()
        .unwrap();
    assert!(said.status.success());
    let passed = "note: 1 line ignored that cannot be read";
    assert!(stdout(&said).contains(passed), "{}", stdout(&said));
}

#[test]
fn a_tenure_is_told_step_by_step_with_its_deadline() {
    let scene = Scene::new();
    let log = scene.path("events");
    let options = ["--shared", "--lease", "12s", "-v", "--log", "json"];
    let mut one = instance(&scene, "one", &log, &options);
    one.await_log("\"event\":\"renewed\"");
    one.signal(Signal::SIGTERM);
    one.wait();
    let all = words(&log, "one");
    let steps: Vec<&str> = all
        .iter()
        .map(|word| &**word)
        .filter(|word| *word != "renewed")
        .collect();
    assert_eq!(
        steps,
        [
            "competing",
            "holding",
            "starting",
            "command-started",
            "draining",
            "command-ended",
            "tree-empty",
            "released",
            "done"
        ]
    );
    let records = records(&log);
    let deadline = |word: &str| {
        let record = records.iter().find(|record| record["event"] == word);
        let record = record.unwrap_or_else(|| panic!("no {word}: {all:?}"));
        assert!(record["deadline"].as_str().unwrap() > record["time"].as_str().unwrap());
        record["deadline_ns"].as_u64().unwrap()
    };
    assert!(deadline("renewed") > deadline("starting"));
    for (number, record) in records.iter().enumerate() {
        assert_eq!(record["seq"], number);
        assert_eq!(record["pid"], one.pid());
    }
    // The same events in the same words, in documented fields.
    let documented: BTreeSet<&str> = trafficcop::internals::report::FIELDS
        .iter()
        .map(|(name, _)| *name)
        .collect();
    let lines: Vec<Value> = one
        .stderr()
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    for line in &lines {
        for key in line.as_object().unwrap().keys() {
            assert!(documented.contains(&**key), "{key}: {line}");
        }
    }
    let line = |word: &str| lines.iter().find(|line| line["event"] == word).unwrap();
    for word in ["holding", "renewed", "draining"] {
        assert_eq!(line(word)["token"], 1, "{word}");
        assert!(line(word)["left_ms"].as_u64().unwrap() > 0, "{word}");
        assert!(line(word)["lock"].is_string());
    }
    assert_eq!(line("done")["exit"], 143);
}

#[test]
fn a_forged_overlap_is_exit_status_1() {
    let scene = Scene::new();
    let log = scene.path("events");
    let mut one = instance(&scene, "one", &log, &[]);
    scene.journal.await_tag(What::Beat, "one");
    one.signal(Signal::SIGTERM);
    one.wait();
    assert_eq!(timeline([&log]).status.code(), Some(0));
    // Another instance claims the same of itself, with the next token.
    let text = std::fs::read_to_string(&log).unwrap();
    let forged = text
        .replace("\"identity\":\"one\"", "\"identity\":\"two\"")
        .replace("\"token\":1", "\"token\":2");
    let other = scene.path("forged");
    std::fs::write(&other, forged).unwrap();
    let said = timeline([&log, &other]);
    assert_eq!(said.status.code(), Some(1), "{}", stdout(&said));
    assert!(stdout(&said).contains("OVERLAP"), "{}", stdout(&said));
}

/// A log's writer must not control its reader's terminal.
#[test]
fn log_texts_cannot_forge_lines() {
    let scene = Scene::new();
    let log = scene.path("events");
    let mut one = instance(&scene, "one", &log, &[]);
    scene.journal.await_tag(What::Beat, "one");
    one.signal(Signal::SIGTERM);
    one.wait();
    let forged = "\\u001b[2J\\n       9  FORGED";
    let text = std::fs::read_to_string(&log).unwrap();
    let text = text
        .replace("singleton.lock", &format!("singleton.lock{forged}"))
        .replace("\"identity\":\"one", &format!("\"identity\":\"one{forged}"))
        .replace("SIGTERM", &format!("SIGTERM{forged}"));
    // Notes contain names, too.
    let other = scene.path("more\u{1b}[2J\n       9  FORGED");
    std::fs::write(&other, text + "no record\n").unwrap();
    let said = stdout(&timeline([&other]));
    assert!(
        said.contains("singleton.lock") && said.contains("SIGTERM"),
        "{said}"
    );
    assert!(said.contains("note: "), "{said}");
    let control = |c: char| c.is_control() && c != '\n';
    assert!(!said.contains(control), "{said:?}");
    let begun = |line: &str| line.starts_with("       9");
    assert!(!said.lines().any(begun), "{said}");
}

#[test]
fn a_timeline_that_cannot_be_written_is_no_answer() {
    let scene = Scene::new();
    let log = scene.path("events");
    let run = scene.run_on_file().arg("--event-log").arg(&log);
    assert_eq!(run.command(["true"]).finish().ended, Ended::Code(0));
    for json in [&[][..], &["--json"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let output = Command::new(crate::support::programs::trafficcop())
            .arg("timeline")
            .args(json)
            .arg(&log)
            .stdout(full.unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains("stdout: No space left"), "{said}");
    }
}

#[test]
fn non_event_log_is_refused_in_one_line() {
    let scene = Scene::new();
    let empty = scene.path("empty");
    std::fs::write(&empty, "nothing\n").unwrap();
    let none: [PathBuf; 0] = [];
    for (args, status, words) in [
        (none.to_vec(), 64, "no event log"),
        (
            vec!["--skew".into(), "much".into(), empty.clone()],
            64,
            "--skew",
        ),
        (vec![scene.path("missing")], 69, "missing"),
        (vec![empty.clone()], 69, "no event"),
        (vec!["-".into()], 69, "no event"),
    ] {
        let said = timeline(&args);
        let why = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(status), "{args:?}: {why}");
        assert!(why.contains(words) && why.lines().count() == 1, "{why}");
    }
}

#[test]
fn a_full_disk_under_the_event_log_costs_one_warning_and_no_control() {
    let scene = Scene::new();
    let mount = scene.path("mount");
    std::fs::create_dir(&mount).unwrap();
    let on_tmpfs = || scene.run_on_file().with_tmpfs(&mount, 4).with_full(&mount);
    for (run, log) in [
        (mounts_or_say_so().then(on_tmpfs), mount.join("events")),
        (Some(scene.run_on_file()), "/dev/full".into()),
    ] {
        let Some(run) = run else {
            continue;
        };
        let finished = run
            .arg("--event-log")
            .arg(log)
            .shell("sleep 0.2; exit 6")
            .finish();
        assert_eq!(finished.ended, Ended::Code(6), "{}", finished.stderr);
        let warnings = finished
            .stderr
            .matches("cannot write the event log")
            .count();
        assert_eq!(warnings, 1, "{}", finished.stderr);
    }
}

#[test]
fn hanging_event_log_delays_neither_control_nor_the_end() {
    let scene = Scene::new();
    let fifo = scene.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let finished = scene
        .run_on_file()
        .arg("--event-log")
        .arg(&fifo)
        .shell("exit 6")
        .finish();
    assert_eq!(finished.ended, Ended::Code(6), "{}", finished.stderr);
}

/// A shell makes such a pipe from `--event-log >(gzip >log.gz)`.
#[test]
fn event_log_on_an_inherited_pipe_is_written() {
    let scene = Scene::new();
    let script = "exec 3>&1; exec \"$@\" --event-log /dev/fd/3 -- true";
    let mut command = std::process::Command::new("sh");
    command.args([
        "-c",
        script,
        "sh",
        env!("CARGO_BIN_EXE_trafficcop"),
        "run",
        "-q",
    ]);
    let output = command
        .arg("--file")
        .arg(scene.path("lock"))
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.lines().count() > 2 && said.starts_with('{'), "{said}");
}

/// A read end here would keep the command's pipe alive.
#[test]
fn event_log_on_the_commands_output_opens_no_read_end() {
    let scene = Scene::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let run = scene
        .run_on_file()
        .args(["-q", "--event-log", "/dev/stdout"]);
    let mut instance = run.command(["yes"]).stdout(writer).start();
    std::io::Read::read_exact(&mut reader, &mut [0; 4096]).unwrap();
    drop(reader);
    assert_eq!(instance.wait(), Ended::Died(Signal::SIGPIPE));
}

#[test]
fn event_log_without_a_reader_is_reported() {
    let scene = Scene::new();
    let fifo = scene.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let run = scene.run_on_file().arg("--event-log").arg(&fifo);
    let finished = run.command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    let warnings = finished.stderr.matches("cannot write the event log");
    assert_eq!(warnings.count(), 1, "{}", finished.stderr);
}

#[test]
fn a_standby_that_no_terminal_shows_has_no_thread_for_it() {
    let scene = Scene::new();
    let holder = instance(&scene, "one", &scene.path("one"), &[]);
    scene.journal.await_tag(What::Beat, "one");
    let second = scene.run_on_file().shell("true").start();
    second.await_log("standing by");
    let tasks = std::fs::read_dir(format!("/proc/{}/task", second.pid())).unwrap();
    let names: Vec<String> = tasks
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default())
        .collect();
    assert!(
        !names.iter().any(|name| name.starts_with("standing-by")),
        "{names:?}"
    );
    drop((holder, second));
}
