//! What was typed of roles and hooks, made sense of. Called by the plan.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::UsageError;
use crate::args;

/// What runs besides the command, each by `sh -c`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// While we are not in control.
    pub standby: Option<OsString>,
    /// Once control was obtained, before the command.
    pub on_acquire: Option<OsString>,
    /// After control has ended.
    pub on_lost: Option<OsString>,
}

pub(super) fn roles(typed: args::Roles) -> Result<Roles, UsageError> {
    Ok(Roles {
        standby: script("--standby", typed.standby)?,
        on_acquire: script("--on-acquire", typed.on_acquire)?,
        on_lost: script("--on-lost", typed.on_lost)?,
    })
}

fn script(flag: &str, text: Option<OsString>) -> Result<Option<OsString>, UsageError> {
    let is_empty = |text: &OsStr| text.as_bytes().trim_ascii().is_empty();
    if text.as_deref().is_some_and(is_empty) {
        return Err(UsageError::new(format!(
            "{flag} is empty: name a command for sh, or leave it out"
        )));
    }
    Ok(text)
}
