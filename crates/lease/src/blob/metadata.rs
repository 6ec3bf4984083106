//! Lock record as a blob's metadata.
//!
//! It must never drop a foreign key, nor read a token that it does not understand as a smaller one.

use std::collections::{BTreeMap, HashMap};

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::target::decode;
use crate::once::{ROOM, TaskLog};
use crate::record::Record;
use trafficcop_core::util::is_unprintable;

const TOKEN: &str = "trafficcop_token";
const HOLDER: &str = "trafficcop_holder";
const HOST: &str = "trafficcop_host";
const PID: &str = "trafficcop_pid";
const SINCE: &str = "trafficcop_since";
const COMMAND: &str = "trafficcop_command";
const DRAINING: &str = "trafficcop_draining";
const HEALTH: &str = "trafficcop_health";
const BELL: &str = "trafficcop_doorbell";
const ONCE: &str = "trafficcop_once";
const OURS: [&str; 9] = [
    TOKEN, HOLDER, HOST, PID, SINCE, COMMAND, DRAINING, HEALTH, BELL,
];
// Limit for names and values together, in bytes.
const SERVICE: usize = 8192;
const PREFIX: &str = "x-ms-meta-";

/// Metadata of a blob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Record, as far as it could be read.
    pub record: Option<Record>,
    /// Fencing token that is no number.
    pub broken_token: Option<String>,
    /// All other entries, unchanged.
    pub others: BTreeMap<String, String>,
}

impl Metadata {
    pub(super) fn task_log(&self) -> &TaskLog {
        static NOTHING: TaskLog = TaskLog::EMPTY;
        let record = self.record.as_ref();
        record.map_or(&NOTHING, |record| &record.once)
    }

    pub(super) fn has_unread_results(&self) -> bool {
        self.others.keys().any(|key| is_once(key))
    }
}

/// Reads metadata, whatever the case of its keys.
pub fn read<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> Metadata {
    let mut metadata = Metadata::default();
    let mut ours: HashMap<String, String> = HashMap::new();
    let mut once = None;
    for (key, value) in pairs {
        let lower = key.to_ascii_lowercase();
        if OURS.contains(&lower.as_str()) {
            let value = decode(value).unwrap_or_else(|| value.to_owned());
            ours.insert(lower, value);
        } else if let Some(task_log) = task_log(&lower, value) {
            once = Some(task_log);
        } else {
            // The next write deletes what is not kept here.
            metadata.others.insert(key.to_owned(), value.to_owned());
        }
    }
    if ours.is_empty() && once.is_none() {
        return metadata;
    }
    let mut take = |key: &str| ours.remove(key).unwrap_or_default();
    let token = take(TOKEN);
    let token = match token.trim().parse() {
        Ok(number) => number,
        Err(_) => {
            // Not counted from 0: a resource would take an old holder's token for the newer one.
            metadata.broken_token = Some(
                token
                    .chars()
                    .filter(|c| !is_unprintable(*c))
                    .take(40)
                    .collect(),
            );
            0
        }
    };
    metadata.record = Some(Record {
        token,
        holder: take(HOLDER),
        host: take(HOST),
        pid: take(PID).trim().parse().unwrap_or(0),
        since: take(SINCE),
        command: take(COMMAND),
        draining: take(DRAINING).eq_ignore_ascii_case("true"),
        health: of_tenure(token, &take(HEALTH)).to_owned(),
        bell: take(BELL),
        once: once.unwrap_or_default(),
    });
    metadata
}

/// Returns the health of the command, unless it is of an earlier tenure.
fn of_tenure(token: u64, health: &str) -> &str {
    let of = health.split_once(' ');
    let of = of.filter(|(number, _)| number.parse() == Ok(token));
    of.map_or("", |(_, health)| health)
}

/// Reads results. Unreadable ones are kept like foreign entries.
fn task_log(key: &str, value: &str) -> Option<TaskLog> {
    (key == ONCE).then(|| TaskLog::parse(&decode(value)?))?
}

pub(super) fn is_once(key: &str) -> bool {
    key.eq_ignore_ascii_case(ONCE)
}

pub(super) fn fits(others: &BTreeMap<String, String>, record: &Record, once: &TaskLog) -> bool {
    let text = encode(&once.text());
    // Count the drain's announcement: a result that fits only before it would be lost.
    let bare = Record {
        once: TaskLog::EMPTY,
        draining: true,
        // Health takes no room from results.
        health: String::new(),
        ..record.clone()
    };
    let rest = length(&write(others, &bare));
    text.len() <= ROOM && rest + PREFIX.len() + ONCE.len() + text.len() <= SERVICE
}

fn length(metadata: &HashMap<String, String>) -> usize {
    let pairs = metadata.iter();
    pairs
        .map(|(key, value)| PREFIX.len() + key.len() + value.len())
        .sum()
}

/// Returns the metadata to write.
pub fn write(others: &BTreeMap<String, String>, record: &Record) -> HashMap<String, String> {
    let mut metadata: HashMap<String, String> = others
        .iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut put = |key: &str, value: &str| metadata.insert(key.to_owned(), encode(value));
    put(TOKEN, &record.token.to_string());
    put(HOLDER, &record.holder);
    put(HOST, &record.host);
    put(PID, &record.pid.to_string());
    put(SINCE, &record.since);
    put(COMMAND, &record.command);
    put(BELL, &record.bell);
    if record.once != TaskLog::EMPTY {
        put(ONCE, &record.once.text());
    }
    put(DRAINING, if record.draining { "true" } else { "false" });
    // Some proxies drop an empty header.
    if !record.health.is_empty() {
        put(HEALTH, &format!("{} {}", record.token, record.health));
    }
    metadata.retain(|key, value| !value.is_empty() || !OURS.contains(&key.as_str()));
    if length(&metadata) > SERVICE {
        metadata.remove(HEALTH);
    }
    metadata
}

