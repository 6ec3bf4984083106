//! `trafficcop watch`: a line for each change of a lock, until somebody ends it. Called by main. It
//! looks as politely as a standby does, and must never acquire.

use std::future::pending;

use serde::Serialize;
use time::OffsetDateTime;

use super::place::{Place, Seen, answer, run};
use super::told::Told;
use crate::cli;
use crate::core::Failure;
use crate::core::retry::Chance;
use crate::exit::ExitAction;
use crate::plan;
use crate::report;
use crate::signals::{SignalEvent, Signals};

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    told: &'a Told,
    why: Option<&'a str>,
}

/// Watches until a signal ends us, or nobody reads any more.
///
/// # Errors
/// A [`crate::plan::UsageError`], or why there was nothing to see at the first look.
pub fn watch(typed: &cli::Watch) -> anyhow::Result<ExitAction> {
    let place = Place::of(&typed.lock)?;
    let poll = plan::poll(typed.poll.as_deref())?;
    let mut chance = Chance::new(fastrand::u64(..));
    run(async {
        let mut asked = asked_to_stop();
        let mut last: Vec<Told> = Vec::new();
        loop {
            let (seen, why) = match place.look_under_the_name().await {
                Ok(seen) => (Some(seen), None),
                // What was configured can never work; later it did, so that is passing.
                Err(fatal @ Failure::Fatal { .. }) if last.is_empty() => return Err(fatal.into()),
                Err(failure) => (None, Some(failure.to_string())),
            };
            let now = OffsetDateTime::now_utc();
            let told: Vec<Told> = match &seen {
                Some(seen) => seen.all().iter().map(|seen| Told::of(seen, now)).collect(),
                None => vec![Told::unknown(place.lock())],
            };
            let of_slots = matches!(seen, Some(Seen::Slots(_)));
            for told in &told {
                let before = last.iter().find(|before| before.lock == told.lock);
                if before.map(Told::gist) != Some(told.gist()) {
                    let text = line(told, why.as_deref(), typed.json, of_slots)?;
                    match answer(&text, ExitAction::Status(0))? {
                        ExitAction::Status(_) => {}
                        gone => return Ok(gone),
                    }
                }
            }
            last = told;
            tokio::select! {
                signal = asked.as_mut() => return Ok(ExitAction::Signal(signal)),
                () = tokio::time::sleep(chance.spread(poll)) => {}
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

fn line(told: &Told, why: Option<&str>, json: bool, of_slots: bool) -> anyhow::Result<String> {
    let time = report::now_utc();
    if json {
        return Ok(serde_json::to_string(&Line { time, told, why })? + "\n");
    }
    let why = why.map(|why| format!(": {}", report::plain(why)));
    let name = match of_slots {
        true => report::plain(&told.name) + ": ",
        false => String::new(),
    };
    Ok(format!(
        "{time} {name}{}{}\n",
        told.line(),
        why.unwrap_or_default()
    ))
}
