//! The words of this room: what a guardian is made with and ordered to do, and what it tells.
//!
//! Used by everybody who supervises, and by the rooms beside this one. Nothing here does anything.

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

/// Something a guardian can be ordered to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The command and its arguments; not empty.
    pub words: Vec<OsString>,
    /// It gets our stdin, and the foreground of our terminal if we have that; else its stdin is
    /// what the order brings along (or /dev/null), and it stays in the background.
    pub in_front: bool,
}

impl Program {
    /// A command of the user's own, which gets everything as we got it.
    #[must_use]
    pub fn command(words: Vec<OsString>) -> Program {
        Program {
            words,
            in_front: true,
        }
    }

    /// The same in the background: its stdin is what each [`SpawnRequest`] brings along, or /dev/null.
    #[must_use]
    pub fn handler(words: Vec<OsString>) -> Program {
        Program {
            words,
            in_front: false,
        }
    }

    /// A script that `sh` runs beside that.
    #[must_use]
    pub fn script(text: &OsStr) -> Program {
        Program {
            words: vec!["/bin/sh".into(), "-c".into(), text.to_owned()],
            in_front: false,
        }
    }
}

impl Program {
    /// The same, of which only the end counts: what it prints is thrown away.
    #[must_use]
    pub fn silent(text: &OsStr) -> Program {
        // A line of its own, read before what follows is parsed: an error there is no noise either.
        let mut script = OsString::from("if [ -c /dev/null ]; then exec >/dev/null 2>&1; fi\n");
        script.push(text);
        Program::script(&script)
    }
}

/// What a guardian is made with.
pub struct Setup {
    /// What it can be ordered to run, one after another: at least one, at most 255.
    pub programs: Vec<Program>,
    /// What keeps the tree together.
    pub contain: Contain,
    /// From the stop signal to SIGKILL when the supervisor is dead and no deadline tells more.
    pub grace: Duration,
    /// From SIGTERM to SIGKILL for what the command left behind when it ended, while the supervisor lives;
    /// `None`: the time between the deadlines, or `grace` where there are none.
    pub left_behind: Option<Duration>,
    /// From the supervisor's death to SIGKILL at most, where the lock dies with the supervisor: a drain that it
    /// had granted more to is cut, and what it had ordered and is not begun by then is not begun. `None`: the
    /// lock does not, and what was granted stays granted.
    pub orphan_grace: Option<Duration>,
    /// Run by the guardian, with the last release info it was given, when the supervisor is dead
    /// and the tree is empty. It may allocate, build a runtime and take its time; then the
    /// guardian exits.
    pub on_orphaned: fn(&[u8]),
    /// Variables that nothing it runs inherits: our credentials, where they are not to be shared.
    pub withheld: Vec<OsString>,
    /// Another guardian that has something under the same lease.
    pub partner: Option<Partner>,
    /// The command only tells others of our control. Those are not killed with it, so its control file says
    /// "not in control" from the beginning of every drain; and it gets no terminal, which belongs to them.
    pub tells_others: bool,
}

impl Setup {
    /// For what has no part in a lease: nothing is given back after the supervisor's death.
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

/// What ties two guardians together that guard something under one lease: the ends of a pipe.
pub enum Partner {
    /// The lease is given back by the other one, and not before we are gone: this end closes with us.
    Ends(OwnedFd),
    /// The other one is gone when this end says so: not before that [`Setup::on_orphaned`] is run.
    Awaits(OwnedFd),
}

impl Partner {
    /// The one for the guardian that ends first, and the one for the guardian that awaits its end.
    ///
    /// # Errors
    /// What pipe(2) says.
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

/// Why there is no guardian: what was asked for cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// There is no command.
    #[error("no command was given")]
    NoCommand,
    /// A word of the command holds a NUL byte.
    #[error("the command holds a NUL byte")]
    Nul,
    /// A guardian is forked, and that is only sound while there is one thread.
    #[error("a guardian cannot be forked from a process of {0} threads")]
    Threads(usize),
    /// A kind of containment was asked for by name and is not to be had here.
    #[error("--contain={asked} is not available: {why}")]
    Contain {
        /// The name of it.
        asked: &'static str,
        /// One line: what is missing.
        why: String,
    },
    /// What /proc shows is not what we live in, so nothing of a command could be found there.
    #[error(
        "cannot watch over the command's processes: /proc is another PID namespace's, there this process is {seen}, and it is {pid}: mount this namespace's own over it (mount -t proc proc /proc; unshare --mount-proc)"
    )]
    Proc {
        /// What /proc calls us.
        seen: String,
        /// What we are.
        pid: u32,
    },
    /// Child processes enter another namespace of this kind: their process ids ("pid") or their clock ("time")
    /// would not be this process's.
    #[error(
        "cannot watch over the command's processes: child processes enter another {0} namespace than this process: start trafficcop inside it (unshare --fork)"
    )]
    ChildrenElsewhere(&'static str),
    /// The kernel refused.
    #[error("cannot set up the guardian: {what}: {why}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        why: io::Error,
    },
}

impl SetupError {
    /// Whether what was asked for is the reason, and not the machine.
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

/// One command to run, under deadlines.
pub struct SpawnRequest {
    /// Which of [`Setup::programs`].
    pub program: u8,
    /// It is in control until its deadline, and the control file says so.
    pub in_control: bool,
    /// Variables the command's environment gains; the rest is as we got it.
    pub env: Vec<(OsString, OsString)>,
    /// Variables it loses, if we got them.
    pub unset: Vec<OsString>,
    /// Until when it may run, unless they are moved.
    pub deadlines: Deadlines,
    /// Signal that the guardian's own drain sends first; 0: none.
    pub stop_signal: i32,
    /// Who gets it, in every drain.
    pub stop_to: StopTo,
    /// Kept open by guardian and command until the tree is empty.
    pub lock: Option<OwnedFd>,
    /// The command's stdin, for a program that is not in front; not together with a lock.
    pub input: Option<OwnedFd>,
    /// How the lease is given back: see [`Setup::on_orphaned`]. Forgotten when the supervisor says so.
    pub release_info: Vec<u8>,
}
