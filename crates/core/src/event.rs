//! Vocabulary of the core: inputs, outputs, messages for people and results.

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
    /// Status, 0 to 255.
    Code(u8),
    /// Signal that killed it.
    Signal(i32),
}

impl Exit {
    /// Returns the status, or 128 + the signal, as a shell does.
    #[must_use]
    pub fn as_status(self) -> i32 {
        match self {
            Exit::Code(status) => i32::from(status),
            Exit::Signal(signal) => 128 + signal,
        }
    }
}

/// Report of a store about the holder of a lock. Only `draining` and `expires` decide something: when a
/// standby looks next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderInfo {
    /// Identity.
    pub holder: Option<String>,
    /// Fencing token.
    pub token: Option<u64>,
    /// Message where another program has the lease, not the recorded holder.
    pub foreign: Option<Box<str>>,
    /// Command.
    pub command: Option<Box<str>>,
    /// Control will change soon.
    pub draining: bool,
    /// Beginning of the tenure by the holder's wall clock (RFC 3339).
    pub since: Option<Box<str>>,
    /// Moment at which the lock is available if its holder does nothing until then. The next look comes no
    /// later.
    pub expires: Option<Instant>,
    /// Address at which the holder rings.
    pub bell: Option<Box<Bell>>,
    /// Keep polling although the bell is heard. With slots, another holder may give up its lease unheard;
    /// an observed lease counts from when its last renewal was seen.
    pub polls_as_ever: bool,
}

/// Granted lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Moment just before the last granted request. The store began to count later, so the lease lasts
    /// until `t0 + lease` at least.
    pub t0: Instant,
    /// Fencing token, greater than all before it.
    pub token: u64,
    /// Number of failed runs of the task.
    pub failed: u32,
}

/// Failure of a request to a store, which maps its answers to these. The texts never contain a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Another instance holds the lock.
    #[error("held by another")]
    Held(HolderInfo),
    /// The task is over.
    #[error("the task is over")]
    AlreadyDone(TaskResult),
    /// The lease is lost. No other instance can have obtained it before `until` (`None`: one may have it
    /// now).
    #[error("{why}")]
    Lost {
        /// End of a lease that is being broken.
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
    /// The configuration will never work, or the credential is refused.
    #[error("{why}")]
    Fatal {
        /// One line for a person, with what to do.
        why: String,
        /// Not authorised (exit status 77) rather than out of reach (69).
        denied: bool,
    },
}

/// Reason why this machine must not have control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cordon {
    /// One line for a person.
    pub why: String,
    /// Earliest moment of the disturbance; [`Instant::FOREVER`]: unknown, or it has begun.
    pub before: Instant,
}

/// Report about a workload, from the guardian unless the variant says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadEvent {
    /// The command runs.
    Started {
        /// Process id of the main process.
        pid: i32,
    },
    /// None of the command's processes was started.
    NotStarted {
        /// Error number of the kernel.
        errno: i32,
    },
    /// The terminal stopped the main process (Ctrl-Z). Stop this process, then call
    /// `GuardianHandle::resume`.
    Stopped,
    /// The main process ended, and the guardian drains its tree.
    Exited(Exit),
    /// Processes outlived the main process, and are being drained.
    LeftBehind,
    /// The last process of the tree has ended.
    TreeEmpty {
        /// Moment by the clock of the guardian or, after its death, the supervisor.
        at: Instant,
    },
    /// The guardian drains or kills on its own, by a deadline.
    Acting,
    /// The machine slept, was frozen, or its clock was set: verify the lease first.
    ClockJumped,
    /// The guardian died or was killed, and the tree is being killed. `TreeEmpty` or `TreeStuck` follows.
    Lost,
    /// A process is stuck in the kernel and cannot be killed. No event follows.
    TreeStuck,
    /// A hook failed that must succeed before the command. Not from the guardian.
    HookFailed {
        /// Moment at which its last process was reaped.
        at: Instant,
        /// Failure.
        how: Failed,
    },
    /// Main process of the standby command; `None`: it ended. Not from the guardian.
    Standby(Option<i32>),
    /// Answer to [`Action::Ask`]. Not from the guardian.
    Condition(Result<(), Unfit>),
    /// Health of the command, not from the guardian. Only [`HealthEvent::Hung`] and
    /// [`HealthEvent::GuardianLost`] have a consequence.
    Health(HealthEvent),
}

/// Input of the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Only time has passed.
    Ticked,
    /// The lock may be available. This is no grant: the token and the record can fail.
    Freed,
    /// An attempt to acquire ended.
    Acquired(Result<Grant, Failure>),
    /// A look at a task's record ended.
    Looked(Result<(), Failure>),
    /// An attempt to renew ended.
    Renewed {
        /// Moment just before the request.
        t0: Instant,
        /// Answer.
        reply: Result<(), Failure>,
    },
    /// An attempt to record a result ended.
    Recorded(Result<(), Failure>),
    /// An attempt to give the lease back ended.
    Released(Result<(), Failure>),
    /// Report about the workload.
    Workload(WorkloadEvent),
    /// The command announced its end (`STOPPING=1`).
    CommandStopping,
    /// This signal asks this instance to stop.
    StopAsked(i32),
    /// This machine must not have control. Repeated with a new reason.
    Cordoned(Cordon),
    /// The cordon is over.
    Uncordoned,
}

