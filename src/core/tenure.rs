//! The state machine of one instance.
use std::time::Duration;

use super::{Action, Budget, Ending, Event};
use crate::clock::Instant;

/// What to do after control was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IfLost {
    /// Stand by again.
    #[default]
    Compete,
    /// End with exit status 70 or 71.
    Exit,
}

/// What an instance goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The lease's time; `None` for a lock that lasts as long as a descriptor is open.
    pub budget: Option<Budget>,
    /// From one look at the lock to the next while standing by (with ±20 %); `None` where the
    /// store wakes us.
    pub poll: Option<Duration>,
    /// How long to wait for control: `None` for ever, zero for one look.
    pub wait: Option<Duration>,
    /// From the stop signal to SIGKILL when a stop was asked for or the command left processes behind.
    pub grace: Duration,
    /// What a drain sends first.
    pub stop_signal: i32,
    /// What to do after control was lost.
    pub if_lost: IfLost,
    /// Seeds the spread of polls and retries.
    pub seed: u64,
}

/// Where an instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Waiting for control.
    Standby,
}

/// The state machine: see the module's text.
#[derive(Debug)]
pub struct Tenure {}

impl Tenure {
    /// An instance that begins to compete at `now`.
    #[must_use]
    pub fn new(_rules: Rules, _now: Instant) -> Tenure {
        todo!()
    }
    /// Takes in what happened at `now` and says what is to be done, in this order.
    pub fn step(&mut self, _now: Instant, _event: Event) -> Vec<Action> {
        todo!()
    }
    /// When to come back with [`Event::Ticked`] if nothing happens before;
    /// [`Instant::FOREVER`] for never.
    #[must_use]
    pub fn wake_at(&self) -> Instant {
        todo!()
    }
    /// Whether a lock that wakes its waiters would be taken now.
    #[must_use]
    pub fn listens(&self) -> bool {
        todo!()
    }
    /// Where the instance is.
    #[must_use]
    pub fn state(&self) -> &State {
        todo!()
    }
    /// How it ended, once it did.
    #[must_use]
    pub fn ending(&self) -> Option<&Ending> {
        todo!()
    }
}
