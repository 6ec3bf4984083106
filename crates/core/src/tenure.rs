//! The state machine of one instance, through all its rounds.
//!
//! ```text
//! Standby ─▶ Acquiring ─▶ (Confirming) ─▶ Holding ─▶ Draining ─▶ Killing ─▶ Releasing ─▶ Done
//!    ▲  ▲        │             │           ▲ │           │           │       │    │
//!    │  └─ held ─┘             └───────────│─┴───────────┴───────────┴──────▶┤    │
//!    │                            restart  │ └─▶ tree empty ─▶ Resting ─────▶┘    │
//!    │                                     └─────────────────────┘                │
//!    └──────────────── control lost or handed over, and we compete ───────────────┘
//! ```
//! A task that is to be done once goes from "tree empty" to `Recording` instead of `Resting`.
//!
//! Called by the driver alone, which does what [`Tenure::step`] says and tells it what happened. Each
//! state has one function that writes out what every event means in it. The rules that carry the
//! promise:
//! - The clock is looked at before the event: a reply that waited while we were stopped is judged
//!   after the deadline, not before it.
//! - Deadlines count from the moment *before* the request was sent that was answered last.
//! - `Releasing`, `Resting` and `Recording` are reached from states with a command only by "tree empty" (or
//!   "nothing runs").
//! - No command starts under a deadline that has passed, or beside another.
//!
//! A cordon (this machine is about to be rebooted, say) is remembered by the context before any
//! state hears of it: `Holding` drains for it, `Resting` and `Confirming` give the lease back,
//! and `Standby` does not compete while it lasts. Whether the machine is fit to take control (`--if`) is
//! asked by `Standby` alone, before it competes: an answer ends nothing that runs. Until it is, `Looking`
//! looks whether a task that is to be done once is over.
#![doc = include_str!("tenure/transitions.md")]

mod context;
mod draining;
mod held_lease;
mod holding;
mod recording;
mod releasing;
mod resting;
mod standby;

use std::time::Duration;

use self::context::Context;
use self::draining::Draining;
use self::held_lease::HeldLease;
use self::holding::{Confirming, Holding};
use self::recording::Recording;
use self::releasing::Releasing;
use self::resting::Resting;
use self::standby::{Acquiring, Looking, Standby};
use super::doorbell::Attend;
use super::{
    Action, Budget, Cause, Cordon, Ending, Event, Exit, HealthRecord, HealthWords, HoldPolicy,
    Notice, Once, Ring,
};
use crate::clock::Instant;

/// What to do after control was lost; as it is typed, with its help.
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IfLost {
    /// Stand by again
    #[default]
    Compete,
    /// Exit 70 (or 71 if an overlap cannot be excluded)
    Exit,
}

/// How long a store may refuse a credential that it accepted before, unless something else is said.
pub const AUTH_PATIENCE: Duration = Duration::from_secs(300);

/// What an instance goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The lease's time; `None` for a lock that lasts as long as a descriptor is open.
    pub budget: Option<Budget>,
    /// From one look at the lock to the next while standing by (with ±20 %), and eight times that
    /// pace, but every 250 ms at most and every 2 s at least, while the holder drains. `None`
    /// where the store wakes us.
    pub poll: Option<Duration>,
    /// How long to wait for control: `None` for ever, zero for one look. It counts from the
    /// beginning and does not apply any more once the command has been started. One look means one
    /// answer.
    pub wait: Option<Duration>,
    /// How long a store that has never answered is asked. With one look (`wait` of zero) it is not
    /// asked for longer than 3 seconds.
    pub patience: Duration,
    /// How long a store may refuse the credential that it accepted before, and say nothing else, until a
    /// standby leaves.
    pub auth_patience: Duration,
    /// From the stop signal to SIGKILL when a stop was asked for or the command left processes behind.
    pub grace: Duration,
    /// What a drain sends first.
    pub stop_signal: i32,
    /// What to do after control was lost.
    pub if_lost: IfLost,
    /// Restarts, and handing control round.
    pub hold_policy: HoldPolicy,
    /// The command is a task that is to be done once, by whichever candidate: not combined with a
    /// hold policy.
    pub once: Option<Once>,
    /// The command has the terminal: what is typed there reaches it alone.
    pub on_terminal: bool,
    /// Seeds the spread of polls and retries.
    pub seed: u64,
}

