//! `trafficcop break` ends another instance's lease, and `trafficcop reset` forgets that a task is done. They
//! must never do what they have not shown, nor without a yes.

use std::collections::BTreeSet;
use std::time::Duration;

use time::OffsetDateTime;

use super::look::LockView;
use super::{LockTarget, answer, run};
use crate::args;
use crate::config::{self, UsageError};
use crate::exit::{self, ExitAction};
use crate::lease::inspect::{BreakResult, LockState, LockStatus, ResetResult, Tasks};
use crate::lease::once::TaskLog;
use crate::report;

/// Longest period that the service allows, in seconds.
const LONGEST: u8 = 60;

pub(crate) fn break_lease(typed: &args::Break) -> anyhow::Result<ExitAction> {
    let period = period(typed.period.as_deref())?;
    let target = LockTarget::of(&typed.lock)?;
    let seen = run(target.look_at_one())?;
    let view = LockView::of(&seen, OffsetDateTime::now_utc());
    let shortest = target.info.shortest_break;
    if let Some(shortest) = shortest {
        refuse_short(period, shortest)?;
    }
    if view.held != Some(true) {
        let nothing = format!("{}: {}: nothing to break\n", view.lock, view.words());
        return answer(&nothing, ExitAction::Status(exit::NOT_BROKEN));
    }
    if shortest.is_none() {
        return Err(of_file(&view).into());
    }
    // With --yes, too: what was broken, and for whom, belongs in the script's log. Without a reader nothing is
    // broken.
    let what = view.lines() + &consequence_of_break(period, &seen) + "\n";
    let not_broken = ExitAction::Status(exit::NOT_BROKEN);
    if let Some(leave) = refused(&what, typed.yes, "Break it?", "broken", not_broken)? {
        return Ok(leave);
    }
    let here = config::Host::here();
    // On a shared drive a break is a version with a record, which names its operator.
    let by = format!("{}-{} (break)", here.host, here.pid);
    let broken = run(async { Ok(target.inspector.break_lease(seen, period, &by).await?) })?;
    let text = match broken {
        BreakResult::Within(rest) => {
            let when = match rest {
                Duration::ZERO => "now".to_owned(),
                rest => format!("in {} seconds", rest.as_secs()),
            };
            let text = format!("broken: another instance can have control {when}\n");
            return answer(&text, ExitAction::Status(0));
        }
        BreakResult::Free => "the lease has ended meanwhile: nothing was broken\n",
        BreakResult::Overtaken => {
            "its holder renewed it each time: nothing was broken; try again\n"
        }
        BreakResult::Changed => {
            "the lock has changed hands meanwhile: nothing was broken; check it again\n"
        }
    };
    answer(text, not_broken)
}

/// Shows the consequences, and asks whether to go on; returns how to leave if not.
fn refused(
    consequences: &str,
    yes: bool,
    question: &str,
    done: &str,
    leave: ExitAction,
) -> anyhow::Result<Option<ExitAction>> {
    let written = answer(consequences, ExitAction::Status(0))?;
    if written != ExitAction::Status(0) {
        return Ok(Some(written));
    }
    if yes {
        return Ok(None);
    }
    // Not from stdin: it may be a pipe, and a script's next line is no yes.
    match report::ask(question)? {
        Some(true) => Ok(None),
        Some(false) => answer(&format!("nothing was {done}\n"), leave).map(Some),
        None => Err(UsageError::new(format!(
            "nothing was {done}: there is no terminal to ask on: add --yes"
        ))
        .into()),
    }
}

fn period(typed: Option<&str>) -> Result<Option<u8>, UsageError> {
    let Some(text) = typed else {
        return Ok(None);
    };
    let number = text.strip_suffix('s').unwrap_or(text).parse();
    match number {
        Ok(seconds) if seconds <= LONGEST => Ok(Some(seconds)),
        _ => Err(UsageError::new(format!(
            "--period {text}: take a number of seconds from 0 to {LONGEST}"
        ))),
    }
}

/// Refuses a period that is shorter than any lease that standbys on a shared drive accept.
fn refuse_short(period: Option<u8>, shortest: u8) -> Result<(), UsageError> {
    match period {
        Some(seconds) if seconds > 0 && seconds < shortest => Err(UsageError::new(format!(
            "--period {seconds}: on a shared drive take 0, or {shortest} to {LONGEST} seconds"
        ))),
        _ => Ok(()),
    }
}

fn consequence_of_break(period: Option<u8>, seen: &LockStatus) -> String {
    if seen.foreign {
        let when = period.map_or(60, u64::from);
        return format!(
            "The lease has no end and belongs to another program, which gets no notice. \
             It ends in {when} seconds; then an instance can have control."
        );
    }
    let already = match seen.state {
        LockState::Breaking => "Its lease is breaking already; that can only be made shorter. ",
        _ => "",
    };
    let what = match period {
        None => "The lease ends when its time is over, within 60 seconds. Its holder learns of it \
            with its next renewal and has stopped its command by then. Then another instance can have control."
            .to_owned(),
        Some(0) => "Another instance can have control AT ONCE. The holder learns of it at its next renewal, at most a \
            third of its lease from now (20 seconds or less), and kills its command. Two commands can run at the \
            same time until then."
            .to_owned(),
        Some(seconds) => format!(
            "Another instance can have control in {seconds} seconds, or when the lease ends, if that is earlier. \
             The holder learns of it at its next renewal, at most a third of its lease from now (20 seconds or \
             less), and stops its command. If that is after those {seconds} seconds, two commands can run at the \
             same time until then."
        ),
    };
    format!("{already}{what} The holder competes again, unless it runs with --if-lost exit.")
}

