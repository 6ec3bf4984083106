//! Vocabulary of the core: inputs ([`Event`]), outputs ([`Action`]), messages for people ([`Notice`]) and
//! results ([`Ending`]).
//!
//! Used by everything around the core. Nothing here does anything.

use std::time::Duration;

use super::budget::{Deadlines, Start};
use super::condition::Unfit;
use super::doorbell::Bell;
use super::health::{HealthEvent, Hung};
use super::hold_policy::{Outcome, TaskResult};
use crate::clock::Instant;

/// End of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Exited with this status (0 to 255).
    Code(u8),
    /// Killed by this signal.
    Signal(i32),
}

impl Exit {
    /// Returns the number that a shell shows: the status, or 128 + the signal.
    #[must_use]
    pub fn as_status(self) -> i32 {
        match self {
            Exit::Code(status) => i32::from(status),
            Exit::Signal(signal) => 128 + signal,
        }
    }
}

/// Report of a store about a lock that another instance holds. All of it is for people, but for `draining`
/// and `expires`, which decide when a standby looks next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderInfo {
    /// Identity of the holder, from its record.
    pub holder: Option<String>,
    /// Fencing token of the holder, from its record.
    pub token: Option<u64>,
    /// Message where another program has the lease, not the recorded holder.
    pub foreign: Option<Box<str>>,
    /// Command of the holder, from its record.
    pub command: Option<Box<str>>,
    /// The holder has begun to drain, so control will change soon.
    pub draining: bool,
    /// Beginning of the tenure by the holder's wall clock (RFC 3339), from its record.
    pub since: Option<Box<str>>,
    /// Moment at which the lock is available if its holder does nothing until then, if the store knows it
    /// by this machine's clock. The next look comes no later.
    pub expires: Option<Instant>,
    /// Address at which the holder rings when control changes, from its record.
    pub bell: Option<Box<Bell>>,
    /// Keep polling although the bell is heard: with slots, another holder may give up its lease unheard,
    /// and an observed lease counts from when its last renewal was seen.
    pub polls_as_ever: bool,
}

/// Lease that a store granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Moment just before the request was sent that obtained (or last renewed) the lease. The store began
    /// to count later, so the lease lasts until `t0 + lease` at least.
    pub t0: Instant,
    /// Fencing token of this tenure, greater than all before it.
    pub token: u64,
    /// Number of failed runs of the task, from its record; 0 without one.
    pub failed: u32,
}

/// Failure of a request to a store. These five meanings are all: the store maps, the core decides. The
/// texts are for people, and never contain a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Another instance holds the lock.
    #[error("held by another")]
    Held(HolderInfo),
    /// The record says that the task is over, so control is not needed.
    #[error("the task is over")]
    AlreadyDone(TaskResult),
    /// The lease is definitely lost. No other instance can have obtained it before `until` (`None`: one may
    /// have it now).
    #[error("{why}")]
    Lost {
        /// End of a lease that is being broken; until then it keeps others out.
        until: Option<Instant>,
        /// One line for a person.
        why: String,
    },
    /// The result is unknown: time limits, connections, 401 and 403 during a tenure, 408, 429, 5xx.
    #[error("{why}")]
    Transient {
        /// One line for a person.
        why: String,
        /// Wait that the service asked for (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// The configuration will never work; or it did, and the store refuses the credential now.
    #[error("{why}")]
    Fatal {
        /// One line for a person: what failed, on what, why, and what to do.
        why: String,
        /// Not authorised (exit status 77) rather than out of reach (69).
        denied: bool,
    },
}

/// Reason why this machine must not have control for now: something is about to happen to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cordon {
    /// One line for a person.
    pub why: String,
    /// Earliest moment of that ([`Instant::FOREVER`]: unknown, or it has begun).
    pub before: Instant,
}

/// Report of the guardian about a workload, or of the guardian's silence. It goes from the guardian's
/// socket to the core, and to people, unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadEvent {
    /// The command runs.
    Started {
        /// Process id of the main process.
        pid: i32,
    },
    /// The command could not be started; none of its processes runs.
    NotStarted {
        /// Error number of the kernel (ENOENT, EACCES, ...).
        errno: i32,
    },
    /// The terminal stopped the main process (Ctrl-Z): stop this process, then call
    /// `GuardianHandle::resume`.
    Stopped,
    /// The main process ended; the guardian is already draining the rest of its tree.
    Exited(Exit),
    /// Processes outlived the main process, and are being drained.
    LeftBehind,
    /// The last process of the tree has ended.
    TreeEmpty {
        /// Moment of that, by the clock of the process that saw it: the guardian or, after its death, the
        /// supervisor.
        at: Instant,
    },
    /// The guardian drains or kills on its own, because a deadline passed.
    Acting,
    /// The wall clock jumped: the machine slept, was frozen, or its clock was set. The lease must be
    /// verified before anything else.
    ClockJumped,
    /// The guardian died, or was silent and was killed. The tree is being killed, and `TreeEmpty` or
    /// `TreeStuck` follows.
    Lost,
    /// A process of the tree is stuck in the kernel and cannot be killed. No event follows.
    TreeStuck,
    /// A hook that must succeed before the command failed, and the command was not started. Comes from the
    /// code that prepares the start, not from the guardian.
    HookFailed {
        /// Moment at which the last process of the hook was reaped.
        at: Instant,
        /// Failure of the hook.
        how: Failed,
    },
    /// The standby command has this main process, or ended. Not from the guardian.
    Standby(Option<i32>),
    /// Answer to [`Action::Ask`]: this machine may compete, or why not. Not from the guardian.
    Condition(Result<(), Unfit>),
    /// Health of the command. Only [`HealthEvent::Hung`] and [`HealthEvent::GuardianLost`] have a
    /// consequence. Not from the guardian.
    Health(HealthEvent),
}

