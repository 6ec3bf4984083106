//! Restarts, handing control round, and tasks that run once.

use std::time::Duration;

use super::{Config, Lock, UsageError};
use crate::args;
use crate::core::{After, HoldPolicy, Once, Restart};
use crate::lease::once::Task;
use crate::units::show;

const DEFAULT_LIMIT: u32 = 5;
const DEFAULT_WINDOW: Duration = Duration::from_secs(300);

// A shorter hold is a mistyped unit: the kernel hands a file's lock over at once.
const LEAST_HOLD_OF_A_FILE: Duration = Duration::from_secs(1);

const DEFAULT_KEY: &str = "once";

/// Refuses a cooldown below `shortest_cooldown`, in which no other instance can get control.
pub(super) fn hold_policy(
    typed: &args::HoldPolicy,
    lock: &Lock,
    lease: Duration,
    shortest_cooldown: Duration,
) -> Result<HoldPolicy, UsageError> {
    let restart = restart(typed)?;
    let max_hold = max_hold(typed, lock, lease)?;
    let min_hold = typed.min_hold.clone().transpose()?;
    // Neither is clearly the mistake.
    if let Some((least, most)) = min_hold.zip(max_hold).filter(|(least, most)| most < least) {
        refuse!(
            "--min-hold {} is longer than --max-hold {}: shorten the one or lengthen the other",
            show(least),
            show(most)
        );
    }
    let cooldown = typed.cooldown.clone().transpose()?;
    refuse_short_cooldown(cooldown, shortest_cooldown)?;
    Ok(HoldPolicy {
        restart,
        max_hold,
        min_hold,
        cooldown,
    })
}

fn restart(typed: &args::HoldPolicy) -> Result<Option<Restart>, UsageError> {
    let after = match typed.restart {
        Some(args::Restart::OnFailure) => After::Failure,
        Some(args::Restart::Always) => After::Any,
        None | Some(args::Restart::Never) => return Ok(None),
    };
    let rule = Restart {
        after,
        limit: typed.restart_limit.clone().unwrap_or(Ok(DEFAULT_LIMIT))?,
        window: typed.restart_window.clone().unwrap_or(Ok(DEFAULT_WINDOW))?,
    };
    // Control would never be handed over, though the user expects it.
    if !rule.limit_is_within_reach() {
        refuse!(
            "--restart-limit {} can never be reached: the back-off before that many restarts takes {}, which is not \
             within --restart-window {}: lower the one or raise the other",
            rule.limit,
            show(rule.time_to_limit()),
            show(rule.window)
        );
    }
    Ok(Some(rule))
}

// A shorter tenure would be mostly fail-over: on a blob a hand-over costs a drain and a poll.
fn max_hold(
    typed: &args::HoldPolicy,
    lock: &Lock,
    lease: Duration,
) -> Result<Option<Duration>, UsageError> {
    let Some(span) = typed.max_hold.clone().transpose()? else {
        return Ok(None);
    };
    match lock {
        Lock::Blob { .. } | Lock::Store { .. } if span < lease => refuse!(
            "--max-hold {} is shorter than the lease: take --lease ({}) or more",
            show(span),
            show(lease)
        ),
        Lock::File { .. } if span < LEAST_HOLD_OF_A_FILE => refuse!(
            "--max-hold {} leaves a command no time to work: take {} or more",
            show(span),
            show(LEAST_HOLD_OF_A_FILE)
        ),
        _ => Ok(Some(span)),
    }
}

/// Returns the longest poll: its jitter is 20 %.
pub(super) fn longest_poll(poll: Duration) -> Duration {
    poll + poll / 5
}

pub(super) fn refuse_short_cooldown(
    cooldown: Option<Duration>,
    shortest: Duration,
) -> Result<(), UsageError> {
    match cooldown.filter(|span| *span < shortest) {
        Some(span) => refuse!(
            "--cooldown {} is too short for another instance to get control: take {} or more",
            show(span),
            show(shortest)
        ),
        None => Ok(()),
    }
}

impl Config {
    /// Warns of flags that do nothing for this lock, which only its store knows.
    pub(crate) fn warn_of_idle_flags(&self, lease: Option<Duration>) {
        if lease.is_none() && !self.of_leases.is_empty() {
            tracing::warn!(
                "a lock on a local file has no lease, so {} changes nothing: leave it out (or unset its variable)",
                self.of_leases.join(" or ")
            );
        }
    }
}

pub(super) fn of_leases(typed: &args::Common) -> Vec<&'static str> {
    let flags = [
        ("--lease", typed.lease.is_some()),
        ("--doorbell", typed.doorbell.is_some()),
    ];
    let set = flags.into_iter().filter(|(_, is_set)| *is_set);
    set.map(|(flag, _)| flag).collect()
}

pub(super) fn once(typed: &args::Once) -> Result<Option<(Once, Task)>, UsageError> {
    // A key or a period implies --once.
    if !typed.once && typed.once_key.is_none() && typed.once_per.is_none() {
        return Ok(None);
    }
    let key = typed.once_key.clone();
    let task = Task {
        key: key.unwrap_or_else(|| Ok(DEFAULT_KEY.to_owned()))?,
        per: typed.once_per.clone().transpose()?,
    };
    let once = Once {
        on_failure: typed.once_on_failure.unwrap_or_default(),
        attempts: typed.once_attempts.clone().transpose()?,
    };
    Ok(Some((once, task)))
}
