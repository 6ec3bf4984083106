//! What was typed of the log and of the event log, made sense of. Called by the plan.

use std::path::PathBuf;

use super::{Lock, UsageError, has_directory, locks, quoted_word, same_file};
use crate::args;
use crate::report::{self, Volume};

pub(super) fn telling(
    typed: &args::Common,
    lock: &Lock,
    slots: u32,
) -> Result<(Volume, Option<PathBuf>), UsageError> {
    if typed.quiet && typed.telling.verbose {
        return Err(UsageError::new(
            "--quiet and --verbose contradict each other: choose one (is TRAFFICCOP_QUIET or TRAFFICCOP_VERBOSE set?)",
        ));
    }
    Ok((typed.into(), event_log(typed, lock, slots)?))
}

impl From<&args::Common> for Volume {
    fn from(typed: &args::Common) -> Volume {
        match (typed.quiet, typed.telling.verbose) {
            // Both are refused, which is said even so.
            (true, _) => Volume::Quiet,
            (false, true) => Volume::Verbose,
            (false, false) if is_a_quiet_job(typed) => Volume::Quiet,
            (false, false) => Volume::Normal,
        }
    }
}

/// `-n -E 0` is for a crontab on many machines: cron sends by mail whatever is said where nothing is
/// wrong, on the one machine as on the others.
fn is_a_quiet_job(typed: &args::Common) -> bool {
    let is_no_failure = typed
        .conflict_exit_code
        .as_deref()
        .is_some_and(|text| text.parse() == Ok(0_u8));
    typed.no_wait && is_no_failure && !report::is_watched()
}

/// A line in the lock's file would be a record that nobody can read, and one in the status file
/// would be replaced with it.
fn event_log(typed: &args::Common, lock: &Lock, slots: u32) -> Result<Option<PathBuf>, UsageError> {
    let Some(log) = &typed.telling.event_log else {
        return Ok(None);
    };
    if log.as_os_str().is_empty() || log.file_name().is_none() || log.is_dir() {
        return Err(UsageError::new(format!(
            "--event-log {}: name a file, not a directory",
            quoted_word(log.as_os_str())
        )));
    }
    has_directory("--event-log", log)?;
    if let Lock::File { path, .. } = lock
        && locks(path, slots).any(|path| same_file(log, &path))
    {
        return Err(UsageError::new(format!(
            "--event-log {} is the lock's file: name another one",
            log.display()
        )));
    }
    if let Some(status) = &typed.status_file
        && same_file(log, status)
    {
        return Err(UsageError::new(format!(
            "--event-log {} is the status file, which is replaced at every change: name another one",
            log.display()
        )));
    }
    Ok(Some(log.clone()))
}
