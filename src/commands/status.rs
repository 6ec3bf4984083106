//! `trafficcop status`: who has a lock. Called by main. It must never acquire.

use time::OffsetDateTime;

use super::lock_target::{LockTarget, Seen, answer, run};
use super::lock_view::LockView;
use crate::args;
use crate::exit::{self, ExitAction};

/// Answers, by what is printed and by the exit status.
///
/// # Errors
/// A [`crate::config::UsageError`], or what kept us from seeing it.
pub fn status(typed: &args::Status) -> anyhow::Result<ExitAction> {
    let target = LockTarget::of(&typed.lock)?;
    let seen = run(async { Ok(target.look_under_the_name_patiently().await?) })?;
    let now = OffsetDateTime::now_utc();
    let view: Vec<LockView> = seen
        .all()
        .iter()
        .map(|seen| LockView::of(seen, now))
        .collect();
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
