//! Clock of a service, as far as the dates of its answers prove it.
//!
//! A service counts a lease from the request that it answers, so an answer to an earlier request would keep
//! a command running beyond its lease. It must never be mistaken for one of a service whose clock is late,
//! nor the reverse.

use std::time::Duration;

use crate::clock::Instant;

const RESOLUTION: i64 = 1000;
// Most milliseconds from the beginning of its second to the writing of a date.
const SLACK: i64 = 100;
// Two clocks part by one part in a thousand at most.
const DRIFT: i64 = 1000;
// Shortest time between two refused answers that shows a date which does not move.
const STEADY: i64 = 1500;

/// Clock of a service against CLOCK_BOOTTIME, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceTime {
    // Least lead over this clock, and the moment of the answer that proved it.
    ahead: Option<(i64, Instant)>,
    // Oldest refused answer since the last one that counted: its moment and its date.
    refused: Option<(Instant, i64)>,
}

/// Answer with a date, in milliseconds of the Unix epoch.
#[derive(Clone, Copy, Debug)]
pub struct DatedAnswer {
    /// Moment before the request.
    pub sent: Instant,
    /// Moment before the previous request, whatever its result.
    pub before: Option<Instant>,
    /// Moment of the answer.
    pub received: Instant,
    /// Date.
    pub date: i64,
}

impl ServiceTime {
    /// Starts from the knowledge of another process of this machine.
    #[must_use]
    pub fn known(ahead: i64, at: Instant) -> ServiceTime {
        ServiceTime {
            ahead: Some((ahead, at)),
            refused: None,
        }
    }

    /// Returns the lead of the service's clock over CLOCK_BOOTTIME, if known.
    #[must_use]
    pub fn ahead(&self) -> Option<i64> {
        self.ahead.map(|(ahead, _)| ahead)
    }

    /// Learns from an answer that is known to be this request's.
    pub fn learn(&mut self, answer: &DatedAnswer) {
        let (least, most) = answer.bounds();
        // The date was written between request and answer. So an answer that waited unread for an hour
        // proves next to nothing.
        let ahead = match self.ahead_at(answer.received) {
            Some(known) if known <= most => known.max(least),
            _ => least,
        };
        self.ahead = Some((ahead, answer.received));
        self.refused = None;
    }

    /// Tells whether an answer can belong to this request; learns from it if so.
    pub fn admits(&mut self, answer: &DatedAnswer) -> bool {
        if self.is_older_than(answer.sent, answer) && !self.is_late_for_good(answer) {
            return false;
        }
        self.learn(answer);
        true
    }

    fn ahead_at(&self, now: Instant) -> Option<i64> {
        self.ahead
            .map(|(ahead, at)| ahead - span(now.since(at)) / DRIFT)
    }

    fn is_older_than(&self, moment: Instant, answer: &DatedAnswer) -> bool {
        let known = self.ahead_at(answer.received);
        known.is_some_and(|known| answer.date + RESOLUTION < millis(moment) + known - SLACK)
    }

    /// Tells whether the dating clock is late now: a front end with its own clock must not stop a holder.
    fn is_late_for_good(&mut self, answer: &DatedAnswer) -> bool {
        // A connection that is one answer behind delivers at least the answer to the previous request.
        let oldest = answer
            .before
            .is_some_and(|at| self.is_older_than(at, answer));
        if !oldest {
            return false;
        }
        let Some((received, date)) = self.refused else {
            self.refused = Some((answer.received, answer.date));
            return false;
        };
        let least = millis(answer.sent) - millis(received);
        if least < STEADY {
            return false;
        }
        // A late clock runs like this one; the date of a kept answer does not move.
        let most = span(answer.received.since(received)) + span(answer.received.since(answer.sent));
        let steady = (least - RESOLUTION..=most + RESOLUTION).contains(&(answer.date - date));
        if !steady {
            self.refused = Some((answer.received, answer.date));
        }
        steady
    }
}

impl DatedAnswer {
    fn bounds(&self) -> (i64, i64) {
        let least = self.date - millis(self.received);
        (least, self.date + RESOLUTION - millis(self.sent))
    }
}

/// Converts to milliseconds of CLOCK_BOOTTIME.
#[must_use]
pub fn millis(at: Instant) -> i64 {
    span(at.since(Instant::ZERO))
}

