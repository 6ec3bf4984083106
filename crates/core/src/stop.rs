//! [`StopRequests`]: meaning of a request to stop, given those before it. Pure.
//!
//! Used by the tenure, by the scheduler of `work`, and by `run` for what runs after its last tenure.

use crate::clock::Instant;

/// Two stop signals closer than this are one request: `timeout(1)` signals its child and then the child's
/// group, so the child gets each signal twice within microseconds.
const ECHO: std::time::Duration = std::time::Duration::from_millis(100);

/// Number of SIGINT.
pub const SIGINT: i32 = 2;
/// Number of SIGQUIT.
pub const SIGQUIT: i32 = 3;
const SIGTERM: i32 = 15;

/// Meaning of a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// First request: stop in good order.
    Requested,
    /// Repetition that changes nothing.
    Again,
    /// Second TERM or INT: stop at once.
    AtOnce,
}

/// Requests to stop: the signal and the moment of the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct StopRequests(Option<(i32, Instant)>);

impl StopRequests {
    /// Takes in a request to stop.
    pub fn asked(&mut self, now: Instant, signal: i32) -> Stop {
        let Some((_, first)) = self.0 else {
            self.0 = Some((signal, now));
            return Stop::Requested;
        };
        // A hang-up or SIGQUIT can follow a TERM by itself: only these two mean urgency.
        let urgent = signal == SIGTERM || signal == SIGINT;
        if urgent && now.since(first) >= ECHO {
            return Stop::AtOnce;
        }
        Stop::Again
    }

    /// Returns the signal of the first request.
    pub fn first(&self) -> Option<i32> {
        self.0.map(|(signal, _)| signal)
    }
}
