use std::time::Duration;

use trafficcop::Instant;

use crate::alone::plan::secs;

/// Not before the first instant, not after the second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window(pub(super) Instant, pub(super) Instant);

impl Window {
    pub(super) fn at(at: Instant) -> Window {
        Window(at, at)
    }

    /// Returns the window of a fifth before and after a time.
    pub(super) fn about(since: Instant, span: Duration) -> Window {
        Window(since + span * 4 / 5, since + span * 6 / 5)
    }

    pub(super) fn no_later(self, at: Instant) -> Window {
        Window(self.0.min(at), self.1.min(at))
    }

    pub(super) fn no_sooner(self, at: Window) -> Window {
        Window(self.0.max(at.0), self.1.max(at.1))
    }
}

/// Returns the window of the next attempt, from the start of the last one or, if that has passed,
/// at once; by the service's Retry-After if there is one.
pub(super) fn again(
    pace: Duration,
    sent: Instant,
    now: Instant,
    wish: Option<Duration>,
    latest: Instant,
) -> Window {
    let ours = Window::about(sent, pace).no_sooner(Window(sent, now));
    let Some(wish) = wish.map(|wish| wish.min(secs(30))) else {
        return ours;
    };
    ours.no_sooner(Window(now + wish, now + wish * 6 / 5).no_later(latest))
}
