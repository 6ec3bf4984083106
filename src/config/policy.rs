//! Restarts, handing control round, and tasks that run once.

use std::time::Duration;

use super::run::refuse_first;
use super::{Config, Lock, UsageError};
use crate::args;
use crate::core::{After, HoldPolicy, OnFailure, Once, Restart};
use crate::lease::once::Task;
use crate::units::show;

const DEFAULT_LIMIT: u32 = 5;
const DEFAULT_WINDOW: Duration = Duration::from_secs(300);

// A shorter hold is a mistyped unit: the kernel hands a file's lock over at once.
const LEAST_HOLD_OF_A_FILE: Duration = Duration::from_secs(1);

const DEFAULT_KEY: &str = "once";

fn refuse<T>(line: impl Into<String>) -> Result<T, UsageError> {
    Err(UsageError::new(line))
}

pub(super) struct HandOvers {
    /// Whether there is one: a command that hangs, or a hook or task that fails.
    pub(super) is_typed: bool,
    pub(super) flags: &'static str,
}

/// Refuses a cooldown below `shortest_cooldown`, in which no other instance can get control.
pub(super) fn hold_policy(
    typed: &args::HoldPolicy,
    lock: &Lock,
    lease: Duration,
    shortest_cooldown: Duration,
    hand_overs: &HandOvers,
) -> Result<HoldPolicy, UsageError> {
    let restart = restart(typed)?;
    let max_hold = max_hold(typed, lock, lease)?;
    let min_hold = typed.min_hold.clone().transpose()?;
    if let Some(least) = min_hold {
        if typed.restart == Some(args::Restart::Always) {
            return refuse(
                "--min-hold and --restart always contradict each other: \
                 a command that is always restarted never ends, so the lock is kept anyway: leave --min-hold out",
            );
        }
        // Neither is clearly the mistake.
        if let Some(most) = max_hold.filter(|most| *most < least) {
            return refuse(format!(
                "--min-hold {} is longer than --max-hold {}: shorten the one or lengthen the other",
                show(least),
                show(most)
            ));
        }
    }
    Ok(HoldPolicy {
        restart,
        max_hold,
        min_hold,
        cooldown: cooldown(typed, shortest_cooldown, hand_overs)?,
    })
}

fn restart(typed: &args::HoldPolicy) -> Result<Option<Restart>, UsageError> {
    let after = match typed.restart {
        Some(args::Restart::OnFailure) => After::Failure,
        Some(args::Restart::Always) => After::Any,
        None | Some(args::Restart::Never) => {
            let limits = [
                ("--restart-limit", typed.restart_limit.is_some()),
                ("--restart-window", typed.restart_window.is_some()),
            ];
            refuse_first(limits, |flag| {
                format!(
                    "{flag} has no meaning without restarts: add --restart on-failure or --restart always, \
                     or leave it out"
                )
            })?;
            return Ok(None);
        }
    };
    let rule = Restart {
        after,
        limit: typed.restart_limit.clone().unwrap_or(Ok(DEFAULT_LIMIT))?,
        window: typed.restart_window.clone().unwrap_or(Ok(DEFAULT_WINDOW))?,
    };
    // Control would never be handed over, though the user expects it.
    if !rule.limit_is_within_reach() {
        return refuse(format!(
            "--restart-limit {} can never be reached: the back-off before that many restarts takes {}, which is not \
             within --restart-window {}: lower the one or raise the other",
            rule.limit,
            show(rule.time_to_limit()),
            show(rule.window)
        ));
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
        Lock::Blob { .. } | Lock::Store { .. } if span < lease => refuse(format!(
            "--max-hold {} is shorter than the lease: take --lease ({}) or more",
            show(span),
            show(lease)
        )),
        Lock::File { .. } if span < LEAST_HOLD_OF_A_FILE => refuse(format!(
            "--max-hold {} leaves a command no time to work: take {} or more",
            show(span),
            show(LEAST_HOLD_OF_A_FILE)
        )),
        _ => Ok(Some(span)),
    }
}

