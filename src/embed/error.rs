//! Reasons for having no control. A message must never name a flag.

use super::words;
use crate::core::{BudgetError, Cause, Ending};

/// Reason for having no control. Print it with `{}`: a `main` that returns it shows `Debug`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock or a setting cannot be used, or the store refused access or never answered.
    #[error("{why}")]
    Refused {
        /// Line with the failure, its reason and the remedy.
        why: String,
        /// Whether access was refused.
        denied: bool,
    },
    /// The budget is invalid.
    #[error("{}", words::of_a_program(&.0.to_string()))]
    Budget(#[from] BudgetError),
    /// No tokio runtime is running.
    #[error("no tokio runtime runs here: call it inside of one")]
    NoRuntime,
    /// The competition is over.
    #[error("{lock}: the competition for control is over: {why}")]
    Over {
        /// Name of the lock.
        lock: String,
        /// Reason, in one line.
        why: String,
    },
    /// The competing task panicked, or its runtime was shut down.
    #[error("the task that competes for control ended early: {0}")]
    Failed(String),
}

impl Error {
    pub(super) fn refused(why: impl ToString) -> Error {
        Error::of_store(&why.to_string(), false)
    }

    pub(super) fn of_store(why: &str, denied: bool) -> Error {
        let why = words::of_a_program(why);
        Error::Refused { why, denied }
    }

    pub(super) fn of_ending(lock: &str, ending: &Ending) -> Error {
        let why = match &ending.cause {
            // Most stores name the lock themselves.
            Cause::Store { why, denied } if why.contains(lock) => {
                return Error::of_store(why, *denied);
            }
            Cause::Store { why, denied } => {
                return Error::of_store(&format!("{lock}: {why}"), *denied);
            }
            Cause::Stopped(_) if !ending.released => {
                "it was stopped, and its lease was not given back and runs out by itself".to_owned()
            }
            Cause::Stopped(_) => "it was stopped".to_owned(),
            Cause::Doubt { why } | Cause::Lost { why } => words::of_a_program(why),
            // Only for a command, or for a custom store.
            other => format!("{other:?}"),
        };
        Error::Over {
            lock: lock.to_owned(),
            why,
        }
    }
}

/// Control was lost before the work was done.
///
/// The cause is not reported: a silent store, a lease that was taken or broken, a late watchdog, or a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("control was lost: the work was dropped before it was done")]
#[non_exhaustive]
pub struct Lost;
