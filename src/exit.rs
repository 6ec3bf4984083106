//! How we end: from an [`Ending`] to an exit status, or to dying of the command's own signal.
//!
//! Called by `main` alone, and by nothing before the last lease was given back: [`ExitAction::go`] does
//! not return. It must never print. No status of our own is 1, which is every program's.

use nix::sys::resource::{Resource, setrlimit};

use crate::core::{Cause, Ending, Exit, Failure, HandOverReason};
use crate::queue::Missing;
use crate::util::spelt_out;

/// The answer "no" of `trafficcop check`, which is none of `run`'s.
pub const NOT_IN_CONTROL: u8 = 1;
/// The answer "free" of `trafficcop status`.
pub const FREE: u8 = 1;
/// Nothing was broken by `trafficcop break`: the lock is free, changed hands, or the answer was no.
pub const NOT_BROKEN: u8 = 1;
/// Nothing was forgotten by `trafficcop reset`: there is nothing of the kind, the lock is held or
/// changed hands, or the answer was no.
pub const NOT_FORGOTTEN: u8 = 1;
/// The answer "not fit" of `trafficcop doctor`.
pub const UNFIT: u8 = 1;
/// The answer of `trafficcop timeline` where two had control at the same time, or a rule was broken.
pub const OVERLAPPED: u8 = 1;
/// Bad usage, or settings that cannot hold.
pub const USAGE: u8 = 64;
/// There is no such queue.
pub const NO_QUEUE: u8 = 66;
/// The store (or the machine) did not let anything start.
pub const UNAVAILABLE: u8 = 69;
/// Control was lost, and the command was gone in time; or what it came to could not be recorded.
pub const LOST: u8 = 70;
/// The command may have run beside another holder's.
pub const OVERLAP: u8 = 71;
/// Stdout cannot be written, for another reason than a reader that hung up (`elect`).
pub const CANNOT_WRITE: u8 = 74;
/// Control was not obtained (`-n`, `-w`), unless `-E` says otherwise.
pub const CONFLICT: u8 = 75;
/// The store does not let us in.
pub const DENIED: u8 = 77;
/// The command was found and cannot be run.
pub const NOT_RUNNABLE: u8 = 126;
/// There is no such command.
pub const NOT_FOUND: u8 = 127;

/// Every exit status and what it means: the one list from which the help and the man pages are
/// made.
pub const TABLE: &[(&str, &str)] = &[
    (
        "0-255",
        "the command's own; 128+n if signal n ended the command or the wait",
    ),
    ("64", "bad usage, or settings that contradict each other"),
    (
        "69",
        "nothing started: the store or this machine was not available",
    ),
    (
        "70",
        "control was lost, and the command was stopped in time",
    ),
    ("71", "control was lost, and an overlap cannot be excluded"),
    ("75", "control was not obtained (-n, -w); -E changes it"),
    ("77", "not authorised, or no permission"),
    ("126, 127", "the command cannot be run, or was not found"),
];

/// Why nothing is started: one line. It stands for exit status 64, or 69 where it is the machine
/// that refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}")]
pub struct UsageError {
    line: String,
    status: u8,
}

impl UsageError {
    /// A refusal in these words: what, why, and what to do.
    #[must_use]
    pub fn new(line: impl Into<String>) -> UsageError {
        UsageError {
            line: spelt_out(&line.into()),
            status: USAGE,
        }
    }

    /// Not what was asked for is wrong: the machine refuses it now, and need not tomorrow.
    #[must_use]
    pub fn of_the_machine(line: impl Into<String>) -> UsageError {
        UsageError {
            line: spelt_out(&line.into()),
            status: UNAVAILABLE,
        }
    }

    /// A refusal of a command whose interpreter cannot be found.
    #[must_use]
    pub fn of_the_command(line: impl Into<String>) -> UsageError {
        UsageError {
            line: spelt_out(&line.into()),
            status: NOT_FOUND,
        }
    }

    /// The same, with this at its end.
    #[must_use]
    pub fn and(mut self, more: &str) -> UsageError {
        self.line.push_str(more);
        self
    }

