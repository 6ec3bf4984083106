use std::time::Duration;

use trafficcop::Instant;

/// True time, in nanoseconds since the schedule began.
pub(crate) type Time = u64;

pub(crate) const SECOND: Time = 1_000_000_000;
pub(crate) const MILLI: Time = 1_000_000;

/// CLOCK_BOOTTIME of a machine: runs on in suspend, up to one per cent wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    offset: u64,
    /// Microseconds by which it is fast in each second.
    ppm: i64,
}

impl Clock {
    pub(crate) fn new(offset: u64, ppm: i64) -> Clock {
        Clock { offset, ppm }
    }

    fn rate(self) -> u128 {
        u128::try_from(1_000_000 + self.ppm).expect("a clock goes forward")
    }

    pub(crate) fn at(self, time: Time) -> Instant {
        let gone = u128::from(time) * self.rate() / 1_000_000;
        Instant::from_nanos(self.offset + u64::try_from(gone).expect("short schedules"))
    }

    /// Returns the first time at which it shows `instant` or more.
    pub(crate) fn when(self, instant: Instant) -> Time {
        if instant == Instant::FOREVER {
            return Time::MAX;
        }
        let gone = u128::from(instant.as_nanos().saturating_sub(self.offset));
        u64::try_from((gone * 1_000_000).div_ceil(self.rate())).unwrap_or(Time::MAX)
    }
}

pub(crate) fn nanos(span: Duration) -> Time {
    u64::try_from(span.as_nanos()).unwrap_or(Time::MAX)
}