/// Where an instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Waiting for control.
    Standby,
    /// An attempt to get control is in flight.
    Acquiring,
    /// The lease is ours but most of its first half is gone: it is renewed before anything starts.
    Confirming,
    /// In control; the command runs.
    Holding,
    /// The command's tree was asked to end.
    Draining,
    /// The command's tree is being killed.
    Killing,
    /// In control; nothing runs until the command is started again, or the lease may be given back.
    Resting,
    /// Nothing runs; what the command came to is being recorded.
    Recording,
    /// Nothing runs; what we have (or may have) at the store is being given back.
    Releasing,
    /// It is over.
    Done,
}

/// The state machine of one instance.
#[derive(Debug)]
pub struct Tenure {
    context: Context,
    phase: Phase,
    state: State,
}

/// A state with what is known in it, and only there.
#[derive(Debug)]
enum Phase {
    Standby(Standby),
    Looking(Looking),
    Acquiring(Acquiring),
    Confirming(Confirming),
    Holding(Holding),
    Draining(Draining),
    Resting(Resting),
    Recording(Recording),
    Releasing(Releasing),
    Done(Ending),
}

impl Tenure {
    /// An instance that begins to compete at `now`.
    #[must_use]
    pub fn new(rules: Rules, now: Instant) -> Tenure {
        Tenure {
            context: Context::new(rules, now),
            phase: Phase::Standby(Standby::until(now)),
            state: State::Standby,
        }
    }

    /// The same on a machine that is cordoned from the beginning, if it is.
    #[must_use]
    pub fn cordoned_by(mut self, cordon: Option<Cordon>) -> Tenure {
        if let Some(cordon) = cordon {
            self.context.cordoned(cordon);
        }
        self
    }

    /// The same where it takes control only if this machine is fit to, which is asked so often while it
    /// waits for control; `None`: it always is.
    #[must_use]
    pub fn only_if(mut self, every: Option<Duration>) -> Tenure {
        if let Some(every) = every {
            self.context.only_if(every);
        }
        self
    }

    /// The same where the lock's record is to tell of the command's health, which is asked this often, in
    /// these words; `None`: it is not.
    #[must_use]
    pub fn telling_health(mut self, every: Option<Duration>, words: HealthWords) -> Tenure {
        self.context.health = every.map(|every| HealthRecord::new(every, words));
        self
    }

    /// Takes in what happened at `now` and says what is to be done, in this order.
    pub fn step(&mut self, now: Instant, event: Event) -> Vec<Action> {
        let mut step = Step::at(now);
        // Before the state hears of it: whichever state that is, the cordon outlasts it.
        if self.ending().is_none() {
            self.context.hears_of_cordons(&mut step, &event);
            self.context.hears_of_the_condition(now, &event);
            self.context.hears_of_health(&event);
            self.context.hears_of_the_start(&event);
        }
        let (context, present) = (&mut self.context, &mut step);
        // Each state is consumed by its step and says what comes next: none is left half changed.
        let nothing = Phase::Standby(Standby::until(Instant::FOREVER));
        self.phase = match std::mem::replace(&mut self.phase, nothing) {
            Phase::Standby(standby) => standby.step(context, present, event),
            Phase::Looking(looking) => looking.step(context, present, event),
            Phase::Acquiring(acquiring) => acquiring.step(context, present, event),
            Phase::Confirming(confirming) => confirming.step(context, present, event),
            Phase::Holding(holding) => holding.step(context, present, event),
            Phase::Draining(draining) => draining.step(context, present, event),
            Phase::Resting(resting) => resting.step(context, present, event),
            Phase::Recording(recording) => recording.step(context, present, event),
            Phase::Releasing(releasing) => releasing.step(context, present, event),
            // Whatever comes after the end changes nothing.
            Phase::Done(ending) => Phase::Done(ending),
        };
        self.state = self.phase.state();
        step.into_actions()
    }

    /// The holder's doorbell was heard. It moves a look and nothing else: no state hears more than
    /// that time has passed.
    pub fn rang(&mut self, now: Instant, ring: Ring) -> Vec<Action> {
        let mut step = Step::at(now);
        self.context.hears(&mut step, ring);
        let mut actions = step.into_actions();
        actions.extend(self.step(now, Event::Ticked));
        actions
    }

