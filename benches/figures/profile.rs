//! Where the time of a start goes: its phases, told apart by the system calls at their borders, and
//! how many calls there are until the command.
//!
//! `strace` stops the process at those calls alone (a filter of the kernel's lets all others pass),
//! which costs some 0.05 ms each, and more where a process is forked, because it attaches to that one
//! first. So the phases are for comparison with each other and with another binary (`FIGURES_OF`), and
//! those that wait for the guardian are overstated; what a start takes is measured by [`super::start`].

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::instance::{Lock, trafficcop_with};
use crate::numbers::Samples;
use crate::programs;
use crate::table::Figure;

const RUNS: usize = 40;

/// The calls at which `strace` stops us.
const STOPS: &str = "trace=execve,munmap,uname,mkdir,clone,clone3,epoll_create1,fdatasync,sendmsg";

/// A phase, and the call whose beginning ends it: by the supervisor itself, or by another of ours.
const PHASES: [(&str, By, &str); 7] = [
    // The loader unmaps what it found the libraries by, and that is its last call.
    ("exec, the loader, the libraries", By::Us, "munmap"),
    (
        "what comes before main, defining and reading the arguments",
        By::Us,
        "uname",
    ),
    (
        "the plan, the lock file, the place for a cgroup",
        By::Us,
        "mkdir",
    ),
    (
        "making the cgroup, until the guardian's fork",
        By::Us,
        "clone",
    ),
    (
        "the guardian's fork, the cgroup's trial",
        By::Us,
        "epoll_create1",
    ),
    (
        "hearing signals, the lock, until the token is written",
        // By a thread, once.
        By::Any,
        "fdatasync",
    ),
    (
        "the token on the disk, the order to the guardian",
        By::Us,
        "sendmsg",
    ),
];
/// The last one ends with the command's own exec, by a child of the guardian's.
const LAST: (&str, By, &str) = (
    "the guardian hears of it, forks, lets go",
    By::Another,
    "execve",
);

#[derive(Clone, Copy, PartialEq)]
enum By {
    Us,
    Another,
    Any,
}

/// A call: when it began in ms, by whom, which.
struct Call {
    at: f64,
    by: By,
    name: String,
}

/// The figures; `probe` is the command, `scene` a directory for the lock.
///
/// # Errors
/// No `strace` here, or a phase that is not to be seen (no cgroup is to be had, say).
pub(crate) fn figures(scene: &Path, probe: &Path) -> Result<Vec<Figure>, String> {
    if programs::version("strace").is_none() {
        return Err("strace is not installed here".to_owned());
    }
    let lock = scene.join("profile.lock");
    let mut spans: [Samples; PHASES.len() + 1] = Default::default();
    for _ in 0..RUNS {
        let calls = traced(scene, &lock, probe, &["--seccomp-bpf", "-e", STOPS])?;
        let mut rest = calls.iter();
        let mut from = rest.next().ok_or("strace saw nothing")?.at;
        for ((what, by, name), spans) in PHASES.iter().chain([&LAST]).zip(&mut spans) {
            let end = rest.find(|call| (*by == By::Any || call.by == *by) && call.name == *name);
            let end = end.ok_or_else(|| format!("the end of '{what}' ({name}) was not seen"))?;
            spans.push(end.at - from);
            from = end.at;
        }
    }
    let mut counts = Samples::default();
    let calls = traced(scene, &lock, probe, &[])?;
    let command = |call: &Call| call.by == By::Another && call.name == "execve";
    let count = calls.iter().take_while(|call| !command(call)).count();
    counts.push(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
    let phases = PHASES.iter().chain([&LAST]).zip(spans);
    let mut figures: Vec<Figure> = phases
        .map(|((what, ..), spans)| Figure::new(format!("of a start: {what}"), "ms", spans))
        .collect();
    figures.push(Figure::new(
        "system calls until the command's exec, of all of us",
        "",
        counts,
    ));
    Ok(figures)
}

/// What strace saw of one run, in the order of time.
fn traced(scene: &Path, lock: &Path, probe: &Path, how: &[&str]) -> Result<Vec<Call>, String> {
    let output: PathBuf = scene.join("profile.trace");
    let run = trafficcop_with(Lock::File(lock), &[probe]);
    let mut strace = Command::new("strace");
    strace.args(["-f", "-ttt", "-o"]).arg(&output).args(how);
    strace.arg("--").arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    let strace = strace.stdin(Stdio::null()).stdout(Stdio::null());
    let status = strace.stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("strace ended with {status}: it may not trace here")),
        Err(error) => return Err(format!("strace: {error}")),
    }
    let text = std::fs::read_to_string(&output).map_err(|error| error.to_string())?;
    let us = text.split(' ').next().unwrap_or_default().to_owned();
    Ok(text.lines().filter_map(|line| call(line, &us)).collect())
}

/// `1234 1700000000.123456 name(...) = 0`; what goes on or ends is no call.
fn call(line: &str, us: &str) -> Option<Call> {
    let mut words = line.split_ascii_whitespace();
    let by = if words.next()? == us {
        By::Us
    } else {
        By::Another
    };
    let at = words.next()?.parse::<f64>().ok()? * 1e3;
    let (name, _) = words.next()?.split_once('(')?;
    let name = name.to_owned();
    Some(Call { at, by, name })
}
