//! `trafficcop list`: the locks of a container or a directory. Called by main. It must never
//! acquire.

use time::OffsetDateTime;

use super::lock_target::{LockTarget, answer, run};
use super::lock_view::{LockView, table, whole_seconds};
use crate::args;
use crate::exit::ExitAction;
use crate::report::plain;

const HEADER: [&str; 7] = [
    "LOCK", "STATE", "TOKEN", "HOLDER", "SINCE", "ONCE", "COMMAND",
];

/// Prints them.
///
/// # Errors
/// A [`crate::config::UsageError`], or what kept us from seeing them.
pub fn list(typed: &args::List) -> anyhow::Result<ExitAction> {
    let target = LockTarget::of_listing(typed)?;
    let seen = run(async { Ok(target.list().await?) })?;
    let now = OffsetDateTime::now_utc();
    let view: Vec<LockView> = seen.iter().map(|seen| LockView::of(seen, now)).collect();
    let text = match typed.json {
        true => serde_json::to_string(&view)? + "\n",
        false => table(&HEADER, &view.iter().map(row).collect::<Vec<_>>()),
    };
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
