//! `trafficcop break`: ends another's lease, after saying what that does to him. Called by main. It
//! must never break what it has not shown, nor without a yes.

use std::time::Duration;

use time::OffsetDateTime;

use super::lock_target::{LockTarget, answer, run};
use super::lock_view::LockView;
use crate::args;
use crate::config::{self, UsageError};
use crate::exit::{self, ExitAction};
use crate::lease::inspect::{Broken, LockState};
use crate::report;

/// The longest period the service knows, in seconds.
const LONGEST: u8 = 60;
/// Breaks.
///
/// # Errors
/// A [`UsageError`], or what the service says.
pub(crate) fn break_lease(typed: &args::Break) -> anyhow::Result<ExitAction> {
    let period = period(typed.period.as_deref())?;
    let target = LockTarget::of(&typed.lock)?;
    let seen = run(target.look_at_one())?;
    let view = LockView::of(&seen, OffsetDateTime::now_utc());
    match target.0.manner().shortest_break {
        Some(shortest) => refuse_short(period, shortest)?,
        None => return Err(of_file(&view).into()),
    }
    if view.held != Some(true) {
        let nothing = format!("{}: {}: nothing to break\n", view.lock, view.words());
        return answer(&nothing, ExitAction::Status(exit::NOT_BROKEN));
    }
    let what = view.lines() + &consequence(period, seen.state) + "\n";
    let written = answer(&what, ExitAction::Status(0))?;
    if written != ExitAction::Status(0) {
        return Ok(written);
    }
    let here = config::Host::here();
    let by = format!("{}-{} (break)", here.host, here.pid);
    let broken = match typed.yes || confirmed("Break it?", "broken")? {
        true => run(async { Ok(target.0.break_lease(seen, period, &by).await?) })?,
        false => return answer("nothing was broken\n", ExitAction::Status(exit::NOT_BROKEN)),
    };
    let (text, status) = match broken {
        Broken::Within(Duration::ZERO) => ("broken: others can have control now\n".to_owned(), 0),
        Broken::Within(rest) => {
            let seconds = rest.as_secs();
            (
                format!("broken: others can have control in {seconds} seconds\n"),
                0,
            )
        }
        nothing => {
            let why = match nothing {
                Broken::Free => "the lease has ended meanwhile: nothing was broken\n",
                Broken::Overtaken => {
                    "its holder renewed it each time: nothing was broken; try again\n"
                }
                _ => "the lock has changed hands meanwhile: nothing was broken; look again\n",
            };
            (why.to_owned(), exit::NOT_BROKEN)
        }
    };
    answer(&text, ExitAction::Status(status))
}

/// Asks at the terminal; what would otherwise have been `done` was not, where nobody can be asked.
pub(super) fn confirmed(question: &str, done: &str) -> anyhow::Result<bool> {
    report::ask(question)?.ok_or_else(|| {
        UsageError::new(format!(
            "nothing was {done}: there is no terminal to ask at: say --yes"
        ))
        .into()
    })
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

/// Whoever watches a lease on a shared drive knows no shorter one.
fn refuse_short(period: Option<u8>, shortest: u8) -> Result<(), UsageError> {
    match period {
        Some(seconds) if seconds > 0 && seconds < shortest => Err(UsageError::new(format!(
            "--period {seconds}: on a shared drive take 0, or {shortest} to {LONGEST} seconds"
        ))),
        _ => Ok(()),
    }
}

/// What will happen, before it does.
fn consequence(period: Option<u8>, state: LockState) -> String {
    let already = match state {
        LockState::Breaking => "Its lease is breaking already; that can only be made shorter. ",
        _ => "",
    };
    let what = match period {
        None => "The lease ends when its time is over, within 60 seconds. Its holder learns of it \
            with its next renewal and has stopped its command by then; then others can have control."
            .to_owned(),
        Some(0) => "Others can have control AT ONCE. Its holder learns of it with its next renewal \
            (a third of its lease away at most: 5 to 20 seconds) and then kills its command: until \
            then it can run beside another's."
            .to_owned(),
        Some(seconds) => format!(
            "Others can have control in {seconds} seconds, or when the lease ends before. Its holder \
             learns of it with its next renewal (a third of its lease away at most: 5 to 20 seconds) \
             and stops its command in what is left of them; if nothing is left it kills it, and until \
             then it can run beside another's."
        ),
    };
    format!("{already}{what} It competes again, unless it runs with --if-lost exit.")
}

fn of_file(view: &LockView) -> UsageError {
    let lock = &view.lock;
    if view.held != Some(true) {
        return UsageError::new(format!(
            "{lock}: a lock on a file cannot be broken, and this one is free"
        ));
    }
    let who = match (view.pid, &view.host) {
        (Some(pid), Some(host)) => format!("end its holder: 'kill {pid}' on {host}"),
        _ => "end its holder".to_owned(),
    };
    UsageError::new(format!(
        "{lock}: a lock on a local file is the kernel's and cannot be broken: {}, or find out with 'fuser -v' \
         which processes have the file open; its record names {}",
        report::plain(&who),
        view.who().unwrap_or_else(|| "nobody".to_owned())
    ))
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
