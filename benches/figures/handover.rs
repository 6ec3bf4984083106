//! From the last instruction of the first one's command to the first instruction of the next one's.
//!
//! On a file the kernel wakes the waiter; on a blob the standby polls, and what is measured is
//! above all how long it is to the next poll.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::instance::{Instance, Lock, await_for, flock, now, trafficcop, trafficcop_with};
use crate::numbers::Samples;
use crate::table::Figure;

const FILE_RUNS: usize = 30;
const BLOB_RUNS: usize = 20;
/// Half of the default `--poll`, the median of many hand-overs, and two standard errors of the median of twenty.
const POLL: f64 = 1000.0 + 2.0 * 213.0;

/// A waiter on the same file.
///
/// # Errors
/// What failed to run.
pub(crate) fn on_file(scene: &Path, probe: &Path, peer: bool) -> Result<Vec<Figure>, String> {
    let (our_lock, its_lock) = (scene.join("hand.lock"), scene.join("hand.flock"));
    let words = [probe, Path::new("beat")];
    let mut samples = [Samples::default(), Samples::default()];
    for round in 0..FILE_RUNS {
        for turn in [round % 2, (round + 1) % 2] {
            let (lock, tool): (_, &dyn Fn() -> Command) = match turn {
                0 => (&our_lock, &|| {
                    trafficcop_with(Lock::File(&our_lock), &words)
                }),
                _ if !peer => continue,
                _ => (&its_lock, &|| flock(&its_lock, &words)),
            };
            let waits = || await_for("a waiter", || is_waited_for(lock).then_some(()));
            samples[turn].push(hand_over(
                &tool,
                &scene.join("log"),
                &scene.join("log"),
                waits,
                End::Exit,
            )?);
        }
    }
    let [ours, its] = samples;
    Ok(vec![
        Figure::new(
            "file: end of the command to start of the waiter's",
            "ms",
            ours,
        )
        .beside(peer.then_some(its))
        .at_most(5.0),
    ])
}

/// A standby on the same blob, with the default poll, and with the doorbell.
///
/// # Errors
/// What failed to run, or that two commands ran at once.
pub(crate) fn on_blob(scene: &Path, probe: &Path, connection: &str) -> Result<Vec<Figure>, String> {
    let measure = |options: &[&str], heard: &str, end: End| {
        let mut samples = Samples::default();
        for round in 0..BLOB_RUNS {
            let name = format!("figures/hand-over-{end:?}-{}-{round}", options.len());
            let name = name.to_lowercase();
            // One for each, or what another standby said would be taken for this one's word.
            let log = scene.join(name.replace('/', "-"));
            let tool = || {
                let mut command = trafficcop(Lock::Blob(&name, connection));
                command.args(["--poll", "2s"]).args(options);
                command.arg("--").arg(probe).arg("beat");
                command
            };
            let waits = || {
                await_for("a standby", || {
                    let said = std::fs::read_to_string(&log).unwrap_or_default();
                    said.contains(heard).then_some(())
                })
            };
            samples.push(hand_over(&tool, &scene.join("log"), &log, waits, end)?);
        }
        Ok::<Samples, String>(samples)
    };
    const BELL: &[&str] = &["--doorbell", "-v"];
    let mut figures = Vec::new();
    for (end, from, most) in [
        (End::Exit, "end of the command", 25.0),
        (End::Term, "SIGTERM to the supervisor", 50.0),
        (End::Kill, "SIGKILL of the supervisor", 200.0),
    ] {
        let what = format!("{from} to start of the standby's");
        let polls = measure(&[], "standing by", end)?;
        let hears = measure(BELL, "hears the holder's doorbell", end)?;
        figures.extend([
            Figure::new(format!("blob: {what} (poll 2 s)"), "ms", polls).at_most(POLL),
            Figure::new(format!("blob, doorbell: {what}"), "ms", hears).at_most(most),
        ]);
    }
    Ok(figures)
}

/// How the first one ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Its command ends by itself.
    Exit,
    /// Its supervisor is asked to end, and ends its command.
    Term,
    /// Its supervisor is killed, and its tree by the guardian.
    Kill,
}

/// From that to the first instruction of the next command, in ms.
fn hand_over(
    tool: &dyn Fn() -> Command,
    log: &Path,
    standby_log: &Path,
    waits: impl FnOnce() -> Result<(), String>,
    end: End,
) -> Result<f64, String> {
    let mut first = Instance::start(&mut tool(), log);
    first.told()?;
    let mut second = Instance::start(&mut tool(), standby_log);
    waits()?;
    let asked = now();
    match end {
        End::Exit => first.let_go(),
        End::Term => first.ask_to_end(),
        End::Kill => first.kill(),
    }
    let began = second.told()?;
    let lived = first.told_last()?;
    if began <= lived {
        return Err(format!(
            "two commands ran at once for {:.3} ms",
            lived - began
        ));
    }
    second.let_go();
    second.told_last()?;
    second.succeed()?;
    let from = match end {
        End::Exit => {
            first.succeed()?;
            lived
        }
        End::Term | End::Kill => asked,
    };
    Ok(began - from)
}

/// Whether the kernel has somebody wait for a lock on this file.
pub(crate) fn is_waited_for(path: &Path) -> bool {
    let Ok(found) = std::fs::metadata(path) else {
        return false;
    };
    let inode = format!(":{}", found.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        words.nth(1) == Some("->") && words.any(|word| word.ends_with(&inode))
    })
}
