//! The words of this room: who can run, under what, and what is to be done.
//!
//! Used by [`super::HookSequencer`] and by the workload that does what it says. Nothing here does anything.

use std::time::Duration;

use crate::clock::Instant;
use crate::core::{Deadlines, Failed, WorkloadEvent};

/// What can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs while we wait for control.
    Standby,
    /// Has to succeed before the command is started.
    OnAcquire,
    /// Runs while we are in control.
    Command,
}

/// Which hooks there are besides the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HookConfig {
    /// There is a standby command.
    pub standby: bool,
    /// There is something that has to succeed before the command is started.
    pub on_acquire: bool,
    /// From SIGTERM to SIGKILL for the standby command.
    pub grace: Duration,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Order the guardian to start this.
    Launch {
        /// What.
        role: Role,
        /// Until when it may run unasked.
        deadlines: Deadlines,
    },
    /// Move the deadlines of what runs.
    Extend(Deadlines),
    /// Drain what runs.
    Drain {
        /// What is sent first.
        signal: i32,
        /// When SIGKILL follows at the latest.
        end_of_grace: Instant,
    },
    /// Kill what runs.
    Kill,
    /// Tell the guardian how to give the lease back, should we die.
    SetReleaseInfo,
    /// Tell the core (and people).
    Tell(WorkloadEvent),
    /// Tell people.
    Say(HookNotice),
}

/// What people are told of a role that the core does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookNotice {
    /// The standby command did its work, and is not started again before the next time.
    StandbyDone,
    /// The standby command failed, and is started again after this time.
    StandbyFailed(Failed, Duration),
    /// The standby command's tree is drained, because we are in control.
    StandbyDrained,
    /// It left processes behind, which are drained.
    LeftBehind(Role),
    /// The standby command's tree cannot be killed, so nothing can be started here any more.
    StandbyStuck,
}
