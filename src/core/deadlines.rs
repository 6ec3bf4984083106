//! Until when a command may run: what the core orders, and the guardian's timer keeps.
//!
//! Values that go through the whole house. Nothing here may do anything.

use crate::clock::Instant;

/// Until when a command may run if nothing more is heard. The same value goes from the core through the
/// driver and the guardian's socket to the guardian's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// When the guardian drains on its own ([`Instant::FOREVER`]: never), for the grace that is left
    /// until `kill_at`.
    pub term_at: Instant,
    /// When the guardian kills on its own.
    pub kill_at: Instant,
}

impl Deadlines {
    /// Nobody ends it unasked.
    pub const NONE: Deadlines = Deadlines {
        term_at: Instant::FOREVER,
        kill_at: Instant::FOREVER,
    };

    /// When the first of the two has a consequence.
    #[must_use]
    pub fn first(self) -> Instant {
        self.term_at.min(self.kill_at)
    }
}

/// Control, as the core has it when it orders the command to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Until when it may run, unless they are moved.
    pub deadlines: Deadlines,
    /// Later than this nothing may be started before the store has confirmed the lease; it
    /// moves with the deadlines.
    pub fresh_until: Instant,
    /// The fencing token of the tenure.
    pub token: u64,
}