fn of_file(view: &LockView) -> UsageError {
    let lock = &view.lock;
    // The kernel takes a lock from no process, and without the file two instances would run.
    let who = match (view.pid, &view.host) {
        (Some(pid), Some(host)) => format!("end its holder: 'kill {pid}' on {host}"),
        _ => "end its holder".to_owned(),
    };
    UsageError::new(format!(
        "{lock}: a lock on a local file is the kernel's and cannot be broken: {}, or find out with 'fuser -v' \
         which processes have the file open; its record names {}",
        report::plain(&who),
        view.who().unwrap_or_else(|| "no instance".to_owned())
    ))
}

pub(crate) fn reset(typed: &args::Reset) -> anyhow::Result<ExitAction> {
    // An unset variable in a script must not mean "the only task".
    if typed.once_key.as_deref() == Some("") {
        return Err(
            UsageError::new("--once-key is empty: name the task (is a variable unset?)").into(),
        );
    }
    let target = LockTarget::of(&typed.lock)?;
    let seen = run(target.look_at_one())?;
    let view = LockView::of(&seen, OffsetDateTime::now_utc());
    let shown = seen.task_log();
    let not_forgotten = ExitAction::Status(exit::NOT_FORGOTTEN);
    let nothing = |why: &str| answer(&format!("{why}: nothing was forgotten\n"), not_forgotten);
    let tasks = match chosen(typed, &seen, &shown)? {
        Ok(tasks) => tasks,
        Err(why) => return nothing(&(view.lines() + &report::plain(&why))),
    };
    // Its run may end in the next moment and record what was forgotten.
    let held = view.held == Some(true);
    if held && !typed.force {
        let why = "the lock is held, and its holder may be running this task (wait until it is free, or add --force)";
        return nothing(&(view.lines() + why));
    }
    let force_breaks = target.info.force_breaks;
    let what = view.lines() + &consequence_of_reset(&tasks, force_breaks, seen.state) + "\n";
    if let Some(leave) = refused(&what, typed.yes, "Forget it?", "forgotten", not_forgotten)? {
        return Ok(leave);
    }
    // A yes for a lock that was shown as free is none to break a lease.
    match run(async { Ok(target.inspector.forget(&tasks, seen, held).await?) })? {
        ResetResult::Done => answer("forgotten\n", ExitAction::Status(0)),
        ResetResult::Held if held => {
            nothing("the lease is broken, and another instance was faster to get the lock")
        }
        ResetResult::Held => nothing("another instance has got the lock meanwhile"),
        ResetResult::Changed => nothing("its record has changed meanwhile: check it again"),
        ResetResult::Nothing => nothing("it has been forgotten already"),
    }
}

/// Returns what to forget, or why there is nothing.
fn chosen(
    typed: &args::Reset,
    seen: &LockStatus,
    shown: &TaskLog,
) -> Result<Result<Tasks, String>, UsageError> {
    // One key stands for a task done once and in each period: both are forgotten together.
    let keys: BTreeSet<&str> = shown.entries().iter().map(|task| &*task.key).collect();
    let keys: Vec<&str> = keys.into_iter().collect();
    let nothing = Err("there is no result".to_owned());
    if typed.all {
        return Ok(match keys.is_empty() && !seen.unreadable {
            true => nothing,
            false => Ok(Tasks::All),
        });
    }
    // The key may name what cannot be read.
    if seen.unreadable {
        return Err(UsageError::new(format!(
            "{}: its results cannot be read: add --all to forget all of them",
            seen.lock
        )));
    }
    match (&typed.once_key, &keys[..]) {
        (Some(key), keys) if keys.contains(&&**key) => Ok(Ok(Tasks::Of(key.clone()))),
        (Some(key), _) => Ok(Err(format!("there is no result of --once-key {key}"))),
        (None, []) => Ok(nothing),
        (None, [key]) => Ok(Ok(Tasks::Of((*key).to_owned()))),
        // Repeating a migration by mistake costs more than a question.
        (None, keys) => Err(UsageError::new(format!(
            "{}: there are {} tasks: name one with --once-key ({}), or add --all",
            seen.lock,
            keys.len(),
            report::plain(&keys.join(", "))
        ))),
    }
}

fn consequence_of_reset(tasks: &Tasks, force_breaks: bool, state: LockState) -> String {
    let what = match tasks {
        Tasks::Of(key) => format!(
            "The result of the task {} is forgotten: the next 'run --once' of it that gets control runs its command \
             again.",
            report::plain(key)
        ),
        Tasks::All => "The results of ALL tasks of this lock are forgotten: \
            the next 'run --once' of each that gets control runs its command again."
            .to_owned(),
    };
    let force = match (state, force_breaks) {
        (LockState::Missing | LockState::Free, _) => "",
        (LockState::Held | LockState::Breaking, true) => {
            " The lock is held, so its lease is BROKEN first: the holder learns of it with its next \
             renewal and stops its command before the lease ends, within 60 seconds. The result of its \
             present run is not recorded. It competes again, unless it runs with --if-lost exit."
        }
        (LockState::Held | LockState::Breaking, false) => {
            " The lock is held, and its holder continues: if it runs this task, its result is still recorded; if it \
             records one at this moment, the result can be lost, and the task then runs again."
        }
    };
    what + force
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_0_to_60_seconds() {
        assert_eq!(period(None), Ok(None));
        for (text, seconds) in [("0", 0), ("60", 60), ("15s", 15)] {
            assert_eq!(period(Some(text)), Ok(Some(seconds)));
        }
        for text in ["", "61", "-1", "1.5", "1m", "now"] {
            assert!(period(Some(text)).is_err(), "{text}");
        }
    }
}
