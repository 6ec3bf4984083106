//! What was typed of a task that is to be done once, made sense of. Called by the plan.

use std::time::Duration;

use super::{UsageError, span};
use crate::args;
use crate::core::{OnFailure, Once};
use crate::lease::once::Task;
use crate::units::show;

/// The task of a lock on which no other was named.
const DEFAULT_KEY: &str = "once";

/// The longest key, in bytes: it travels in the metadata of a blob.
const KEY_LIMIT: usize = 128;

pub(super) fn once(typed: &args::Run, slots: u32) -> Result<Option<(Once, Task)>, UsageError> {
    let flags = &typed.once;
    // A key or a slot is a key or a slot of something that is done once: to say that twice is not needed.
    if !flags.once && flags.once_key.is_none() && flags.once_per.is_none() {
        for (flag, typed) in [
            ("--once-on-failure", flags.once_on_failure.is_some()),
            ("--once-attempts", flags.once_attempts.is_some()),
        ] {
            if typed {
                return Err(UsageError::new(format!(
                    "{flag} has no meaning for a command that is run each time: add --once, or leave it out"
                )));
            }
        }
        return Ok(None);
    }
    strangers(typed, slots)?;
    let task = Task {
        key: key(flags)?,
        per: per(flags)?,
    };
    let on_failure = match flags.once_on_failure {
        Some(args::OnceOnFailure::Stop) => OnFailure::Stop,
        Some(args::OnceOnFailure::Retry) | None => OnFailure::Retry,
    };
    let once = Once {
        on_failure,
        attempts: attempts(flags)?,
    };
    Ok(Some((once, task)))
}

/// What would run the command more often, or end it before it has done its task.
fn strangers(typed: &args::Run, slots: u32) -> Result<(), UsageError> {
    let hold_policy = &typed.hold_policy;
    let restarts = !matches!(hold_policy.restart, None | Some(args::Restart::Never));
    for (flag, typed, why) in [
        (
            "--restart",
            restarts,
            "a failed run is for the next candidate, and a success is the end: leave --restart out (--once-attempts says how often it is tried)",
        ),
        (
            "--max-hold",
            hold_policy.max_hold.is_some(),
            "a run that is cut off is never done: leave --max-hold out",
        ),
        (
            "--min-hold",
            hold_policy.min_hold.is_some(),
            "a result that is recorded keeps late machines from running the command again: leave --min-hold out",
        ),
        (
            "--slots",
            slots > 1,
            "one task, and N locks that do not know of each other: leave --slots out",
        ),
    ] {
        if typed {
            return Err(UsageError::new(format!(
                "{flag} and --once contradict each other: {why}"
            )));
        }
    }
    Ok(())
}

fn key(flags: &args::Once) -> Result<String, UsageError> {
    let Some(key) = flags.once_key.clone() else {
        return Ok(DEFAULT_KEY.to_owned());
    };
    if key.is_empty() {
        return Err(UsageError::new(
            "--once-key is empty: name the task (is a variable unset?)",
        ));
    }
    if key.len() > KEY_LIMIT {
        return Err(UsageError::new(format!(
            "--once-key: {} bytes are too many: {KEY_LIMIT} at most",
            key.len()
        )));
    }
    Ok(key)
}

fn per(flags: &args::Once) -> Result<Option<Duration>, UsageError> {
    let Some(per) = span("--once-per", flags.once_per.as_deref())? else {
        return Ok(None);
    };
    if per.is_zero() {
        return Err(UsageError::new(
            "--once-per 0s: a slot needs a length, like 1h; for once and for all take --once alone",
        ));
    }
    // Clocks of services tell whole seconds.
    if per.subsec_nanos() != 0 {
        return Err(UsageError::new(format!(
            "--once-per {}: slots are of whole seconds: take {}s",
            show(per),
            per.as_secs().max(1)
        )));
    }
    Ok(Some(per))
}

fn attempts(flags: &args::Once) -> Result<Option<u32>, UsageError> {
    let Some(text) = flags.once_attempts.as_deref() else {
        return Ok(None);
    };
    match text.parse() {
        Ok(0) => Err(UsageError::new(
            "--once-attempts 0 allows no run at all: take 1 or more",
        )),
        Ok(most) if most > 1 && flags.once_on_failure == Some(args::OnceOnFailure::Stop) => {
            Err(UsageError::new(format!(
                "--once-attempts {most} and --once-on-failure stop contradict each other: choose one"
            )))
        }
        Ok(most) => Ok(Some(most)),
        Err(_) => Err(UsageError::new(format!(
            "--once-attempts: '{text}' is not a number of runs, like 3"
        ))),
    }
}
