//! The command: there is one, and no argument was meant for trafficcop.

use std::ffi::OsString;

use super::UsageError;
use crate::args;

pub(super) fn refuse_no_command(command: &[OsString], missing: &str) -> Result<(), UsageError> {
    match command.first() {
        None => Err(UsageError::new(missing)),
        Some(program) if program.is_empty() => {
            refuse!("the command's name is empty: is a variable after -- unset?")
        }
        Some(_) => Ok(()),
    }
}

/// Refuses a word right before `--`: it would run as the command.
pub(crate) fn refuse_a_word_before(
    words: &[OsString],
    command: &[OsString],
) -> Result<(), UsageError> {
    let behind = words.iter().skip_while(|word| *word != "--").count();
    match command {
        [word, dashes, rest @ ..] if dashes == "--" && behind == rest.len() + 1 => {
            refuse!(
                "no flag takes '{}', so it would be the command: put the whole command after --, quote a value with \
                 spaces, and write --doorbell and --page-blob with '='",
                word.display()
            )
        }
        _ => Ok(()),
    }
}

/// Refuses a missing lock, if the command's arguments seem to name one.
pub(super) fn refuse_a_lock_behind(
    typed: &args::Common,
    command: &[OsString],
) -> Result<(), UsageError> {
    if typed.blob.is_some() || typed.file.is_some() || typed.store.is_some() {
        return Ok(());
    }
    let words = command.iter().filter_map(|word| word.to_str());
    let is_an_address = |word: &str| {
        word.parse::<std::net::SocketAddr>().is_ok() || word.parse::<std::net::IpAddr>().is_ok()
    };
    if let Some(address) = words.clone().next().filter(|word| is_an_address(word))
        && typed.doorbell.is_some()
    {
        refuse!("--doorbell takes its address after '=': write --doorbell={address}");
    }
    let mut flags = words.map(|word| word.split('=').next().unwrap_or(word));
    match flags.find(|flag| ["--blob", "--file", "--store"].contains(flag)) {
        Some(flag) => refuse!(
            "no lock: {flag} after the command belongs to the command: name the lock before it, \
             as in 'trafficcop run {flag} ... -- ./job'"
        ),
        None => Ok(()),
    }
}
