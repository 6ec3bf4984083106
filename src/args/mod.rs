//! Flags: one item for each, with its help and its parser; and the relations between them.
//!
//! A meaningless value is no error here. A [`Checked`] refusal waits for the configuration, so that one place
//! makes every error.

/// Rows of a table for the help and the man pages: a name and what it means.
macro_rules! rows {
    ($($(#[$when:meta])? $name:literal => $meaning:expr,)*) => {
        &[$($(#[$when])? ($name, $meaning)),*]
    };
}

mod cli;
mod commands;
mod common;
mod elect;
mod others;
mod relations;
mod run;
mod usage;
mod values;
mod work;

pub use cli::*;
pub use commands::*;
pub use common::*;
pub use elect::*;
pub use others::*;
pub use run::*;
pub use usage::{log_format, refusal, with_variables};
pub use values::{Checked, ExitStatuses};
pub use work::*;
