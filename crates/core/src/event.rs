//! The vocabulary of the core: what happened ([`Event`]), what is to be done ([`Action`]), what a
//! person should hear of it ([`Notice`]), and how it all ended ([`Ending`]).
//!
//! Called by everything that stands round the core. Nothing here may do anything.

use std::time::Duration;

use super::budget::{Deadlines, Start};
use super::condition::Unfit;
use super::doorbell::Bell;
use super::health::{HealthEvent, Hung};
use super::hold_policy::{Outcome, TaskResult};
use crate::clock::Instant;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status (0 to 255).
    Code(u8),
    /// It was killed by this signal.
    Signal(i32),
}

impl Exit {
    /// The number a shell shows for it: the status, or 128 + the signal.
    #[must_use]
    pub fn as_status(self) -> i32 {
        match self {
            Exit::Code(status) => i32::from(status),
            Exit::Signal(signal) => 128 + signal,
        }
    }
}

/// What a store tells about a lock that somebody else holds; all of it is for people, but for
/// `draining` and `expires`, which say when a standby looks next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HolderInfo {
    /// The holder's identity, if its record tells one.
    pub holder: Option<String>,
    /// The holder's fencing token, if its record tells one.
    pub token: Option<u64>,
    /// What to say where the lease is another program's, and not the recorded holder's.
    pub foreign: Option<Box<str>>,
    /// The holder's command, as its record has it.
    pub command: Option<Box<str>>,
    /// The holder has begun to drain: control will change soon.
    pub draining: bool,
    /// Since when, by the holder's own wall clock (RFC 3339), if its record tells it.
    pub since: Option<Box<str>>,
    /// When the lock may be had if nothing is heard of its holder until then, as far as the store
    /// knows that by our own clock: the next look comes no later.
    pub expires: Option<Instant>,
    /// Where the holder rings when control changes, if its record tells it.
    pub bell: Option<Box<Bell>>,
    /// A standby that hears this holder's bell polls all the same: with slots another holder may give up its lease
    /// unheard, and an observed lease counts from the moment at which its last renewal was seen.
    pub polls_as_ever: bool,
}

/// The lease, as a store granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The moment just before the request was sent that obtained (or last renewed) the lease. The
    /// store began to count later, so the lease is ours until `t0 + lease` at least.
    pub t0: Instant,
    /// The fencing token of this tenure: greater than that of every tenure before it.
    pub token: u64,
    /// How often the task that is to be done once has failed before, by its record; 0 without one.
    pub failed: u32,
}

/// Why a store did not do what it was asked: five meanings and no more (the store maps, the core
/// decides). Errors carry text for people, which never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Somebody else holds the lock.
    #[error("held by another")]
    Held(HolderInfo),
    /// The task that is to be done once is over, by its record: there is nothing to get control for.
    #[error("the task is over")]
    AlreadyDone(TaskResult),
    /// The lease we had is definitely not ours any more. Nobody else can have obtained it before
    /// `until` (`None`: somebody may have it now).
    #[error("{why}")]
    Lost {
        /// While a lease is being broken, it still keeps others out until this moment.
        until: Option<Instant>,
        /// One line for a person.
        why: String,
    },
    /// Not known: time limits, connections, 401 and 403 in mid-tenure, 408, 429, 5xx.
    #[error("{why}")]
    Transient {
        /// One line for a person.
        why: String,
        /// The service asked not to be asked again for so long (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// It will never work as it was configured; or, where it did, the credential is refused now.
    #[error("{why}")]
    Fatal {
        /// One line for a person: what failed, on what, why, and what to do.
        why: String,
        /// Not authorised (exit status 77) rather than out of reach (69).
        denied: bool,
    },
}

/// Why this machine must not have control for now: something is about to be done to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cordon {
    /// One line for a person.
    pub why: String,
    /// When it may begin ([`Instant::FOREVER`]: not known, or it has begun).
    pub before: Instant,
}

/// What happened to a workload, as its guardian tells, or what the guardian's silence means. It comes from
/// the guardian's socket to the core, and to people, as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadEvent {
    /// The command runs.
    Started {
        /// Its main process.
        pid: i32,
    },
    /// The command could not be started; nothing of it runs.
    NotStarted {
        /// The error number of the kernel (ENOENT, EACCES, ...).
        errno: i32,
    },
    /// The main process was stopped from the terminal (Ctrl-Z): stop ourselves, and then
    /// `GuardianHandle::resume`.
    Stopped,
    /// The main process ended; others of its tree may still live, the guardian is already draining them.
    Exited(Exit),
    /// Something of the tree outlived the main process and is being drained.
    LeftBehind,
    /// The guardian (or, after its death, the supervisor) has seen the end of the last process.
    TreeEmpty {
        /// When that was, by the clock of whoever saw it.
        at: Instant,
    },
    /// The guardian drains or kills on its own, because a deadline passed.
    Acting,
    /// The wall clock jumped: the machine slept, was frozen, or somebody set it. What the lease is
    /// worth is verified before anything else.
    ClockJumped,
    /// The guardian died, or was silent and was killed; the tree is being killed, and `TreeEmpty` or
    /// `TreeStuck` follows.
    Lost,
    /// Something of the tree cannot be killed (a process is stuck in the kernel). Nothing follows.
    TreeStuck,
    /// No guardian's word, but of whoever prepares a command's start: what has to succeed before it
    /// failed, nothing of it lives since `at`, and the command was not started.
    HookFailed {
        /// When the last of it was reaped.
        at: Instant,
        /// How it failed.
        how: Failed,
    },
    /// No guardian's word either: what runs without control has this main process, or ended.
    Standby(Option<i32>),
    /// Nor this: what was asked by [`Action::Ask`] says that this machine may compete, or why not.
    Condition(Result<(), Unfit>),
    /// Nor this: whether the command works. Only that it does not ([`HealthEvent::Hung`]) has a consequence.
    Health(HealthEvent),
}

