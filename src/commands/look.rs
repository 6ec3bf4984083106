//! `trafficcop status`, `list` and `watch`: who has a lock, which locks there are, and a line for each change of
//! one; and `completions`, which only answers. Called by main. They look as politely as a standby does, and
//! must never acquire.

use std::future::pending;

use serde::Serialize;
use time::OffsetDateTime;

use super::lock_target::{LockTarget, Seen, answer, run};
use super::lock_view::{LockView, table, whole_seconds};
use crate::args;
use crate::config;
use crate::core::Failure;
use crate::core::retry::Jitter;
use crate::exit::{self, ExitAction};
use crate::lease::inspect::LockStatus;
use crate::report::{self, plain};
use crate::signals::{SignalEvent, Signals};

/// As they are seen at this moment of the wall clock.
fn views(seen: &[LockStatus]) -> Vec<LockView> {
    let now = OffsetDateTime::now_utc();
    seen.iter().map(|seen| LockView::of(seen, now)).collect()
}

/// Answers, by what is printed and by the exit status.
///
/// # Errors
/// A [`crate::config::UsageError`], or what kept us from seeing it.
pub(crate) fn status(typed: &args::Status) -> anyhow::Result<ExitAction> {
    let target = LockTarget::of(&typed.lock)?;
    let seen = run(async { Ok(target.look_under_the_name_patiently().await?) })?;
    let view = views(seen.all());
    let leave = if view.iter().any(|view| view.held == Some(true)) {
        ExitAction::Status(0)
    } else {
        ExitAction::Status(exit::FREE)
    };
    let text = match (typed.json, &seen) {
        (true, Seen::Lock(_)) => serde_json::to_string(&view[0])? + "\n",
        (true, Seen::Slots(_)) => serde_json::to_string(&view)? + "\n",
        (false, _) => view.iter().map(LockView::lines).collect(),
    };
    answer(&text, leave)
}

const HEADER: [&str; 7] = [
    "LOCK", "STATE", "TOKEN", "HOLDER", "SINCE", "ONCE", "COMMAND",
];

/// Prints them.
///
/// # Errors
/// A [`crate::config::UsageError`], or what kept us from seeing them.
pub(crate) fn list(typed: &args::List) -> anyhow::Result<ExitAction> {
    let target = LockTarget::of_listing(typed)?;
    let seen = run(async { Ok(target.list().await?) })?;
    let view = views(&seen);
    let text = match typed.json {
        true => serde_json::to_string(&view)? + "\n",
        false => table(&HEADER, &view.iter().map(row).collect::<Vec<_>>()),
    };
    // On stderr: an empty list is a right answer, and a script goes on with it.
    if view.is_empty() {
        tracing::warn!("there are no locks in {}", target.lock());
    }
    answer(&text, ExitAction::Status(0))
}

/// Of a lock that is free only what remains true of it.
fn row(view: &LockView) -> Vec<String> {
    let held = |text: &Option<String>| {
        let text = text.as_deref().filter(|_| view.held == Some(true));
        text.map_or("-".to_owned(), plain)
    };
    let token = view.token.map_or("-".to_owned(), |token| token.to_string());
    vec![
        plain(&view.name),
        view.state.to_owned(),
        token,
        held(&view.holder),
        held(&view.since.as_deref().map(whole_seconds)),
        view.once_in_short(),
        held(&view.command),
    ]
}

/// A line of JSON.
#[derive(Serialize)]
struct ChangeLine<'a> {
    time: String,
    #[serde(flatten)]
    view: &'a LockView,
    why: Option<&'a str>,
}

/// Watches until a signal ends us, or nobody reads any more.
///
/// # Errors
/// A [`crate::config::UsageError`], or why there was nothing to see at the first look.
pub(crate) fn watch(typed: &args::Watch) -> anyhow::Result<ExitAction> {
    let target = LockTarget::of(&typed.lock)?;
    // Spread like a standby's: a dozen terminals that watch one lock must not ask in the same moment.
    let poll = typed.poll.clone().unwrap_or(Ok(config::DEFAULT_POLL))?;
    let mut jitter = Jitter::new(fastrand::u64(..));
    run(async {
        let mut asked = asked_to_stop();
        let mut last: Vec<LockView> = Vec::new();
        loop {
            let (seen, why) = match target.look_under_the_name().await {
                Ok(seen) => (Some(seen), None),
                // What was configured can never work; later it did, so that is passing.
                Err(fatal @ Failure::Fatal { .. }) if last.is_empty() => return Err(fatal.into()),
                Err(failure) => (None, Some(failure.to_string())),
            };
            let view = match &seen {
                Some(seen) => views(seen.all()),
                None => vec![LockView::unknown(target.lock())],
            };
            let of_slots = matches!(seen, Some(Seen::Slots(_)));
            for view in &view {
                let before = last.iter().find(|before| before.lock == view.lock);
                // Compared by who has it: the age changes with every look, and would be a line every two seconds.
                if before.map(LockView::gist) != Some(view.gist()) {
                    let text = line(view, why.as_deref(), typed.json, of_slots)?;
                    match answer(&text, ExitAction::Status(0))? {
                        ExitAction::Status(_) => {}
                        gone => return Ok(gone),
                    }
                }
            }
            last = view;
            tokio::select! {
                signal = asked.as_mut() => return Ok(ExitAction::Signal(signal)),
                () = tokio::time::sleep(jitter.spread(poll)) => {}
            }
            // Without a change nothing is written, and a pipe whose reader has gone would be watched for ever.
            if report::is_unread() {
                return Ok(ExitAction::Signal(libc::SIGPIPE));
            }
        }
    })
}

/// The signals that end every program end us too: there is nothing to give back. Only PID 1, which
/// they would not reach, has to listen for them.
fn asked_to_stop() -> std::pin::Pin<Box<dyn Future<Output = i32>>> {
    let listening = (std::process::id() == 1).then(Signals::listen);
    match listening {
        Some(Ok(mut signals)) => Box::pin(async move {
            loop {
                if let SignalEvent::Stop(signal) = signals.next().await {
                    return signal;
                }
            }
        }),
        _ => Box::pin(pending()),
    }
}

fn line(view: &LockView, why: Option<&str>, json: bool, of_slots: bool) -> anyhow::Result<String> {
    let time = report::now_utc();
    if json {
        return Ok(serde_json::to_string(&ChangeLine { time, view, why })? + "\n");
    }
    let why = why.map(|why| format!(": {}", report::plain(why)));
    let name = match of_slots {
        true => report::plain(&view.name) + ": ",
        false => String::new(),
    };
    Ok(format!(
        "{time} {name}{}{}\n",
        view.line(),
        why.unwrap_or_default()
    ))
}

/// `trafficcop completions`: writes a script for a shell.
///
/// # Errors
/// Where stdout cannot be written.
pub(crate) fn completions(typed: &args::Completions) -> anyhow::Result<ExitAction> {
    answer(&typed.script(), ExitAction::Status(0))
}
