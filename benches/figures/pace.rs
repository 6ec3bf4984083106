//! How many milliseconds a message takes, by when each was done with: of a worker by its event log, and
//! of whatever else notes the moments.

use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `/bin/true` on so many messages, by this worker without a command yet, which writes its events
/// to `log`; its pace.
///
/// # Errors
/// What failed to run, or that not every message was completed.
pub(crate) fn of_worker(
    mut worker: Command,
    log: &Path,
    slots: usize,
    count: usize,
) -> Result<f64, String> {
    worker.arg("--event-log").arg(log);
    worker.args(["--max-messages", &count.to_string(), "--", "/bin/true"]);
    let status = worker.stdin(Stdio::null()).status();
    let status = status.map_err(|why| why.to_string())?;
    if !status.success() {
        return Err(format!("work ended with {status}"));
    }
    let text = std::fs::read_to_string(log).map_err(|why| why.to_string())?;
    let done: Vec<f64> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|line| line["event"] == "message" && line["outcome"] == "completed")
        .filter_map(|line| line["boottime_ns"].as_f64())
        .map(|nanos| nanos / 1e6)
        .collect();
    if done.len() != count {
        return Err(format!("{} of {count} messages were completed", done.len()));
    }
    Ok(of(&done, slots))
}

/// Milliseconds a message, from when the first was done with to the last: those that were begun together
/// with the first are not counted.
pub(crate) fn of(done: &[f64], slots: usize) -> f64 {
    (done[done.len() - 1] - done[0]) / (done.len() - slots) as f64
}