/// What happened. Names are past tense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing but time has passed. Also the answer to a wake-up: the first thing done after a
    /// pause is to look at the clock.
    Ticked,
    /// The store says that the lock can be had now: an attempt would succeed, or tell why not. It is
    /// no grant, because what remains to be done (the token, the record) needs a time limit and can fail.
    Freed,
    /// The attempt to acquire ended. `t0` in the grant is the moment before it was sent.
    Acquired(Result<Grant, Failure>),
    /// The look at a task's record ended, by which nothing can be obtained.
    Looked(Result<(), Failure>),
    /// The attempt to renew that was sent at `t0` ended.
    Renewed {
        /// The moment just before the request was sent.
        t0: Instant,
        /// What the store answered.
        reply: Result<(), Failure>,
    },
    /// The attempt to record what a task came to ended.
    Recorded(Result<(), Failure>),
    /// The attempt to give the lease back ended.
    Released(Result<(), Failure>),
    /// Something happened to what runs under the lease.
    Workload(WorkloadEvent),
    /// The command has said that it is about to end (`STOPPING=1`).
    CommandStopping,
    /// A person or a service manager asked us to stop, by this signal.
    StopAsked(i32),
    /// This machine must not have control until it is uncordoned. Said again when what is known of
    /// it changes.
    Cordoned(Cordon),
    /// Nothing speaks against this machine any more.
    Uncordoned,
}

/// What is to be done, in this order. Names are imperatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Try to get control; the reply is [`Event::Acquired`]. No attempt outlasts `give_up_at`.
    Acquire {
        /// After this moment the attempt is given up (and what it may have obtained is undone).
        give_up_at: Instant,
    },
    /// Ask whether this machine may compete; the reply is [`WorkloadEvent::Condition`].
    Ask {
        /// After this moment there is no answer any more, and that is a no.
        give_up_at: Instant,
    },
    /// Look whether the task that is to be done once is over, and no more; the reply is
    /// [`Event::Looked`].
    Look {
        /// After this moment the look is given up.
        give_up_at: Instant,
    },
    /// Abandon the attempt to acquire that is in flight, undoing what it may have obtained; the
    /// reply is [`Event::Released`].
    Withdraw {
        /// After this moment the attempt to undo is given up.
        give_up_at: Instant,
    },
    /// Renew the lease; the reply is [`Event::Renewed`].
    Renew {
        /// After this moment the attempt is given up.
        give_up_at: Instant,
    },
    /// Start the command.
    Start(Start),
    /// Move the guardian's deadlines on. Goes before anything that can block.
    Extend(Deadlines),
    /// Send this signal to the command's group, and SIGKILL to the tree at the earlier of
    /// `end_of_grace` and the lease's kill_at.
    Drain {
        /// What the drain sends first.
        signal: i32,
        /// When the grace is over, whatever the lease allows.
        end_of_grace: Instant,
    },
    /// SIGKILL to the whole tree, now.
    Kill,
    /// Say in the record that control will change soon (best effort; nothing waits for it).
    Announce,
    /// Record what the run of a task came to; the reply is [`Event::Recorded`]. Exists only after
    /// "tree empty".
    Record {
        /// What is recorded.
        outcome: Outcome,
        /// After this moment the attempt is given up.
        give_up_at: Instant,
    },
    /// Give the lease back; the reply is [`Event::Released`]. Exists only after "tree empty".
    Release {
        /// After this moment the attempt is given up.
        give_up_at: Instant,
    },
    /// Leave the lease to run out: forget it without asking the store, and what is under way.
    Abandon,
    /// Listen to this holder's doorbell, and to no other; `None`: to none. What is heard goes to
    /// [`Tenure::rang`](super::Tenure::rang).
    Attend {
        /// Where it can be heard.
        bell: Option<Bell>,
    },
    /// We wait for control: run what runs without it. Said once, until a command was started.
    StandBy,
    /// A tenure is over: nothing of it lives, and the store was told what it was to be told.
    TenureOver {
        /// Why it ended.
        cause: Cause,
    },
    /// Tell people.
    Notify(Notice),
}

