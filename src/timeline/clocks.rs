//! One time axis out of many clocks. What happened on one machine is ordered by its boot's clock,
//! which never jumps; between machines only wall clocks can be compared. So each boot gets one
//! distance to the wall clock, the one most of its records agree on, and a clock that was set in
//! between changes nothing.

use std::collections::BTreeMap;

use super::judge::count;
use super::model::At;
use crate::events::{Record, record};

/// Two records of one boot that disagree by more than this were written before and after somebody
/// set the clock: the milliseconds of a slow writer are less.
const STEP: u64 = 250_000_000;

/// Of one boot: its machine, and each record's moment with its distance to the wall clock.
type Said<'a> = (&'a str, Vec<(u64, i64)>);

/// Which clock a record's boottime was read from.
pub(super) fn boot(record: &Record) -> String {
    if record.boot_id.is_empty() {
        // Unknown: at least its own process agrees with itself.
        return format!("{}/{}/{}", record.host, record.pid, record.run);
    }
    record.boot_id.clone()
}

/// From each boot's clock to the common axis.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    distances: BTreeMap<String, i64>,
}

impl Clocks {
    /// Looks at all records, in whatever order, and says whose clocks were set meanwhile.
    pub(super) fn of(records: &[Record]) -> (Clocks, Vec<String>) {
        let mut said: BTreeMap<String, Said<'_>> = BTreeMap::new();
        for record in records {
            let Some(wall) = record::read(&record.time) else {
                continue;
            };
            let distance = wall.saturating_sub(signed(record.boottime_ns));
            let (_, all) = said
                .entry(boot(record))
                .or_insert((&record.host, Vec::new()));
            all.push((record.boottime_ns, distance));
        }
        let mut clocks = Clocks::default();
        let mut notes = Vec::new();
        for (boot, (host, mut all)) in said {
            all.sort_unstable();
            let steps: Vec<i64> = all
                .windows(2)
                .filter(|pair| pair[1].1.abs_diff(pair[0].1) > STEP)
                .map(|pair| pair[1].1.saturating_sub(pair[0].1))
                .collect();
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
            let median = distances[distances.len() / 2];
            clocks.distances.insert(boot, median);
        }
        (clocks, notes)
    }

    /// Where a moment of this boot lies on the common axis; never before its beginning.
    pub(super) fn at(&self, boot: &str, boottime_ns: u64) -> At {
        let distance = self.distances.get(boot).copied().unwrap_or(0);
        signed(boottime_ns).saturating_add(distance).max(0)
    }
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}
