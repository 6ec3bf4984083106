//! Parse, plan, run, leave. The guardian is forked inside `run`, so no thread may exist before it.

use std::process::ExitCode;

use trafficcop::{announce, check, cli, elect, exit, plan, report, run};

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
            report::init(typed.common.log.into(), typed.common.quiet);
            plan::Plan::new(*typed, &plan::Place::here())
                .map_err(anyhow::Error::from)
                .and_then(run::run)
        }
        cli::Verb::Elect(typed) => {
            report::init(typed.common.log.into(), typed.common.quiet);
            plan::Plan::of_elect(*typed, &plan::Place::here())
                .map_err(anyhow::Error::from)
                .and_then(|(plan, telling)| elect::elect(plan, &telling))
        }
        cli::Verb::Announce(typed) => {
            report::init(report::Format::Text, false);
            announce::announce(&typed)
        }
        cli::Verb::Check(typed) => {
            report::init(report::Format::Text, false);
            check::check(&typed)
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
