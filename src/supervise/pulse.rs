//! Is the guardian silent, or were we not listening? Pure.
//!
//! Called by [`super::attendant`] each time it looks, after it has read everything that had
//! arrived. It must never take a pause of the supervisor (stopped, starved, suspended) for the
//! silence of the guardian: what was asked before a pause is asked again after it, and only time
//! in which we looked regularly counts.

use std::time::Duration;

use crate::clock::Instant;

/// From one ping to the next.
const EVERY: Duration = Duration::from_millis(500);
/// How long the guardian may be silent.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often to look while an answer is missing.
const LOOK: Duration = Duration::from_millis(150);
/// A longer time between two looks was a pause of ours.
const PAUSE: Duration = Duration::from_millis(400);

/// What a look leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Nothing to do before [`Pulse::next`].
    Quiet,
    /// Send a ping with this number.
    Ping(u64),
    /// The guardian did not answer in time.
    Silent,
}

#[derive(Clone, Copy, Debug)]
pub struct Pulse {
    seq: u64,
    answered: bool,
    asked: Instant,
    looked: Instant,
    /// How long we have listened for the answer.
    listened: Duration,
}

#[expect(clippy::new_without_default, reason = "open for a test only")]
impl Pulse {
    /// Nothing asked; the first look asks.
    pub fn new() -> Pulse {
        Pulse {
            seq: 0,
            answered: true,
            asked: Instant::ZERO,
            looked: Instant::ZERO,
            listened: Duration::ZERO,
        }
    }

    /// The guardian answered this ping.
    pub fn answered(&mut self, seq: u64) {
        // An older answer may have been on its way since before a pause.
        self.answered |= seq == self.seq;
    }

    /// Looks at the clock.
    pub fn look(&mut self, now: Instant) -> Beat {
        let gap = now.since(self.looked);
        self.looked = now;
        if self.answered {
            return if now.since(self.asked) >= EVERY {
                self.ask(now)
            } else {
                Beat::Quiet
            };
        }
        if gap > PAUSE {
            return self.ask(now);
        }
        self.listened += gap;
        if self.listened >= PATIENCE {
            Beat::Silent
        } else {
            Beat::Quiet
        }
    }

    /// How long after `now` to look again.
    pub fn next(&self, now: Instant) -> Duration {
        if self.answered {
            EVERY.saturating_sub(now.since(self.asked))
        } else {
            LOOK
        }
    }

    fn ask(&mut self, now: Instant) -> Beat {
        self.seq += 1;
        self.answered = false;
        self.asked = now;
        self.listened = Duration::ZERO;
        Beat::Ping(self.seq)
    }

    /// Whether the last ping has been answered.
    pub fn is_answered(&self) -> bool {
        self.answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1000) + Duration::from_millis(millis)
    }

    #[test]
    fn who_answers_is_asked_twice_a_second() {
        let mut pulse = Pulse::new();
        assert_eq!(pulse.look(at(0)), Beat::Ping(1));
        pulse.answered(1);
        assert_eq!(pulse.look(at(1)), Beat::Quiet);
        assert_eq!(pulse.next(at(1)), Duration::from_millis(499));
        assert_eq!(pulse.look(at(500)), Beat::Ping(2));
    }

    #[test]
    fn a_second_without_an_answer_is_silence() {
        let mut pulse = Pulse::new();
        assert_eq!(pulse.look(at(0)), Beat::Ping(1));
        for millis in (150..1000).step_by(150) {
            assert_eq!(pulse.look(at(millis)), Beat::Quiet, "after {millis} ms");
        }
        assert_eq!(pulse.look(at(1050)), Beat::Silent);
    }

    #[test]
    fn a_pause_of_ours_is_not_silence() {
        let mut pulse = Pulse::new();
        assert_eq!(pulse.look(at(0)), Beat::Ping(1));
        assert_eq!(pulse.look(at(150)), Beat::Quiet);
        // Stopped for an hour; the guardian is asked anew, and the answer from before is not one.
        assert_eq!(pulse.look(at(3_600_000)), Beat::Ping(2));
        pulse.answered(1);
        assert!(!pulse.is_answered());
        for millis in (150..1000).step_by(150) {
            assert_eq!(pulse.look(at(3_600_000 + millis)), Beat::Quiet);
        }
        assert_eq!(pulse.look(at(3_601_050)), Beat::Silent);
    }
}
