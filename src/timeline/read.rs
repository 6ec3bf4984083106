//! From the text of logs to records. What cannot be read is counted and passed over: the last line
//! of an instance that was killed may be half a line.

use std::collections::HashSet;

use crate::events::Record;

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The records, each once, in no order.
    pub records: Vec<Record>,
    /// Lines that are none: where the first of them is, as `NAME:LINE`.
    pub broken: Vec<String>,
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
