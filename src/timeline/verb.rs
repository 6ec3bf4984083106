//! The verb: reads the files, says what they come to, draws the picture. Called by main, and by
//! nobody who runs a command.

use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;

use super::{json, merge, read, svg, text};
use crate::args;
use crate::config::UsageError;
use crate::exit::{self, ExitAction};
use crate::report;

/// Answers: exit status 1 for an overlap, 0 for none.
///
/// # Errors
/// A [`UsageError`] of what was typed; what cannot be read or written.
pub fn timeline(typed: &args::Timeline) -> anyhow::Result<ExitAction> {
    if typed.files.is_empty() {
        return Err(UsageError::new("no event log: name the files, or - for stdin").into());
    }
    let skew = typed.skew.clone()?;
    let mut texts = Vec::new();
    for path in &typed.files {
        let text = content(path)
            .with_context(|| format!("cannot read the event log {}", path.display()))?;
        texts.push((path.display().to_string(), text));
    }
    let log = read(texts.iter().map(|(name, text)| (&**name, &**text)));
    if log.records.is_empty() {
        anyhow::bail!(
            "there is no event in what was read: name files that 'trafficcop run --event-log' has written"
        );
    }
    let skew = i64::try_from(skew.as_nanos()).unwrap_or(i64::MAX);
    let timeline = merge(&log, skew);
    if let Some(path) = &typed.svg {
        std::fs::write(path, svg(&timeline))
            .with_context(|| format!("cannot write the picture {}", path.display()))?;
    }
    if typed.json {
        report::answer(&json(&timeline).to_string());
    } else {
        report::answer(text(&timeline).trim_end());
    }
    Ok(ExitAction::Status(if timeline.has_overlap() {
        exit::OVERLAPPED
    } else {
        0
    }))
}

fn content(path: &Path) -> std::io::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut text = Vec::new();
        std::io::stdin().lock().read_to_end(&mut text)?;
        return Ok(text);
    }
    std::fs::read(path)
}
