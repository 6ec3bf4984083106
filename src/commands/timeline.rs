//! `trafficcop timeline`: reads event logs, and answers as text, JSON or a picture.

use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use trafficcop_timeline::{json, merge, read, svg, text};

use crate::args;
use crate::config::UsageError;
use crate::exit::{self, ExitAction};
use crate::report;

/// Exits with 1 for an overlap or a broken rule, else 0.
pub(crate) fn timeline(typed: &args::Timeline) -> anyhow::Result<ExitAction> {
    if typed.files.is_empty() {
        return Err(UsageError::new("no event log: name the files, or - for stdin").into());
    }
    // Before any file is read: a log can be large.
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
    // Bytes: one broken character must not cost the file.
    let log = read(texts.iter().map(|(name, text)| (&**name, &**text)));
    if log.is_empty() {
        anyhow::bail!(
            "there is no event in what was read: name files that 'trafficcop run --event-log' has written"
        );
    }
    let skew = i64::try_from(skew.as_nanos()).unwrap_or(i64::MAX);
    let timeline = merge(&log, skew);
    // First: if the picture cannot be written, nothing was answered yet.
    if let Some(path) = &typed.svg {
        std::fs::write(path, svg(&timeline))
            .with_context(|| format!("cannot write the picture {}", path.display()))?;
    }
    let leave = ExitAction::Status(match timeline.contradictions().is_empty() {
        true => 0,
        false => exit::OVERLAPPED,
    });
    let answer = match typed.json {
        true => format!("{}\n", json(&timeline)),
        false => text(&timeline),
    };
    report::answer(&answer, leave)
}

/// Refuses `--svg web1.events web2.events`, which would draw over the first log.
fn refuse_a_log(picture: &Path) -> Result<(), UsageError> {
    // A pipe or a terminal would wait for input.
    let is_file = picture.metadata().is_ok_and(|found| found.is_file());
    let mut begin = [0; 1];
    let mut read = || std::fs::File::open(picture)?.read_exact(&mut begin);
    if !is_file || read().is_err() || begin != *b"{" {
        return Ok(());
    }
    let picture = picture.display();
    Err(UsageError::new(format!(
        "--svg {picture}: this seems to be an event log, not a picture: name the picture's file first, \
         as in '--svg control.svg {picture}'"
    )))
}

fn content(path: &Path) -> std::io::Result<Vec<u8>> {
    if path != Path::new("-") {
        return std::fs::read(path);
    }
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text)?;
    Ok(text)
}
