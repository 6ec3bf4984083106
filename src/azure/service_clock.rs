//! What time it is by the service's clock: requests signed with an account key bear a date, and one
//! that differs from the service's by more than fifteen minutes is refused.
//!
//! Asked and taught by the signature alone. Kept against the clock that counts suspend, so a wall
//! clock that is wrong, or is set while we run, does not matter. Must never judge a lease.
//!
//! A SAS is not dated by us: when it begins and ends is between its maker and the service.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use azure_core::time::OffsetDateTime;

use crate::clock::Instant;

/// Nothing was received of the service's clock yet.
const UNKNOWN: i64 = i64::MIN;
/// A date is in whole seconds.
const SECOND: i64 = 1000;
/// People are told of a wall clock that is off by more than this.
const WORTH_A_WORD: Duration = Duration::from_secs(300);

/// The service's clock, as far as it is known.
#[derive(Debug)]
pub(crate) struct ServiceClock {
    /// The service's time less CLOCK_BOOTTIME, in milliseconds.
    ahead: AtomicI64,
    /// People were told that the machine's clock is off.
    told: AtomicBool,
}

impl ServiceClock {
    /// Nothing is known: the machine's wall clock is believed until the first answer.
    pub(crate) fn new() -> ServiceClock {
        ServiceClock {
            ahead: AtomicI64::new(UNKNOWN),
            told: AtomicBool::new(false),
        }
    }

    /// As another process of this machine knew it ([`ServiceClock::ahead`]); it has told people.
    pub(crate) fn of_another(ahead: Option<i64>) -> ServiceClock {
        ServiceClock {
            ahead: AtomicI64::new(ahead.unwrap_or(UNKNOWN)),
            told: AtomicBool::new(true),
        }
    }

    /// The service's time less CLOCK_BOOTTIME, in milliseconds, once it is known.
    pub(crate) fn ahead(&self) -> Option<i64> {
        Some(self.ahead.load(Ordering::Relaxed)).filter(|ahead| *ahead != UNKNOWN)
    }

    /// The present date by the service's clock.
    pub(crate) fn date(&self) -> OffsetDateTime {
        let Some(ahead) = self.ahead() else {
            return OffsetDateTime::now_utc();
        };
        let unix = millis(Instant::now()).saturating_add(ahead);
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(unix) * 1_000_000)
            .unwrap_or_else(|_| OffsetDateTime::now_utc())
    }

    /// Takes in the date of an answer that has just come, to a request that was sent at `sent`.
    pub(crate) fn learn(&self, sent: Instant, date: OffsetDateTime) {
        let now = Instant::now();
        let wall = unix(OffsetDateTime::now_utc()) - millis(now);
        let known = self.ahead().unwrap_or(wall);
        let ahead = corrected(known, sent, now, unix(date));
        self.ahead.store(ahead, Ordering::Relaxed);
        let off = Duration::from_millis(wall.abs_diff(ahead));
        if off <= WORTH_A_WORD {
            self.told.store(false, Ordering::Relaxed);
        } else if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "this machine's clock is {} minutes {} the storage service's; requests are dated \
                 by the service's",
                off.as_secs() / 60,
                if wall > ahead { "ahead of" } else { "behind" },
            );
        }
    }
}

/// What is known of the service's clock after an answer with this date, sent and received at these
/// moments. The date was written in between, so an answer that waited for an hour until we read it
/// says next to nothing, and corrects nothing that may be true.
fn corrected(known: i64, sent: Instant, received: Instant, date: i64) -> i64 {
    known.clamp(date - millis(received), date + SECOND - millis(sent))
}

fn millis(at: Instant) -> i64 {
    i64::try_from(at.as_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

fn unix(date: OffsetDateTime) -> i64 {
    i64::try_from(date.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_right_clock_is_left_as_it_is() {
        // At 100 s after the boot it is 1,000,100.7 s: the date says 1,000,100.
        let known = 1_000_000_700;
        assert_eq!(corrected(known, at(100), at(101), 1_000_101_000), known);
    }

    #[test]
    fn a_clock_that_is_off_is_corrected_to_what_the_answer_proves() {
        let right = 1_000_000_000;
        for off in [HOUR, -HOUR] {
            let known = corrected(right + off, at(100), at(102), right + 101_000);
            assert!(known.abs_diff(right) <= 2000, "{off}: {known}");
        }
    }

    #[test]
    fn an_answer_that_waited_for_us_corrects_nothing_that_may_be_true() {
        let right = 1_000_000_000;
        // Written at 100 s, read at 3700 s: we were stopped, or the machine slept.
        assert_eq!(corrected(right, at(100), at(3700), right + 100_000), right);
        let off = corrected(right + 2 * HOUR, at(100), at(3700), right + 100_000);
        assert_eq!(off, right + SECOND);
    }

    #[test]
    fn what_is_not_known_is_the_wall_clock_and_what_is_known_goes_on_by_itself() {
        let clock = ServiceClock::new();
        let wall = || unix(OffsetDateTime::now_utc());
        assert_eq!(clock.ahead(), None);
        assert!(unix(clock.date()).abs_diff(wall()) < 60_000);
        clock.learn(
            Instant::now(),
            OffsetDateTime::now_utc() + Duration::from_secs(3600),
        );
        assert!(unix(clock.date()).abs_diff(wall() + HOUR) < 60_000);
        let another = ServiceClock::of_another(clock.ahead());
        assert!(unix(another.date()).abs_diff(wall() + HOUR) < 60_000);
    }
}
