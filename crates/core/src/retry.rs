//! When to try again: pauses that grow, a spread that keeps many standbys from asking in step, and the
//! service's own wish (`Retry-After`) as far as the lease allows it.
//!
//! Pure: the spread comes from a seed, so that a run can be repeated.

use std::time::Duration;

use super::budget::RETRY;
use crate::clock::Instant;

// However long a service asks us to wait, it is not waited longer than this (and a spread): nobody
// would know that it has answered again, and a proxy's `Retry-After` may be an hour.
const RETRY_AFTER_CAP: Duration = Duration::from_secs(30);

/// Pauses between attempts: each twice the one before, up to a longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// From the `first` to the `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff {
            next: first,
            longest,
        }
    }

    /// The pause that so many others would go before.
    #[must_use]
    pub fn after(self, others: u32) -> Duration {
        // A number of attempts may be a service's own, and any: a shift by 32 is a panic.
        let times = 1_u32.checked_shl(others).unwrap_or(u32::MAX);
        self.next.saturating_mul(times).min(self.longest)
    }

    /// The pause before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.after(0);
        self.next = self.after(1);
        pause
    }
}

/// A small source of chance (splitmix64). Good enough to spread polls, and for nothing else.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// The same seed gives the same spread.
    #[must_use]
    pub fn new(seed: u64) -> Jitter {
        Jitter(seed)
    }

    // splitmix64, and not a generator of the process: a run of the core that is to be repeated must
    // have nothing but its seed to depend on.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// `base` ±20 %.
    pub fn spread(&mut self, base: Duration) -> Duration {
        let per_mille = 800 + u128::from(self.next() % 401);
        let nanos = base.as_nanos() * per_mille / 1000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Somewhere within `base` ±20 %: the rest of a span that began at a moment of its own.
    pub fn rest_of(&mut self, base: Duration) -> Duration {
        // Where many wait from one moment on (a thousand that cron started), this spreads them at once
        // as if they had waited for ever; a `spread` would have them come together again and again,
        // less so each time. Never zero: that would be a look without a pause.
        let per_mille = 1 + u128::from(self.next() % 1000);
        let nanos = self.spread(base).as_nanos() * per_mille / 1000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// When to begin the next attempt after one that was sent at `sent` failed at `now`: every
    /// 2 s ±20 % from start to start, later if the service `asked` for it (by up to a fifth of its
    /// wish more, because it asked the others, too), but not because of its wish later than
    /// `latest`. The answer may lie in the past: then at once.
    pub fn again_at(
        &mut self,
        sent: Instant,
        now: Instant,
        asked: Option<Duration>,
        latest: Instant,
    ) -> Instant {
        self.again_within(RETRY, sent, now, asked, latest)
    }

    /// The same, every `pace` instead of every 2 s.
    pub fn again_within(
        &mut self,
        pace: Duration,
        sent: Instant,
        now: Instant,
        asked: Option<Duration>,
        latest: Instant,
    ) -> Instant {
        let ours = sent + self.spread(pace);
        let Some(wish) = asked.map(|span| span.min(RETRY_AFTER_CAP)) else {
            return ours;
        };
        // It asked the others, too, and for the same time.
        let wish = wish + self.rest_of(wish / 6);
        ours.max((now + wish).min(latest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Instant = Instant::from_nanos(1_000_000_000_000);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut pauses = Backoff::new(secs(1), secs(30));
        let counted: Vec<_> = (0..8)
            .map(|others| pauses.after(others).as_secs())
            .collect();
        assert_eq!(counted, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(pauses.after(u32::MAX), secs(30));
        let in_turn: Vec<_> = (0..8).map(|_| pauses.next_pause().as_secs()).collect();
        assert_eq!(in_turn, counted);
        assert_eq!(Backoff::new(secs(9), secs(5)).next_pause(), secs(5));
    }

    #[test]
    fn a_spread_stays_within_a_fifth_and_reaches_both_ends() {
        let mut jitter = Jitter::new(7);
        let spans: Vec<_> = (0..10_000).map(|_| jitter.spread(secs(10))).collect();
        assert_eq!(spans.iter().min(), Some(&secs(8)));
        assert_eq!(spans.iter().max(), Some(&secs(12)));
    }

    #[test]
    fn two_seeds_do_not_ask_in_step() {
        let (mut a, mut b) = (Jitter::new(1), Jitter::new(2));
        let same = (0..100)
            .filter(|_| a.spread(secs(2)) == b.spread(secs(2)))
            .count();
        assert!(same < 10, "{same} of 100 spans are equal");
    }

    #[test]
    fn the_longest_base_does_not_overflow() {
        assert!(Jitter::new(0).spread(Duration::MAX) >= secs(1));
    }

    #[test]
    fn retries_count_from_start_to_start() {
        let at = Jitter::new(3).again_at(T, T + secs(1), None, Instant::FOREVER);
        assert!(at >= T + Duration::from_millis(1600) && at <= T + Duration::from_millis(2400));
    }

    #[test]
    fn a_service_that_asks_for_time_gets_it() {
        let at = Jitter::new(3).again_at(T, T, Some(secs(7)), Instant::FOREVER);
        assert!(at >= T + secs(7) && at <= T + secs(7) * 6 / 5, "{at:?}");
    }

    #[test]
    fn those_whom_a_service_asked_for_the_same_time_do_not_come_back_in_step() {
        let wish = |seed| Jitter::new(seed).again_at(T, T, Some(secs(10)), Instant::FOREVER);
        let (first, last) = (0..500).map(wish).fold((Instant::FOREVER, T), |ends, at| {
            (ends.0.min(at), ends.1.max(at))
        });
        assert!(first >= T + secs(10) && first <= T + Duration::from_millis(10_100));
        assert!(last >= T + Duration::from_millis(11_700) && last <= T + secs(12));
    }

    #[test]
    fn the_rest_of_a_span_is_as_likely_to_be_short_as_long() {
        let mut jitter = Jitter::new(7);
        let spans: Vec<_> = (0..10_000).map(|_| jitter.rest_of(secs(10))).collect();
        let below = |n| spans.iter().filter(|span| **span < secs(n)).count();
        assert!(
            spans
                .iter()
                .all(|span| !span.is_zero() && *span <= secs(12))
        );
        for second in 1..=8 {
            let here = below(second) - below(second - 1);
            assert!((900..1130).contains(&here), "{here} in second {second}");
        }
    }

    #[test]
    fn a_service_that_asks_for_an_hour_gets_thirty_seconds() {
        let at = Jitter::new(3).again_at(T, T, Some(secs(3600)), Instant::FOREVER);
        assert!(at >= T + secs(30) && at <= T + secs(36), "{at:?}");
    }

    #[test]
    fn no_wish_of_the_service_outlasts_what_the_lease_allows() {
        let at = Jitter::new(3).again_at(T, T, Some(secs(20)), T + secs(9));
        assert_eq!(at, T + secs(9));
        let at = Jitter::new(3).again_at(T, T, Some(secs(20)), T);
        assert!(
            at >= T + Duration::from_millis(1600),
            "nor does it hurry us"
        );
    }
}
