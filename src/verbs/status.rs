//! `trafficcop status`: who has a lock. Called by main. It must never acquire.

use time::OffsetDateTime;

use super::place::{Place, answer, run};
use super::told::Told;
use crate::cli;
use crate::exit::{self, Leave};

/// Answers, by what is printed and by the exit status.
///
/// # Errors
/// A [`crate::plan::Refusal`], or what kept us from seeing it.
pub fn status(typed: &cli::Status) -> anyhow::Result<Leave> {
    let place = Place::of(&typed.lock)?;
    let seen = run(async { Ok(place.look_patiently().await?) })?;
    let told = Told::of(&seen, OffsetDateTime::now_utc());
    let leave = match told.held {
        Some(true) => Leave::Status(0),
        _ => Leave::Status(exit::FREE),
    };
    let text = match typed.json {
        true => serde_json::to_string(&told)? + "\n",
        false => told.lines(),
    };
    answer(&text, leave)
}
