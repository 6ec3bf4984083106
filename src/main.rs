//! Parse, plan, run, leave. The guardian is forked inside `run`, so no thread may exist before it.

#![no_main]

use std::ffi::{OsString, c_char, c_int};

use trafficcop::exit::{self, ExitAction};
use trafficcop::{check, cli, elect, guardian, plan, report, run, timeline, verbs, work};

/// What the C library calls, without Rust's own start between: see [`guardian::begin`].
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    // SAFETY: they come from the C library as they are, and nothing was started yet.
    let words = unsafe { guardian::begin(count, words) };
    guardian::leave_by_the_guardians(report::last_words);
    perform(words).go()
}

fn perform(words: Vec<OsString>) -> ExitAction {
    let typed = match cli::parse(words) {
        Ok(typed) => typed,
        Err(error) => {
            // Nothing can be done where even this cannot be written.
            let _closed = error.print();
            return ExitAction::Status(if error.use_stderr() { exit::USAGE } else { 0 });
        }
    };
    let (format, volume) = match &typed.verb {
        cli::Verb::Run(typed) => (typed.common.log.into(), (&typed.common).into()),
        cli::Verb::Elect(typed) => (typed.common.log.into(), (&typed.common).into()),
        cli::Verb::Work(typed) => (typed.log.into(), (&**typed).into()),
        cli::Verb::Announce(_) | cli::Verb::Check(_) => {
            (report::Format::Text, report::Volume::Normal)
        }
        // Their answers are on stdout: only what is wrong is logged.
        _ => (report::Format::Text, report::Volume::Quiet),
    };
    report::init(format, volume, std::env::var_os("JOURNAL_STREAM"));
    if typed.verb.reads_settings() {
        let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
        for name in cli::unknown(set.map(|(name, _)| name)) {
            tracing::warn!("{name} is no setting of trafficcop: it does nothing; is it mistyped?");
        }
    }
    if let cli::Verb::Run(typed) = &typed.verb
        && typed.common.log == cli::Log::Text
        && volume != report::Volume::Quiet
    {
        report::show_the_wait(std::env::var("TERM").ok().as_deref());
    }
    let ended = match typed.verb {
        cli::Verb::Run(typed) => plan::Plan::new(*typed, &plan::Place::here())
            .map_err(anyhow::Error::from)
            .and_then(run::run),
        cli::Verb::Elect(typed) => plan::Plan::of_elect(*typed, &plan::Place::here())
            .map_err(anyhow::Error::from)
            .and_then(|(plan, telling)| elect::elect(plan, &telling)),
        cli::Verb::Work(typed) => plan::Work::new(*typed, &plan::Place::here())
            .map_err(anyhow::Error::from)
            .and_then(work::work),
        cli::Verb::Announce(typed) => elect::announce(&typed),
        cli::Verb::Check(typed) => check::check(&typed),
        cli::Verb::Status(typed) => verbs::status(&typed),
        cli::Verb::List(typed) => verbs::list(&typed),
        cli::Verb::Watch(typed) => verbs::watch(&typed),
        cli::Verb::Break(typed) => verbs::break_lease(&typed),
        cli::Verb::Reset(typed) => verbs::reset(&typed),
        cli::Verb::Completions(typed) => verbs::completions(&typed),
        cli::Verb::Doctor(typed) => verbs::doctor(&typed),
        cli::Verb::FindLocked(typed) => verbs::find_locked(&typed),
        cli::Verb::Timeline(typed) => timeline::timeline(&typed),
    };
    match ended {
        Ok(leave) => leave,
        Err(error) => {
            report::failure(&error);
            ExitAction::of_error(&error)
        }
    }
}
