//! From start to the command's first instruction, and the whole life of a tool round `/bin/true`,
//! on a lock that is free; `flock` is measured in the same round.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::instance::{Instance, Lock, flock, now, trafficcop_with};
use crate::numbers::Samples;
use crate::table::Figure;

const RUNS: usize = 40;
/// What is not counted: the page cache and the lock file get warm.
const WARM_UP: usize = 5;

/// The figures; `probe` is the command, `scene` a directory for the locks.
///
/// # Errors
/// What failed to run.
pub(crate) fn figures(scene: &Path, probe: &Path, peer: bool) -> Result<Vec<Figure>, String> {
    let log = scene.join("log");
    let (our_lock, its_lock) = (scene.join("start.lock"), scene.join("start.flock"));
    let ours = |words: &[&Path]| trafficcop_with(Lock::File(&our_lock), words);
    let its = |words: &[&Path]| flock(&its_lock, words);

    let mut first = [Samples::default(), Samples::default()];
    let mut whole = [Samples::default(), Samples::default()];
    let truth = Path::new("/bin/true");
    for round in 0..WARM_UP + RUNS {
        for turn in [round % 2, (round + 1) % 2] {
            if turn == 1 && !peer {
                continue;
            }
            let tool = |words: &[&Path]| if turn == 0 { ours(words) } else { its(words) };
            let to_command = to_command(tool(&[probe]), &log)?;
            let whole_life = whole_life(tool(&[truth]), &log)?;
            if round >= WARM_UP {
                first[turn].push(to_command);
                whole[turn].push(whole_life);
            }
        }
    }
    let [first, first_peer] = first;
    let [whole, whole_peer] = whole;
    let of_peer = |samples| peer.then_some(samples);
    Ok(vec![
        Figure::new(
            "free file: start to the command's first instruction",
            "ms",
            first,
        )
        .beside(of_peer(first_peer))
        .at_most_times(1.5),
        Figure::new(
            "free file: the whole of 'run --file F -- /bin/true'",
            "ms",
            whole,
        )
        .beside(of_peer(whole_peer))
        .at_most_times(3.0),
    ])
}

fn to_command(mut command: Command, log: &Path) -> Result<f64, String> {
    let begin = now();
    let mut instance = Instance::start(&mut command, log);
    let told = instance.told()?;
    instance.succeed()?;
    Ok(told - begin)
}

fn whole_life(mut command: Command, log: &Path) -> Result<f64, String> {
    let log = std::fs::File::options().append(true).open(log);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.map_err(|error| error.to_string())?);
    let begin = now();
    let status = command.status().map_err(|error| error.to_string())?;
    let end = now();
    if !status.success() {
        return Err(format!("{command:?} ended with {status}"));
    }
    Ok(end - begin)
}
