//! Who held control when, from the event logs of many instances.
//!
//! ```text
//! files ─ read ─▶ records ─ clocks ─▶ one time axis ─ tenures ─▶ judge ─▶ Timeline ─▶ text | JSON | SVG
//! ```
//! All of it is pure: texts go in, a picture of them comes out, in whatever order they came.
//! It asks no clock, no store and no process, so it says the same of the same logs for ever.
//!
//! Times are nanoseconds since 1970 on one axis out of many clocks. What happened on one machine is
//! ordered by its boot's clock, which never jumps; between machines only wall clocks can be compared.
//! So each boot gets one distance to the wall clock, the one most of its records agree on, and a clock
//! that was set in between changes nothing.

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

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The records, each once, in no order.
    records: Vec<Record>,
    /// Lines that are none: where the first of them is, as `NAME:LINE`.
    broken: Vec<String>,
}

impl Log {
    /// Whether no record was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// Reads texts, each with its name. A record that stands in several of them (a log and its copy)
/// counts once.
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
            // A copy is one in every field.
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
    // The half line of one who was killed, with the line of another behind it.
    let begin = line.windows(5).rposition(|part| part == b"{\"v\":")?;
    serde_json::from_slice(&line[begin..])
        .ok()
        .filter(|_| begin > 0)
}

/// A moment on the common axis: nanoseconds since 1970.
type At = i64;

/// Everything the logs say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The locks, by name.
    locks: Vec<Lock>,
    /// The first record's moment.
    from: At,
    /// The last record's moment.
    to: At,
    records: usize,
    /// What a reader of this should know: clocks that were set, lines that are missing.
    notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Lock {
    name: String,
    /// The instances, by when they first appear.
    tracks: Vec<Track>,
    /// The tenures, by when they began.
    tenures: Vec<Tenure>,
    /// When nobody was in control between two tenures.
    gaps: Vec<Gap>,
    /// When two were.
    overlaps: Vec<Overlap>,
}

impl Lock {
    /// How many rules were broken.
    fn violations(&self) -> usize {
        let tenures = self.tenures.iter();
        tenures.map(|tenure| tenure.violations.len()).sum()
    }
}

/// One instance, through all its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Track {
    identity: String,
    host: String,
    /// The stretches in which one of its processes is known to have been there.
    runs: Vec<Run>,
    /// When it heard the holder's doorbell.
    rings: Vec<At>,
}

/// One process of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    pid: u32,
    /// Its first record of this lock.
    from: At,
    /// Its last one.
    to: At,
    /// It said that it ended, with this exit status.
    exit: Option<i32>,
    /// It said that it ended.
    done: bool,
}

/// One stretch of control.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tenure {
    /// Whose: the number of the track.
    track: usize,
    pid: u32,
    /// Which boot of which machine its times were taken on.
    boot: String,
    token: Option<u64>,
    /// When it said that it had control.
    from: At,
    /// Until when something of it is known to have lived, or may have for all that was said: the
    /// tree's end, or the last word of one that was not seen to end.
    lived: At,
    end: End,
    cause: Option<String>,
    /// The latest deadline it told.
    deadline: Option<At>,
    /// When its command's tree was being stopped.
    drains: Vec<(At, At)>,
    /// When the store did not answer it.
    doubts: Vec<(At, At)>,
    /// When its command was found not to work any more.
    hangs: Vec<At>,
    /// It said itself that it may have run beside another holder's.
    confessed: bool,
    /// What it did that no instance may do, whether or not another had control just then.
    violations: Vec<Violation>,
}

/// A rule that an instance broke. Spans are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Violation {
    /// Its token is not greater than this one, which an earlier tenure had.
    Token { earlier: u64 },
    /// Its command was given a deadline that is no earlier than the lease's end, but so much later.
    Deadline { after: At },
    /// Something of its command lived on for so long after the lease had run out.
    Outlived { by: At },
    /// It gave the lease back without having said that nothing of its command lives.
    Released,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// The lease was given back then.
    Released(At),
    /// It was lost, or left to run out; nothing of the command lived after this moment.
    Over(At),
    /// The logs do not say: the instance was killed, or its machine died, or it goes on.
    Unseen {
        /// Taken to have ended by then: at the deadline, or when the next one had control.
        /// `None`: nothing is known of it.
        by: Option<At>,
        /// What `by` is taken from.
        known_by: KnownBy,
    },
}

