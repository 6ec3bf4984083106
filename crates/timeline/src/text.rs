//! Timeline as a table for people, and as JSON for programs.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use serde_json::{Value, json};

use super::judge::Tally;
use super::{At, End, Lock, Tenure, Timeline, Track, Violation, count};
use crate::record;
use trafficcop_core::units::show;
use trafficcop_core::util::plain;

macro_rules! rows {
    ($($name:literal => $meaning:literal,)*) => {
        &[$(($name, $meaning)),*]
    };
}

/// Fields of the JSON with their meanings.
pub const FIELDS: &[(&str, &str)] = rows! {
    "v" => "the version of the format: 1",
    "overlap" => "whether two had control at the same time (exit status 1)",
    "violations" => "how many rules were broken (exit status 1): see locks.tenures",
    "from" => "the first record's time; all times are RFC 3339, UTC",
    "to" => "the last record's time",
    "records" => "how many lines were read",
    "notes" => "what a reader should know: clocks that were set, lines that are missing or cannot be read",
    "locks" => "one for each lock:",
    "locks.lock" => "its address",
    "locks.instances" => "identity, host and runs (pid, from, to, done, exit) of each instance",
    "locks.tenures" => "token, identity, host, pid, from, to, seconds, end (released, over, unseen), known_by (of an \
        unseen end: deadline, next, itself, or null), seen_until (the last moment at which it is known to have been \
        there), deadline, cause, drains and doubts (pairs of times), hangs (when its command was found not to work \
        any more: --watchdog, --health), overlap (it reports that it cannot exclude one), violations (the rules that \
        it broke: a token that is not greater than an earlier one, a deadline that does not end before the lease, a \
        command that outlived the lease, a lease that was given back before the command's tree was empty)",
    "locks.gaps" => "times without a holder: from, to, seconds, at_least (the end before it was not seen: it may have \
        begun earlier)",
    "locks.overlaps" => "when two had: tokens, identities, from, to, seconds, within_skew (on two machines and not \
        longer than --skew: not counted)",
};

/// Returns the timeline as lines for a terminal.
#[must_use]
pub fn text(timeline: &Timeline) -> String {
    let mut text = String::new();
    for lock in &timeline.locks {
        table(&mut text, lock);
        text.push('\n');
    }
    for note in &timeline.notes {
        let _ = writeln!(text, "note: {}", plain(note));
    }
    let _ = writeln!(text, "{}", conclusion(timeline));
    text
}

fn conclusion(timeline: &Timeline) -> String {
    let tally = Tally::of(&timeline.locks);
    let mut text = match (tally.overlaps, tally.confessed) {
        (0, 0) => "no overlap".to_owned(),
        (0, confessed) => {
            format!(
                "OVERLAP NOT EXCLUDED by {} itself",
                count(confessed, "tenure")
            )
        }
        (1, _) => "1 OVERLAP".to_owned(),
        (more, _) => format!("{more} OVERLAPS"),
    };
    if tally.violations > 0 {
        let _ = write!(text, "; {} BROKEN", count(tally.violations, "RULE"));
    }
    if tally.doubtful > 0 {
        let doubtful = tally.doubtful;
        let _ = write!(
            text,
            "; {doubtful} between machines, within --skew, not counted"
        );
    }
    if tally.unseen > 0 {
        let _ = write!(text, "; {} not seen", count(tally.unseen, "end"));
    }
    text
}

pub(super) fn name(track: &Track) -> String {
    if track.identity.contains(&track.host) {
        track.identity.clone()
    } else {
        format!("{}@{}", track.identity, track.host)
    }
}

/// Returns the name on one line, which must not control a terminal, or look like trafficcop's output.
fn plain_name(track: &Track) -> String {
    plain(&name(track))
}

pub(super) fn span(nanos: i64) -> String {
    let millis = u64::try_from(nanos / 1_000_000).unwrap_or(0);
    // Milliseconds do not matter beyond a minute.
    if millis < 60_000 {
        return format!("{}.{:03}s", millis / 1000, millis % 1000);
    }
    show(Duration::from_secs(millis / 1000))
}

/// Returns a part of `2025-11-22T02:40:39.123Z`.
pub(super) fn part(at: At, part: Range<usize>) -> String {
    record::spelt(at).get(part).unwrap_or_default().to_owned()
}

fn clock(at: At) -> String {
    part(at, 11..23)
}

pub(super) fn date(at: At) -> String {
    part(at, 0..10)
}

pub(super) fn token(tenure: &Tenure) -> String {
    tenure.token.map_or("?".into(), |token| token.to_string())
}

