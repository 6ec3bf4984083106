//! The words of this room: who can run, under what, and what is to be done.
//!
//! Used by [`super::HookSequencer`] and by the workload that does what it says. Nothing here does anything.

use std::time::Duration;

use crate::clock::Instant;
use crate::core::Failed;
use crate::guardian::WorkloadEvent;

/// What can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs while we wait for control.
    Standby,
    /// Has to succeed before the command is started.
    OnAcquire,
    /// Runs while we are in control.
    Command,
}

/// Who is there to play, besides the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookConfig {
    /// There is a standby command.
    pub standby: bool,
    /// There is something that has to succeed before the command is started.
    pub on_acquire: bool,
    /// From SIGTERM to SIGKILL for the standby command.
    pub grace: Duration,
}

/// Control, as the core has it when it orders the command to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// When everything under it is drained without being told.
    pub term_at: Instant,
    /// When it is killed without being told.
    pub kill_at: Instant,
    /// Nothing is started later than this: the store's last word would be too old.
    pub fresh_until: Instant,
    /// The fencing token.
    pub token: u64,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Order the guardian to start this.
    Launch {
        /// What.
        role: Role,
        /// When the guardian drains it on its own.
        term_at: Instant,
        /// When the guardian kills it on its own.
        kill_at: Instant,
    },
    /// Move the deadlines of what runs.
    Extend {
        /// See [`Effect::Launch`].
        term_at: Instant,
        /// See [`Effect::Launch`].
        kill_at: Instant,
    },
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
pub enum HookNotice {
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
