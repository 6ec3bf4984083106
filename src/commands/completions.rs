//! `trafficcop completions`: a script for a shell. Called by main.

use super::lock_target::answer;
use crate::args;
use crate::exit::ExitAction;

/// Writes it.
///
/// # Errors
/// Where stdout cannot be written.
pub(crate) fn completions(typed: &args::Completions) -> anyhow::Result<ExitAction> {
    answer(&typed.script(), ExitAction::Status(0))
}