fn table(text: &mut String, lock: &Lock) {
    let _ = writeln!(
        text,
        "{}: {} of {}",
        plain(&lock.name),
        count(lock.tenures.len(), "tenure"),
        count(lock.tracks.len(), "instance")
    );
    if lock.tenures.is_empty() {
        return;
    }
    let names: Vec<String> = lock.tracks.iter().map(plain_name).collect();
    let widths = names.iter().map(|name| name.chars().count());
    let wide = widths.max().unwrap_or(0).max(8);
    let _ = writeln!(
        text,
        "{:>8}  {:wide$}  {:12}  {:15}  {:>12}  end",
        "token", "instance", "from", "to", "for"
    );
    let mut day = String::new();
    for (at, tenure) in lock.tenures.iter().enumerate() {
        let today = date(tenure.from);
        if today != day {
            let _ = writeln!(text, "{today} (UTC)");
            day = today;
        }
        let name = &names[tenure.track];
        let mut line = |word: &str, words: String| {
            let _ = writeln!(text, "{word:>8}  {words}");
        };
        let (to, length) = until(tenure);
        let (from, ending) = (clock(tenure.from), ending(tenure));
        line(
            &token(tenure),
            format!("{name:wide$}  {from}  {to:15}  {length:>12}  {ending}"),
        );
        for hang in &tenure.hangs {
            line("hung", format!("{name}: its command at {}", clock(*hang)));
        }
        for (word, fault) in faults(tenure, name) {
            line(word, fault);
        }
        for overlap in lock.overlaps.iter().filter(|overlap| overlap.of.1 == at) {
            let other = &names[lock.tenures[overlap.of.0].track];
            let (word, comment) = match overlap.within_skew {
                true => ("overlap?", " (two machines, within --skew: not counted)"),
                false => ("OVERLAP", ""),
            };
            let (from, length) = (clock(overlap.from), span(overlap.to - overlap.from));
            let words = format!("{other} and {name} both from {from} for {length}{comment}");
            line(word, words);
        }
        for gap in lock.gaps.iter().filter(|gap| gap.after == at) {
            let least = if gap.at_least { "at least " } else { "" };
            let (from, length) = (clock(gap.from), span(gap.to - gap.from));
            line("gap", format!("no holder from {from} for {least}{length}"));
        }
    }
}

/// Returns what a tenure did wrong, each with the word for the table.
fn faults(tenure: &Tenure, who: &str) -> Vec<(&'static str, String)> {
    let confession =
        format!("{who} reports that its command may have run at the same time as another holder's");
    let confession = tenure.confessed.then_some(("OVERLAP?", confession));
    let broken = |violation: &Violation| ("BROKEN", format!("{who}: {}", broken(*violation)));
    let broken = tenure.violations.iter().map(broken);
    confession.into_iter().chain(broken).collect()
}

fn broken(violation: Violation) -> String {
    match violation {
        Violation::Token { earlier } => {
            format!("its token is not greater than {earlier}, which an earlier tenure had")
        }
        Violation::Deadline { after } => {
            let after = span(after);
            format!("its command's deadline lay {after} after the end of its lease, not before it")
        }
        Violation::Outlived { by } => {
            let by = span(by);
            format!("a process of its command lived for {by} after the end of its lease")
        }
        Violation::Released => {
            "it gave the lease back before it had reported that no process of its command lives"
                .to_owned()
        }
    }
}

impl Timeline {
    /// Returns everything that the promise excludes, a line each: overlaps and broken rules.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        self.locks.iter().flat_map(contradictions).collect()
    }
}

fn contradictions(lock: &Lock) -> Vec<String> {
    let who = |tenure: &Tenure| {
        let name = plain_name(&lock.tracks[tenure.track]);
        format!(
            "{name} (token {}, from {})",
            token(tenure),
            clock(tenure.from)
        )
    };
    let mut all = Vec::new();
    for overlap in lock.overlaps.iter().filter(|overlap| !overlap.within_skew) {
        let (one, other) = (&lock.tenures[overlap.of.0], &lock.tenures[overlap.of.1]);
        let length = span(overlap.to - overlap.from);
        all.push(format!(
            "{} and {} overlap for {length}",
            who(one),
            who(other)
        ));
    }
    for tenure in &lock.tenures {
        let faults = faults(tenure, &who(tenure));
        all.extend(faults.into_iter().map(|(_, fault)| fault));
    }
    let name = &lock.name;
    all.into_iter()
        .map(|what| format!("{name}: {what}"))
        .collect()
}

fn until(tenure: &Tenure) -> (String, String) {
    let (to, length) = (clock(tenure.to), span(tenure.to - tenure.from));
    match tenure.end {
        End::Released | End::Over => (to, length),
        End::Deadline | End::Next | End::Itself => (format!("by {to}"), format!("<= {length}")),
        End::Unknown => (format!("after {to}"), format!(">= {length}")),
    }
}

