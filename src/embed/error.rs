//! Why there is no control to be had, or none any more. Made by the types of the library's face. A message
//! must never name a flag of the command line.

use super::words;
use crate::core::{BudgetError, Cause, Ending};

/// Why there is no control to be had, or none any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was named cannot be the lock, the store did not let us in or was out of reach from the
    /// beginning, or a setting cannot hold.
    #[error("{why}")]
    Refused {
        /// One line for a person: what, why, and what to do.
        why: String,
        /// Not authorised or no permission, rather than not usable.
        denied: bool,
    },
    /// The lease's time cannot be divided so.
    #[error("{}", words::of_a_program(&.0.to_string()))]
    Budget(#[from] BudgetError),
    /// There is no tokio runtime to compete on.
    #[error("no tokio runtime runs here: call it inside of one")]
    NoRuntime,
    /// The competition is over.
    #[error("{lock}: the competition for control is over: {why}")]
    Over {
        /// The lock's name.
        lock: String,
        /// One line for a person.
        why: String,
    },
    /// The task that competes ended early: its runtime was shut down, or it panicked.
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

    /// Why a competition for `lock` that ended so gives no control.
    pub(super) fn of_ending(lock: &str, ending: &Ending) -> Error {
        let why = match &ending.cause {
            // Most stores name the lock themselves; twice in one line is once too often.
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
            // What only a command brings about, or a store of the program's own.
            other => format!("{other:?}"),
        };
        Error::Over {
            lock: lock.to_owned(),
            why,
        }
    }
}

/// Control was lost before the work was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("control was lost: the work was dropped before it was done")]
#[non_exhaustive]
pub struct Lost;
