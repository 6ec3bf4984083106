//! `trafficcop completions`: a script for a shell. Called by main.

use super::place::answer;
use crate::cli;
use crate::exit::ExitAction;

/// Writes it.
///
/// # Errors
/// Where stdout cannot be written.
pub fn completions(typed: &cli::Completions) -> anyhow::Result<ExitAction> {
    answer(&typed.script(), ExitAction::Status(0))
}
