//! What a line of the log can say of the control we have: token and time left. Called by `report`
//! alone; told by whoever sets the command's deadlines. For people only: nothing is decided by it.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::Instant;
use crate::util::lock;

/// The tenure we are in, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseFields {
    pub(crate) token: Option<u64>,
    /// Until when the command may live if nothing more is heard of the lease.
    deadline: Option<Instant>,
    /// Until when it may live although it was asked to end.
    grace: Option<Instant>,
    /// The command was asked to end because somebody wanted so, and not for want of control.
    pub(crate) is_asked: bool,
}

static HELD: Mutex<LeaseFields> = Mutex::new(LeaseFields {
    token: None,
    deadline: None,
    grace: None,
    is_asked: false,
});

pub(crate) fn held() -> MutexGuard<'static, LeaseFields> {
    lock(&HELD)
}

impl LeaseFields {
    /// A tenure begins.
    pub(crate) fn begin(&mut self, token: u64) {
        *self = LeaseFields {
            token: Some(token),
            ..LeaseFields::default()
        };
    }

    /// It is over.
    pub(crate) fn end(&mut self) {
        *self = LeaseFields::default();
    }

    pub(crate) fn deadline(&mut self, at: Instant) {
        self.deadline = (at != Instant::FOREVER).then_some(at);
    }

    pub(crate) fn grace(&mut self, end: Option<Instant>) {
        self.grace = end.filter(|at| *at != Instant::FOREVER);
    }

    /// How long the command may live at least if nothing more is heard: `None` without a deadline.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let ends = [self.deadline, self.grace];
        let end = ends.into_iter().flatten().min()?;
        Some(end.since(now))
    }
}
