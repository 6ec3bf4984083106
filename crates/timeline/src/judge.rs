//! Comparison of all processes: who had control of which lock when. Only this module decides what is an
//! overlap.

use std::collections::BTreeMap;

use super::tenures::{Placed, tenures};
use super::{
    Clocks, End, Gap, Lock, Log, Overlap, Run, Tenure, Timeline, Track, Violation, boot, count,
};
use crate::EventKind;

/// Merges logs. `skew` (nanoseconds) is how much the wall clocks of two machines may differ; a shorter overlap
/// between them proves nothing.
#[must_use]
pub fn merge(log: &Log, skew: i64) -> Timeline {
    let (clocks, mut notes) = Clocks::of(&log.records);
    let mut runs: BTreeMap<_, Vec<Placed<'_>>> = BTreeMap::new();
    for record in &log.records {
        let boot = boot(record);
        let placed = Placed {
            at: clocks.at(&boot, record.boottime_ns),
            deadline: record.deadline_ns.map(|ns| clocks.at(&boot, ns)),
            expires: record.expires_ns.map(|ns| clocks.at(&boot, ns)),
            record,
        };
        // By the run as well: a container's supervisor is process 1 each time, on the same boot.
        let key = (record.run, boot, &record.host, &record.identity, record.pid);
        runs.entry(key).or_default().push(placed);
    }
    let mut locks: BTreeMap<String, Draft> = BTreeMap::new();
    for ((_, boot, _, identity, pid), records) in &mut runs {
        // Two records may have one time: so by number, then by every field. The order of the lines must not
        // matter.
        records.sort_by(|one, other| {
            let (one, other) = (one.record, other.record);
            (one.seq, one.boottime_ns, one).cmp(&(other.seq, other.boottime_ns, other))
        });
        notes.extend(missing(records, identity, *pid));
        gather(&mut locks, records, boot);
    }
    if let Some(first) = log.broken.first() {
        notes.push(format!(
            "{} ignored that cannot be read, the first at {first}",
            count(log.broken.len(), "line")
        ));
    }
    let at = || runs.values().flatten().map(|placed| placed.at);
    Timeline {
        from: at().min().unwrap_or(0),
        to: at().max().unwrap_or(0),
        records: log.records.len(),
        notes,
        locks: finished(locks, skew),
    }
}

