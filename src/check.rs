//! `trafficcop check`: answers a script's "am I still in control?" by its exit status.
//!
//! Called by main, and by nobody who runs a command. It asks no store, only the control file of
//! the command it is a part of.

use std::time::Duration;

use crate::args;
use crate::config::UsageError;
use crate::deadline::{Deadline, DeadlineError};
use crate::exit::{self, ExitAction};
use crate::report;

/// What `--remaining` says where there is no deadline: the greatest the control file can hold.
const FOR_EVER: Duration = Duration::from_nanos(u64::MAX);

/// Answers.
///
/// # Errors
/// A [`UsageError`] outside of a command, and what keeps the control file from being read.
pub(crate) fn check(typed: &args::Check) -> anyhow::Result<ExitAction> {
    let deadline = Deadline::from_env().map_err(|why| match why {
        DeadlineError::Outside => UsageError::new(why.to_string()).into(),
        DeadlineError::None | DeadlineError::Unreadable { .. } => anyhow::Error::new(why),
    })?;
    let remaining = deadline.remaining();
    if typed.remaining {
        report::answer(&remaining.min(FOR_EVER).as_secs().to_string());
    }
    Ok(ExitAction::Status(if remaining.is_zero() {
        exit::NOT_IN_CONTROL
    } else {
        0
    }))
}
