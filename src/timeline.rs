//! `trafficcop timeline`: who held control when, from the event logs of many instances.
//!
//! ```text
//! files ─ read ─▶ records ─ clocks ─▶ one time axis ─ tenures ─▶ judge ─▶ Timeline ─▶ text | JSON | SVG
//! ```
//! All but [`timeline`] is pure: texts go in, a picture of them comes out, in whatever order they came.
//! It asks no clock, no store and no process, so it says the same of the same logs for ever.

mod judge;
mod model;
mod svg;
mod tenures;
mod text;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;

use crate::args;
use crate::config::UsageError;
use crate::events::Record;
use crate::exit::{self, ExitAction};
use crate::report;
pub use judge::merge;
pub use model::Timeline;
pub use svg::svg;
pub use text::FIELDS;
use text::{json, text};

/// Answers: exit status 1 for an overlap or a rule that was broken, 0 for none.
///
/// # Errors
/// A [`UsageError`] of what was typed; what cannot be read or written.
pub fn timeline(typed: &args::Timeline) -> anyhow::Result<ExitAction> {
    if typed.files.is_empty() {
        return Err(UsageError::new("no event log: name the files, or - for stdin").into());
    }
    // Before any file is read: a log can be large, and a flag that is wrong is found in no time.
    let skew = typed.skew.clone()?;
    if let Some(path) = &typed.svg {
        refuse_a_log(path)?;
    }
    let mut texts = Vec::new();
    for path in &typed.files {
        let text = content(path)
            .with_context(|| format!("cannot read the event log {}", path.display()))?;
        texts.push((path.display().to_string(), text));
    }
    // Bytes, not text: one broken character must not cost the file.
    let log = read(texts.iter().map(|(name, text)| (&**name, &**text)));
    if log.records.is_empty() {
        anyhow::bail!(
            "there is no event in what was read: name files that 'trafficcop run --event-log' has written"
        );
    }
    let skew = i64::try_from(skew.as_nanos()).unwrap_or(i64::MAX);
    let timeline = merge(&log, skew);
    // The picture first: where it cannot be written nothing was answered yet.
    if let Some(path) = &typed.svg {
        std::fs::write(path, svg(&timeline))
            .with_context(|| format!("cannot write the picture {}", path.display()))?;
    }
    if typed.json {
        report::answer(&json(&timeline).to_string());
    } else {
        report::answer(text(&timeline).trim_end());
    }
    Ok(ExitAction::Status(
        if timeline.contradictions().is_empty() {
            0
        } else {
            exit::OVERLAPPED
        },
    ))
}

/// `--svg web1.events web2.events` has forgotten the picture's name, and would draw over the first log.
fn refuse_a_log(picture: &Path) -> Result<(), UsageError> {
    // Not of a pipe or a terminal, which would wait for somebody to write.
    let is_file = picture.metadata().is_ok_and(|found| found.is_file());
    let there = is_file.then(|| std::fs::File::open(picture).ok()).flatten();
    let mut begin = [0; 1];
    let is_json =
        there.is_some_and(|mut file| file.read_exact(&mut begin).is_ok()) && begin == *b"{";
    if !is_json {
        return Ok(());
    }
    Err(UsageError::new(format!(
        "--svg {}: this is no picture, and seems to be an event log: name the file to draw into first, as in '--svg control.svg {}'",
        picture.display(),
        picture.display()
    )))
}

fn content(path: &Path) -> std::io::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut text = Vec::new();
        std::io::stdin().lock().read_to_end(&mut text)?;
        return Ok(text);
    }
    std::fs::read(path)
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// The records, each once, in no order.
    records: Vec<Record>,
    /// Lines that are none: where the first of them is, as `NAME:LINE`.
    broken: Vec<String>,
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
