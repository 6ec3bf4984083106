//! One step of the tenure: its moment, and the actions that it has gathered, in their order.
//!
//! Called by every state. It decides nothing.

use super::held_lease::HeldLease;
use crate::clock::Instant;
use crate::core::doorbell::Attend;
use crate::core::{Action, Notice};

/// One step: its moment, and what is to be done.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) now: Instant,
    actions: Vec<Action>,
}

impl Step {
    pub(super) fn at(now: Instant) -> Step {
        Step {
            now,
            actions: Vec::new(),
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn extend(&mut self, held_lease: &HeldLease) {
        // Before everything that could block: a guardian that hears of it late kills a command whose
        // lease was renewed in time.
        self.actions
            .insert(0, Action::Extend(held_lease.deadlines()));
    }

    pub(super) fn attend(&mut self, attend: Attend) {
        if let Attend::To(bell) = attend {
            self.actions.push(Action::Attend { bell });
        }
    }

    pub(super) fn report(&mut self, notice: Notice) {
        self.actions.push(Action::Notify(notice));
    }

    pub(super) fn into_actions(self) -> Vec<Action> {
        self.actions
    }
}
