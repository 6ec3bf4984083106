//! Parse, plan, run, leave. The guardian is forked inside `run`, so no thread may exist before it.

use std::process::ExitCode;

use trafficcop::{announce, check, cli, elect, exit, plan, report, run, timeline};

fn main() -> ExitCode {
    let typed = match cli::parse(std::env::args_os()) {
        Ok(typed) => typed,
        Err(error) => {
            // Nothing can be done where even this cannot be written.
            let _closed = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { 0 });
        }
    };
    let ended = match typed.verb {
        cli::Verb::Run(typed) => {
            let volume = (&typed.common).into();
            report::init(typed.common.log.into(), volume);
            if typed.common.log == cli::Log::Text && volume != report::Volume::Quiet {
                report::show_the_wait(std::env::var("TERM").ok().as_deref());
            }
            plan::Plan::new(*typed, &plan::Place::here())
                .map_err(anyhow::Error::from)
                .and_then(run::run)
        }
        cli::Verb::Elect(typed) => {
            report::init(typed.common.log.into(), (&typed.common).into());
            plan::Plan::of_elect(*typed, &plan::Place::here())
                .map_err(anyhow::Error::from)
                .and_then(|(plan, telling)| elect::elect(plan, &telling))
        }
        cli::Verb::Announce(typed) => {
            report::init(report::Format::Text, report::Volume::Normal);
            announce::announce(&typed)
        }
        cli::Verb::Check(typed) => {
            report::init(report::Format::Text, report::Volume::Normal);
            check::check(&typed)
        }
        cli::Verb::Timeline(typed) => {
            report::init(report::Format::Text, report::Volume::Normal);
            timeline::timeline(&typed)
        }
    };
    match ended {
        Ok(leave) => leave.go(),
        Err(error) => {
            report::failure(&error);
            exit::Leave::of_error(&error).go()
        }
    }
}
