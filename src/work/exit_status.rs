//! How the worker leaves: why, in words for people, and with which exit status.
//!
//! Called by the worker alone.

use super::processor::Done;
use super::scheduler::Why;
use super::settle::Outcome;
use crate::config;
use crate::core::Exit;
use crate::exit::{self, ExitAction};

/// Why we leave, in a few words.
pub(super) fn words(why: &Why) -> String {
    match why {
        Why::Stopped(signal) => {
            format!(
                "a stop was requested by {}",
                crate::units::signal_name(*signal)
            )
        }
        Why::Idle => "there was no message for --idle-exit".into(),
        Why::Enough => "there were as many messages as asked for".into(),
        Why::NotStarted { errno } => format!(
            "the command cannot be started: {}",
            std::io::Error::from_raw_os_error(*errno)
        ),
        Why::GuardianLost { overlap: false } => "a guardian died or fell silent".into(),
        Why::GuardianLost { overlap: true } => "a process of a command cannot be killed".into(),
        Why::NoHandover { why } => format!("messages cannot be handed over here: {why}"),
        // It says itself what cannot be done.
        Why::CannotTake { why, denied: true } => why.clone(),
        Why::CannotTake { why, denied: false } => format!("messages cannot be taken: {why}"),
        Why::CannotPutAside { why } => {
            format!("messages that are to be put aside cannot be: {why}")
        }
    }
}

/// How we leave, said to people.
pub(super) fn said(why: &Why, plan: &config::Work, last: Option<&Done>) -> ExitAction {
    let leave = leave(why, plan.once, last);
    let (exit, text) = (leave.status(), words(why));
    let event = "done";
    match why {
        Why::Stopped(_) | Why::Idle | Why::Enough => tracing::info!(event, exit, "{text}"),
        Why::NotStarted { .. } => {
            let command = config::quoted(&plan.command);
            tracing::error!(event, exit, "{text}: {command}");
        }
        Why::GuardianLost { .. }
        | Why::NoHandover { .. }
        | Why::CannotTake { .. }
        | Why::CannotPutAside { .. } => {
            tracing::error!(event, exit, "{text}");
        }
    }
    leave
}

fn leave(why: &Why, once: bool, last: Option<&Done>) -> ExitAction {
    match (why, last) {
        (Why::Enough, Some(last)) if once => {
            if last.overlap {
                return ExitAction::Status(exit::OVERLAP);
            }
            match (last.outcome, last.exit) {
                (Outcome::Lost | Outcome::Unconfirmed | Outcome::Unsettled, _) | (_, None) => {
                    ExitAction::Status(exit::LOST)
                }
                (Outcome::Completed, Some(Exit::Code(status))) => ExitAction::Status(status),
                // It said 0, and it did not count: it was told to end.
                (_, Some(Exit::Code(0))) => ExitAction::Status(exit::LOST),
                (_, Some(Exit::Code(status))) => ExitAction::Status(status),
                (_, Some(Exit::Signal(signal))) => ExitAction::Signal(signal),
            }
        }
        (Why::Stopped(signal), _) => ExitAction::Signal(*signal),
        (Why::Idle | Why::Enough, _) => ExitAction::Status(0),
        (
            Why::NotStarted {
                errno: libc::ENOENT,
            },
            _,
        ) => ExitAction::Status(exit::NOT_FOUND),
        (Why::NotStarted { errno }, _) if exit::is_for_want_of_room(*errno) => {
            ExitAction::Status(exit::UNAVAILABLE)
        }
        (Why::NotStarted { .. } | Why::NoHandover { .. }, _) => {
            ExitAction::Status(exit::NOT_RUNNABLE)
        }
        (Why::CannotTake { denied: true, .. }, _) => ExitAction::Status(exit::DENIED),
        (Why::GuardianLost { overlap: false }, _) => ExitAction::Status(exit::LOST),
        (Why::GuardianLost { overlap: true }, _) => ExitAction::Status(exit::OVERLAP),
        (Why::CannotTake { .. } | Why::CannotPutAside { .. }, _) => {
            ExitAction::Status(exit::UNAVAILABLE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_its_status() {
        let done = |outcome, exit, overlap| Done {
            ran: true,
            exit,
            outcome,
            errno: None,
            no_handover: None,
            lost: false,
            overlap,
            put_aside: None,
        };
        let code = |status| Some(Exit::Code(status));
        for (outcome, exit, overlap, status) in [
            (Outcome::Completed, code(0), false, ExitAction::Status(0)),
            (Outcome::Retried, code(3), false, ExitAction::Status(3)),
            (
                Outcome::DeadLettered,
                code(65),
                false,
                ExitAction::Status(65),
            ),
            (
                Outcome::Retried,
                Some(Exit::Signal(9)),
                false,
                ExitAction::Signal(9),
            ),
            (Outcome::Retried, code(0), false, ExitAction::Status(70)),
            (Outcome::Unconfirmed, code(0), false, ExitAction::Status(70)),
            (
                Outcome::Lost,
                Some(Exit::Signal(9)),
                false,
                ExitAction::Status(70),
            ),
            (
                Outcome::Lost,
                Some(Exit::Signal(9)),
                true,
                ExitAction::Status(71),
            ),
        ] {
            let done = done(outcome, exit, overlap);
            assert_eq!(leave(&Why::Enough, true, Some(&done)), status);
            assert_eq!(
                leave(&Why::Enough, false, Some(&done)),
                ExitAction::Status(0)
            );
        }
        let why = || "403".to_owned();
        for (cause, status) in [
            (Why::Idle, ExitAction::Status(0)),
            (Why::Stopped(15), ExitAction::Signal(15)),
            (
                Why::NotStarted {
                    errno: libc::ENOENT,
                },
                ExitAction::Status(127),
            ),
            (
                Why::NotStarted {
                    errno: libc::EACCES,
                },
                ExitAction::Status(126),
            ),
            (Why::GuardianLost { overlap: false }, ExitAction::Status(70)),
            (Why::GuardianLost { overlap: true }, ExitAction::Status(71)),
            (Why::CannotPutAside { why: why() }, ExitAction::Status(69)),
            (Why::NoHandover { why: why() }, ExitAction::Status(126)),
            (
                Why::CannotTake {
                    why: why(),
                    denied: true,
                },
                ExitAction::Status(77),
            ),
            (
                Why::CannotTake {
                    why: why(),
                    denied: false,
                },
                ExitAction::Status(69),
            ),
        ] {
            assert_eq!(leave(&cause, true, None), status, "{cause:?}");
        }
    }
}
