//! `trafficcop watch`: a line for each change of a lock, until somebody ends it. Called by main. It
//! looks as politely as a standby does, and must never acquire.

use std::future::pending;

use serde::Serialize;
use time::OffsetDateTime;

use super::place::{Place, answer, run};
use super::told::Told;
use crate::cli;
use crate::core::Failure;
use crate::core::retry::Chance;
use crate::exit::Leave;
use crate::plan;
use crate::report;
use crate::signals::{Asked, Signals};

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
/// A [`crate::plan::Refusal`], or why there was nothing to see at the first look.
pub fn watch(typed: &cli::Watch) -> anyhow::Result<Leave> {
    let place = Place::of(&typed.lock)?;
    let poll = plan::poll(typed.poll.as_deref())?;
    let mut chance = Chance::new(fastrand::u64(..));
    run(async {
        let mut asked = asked_to_stop();
        let mut last: Option<Told> = None;
        loop {
            let (told, why) = match place.look().await {
                Ok(seen) => (Told::of(&seen, OffsetDateTime::now_utc()), None),
                // What was configured can never work; later it did, so that is passing.
                Err(fatal @ Failure::Fatal { .. }) if last.is_none() => return Err(fatal.into()),
                Err(failure) => (Told::unknown(place.lock()), Some(failure.to_string())),
            };
            if last.as_ref().map(Told::gist) != Some(told.gist()) {
                let text = line(&told, why.as_deref(), typed.json)?;
                match answer(&text, Leave::Status(0))? {
                    Leave::Status(_) => {}
                    gone => return Ok(gone),
                }
                last = Some(told);
            }
            tokio::select! {
                signal = asked.as_mut() => return Ok(Leave::Signal(signal)),
                () = tokio::time::sleep(chance.spread(poll)) => {}
            }
            if report::is_unread() {
                return Ok(Leave::Signal(libc::SIGPIPE));
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
                if let Asked::Stop(signal) = signals.next().await {
                    return signal;
                }
            }
        }),
        _ => Box::pin(pending()),
    }
}

fn line(told: &Told, why: Option<&str>, json: bool) -> anyhow::Result<String> {
    let time = report::now_utc();
    if json {
        return Ok(serde_json::to_string(&Line { time, told, why })? + "\n");
    }
    let why = why.map(|why| format!(": {}", report::plain(why)));
    Ok(format!(
        "{time} {}{}\n",
        told.line(),
        why.unwrap_or_default()
    ))
}
