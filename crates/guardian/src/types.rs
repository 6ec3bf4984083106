//! Types of this crate: what a guardian is made with, ordered to do, and reports. They have no behaviour.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::state::StopTo;
use trafficcop_core::Deadlines;

/// What is asked for to keep the command's tree together; as it is typed, with its help.
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
    /// Whether it inherits stdin and, if available, the foreground of the terminal. Otherwise the order brings
    /// its stdin (or it gets /dev/null), and it stays in the background.
    pub in_front: bool,
}

impl Program {
    /// Makes a command of the user's own, which inherits everything.
    #[must_use]
    pub fn command(words: Vec<OsString>) -> Program {
        Program {
            words,
            in_front: true,
        }
    }

    /// Makes a program in the background: each [`SpawnRequest`] brings its stdin, else it gets /dev/null.
    #[must_use]
    pub fn handler(words: Vec<OsString>) -> Program {
        Program {
            words,
            in_front: false,
        }
    }

    /// Makes a shell script that runs in the background.
    #[must_use]
    pub fn script(text: &OsStr) -> Program {
        Program {
            words: vec!["/bin/sh".into(), "-c".into(), text.to_owned()],
            in_front: false,
        }
    }
}

impl Program {
    /// Makes a script like [`Program::script`], but discards what it prints: only its exit status counts.
    #[must_use]
    pub fn silent(text: &OsStr) -> Program {
        // `sh` runs this line before it parses the rest: a syntax error there prints nothing either.
        let mut script = OsString::from("if [ -c /dev/null ]; then exec >/dev/null 2>&1; fi\n");
        script.push(text);
        Program::script(&script)
    }
}

/// Settings of a guardian.
pub struct Setup {
    /// Programs that it can be ordered to run, one after another: at least one, at most 255.
    pub programs: Vec<Program>,
    /// Containment of the tree.
    pub contain: Contain,
    /// Time from the stop signal to SIGKILL when the supervisor is dead and no deadline is known.
    pub grace: Duration,
    /// Time from SIGTERM to SIGKILL for what the command left behind when it ended, while the supervisor lives;
    /// `None`: the time between the deadlines, or `grace` without deadlines.
    pub left_behind: Option<Duration>,
    /// Longest time from the supervisor's death to SIGKILL, if the lock dies with the supervisor. It shortens a
    /// longer drain, and orders that have not begun are dropped. `None`: the lock outlives the supervisor, and
    /// what it granted stays granted.
    pub orphan_grace: Option<Duration>,
    /// Callback with the last release info, when the supervisor is dead and the tree is empty. It may allocate,
    /// build a runtime and take its time; then the guardian exits.
    pub on_orphaned: fn(&[u8]),
    /// Variables that no program of the guardian inherits: credentials that must not be shared.
    pub withheld: Vec<OsString>,
    /// Another guardian under the same lease.
    pub partner: Option<Partner>,
    /// Whether the command only tells other processes that this instance is in control. The guardian cannot
    /// kill those, so every drain begins with "not in control" in the control file. The command gets no
    /// terminal, which belongs to them.
    pub tells_others: bool,
}

impl Setup {
    /// Makes settings without a lease: nothing is given back after the supervisor's death.
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
    /// End of the guardian that ends first, which closes with it. Only then does the other one give the lease
    /// back.
    Ends(OwnedFd),
    /// End of the guardian that waits: it runs [`Setup::on_orphaned`] after the other one is gone.
    Awaits(OwnedFd),
}

impl Partner {
    /// Makes the ends for the guardian that ends first, and for the one that waits.
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
    /// There is no command.
    #[error("no command was given")]
    NoCommand,
    /// A word of the command holds a NUL byte.
    #[error("the command holds a NUL byte")]
    Nul,
    /// The process has several threads; forking is only sound with one.
    #[error("a guardian cannot be forked from a process of {0} threads")]
    Threads(usize),
    /// The requested kind of containment is not available here.
    #[error("--contain={asked} is not available: {why}")]
    Contain {
        /// Name of that kind.
        asked: &'static str,
        /// One line: what is missing.
        why: String,
    },
    /// The mounted /proc is another PID namespace's: a command's processes could not be found there.
    #[error(
        "cannot watch over the command's processes: /proc is another PID namespace's, there this process is {seen}, and it is {pid}: mount this namespace's own over it (mount -t proc proc /proc; unshare --mount-proc)"
    )]
    Proc {
        /// The process id that /proc shows.
        seen: String,
        /// The process id that this process has.
        pid: u32,
    },
    /// Child processes enter another namespace of this kind ("pid" or "time"): their process ids or their clock
    /// would not be this process's.
    #[error(
        "cannot watch over the command's processes: child processes enter another {0} namespace than this process: start trafficcop inside it (unshare --fork)"
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
    /// Whether it is in control until its deadline, and the control file shows that.
    pub in_control: bool,
    /// Variables that the command's environment gains; it inherits the rest.
    pub env: Vec<(OsString, OsString)>,
    /// Variables that it loses, if this process has them.
    pub unset: Vec<OsString>,
    /// Deadlines, unless they are moved later.
    pub deadlines: Deadlines,
    /// Signal that the guardian's own drain sends first; 0: none.
    pub stop_signal: i32,
    /// Receiver of that signal, in every drain.
    pub stop_to: StopTo,
    /// Lock that guardian and command keep open until the tree is empty.
    pub lock: Option<OwnedFd>,
    /// Stdin of a program that is not in front; not together with a lock.
    pub input: Option<OwnedFd>,
    /// Information for giving the lease back: see [`Setup::on_orphaned`]. The guardian forgets it on the
    /// supervisor's order.
    pub release_info: Vec<u8>,
}