/// Percent-encodes what a header cannot carry: all but printable ASCII, `%`, and spaces at the ends.
fn encode(value: &str) -> String {
    const HARMED: AsciiSet = CONTROLS.add(b'%');
    let mut text = utf8_percent_encode(value, &HARMED).to_string();
    for at in [text.len().saturating_sub(1), 0] {
        if text[at..].starts_with(' ') {
            text.replace_range(at..=at, "%20");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            token: u64::MAX,
            holder: " höst-1 ".into(),
            host: "100%".into(),
            pid: 7,
            since: "2026-01-01T00:00:00Z".into(),
            command: "sh -c 'a\nb'".into(),
            draining: true,
            health: "hung: ü %".into(),
            bell: "10.0.0.4:1 00".into(),
            once: TaskLog::parse(RESULTS).expect("results"),
        }
    }

    const RESULTS: &str =
        r#"[{"key":"vé %\n","over":{"exit":0,"token":6,"by":"höst","at":"now"}}]"#;

    fn reread(metadata: &HashMap<String, String>) -> Metadata {
        read(metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())))
    }

    #[test]
    fn record_and_foreign_keys_survive_a_round_trip() {
        let others = BTreeMap::from([
            ("Owner".to_owned(), "100% theirs".to_owned()),
            ("trafficcop_twice".to_owned(), "%41".to_owned()),
        ]);
        let metadata = write(&others, &record());
        assert!(
            metadata
                .values()
                .all(|v| v.is_ascii() && v.trim() == v && !v.contains('\n'))
        );
        let metadata = reread(&metadata);
        assert_eq!(metadata.record, Some(record()));
        assert_eq!(metadata.others, others);
        assert_eq!(metadata.broken_token, None);
    }

    #[test]
    fn health_of_another_tenure_is_ignored() {
        let of = |token: &str, health: &str| {
            let there = [("trafficcop_token", token), ("trafficcop_health", health)];
            read(there.into_iter()).record.expect("a record").health
        };
        assert_eq!(of("7", "7 hung: it"), "hung: it");
        for stale in ["6 hung: it", "hung: it", "7", "", "7hung"] {
            assert_eq!(of("7", stale), "", "{stale}");
        }
    }

    #[test]
    fn health_is_dropped_from_full_metadata() {
        let others = |length| BTreeMap::from([("theirs".to_owned(), "x".repeat(length))]);
        let without = Record {
            health: String::new(),
            ..record()
        };
        let full = SERVICE - length(&write(&others(0), &without));
        let written = write(&others(full), &record());
        assert!(length(&written) == SERVICE && !written.contains_key(HEALTH));
        assert!(write(&others(full - 100), &record()).contains_key(HEALTH));
    }

    #[test]
    fn keys_are_read_whatever_their_case() {
        let metadata = read([("TrafficCop_Token", "5"), ("TRAFFICCOP_HOLDER", "h")].into_iter());
        let record = metadata.record.expect("a record");
        assert_eq!((record.token, record.holder.as_str()), (5, "h"));
        assert!(metadata.others.is_empty());
    }

    #[test]
    fn unreadable_results_are_kept_unchanged() {
        for bad in ["", "%41", "[{", "{}"] {
            let there = [("trafficcop_token", "5"), ("trafficcop_once", bad)];
            let metadata = read(there.into_iter());
            assert!(metadata.others.keys().any(|key| is_once(key)), "{bad}");
            let record = metadata.record.expect("a record");
            assert_eq!(record.once, TaskLog::EMPTY);
            assert_eq!(write(&metadata.others, &record)[ONCE], bad);
        }
    }

    #[test]
    fn foreign_metadata_leaves_less_room_for_results() {
        let once = record().once;
        let fits_beside = |length: usize| {
            let others = BTreeMap::from([("theirs".to_owned(), "x".repeat(length))]);
            fits(&others, &record(), &once)
        };
        assert!(fits_beside(7000) && !fits_beside(8000));
        let mut many = TaskLog::EMPTY;
        for n in 0..60 {
            let task = crate::once::Task {
                key: "k".repeat(60) + &n.to_string(),
                per: None,
            };
            let outcome = trafficcop_core::Outcome {
                exit: trafficcop_core::Exit::Code(0),
                over: true,
            };
            many.note(&task, 0, &outcome, n, "b", "then");
        }
        assert!(!fits(&BTreeMap::new(), &record(), &many));
    }

    #[test]
    fn token_that_is_no_number_is_reported_not_read_as_zero() {
        for bad in ["", "-1", "1e3", "18446744073709551616", "seven"] {
            let metadata =
                read([("trafficcop_token", bad), ("trafficcop_holder", "h")].into_iter());
            assert_eq!(metadata.broken_token.as_deref(), Some(bad));
        }
        // Another tool wrote part of the record back and lost the token.
        assert!(
            read([("trafficcop_holder", "h")].into_iter())
                .broken_token
                .is_some()
        );
        assert_eq!(read(std::iter::empty()), Metadata::default());
    }
}
