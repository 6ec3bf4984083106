//! `trafficcop status`: who has a lock. Called by main. It must never acquire.

use time::OffsetDateTime;

use super::place::{Place, Seen, answer, run};
use super::told::Told;
use crate::cli;
use crate::exit::{self, ExitAction};

/// Answers, by what is printed and by the exit status.
///
/// # Errors
/// A [`crate::plan::UsageError`], or what kept us from seeing it.
pub fn status(typed: &cli::Status) -> anyhow::Result<ExitAction> {
    let place = Place::of(&typed.lock)?;
    let seen = run(async { Ok(place.look_under_the_name_patiently().await?) })?;
    let now = OffsetDateTime::now_utc();
    let told: Vec<Told> = seen.all().iter().map(|seen| Told::of(seen, now)).collect();
    let leave = if told.iter().any(|told| told.held == Some(true)) {
        ExitAction::Status(0)
    } else {
        ExitAction::Status(exit::FREE)
    };
    let text = match (typed.json, &seen) {
        (true, Seen::Lock(_)) => serde_json::to_string(&told[0])? + "\n",
        (true, Seen::Slots(_)) => serde_json::to_string(&told)? + "\n",
        (false, _) => told.iter().map(Told::lines).collect(),
    };
    answer(&text, leave)
}
