//! `trafficcop reset`: forgets that a task is done, after saying what that means. Called by main. It
//! must never forget what it has not shown, nor without a yes.

use std::collections::BTreeSet;

use time::OffsetDateTime;

use super::break_lease::confirmed;
use super::lock_target::{LockTarget, answer, run};
use super::lock_view::LockView;
use crate::args;
use crate::config::UsageError;
use crate::exit::{self, ExitAction};
use crate::lease::inspect::{LockState, LockStatus, ResetResult, Tasks};
use crate::lease::once::TaskLog;
use crate::report;

/// Forgets.
///
/// # Errors
/// A [`UsageError`], or what the store says.
pub(crate) fn reset(typed: &args::Reset) -> anyhow::Result<ExitAction> {
    if typed.all && typed.once_key.is_some() {
        return Err(UsageError::new(
            "--all and --once-key contradict each other: leave one out (is TRAFFICCOP_ONCE_KEY or TRAFFICCOP_ALL set?)",
        )
        .into());
    }
    if typed.once_key.as_deref() == Some("") {
        return Err(
            UsageError::new("--once-key is empty: name the task (is a variable unset?)").into(),
        );
    }
    let target = LockTarget::of(&typed.lock)?;
    let seen = run(target.look_at_one())?;
    let view = LockView::of(&seen, OffsetDateTime::now_utc());
    let shown = seen.task_log();
    let nothing = |why: &str| {
        let text = view.lines() + &report::plain(why) + ": nothing was forgotten\n";
        answer(&text, ExitAction::Status(exit::NOT_FORGOTTEN))
    };
    let tasks = match chosen(typed, &seen, &shown)? {
        Ok(tasks) => tasks,
        Err(why) => return nothing(&why),
    };
    let held = view.held == Some(true);
    if held && !typed.force {
        return nothing(
            "somebody has the lock, and may be running that very task (wait until it is free, or say --force)",
        );
    }
    let what =
        view.lines() + &consequence(&tasks, target.0.manner().force_breaks, seen.state) + "\n";
    let written = answer(&what, ExitAction::Status(0))?;
    if written != ExitAction::Status(0) {
        return Ok(written);
    }
    if !typed.yes && !confirmed("Forget it?", "forgotten")? {
        return answer(
            "nothing was forgotten\n",
            ExitAction::Status(exit::NOT_FORGOTTEN),
        );
    }
    let went = run(async { Ok(target.0.forget(&tasks, seen, held).await?) })?;
    let no = |why: &str| {
        answer(
            &format!("{why}: nothing was forgotten\n"),
            ExitAction::Status(exit::NOT_FORGOTTEN),
        )
    };
    match went {
        ResetResult::Done => answer("forgotten\n", ExitAction::Status(0)),
        ResetResult::Held if held => {
            no("the lease is broken, and somebody was faster to get the lock than we were")
        }
        ResetResult::Held => no("somebody has got the lock meanwhile"),
        ResetResult::Changed => no("what is known of it has changed meanwhile, look again"),
        ResetResult::Nothing => no("it has been forgotten already"),
    }
}

/// What is to be forgotten, or why there is nothing.
fn chosen(
    typed: &args::Reset,
    seen: &LockStatus,
    shown: &TaskLog,
) -> Result<Result<Tasks, String>, UsageError> {
    let keys: BTreeSet<&str> = shown.entries().iter().map(|task| &*task.key).collect();
    let keys: Vec<&str> = keys.into_iter().collect();
    if typed.all {
        let nothing = keys.is_empty() && !seen.unread;
        return Ok(match nothing {
            true => Err("there is no result".to_owned()),
            false => Ok(Tasks::All),
        });
    }
    if seen.unread {
        return Err(UsageError::new(format!(
            "{}: its results cannot be read: say --all to have all of them forgotten",
            seen.lock
        )));
    }
    match (&typed.once_key, &keys[..]) {
        (Some(key), keys) if keys.contains(&&**key) => Ok(Ok(Tasks::Of(key.clone()))),
        (Some(key), _) => Ok(Err(format!("there is no result of --once-key {key}"))),
        (None, []) => Ok(Err("there is no result".to_owned())),
        (None, [key]) => Ok(Ok(Tasks::Of((*key).to_owned()))),
        (None, keys) => Err(UsageError::new(format!(
            "{}: there are {} tasks: name one with --once-key ({}), or say --all",
            seen.lock,
            keys.len(),
            report::plain(&keys.join(", "))
        ))),
    }
}

/// What will happen, before it does.
fn consequence(tasks: &Tasks, force_breaks: bool, state: LockState) -> String {
    let what = match tasks {
        Tasks::Of(key) => format!(
            "What is known of the task {} is forgotten: the next 'run --once' of it that gets control runs its command again.",
            report::plain(key)
        ),
        Tasks::All => "What is known of ALL tasks of this lock is forgotten: the next 'run --once' of each that gets control runs its command again."
            .to_owned(),
    };
    let force = match (state, force_breaks) {
        (LockState::Missing | LockState::Free, _) => "",
        (LockState::Held | LockState::Breaking, true) => {
            " Somebody has the lock, so its lease is BROKEN first: the holder learns of it with its next \
             renewal and stops its command before the lease ends, within 60 seconds. What it was running \
             is not recorded. It competes again, unless it runs with --if-lost exit."
        }
        (LockState::Held | LockState::Breaking, false) => {
            " Somebody has the lock, and goes on undisturbed: if it runs that very task, its result is \
             recorded all the same; if it records one in this very moment, that can be lost, and the task \
             is then run again."
        }
    };
    what + force
}