/// Reports missing numbers in a run: a disk was full, or a log was cut.
fn missing(records: &[Placed<'_>], identity: &str, pid: u32) -> Option<String> {
    let numbers = records.iter().map(|placed| placed.record.seq);
    let pairs = numbers.clone().zip(numbers.skip(1));
    let lost: u64 = pairs
        .map(|(one, next)| next.saturating_sub(one).saturating_sub(1))
        .sum();
    (lost > 0).then(|| {
        format!(
            "{identity} (process {pid}): {} missing from its log: what it says may be incomplete",
            count(usize::try_from(lost).unwrap_or(usize::MAX), "line")
        )
    })
}

/// A lock's instances, by identity and host, each with its tenures.
type Draft = BTreeMap<(String, String), (Track, Vec<Tenure>)>;

fn gather(locks: &mut BTreeMap<String, Draft>, records: &[Placed<'_>], boot: &str) {
    let tenures = tenures(records, boot);
    // At most one: any later record is another run's.
    let mut ends = records.iter().map(|placed| placed.record);
    let end = ends.find(|record| record.event == EventKind::Done);
    let mut by_lock: BTreeMap<&String, Vec<&Placed<'_>>> = BTreeMap::new();
    for placed in records {
        by_lock.entry(&placed.record.lock).or_default().push(placed);
    }
    for (lock, records) in by_lock {
        let first = records[0].record;
        let name = (first.identity.clone(), first.host.clone());
        let instances = locks.entry(lock.clone()).or_default();
        let (track, all) = instances.entry(name).or_default();
        let its_own = tenures.iter().filter(|(of, _)| of == lock);
        all.extend(its_own.map(|(_, tenure)| tenure.clone()));
        let rings = records.iter();
        let rings = rings.filter(|placed| placed.record.event == EventKind::Rang);
        track.rings.extend(rings.map(|placed| placed.at));
        let at = || records.iter().map(|placed| placed.at);
        track.runs.push(Run {
            pid: first.pid,
            from: at().min().unwrap_or(0),
            to: at().max().unwrap_or(0),
            exit: end.and_then(|record| record.exit),
            done: end.is_some(),
        });
    }
}

fn finished(drafts: BTreeMap<String, Draft>, skew: i64) -> Vec<Lock> {
    let names: Vec<String> = drafts.keys().cloned().collect();
    let has_slots = |base: &str| {
        let slot = format!("{base}.");
        names.iter().any(|name| name.starts_with(&slot))
    };
    let locks = drafts
        .into_iter()
        .map(|(name, draft)| lock(name, draft, skew));
    // With slots, a standby waits for all of them, under their common name.
    locks
        .filter(|lock| !lock.tenures.is_empty() || !has_slots(&lock.name))
        .collect()
}

fn lock(name: String, draft: Draft, skew: i64) -> Lock {
    let mut instances: Vec<(Track, Vec<Tenure>)> = Vec::new();
    for ((identity, host), (mut track, tenures)) in draft {
        track.runs.sort_by_key(|run| (run.from, run.pid));
        track.rings.sort_unstable();
        (track.identity, track.host) = (identity, host);
        instances.push((track, tenures));
    }
    // The earliest stands on top, in text and picture.
    instances.sort_by_key(|(track, _)| track.runs.first().map(|run| run.from));
    let (mut tracks, mut tenures) = (Vec::new(), Vec::new());
    for (number, (track, its_own)) in instances.into_iter().enumerate() {
        tracks.push(track);
        tenures.extend(its_own.into_iter().map(|tenure| Tenure {
            track: number,
            ..tenure
        }));
    }
    // The order of the files must not matter.
    tenures.sort_by_key(|tenure| (tenure.from, tenure.token, tenure.track, tenure.pid));
    conclude(&mut tenures);
    count_tokens(&mut tenures, skew);
    Lock {
        gaps: gaps(&tenures),
        overlaps: overlaps(&tenures, skew),
        name,
        tracks,
        tenures,
    }
}

/// Moves an unseen end to the beginning of the next tenure, which required that no process of the last holder
/// lived.
fn conclude(tenures: &mut [Tenure]) {
    for at in 0..tenures.len() {
        let (earlier, later) = tenures.split_at_mut(at + 1);
        let tenure = &mut earlier[at];
        // A tenure that began while this one certainly lived is an overlap and no end.
        let mut next = later.iter().map(|next| next.from);
        let next = next.find(|from| *from >= tenure.lived);
        if let Some(next) = next.filter(|_| tenure.is_unseen())
            // The guardian enforces an earlier deadline: it is no guess.
            && (tenure.end == End::Unknown || next < tenure.to)
        {
            (tenure.to, tenure.end) = (next, End::Next);
        }
    }
}

/// Checks that a later tenure has the greater token, by which a resource refuses late writers.
fn count_tokens(tenures: &mut [Tenure], skew: i64) {
    let mut greatest: Option<(u64, usize)> = None;
    for at in 0..tenures.len() {
        let Some(token) = tenures[at].token else {
            continue;
        };
        match greatest {
            Some((earlier, of)) if earlier >= token => {
                let (before, after) = (&tenures[of], &tenures[at]);
                // Between machines the order is known only beyond the clocks' difference.
                if before.boot == after.boot || after.from - before.from > skew {
                    tenures[at].violations.push(Violation::Token { earlier });
                }
            }
            _ => greatest = Some((token, at)),
        }
    }
}

fn gaps(tenures: &[Tenure]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut last = 0;
    for at in 1..tenures.len() {
        let from = tenures[last].to;
        if tenures[at].from > from {
            gaps.push(Gap {
                after: last,
                from,
                to: tenures[at].from,
                at_least: tenures[last].is_unseen(),
            });
        }
        // If one tenure lies within another, a gap begins after the one that ends last.
        if tenures[at].to >= tenures[last].to {
            last = at;
        }
    }
    gaps
}

/// Finds tenures that begin while a process of an earlier one certainly lives.
fn overlaps(tenures: &[Tenure], skew: i64) -> Vec<Overlap> {
    let mut overlaps = Vec::new();
    let mut living: Vec<usize> = Vec::new();
    for (at, tenure) in tenures.iter().enumerate() {
        // An immediate successor does not overlap.
        living.retain(|other| tenures[*other].lived > tenure.from);
        for &other in &living {
            let earlier = &tenures[other];
            // How far one clock would have to be off for no overlap.
            let off = (earlier.lived - tenure.from).min(tenure.lived - earlier.from);
            overlaps.push(Overlap {
                of: (other, at),
                from: tenure.from,
                to: earlier.lived.min(tenure.lived),
                // One boot has one clock: even a nanosecond is an overlap.
                within_skew: earlier.boot != tenure.boot && off <= skew,
            });
        }
        living.push(at);
    }
    overlaps
}

#[derive(Default)]
pub(super) struct Tally {
    pub(super) overlaps: usize,
    /// Overlaps that prove nothing.
    pub(super) doubtful: usize,
    /// Tenures that report a possible overlap themselves.
    pub(super) confessed: usize,
    pub(super) violations: usize,
    pub(super) unseen: usize,
}

impl Tally {
    pub(super) fn of(locks: &[Lock]) -> Tally {
        let mut tally = Tally::default();
        for lock in locks {
            let doubtful = lock.overlaps.iter().filter(|overlap| overlap.within_skew);
            let doubtful = doubtful.count();
            tally.doubtful += doubtful;
            tally.overlaps += lock.overlaps.len() - doubtful;
            for tenure in &lock.tenures {
                tally.confessed += usize::from(tenure.confessed);
                tally.violations += tenure.violations.len();
                tally.unseen += usize::from(tenure.is_unseen());
            }
        }
        tally
    }
}

impl Timeline {
    /// Returns whether two instances had control at the same time, or one reports that this is possible.
    pub(super) fn has_overlap(&self) -> bool {
        let tally = Tally::of(&self.locks);
        tally.overlaps + tally.confessed > 0
    }
}
