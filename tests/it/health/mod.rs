//! `trafficcop run --watchdog` and `--health`: a command that hangs loses control, and one that
//! works keeps it.

#[cfg(any(feature = "entra", feature = "service-bus"))]
mod https;
mod probes;
mod urls;
mod watchdog;

use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::await_for;
use crate::support::instance::Instance;
use crate::support::journal::{Line, What};
use crate::support::programs;
use crate::support::scene::Scene;

/// Time for another instance to take over, and for the rest of a test.
const COOL: [&str; 2] = ["--cooldown", "1h"];

/// Checks that shall take too long.
const QUICK: [&str; 4] = ["--health-every", "1s", "--health-timeout", "1s"];
/// Checks that shall succeed: a process may start more than a second late on a busy machine.
const PATIENT: [&str; 4] = ["--health-every", "5s", "--health-timeout", "5s"];
const TWO_FAIL: [&str; 2] = ["--health-failures", "2"];

const TOO_LONG: &str = "took too long";

/// Returns the pace of checks that shall fail for this reason.
fn pace(why: &str) -> [&'static str; 4] {
    if why == TOO_LONG { QUICK } else { PATIENT }
}

fn events(scene: &Scene) -> String {
    scene.path("events").display().to_string()
}

fn timeline(scene: &Scene) -> (String, String) {
    let picture = scene.path("control.svg");
    let output = Command::new(programs::trafficcop())
        .args(["timeline", "--svg"])
        .arg(&picture)
        .arg(events(scene))
        .output()
        .expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let picture = std::fs::read_to_string(picture).expect("a picture");
    (text, picture)
}

fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("it is there and ours");
}

/// Waits for the first beat in another process.
fn await_next(scene: &Scene, tag: &str, after: i32) -> Line {
    scene
        .journal
        .await_line(&format!("another process of {tag}"), |line| {
            line.what == What::Beat && line.tag == tag && line.pid != after
        })
}

fn stop(instance: &mut Instance) {
    instance.signal(Signal::SIGTERM);
    instance.wait();
}

fn await_lines(path: &Path, count: usize) {
    let text = || std::fs::read_to_string(path).unwrap_or_default();
    await_for(
        &format!("{count} lines in {}", path.display()),
        || (text().lines().count() >= count).then_some(()),
        text,
    );
}
