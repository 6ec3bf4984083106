//! Whether this machine is fit to take control (`--if`): when it is asked, and for how long an answer
//! counts.
//!
//! Called by the tenure while it stands by, and by nothing that has control: the answer is about who may
//! take it, and never about who has it. Pure; who answers is the workload.

use std::time::Duration;

use super::event::Failed;
use crate::clock::Instant;

// The least time that an answer may take: a condition that looks at a disk or a port on a busy machine.
// With a longer poll it may take as long as that.
const LEAST_LIMIT: Duration = Duration::from_secs(5);

// The least time between two questions, whatever a program takes for a poll: each may be a process.
const LEAST_PAUSE: Duration = Duration::from_millis(50);

/// Why a machine is not fit to take control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The condition's command did not succeed.
    Failed(Failed),
    /// It did not end in time, and was killed.
    TimedOut,
    /// It cannot be asked any more: its guardian died, or something of it cannot be killed.
    Unasked,
    /// The program says so of itself.
    Said,
}

/// The condition, with its last answer.
#[derive(Debug)]
pub struct Condition {
    every: Duration,
    // It is being asked, and an answer counts until then.
    asking: Option<Instant>,
    // With the moment at which it came.
    answer: Option<(Instant, Result<(), Unfit>)>,
}

impl Condition {
    /// One that is asked so often, and was not asked yet.
    pub fn new(every: Duration) -> Condition {
        Condition {
            every: every.max(LEAST_PAUSE),
            asking: None,
            answer: None,
        }
    }

    /// When it is to be asked; [`Instant::FOREVER`] while it is being asked.
    // An answer counts until then, so that whoever may compete goes on to be known for it, however long
    // an answer takes.
    pub fn due(&self) -> Instant {
        if self.asking.is_some() {
            return Instant::FOREVER;
        }
        let answered = self.answer.map(|(at, _)| at + self.every);
        answered.unwrap_or(Instant::ZERO)
    }

    /// It is asked now, by somebody who waits until `end`, which is to come; until when an answer counts.
    pub fn ask(&mut self, now: Instant, end: Instant) -> Instant {
        let give_up_at = (now + self.every.max(LEAST_LIMIT)).min(end);
        self.asking = Some(give_up_at);
        give_up_at
    }

    /// It was answered; a word that nobody has asked for is none.
    pub fn answered(&mut self, now: Instant, answer: Result<(), Unfit>) {
        let Some(give_up_at) = self.asking.take() else {
            return;
        };
        // It lay there while we were stopped, or the machine slept: a yes of an hour ago.
        let answer = match answer {
            Ok(()) if now > give_up_at => Err(Unfit::TimedOut),
            answer => answer,
        };
        self.answer = Some((now, answer));
    }

    /// Whether it is being asked.
    pub fn is_asking(&self) -> bool {
        self.asking.is_some()
    }

    /// Why not, by the last answer.
    pub fn refusal(&self) -> Option<Unfit> {
        self.answer.and_then(|(_, answer)| answer.err())
    }

    /// Whether the last answer lets us compete, for as long as it counts. Nobody competes while it is
    /// being asked.
    pub fn is_yes(&self) -> bool {
        self.asking.is_none() && self.answer.is_some_and(|(_, answer)| answer.is_ok())
    }

    /// Whether it does so now.
    pub fn holds(&self, now: Instant) -> bool {
        self.is_yes() && now < self.due()
    }

    /// Whether there was no answer yet.
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
    fn an_answer_counts_from_when_it_came_until_it_is_asked_again() {
        let mut condition = Condition::new(POLL);
        assert!(condition.due() <= BEGIN && condition.is_unknown());
        assert_eq!(condition.ask(BEGIN, Instant::FOREVER), at(5));
        assert_eq!(condition.due(), Instant::FOREVER);
        assert!(!condition.holds(at(2)));
        condition.answered(at(3), Ok(()));
        assert!(condition.holds(at(3)) && !condition.holds(at(5)));
        assert_eq!(condition.due(), at(5));
        condition.ask(at(5), Instant::FOREVER);
        assert!(!condition.holds(at(5)), "nobody knows");
        condition.answered(at(6), Err(Unfit::Said));
        assert!(!condition.holds(at(6)));
        assert_eq!(condition.refusal(), Some(Unfit::Said));
    }

    #[test]
    fn a_yes_that_comes_too_late_is_a_no() {
        let mut condition = Condition::new(POLL);
        condition.ask(BEGIN, Instant::FOREVER);
        condition.answered(at(3600), Ok(()));
        assert_eq!(condition.refusal(), Some(Unfit::TimedOut));
    }

    #[test]
    fn what_nobody_asked_for_is_no_answer() {
        let mut condition = Condition::new(POLL);
        condition.answered(BEGIN, Ok(()));
        assert!(condition.is_unknown() && !condition.holds(BEGIN));
    }

    #[test]
    fn an_answer_has_five_seconds_or_a_poll_and_no_longer_than_somebody_waits() {
        let limit = |every, end| Condition::new(Duration::from_secs(every)).ask(BEGIN, end);
        assert_eq!(limit(1, Instant::FOREVER), at(5));
        assert_eq!(limit(60, Instant::FOREVER), at(60));
        assert_eq!(limit(2, at(3)), at(3));
    }

    #[test]
    fn a_program_that_polls_without_a_pause_is_not_asked_so() {
        let mut condition = Condition::new(Duration::ZERO);
        condition.ask(BEGIN, Instant::FOREVER);
        condition.answered(BEGIN, Ok(()));
        assert!(condition.due() > BEGIN);
    }
}