    /// The store has said to something else that the lease is not ours. What that means for the command is
    /// said by a renewal: it is due now.
    pub fn doubted(&mut self, now: Instant) -> Vec<Action> {
        match &mut self.phase {
            Phase::Holding(holding) => holding.run.held_lease.hurry(now),
            Phase::Draining(draining) => draining.run.held_lease.hurry(now),
            _ => {}
        }
        self.step(now, Event::Ticked)
    }

    /// When to come back with [`Event::Ticked`] if nothing happens before;
    /// [`Instant::FOREVER`] for never.
    #[must_use]
    pub fn wake_at(&self) -> Instant {
        match &self.phase {
            Phase::Standby(standby) => standby.wake_at(&self.context),
            Phase::Confirming(confirming) => confirming.wake_at(),
            Phase::Holding(holding) => holding.wake_at(&self.context),
            Phase::Draining(draining) => draining.wake_at(),
            Phase::Resting(resting) => resting.wake_at(&self.context),
            Phase::Recording(recording) => recording.wake_at(),
            Phase::Releasing(releasing) => releasing.wake_at(),
            // The attempt keeps its own time limit, and its reply comes in any case.
            Phase::Looking(_) | Phase::Acquiring(_) | Phase::Done(_) => Instant::FOREVER,
        }
    }

    /// When the record has something to say of the command's health, if nothing happens before: while the
    /// lease is ours, and will be.
    #[must_use]
    pub fn health_due(&self) -> Instant {
        let stays = match &self.phase {
            Phase::Holding(_) => true,
            Phase::Draining(draining) => draining.keeps_it(),
            _ => false,
        };
        let health = self.context.health.as_ref().filter(|_| stays);
        health.map_or(Instant::FOREVER, HealthRecord::due)
    }

    /// What the record says of the command's health.
    pub fn health_record(&mut self) -> Option<&mut HealthRecord> {
        self.context.health.as_mut()
    }

    /// Whether a lock that wakes its waiters would be taken now: who is handed one while it rests
    /// keeps everybody else out.
    #[must_use]
    pub fn listens(&self) -> bool {
        matches!(&self.phase, Phase::Standby(standby) if standby.listens(&self.context))
    }

    /// Where the instance is.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// While what we have is being given back: why the tenure ended (`None`: it never began), and
    /// how the command's main process ended, if it ran.
    #[must_use]
    pub fn leaving(&self) -> Option<(Option<&Cause>, Option<Exit>)> {
        if let Phase::Releasing(releasing) = &self.phase {
            return Some(releasing.reason());
        }
        None
    }

    /// How it ended, once it did.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        if let Phase::Done(ending) = &self.phase {
            return Some(ending);
        }
        None
    }
}

impl Phase {
    fn state(&self) -> State {
        match self {
            Phase::Standby(_) | Phase::Looking(_) => State::Standby,
            Phase::Acquiring(_) => State::Acquiring,
            Phase::Confirming(_) => State::Confirming,
            Phase::Holding(_) => State::Holding,
            Phase::Draining(draining) if draining.is_killing() => State::Killing,
            Phase::Draining(_) => State::Draining,
            Phase::Resting(_) => State::Resting,
            Phase::Recording(_) => State::Recording,
            Phase::Releasing(_) => State::Releasing,
            Phase::Done(_) => State::Done,
        }
    }
}

/// One step: its moment, and what is to be done.
#[derive(Debug)]
struct Step {
    now: Instant,
    actions: Vec<Action>,
}

impl Step {
    fn at(now: Instant) -> Step {
        Step {
            now,
            actions: Vec::new(),
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn extend(&mut self, held_lease: &HeldLease) {
        // Before everything that could block: a guardian that hears of it late kills a command whose
        // lease was renewed in time.
        self.actions
            .insert(0, Action::Extend(held_lease.deadlines()));
    }

    fn attend(&mut self, attend: Attend) {
        if let Attend::To(bell) = attend {
            self.actions.push(Action::Attend { bell });
        }
    }

    fn report(&mut self, notice: Notice) {
        self.actions.push(Action::Notify(notice));
    }

    fn into_actions(self) -> Vec<Action> {
        self.actions
    }
}

#[cfg(test)]
mod tests;
