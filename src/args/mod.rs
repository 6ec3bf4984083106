//! Flags: one item for each, with its help, its variable and its parser. `main` parses
//! with it, `config` makes sense of it.
//!
//! A value that means nothing is no error here: it is kept as a [`Checked`] refusal for the
//! configuration, so that an error is one line and made in one place.
//!
//! | file | purpose |
//! |---|---|
//! | `cli`, `precedence` | the definition of all verbs and its parsing; what is typed beats what the environment says |
//! | `common` | flags that more than one verb has |
//! | `run`, `elect`, `work` | what drives something while it has control |
//! | `commands`, `others` | what looks at locks and intervenes; what asks no store |
//! | `values` | how values are typed |
//! | `usage` | what cannot be parsed, said in one line |

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
mod precedence;
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
