//! `trafficcop break`: ends another's lease, after saying what that does to him. Called by main. It
//! must never break what it has not shown, nor without a yes.

use std::time::Duration;

use time::OffsetDateTime;

use super::lock_target::{LockTarget, answer, run};
use super::lock_view::LockView;
use crate::args;
use crate::clock::Instant;
use crate::config::{self, UsageError};
use crate::core::Failure;
use crate::core::observed::{LONGEST_LEASE, SHORTEST_LEASE};
use crate::exit::{self, ExitAction};
use crate::lease::inspect::{Broken, LockState, LockStatus};
use crate::lease::{blob, file};
use crate::report;

/// How long the request may take.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// The longest period the service knows, in seconds.
const LONGEST: u8 = 60;
/// How often we look again because the holder wrote while it was asked: he renews his record when
/// he begins to drain.
const LOOKS: usize = 3;

/// Breaks.
///
/// # Errors
/// A [`UsageError`], or what the service says.
pub fn break_lease(typed: &args::Break) -> anyhow::Result<ExitAction> {
    let period = period(typed.period.as_deref())?;
    let target = LockTarget::of(&typed.lock)?;
    let seen = run(target.look_at_one())?;
    let view = LockView::of(&seen, OffsetDateTime::now_utc());
    if let LockTarget::File(file) = &target {
        if !file.is_shared() {
            return Err(of_file(&view).into());
        }
        refuse_short(period)?;
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
    if !typed.yes {
        match report::ask("Break it?")? {
            Some(true) => {}
            Some(false) => {
                return answer("nothing was broken\n", ExitAction::Status(exit::NOT_BROKEN));
            }
            None => {
                return Err(UsageError::new(
                    "nothing was broken: there is no terminal to ask at: say --yes",
                )
                .into());
            }
        }
    }
    let broken = match &target {
        LockTarget::Blob(blob) => run(async { Ok(attempt(blob, seen, period).await?) })?,
        LockTarget::File(file) => run(async { Ok(on_drive(file, &seen, period).await?) })?,
    };
    match broken {
        Broken::Within(rest) if rest.is_zero() => answer(
            "broken: others can have control now\n",
            ExitAction::Status(0),
        ),
        Broken::Within(rest) => answer(
            &format!(
                "broken: others can have control in {} seconds\n",
                rest.as_secs()
            ),
            ExitAction::Status(0),
        ),
        Broken::Free => answer(
            "the lease has ended meanwhile: nothing was broken\n",
            ExitAction::Status(exit::NOT_BROKEN),
        ),
        Broken::Overtaken => answer(
            "its holder renewed it each time: nothing was broken; try again\n",
            ExitAction::Status(exit::NOT_BROKEN),
        ),
        Broken::Changed => answer(
            "the lock has changed hands meanwhile: nothing was broken; look again\n",
            ExitAction::Status(exit::NOT_BROKEN),
        ),
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

/// Whoever watches a lease on a shared drive knows no shorter one.
fn refuse_short(period: Option<u8>) -> Result<(), UsageError> {
    let spans = SHORTEST_LEASE..=LONGEST_LEASE;
    match period {
        Some(seconds) if seconds > 0 && !spans.contains(&Duration::from_secs(seconds.into())) => {
            Err(UsageError::new(format!(
                "--period {seconds}: on a shared drive take 0, or 10 to {LONGEST} seconds"
            )))
        }
        _ => Ok(()),
    }
}

/// The same on a shared drive.
async fn on_drive(
    file: &file::Inspector,
    seen: &LockStatus,
    period: Option<u8>,
) -> Result<Broken, Failure> {
    let here = config::Host::here();
    let by = format!("{}-{} (break)", here.host, here.pid);
    let record = seen.record.clone().unwrap_or_default();
    let period = period.map(|seconds| Duration::from_secs(seconds.into()));
    // Its holder writes every few seconds, and what we write takes as long as the drive takes for it.
    let end = Instant::now() + LIMIT * 3;
    let mut broken = Broken::Overtaken;
    while broken == Broken::Overtaken && Instant::now() < end {
        let limit = Instant::now() + LIMIT;
        broken = file.break_lease(&record, period, &by, limit).await?;
    }
    Ok(broken)
}

/// Breaks the lease of the tenure that was shown, and no other.
pub(super) async fn attempt(
    blob: &blob::Inspector,
    mut seen: LockStatus,
    period: Option<u8>,
) -> Result<Broken, Failure> {
    let tenure = |seen: &LockStatus| seen.record.as_ref().map(|record| record.token);
    let shown = tenure(&seen);
    for _ in 0..LOOKS {
        let limit = Instant::now() + LIMIT;
        let broken = blob
            .break_lease(period, seen.version.as_deref(), limit)
            .await?;
        if broken != Broken::Changed {
            return Ok(broken);
        }
        seen = blob.look(Instant::now() + LIMIT).await?;
        match seen.state {
            LockState::Missing | LockState::Free => return Ok(Broken::Free),
            LockState::Held | LockState::Breaking if tenure(&seen) == shown => {}
            LockState::Held | LockState::Breaking => break,
        }
    }
    Ok(Broken::Changed)
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
