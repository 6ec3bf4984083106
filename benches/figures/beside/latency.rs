//! How long a command waits for its tool: at the start, and after another's command has ended.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::stat::Mode;

use super::{Table, cell};
use crate::instance::{Instance, now};
use crate::numbers::Samples;
use crate::rows::ROWS;
use crate::tools::{Tool, World};

const STARTS: usize = 40;
/// Not counted: caches get warm, the lock is made.
const WARM_UP: usize = 3;
const HAND_OVERS: usize = 12;

/// From the tool's start to the command's first instruction, on a free lock; all tools in turn. A tool
/// that fails once takes no further part.
///
/// # Errors
/// Which failed, and how.
pub(super) fn starts(world: &World<'_>, tools: &[Tool], table: &mut Table) -> Result<(), String> {
    let mut failed: Vec<Option<String>> = vec![None; tools.len()];
    let log = world.scene.join("beside.log");
    let mut samples = vec![Samples::default(); tools.len()];
    for round in 0..WARM_UP + STARTS {
        for turn in 0..tools.len() {
            let at = (round + turn) % tools.len();
            if failed[at].is_some() {
                continue;
            }
            match start(world, &tools[at], &log) {
                Ok(span) if round >= WARM_UP => samples[at].push(span),
                Ok(_) => {}
                Err(why) => {
                    failed[at] = Some(format!("{}: {why}", tools[at].name));
                    samples[at] = Samples::default();
                }
            }
        }
    }
    let flock = tools.iter().position(|tool| tool.name == "flock");
    for (tool, found) in tools.iter().zip(&samples) {
        table.set(ROWS[0], tool.name, cell(found));
        if let Some(flock) = flock
            && found.len() == STARTS
            && samples[flock].len() == STARTS
        {
            let ratio = found.per_run(&samples[flock]);
            table.set(ROWS[1], tool.name, format!("{:.2}", ratio.p50()));
        }
    }
    let failed: Vec<String> = failed.into_iter().flatten().collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed.join("; "))
    }
}

fn start(world: &World<'_>, tool: &Tool, log: &Path) -> Result<f64, String> {
    let words = [world.probe.as_os_str()];
    let mut command = tool.command(world, "beside-start", false, None, &words);
    let begin = now();
    let mut instance = Instance::start(&mut command, log);
    let told = instance.told()?;
    instance.succeed()?;
    Ok(told - begin)
}

/// From the last instruction of one's command to the first of the next one's, which was waiting.
///
/// # Errors
/// What failed to run.
pub(super) fn hand_over(world: &World<'_>, tool: &Tool) -> Result<Samples, String> {
    let mut samples = Samples::default();
    for round in 0..HAND_OVERS {
        let lock = format!("beside-hand-{round}");
        let place = |what: &str| world.scene.join(format!("{}-{lock}-{what}", tool.name));
        let gates = [place("gate-1"), place("gate-2")];
        let log = place("log");
        let start = |gate: &PathBuf| {
            nix::unistd::mkfifo(gate, Mode::S_IRWXU).map_err(|errno| errno.to_string())?;
            let words = [
                world.probe.as_os_str(),
                OsStr::new("until"),
                gate.as_os_str(),
            ];
            let mut command = tool.command(world, &lock, false, None, &words);
            Ok::<_, String>(Instance::start(&mut command, &log))
        };
        let open = |gate: &PathBuf| {
            let opened = std::fs::File::options().write(true).open(gate);
            opened.map(drop).map_err(|error| error.to_string())
        };
        let mut first = start(&gates[0])?;
        first.told()?;
        let mut second = start(&gates[1])?;
        tool.await_standby(world, &lock, &log)?;
        // At any moment between two looks of it.
        std::thread::sleep(tool.poll().mul_f64(fastrand::f64()) + Duration::from_millis(50));
        open(&gates[0])?;
        let ended = first.told()?;
        let began = second.told()?;
        open(&gates[1])?;
        second.told()?;
        first.succeed()?;
        second.succeed()?;
        samples.push(began - ended);
    }
    Ok(samples)
}
