//! State machine of one instance, through all its rounds.
//!
//! ```text
//! Standby ─▶ Acquiring ─▶ (Confirming) ─▶ Holding ─▶ Draining ─▶ Killing ─▶ Releasing ─▶ Done
//!    ▲  ▲        │             │           ▲ │           │           │       │    │
//!    │  └─ held ─┘             └───────────│─┴───────────┴───────────┴──────▶┤    │
//!    │                            restart  │ └─▶ tree empty ─▶ Resting ─────▶┘    │
//!    │                                     └─────────────────────┘                │
//!    └──────────────── control lost or handed over, and it competes ──────────────┘
//! ```
//! A task that is to be done once goes from "tree empty" to `Recording` instead of `Resting`.
//!
//! These rules carry the promise:
//! - The clock is read before the event: a reply that waited while this process was stopped is judged after
//!   the deadline, not before it.
//! - Deadlines count from the moment *before* the last answered request was sent.
//! - Only "tree empty" (or "nothing runs") leads from a state with a command to `Releasing`, `Resting` and
//!   `Recording`.
//! - No command starts under a deadline that has passed, or at the same time as another.
//!
//! `Standby` alone asks whether the machine is fit to take control (`--if`): the answer ends nothing that
//! runs.
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

/// Time for which a store may refuse a credential that it accepted before, by default.
pub const AUTH_PATIENCE: Duration = Duration::from_secs(300);

/// Rules of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Division of the lease's time; `None`: the lock lasts as long as a descriptor is open.
    pub budget: Option<Budget>,
    /// Time from one look at the lock to the next while standing by (±20 %); less while the holder drains.
    /// `None`: the store wakes this instance.
    pub poll: Option<Duration>,
    /// Time to wait for control: `None` for ever, zero for one look. Counts from the beginning, and ends
    /// when the command was started.
    pub wait: Option<Duration>,
    /// Time for which to ask a store that has never answered; at most 3 s with one look.
    pub patience: Duration,
    /// Time after which a standby leaves if the store refuses a credential that it accepted before.
    pub auth_patience: Duration,
    /// Time from the stop signal to SIGKILL after a request to stop, or for processes left behind.
    pub grace: Duration,
    /// First signal of a drain.
    pub stop_signal: i32,
    /// Reaction to a loss of control.
    pub if_lost: IfLost,
    /// Restarts and hand-overs.
    pub hold_policy: HoldPolicy,
    /// Rule of a task that is to be done once; not combined with a hold policy.
    pub once: Option<Once>,
    /// The command has the terminal: signals typed there reach it alone.
    pub on_terminal: bool,
    /// Seed of the spread of polls and retries.
    pub seed: u64,
}

/// State of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Waiting for control.
    Standby,
    /// An attempt to acquire is in flight.
    Acquiring,
    /// The lease is granted, but old: it must be renewed first.
    Confirming,
    /// The command runs.
    Holding,
    /// The command's tree is asked to end.
    Draining,
    /// The command's tree is being killed.
    Killing,
    /// The lease is kept without a command.
    Resting,
    /// The task's result is being recorded.
    Recording,
    /// The lease, or what may be one, is being given back.
    Releasing,
    /// The competition is over.
    Done,
}

/// State machine of one instance.
#[derive(Debug)]
pub struct Tenure {
    context: Context,
    phase: Phase,
    state: State,
}

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
    /// Makes an instance that begins to compete at `now`.
    #[must_use]
    pub fn new(rules: Rules, now: Instant) -> Tenure {
        Tenure {
            context: Context::new(rules, now),
            phase: Phase::Standby(Standby::until(now)),
            state: State::Standby,
        }
    }

    /// Cordons the machine from the beginning.
    #[must_use]
    pub fn cordoned_by(mut self, cordon: Option<Cordon>) -> Tenure {
        if let Some(cordon) = cordon {
            self.context.cordoned(cordon);
        }
        self
    }

    /// Makes this instance ask this often whether the machine is fit to take control; `None`: always.
    #[must_use]
    pub fn only_if(mut self, every: Option<Duration>) -> Tenure {
        if let Some(every) = every {
            self.context.only_if(every);
        }
        self
    }

    /// Makes the lock's record report the command's health this often; `None`: never.
    #[must_use]
    pub fn telling_health(mut self, every: Option<Duration>, words: HealthWords) -> Tenure {
        self.context.health = every.map(|every| HealthRecord::new(every, words));
        self
    }

    /// Takes in an event and returns the actions, in order.
    pub fn step(&mut self, now: Instant, event: Event) -> Vec<Action> {
        let mut step = Step::at(now);
        // A cordon outlasts each state.
        if self.ending().is_none() {
            self.context.on_cordon(&mut step, &event);
            self.context.hears_of_the_condition(now, &event);
            self.context.hears_of_health(&event);
            self.context.hears_of_the_start(&event);
        }
        let (context, present) = (&mut self.context, &mut step);
        // A state is consumed by its step: none is left half changed.
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
            Phase::Done(ending) => Phase::Done(ending),
        };
        self.state = self.phase.state();
        step.into_actions()
    }

    /// Takes in a ring of the holder's doorbell. It only moves a look: to the states, time has passed.
    pub fn rang(&mut self, now: Instant, ring: Ring) -> Vec<Action> {
        let mut step = Step::at(now);
        self.context.hears(&mut step, ring);
        let mut actions = step.into_actions();
        actions.extend(self.step(now, Event::Ticked));
        actions
    }

    /// Takes in an answer that hints at a lost lease. Only a renewal can tell, so it is due now.
    pub fn doubted(&mut self, now: Instant) -> Vec<Action> {
        match &mut self.phase {
            Phase::Holding(holding) => holding.run.held_lease.hurry(now),
            Phase::Draining(draining) => draining.run.held_lease.hurry(now),
            _ => {}
        }
        self.step(now, Event::Ticked)
    }

    /// Returns when to come back with [`Event::Ticked`] if nothing happens before.
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
            // The attempt has a time limit, and its reply always comes.
            Phase::Looking(_) | Phase::Acquiring(_) | Phase::Done(_) => Instant::FOREVER,
        }
    }

    /// Returns when the record must report the command's health.
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

    /// Returns the command's health in the record.
    pub fn health_record(&mut self) -> Option<&mut HealthRecord> {
        self.context.health.as_mut()
    }

    /// Tells whether to wait for a lock that wakes its waiters. In its cool-down, this instance would keep
    /// all others out with it.
    #[must_use]
    pub fn listens(&self) -> bool {
        matches!(&self.phase, Phase::Standby(standby) if standby.listens(&self.context))
    }

    /// Returns the state of the instance.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the cause (`None`: the tenure never began) and the command's exit, while the lease is being
    /// given back.
    #[must_use]
    pub fn leaving(&self) -> Option<(Option<&Cause>, Option<Exit>)> {
        if let Phase::Releasing(releasing) = &self.phase {
            return Some(releasing.reason());
        }
        None
    }

    /// Returns how the competition ended, once it did.
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
        // First: a guardian that learns of it late kills a command whose lease was renewed in time.
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
