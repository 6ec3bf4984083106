//! What a tool makes of a failure: when the next one's command starts, and for how long both ran.
//!
//! Each scenario is played once or a few times with a holder and a standby, each with a command that
//! holds a FIFO open: its first byte says that the command runs, its end that the last process of it
//! is gone, and both are the kernel's word. Leases are of 15 seconds where they can be.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use super::cost::{is_command, tree_of};
use super::{Cell, short};
use crate::instance::{Instance, now};
use crate::numbers::Samples;
use crate::rows::ROWS;
use crate::tools::{Tool, World};
use crate::wire::Wire;

/// For how long is watched what comes of it, in ms.
const WINDOW: f64 = 60_000.0;
/// How long a start may take on a machine that is busy, in ms.
const PATIENCE: f64 = 60_000.0;
const CRASHES: usize = 3;

/// What happens to the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    StoreHangs,
    Stopped,
    KilledWithDaemon,
}

/// What came of it, in seconds; nothing where it did not come within the window.
struct Outcome {
    next: Option<f64>,
    overlap: f64,
    /// It went on to the end of the window.
    open: bool,
}

/// All scenarios that have a meaning for this tool.
pub(super) fn all(world: &World<'_>, tool: &Tool) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut add = |fault, runs, next: Option<usize>, both: usize| {
        let outcomes: Result<Vec<Outcome>, String> =
            (0..runs).map(|run| play(world, tool, fault, run)).collect();
        let row = next.unwrap_or(both);
        match outcomes {
            Ok(outcomes) => {
                if let Some(next) = next {
                    cells.push((ROWS[next], Ok(said_of_next(&outcomes))));
                }
                cells.push((ROWS[both], Ok(said_of_overlap(&outcomes))));
            }
            Err(why) => cells.push((ROWS[row], Err(why))),
        }
    };
    add(Fault::Killed, CRASHES, Some(10), 11);
    if tool.store().is_some() {
        add(Fault::StoreHangs, 1, Some(12), 13);
    }
    add(Fault::Stopped, 1, Some(14), 15);
    add(Fault::KilledWithDaemon, 1, None, 16);
    cells
}

fn said_of_next(outcomes: &[Outcome]) -> String {
    let mut samples = Samples::default();
    for outcome in outcomes {
        match outcome.next {
            Some(next) => samples.push(next),
            None => return format!("not in {:.0}", WINDOW / 1e3),
        }
    }
    short(samples.p50())
}

fn said_of_overlap(outcomes: &[Outcome]) -> String {
    let longest = outcomes
        .iter()
        .map(|outcome| outcome.overlap)
        .fold(0.0, f64::max);
    let open = outcomes.iter().any(|outcome| outcome.open);
    match (longest > 0.0, open) {
        (false, _) => "0".to_owned(),
        (true, true) => format!("**{}, and on**", short(longest)),
        (true, false) => format!("**{}**", short(longest)),
    }
}

/// A command's FIFO.
struct Sign {
    file: File,
    began: Option<f64>,
    ended: Option<f64>,
}

impl Sign {
    fn at(path: &std::path::Path) -> Result<Sign, String> {
        nix::unistd::mkfifo(path, Mode::S_IRWXU).map_err(|errno| errno.to_string())?;
        let file = File::options()
            .read(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(path);
        Ok(Sign {
            file: file.map_err(|error| error.to_string())?,
            began: None,
            ended: None,
        })
    }

    /// Reads what there is.
    fn look(&mut self) {
        let mut bytes = [0; 16];
        match self.file.read(&mut bytes) {
            Ok(0) if self.began.is_some() => {
                self.ended.get_or_insert_with(now);
            }
            Ok(1..) => {
                self.began.get_or_insert_with(now);
            }
            // Nobody has opened it yet, or nothing is new.
            _ => {}
        }
    }
}

/// Until something may be new, for 20 ms at most.
fn nap(signs: &[&Sign]) {
    let mut asked: Vec<PollFd<'_>> = signs
        .iter()
        .filter(|sign| sign.ended.is_none())
        .map(|sign| PollFd::new(sign.file.as_fd(), PollFlags::POLLIN))
        .collect();
    if asked.is_empty() || poll(&mut asked, 20_u8).is_ok_and(|ready| ready > 0) {
        // The end of a FIFO that nobody has opened is news every time.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn play(world: &World<'_>, tool: &Tool, fault: Fault, run: usize) -> Result<Outcome, String> {
    let lock = format!("beside-{fault:?}-{run}").to_lowercase();
    let place = |what: &str| world.scene.join(format!("{}-{lock}-{what}", tool.name));
    let fifos = [place("old"), place("new")];
    let mut old = Sign::at(&fifos[0])?;
    let mut new = Sign::at(&fifos[1])?;
    let log = place("log");
    let mode = if fault == Fault::KilledWithDaemon {
        "tree"
    } else {
        "mark"
    };
    let wire = match (fault, tool.store()) {
        (Fault::StoreHangs, Some(port)) => Some(Wire::to(port)?),
        _ => None,
    };
    let start = |fifo: &std::path::Path, mode: &str, wire: Option<&Wire>| {
        let words = [world.probe.as_os_str(), OsStr::new(mode), fifo.as_os_str()];
        Instance::start(&mut tool.command(world, &lock, true, wire, &words), &log)
    };
    let holder = start(&fifos[0], mode, wire.as_ref());
    let begin = now();
    while old.began.is_none() {
        old.look();
        if now() - begin > PATIENCE {
            return Err("the holder's command did not start".to_owned());
        }
        nap(&[&old]);
    }
    let standby = start(&fifos[1], "mark", None);
    tool.await_standby(world, &lock, &log)?;
    // The whole of a tree is there, and a lease is neither fresh nor about to be renewed.
    std::thread::sleep(std::time::Duration::from_secs(2));
    old.look();
    let commands = tree_of(holder.pid());
    let fell = now();
    match fault {
        Fault::Killed | Fault::KilledWithDaemon => holder.kill(),
        Fault::StoreHangs => {
            if let Some(wire) = &wire {
                wire.hang();
            }
        }
        Fault::Stopped => {
            let _ = kill(Pid::from_raw(holder.pid()), Signal::SIGSTOP);
        }
    }
    while now() - fell < WINDOW && (new.began.is_none() || old.ended.is_none()) {
        nap(&[&old, &new]);
        old.look();
        new.look();
    }
    let over = now();
    let overlap = new
        .began
        .map_or(0.0, |began| old.ended.unwrap_or(over) - began);
    let outcome = Outcome {
        next: new.began.map(|began| (began - fell) / 1e3),
        overlap: overlap.max(0.0) / 1e3,
        open: new.began.is_some() && old.ended.is_none(),
    };
    clear(world, [holder, standby], &commands);
    Ok(outcome)
}

/// Ends whatever is left, each by its own id: the tree may have lost its parents.
fn clear(world: &World<'_>, instances: [Instance; 2], known: &[i32]) {
    let mut left: Vec<i32> = known.to_vec();
    for instance in &instances {
        left.extend(tree_of(instance.pid()));
    }
    for instance in &instances {
        instance.kill();
    }
    drop(instances);
    for pid in left.into_iter().filter(|pid| is_command(*pid, world.probe)) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