    /// The exit status it stands for.
    #[must_use]
    pub fn status(&self) -> u8 {
        self.status
    }
}

/// Whether this error is one of a machine that has no more of something now (processes, memory,
/// descriptors), and says nothing of what was to be started.
#[must_use]
pub fn is_for_want_of_room(errno: i32) -> bool {
    let room = [
        libc::EAGAIN,
        libc::ENOMEM,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOSPC,
        libc::ENOBUFS,
        libc::ETOOMANYREFS,
    ];
    room.contains(&errno)
}

/// How to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitAction {
    /// With this exit status.
    Status(u8),
    /// By dying of this signal, so that whoever waits for us sees the truth.
    Signal(i32),
}

impl ExitAction {
    /// What an ending amounts to. A command's own status is passed on after a requested stop as
    /// well: one that catches TERM and exits 0 has ended well, and so have we.
    #[must_use]
    pub fn of(ending: &Ending, conflict_status: u8) -> ExitAction {
        if ending.overlap {
            // Whatever else happened: nobody may overlook this one.
            return ExitAction::Status(OVERLAP);
        }
        // Without a `_`: a new cause of an end has to be given a status here.
        match (&ending.cause, ending.exit) {
            (Cause::CommandEnded | Cause::Stopped(_), Some(Exit::Code(status))) => {
                ExitAction::Status(status)
            }
            (Cause::CommandEnded | Cause::Stopped(_), Some(Exit::Signal(signal))) => {
                ExitAction::Signal(signal)
            }
            (Cause::Stopped(signal), None) => ExitAction::Signal(*signal),
            // A command that ended has a status; without one nothing can be claimed for it.
            (
                Cause::CommandEnded
                | Cause::Doubt { .. }
                | Cause::Lost { .. }
                | Cause::HandOver
                | Cause::NotRecorded { .. }
                | Cause::GivenUp(HandOverReason::RestartsSpent | HandOverReason::Hung(_))
                | Cause::GuardianLost,
                _,
            ) => ExitAction::Status(LOST),
            // Not 75, which `-E 0` makes a success: nobody was in the way, this machine does not work.
            (Cause::GivenUp(HandOverReason::HookFailed(_)), _) => ExitAction::Status(UNAVAILABLE),
            // What was recorded counts for everybody who waited for it: 0, or the status of the
            // last run.
            (Cause::AlreadyDone(result), _) => ExitAction::Status(result.status),
            (
                Cause::NotStarted {
                    errno: libc::ENOENT,
                },
                _,
            ) => ExitAction::Status(NOT_FOUND),
            // Not 126: nothing is wrong with the command, and a service manager may try again.
            // EBUSY is none of execve(2), but ours: something is there that cannot be killed.
            (Cause::NotStarted { errno }, _)
                if is_for_want_of_room(*errno) || *errno == libc::EBUSY =>
            {
                ExitAction::Status(UNAVAILABLE)
            }
            (Cause::NotStarted { .. }, _) => ExitAction::Status(NOT_RUNNABLE),
            (Cause::NotObtained(_) | Cause::Cordoned { .. } | Cause::Unfit(_), _) => {
                ExitAction::Status(conflict_status)
            }
            (Cause::Store { denied: true, .. }, _) => ExitAction::Status(DENIED),
            (Cause::Store { denied: false, .. }, _) => ExitAction::Status(UNAVAILABLE),
        }
    }

    /// The status of a failure of our own before anything started: what the config refused is bad
    /// usage, everything else is the machine's refusal.
    #[must_use]
    pub fn of_error(error: &anyhow::Error) -> ExitAction {
        // By type and not by text: whatever was wrapped round it on the way up stays readable.
        if let Some(refusal) = error.downcast_ref::<UsageError>() {
            return ExitAction::Status(refusal.status());
        }
        match error.downcast_ref() {
            Some(Missing::NoQueue(_)) => return ExitAction::Status(NO_QUEUE),
            Some(Missing::OtherKind(_)) => return ExitAction::Status(USAGE),
            _ => {}
        }
        let failure = match error.downcast_ref() {
            Some(Missing::Failed(failure)) => Some(failure),
            _ => error.downcast_ref(),
        };
        match failure {
            Some(Failure::Fatal { denied: true, .. }) => ExitAction::Status(DENIED),
            _ => ExitAction::Status(UNAVAILABLE),
        }
    }

