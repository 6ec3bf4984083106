//! Locks on shared drives: the store, and instances on a drive that hangs, fails, and shows old
//! views.

mod doorbell;
mod drive;

mod answers;
mod cron;
mod features;
mod file_systems;
mod hanging;
mod makers;
mod store;
mod stuck_check;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use crate::support::instance::{Ended, Instance, Run};
use crate::support::journal::{Line, What};
use crate::support::scene::Scene;
use drive::Drive;
use nix::sys::signal::Signal;
use trafficcop::Instant;

const TERM: Ended = Ended::Died(Signal::SIGTERM);
const KILL: Ended = Ended::Died(Signal::SIGKILL);

/// The lease of most instances here: renewed every 4 s, a drain in doubt after 9 s, killed after 11
/// s.
const LEASE: Duration = Duration::from_secs(12);
/// The interval of a standby's looks, plus half a second for a busy machine.
const POLL: Duration = Duration::from_millis(1500);

/// Returns by when a holder that renewed last at this moment has a successor, on a busy machine,
/// too: that takes a minute if the lease is unknown.
fn followed_by(renewed: Instant) -> u64 {
    (renewed + LEASE * 3 / 2).as_nanos()
}

fn run<'a>(scene: &'a Scene, lock: &Path, name: &str, options: &[&str]) -> Run<'a> {
    scene
        .run()
        .env("XDG_RUNTIME_DIR", scene.directory())
        .arg("--file")
        .arg(lock)
        .args(["--identity", name, "--lease", "12s", "--poll", "1s"])
        .args(options)
}

/// Starts an instance whose command writes into the journal until the file `NAME.done` appears.
fn instance(
    scene: &Scene,
    lock: &Path,
    name: &str,
    options: &[&str],
    command: &[&str],
) -> Instance {
    let done = scene.path(&format!("{name}.done"));
    let mut words = vec!["--every", "50", "--until", done.to_str().unwrap()];
    words.extend(command);
    run(scene, lock, name, options)
        .journalist(name, &words)
        .start()
}

fn let_end(scene: &Scene, name: &str) {
    File::create(scene.path(&format!("{name}.done"))).unwrap();
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap()
}

/// Waits until this command has lived for this long after this moment, without a stop signal.
fn await_life(scene: &Scene, tag: &str, since: Instant, span: Duration) {
    let until = since.as_nanos() + nanos(span);
    let what = format!("that {tag} lives {span:?} later");
    let last = scene.journal.await_line(&what, |line| {
        line.tag == tag && (line.at > until || line.what == What::Term)
    });
    assert_ne!(last.what, What::Term, "stopped\n{}", scene.journal);
}

/// Kills both processes of an instance, as the death of its machine does.
fn kill_both(mut one: Instance) {
    let guardian = one.guardian();
    // Frozen first, or it would end by itself when its guardian is dead.
    one.freeze();
    for pid in [guardian, one.pid()] {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
    }
    assert_eq!(one.wait(), KILL);
}

/// Asks it to end, and checks that it does; returns its log.
fn terminate(mut one: Instance) -> String {
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    one.stderr()
}

fn last_before(scene: &Scene, tag: &str, at: u64) -> Line {
    let lines = scene.journal.lines().into_iter();
    let of_it = |line: &Line| line.command() == tag && line.at < at;
    lines.rev().find(of_it).expect("a line")
}

fn assert_not_stopped(scene: &Scene, tag: &str) {
    let lines = scene.journal.lines();
    let asked = |line: &&Line| line.command() == tag && line.what == What::Term;
    assert!(lines.iter().find(asked).is_none(), "{}", scene.journal);
}

const DEAF: [&str; 5] = ["--term", "ignore", "--daemon", "--children", "2"];
/// Records TERM and continues.
const HEARS: [&str; 2] = ["--term", "60000:9"];
