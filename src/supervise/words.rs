//! The words of this room: what a guardian is made with and ordered to do, and what it tells.
//!
//! Used by everybody who supervises, and by the rooms beside this one. Nothing here does anything.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::clock::Instant;
use crate::core::Exit;

/// What is asked for to keep the command's tree together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Contain {
    /// A cgroup where one can be had, else none.
    #[default]
    Auto,
    /// A cgroup of its own, or nothing starts.
    Cgroup,
    /// A PID namespace of its own, or nothing starts.
    Pidns,
    /// Subreaper and walk only.
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

/// What a guardian is made with.
pub struct Setup {
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
    /// What keeps the tree together.
    pub contain: Contain,
    /// From the stop signal to SIGKILL when the supervisor is dead and no deadline tells more.
    pub grace: Duration,
    /// Run by the guardian, with the last will it was entrusted with, when the supervisor is dead
    /// and the tree is empty. It may allocate, build a runtime and take its time; then the
    /// guardian exits.
    pub afterlife: fn(&[u8]),
}

/// One command to run, under deadlines.
pub struct Order {
    /// Variables the command's environment gains; the rest is as we got it.
    pub env: Vec<(OsString, OsString)>,
    /// When the guardian drains on its own, for the grace that is left until `kill_at`.
    pub term_at: Instant,
    /// When the guardian kills on its own.
    pub kill_at: Instant,
    /// What the guardian's own drain sends first.
    pub stop_signal: i32,
    /// Kept open by guardian and command until the tree is empty.
    pub lock: Option<OwnedFd>,
    /// The last will: see [`Setup::afterlife`]. Forgotten when the supervisor says so.
    pub will: Vec<u8>,
}

/// What the guardian tells, or what its silence means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The command runs.
    Started {
        /// Its main process.
        pid: i32,
    },
    /// The command could not be started, for this error number; nothing of it runs.
    NotStarted {
        /// ENOENT, EACCES, ...
        errno: i32,
    },
    /// The main process was stopped from the terminal (Ctrl-Z): stop ourselves, and then
    /// [`Attendant::resume`].
    Stopped,
    /// The main process ended; the guardian drains what it left behind.
    Exited(Exit),
    /// Something of the tree outlived the main process and is being drained.
    LeftBehind,
    /// Nothing of the tree lives.
    TreeEmpty {
        /// When the last of it was reaped.
        at: Instant,
    },
    /// The guardian drains or kills on its own, because a deadline passed.
    Acting,
    /// The wall clock jumped (resume, thaw, an administrator): look at the clock and the lease.
    ClockJumped,
    /// The guardian died or was silent for a second and was killed; the tree is being killed, and
    /// `TreeEmpty` or `TreeStuck` follows.
    Lost,
    /// Something of the tree cannot be killed. Nothing follows.
    TreeStuck,
}
