//! [`StopRequests`]: what a request to stop means, by those that came before it. Pure.
//!
//! Asked by the tenure, by the scheduler of `work`, and by `run` for what runs after its last tenure.

use crate::clock::Instant;

/// Two stop signals closer than this are one request: `timeout(1)` signals its child and then the
/// child's group, so everything it stops is signalled twice within microseconds.
const ECHO: std::time::Duration = std::time::Duration::from_millis(100);

/// Number of SIGINT.
pub const SIGINT: i32 = 2;
/// Number of SIGQUIT.
pub const SIGQUIT: i32 = 3;
const SIGTERM: i32 = 15;

/// What a request to stop means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The first: in good order.
    Requested,
    /// A repetition that changes nothing.
    Again,
    /// The second TERM or INT: at once.
    AtOnce,
}

/// The requests to stop: the signal and the moment of the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct StopRequests(Option<(i32, Instant)>);

impl StopRequests {
    /// Takes in a request to stop.
    pub fn asked(&mut self, now: Instant, signal: i32) -> Stop {
        let Some((_, first)) = self.0 else {
            self.0 = Some((signal, now));
            return Stop::Requested;
        };
        // A hang-up or SIGQUIT can follow a TERM by itself: only these two say that it is urgent.
        let urgent = signal == SIGTERM || signal == SIGINT;
        if urgent && now.since(first) >= ECHO {
            return Stop::AtOnce;
        }
        Stop::Again
    }

    /// The signal of the first.
    pub fn first(&self) -> Option<i32> {
        self.0.map(|(signal, _)| signal)
    }
}
