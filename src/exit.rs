//! The end of trafficcop: an [`Ending`] becomes an exit status, or death by the command's own signal.
//!
//! Only `main` calls it, after the last lease was given back. It must never print. No error of trafficcop has
//! status 1, which every program uses.

use nix::sys::resource::{Resource, setrlimit};

use crate::core::{Cause, Ending, Exit, Failure, HandOverReason};
use crate::queue::Missing;
use crate::util::spelt_out;

/// Answer "no" of `trafficcop check`.
pub const NOT_IN_CONTROL: u8 = 1;
/// Answer "free" of `trafficcop status`.
pub const FREE: u8 = 1;
/// Result of `trafficcop break` that broke nothing: a free lock, a new holder, or a "no".
pub const NOT_BROKEN: u8 = 1;
/// Result of `trafficcop reset` that removed nothing: nothing to remove, a held lock, a new holder, or a "no".
pub const NOT_FORGOTTEN: u8 = 1;
/// Answer "not ready" of `trafficcop doctor`.
pub const UNFIT: u8 = 1;
/// Answer of `trafficcop timeline` after an overlap or a broken rule.
pub const OVERLAPPED: u8 = 1;
/// Bad usage, or contradictory settings.
pub const USAGE: u8 = 64;
/// The queue does not exist.
pub const NO_QUEUE: u8 = 66;
/// Store or machine not available: nothing was started.
pub const UNAVAILABLE: u8 = 69;
/// Control was lost and the command gone in time, or the command's result could not be recorded.
pub const LOST: u8 = 70;
/// The command may have run at the same time as another holder's.
pub const OVERLAP: u8 = 71;
/// Stdout cannot be written, though its reader has not hung up (`elect`).
pub const CANNOT_WRITE: u8 = 74;
/// Control was not obtained (`-n`, `-w`), unless `-E` sets another status.
pub const CONFLICT: u8 = 75;
/// The store refuses access.
pub const DENIED: u8 = 77;
/// The command exists and cannot be run.
pub const NOT_RUNNABLE: u8 = 126;
/// The command does not exist.
pub const NOT_FOUND: u8 = 127;

/// Every exit status and its meaning.
pub const TABLE: &[(&str, &str)] = &[
    (
        "0-255",
        "the command's own; 128+n if signal n ended the command or the wait",
    ),
    ("64", "bad usage, or settings that contradict each other"),
    (
        "69",
        "the command was not started: the store, this machine or --on-acquire failed",
    ),
    (
        "70",
        "control was lost and the command stopped in time; or the guardian died; or a result of --once was not \
         recorded",
    ),
    ("71", "control was lost, and an overlap cannot be excluded"),
    ("75", "control was not obtained (-n, -w); -E changes it"),
    ("77", "not authorised, or no permission"),
    ("126, 127", "the command cannot be run, or was not found"),
];

/// Reason for not starting, in one line, with its exit status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}")]
pub struct UsageError {
    line: String,
    status: u8,
}

impl UsageError {
    /// Refuses the usage: what is wrong, why, and what to do.
    #[must_use]
    pub fn new(line: impl Into<String>) -> UsageError {
        UsageError {
            line: spelt_out(&line.into()),
            status: USAGE,
        }
    }

    /// Refuses for the machine: the same request may succeed later.
    #[must_use]
    pub fn of_the_machine(line: impl Into<String>) -> UsageError {
        UsageError {
            line: spelt_out(&line.into()),
            status: UNAVAILABLE,
        }
    }

    /// Refuses a command without an interpreter.
    #[must_use]
    pub fn of_the_command(line: impl Into<String>) -> UsageError {
        UsageError {
            line: spelt_out(&line.into()),
            status: NOT_FOUND,
        }
    }

    /// Appends `more` to the line.
    #[must_use]
    pub fn and(mut self, more: &str) -> UsageError {
        self.line.push_str(more);
        self
    }

    /// Returns the exit status.
    #[must_use]
    pub fn status(&self) -> u8 {
        self.status
    }
}