/// Input of the core, named in the past tense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Only time has passed. After a pause, the clock is read before anything else.
    Ticked,
    /// The lock may be available. This is no grant: the rest (the token, the record) needs a time limit and
    /// can fail.
    Freed,
    /// The attempt to acquire ended.
    Acquired(Result<Grant, Failure>),
    /// The look at a task's record, which obtains nothing, ended.
    Looked(Result<(), Failure>),
    /// The attempt to renew that was sent at `t0` ended.
    Renewed {
        /// Moment just before the request was sent.
        t0: Instant,
        /// Answer of the store.
        reply: Result<(), Failure>,
    },
    /// The attempt to record a task's result ended.
    Recorded(Result<(), Failure>),
    /// The attempt to give the lease back ended.
    Released(Result<(), Failure>),
    /// Something happened to the workload.
    Workload(WorkloadEvent),
    /// The command announced its end (`STOPPING=1`).
    CommandStopping,
    /// A person or a service manager sent this signal to stop this instance.
    StopAsked(i32),
    /// This machine must not have control until it is uncordoned. Repeated when the reason changes.
    Cordoned(Cordon),
    /// The cordon is over.
    Uncordoned,
}

/// Output of the core, named in the imperative. The driver carries actions out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Try to get control; the reply is [`Event::Acquired`].
    Acquire {
        /// End of the attempt; anything that it may have obtained is undone.
        give_up_at: Instant,
    },
    /// Ask whether this machine may compete; the reply is [`WorkloadEvent::Condition`].
    Ask {
        /// Moment after which no answer counts as a no.
        give_up_at: Instant,
    },
    /// Only look whether the task is over; the reply is [`Event::Looked`].
    Look {
        /// End of the attempt.
        give_up_at: Instant,
    },
    /// Abandon the attempt to acquire that is in flight, and undo what it may have obtained; the reply is
    /// [`Event::Released`].
    Withdraw {
        /// End of the attempt to undo.
        give_up_at: Instant,
    },
    /// Renew the lease; the reply is [`Event::Renewed`].
    Renew {
        /// End of the attempt.
        give_up_at: Instant,
    },
    /// Start the command.
    Start(Start),
    /// Move the guardian's deadlines on. Goes before anything that can block.
    Extend(Deadlines),
    /// Send this signal to the command's group, and SIGKILL to the tree at the earlier of `end_of_grace`
    /// and the lease's kill_at.
    Drain {
        /// Signal that the drain sends first.
        signal: i32,
        /// End of the grace, whatever the lease allows.
        end_of_grace: Instant,
    },
    /// SIGKILL to the whole tree, now.
    Kill,
    /// Announce in the record that control will change soon (best effort; nothing waits for it).
    Announce,
    /// Record the result of a task's run; the reply is [`Event::Recorded`]. Comes only after "tree empty".
    Record {
        /// Result to record.
        outcome: Outcome,
        /// End of the attempt.
        give_up_at: Instant,
    },
    /// Give the lease back; the reply is [`Event::Released`]. Comes only after "tree empty".
    Release {
        /// End of the attempt.
        give_up_at: Instant,
    },
    /// Let the lease run out: forget it, and all requests about it, without asking the store.
    Abandon,
    /// Listen to this holder's doorbell only; `None`: to none. Rings go to
    /// [`Tenure::rang`](super::Tenure::rang).
    Attend {
        /// Address of the bell.
        bell: Option<Bell>,
    },
    /// Run the standby command until a command was started. Comes once.
    StandBy,
    /// Note that a tenure is over: its tree is empty, and the store knows all that it should.
    TenureOver {
        /// Reason.
        cause: Cause,
    },
    /// Inform people.
    Notify(Notice),
}

