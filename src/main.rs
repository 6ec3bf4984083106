//! Parse, plan, run, leave. The guardian is forked inside `run`, so no thread may exist before it.

use std::process::ExitCode;

use trafficcop::{announce, check, cli, elect, exit, plan, report, run, timeline, verbs, work};

fn main() -> ExitCode {
    let typed = match cli::parse(std::env::args_os()) {
        Ok(typed) => typed,
        Err(error) => {
            // Nothing can be done where even this cannot be written.
            let _closed = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { 0 });
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
    report::init(format, volume);
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
        cli::Verb::Announce(typed) => announce::announce(&typed),
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
        Ok(leave) => leave.go(),
        Err(error) => {
            report::failure(&error);
            exit::Leave::of_error(&error).go()
        }
    }
}
