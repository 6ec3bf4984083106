//! Timeline of who held control when, from the event logs of many instances.
//!
//! ```text
//! files ─ read ─▶ records ─ clocks ─▶ one time axis ─ tenures ─▶ judge ─▶ Timeline ─▶ text | JSON | SVG
//! ```
//! All of it is pure, and the order of the logs does not matter.
//!
//! Times are nanoseconds since 1970 on one axis. Events of one machine are ordered by its boot's clock, which
//! never jumps; between machines only wall clocks can be compared. So each boot gets one distance to the wall
//! clock, the median of its records': setting a clock in between changes nothing.

mod judge;
pub mod record;
mod svg;
mod tenures;
mod text;

use std::collections::{BTreeMap, HashSet};

pub use judge::merge;
pub use record::{EventKind, Record};
pub use svg::svg;
pub use text::{FIELDS, json, text};

/// Records from event logs.
#[derive(Clone, Debug, Default)]
pub struct Log {
    records: Vec<Record>,
    /// Unreadable lines, as `NAME:LINE`.
    broken: Vec<String>,
}

impl Log {
    /// Returns whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// Parses texts, each with its name. A record in several of them counts once.
#[must_use]
pub fn read<'a>(texts: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Log {
    let mut log = Log::default();
    let mut seen = HashSet::new();
    for (name, text) in texts {
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let Some(record) = record(line) else {
                log.broken.push(format!("{name}:{}", number + 1));
                continue;
            };
            if seen.insert(record.clone()) {
                log.records.push(record);
            }
        }
    }
    log
}

fn record(line: &[u8]) -> Option<Record> {
    if let Ok(record) = serde_json::from_slice(line) {
        return Some(record);
    }
    // Half a line of a killed process, followed by a line of another.
    let begin = line.windows(5).rposition(|part| part == b"{\"v\":")?;
    serde_json::from_slice(&line[begin..])
        .ok()
        .filter(|_| begin > 0)
}

/// Moment on the common axis: nanoseconds since 1970.
type At = i64;

/// Everything that the logs say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    locks: Vec<Lock>,
    from: At,
    to: At,
    records: usize,
    notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lock {
    name: String,
    tracks: Vec<Track>,
    tenures: Vec<Tenure>,
    gaps: Vec<Gap>,
    overlaps: Vec<Overlap>,
}

/// One instance with all its runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Track {
    identity: String,
    host: String,
    runs: Vec<Run>,
    /// When it heard the holder's doorbell.
    rings: Vec<At>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    pid: u32,
    from: At,
    to: At,
    exit: Option<i32>,
    done: bool,
}

/// One stretch of control.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tenure {
    track: usize,
    pid: u32,
    /// The boot, and so the clock, of its times.
    boot: String,
    token: Option<u64>,
    from: At,
    /// End of the lease or of the command, whichever is known; the latest possible one if it was not seen.
    to: At,
    /// Last moment at which a process of it possibly lived: the tree's end, or the last record.
    lived: At,
    end: End,
    cause: Option<String>,
    deadline: Option<At>,
    drains: Vec<(At, At)>,
    doubts: Vec<(At, At)>,
    hangs: Vec<At>,
    /// Whether it reports a possible overlap itself.
    confessed: bool,
    violations: Vec<Violation>,
}

impl Tenure {
    fn is_unseen(&self) -> bool {
        !matches!(self.end, End::Released | End::Over)
    }
}

/// A rule that an instance broke. Spans are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Violation {
    /// The token is not greater than that of an earlier tenure.
    Token { earlier: u64 },
    /// The command's deadline is this much after the lease's end.
    Deadline { after: At },
    /// A process of its command lived this much longer than the lease.
    Outlived { by: At },
    /// The instance released the lease without reporting first that no process of its command lives.
    Released,
}

/// End of a tenure, and the evidence for one that is not in the logs: the instance was killed, its machine died,
/// or it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    Released,
    /// The lease was lost or left to expire; no process of the command lived after the end.
    Over,
    /// Not seen: the guardian ends the command at the deadline.
    Deadline,
    /// Not seen: the next tenure began, so no process of this one lived.
    Next,
    /// Not seen: a later record of the same process.
    Itself,
    /// Not seen, and no evidence: it may go on.
    #[default]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Gap {
    after: usize,
    from: At,
    to: At,
    /// Whether the end before it was not seen, so that it may have begun earlier.
    at_least: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Overlap {
    /// Numbers of the tenures, the earlier one first.
    of: (usize, usize),
    from: At,
    to: At,
    /// Whether it proves nothing: two machines, within the difference of their clocks.
    within_skew: bool,
}

// Two records of one boot that disagree by more were written before and after the clock was set.
const STEP: u64 = 250_000_000;

/// Machine of a boot, and each record's moment with its distance to the wall clock.
type Readings<'a> = (&'a str, Vec<(u64, i64)>);

fn boot(record: &Record) -> String {
    if record.boot_id.is_empty() {
        // At least the times of one process agree.
        return format!("{}/{}/{}", record.host, record.pid, record.run);
    }
    record.boot_id.clone()
}

/// Conversion from each boot's clock to the common axis.
#[derive(Debug, Default)]
struct Clocks {
    distances: BTreeMap<String, i64>,
}

impl Clocks {
    /// Reads all records, and reports which clocks were set.
    fn of(records: &[Record]) -> (Clocks, Vec<String>) {
        let mut readings: BTreeMap<String, Readings<'_>> = BTreeMap::new();
        for record in records {
            let Some(wall) = record::read(&record.time) else {
                continue;
            };
            // Saturating: a log may have any number.
            let distance = wall.saturating_sub(signed(record.boottime_ns));
            let of_boot = readings.entry(boot(record));
            let (_, all) = of_boot.or_insert((&record.host, Vec::new()));
            all.push((record.boottime_ns, distance));
        }
        let mut clocks = Clocks::default();
        let mut notes = Vec::new();
        for (boot, (host, mut all)) in readings {
            // Steps are between neighbours on the boot's clock.
            all.sort_unstable();
            let steps: Vec<i64> = all
                .windows(2)
                .filter(|pair| pair[1].1.abs_diff(pair[0].1) > STEP)
                .map(|pair| pair[1].1.saturating_sub(pair[0].1))
                .collect();
            // Readers compare these times with other logs.
            if let Some(most) = steps.iter().max_by_key(|step| step.unsigned_abs()) {
                notes.push(format!(
                    "{host}: its wall clock was set {}, by {}{:+.3} s; its records are ordered by its boot's clock",
                    count(steps.len(), "time"),
                    if steps.len() > 1 { "as much as " } else { "" },
                    *most as f64 / 1e9,
                ));
            }
            let mut distances: Vec<i64> = all.iter().map(|(_, distance)| *distance).collect();
            distances.sort_unstable();
            // A clock that was off for a minute would move the mean.
            let median = distances[distances.len() / 2];
            clocks.distances.insert(boot, median);
        }
        (clocks, notes)
    }

    fn at(&self, boot: &str, boottime_ns: u64) -> At {
        let distance = self.distances.get(boot).copied().unwrap_or(0);
        signed(boottime_ns).saturating_add(distance).max(0)
    }
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