/// Message for people: one line in the log for each change of state, none per poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Standing by, behind this holder.
    StandingBy(HolderInfo),
    /// Control obtained, with this fencing token.
    InControl {
        /// Token of the tenure.
        token: u64,
    },
    /// The store failed to answer while standing by or holding; sent when doubt begins.
    Doubt {
        /// Message of the store.
        why: String,
        /// Moment of the stop signal if nothing changes; `None` while standing by.
        term_at: Option<Instant>,
    },
    /// The store refuses the credential that it accepted before, while standing by; sent at once, and once
    /// a minute.
    Refused {
        /// Message of the store.
        why: String,
        /// Moment at which this instance leaves if nothing changes.
        leaves_at: Instant,
    },
    /// The store answers again after a reported doubt.
    Recovered,
    /// The command is being drained, for this reason.
    Draining(Cause),
    /// The command ended by itself.
    CommandEnded(Exit),
    /// The command is started again at `until`.
    BackingOff {
        /// Moment of the restart.
        until: Instant,
        /// Number of this restart within the window.
        number: u32,
    },
    /// The command is started again, now.
    Restarting,
    /// The command reached its limit of restarts: control is handed over.
    RestartsSpent,
    /// The command was not started, because a hook failed so: control is handed over.
    HookFailed(Failed),
    /// The tenure reached its longest time while nothing ran: control is handed over.
    HoldOver,
    /// The command has done its work, and the lease is kept until `until`.
    Keeping {
        /// Moment of the release.
        until: Instant,
    },
    /// Control was handed over; this instance does not compete until `until`.
    CoolingDown {
        /// End of the cool-down.
        until: Instant,
    },
    /// This machine is cordoned: this instance runs and holds nothing, and does not compete.
    Cordoned {
        /// Reason of the cordon.
        why: String,
    },
    /// The cordon is over: this instance competes again.
    Uncordoned,
    /// This machine is not fit to take control: this instance does not compete.
    Unfit(Unfit),
    /// This machine is fit again: this instance competes again.
    Fit,
    /// The result of a task's run stands in its record.
    Recorded {
        /// Result.
        outcome: Outcome,
        /// Number of the run, if failed runs are counted.
        attempt: u32,
    },
    /// The result could not be recorded yet; sent once.
    Unrecorded {
        /// Message of the store.
        why: String,
    },
    /// The run of a task failed, and no instance tries again before `until`.
    Pausing {
        /// When the lease is given back.
        until: Instant,
    },
    /// The run of a task was stopped before its end: nothing is recorded.
    NotDone,
    /// The command ended and left processes behind, which are being drained.
    LeftBehind,
    /// Control was lost, and the command may have run at the same time as another holder's.
    Overlapped,
    /// The lease was given back.
    Released,
    /// This instance tried to give the lease back, and found it lost.
    FoundLost {
        /// Message of the store.
        why: String,
    },
    /// The lease is left to run out.
    LeftToRunOut {
        /// One line for a person.
        why: String,
    },
}

/// Reason why the command does not work here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOverReason {
    /// The command reached its limit of restarts.
    RestartsSpent,
    /// A hook that must succeed before it failed.
    HookFailed(Failed),
    /// The command runs, but hangs.
    Hung(Hung),
}

/// Failure of a command that must succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Ended so.
    Exited(Exit),
    /// Not started, for this error number of the kernel.
    NotStarted(i32),
}

/// Reason why a tenure (or the wait for one) ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The command ended by itself.
    CommandEnded,
    /// The command could not be started.
    NotStarted {
        /// Error number of the kernel.
        errno: i32,
    },
    /// This signal asked this instance to stop.
    Stopped(i32),
    /// The lease could not be renewed in time.
    Doubt {
        /// Last message of the store.
        why: String,
    },
    /// The lease was definitely lost.
    Lost {
        /// Message of the store.
        why: String,
    },
    /// The tenure reached its longest time. The competition goes on.
    HandOver,
    /// Control was handed over because the command does not work here. The competition goes on.
    GivenUp(HandOverReason),
    /// This machine is cordoned. After a tenure, the competition goes on when the cordon is over. A wait
    /// ends with this cause if its time is over first.
    Cordoned {
        /// Reason of the cordon.
        why: String,
    },
    /// This machine was not fit to take control when the time to wait was over.
    Unfit(Unfit),
    /// The guardian died or fell silent.
    GuardianLost,
    /// The result of a task's run could not be recorded.
    NotRecorded {
        /// Reason.
        why: String,
    },
    /// Another instance had done the task already.
    AlreadyDone(TaskResult),
    /// Control was not available in the time given (`-n`, `-w`).
    NotObtained(HolderInfo),
    /// The store was out of reach, or refused this instance, before anything could start.
    Store {
        /// One line for a person.
        why: String,
        /// Not authorised (77) rather than out of reach (69).
        denied: bool,
    },
}

/// End of one instance's competition after all its rounds, from which the exit status is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Reason.
    pub cause: Cause,
    /// End of the command's main process, if it ran.
    pub exit: Option<Exit>,
    /// A process of the tree may have lived when another instance could have control.
    pub overlap: bool,
    /// The lease was given back (else it runs out, or was lost).
    pub released: bool,
}

impl Ending {
    /// Makes the end of a competition that never began because of the store.
    #[must_use]
    pub fn of_store(why: String, denied: bool) -> Ending {
        Ending {
            cause: Cause::Store { why, denied },
            exit: None,
            overlap: false,
            released: true,
        }
    }
}
