//! Types of this crate.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::state::StopTo;
use trafficcop_core::Deadlines;

/// Requested containment; the variants' comments are help text.
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Contain {
    /// A cgroup if one is available, else as with none
    #[default]
    Auto,
    /// A cgroup of the command's own, killed at once
    Cgroup,
    /// A PID namespace of its own: no process of it outlives trafficcop or the deadline, even if supervisor
    /// and guardian are both killed or both stopped; the command can see it (process ids, /proc)
    Pidns,
    /// The process group and a walk over all descendants
    None,
}

impl std::fmt::Display for Contain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Contain::Auto => "auto",
            Contain::Cgroup => "cgroup",
            Contain::Pidns => "pidns",
            Contain::None => "none",
        })
    }
}

/// Program that a guardian can be ordered to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The command and its arguments; not empty.
    pub words: Vec<OsString>,
    /// Whether it inherits stdin and perhaps the terminal. Otherwise its stdin comes with the order, or is
    /// /dev/null.
    pub in_front: bool,
}

impl Program {
    /// Makes a command of the user's own, in front.
    #[must_use]
    pub fn command(words: Vec<OsString>) -> Program {
        Program {
            words,
            in_front: true,
        }
    }

    /// Makes a program in the background; its stdin may come with each [`SpawnRequest`].
    #[must_use]
    pub fn handler(words: Vec<OsString>) -> Program {
        Program {
            words,
            in_front: false,
        }
    }

    /// Makes a shell script in the background.
    #[must_use]
    pub fn script(text: &OsStr) -> Program {
        Program {
            words: vec!["/bin/sh".into(), "-c".into(), text.to_owned()],
            in_front: false,
        }
    }
}

impl Program {
    /// Makes a [`Program::script`] whose output is discarded.
    #[must_use]
    pub fn silent(text: &OsStr) -> Program {
        // `sh` runs this line before it parses the rest: a syntax error prints nothing either.
        let mut script = OsString::from("if [ -c /dev/null ]; then exec >/dev/null 2>&1; fi\n");
        script.push(text);
        Program::script(&script)
    }
}

/// Settings of a guardian.
pub struct Setup {
    /// Programs that it can run: at least one, at most 255.
    pub programs: Vec<Program>,
    /// Containment of the tree.
    pub contain: Contain,
    /// Time from the stop signal to SIGKILL after the supervisor's death without a known deadline.
    pub grace: Duration,
    /// Time from SIGTERM to SIGKILL for what the command left behind, while the supervisor lives. `None`: that
    /// between the deadlines, else `grace`.
    pub left_behind: Option<Duration>,
    /// Longest time from the supervisor's death to SIGKILL, if the lock dies with the supervisor: cuts a longer
    /// drain and drops orders that have not begun. `None`: the lock outlives the supervisor.
    pub orphan_grace: Option<Duration>,
    /// Callback with the last release info, after the supervisor's death and the tree's end. It may allocate
    /// and take its time.
    pub on_orphaned: fn(&[u8]),
    /// Variables that no program inherits, such as credentials.
    pub withheld: Vec<OsString>,
    /// Tie to another guardian under the same lease.
    pub partner: Option<Partner>,
    /// Whether the command only tells others that this instance is in control. The guardian cannot kill those,
    /// so every drain begins with "not in control". The terminal is theirs.
    pub tells_others: bool,
}

impl Setup {
    /// Makes settings without a lease.
    #[must_use]
    pub fn new(programs: Vec<Program>, contain: Contain, grace: Duration) -> Setup {
        Setup {
            programs,
            contain,
            grace,
            left_behind: None,
            orphan_grace: None,
            on_orphaned: |_| {},
            withheld: Vec::new(),
            partner: None,
            tells_others: false,
        }
    }
}

/// Tie between two guardians under one lease: the ends of a pipe.
pub enum Partner {
    /// End of the guardian that ends first; it closes with that guardian.
    Ends(OwnedFd),
    /// End of the guardian that waits for that, before [`Setup::on_orphaned`].
    Awaits(OwnedFd),
}

impl Partner {
    /// Makes the first guardian's end, and the waiting one's.
    ///
    /// # Errors
    /// Those of pipe(2).
    pub fn pair() -> io::Result<(Partner, Partner)> {
        let (awaits, ends) = io::pipe()?;
        Ok((Partner::Ends(ends.into()), Partner::Awaits(awaits.into())))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Partner::Ends(end) | Partner::Awaits(end) => end.as_fd(),
        }
    }
}

/// Reason why there is no guardian.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// No command was given.
    #[error("no command was given")]
    NoCommand,
    /// A word of the command holds a NUL byte.
    #[error("the command holds a NUL byte")]
    Nul,
    /// Forking is only sound with one thread.
    #[error("a guardian cannot be forked from a process of {0} threads")]
    Threads(usize),
    /// This kind of containment is not available.
    #[error("--contain={asked} is not available: {why}")]
    Contain {
        /// Name of that kind.
        asked: &'static str,
        /// Missing feature, in one line.
        why: String,
    },
    /// Another PID namespace's /proc hides the command's processes.
    #[error(
        "cannot watch over the command's processes: /proc is another PID namespace's, there this process \
         is {seen}, and it is {pid}: mount this namespace's own over it \
         (mount -t proc proc /proc; unshare --mount-proc)"
    )]
    Proc {
        /// Process id in /proc.
        seen: String,
        /// Own process id.
        pid: u32,
    },
    /// Child processes enter another "pid" or "time" namespace: their ids or their clock differ.
    #[error(
        "cannot watch over the command's processes: child processes enter another {0} namespace than \
         this process: start trafficcop inside it (unshare --fork)"
    )]
    ChildrenElsewhere(&'static str),
    /// The kernel refused.
    #[error("cannot set up the guardian: {what}: {why}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's error.
        why: io::Error,
    },
}

impl SetupError {
    /// Whether the settings are the reason, and not the machine.
    #[must_use]
    pub fn is_of_the_settings(&self) -> bool {
        match self {
            SetupError::NoCommand | SetupError::Nul | SetupError::Contain { .. } => true,
            SetupError::Threads(_)
            | SetupError::Proc { .. }
            | SetupError::ChildrenElsewhere(_)
            | SetupError::System { .. } => false,
        }
    }
}

/// Order to run one command under deadlines.
pub struct SpawnRequest {
    /// Index into [`Setup::programs`].
    pub program: u8,
    /// Whether the control file shows its deadline.
    pub in_control: bool,
    /// Variables to set; it inherits the rest.
    pub env: Vec<(OsString, OsString)>,
    /// Variables to unset.
    pub unset: Vec<OsString>,
    /// First deadlines.
    pub deadlines: Deadlines,
    /// First signal of the guardian's own drain; 0: none.
    pub stop_signal: i32,
    /// Receiver of the stop signal, in every drain.
    pub stop_to: StopTo,
    /// Lock that stays open until the tree is empty.
    pub lock: Option<OwnedFd>,
    /// Stdin of a program in the background; excludes a lock.
    pub input: Option<OwnedFd>,
    /// Data for [`Setup::on_orphaned`], until the supervisor replaces it.
    pub release_info: Vec<u8>,
}