/// Why an end that was not seen is taken to be where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownBy {
    /// The guardian ends the command at the deadline.
    Deadline,
    /// The next one was given control, which is given only when nothing of the last one lives.
    Next,
    /// The same process went on to something else.
    Itself,
    /// Nothing: it may go on.
    Nothing,
}

impl Tenure {
    /// Whether the logs do not say how it ended.
    fn is_unseen(&self) -> bool {
        matches!(self.end, End::Unseen { .. })
    }

    /// When it was over, as far as that is known.
    #[must_use]
    fn to(&self) -> At {
        match self.end {
            End::Released(at) | End::Over(at) => at,
            End::Unseen { by, .. } => by.unwrap_or(self.lived),
        }
    }
}

/// Nobody was in control.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gap {
    /// After this tenure (by number).
    after: usize,
    from: At,
    to: At,
    /// The end before it was not seen: it may have begun earlier than that, but not later.
    at_least: bool,
}

/// Two were in control.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Overlap {
    /// The tenures (by number), the earlier one first.
    of: (usize, usize),
    from: At,
    to: At,
    /// On two machines, and not longer than their clocks may differ: it proves nothing.
    within_skew: bool,
}

// Two records of one boot that disagree by more than this were written before and after somebody
// set the clock: the milliseconds of a slow writer are less.
const STEP: u64 = 250_000_000;

/// Of one boot: its machine, and each record's moment with its distance to the wall clock.
type Readings<'a> = (&'a str, Vec<(u64, i64)>);

/// Which clock a record's boottime was read from.
fn boot(record: &Record) -> String {
    if record.boot_id.is_empty() {
        // Unknown: at least its own process agrees with itself.
        return format!("{}/{}/{}", record.host, record.pid, record.run);
    }
    record.boot_id.clone()
}

/// From each boot's clock to the common axis.
#[derive(Debug, Default)]
struct Clocks {
    distances: BTreeMap<String, i64>,
}

impl Clocks {
    /// Looks at all records, in whatever order, and says whose clocks were set meanwhile.
    fn of(records: &[Record]) -> (Clocks, Vec<String>) {
        let mut said: BTreeMap<String, Readings<'_>> = BTreeMap::new();
        for record in records {
            let Some(wall) = record::read(&record.time) else {
                continue;
            };
            // Saturating, here and below: a log says what it likes.
            let distance = wall.saturating_sub(signed(record.boottime_ns));
            let (_, all) = said
                .entry(boot(record))
                .or_insert((&record.host, Vec::new()));
            all.push((record.boottime_ns, distance));
        }
        let mut clocks = Clocks::default();
        let mut notes = Vec::new();
        for (boot, (host, mut all)) in said {
            // By the boot's own clock: logs are merged in any order, and a step is one between
            // neighbours.
            all.sort_unstable();
            let steps: Vec<i64> = all
                .windows(2)
                .filter(|pair| pair[1].1.abs_diff(pair[0].1) > STEP)
                .map(|pair| pair[1].1.saturating_sub(pair[0].1))
                .collect();
            // Said, because a reader compares these times with those of other logs.
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
            // A mean would be moved by one minute with a clock that was off; the median is not.
            let median = distances[distances.len() / 2];
            clocks.distances.insert(boot, median);
        }
        (clocks, notes)
    }

    /// Where a moment of this boot lies on the common axis; never before its beginning.
    fn at(&self, boot: &str, boottime_ns: u64) -> At {
        let distance = self.distances.get(boot).copied().unwrap_or(0);
        signed(boottime_ns).saturating_add(distance).max(0)
    }
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

/// `1 line`, `2 lines`.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