fn cooldown(
    typed: &args::HoldPolicy,
    shortest: Duration,
    hand_overs: &HandOvers,
) -> Result<Option<Duration>, UsageError> {
    let Some(span) = typed.cooldown.clone().transpose()? else {
        return Ok(None);
    };
    // The instance ends with its command: there is no cooldown.
    if typed.max_hold.is_none() && !restarts(typed) && !hand_overs.is_typed {
        return refuse(format!(
            "--cooldown has no meaning unless control is handed over: add {}, or leave it out",
            hand_overs.flags
        ));
    }
    refuse_short_cooldown(Some(span), shortest)?;
    Ok(Some(span))
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
        Some(span) => refuse(format!(
            "--cooldown {} is too short for another instance to get control: take {} or more",
            show(span),
            show(shortest)
        )),
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

pub(super) fn wait(typed: &args::Common) -> Result<Option<Duration>, UsageError> {
    match (typed.no_wait, typed.wait.clone()) {
        (true, Some((wait, _))) => Err(UsageError::new(format!(
            "--no-wait and --wait {wait} contradict each other: choose one (is TRAFFICCOP_NO_WAIT or TRAFFICCOP_WAIT \
             set?)"
        ))),
        (true, None) => Ok(Some(Duration::ZERO)),
        (false, wait) => wait.map(|(_, span)| span).transpose(),
    }
}

fn restarts(typed: &args::HoldPolicy) -> bool {
    !matches!(typed.restart, None | Some(args::Restart::Never))
}

pub(super) fn once(typed: &args::Run, slots: u32) -> Result<Option<(Once, Task)>, UsageError> {
    let flags = &typed.once;
    // A key or a period implies --once.
    if !flags.once && flags.once_key.is_none() && flags.once_per.is_none() {
        let details = [
            ("--once-on-failure", flags.once_on_failure.is_some()),
            ("--once-attempts", flags.once_attempts.is_some()),
        ];
        refuse_first(details, |flag| {
            format!(
                "{flag} has no meaning for a command that runs each time: add --once, or leave it out"
            )
        })?;
        return Ok(None);
    }
    refuse_what_undoes_once(typed, slots)?;
    let key = flags.once_key.clone();
    let task = Task {
        key: key.unwrap_or_else(|| Ok(DEFAULT_KEY.to_owned()))?,
        per: flags.once_per.clone().transpose()?,
    };
    let once = Once {
        on_failure: flags.once_on_failure.unwrap_or_default(),
        attempts: flags.once_attempts.clone().transpose()?,
    };
    if let Some(most) = once.attempts
        && most > 1
        && once.on_failure == OnFailure::Stop
    {
        return refuse(format!(
            "--once-attempts {most} and --once-on-failure stop contradict each other: choose one"
        ));
    }
    Ok(Some((once, task)))
}

/// Refuses what would run the command again, or end it before its task is done.
fn refuse_what_undoes_once(typed: &args::Run, slots: u32) -> Result<(), UsageError> {
    let policy = &typed.hold_policy;
    for (flag, typed, why) in [
        (
            "--restart",
            restarts(policy),
            "the next candidate runs a failed task, and a success ends it: \
             leave --restart out (--once-attempts limits the runs)",
        ),
        (
            "--max-hold",
            policy.max_hold.is_some(),
            "an interrupted run is never done: leave --max-hold out",
        ),
        (
            "--min-hold",
            policy.min_hold.is_some(),
            "the recorded result already keeps late machines from running the command: leave --min-hold out",
        ),
        (
            "--slots",
            slots > 1,
            "N slots are N separate locks, so the task would run N times: leave --slots out",
        ),
    ] {
        if typed {
            return refuse(format!("{flag} and --once contradict each other: {why}"));
        }
    }
    Ok(())
}
