//! Requests to stop.

use crate::clock::Instant;

/// Two stop signals closer than this are one request: `timeout(1)` signals its child and then the child's
/// group.
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
    /// Repetition without effect.
    Again,
    /// Second TERM or INT: stop at once.
    AtOnce,
}

/// Requests to stop: signal and moment of the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct StopRequests(Option<(i32, Instant)>);

impl StopRequests {
    /// Takes in a request to stop.
    pub fn asked(&mut self, now: Instant, signal: i32) -> Stop {
        let Some((_, first)) = self.0 else {
            self.0 = Some((signal, now));
            return Stop::Requested;
        };
        // A hang-up or SIGQUIT can follow a TERM by itself.
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
