//! Fitness of this machine to take control (`--if`): when to ask, and how long an answer counts.
//!
//! The answer decides who may take control, not who has it.

use std::time::Duration;

use super::event::Failed;
use crate::clock::Instant;

// Every answer may take this long: checking a disk or a port is slow on a busy machine.
const SHORTEST_TIMEOUT: Duration = Duration::from_secs(5);

// Each question may start a process.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// Reason why a machine is not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The condition's command did not succeed.
    Failed(Failed),
    /// No answer was read in time.
    TimedOut,
    /// The question cannot be asked: the guardian, which runs the condition's command, died, or it cannot kill
    /// an earlier run of that command.
    CannotAsk,
    /// The embedding program's own condition said no.
    ProgramRefused,
}

/// Condition with its last answer.
#[derive(Debug)]
pub struct Condition {
    every: Duration,
    give_up_at: Option<Instant>,
    answer: Option<(Instant, Result<(), Unfit>)>,
}

impl Condition {
    /// Makes a condition that is asked this often.
    pub fn new(every: Duration) -> Condition {
        Condition {
            every: every.max(SHORTEST_PAUSE),
            give_up_at: None,
            answer: None,
        }
    }

    /// Returns when to ask next; [`Instant::FOREVER`] while a question is open.
    pub fn due(&self) -> Instant {
        if self.give_up_at.is_some() {
            return Instant::FOREVER;
        }
        // From its arrival: a slow answer counts as long as a fast one.
        let answered = self.answer.map(|(at, _)| at + self.every);
        answered.unwrap_or(Instant::ZERO)
    }

    /// Opens a question. Returns the time by which a yes must have arrived, no later than `end`.
    pub fn ask(&mut self, now: Instant, end: Instant) -> Instant {
        let give_up_at = (now + self.every.max(SHORTEST_TIMEOUT)).min(end);
        self.give_up_at = Some(give_up_at);
        give_up_at
    }

    /// Takes an answer; ignores one without a question.
    pub fn answered(&mut self, now: Instant, answer: Result<(), Unfit>) {
        let Some(give_up_at) = self.give_up_at.take() else {
            return;
        };
        // The answer may have waited for an hour while this process was stopped or the machine slept.
        let answer = match answer {
            Ok(()) if now > give_up_at => Err(Unfit::TimedOut),
            answer => answer,
        };
        self.answer = Some((now, answer));
    }

    /// Tells whether a question is open.
    pub fn is_asking(&self) -> bool {
        self.give_up_at.is_some()
    }

    /// Returns the reason for the last answer, if that was a no.
    pub fn refusal(&self) -> Option<Unfit> {
        self.answer.and_then(|(_, answer)| answer.err())
    }

    /// Tells whether the last answer was a yes, with no open question.
    pub fn is_yes(&self) -> bool {
        self.give_up_at.is_none() && self.answer.is_some_and(|(_, answer)| answer.is_ok())
    }

    /// Tells whether the last answer is a yes that counts now.
    pub fn holds(&self, now: Instant) -> bool {
        self.is_yes() && now < self.due()
    }

    /// Tells whether no answer has come yet.
    pub fn is_unknown(&self) -> bool {
        self.answer.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000_000_000);
    const POLL: Duration = Duration::from_secs(2);

    fn at(seconds: u64) -> Instant {
        BEGIN + Duration::from_secs(seconds)
    }

    #[test]
    fn answer_counts_from_its_arrival_until_the_next_question() {
        let mut condition = Condition::new(POLL);
        assert!(condition.due() <= BEGIN && condition.is_unknown());
        assert_eq!(condition.ask(BEGIN, Instant::FOREVER), at(5));
        assert_eq!(condition.due(), Instant::FOREVER);
        assert!(!condition.holds(at(2)));
        condition.answered(at(3), Ok(()));
        assert!(condition.holds(at(3)) && !condition.holds(at(5)));
        assert_eq!(condition.due(), at(5));
        condition.ask(at(5), Instant::FOREVER);
        assert!(!condition.holds(at(5)), "a question is open");
        condition.answered(at(6), Err(Unfit::ProgramRefused));
        assert!(!condition.holds(at(6)));
        assert_eq!(condition.refusal(), Some(Unfit::ProgramRefused));
    }

    #[test]
    fn yes_that_comes_too_late_is_a_no() {
        let mut condition = Condition::new(POLL);
        condition.ask(BEGIN, Instant::FOREVER);
        condition.answered(at(3600), Ok(()));
        assert_eq!(condition.refusal(), Some(Unfit::TimedOut));
    }

    #[test]
    fn unasked_answer_is_ignored() {
        let mut condition = Condition::new(POLL);
        condition.answered(BEGIN, Ok(()));
        assert!(condition.is_unknown() && !condition.holds(BEGIN));
    }

    #[test]
    fn answer_has_five_seconds_or_a_poll_and_no_longer_than_the_wait() {
        let limit = |every, end| Condition::new(Duration::from_secs(every)).ask(BEGIN, end);
        assert_eq!(limit(1, Instant::FOREVER), at(5));
        assert_eq!(limit(60, Instant::FOREVER), at(60));
        assert_eq!(limit(2, at(3)), at(3));
    }

    #[test]
    fn poll_of_zero_is_raised_to_the_shortest_pause() {
        let mut condition = Condition::new(Duration::ZERO);
        condition.ask(BEGIN, Instant::FOREVER);
        condition.answered(BEGIN, Ok(()));
        assert!(condition.due() > BEGIN);
    }
}
