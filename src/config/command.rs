//! The command that was typed: that there is one, and that nothing behind it was meant for us.

use std::ffi::OsString;

use super::UsageError;
use crate::args;

pub(super) fn refuse_no_command(command: &[OsString], missing: &str) -> Result<(), UsageError> {
    match command.first() {
        None => Err(UsageError::new(missing)),
        Some(program) if program.is_empty() => Err(UsageError::new(
            "the command's name is empty: is a variable unset in what was typed after --?",
        )),
        Some(_) => Ok(()),
    }
}

/// Where no lock was named before the command, and behind it one seems to be.
pub(super) fn refuse_a_lock_behind(
    typed: &args::Common,
    command: &[OsString],
) -> Result<(), UsageError> {
    if typed.blob.is_some() || typed.file.is_some() {
        return Ok(());
    }
    let words = command.iter().filter_map(|word| word.to_str());
    let mut flags = words.map(|word| word.split('=').next().unwrap_or(word));
    match flags.find(|flag| ["--blob", "--file"].contains(flag)) {
        Some(flag) => Err(UsageError::new(format!(
            "no lock: {flag} stands behind the command, and all of that is the command's: name the lock before it, as in 'trafficcop run {flag} ... -- ./job'"
        ))),
        None => Ok(()),
    }
}
