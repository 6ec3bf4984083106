//! Timeline as a table for people, and as JSON for programs.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::{At, End, KnownBy, Lock, Tenure, Timeline, Track, Violation, count};
use crate::record;
use trafficcop_core::units::show;
use trafficcop_core::util::plain;

/// Fields of the JSON with their meanings.
pub const FIELDS: &[(&str, &str)] = &[
    ("v", "the version of the format: 1"),
    (
        "overlap",
        "whether two had control at the same time (exit status 1)",
    ),
    (
        "violations",
        "how many rules were broken (exit status 1): see locks.tenures",
    ),
    (
        "from",
        "the first record's time; all times are RFC 3339, UTC",
    ),
    ("to", "the last record's time"),
    ("records", "how many lines were read"),
    (
        "notes",
        "what a reader should know: clocks that were set, lines that are missing or cannot be read",
    ),
    ("locks", "one for each lock:"),
    ("locks.lock", "its address"),
    (
        "locks.instances",
        "identity, host and runs (pid, from, to, done, exit) of each instance",
    ),
    (
        "locks.tenures",
        "token, identity, host, pid, from, to, seconds, end (released, over, unseen), known_by (of an unseen end: \
         deadline, next, itself, or null), seen_until (the last moment at which it is known to have been there), \
         deadline, cause, drains and doubts (pairs of times), hangs (when its command was found not to work any more: \
         --watchdog, --health), overlap (it reports that it cannot exclude one), violations (the rules that it broke: \
         a token that is not greater than an earlier one, a deadline that does not end before the lease, a command \
         that outlived the lease, a lease that was given back before the command's tree was empty)",
    ),
    (
        "locks.gaps",
        "times without a holder: from, to, seconds, at_least (the end before it was not seen: it may have begun \
         earlier)",
    ),
    (
        "locks.overlaps",
        "when two had: tokens, identities, from, to, seconds, within_skew (on two machines and not longer than --skew: \
         not counted)",
    ),
];

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
    let all = || timeline.locks.iter();
    let overlaps = all().flat_map(|lock| &lock.overlaps);
    let (doubtful, certain): (Vec<_>, Vec<_>) = overlaps.partition(|overlap| overlap.within_skew);
    let confessed = all()
        .flat_map(|lock| &lock.tenures)
        .filter(|tenure| tenure.confessed)
        .count();
    let mut text = match certain.len() {
        0 if confessed > 0 => format!(
            "OVERLAP NOT EXCLUDED by {} itself",
            count(confessed, "tenure")
        ),
        0 => "no overlap".to_owned(),
        1 => "1 OVERLAP".to_owned(),
        more => format!("{more} OVERLAPS"),
    };
    let broken = all().map(Lock::violations).sum();
    if broken > 0 {
        let _ = write!(text, "; {} BROKEN", count(broken, "RULE"));
    }
    if !doubtful.is_empty() {
        let _ = write!(
            text,
            "; {} between machines, within --skew, not counted",
            doubtful.len()
        );
    }
    let unseen = all()
        .flat_map(|lock| &lock.tenures)
        .filter(|tenure| tenure.is_unseen())
        .count();
    if unseen > 0 {
        let _ = write!(text, "; {} not seen", count(unseen, "end"));
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

fn clock(at: At) -> String {
    let text = record::spelt(at);
    text.get(11..23).unwrap_or_default().to_owned()
}

pub(super) fn date(at: At) -> String {
    record::spelt(at).get(..10).unwrap_or_default().to_owned()
}

fn width(text: &str) -> usize {
    text.chars().count()
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
    let wide = names
        .iter()
        .map(|name| width(name))
        .max()
        .unwrap_or(0)
        .max(8);
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
        let token = tenure.token.map_or("?".into(), |token| token.to_string());
        let (to, length) = until(tenure);
        let pad = wide - width(&names[tenure.track]);
        let _ = writeln!(
            text,
            "{token:>8}  {}{:pad$}  {}  {to:15}  {length:>12}  {}",
            names[tenure.track],
            "",
            clock(tenure.from),
            ending(tenure)
        );
        for hang in &tenure.hangs {
            let name = &names[tenure.track];
            let _ = writeln!(
                text,
                "{:>8}  {name}: its command at {}",
                "hung",
                clock(*hang)
            );
        }
        if tenure.confessed {
            let _ = writeln!(
                text,
                "{:>8}  {} reports that its command may have run at the same time as another holder's",
                "OVERLAP?", names[tenure.track]
            );
        }
        for violation in &tenure.violations {
            let _ = writeln!(
                text,
                "{:>8}  {}: {}",
                "BROKEN",
                names[tenure.track],
                broken(*violation)
            );
        }
        for overlap in lock.overlaps.iter().filter(|overlap| overlap.of.1 == at) {
            let other = &lock.tenures[overlap.of.0];
            let (word, comment) = if overlap.within_skew {
                ("overlap?", " (two machines, within --skew: not counted)")
            } else {
                ("OVERLAP", "")
            };
            let _ = writeln!(
                text,
                "{word:>8}  {} and {} both from {} for {}{comment}",
                names[other.track],
                names[tenure.track],
                clock(overlap.from),
                span(overlap.to - overlap.from)
            );
        }
        for gap in lock.gaps.iter().filter(|gap| gap.after == at) {
            let least = if gap.at_least { "at least " } else { "" };
            let _ = writeln!(
                text,
                "{:>8}  no holder from {} for {least}{}",
                "gap",
                clock(gap.from),
                span(gap.to - gap.from)
            );
        }
    }
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

pub(super) fn contradictions(lock: &Lock) -> Vec<String> {
    let who = |at: usize| {
        let tenure = &lock.tenures[at];
        let token = tenure.token.map_or("?".into(), |token| token.to_string());
        let name = plain_name(&lock.tracks[tenure.track]);
        format!("{name} (token {token}, from {})", clock(tenure.from))
    };
    let overlaps = lock.overlaps.iter().filter(|overlap| !overlap.within_skew);
    let mut all: Vec<String> = overlaps
        .map(|overlap| {
            let (one, other) = overlap.of;
            let length = span(overlap.to - overlap.from);
            format!(
                "{}: {} and {} overlap for {length}",
                lock.name,
                who(one),
                who(other)
            )
        })
        .collect();
    for (at, tenure) in lock.tenures.iter().enumerate() {
        if tenure.confessed {
            let text = "reports that its command may have run at the same time as another holder's";
            all.push(format!("{}: {} {text}", lock.name, who(at)));
        }
        for violation in &tenure.violations {
            all.push(format!(
                "{}: {}: {}",
                lock.name,
                who(at),
                broken(*violation)
            ));
        }
    }
    all
}

fn until(tenure: &Tenure) -> (String, String) {
    let length = span(tenure.to() - tenure.from);
    match tenure.end {
        End::Released(at) | End::Over(at) => (clock(at), length),
        End::Unseen { by: Some(by), .. } => (format!("by {}", clock(by)), format!("<= {length}")),
        End::Unseen { by: None, .. } => (
            format!("after {}", clock(tenure.lived)),
            format!(">= {length}"),
        ),
    }
}

pub(super) fn ending(tenure: &Tenure) -> String {
    let because = plain(tenure.cause.as_deref().unwrap_or_default());
    let colon = |text: &str| match &*because {
        "" => text.to_owned(),
        because => format!("{text}: {because}"),
    };
    match &tenure.end {
        End::Released(_) => colon("given back"),
        End::Over(_) => colon("over, the lease not given back"),
        End::Unseen { by, known_by } => {
            let last = clock(tenure.lived);
            match (known_by, tenure.deadline, by) {
                (KnownBy::Deadline, _, _) => {
                    format!("ended unseen after {last}, at the latest at its deadline; or goes on")
                }
                // The deadline shows if the next one was given control too early.
                (KnownBy::Next, Some(deadline), Some(by)) if deadline > *by => format!(
                    "ended unseen after {last}, before the next had control (its own deadline: {})",
                    clock(deadline)
                ),
                (KnownBy::Next, _, _) => {
                    format!("ended unseen after {last}, before the next had control")
                }
                (KnownBy::Itself, _, _) => {
                    format!("ended after {last}; the lines that say how are missing")
                }
                (KnownBy::Nothing, _, _) => {
                    format!("no end in these logs after {last}: ended unseen, or goes on")
                }
            }
        }
    }
}

/// Returns the timeline as the object that `timeline --json` prints.
#[must_use]
pub fn json(timeline: &Timeline) -> Value {
    json!({
        "v": 1,
        "overlap": timeline.has_overlap(),
        "violations": timeline.locks.iter().map(Lock::violations).sum::<usize>(),
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
    let track = |at: usize| &lock.tracks[lock.tenures[at].track];
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
        let (end, known_by) = match &tenure.end {
            End::Released(_) => ("released", None),
            End::Over(_) => ("over", None),
            End::Unseen { known_by, .. } => ("unseen", word(*known_by)),
        };
        json!({
            "token": tenure.token,
            "identity": lock.tracks[tenure.track].identity,
            "host": lock.tracks[tenure.track].host,
            "pid": tenure.pid,
            "from": record::spelt(tenure.from),
            "to": record::spelt(tenure.to()),
            "seconds": seconds(tenure.to() - tenure.from),
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
        let (one, other) = overlap.of;
        json!({
            "tokens": [lock.tenures[one].token, lock.tenures[other].token],
            "identities": [track(one).identity, track(other).identity],
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

fn word(known_by: KnownBy) -> Option<&'static str> {
    match known_by {
        KnownBy::Deadline => Some("deadline"),
        KnownBy::Next => Some("next"),
        KnownBy::Itself => Some("itself"),
        // Programs test whether there is any evidence.
        KnownBy::Nothing => None,
    }
}
