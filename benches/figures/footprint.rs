//! What an instance costs that does nothing but be there: memory, wake-ups, the size on disk.

use std::path::Path;
use std::time::Duration;

use crate::handover::is_waited_for;
use crate::instance::{Instance, Lock, await_for, guardian, trafficcop_with};
use crate::numbers::Samples;
use crate::programs;
use crate::table::Figure;

const RUNS: usize = 20;
/// For how long an idle instance is watched.
const WATCH: Duration = Duration::from_secs(10);
const MB: f64 = 1e6;

/// The binary as it is installed.
///
/// # Errors
/// Where it cannot be looked at.
pub(crate) fn size() -> Result<Vec<Figure>, String> {
    let found = std::fs::metadata(programs::trafficcop()).map_err(|error| error.to_string())?;
    let mut samples = Samples::default();
    samples.push(found.len() as f64 / MB);
    Ok(vec![
        Figure::new("size of the stripped binary", "MB", samples).at_most(6.0),
    ])
}

/// Memory of a holder on a file and, where there is a service, on a blob.
///
/// # Errors
/// What failed to run.
pub(crate) fn memory(
    scene: &Path,
    probe: &Path,
    connection: Option<&str>,
) -> Result<Vec<Figure>, String> {
    let file = scene.join("memory.lock");
    let pss = |lock: &dyn Fn(usize) -> Result<f64, String>| {
        let mut samples = Samples::default();
        for round in 0..RUNS {
            samples.push(lock(round)?);
        }
        Ok::<_, String>(samples)
    };
    let one = |lock: Lock<'_>| {
        let mut command = trafficcop_with(lock, &[probe, Path::new("hold")]);
        let mut holder = Instance::start(&mut command, &scene.join("log"));
        holder.told()?;
        // The command runs; what the supervisor still writes down about that is waited for.
        await_quiet(holder.pid())?;
        let sum = pss_of(holder.pid())? + pss_of(guardian(holder.pid())?)?;
        holder.succeed()?;
        Ok::<_, String>(sum)
    };
    let on_file = pss(&|_| one(Lock::File(&file)))?;
    let what = "PSS of supervisor and guardian, command asleep: file";
    let mut figures = vec![Figure::new(what, "MB", on_file).at_most(8.0)];
    if let Some(connection) = connection {
        let on_blob =
            pss(&|round| one(Lock::Blob(&format!("figures/memory-{round}"), connection)))?;
        let what = "PSS of supervisor and guardian, command asleep: blob";
        figures.push(Figure::new(what, "MB", on_blob).at_most(12.0));
    }
    Ok(figures)
}

/// Context switches of an idle holder and an idle standby on a file, guardians included.
///
/// # Errors
/// What failed to run.
pub(crate) fn wake_ups(scene: &Path, probe: &Path) -> Result<Vec<Figure>, String> {
    let lock = scene.join("idle.lock");
    let words = [probe, Path::new("hold")];
    let start = || {
        Instance::start(
            &mut trafficcop_with(Lock::File(&lock), &words),
            &scene.join("log"),
        )
    };
    let mut holder = start();
    holder.told()?;
    let mut standby = start();
    await_for("a waiter", || is_waited_for(&lock).then_some(()))?;
    let mut watched = Vec::new();
    for instance in [&holder, &standby] {
        await_quiet(instance.pid())?;
        watched.push((instance.pid(), guardian(instance.pid())?));
    }
    let switches = || -> Result<Vec<f64>, String> {
        let both = |(one, other): &(i32, i32)| Ok(switches(*one)? + switches(*other)?);
        watched.iter().map(both).collect()
    };
    let before = switches()?;
    std::thread::sleep(WATCH);
    let after = switches()?;
    holder.let_go();
    standby.told()?;
    holder.succeed()?;
    standby.succeed()?;
    let who = ["holder", "standby"];
    let figures = before
        .iter()
        .zip(after)
        .zip(who)
        .map(|((before, after), who)| {
            let mut samples = Samples::default();
            samples.push(after - before);
            Figure::new(
                format!("file: wake-ups of an idle {who} in 10 s"),
                "",
                samples,
            )
        });
    // A holder's supervisor feels its guardian's pulse four times a second: that is its price, and
    // no target of anybody's.
    let mut figures: Vec<Figure> = figures.collect();
    let standby = figures.pop().ok_or("nobody was watched")?;
    figures.push(standby.at_most(0.0));
    Ok(figures)
}

/// Waits until all threads of a process sleep, twice in a row.
fn await_quiet(pid: i32) -> Result<(), String> {
    let mut last = None;
    await_for("an instance to come to rest", || {
        let seen = switches(pid).ok();
        let rested = seen.is_some() && seen == last;
        last = seen;
        std::thread::sleep(Duration::from_millis(20));
        rested.then_some(())
    })
}

/// The proportional set size in MB: shared pages count by their share.
pub(crate) fn pss_of(pid: i32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok())
        .map(|kib| kib * 1024.0 / MB)
        .ok_or_else(|| format!("{path} has no line \"Pss:\""))
}

/// How often the threads of a process have been switched to or from.
fn switches(pid: i32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/task");
    let failed = |error: std::io::Error| format!("{path}: {error}");
    let mut sum = 0.0;
    for task in std::fs::read_dir(&path).map_err(failed)? {
        let status = task.map_err(failed)?.path().join("status");
        // A thread that has ended meanwhile switches no more.
        let text = std::fs::read_to_string(status).unwrap_or_default();
        for line in text.lines().filter(|line| line.contains("ctxt_switches:")) {
            let count = line.rsplit(':').next().unwrap_or_default();
            sum += count
                .trim()
                .parse::<f64>()
                .map_err(|error| error.to_string())?;
        }
    }
    Ok(sum)
}
