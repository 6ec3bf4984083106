//! How long a standby waits from one look at the lock to the next.
//!
//! Called by the states that wait. Every standby goes by this rule alone: none knows how many
//! others there are, so one number, `--poll`, says what all of them cost together.

use std::time::Duration;

use crate::core::retry::Jitter;

// While the holder drains, a standby looks so much more often: control is about to change, and a
// drain is short enough not to be noticed on the bill.
const FAST: u32 = 8;

// Nobody needs to be faster than that; who polls faster goes on at that interval.
const FASTEST: Duration = Duration::from_millis(250);

// Nor slower, however seldom they poll: even a thousand stay within a blob's 500 requests a second.
const SLOWEST: Duration = Duration::from_secs(2);

/// `poll`, or an eighth of it while the holder drains, ±20 %; of the first of its kind a random part.
/// `kept`: the last wait was of this kind, too.
pub(super) fn poll_interval(
    poll: Duration,
    draining: bool,
    kept: bool,
    jitter: &mut Jitter,
) -> Duration {
    let interval = if draining {
        (poll / FAST).clamp(FASTEST, SLOWEST).min(poll)
    } else {
        poll
    };
    // Where it was not, many standbys may have come to it at one moment (started by one clock, or told
    // of one drain): without a random part of it they would look together from now on.
    if kept {
        jitter.spread(interval)
    } else {
        jitter.rest_of(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// The shortest and the longest of many waits.
    fn ends(poll: Duration, draining: bool, kept: bool) -> (Duration, Duration) {
        let mut jitter = Jitter::new(7);
        let waits = (0..10_000).map(|_| poll_interval(poll, draining, kept, &mut jitter));
        waits.fold((Duration::MAX, Duration::ZERO), |ends, wait| {
            (ends.0.min(wait), ends.1.max(wait))
        })
    }

    #[test]
    fn a_standby_waits_for_its_poll_and_an_eighth_of_it_while_the_holder_drains() {
        // The poll, and the interval while the holder drains.
        for (poll, fast) in [
            (100, 100),
            (250, 250),
            (500, 250),
            (2000, 250),
            (4000, 500),
            (12_000, 1500),
            (16_000, 2000),
            (3_600_000, 2000),
        ] {
            for (draining, interval) in [(false, poll), (true, fast)] {
                let fifth = ms(interval) / 5;
                assert_eq!(
                    ends(ms(poll), draining, true),
                    (ms(interval) - fifth, ms(interval) + fifth),
                    "poll {poll}, draining {draining}"
                );
            }
        }
    }

    #[test]
    fn a_standby_that_comes_to_an_interval_waits_for_any_part_of_it() {
        for (draining, interval) in [(false, 2000), (true, 250)] {
            let (least, most) = ends(ms(2000), draining, false);
            assert!(least < ms(interval) / 100, "{least:?}");
            assert!(most > ms(interval) && most <= ms(interval) * 6 / 5);
        }
    }

    #[test]
    fn a_change_at_any_moment_is_seen_after_half_a_poll_in_the_median() {
        let poll = ms(2000);
        let mut jitter = Jitter::new(7);
        let mut looks = vec![Duration::ZERO];
        for kept in std::iter::once(false).chain(std::iter::repeat_n(true, 10_000)) {
            let last = looks[looks.len() - 1];
            looks.push(last + poll_interval(poll, false, kept, &mut jitter));
        }
        let end = looks[looks.len() - 1];
        // Two moments in each interval, at no distance that it could be in step with.
        let moments = (0..20_000).map(|n| end * n / 20_000);
        let mut waits: Vec<Duration> = moments
            .map(|at| looks[looks.partition_point(|look| *look < at)] - at)
            .collect();
        waits.sort_unstable();
        let median = waits[waits.len() / 2];
        assert!(median <= poll * 51 / 100, "{median:?}");
        // And what a hand-over just after the first look waits for, as `cargo bench` measures it.
        let mut first: Vec<Duration> = (0..10_000)
            .map(|_| poll_interval(poll, false, false, &mut jitter))
            .collect();
        first.sort_unstable();
        assert!(first[5000] <= poll * 51 / 100, "{:?}", first[5000]);
    }
}
