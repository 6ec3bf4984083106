//! `trafficcop list`: the locks of a container or a directory. Called by main. It must never
//! acquire.

use time::OffsetDateTime;

use super::place::{Place, answer, run};
use super::told::{Told, table, whole_seconds};
use crate::cli;
use crate::exit::ExitAction;
use crate::report::plain;

const HEADER: [&str; 7] = [
    "LOCK", "STATE", "TOKEN", "HOLDER", "SINCE", "ONCE", "COMMAND",
];

/// Prints them.
///
/// # Errors
/// A [`crate::plan::UsageError`], or what kept us from seeing them.
pub fn list(typed: &cli::List) -> anyhow::Result<ExitAction> {
    let place = Place::of_listing(typed)?;
    let seen = run(async { Ok(place.list().await?) })?;
    let now = OffsetDateTime::now_utc();
    let told: Vec<Told> = seen.iter().map(|seen| Told::of(seen, now)).collect();
    let text = match typed.json {
        true => serde_json::to_string(&told)? + "\n",
        false => table(&HEADER, &told.iter().map(row).collect::<Vec<_>>()),
    };
    if told.is_empty() {
        tracing::warn!("there are no locks in {}", place.lock());
    }
    answer(&text, ExitAction::Status(0))
}

/// Of a lock that is free only what remains true of it.
fn row(told: &Told) -> Vec<String> {
    let held = |text: &Option<String>| {
        let text = text.as_deref().filter(|_| told.held == Some(true));
        text.map_or("-".to_owned(), plain)
    };
    let token = told.token.map_or("-".to_owned(), |token| token.to_string());
    vec![
        plain(&told.name),
        told.state.to_owned(),
        token,
        held(&told.holder),
        held(&told.since.as_deref().map(whole_seconds)),
        told.once_in_short(),
        held(&told.command),
    ]
}
