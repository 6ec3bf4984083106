//! How often a standby looks at the lock, in calm times and behind a draining holder.
//!
//! Called by the states that wait. Knows no chance: the spread is the caller's.

use std::time::Duration;

use crate::core::Duty;
use crate::core::duty::WARM_POLL;

/// While the holder drains, a standby looks so much more often than it polls: one number, `--poll`,
/// says what many standbys cost together, then too, where none knows how many there are.
const FAST_LANE: u32 = 8;

/// Nobody of many needs to be faster than that; who polls faster goes on at that pace.
const FASTEST_LANE: Duration = Duration::from_millis(250);
/// Nor slower, however seldom they poll: even a thousand stay within a blob's 500 requests a second.
const SLOWEST_LANE: Duration = Duration::from_secs(2);
/// The hot standby is the only one of its kind: ten requests a second are what it costs.
const HOT_LANE: Duration = Duration::from_millis(100);

/// From one look to the next.
pub(super) fn poll(poll: Duration, duty: Duty) -> Duration {
    match duty {
        Duty::Unshared | Duty::Hot => poll,
        Duty::Warm => poll.max(WARM_POLL),
    }
}

/// From one look to the next while the holder drains.
pub(super) fn lane(polled: Duration, duty: Duty) -> Duration {
    let poll = poll(polled, duty);
    let lane = match duty {
        Duty::Hot => HOT_LANE,
        Duty::Unshared | Duty::Warm => (poll / FAST_LANE).clamp(FASTEST_LANE, SLOWEST_LANE),
    };
    lane.min(poll)
}