pub(super) fn ending(tenure: &Tenure) -> String {
    let last = clock(tenure.lived);
    let known = match tenure.end {
        End::Released => "given back",
        End::Over => "over, the lease not given back",
        End::Deadline => {
            return format!("ended unseen after {last}, at the latest at its deadline; or goes on");
        }
        End::Next => {
            // The deadline shows if the next one was given control too early.
            let later = tenure.deadline.filter(|deadline| *deadline > tenure.to);
            let later = later.map(|deadline| format!(" (its own deadline: {})", clock(deadline)));
            let later = later.unwrap_or_default();
            return format!("ended unseen after {last}, before the next had control{later}");
        }
        End::Itself => return format!("ended after {last}; the lines that say how are missing"),
        End::Unknown => {
            return format!("no end in these logs after {last}: ended unseen, or goes on");
        }
    };
    match &*plain(tenure.cause.as_deref().unwrap_or_default()) {
        "" => known.to_owned(),
        because => format!("{known}: {because}"),
    }
}

/// Returns the timeline as the object that `timeline --json` prints.
#[must_use]
pub fn json(timeline: &Timeline) -> Value {
    json!({
        "v": 1,
        "overlap": timeline.has_overlap(),
        "violations": Tally::of(&timeline.locks).violations,
        "from": record::spelt(timeline.from),
        "to": record::spelt(timeline.to),
        "records": timeline.records,
        "notes": timeline.notes,
        "locks": timeline.locks.iter().map(lock_json).collect::<Vec<_>>(),
    })
}

fn seconds(nanos: i64) -> f64 {
    // A double has no room for the nanoseconds of many days.
    (nanos / 1000) as f64 / 1e6
}

fn pairs(spans: &[(At, At)]) -> Value {
    spans
        .iter()
        .map(|(from, to)| json!([record::spelt(*from), record::spelt(*to)]))
        .collect()
}

fn lock_json(lock: &Lock) -> Value {
    let instances = lock.tracks.iter().map(|track| {
        let runs = track.runs.iter().map(|run| {
            json!({
                "pid": run.pid,
                "from": record::spelt(run.from),
                "to": record::spelt(run.to),
                "done": run.done,
                "exit": run.exit,
            })
        });
        json!({
            "identity": track.identity,
            "host": track.host,
            "runs": runs.collect::<Vec<_>>(),
        })
    });
    let tenures = lock.tenures.iter().map(|tenure| {
        let (end, known_by) = match tenure.end {
            End::Released => ("released", None),
            End::Over => ("over", None),
            End::Deadline => ("unseen", Some("deadline")),
            End::Next => ("unseen", Some("next")),
            End::Itself => ("unseen", Some("itself")),
            // Programs test whether there is any evidence.
            End::Unknown => ("unseen", None),
        };
        json!({
            "token": tenure.token,
            "identity": lock.tracks[tenure.track].identity,
            "host": lock.tracks[tenure.track].host,
            "pid": tenure.pid,
            "from": record::spelt(tenure.from),
            "to": record::spelt(tenure.to),
            "seconds": seconds(tenure.to - tenure.from),
            "end": end,
            "known_by": known_by,
            "seen_until": record::spelt(tenure.lived),
            "deadline": tenure.deadline.map(record::spelt),
            "cause": tenure.cause,
            "drains": pairs(&tenure.drains),
            "doubts": pairs(&tenure.doubts),
            "hangs": tenure.hangs.iter().copied().map(record::spelt).collect::<Vec<_>>(),
            "overlap": tenure.confessed,
            "violations": tenure.violations.iter().copied().map(broken).collect::<Vec<_>>(),
        })
    });
    let gaps = lock.gaps.iter().map(|gap| {
        json!({
            "from": record::spelt(gap.from),
            "to": record::spelt(gap.to),
            "seconds": seconds(gap.to - gap.from),
            "at_least": gap.at_least,
        })
    });
    let overlaps = lock.overlaps.iter().map(|overlap| {
        let (one, other) = (&lock.tenures[overlap.of.0], &lock.tenures[overlap.of.1]);
        json!({
            "tokens": [one.token, other.token],
            "identities": [lock.tracks[one.track].identity, lock.tracks[other.track].identity],
            "from": record::spelt(overlap.from),
            "to": record::spelt(overlap.to),
            "seconds": seconds(overlap.to - overlap.from),
            "within_skew": overlap.within_skew,
        })
    });
    json!({
        "lock": lock.name,
        "instances": instances.collect::<Vec<_>>(),
        "tenures": tenures.collect::<Vec<_>>(),
        "gaps": gaps.collect::<Vec<_>>(),
        "overlaps": overlaps.collect::<Vec<_>>(),
    })
}
