//! `trafficcop watch`: a line for each change of a lock, until somebody ends it. Called by main. It
//! looks as politely as a standby does, and must never acquire.

use std::future::pending;

use serde::Serialize;
use time::OffsetDateTime;

use super::lock_target::{LockTarget, Seen, answer, run};
use super::lock_view::LockView;
use crate::args;
use crate::config;
use crate::core::Failure;
use crate::core::retry::Jitter;
use crate::exit::ExitAction;
use crate::report;
use crate::signals::{SignalEvent, Signals};

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
pub fn watch(typed: &args::Watch) -> anyhow::Result<ExitAction> {
    let target = LockTarget::of(&typed.lock)?;
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
            let now = OffsetDateTime::now_utc();
            let view: Vec<LockView> = match &seen {
                Some(seen) => seen
                    .all()
                    .iter()
                    .map(|seen| LockView::of(seen, now))
                    .collect(),
                None => vec![LockView::unknown(target.lock())],
            };
            let of_slots = matches!(seen, Some(Seen::Slots(_)));
            for view in &view {
                let before = last.iter().find(|before| before.lock == view.lock);
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
