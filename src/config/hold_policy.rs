//! What was typed of restarts and of handing control round, made sense of. Called by the plan.

use std::time::Duration;

use super::{Lock, UsageError, span};
use crate::args;
use crate::core::{After, HoldPolicy, Restart};
use crate::units::show;

const DEFAULT_LIMIT: u32 = 5;
const DEFAULT_WINDOW: Duration = Duration::from_secs(300);

/// A file's lock is handed over by the kernel at once; less than this is a mistyped unit.
const LEAST_HOLD_OF_A_FILE: Duration = Duration::from_secs(1);

pub(super) fn hold_policy(
    typed: &args::HoldPolicy,
    lock: &Lock,
    lease: Duration,
    poll: Duration,
) -> Result<HoldPolicy, UsageError> {
    let restart = restart(typed)?;
    let max_hold = max_hold(typed, lock, lease)?;
    let min_hold = span("--min-hold", typed.min_hold.as_deref())?;
    if let Some(least) = min_hold {
        if least.is_zero() {
            return Err(UsageError::new(
                "--min-hold 0s keeps nothing: leave it out, or say how long",
            ));
        }
        if typed.restart == Some(args::Restart::Always) {
            return Err(UsageError::new(
                "--min-hold and --restart always contradict each other: a command that is always started again never leaves a lock to be kept",
            ));
        }
        if let Some(most) = max_hold.filter(|most| *most < least) {
            return Err(UsageError::new(format!(
                "--min-hold {} is longer than --max-hold {}: no tenure can be both",
                show(least),
                show(most)
            )));
        }
    }
    Ok(HoldPolicy {
        restart,
        max_hold,
        min_hold,
        cooldown: cooldown(typed, lock, poll)?,
    })
}

fn restart(typed: &args::HoldPolicy) -> Result<Option<Restart>, UsageError> {
    let after = match typed.restart {
        Some(args::Restart::OnFailure) => After::Failure,
        Some(args::Restart::Always) => After::Any,
        None | Some(args::Restart::Never) => {
            for (flag, value) in [
                ("--restart-limit", &typed.restart_limit),
                ("--restart-window", &typed.restart_window),
            ] {
                if value.is_some() {
                    return Err(UsageError::new(format!(
                        "{flag} has no meaning where nothing is restarted: add --restart on-failure or --restart always, or leave it out"
                    )));
                }
            }
            return Ok(None);
        }
    };
    let limit = match typed.restart_limit.as_deref() {
        None => DEFAULT_LIMIT,
        Some(text) => match text.parse() {
            Ok(0) => {
                return Err(UsageError::new(
                    "--restart-limit 0 allows no restart at all: take --restart never, or a limit of 1 or more",
                ));
            }
            Ok(limit) => limit,
            Err(_) => {
                return Err(UsageError::new(format!(
                    "--restart-limit: '{text}' is not a number of restarts, like 5"
                )));
            }
        },
    };
    let window = span("--restart-window", typed.restart_window.as_deref())?;
    let rule = Restart {
        after,
        limit,
        window: window.unwrap_or(DEFAULT_WINDOW),
    };
    if !rule.limit_is_within_reach() {
        return Err(UsageError::new(format!(
            "--restart-limit {limit} can never be hit: the back-off before so many restarts takes {}, which is not within --restart-window {}: lower the one or raise the other",
            show(rule.time_to_limit()),
            show(rule.window)
        )));
    }
    Ok(Some(rule))
}

/// A tenure shorter than a lease would be more fail-over than work: on a blob every hand-over costs
/// a drain and a poll, and nothing of the lease's time would ever be used.
fn max_hold(
    typed: &args::HoldPolicy,
    lock: &Lock,
    lease: Duration,
) -> Result<Option<Duration>, UsageError> {
    let Some(span) = span("--max-hold", typed.max_hold.as_deref())? else {
        return Ok(None);
    };
    match lock {
        Lock::Blob { .. } if span < lease => Err(UsageError::new(format!(
            "--max-hold {} is shorter than the lease: take --lease ({}) or more",
            show(span),
            show(lease)
        ))),
        Lock::File { .. } if span < LEAST_HOLD_OF_A_FILE => Err(UsageError::new(format!(
            "--max-hold {} leaves a command no time to work: take {} or more",
            show(span),
            show(LEAST_HOLD_OF_A_FILE)
        ))),
        Lock::Blob { .. } | Lock::File { .. } => Ok(Some(span)),
    }
}

fn cooldown(
    typed: &args::HoldPolicy,
    lock: &Lock,
    poll: Duration,
) -> Result<Option<Duration>, UsageError> {
    let Some(span) = span("--cooldown", typed.cooldown.as_deref())? else {
        return Ok(None);
    };
    let restarts = matches!(
        typed.restart,
        Some(args::Restart::OnFailure | args::Restart::Always)
    );
    if typed.max_hold.is_none() && !restarts {
        return Err(UsageError::new(
            "--cooldown has no meaning where control is never handed over: add --max-hold or --restart, or leave it out",
        ));
    }
    // Standbys look every --poll ±20 %; a file's waiters are woken.
    let least = match lock {
        Lock::Blob { .. } => poll + poll / 5,
        Lock::File { .. } => Duration::from_millis(100),
    };
    if span < least {
        return Err(UsageError::new(format!(
            "--cooldown {} is too short for anybody else to get control: take {} or more",
            show(span),
            show(least)
        )));
    }
    Ok(Some(span))
}