/// Output of the core, carried out in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Try to get control; the reply is [`Event::Acquired`].
    Acquire {
        /// End of the attempt; undo what it may have obtained.
        give_up_at: Instant,
    },
    /// Ask whether this machine may compete; the reply is [`WorkloadEvent::Condition`].
    Ask {
        /// Moment after which no answer counts as a no.
        give_up_at: Instant,
    },
    /// Look whether the task is over; the reply is [`Event::Looked`].
    Look {
        /// End of the attempt.
        give_up_at: Instant,
    },
    /// Undo what the attempt to acquire may obtain; the reply is [`Event::Released`].
    Withdraw {
        /// End of the attempt.
        give_up_at: Instant,
    },
    /// Renew the lease; the reply is [`Event::Renewed`].
    Renew {
        /// End of the attempt.
        give_up_at: Instant,
    },
    /// Start the command.
    Start(Start),
    /// Move the guardian's deadlines, before anything that can block.
    Extend(Deadlines),
    /// Send this signal to the command's group. SIGKILL follows at the earlier of `end_of_grace` and the
    /// lease's kill_at.
    Drain {
        /// First signal.
        signal: i32,
        /// End of the grace, whatever the lease allows.
        end_of_grace: Instant,
    },
    /// SIGKILL the whole tree now.
    Kill,
    /// Announce in the record that control will change soon, without waiting for the answer.
    Announce,
    /// Record a task's result, after "tree empty"; the reply is [`Event::Recorded`].
    Record {
        /// Result.
        outcome: Outcome,
        /// End of the attempt.
        give_up_at: Instant,
    },
    /// Give the lease back, after "tree empty"; the reply is [`Event::Released`].
    Release {
        /// End of the attempt.
        give_up_at: Instant,
    },
    /// Let the lease run out: forget it, and all requests about it, without asking the store.
    Abandon,
    /// Listen to this bell only; rings go to [`Tenure::rang`](super::Tenure::rang).
    Attend {
        /// Address; `None`: no bell.
        bell: Option<Bell>,
    },
    /// Run the standby command until a command was started. Comes once.
    StandBy,
    /// Note that a tenure is over: the store knows all that it should.
    TenureOver {
        /// Reason.
        cause: Cause,
    },
    /// Inform people.
    Notify(Notice),
}

/// Message for people: one log line for each change of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Stands by behind this holder.
    StandingBy(HolderInfo),
    /// Control obtained.
    InControl {
        /// Fencing token.
        token: u64,
    },
    /// The store fails to answer; sent when doubt begins.
    Doubt {
        /// Message of the store.
        why: String,
        /// Moment of the stop signal; `None` while standing by.
        term_at: Option<Instant>,
    },
    /// The store refuses a credential that it accepted before; sent at once, and once a minute.
    Refused {
        /// Message of the store.
        why: String,
        /// Moment at which this instance leaves.
        leaves_at: Instant,
    },
    /// The store answers again.
    Recovered,
    /// The command is being drained.
    Draining(Cause),
    /// The command ended by itself.
    CommandEnded(Exit),
    /// The command is started again at `until`.
    BackingOff {
        /// Moment of the restart.
        until: Instant,
        /// Number within the window.
        number: u32,
    },
    /// The command is started again now.
    Restarting,
    /// The limit of restarts is reached: control is handed over.
    RestartsSpent,
    /// A hook failed: control is handed over.
    HookFailed(Failed),
    /// The longest tenure ended while nothing ran: control is handed over.
    HoldOver,
    /// The lease outlasts the command until `until`.
    Keeping {
        /// Moment of the release.
        until: Instant,
    },
    /// Control was handed over; this instance does not compete until `until`.
    CoolingDown {
        /// End of the cool-down.
        until: Instant,
    },
    /// This machine is cordoned, and does not compete.
    Cordoned {
        /// Reason of the cordon.
        why: String,
    },
    /// The cordon is over.
    Uncordoned,
    /// This machine is not fit to take control.
    Unfit(Unfit),
    /// This machine is fit again.
    Fit,
    /// The result of a run is recorded.
    Recorded {
        /// Result.
        outcome: Outcome,
        /// Number of the run, if failed runs are counted.
        attempt: u32,
    },
    /// The result is not recorded yet; sent once.
    Unrecorded {
        /// Message of the store.
        why: String,
    },
    /// A run failed, and no instance tries again before `until`.
    Pausing {
        /// Moment of the release.
        until: Instant,
    },
    /// A run was stopped before its end, and nothing is recorded.
    NotDone,
    /// The command left processes behind.
    LeftBehind,
    /// The command may have run at the same time as another holder's.
    Overlapped,
    /// The lease was given back.
    Released,
    /// The lease was found lost at its release.
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
    /// A hook failed before it.
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

/// Reason why a tenure, or the wait for one, ended.
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
    /// The command does not work here. The competition goes on.
    GivenUp(HandOverReason),
    /// This machine is cordoned. The competition goes on after the cordon.
    Cordoned {
        /// Reason of the cordon.
        why: String,
    },
    /// This machine was not fit when the wait was over.
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
    /// The store was out of reach, or refused this instance, before anything started.
    Store {
        /// One line for a person.
        why: String,
        /// Not authorised (77) rather than out of reach (69).
        denied: bool,
    },
}

/// End of one instance's competition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Reason.
    pub cause: Cause,
    /// End of the main process, if it ran.
    pub exit: Option<Exit>,
    /// A process of the tree may have outlived control.
    pub overlap: bool,
    /// The lease was given back.
    pub released: bool,
}

impl Ending {
    /// Makes the end of a competition that the store prevented.
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