/// What people hear: one line in the log for each change of state, no noise per poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Standing by, behind this holder.
    StandingBy(HolderInfo),
    /// In control, with this fencing token.
    InControl {
        /// The token of the tenure.
        token: u64,
    },
    /// The store did not answer as hoped while standing by or holding; said when doubt begins.
    Doubt {
        /// What the store said.
        why: String,
        /// When the command is asked to end if nothing changes; `None` while standing by.
        term_at: Option<Instant>,
    },
    /// The store refuses the credential that it accepted before, while standing by; said at once, and once a
    /// minute.
    Refused {
        /// What the store said.
        why: String,
        /// When this instance leaves if nothing changes.
        leaves_at: Instant,
    },
    /// The store answers again after a doubt that had been reported.
    Recovered,
    /// The command is being drained, and why.
    Draining(Cause),
    /// The command ended by itself.
    CommandEnded(Exit),
    /// The command is started again at `until`.
    BackingOff {
        /// When.
        until: Instant,
        /// As which restart within the window.
        number: u32,
    },
    /// The command is started again, now.
    Restarting,
    /// The command was restarted as often as the limit allows: control is handed over.
    RestartsSpent,
    /// The command was not started, because what has to succeed before it failed so: control is
    /// handed over.
    HookFailed(Failed),
    /// The tenure has been long enough, while nothing ran: control is handed over.
    HoldOver,
    /// The command has done its work, and the lease is kept until then.
    Keeping {
        /// When it is given back.
        until: Instant,
    },
    /// Control was handed over; we do not compete before then.
    CoolingDown {
        /// When we compete again.
        until: Instant,
    },
    /// This machine is cordoned: we do not compete until that is over. Nothing of ours runs, and
    /// nothing is held.
    Cordoned {
        /// Why it is cordoned.
        why: String,
    },
    /// It is over: we compete again.
    Uncordoned,
    /// This machine is not fit to take control: we do not compete until it is.
    Unfit(Unfit),
    /// It is: we compete again.
    Fit,
    /// What the run of a task came to stands in its record.
    Recorded {
        /// What.
        outcome: Outcome,
        /// Which run it was, if those are counted that failed.
        attempt: u32,
    },
    /// It could not be recorded yet; said once.
    Unrecorded {
        /// What the store said.
        why: String,
    },
    /// The run of a task failed, and nobody tries before this moment.
    Pausing {
        /// When the lease is given back.
        until: Instant,
    },
    /// The run of a task was stopped before it ended by itself: nothing is recorded.
    NotDone,
    /// The command ended, and left processes behind that are being drained.
    LeftBehind,
    /// Control was lost, and the command may have run beside another holder's.
    Overlapped,
    /// The lease was given back.
    Released,
    /// The lease was to be given back, and was not ours any more.
    FoundLost {
        /// What the store said.
        why: String,
    },
    /// The lease is left to run out, for this reason.
    LeftToRunOut {
        /// One line for a person.
        why: String,
    },
}

/// Why the command does not work here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOverReason {
    /// It was restarted as often as the limit allows.
    RestartsSpent,
    /// What has to succeed before it failed.
    HookFailed(Failed),
    /// It runs, and does not work any more.
    Hung(Hung),
}

/// How something that has to succeed failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// It ended so.
    Exited(Exit),
    /// It could not be started, for this error number of the kernel.
    NotStarted(i32),
}

/// Why a tenure (or the wait for one) ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The command ended by itself.
    CommandEnded,
    /// The command could not be started.
    NotStarted {
        /// The error number of the kernel.
        errno: i32,
    },
    /// A stop was requested by this signal.
    Stopped(i32),
    /// The lease could not be renewed in time.
    Doubt {
        /// What the store said last.
        why: String,
    },
    /// The lease was definitely lost.
    Lost {
        /// What the store said.
        why: String,
    },
    /// Control is handed over, and we compete for it again: the tenure has been long enough. No
    /// ending: the competition goes on after it.
    HandOver,
    /// The same because the command does not work here.
    GivenUp(HandOverReason),
    /// This machine is cordoned. After a tenure it is no ending: the competition goes on when that is
    /// over. While waiting it is one, where the time to wait is over first.
    Cordoned {
        /// Why it is cordoned.
        why: String,
    },
    /// This machine was not fit to take control when the time to wait was over.
    Unfit(Unfit),
    /// The guardian died or fell silent.
    GuardianLost,
    /// The run of a task ended, and what it came to could not be recorded.
    NotRecorded {
        /// What kept it from being recorded.
        why: String,
    },
    /// The task was over already: another has run it.
    AlreadyDone(TaskResult),
    /// Control was not obtained in the time given (`-n`, `-w`).
    NotObtained(HolderInfo),
    /// The store was out of reach, or refused us, before anything could start.
    Store {
        /// One line for a person.
        why: String,
        /// Not authorised (77) rather than out of reach (69).
        denied: bool,
    },
}

/// How the competition of one instance ended, after all its rounds: what the exit status is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Why.
    pub cause: Cause,
    /// How the command's main process ended, if it ran.
    pub exit: Option<Exit>,
    /// A process of the tree may have lived when another instance could have been given control.
    pub overlap: bool,
    /// The lease was given back (else it runs out by itself, or was lost).
    pub released: bool,
}

impl Ending {
    /// The end of a competition that never began, because the store said so.
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
