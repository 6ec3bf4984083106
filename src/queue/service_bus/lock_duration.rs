//! How long a lock is believed to last. Pure, but for the warning that is given once.
//!
//! The service tells the end of a lock by its own wall clock, and never its length. What it tells is
//! compared with ours, and believed only if a queue can have such a lock: between 5 s and 5 min.
//! Otherwise one of the clocks is wrong, and what counts is what the user says (`--lock-time`), or
//! the shortest lock there is. A clock that is off by less than that is caught by the first renewal,
//! which comes after 20 s at the latest, and by what the service does: a lock that ended sooner than
//! its end was told makes the following ones as short.
//!
//! Nothing here is a deadline: those are counted from the moment before a request was sent.

use crate::util::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The shortest and the longest lock that a queue can have.
pub(super) const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);
/// What a message may have been under way, and what clocks that are kept by NTP differ by.
const GRAIN: Duration = Duration::from_secs(1);

/// What is known of the locks of one queue.
#[derive(Debug)]
pub(super) struct LockDuration {
    /// What the user says.
    told: Option<Duration>,
    /// No lock has been seen to last longer than this after the service promised more.
    most: Mutex<Option<Duration>>,
    warned: AtomicBool,
}

impl LockDuration {
    pub(super) fn new(told: Option<Duration>) -> LockDuration {
        LockDuration {
            told,
            most: Mutex::new(None),
            warned: AtomicBool::new(false),
        }
    }

    /// Before any message was seen.
    pub(super) fn at_first(&self) -> Duration {
        self.told.unwrap_or(SHORTEST)
    }

    /// The length of a lock that ends at `until`, at `now`; both in milliseconds since 1970, by the
    /// service's clock and by ours.
    pub(super) fn of(&self, until: Option<i64>, now: i64) -> Duration {
        if let Some(told) = self.told {
            return told;
        }
        let length = match until.map(|until| plausible(until.saturating_sub(now))) {
            Some(Some(length)) => length,
            Some(None) => {
                self.warn(until.unwrap_or_default().saturating_sub(now));
                SHORTEST
            }
            None => SHORTEST,
        };
        let most = *lock(&self.most);
        most.map_or(length, |most| length.min(most))
    }

    /// A lock that was believed to last `believed` had ended after `after` at most.
    pub(super) fn ended_early(&self, after: Duration, believed: Duration) {
        if self.told.is_some() || after >= believed {
            return;
        }
        let after = after.max(SHORTEST);
        let mut most = lock(&self.most);
        *most = Some(most.map_or(after, |most| most.min(after)));
    }

    fn warn(&self, off: i64) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the clock differs from the service's: a message is said to be locked for {} s, and \
                 no queue locks for that long; counting on {} s: set the clock, or say --lock-time",
                off / 1000,
                SHORTEST.as_secs()
            );
        }
    }
}

/// The length of a lock that seems to have so many milliseconds left, if a queue can have it.
fn plausible(left: i64) -> Option<Duration> {
    let left = Duration::from_millis(u64::try_from(left).ok()?);
    (left >= SHORTEST - GRAIN && left <= LONGEST + GRAIN).then(|| left.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_900_000_000_000;

    fn seconds(lock_duration: &LockDuration, left: i64) -> u64 {
        lock_duration.of(Some(NOW + left * 1000), NOW).as_secs()
    }

    #[test]
    fn what_a_queue_can_have_is_believed_and_nothing_else() {
        let lock_duration = LockDuration::new(None);
        for (left, length) in [(5, 5), (30, 30), (300, 300), (301, 300), (4, 4)] {
            assert_eq!(seconds(&lock_duration, left), length, "{left}");
            assert!(!lock_duration.warned.load(Ordering::Relaxed));
        }
        for left in [3, 0, -3600, 302, 3630, i64::MIN / 2000] {
            lock_duration.warned.store(false, Ordering::Relaxed);
            assert_eq!(seconds(&lock_duration, left), 5, "{left}");
            assert!(lock_duration.warned.load(Ordering::Relaxed));
        }
        assert_eq!(lock_duration.of(None, NOW), SHORTEST);
        assert_eq!(lock_duration.of(Some(i64::MAX), i64::MIN), SHORTEST);
    }

    #[test]
    fn the_user_knows_better_than_any_clock() {
        let lock_duration = LockDuration::new(Some(Duration::from_secs(42)));
        for left in [5, 30, 3630, -3600] {
            assert_eq!(seconds(&lock_duration, left), 42);
        }
        lock_duration.ended_early(Duration::from_secs(7), Duration::from_secs(42));
        assert_eq!(seconds(&lock_duration, 30), 42);
        assert!(!lock_duration.warned.load(Ordering::Relaxed));
    }

    #[test]
    fn a_lock_that_ended_early_shortens_those_that_follow() {
        let lock_duration = LockDuration::new(None);
        lock_duration.ended_early(Duration::from_secs(40), Duration::from_secs(40));
        assert_eq!(seconds(&lock_duration, 40), 40);
        lock_duration.ended_early(Duration::from_secs(21), Duration::from_secs(40));
        assert_eq!(seconds(&lock_duration, 40), 21);
        lock_duration.ended_early(Duration::from_millis(10), Duration::from_secs(40));
        assert_eq!(seconds(&lock_duration, 40), 5);
        assert_eq!(seconds(&lock_duration, 4), 4);
    }
}