    /// The exit status a shell shows for it.
    #[must_use]
    pub fn status(self) -> i32 {
        match self {
            ExitAction::Status(status) => i32::from(status),
            ExitAction::Signal(signal) => 128 + signal,
        }
    }

    /// Leaves.
    ///
    /// Dying of a signal leaves no core file: it was the command's death, and its core is already
    /// where the kernel puts them. PID 1 cannot die of a signal it does not handle; it, and
    /// whoever got a signal that ends nobody, exits 128+n.
    pub fn go(self) -> ! {
        if let ExitAction::Signal(signal) = self
            && std::process::id() != 1
        {
            // Both are needed: a core pattern that pipes to a program does not ask for the limit.
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
            let _ = nix::sys::prctl::set_dumpable(false);
            // Its handler is ours: the default has to be put back for the signal to end us.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        std::process::exit(self.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Failed, HolderInfo};

    fn ending(cause: Cause, exit: Option<Exit>) -> Ending {
        Ending {
            cause,
            exit,
            overlap: false,
            released: true,
        }
    }

    #[test]
    fn every_cause_has_its_status() {
        let why = || "why".to_owned();
        let over = |status| {
            Cause::AlreadyDone(crate::core::TaskResult {
                status,
                holder: String::new(),
                at: String::new(),
                token: 1,
            })
        };
        let (code, killed) = (Some(Exit::Code(3)), Some(Exit::Signal(9)));
        for (cause, exit, leave) in [
            (Cause::CommandEnded, code, ExitAction::Status(3)),
            (
                Cause::CommandEnded,
                Some(Exit::Code(0)),
                ExitAction::Status(0),
            ),
            (Cause::CommandEnded, killed, ExitAction::Signal(9)),
            (
                Cause::NotStarted {
                    errno: libc::ENOENT,
                },
                None,
                ExitAction::Status(127),
            ),
            (
                Cause::NotStarted {
                    errno: libc::EACCES,
                },
                None,
                ExitAction::Status(126),
            ),
            (
                Cause::NotStarted {
                    errno: libc::ENOEXEC,
                },
                None,
                ExitAction::Status(126),
            ),
            (
                Cause::NotStarted {
                    errno: libc::EAGAIN,
                },
                None,
                ExitAction::Status(69),
            ),
            (
                Cause::NotStarted {
                    errno: libc::ETOOMANYREFS,
                },
                None,
                ExitAction::Status(69),
            ),
            (
                Cause::NotStarted { errno: libc::EBUSY },
                None,
                ExitAction::Status(69),
            ),
            (Cause::Stopped(libc::SIGTERM), None, ExitAction::Signal(15)),
            (Cause::Stopped(libc::SIGTERM), code, ExitAction::Status(3)),
            (
                Cause::Stopped(libc::SIGTERM),
                Some(Exit::Code(0)),
                ExitAction::Status(0),
            ),
            (
                Cause::Stopped(libc::SIGINT),
                Some(Exit::Signal(15)),
                ExitAction::Signal(15),
            ),
            (Cause::Doubt { why: why() }, code, ExitAction::Status(70)),
            (Cause::Lost { why: why() }, killed, ExitAction::Status(70)),
            (Cause::GuardianLost, killed, ExitAction::Status(70)),
            (
                Cause::NotRecorded { why: why() },
                Some(Exit::Code(0)),
                ExitAction::Status(70),
            ),
            (
                Cause::GivenUp(HandOverReason::HookFailed(Failed::Exited(Exit::Code(3)))),
                None,
                ExitAction::Status(69),
            ),
            (over(0), None, ExitAction::Status(0)),
            (over(137), None, ExitAction::Status(137)),
            (
                Cause::NotObtained(HolderInfo::default()),
                None,
                ExitAction::Status(42),
            ),
            (
                Cause::Store {
                    why: why(),
                    denied: false,
                },
                None,
                ExitAction::Status(69),
            ),
            (
                Cause::Store {
                    why: why(),
                    denied: true,
                },
                None,
                ExitAction::Status(77),
            ),
        ] {
            assert_eq!(
                ExitAction::of(&ending(cause.clone(), exit), 42),
                leave,
                "{cause:?} {exit:?}"
            );
        }
    }

    #[test]
    fn an_overlap_outshouts_everything() {
        for cause in [
            Cause::CommandEnded,
            Cause::Stopped(15),
            Cause::Lost { why: String::new() },
        ] {
            let mut ending = ending(cause, Some(Exit::Code(0)));
            ending.overlap = true;
            assert_eq!(ExitAction::of(&ending, 0), ExitAction::Status(71));
        }
    }

    #[test]
    fn no_failure_of_our_own_is_1() {
        assert_eq!(
            ExitAction::of_error(&anyhow::anyhow!("no fork")),
            ExitAction::Status(69)
        );
        let denied = |denied| {
            let why = "403".to_owned();
            ExitAction::of_error(&Failure::Fatal { why, denied }.into())
        };
        assert_eq!(denied(true), ExitAction::Status(77));
        assert_eq!(denied(false), ExitAction::Status(69));
        let missing = Missing::NoQueue("no such queue".into());
        assert_eq!(
            ExitAction::of_error(&missing.into()),
            ExitAction::Status(66)
        );
        let failure = Failure::Fatal {
            why: "403".to_owned(),
            denied: true,
        };
        let failed = Missing::Failed(failure);
        assert_eq!(ExitAction::of_error(&failed.into()), ExitAction::Status(77));
        let refusal = UsageError::new("no lock");
        let wrapped = anyhow::Error::new(refusal).context("run");
        assert_eq!(ExitAction::of_error(&wrapped), ExitAction::Status(64));
    }

    #[test]
    fn the_table_names_every_status_of_our_own() {
        for status in [
            USAGE,
            UNAVAILABLE,
            LOST,
            OVERLAP,
            CONFLICT,
            DENIED,
            NOT_RUNNABLE,
            NOT_FOUND,
        ] {
            let status = status.to_string();
            let named = TABLE
                .iter()
                .any(|(names, _)| names.split(", ").any(|name| name == status));
            assert!(named, "{status}");
        }
    }

    /// Leaves for real when [`leaving_is_seen_by_whoever_waits`] runs it in a process of its own.
    #[test]
    fn leaves_when_told_to() {
        if let Ok(signal) = std::env::var("LEAVE_BY_SIGNAL") {
            // As if cores were wanted here, so that the test can see that we leave none.
            let (_, most) = nix::sys::resource::getrlimit(Resource::RLIMIT_CORE).unwrap();
            setrlimit(Resource::RLIMIT_CORE, most, most).unwrap();
            ExitAction::Signal(signal.parse().unwrap()).go();
        }
        if let Ok(status) = std::env::var("LEAVE_WITH_STATUS") {
            ExitAction::Status(status.parse().unwrap()).go();
        }
    }

    #[test]
    fn leaving_is_seen_by_whoever_waits() {
        use std::os::unix::process::ExitStatusExt;
        let dir = tempfile::tempdir().unwrap();
        let left = |name: &str, value: i32| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "exit::tests::leaves_when_told_to",
                    "--test-threads=1",
                ])
                .env(name, value.to_string())
                .current_dir(dir.path())
                .output()
                .unwrap()
                .status
        };
        assert_eq!(left("LEAVE_WITH_STATUS", 75).code(), Some(75));
        for signal in [
            libc::SIGTERM,
            libc::SIGKILL,
            libc::SIGINT,
            libc::SIGSEGV,
            libc::SIGQUIT,
        ] {
            let status = left("LEAVE_BY_SIGNAL", signal);
            assert_eq!(status.signal(), Some(signal), "{status}");
            assert!(!status.core_dumped(), "{status}");
        }
        // A signal that ends nobody, and one our library does not know.
        for signal in [libc::SIGCHLD, libc::SIGRTMIN() + 1] {
            assert_eq!(left("LEAVE_BY_SIGNAL", signal).code(), Some(128 + signal));
        }
    }
}
