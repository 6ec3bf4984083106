//! Moments of retries, spread so that standbys do not ask in step.

use std::time::Duration;

use super::budget::RETRY;
use crate::clock::Instant;

// A proxy may ask for an hour, in which a recovery would go unnoticed.
const RETRY_AFTER_CAP: Duration = Duration::from_secs(30);

/// Pauses between attempts: each twice the one before, up to a longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Makes pauses from the `first` to the `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff {
            next: first,
            longest,
        }
    }

    /// Returns the pause after `others` earlier ones.
    #[must_use]
    pub fn after(self, others: u32) -> Duration {
        // A service may give any number of attempts, and a shift by 32 panics.
        let times = 1_u32.checked_shl(others).unwrap_or(u32::MAX);
        self.next.saturating_mul(times).min(self.longest)
    }

    /// Returns the pause before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.after(0);
        self.next = self.after(1);
        pause
    }
}

/// Small random generator (splitmix64), to spread polls and for nothing else.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Makes a generator; the same seed gives the same spread.
    #[must_use]
    pub fn new(seed: u64) -> Jitter {
        Jitter(seed)
    }

    // No generator of the process: a repeated run must depend on its seed alone.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns `base` ±20 %.
    pub fn spread(&mut self, base: Duration) -> Duration {
        let per_mille = 800 + u128::from(self.next() % 401);
        let nanos = base.as_nanos() * per_mille / 1000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns a random part of `base` ±20 %: the rest of a span that began at a random moment.
    pub fn rest_of(&mut self, base: Duration) -> Duration {
        // A thousand that cron started at once would come together again and again with `spread`. Never
        // zero: that would be a look without a pause.
        let per_mille = 1 + u128::from(self.next() % 1000);
        let nanos = self.spread(base).as_nanos() * per_mille / 1000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns when to begin the next attempt, after one sent at `sent` failed at `now`. Attempts begin
    /// every 2 s ±20 %, or later if the service `asked` for it, but not beyond `latest`. Up to a fifth is
    /// added to its wish, because other clients got the same.
    pub fn again_at(
        &mut self,
        sent: Instant,
        now: Instant,
        asked: Option<Duration>,
        latest: Instant,
    ) -> Instant {
        self.again_within(RETRY, sent, now, asked, latest)
    }

    /// Returns a moment like [`Jitter::again_at`], every `pace`.
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
    fn spread_stays_within_a_fifth_and_reaches_both_ends() {
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
    fn retry_after_of_a_service_is_honoured() {
        let at = Jitter::new(3).again_at(T, T, Some(secs(7)), Instant::FOREVER);
        assert!(at >= T + secs(7) && at <= T + secs(7) * 6 / 5, "{at:?}");
    }

    #[test]
    fn clients_with_the_same_retry_after_do_not_come_back_in_step() {
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
    fn retry_after_of_an_hour_is_cut_to_thirty_seconds() {
        let at = Jitter::new(3).again_at(T, T, Some(secs(3600)), Instant::FOREVER);
        assert!(at >= T + secs(30) && at <= T + secs(36), "{at:?}");
    }

    #[test]
    fn retry_after_does_not_outlast_the_lease() {
        let at = Jitter::new(3).again_at(T, T, Some(secs(20)), T + secs(9));
        assert_eq!(at, T + secs(9));
        let at = Jitter::new(3).again_at(T, T, Some(secs(20)), T);
        assert!(
            at >= T + Duration::from_millis(1600),
            "nor does it shorten the pace"
        );
    }
}
