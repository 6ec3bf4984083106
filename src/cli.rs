//! The command line: parses it, checks it, runs the verb, and returns an exit status.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;

use crate::exit::{self, ExitAction, UsageError};
use crate::runtime::check_stack_limit;
use crate::{args, commands, config, elect, guardian, report, run, work};

/// Refuses a stack limit under which [`main`] would crash.
///
/// # Errors
/// The way in which the process is to end.
pub fn check_stack() -> Result<(), ExitAction> {
    check_stack_limit().map_err(|refusal| {
        report::init(report::Format::Text, report::Volume::Quiet, None);
        report::failure(&refusal.into());
        ExitAction::Status(exit::UNAVAILABLE)
    })
}

fn is_in_quotes(value: &OsStr) -> bool {
    match value.as_encoded_bytes() {
        [first @ (b'"' | b'\''), inner @ .., last] => first == last && !inner.contains(first),
        _ => false,
    }
}

/// Runs the program `trafficcop`, and returns how the process is to end.
pub fn main(words: Vec<OsString>) -> ExitAction {
    guardian::leave_by_the_guardians(report::last_words);
    let typed = match args::parse(words.iter().cloned()) {
        Ok(typed) => typed,
        Err(error) => {
            let Some(refusal) = args::refusal(&error, &words) else {
                let usage = error.use_stderr();
                return match error.print() {
                    // A reader that has read enough is no error.
                    Err(why) if !usage && why.kind() != ErrorKind::BrokenPipe => {
                        report::init(report::Format::Text, report::Volume::Quiet, None);
                        let error = anyhow::Error::new(why).context("cannot write to stdout");
                        report::failure(&error);
                        ExitAction::of_error(&error)
                    }
                    _ => ExitAction::Status(if usage { exit::USAGE } else { 0 }),
                };
            };
            let format = args::log_format(&words, std::env::var_os("TRAFFICCOP_LOG"));
            let journal = std::env::var_os("JOURNAL_STREAM");
            report::init(format, report::Volume::Quiet, journal);
            let refusal = anyhow::Error::from(refusal);
            report::failure(&refusal);
            return ExitAction::of_error(&refusal);
        }
    };
    let (format, volume) = match &typed.verb {
        args::Verb::Run(typed) => (typed.common.operations.log, (&typed.common).into()),
        args::Verb::Elect(typed) => (typed.common.operations.log, (&typed.common).into()),
        args::Verb::Work(typed) => (typed.operations.log, (&typed.operations).into()),
        args::Verb::Announce(_) | args::Verb::Check(_) => {
            (report::Format::Text, report::Volume::Normal)
        }
        _ => (report::Format::Text, report::Volume::Quiet),
    };
    report::init(format, volume, std::env::var_os("JOURNAL_STREAM"));
    if typed.verb.reads_settings() {
        let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
        let (names, values): (Vec<_>, Vec<_>) = set.unzip();
        for (name, value) in names.iter().zip(&values) {
            if name.as_encoded_bytes().starts_with(b"TRAFFICCOP_") && is_in_quotes(value) {
                let name = name.display();
                tracing::warn!(
                    "the value of {name} is in quotes, which are part of it (docker's --env-file keeps them): \
                     remove them"
                );
            }
        }
        for name in args::unknown(names) {
            tracing::warn!(
                "{name} is no setting of trafficcop and changes nothing: check its name"
            );
        }
    }
    let ended = match typed.verb {
        args::Verb::Run(typed) => config::refuse_a_word_before(&words, &typed.command)
            .and_then(|()| config::Config::new(*typed, &config::Host::here()))
            .map_err(anyhow::Error::from)
            .and_then(run::run),
        args::Verb::Elect(typed) => config::Config::of_elect(*typed, &config::Host::here())
            .map_err(anyhow::Error::from)
            .and_then(|(config, telling)| elect::elect(config, &telling)),
        args::Verb::Work(typed) => config::refuse_a_word_before(&words, &typed.command)
            .and_then(|()| config::Work::new(*typed, &config::Host::here()))
            .map_err(anyhow::Error::from)
            .and_then(work::work),
        args::Verb::Announce(typed) => elect::announce(&typed),
        args::Verb::Check(typed) => commands::check(&typed),
        args::Verb::Status(typed) => commands::status(&typed),
        args::Verb::List(typed) => commands::list(&typed),
        args::Verb::Watch(typed) => commands::watch(&typed),
        args::Verb::Break(typed) => commands::break_lease(&typed),
        args::Verb::Reset(typed) => commands::reset(&typed),
        args::Verb::Completions(typed) => commands::completions(&typed),
        args::Verb::Man(typed) => commands::man(&typed),
        args::Verb::Doctor(typed) => commands::doctor(&typed),
        args::Verb::FindLocked(typed) => commands::find_locked(&typed),
        args::Verb::Timeline(typed) => commands::timeline(&typed),
    };
    match ended {
        Ok(leave) => leave,
        Err(error) => {
            let error = match error.downcast::<UsageError>() {
                Ok(refusal) => {
                    args::with_variables(refusal, &words, |name| std::env::var_os(name)).into()
                }
                Err(error) => error,
            };
            report::failure(&error);
            ExitAction::of_error(&error)
        }
    }
}
