//! Is the guardian silent, or were we not listening? Pure.
//!
//! Called by [`super::handle`] each time it looks, after it has read everything that had
//! arrived. It must never take a pause of the supervisor (stopped, starved, suspended) for the
//! silence of the guardian: what was asked before a pause is asked again after it, and only time
//! in which we looked regularly counts.

use std::time::Duration;

use crate::clock::Instant;

/// From one ping to the next.
const EVERY: Duration = Duration::from_millis(500);
/// How long the guardian may be silent.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it may be silent while it starts a command: a fork, a namespace and an exec are the
/// kernel's work, and on a starved machine that takes seconds. What it must do in time is not put
/// off by that: see the next.
const PATIENCE_AT_THE_START: Duration = Duration::from_secs(10);
/// How long it may be silent once the tree's deadline is reached: less than the margin of the
/// shortest lease (500 ms), so that what it does not do is still done in time.
const PATIENCE_AT_THE_END: Duration = Duration::from_millis(100);
/// How often to look then.
const LOOK_AT_THE_END: Duration = Duration::from_millis(20);
/// How often to look while an answer is missing.
const LOOK: Duration = Duration::from_millis(150);
/// A longer time between two looks was a pause of ours.
const PAUSE: Duration = Duration::from_millis(400);

/// What a look leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Nothing to do before [`LivenessTimer::next`].
    Quiet,
    /// Send a ping with this number.
    Ping(u64),
    /// The guardian did not answer in time.
    Silent,
}

#[derive(Clone, Copy, Debug)]
pub struct LivenessTimer {
    seq: u64,
    answered: bool,
    asked: Instant,
    looked: Instant,
    /// How long we have listened for the answer.
    listened: Duration,
    /// A command is being started.
    starting: bool,
    /// The tree has to be gone very soon.
    urgent: bool,
}

#[expect(clippy::new_without_default, reason = "open for a test only")]
impl LivenessTimer {
    /// Nothing asked; the first look asks.
    pub fn new() -> LivenessTimer {
        LivenessTimer {
            seq: 0,
            answered: true,
            asked: Instant::ZERO,
            looked: Instant::ZERO,
            listened: Duration::ZERO,
            starting: false,
            urgent: false,
        }
    }

    /// The same, of a guardian that was told to start a command.
    pub fn of_a_start() -> LivenessTimer {
        LivenessTimer {
            starting: true,
            ..LivenessTimer::new()
        }
    }

    /// The start counts no more: the command was started, or is to go at once.
    pub fn started(&mut self) {
        self.starting = false;
        self.listened = Duration::ZERO;
    }

    /// The deadline is reached: the guardian has to answer anew, and quickly.
    pub fn hurry(&mut self, now: Instant) -> Beat {
        if self.urgent {
            return Beat::Quiet;
        }
        self.urgent = true;
        self.looked = now;
        self.ask(now)
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
        let patience = if self.urgent {
            PATIENCE_AT_THE_END
        } else if self.starting {
            PATIENCE_AT_THE_START
        } else {
            PATIENCE
        };
        if self.listened >= patience {
            Beat::Silent
        } else {
            Beat::Quiet
        }
    }

    /// How long after `now` to look again.
    pub fn next(&self, now: Instant) -> Duration {
        if self.answered {
            EVERY.saturating_sub(now.since(self.asked))
        } else if self.urgent {
            LOOK_AT_THE_END
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
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        liveness.answered(1);
        assert_eq!(liveness.look(at(1)), Beat::Quiet);
        assert_eq!(liveness.next(at(1)), Duration::from_millis(499));
        assert_eq!(liveness.look(at(500)), Beat::Ping(2));
    }

    #[test]
    fn a_second_without_an_answer_is_silence() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        for millis in (150..1000).step_by(150) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "after {millis} ms");
        }
        assert_eq!(liveness.look(at(1050)), Beat::Silent);
    }

    #[test]
    fn a_start_may_take_its_time_but_not_past_the_deadline() {
        let mut liveness = LivenessTimer::of_a_start();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        for millis in (150..5000).step_by(150) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "after {millis} ms");
        }
        let mut late = liveness;
        assert_eq!(late.hurry(at(5000)), Beat::Ping(2));
        assert_eq!(late.look(at(5100)), Beat::Silent);
        liveness.started();
        for millis in (5100..6000).step_by(150) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "after {millis} ms");
        }
        assert_eq!(liveness.look(at(6150)), Beat::Silent);
    }

    #[test]
    fn a_start_is_not_waited_for_without_end() {
        let mut liveness = LivenessTimer::of_a_start();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        for millis in (150..9950).step_by(150) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "after {millis} ms");
        }
        assert_eq!(liveness.look(at(10_050)), Beat::Silent);
    }

    #[test]
    fn at_the_deadline_a_tenth_of_a_second_is_silence() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        liveness.answered(1);
        assert_eq!(liveness.hurry(at(100)), Beat::Ping(2));
        assert_eq!(liveness.hurry(at(100)), Beat::Quiet, "once");
        for millis in (120..200).step_by(20) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "at {millis} ms");
        }
        assert_eq!(liveness.look(at(200)), Beat::Silent);
    }

    #[test]
    fn a_pause_of_ours_is_not_silence() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        assert_eq!(liveness.look(at(150)), Beat::Quiet);
        // Stopped for an hour; the guardian is asked anew, and the answer from before is not one.
        assert_eq!(liveness.look(at(3_600_000)), Beat::Ping(2));
        liveness.answered(1);
        assert!(!liveness.is_answered());
        for millis in (150..1000).step_by(150) {
            assert_eq!(liveness.look(at(3_600_000 + millis)), Beat::Quiet);
        }
        assert_eq!(liveness.look(at(3_601_050)), Beat::Silent);
    }
}
