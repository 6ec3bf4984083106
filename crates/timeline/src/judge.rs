//! Comparison of all processes: who had control of which lock when. Only this module decides what is an
//! overlap.

use std::collections::BTreeMap;

use super::tenures::{Placed, tenures};
use super::text::contradictions;
use super::{
    At, Clocks, End, Gap, KnownBy, Lock, Log, Overlap, Run, Tenure, Timeline, Track, Violation,
    boot, count,
};
use crate::{EventKind, Record};

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
    let lost: u64 = records
        .windows(2)
        .map(|pair| {
            let step = pair[1].record.seq.saturating_sub(pair[0].record.seq);
            step.saturating_sub(1)
        })
        .sum();
    (lost > 0).then(|| {
        format!(
            "{identity} (process {pid}): {} missing from its log: what it says may be incomplete",
            count(usize::try_from(lost).unwrap_or(usize::MAX), "line")
        )
    })
}

#[derive(Default)]
struct Draft {
    tracks: BTreeMap<(String, String), (Vec<Run>, Vec<At>)>,
    tenures: Vec<((String, String), Tenure)>,
}

fn gather(locks: &mut BTreeMap<String, Draft>, records: &[Placed<'_>], boot: &str) {
    let Some(first) = records.first() else {
        return;
    };
    let name = |record: &Record| (record.identity.clone(), record.host.clone());
    // At most one: any later record is another run's.
    let end = records
        .iter()
        .find(|placed| placed.record.event == EventKind::Done);
    for (lock, tenure) in tenures(records, boot) {
        let draft = locks.entry(lock).or_default();
        draft.tenures.push((name(first.record), tenure));
    }
    let mut spans: BTreeMap<&str, (At, At)> = BTreeMap::new();
    for placed in records {
        let span = spans
            .entry(&placed.record.lock)
            .or_insert((placed.at, placed.at));
        *span = (span.0.min(placed.at), span.1.max(placed.at));
    }
    for (lock, (from, to)) in spans {
        let draft = locks.entry(lock.to_owned()).or_default();
        let (runs, rings) = draft.tracks.entry(name(first.record)).or_default();
        let rang = |placed: &&Placed<'_>| {
            placed.record.event == EventKind::Rang && placed.record.lock == lock
        };
        rings.extend(records.iter().filter(rang).map(|placed| placed.at));
        runs.push(Run {
            pid: first.record.pid,
            from,
            to,
            exit: end.and_then(|placed| placed.record.exit),
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
    drafts
        .into_iter()
        // With slots, a standby waits for all of them, under their common name.
        .filter(|(name, draft)| !draft.tenures.is_empty() || !has_slots(name))
        .map(|(name, draft)| lock(name, draft, skew))
        .collect()
}

fn lock(name: String, draft: Draft, skew: i64) -> Lock {
    let mut tracks: Vec<Track> = draft
        .tracks
        .into_iter()
        .map(|((identity, host), (mut runs, mut rings))| {
            runs.sort_by_key(|run| (run.from, run.pid));
            rings.sort_unstable();
            Track {
                identity,
                host,
                runs,
                rings,
            }
        })
        .collect();
    // The earliest stands on top, in text and picture.
    tracks.sort_by_key(|track| track.runs.first().map(|run| run.from));
    let mut tenures: Vec<Tenure> = draft
        .tenures
        .into_iter()
        .map(|((identity, host), mut tenure)| {
            let track = tracks
                .iter()
                .position(|track| track.identity == identity && track.host == host);
            tenure.track = track.unwrap_or(0);
            tenure
        })
        .collect();
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
        let lived = tenures[at].lived;
        // A tenure that began while this one certainly lived is an overlap and no end.
        let next = tenures[at + 1..]
            .iter()
            .map(|next| next.from)
            .find(|from| *from >= lived);
        if let (End::Unseen { by, known_by }, Some(next)) = (&mut tenures[at].end, next)
            // The guardian enforces an earlier deadline: it is no guess.
            && by.is_none_or(|by| next < by)
        {
            (*by, *known_by) = (Some(next), KnownBy::Next);
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
    let Some((mut last, rest)) = tenures.split_first().map(|_| (0, 1..tenures.len())) else {
        return gaps;
    };
    for at in rest {
        let from = tenures[last].to();
        if tenures[at].from > from {
            gaps.push(Gap {
                after: last,
                from,
                to: tenures[at].from,
                at_least: tenures[last].is_unseen(),
            });
        }
        // If one tenure lies within another, a gap begins after the one that ends last.
        if tenures[at].to() >= tenures[last].to() {
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

impl Timeline {
    /// Returns everything that the promise excludes, a line each: overlaps and broken rules.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        self.locks.iter().flat_map(contradictions).collect()
    }

    /// Returns whether two instances had control at the same time, or one reports that this is possible.
    #[must_use]
    pub(super) fn has_overlap(&self) -> bool {
        self.locks.iter().any(|lock| {
            lock.overlaps.iter().any(|overlap| !overlap.within_skew)
                || lock.tenures.iter().any(|tenure| tenure.confessed)
        })
    }
}
