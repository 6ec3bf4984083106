//! The arithmetic of a lease's time: when to renew, when to drain, when to kill.
use std::time::Duration;

use crate::clock::Instant;

/// How the time of a lease is divided (design section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How long a grant lasts at the store.
    pub lease: Duration,
    /// From one renewal to the next.
    pub renew_every: Duration,
    /// From SIGTERM to SIGKILL when control is in doubt.
    pub grace_on_loss: Duration,
    /// Between SIGKILL and the end of the lease.
    pub margin: Duration,
}

/// An inequality that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {}

impl Budget {
    /// The moment from which others may acquire.
    #[must_use]
    pub fn expiry(&self, t0: Instant) -> Instant {
        t0 + self.lease
    }
}
