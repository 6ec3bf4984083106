//! Terminal signals affect a script with trafficcop like one with a plain command, in bash and
//! dash.

use std::path::Path;
use std::process::Command;

use super::{Session, pid_in};

/// A script and what follows it; the command is `$JOB`.
struct Row {
    name: &'static str,
    /// Script, in which `RUN` is replaced by `trafficcop run`.
    script: &'static str,
    job: &'static str,
    keys: &'static str,
    /// Status of the script, as a shell shows it.
    status: i32,
    /// Whether the row is for bash, which ignores SIGQUIT itself and continues.
    is_for_bash: bool,
}

const DIES: &str = "NOTE; exec sleep 600";
const HANDLES: &str = "trap 'exit 0' INT QUIT; NOTE; while :; do sleep 0.1; done";
const IGNORES: &str = "trap '' INT; NOTE; sleep 1; exit 7";

const ROWS: &[Row] = &[
    Row {
        name: "a command that dies of it ends the script",
        script: "RUN -- sh $JOB; echo NEXT",
        job: DIES,
        keys: "\x03",
        status: 130,
        is_for_bash: true,
    },
    Row {
        name: "so does a command that handles it and exits 0",
        script: "set -e\nRUN -- sh $JOB\necho NEXT",
        job: HANDLES,
        keys: "\x03",
        status: 130,
        is_for_bash: true,
    },
    Row {
        name: "a loop of runs ends",
        script: "for i in 1 2 3; do RUN -- sh $JOB; echo NEXT; done",
        job: HANDLES,
        keys: "\x03",
        status: 130,
        is_for_bash: true,
    },
    Row {
        name: "Ctrl-backslash ends it by its signal",
        script: "RUN -- sh $JOB; echo NEXT",
        job: HANDLES,
        keys: "\x1c",
        status: 131,
        is_for_bash: false,
    },
    Row {
        name: "in a pipeline the whole group has it already",
        script: "echo x | RUN -- sh $JOB; echo NEXT",
        job: HANDLES,
        keys: "\x03",
        status: 130,
        is_for_bash: true,
    },
    Row {
        name: "so it has where stdin is /dev/null",
        script: "RUN -- sh $JOB </dev/null; echo NEXT",
        job: HANDLES,
        keys: "\x03",
        status: 130,
        is_for_bash: true,
    },
];

/// Returns shell code that writes the shell's pid into this file, atomically.
fn note(file: &Path) -> String {
    format!("echo $$ >{0}.new; mv {0}.new {0}", file.display())
}

fn play(shell: &str, row: &Row) {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let (job, noted) = (at("job"), at("pid"));
    let script = row.job.replace("NOTE", &note(&noted));
    std::fs::write(&job, script).expect("a script");
    let run = format!(
        "{} run -q --grace 5s --file {}",
        env!("CARGO_BIN_EXE_trafficcop"),
        at("lock").display()
    );
    let script = row
        .script
        .replace("RUN", &run)
        .replace("$JOB", &job.display().to_string());
    std::fs::write(at("script"), script).expect("a script");
    let mut session = Session::begin();
    session.presses(&format!("{shell} {}\n", at("script").display()));
    let _ = pid_in(&noted);
    session.presses(row.keys);
    // The shell may not have begun to wait.
    session.presses("\necho status-$?\n");
    session.sees("status-");
    session.sees("\n");
    let shown = &session.shown;
    let (_, status) = shown.rsplit_once("status-").expect("shown");
    let name = format!("{shell}, {}: {shown}", row.name);
    assert!(status.starts_with(&row.status.to_string()), "{name}");
    assert!(!shown.contains("NEXT"), "{name}");
}

fn has(shell: &str) -> bool {
    let found = Command::new(shell).args(["-c", ":"]).status().is_ok();
    if !found {
        println!("NOT TESTED on this machine: there is no {shell}");
    }
    found
}

#[test]
fn interrupts_end_the_script_around_trafficcop_as_around_a_plain_command() {
    for shell in ["bash", "dash"].into_iter().filter(|shell| has(shell)) {
        for row in ROWS.iter().filter(|row| row.is_for_bash || shell != "bash") {
            play(shell, row);
        }
    }
}

#[test]
fn command_that_ends_later_than_the_grace_after_an_interrupt_keeps_its_status() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let noted = at("pid");
    let job = IGNORES.replace("NOTE", &note(&noted));
    std::fs::write(at("job"), job).expect("a script");
    let mut session = Session::begin();
    session.presses(&format!(
        "{} run -q --grace 100ms --file {} -- sh {}\n",
        env!("CARGO_BIN_EXE_trafficcop"),
        at("lock").display(),
        at("job").display()
    ));
    let _ = pid_in(&noted);
    session.presses("\x03");
    session.presses("echo status-$?\n");
    session.sees("status-7");
}

#[test]
fn stop_of_the_terminal_stops_a_command_that_catches_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let noted = at("pid");
    let script = format!(
        "trap 'echo caught' TSTP; echo $$ >{0}.new; mv {0}.new {0}; while :; do sleep 0.05; done\n",
        noted.display()
    );
    std::fs::write(at("job"), script).expect("a script");
    let mut run = Command::new(env!("CARGO_BIN_EXE_trafficcop"));
    let mut run = run
        .args(["run", "-q", "--grace", "1s", "--file"])
        .arg(at("lock"))
        .args(["--", "bash"])
        .arg(at("job"))
        .spawn()
        .expect("it runs");
    let command = pid_in(&noted);
    let supervisor = nix::unistd::Pid::from_raw(i32::try_from(run.id()).expect("an id"));
    let send = |signal| nix::sys::signal::kill(supervisor, signal).expect("ours");
    send(nix::sys::signal::Signal::SIGTSTP);
    for pid in [command, supervisor.as_raw()] {
        crate::support::await_for(
            "it to be stopped",
            || (state(pid) == 'T').then_some(()),
            || format!("{pid} is {}", state(pid)),
        );
    }
    send(nix::sys::signal::Signal::SIGCONT);
    send(nix::sys::signal::Signal::SIGTERM);
    let _ = run.wait();
}

fn state(pid: i32) -> char {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(Path::new(&path)).unwrap_or_default();
    let (_, rest) = stat.rsplit_once(") ").unwrap_or_default();
    rest.chars().next().unwrap_or('X')
}