fn span(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AHEAD: i64 = 1_000_000_300;

    fn at(ms: i64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms.unsigned_abs())
    }

    /// Makes an answer dated when this clock shows `written`, by a clock that is late by `late`.
    fn answer(sent: i64, received: i64, written: i64, late: i64) -> DatedAnswer {
        DatedAnswer {
            sent: at(sent),
            before: Some(at(sent - 5000)),
            received: at(received),
            date: (written + AHEAD - late).div_euclid(1000) * 1000,
        }
    }

    fn after(begin: i64) -> ServiceTime {
        let mut time = ServiceTime::default();
        assert!(time.admits(&answer(begin, begin + 5, begin + 2, 0)));
        time
    }

    #[test]
    fn answer_to_an_earlier_renewal_is_refused_and_the_right_one_counts() {
        for phase in 0..1000 {
            let mut time = after(100_000 + phase);
            let renewal = 105_000 + phase;
            assert!(time.admits(&answer(renewal, renewal + 3, renewal + 1, 0)));
            let next = renewal + 5000;
            assert!(!time.admits(&answer(next, next + 3, renewal + 1, 0)));
            assert!(time.admits(&answer(next + 3, next + 6, next + 4, 0)));
        }
    }

    #[test]
    fn constantly_late_date_is_the_offset_and_refuses_nothing() {
        for late in [0, 1000, 3000, 600_000, -600_000] {
            let mut time = ServiceTime::default();
            for n in 0..2000_i64 {
                let sent = 100_000 + n * 2337;
                let took = n * 7 % 400;
                assert!(time.admits(&answer(sent, sent + took, sent + took / 2, late)));
            }
        }
    }

    #[test]
    fn date_that_becomes_late_counts_again_after_two_seconds_of_refusals() {
        for late in [2500, 4000, 10_000, 3_600_000] {
            for phase in 0..1000 {
                let mut time = after(100_000 + phase);
                let mut before = 100_000 + phase;
                let mut attempts = 0;
                'renewed: loop {
                    let begin = 105_000 + phase + attempts * 2000;
                    attempts += 1;
                    assert!(attempts <= 2, "{late} ms late");
                    for n in 0..3 {
                        let sent = begin + n * 4;
                        let mut late = answer(sent, sent + 3, sent + 1, late);
                        late.before = Some(at(before));
                        before = sent;
                        if time.admits(&late) {
                            break 'renewed;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn answers_that_are_always_one_behind_are_never_taken_for_a_late_clock() {
        for silent in [false, true] {
            let mut time = after(100_000);
            let (mut before, mut kept) = (100_000, 100_001);
            // A lease has no time for more.
            for n in 0..20 {
                let sent = 105_000 + n * 2100 + if silent { n % 2 * 300 } else { 0 };
                let mut behind = answer(sent, sent + 2, kept, 0);
                behind.before = Some(at(before));
                assert!(!time.admits(&behind), "attempt {n}");
                (before, kept) = (sent, sent + 1);
                if silent {
                    continue;
                }
                // Asked again at once: the answer is that to the previous request.
                let mut next = answer(sent + 2, sent + 4, kept, 0);
                next.before = Some(at(before));
                assert!(time.admits(&next));
                (before, kept) = (sent + 2, sent + 3);
            }
        }
    }

    #[test]
    fn answer_that_is_kept_for_good_is_never_taken_for_a_late_clock() {
        let mut time = after(100_000);
        for n in 0..1000 {
            let sent = 105_000 + n * 1800;
            let took = n % 4 * 900;
            let mut kept = answer(sent, sent + took, 100_002, 0);
            kept.before = Some(at(sent - 3));
            assert!(!time.admits(&kept), "{n}");
        }
    }

    #[test]
    fn clock_that_is_off_is_corrected_to_what_the_answer_proves() {
        for off in [3_600_000, -3_600_000] {
            let mut time = ServiceTime::known(AHEAD + off, at(100_000));
            time.learn(&answer(100_000, 102_000, 101_000, 0));
            let known = time.ahead().expect("known");
            assert!((AHEAD - 2000..=AHEAD).contains(&known), "{off}: {known}");
        }
    }

    #[test]
    fn answer_that_was_read_late_keeps_what_may_be_true() {
        let mut time = ServiceTime::known(AHEAD, at(100_000));
        time.learn(&answer(100_000, 3_700_000, 100_500, 0));
        let known = time.ahead().expect("known");
        assert!((AHEAD - 3600..=AHEAD).contains(&known), "{known}");
    }
}