/// Returns whether the machine has run out of processes, memory or descriptors, which says nothing about the
/// program.
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

/// Way in which trafficcop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitAction {
    /// Exit with this status.
    Status(u8),
    /// Die of this signal, so that the parent sees the truth.
    Signal(i32),
}

impl ExitAction {
    /// Returns the way to end. A requested stop passes on the command's status, too: a command that catches TERM and
    /// exits 0 has ended well.
    #[must_use]
    pub fn of(ending: &Ending, conflict_status: u8) -> ExitAction {
        if ending.overlap {
            // First, so that no operator can overlook it.
            return ExitAction::Status(OVERLAP);
        }
        // No `_` arm: a new cause needs a status.
        match (&ending.cause, ending.exit) {
            (Cause::CommandEnded | Cause::Stopped(_), Some(Exit::Code(status))) => {
                ExitAction::Status(status)
            }
            (Cause::CommandEnded | Cause::Stopped(_), Some(Exit::Signal(signal))) => {
                ExitAction::Signal(signal)
            }
            (Cause::Stopped(signal), None) => ExitAction::Signal(*signal),
            // Without a status the command's result is unknown.
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
            // Not 75, which `-E 0` makes a success: this machine does not work.
            (Cause::GivenUp(HandOverReason::HookFailed(_)), _) => ExitAction::Status(UNAVAILABLE),
            // The recorded result counts for every instance that waited.
            (Cause::AlreadyDone(result), _) => ExitAction::Status(result.status),
            (
                Cause::NotStarted {
                    errno: libc::ENOENT,
                },
                _,
            ) => ExitAction::Status(NOT_FOUND),
            // Not 126: the command is correct, and a service manager may try again. EBUSY is trafficcop's own: a dead
            // instance left something that cannot be killed.
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

    /// Returns the way to end for an error before the start: bad usage, or the machine's.
    #[must_use]
    pub fn of_error(error: &anyhow::Error) -> ExitAction {
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

    /// Returns the exit status that a shell shows.
    #[must_use]
    pub fn status(self) -> i32 {
        match self {
            ExitAction::Status(status) => i32::from(status),
            ExitAction::Signal(signal) => 128 + signal,
        }
    }

    /// Ends the process.
    ///
    /// A death by signal leaves no core file: the command's own core is where the kernel puts it. PID 1 exits 128+n,
    /// because it cannot die of a signal that it does not handle. So does a process whose signal does not kill.
    pub fn go(self) -> ! {
        if let ExitAction::Signal(signal) = self
            && std::process::id() != 1
        {
            // A core pattern that pipes to a program ignores the limit.
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
            let _ = nix::sys::prctl::set_dumpable(false);
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
    fn overlap_status_overrides_every_other() {
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
    fn errors_of_trafficcop_never_have_status_1() {
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
    fn table_lists_every_status_of_trafficcop() {
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

    /// Ends the process that [`parent_sees_the_status_or_the_signal`] starts.
    #[test]
    fn leaves_when_told_to() {
        if let Ok(signal) = std::env::var("LEAVE_BY_SIGNAL") {
            // Allow core files, so that the test can see that none is left.
            let (_, most) = nix::sys::resource::getrlimit(Resource::RLIMIT_CORE).unwrap();
            setrlimit(Resource::RLIMIT_CORE, most, most).unwrap();
            ExitAction::Signal(signal.parse().unwrap()).go();
        }
        if let Ok(status) = std::env::var("LEAVE_WITH_STATUS") {
            ExitAction::Status(status.parse().unwrap()).go();
        }
    }

    #[test]
    fn parent_sees_the_status_or_the_signal() {
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
        // `signal_hook` does not know the second one.
        for signal in [libc::SIGCHLD, libc::SIGRTMIN() + 1] {
            assert_eq!(left("LEAVE_BY_SIGNAL", signal).code(), Some(128 + signal));
        }
    }
}
