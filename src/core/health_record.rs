//! What the lock's record is to say of the command's health, and when that is written anew.
//!
//! Owned by the tenure, which knows when the lease stays ours for long enough; the driver asks. Pure. Who
//! looks at the record is a person: so a change between good, failing and hung is a write, and nothing else
//! is; between two there is at least the time from one check to the next; and one that was lost is made up
//! for by the next. A drain that is announced bears it without a write of its own.

use std::time::Duration;

use super::HealthEvent;
use crate::clock::Instant;

/// What the record says after this, in words: empty where nothing is wrong; `None`: what it said.
pub type HealthWords = fn(&HealthEvent) -> Option<String>;

/// How well a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Degree {
    Good,
    Failing,
    Hung,
}

/// See the module's text.
#[derive(Debug)]
pub struct HealthRecord {
    every: Duration,
    words: HealthWords,
    degree: Degree,
    text: String,
    /// What the record says; `None`: a write of ours was lost.
    written: Option<Degree>,
    /// There is no write before.
    next: Instant,
}

impl HealthRecord {
    /// Of a command that is asked so often.
    pub(super) fn new(every: Duration, words: HealthWords) -> HealthRecord {
        HealthRecord {
            every,
            words,
            degree: Degree::Good,
            text: String::new(),
            written: Some(Degree::Good),
            next: Instant::ZERO,
        }
    }

    /// A tenure begins, and with it a record that says nothing yet.
    pub(super) fn begins(&mut self) {
        *self = HealthRecord::new(self.every, self.words);
    }

    /// The command was started (again): what was wrong was wrong with another.
    pub(super) fn started(&mut self) {
        (self.degree, self.text) = (Degree::Good, String::new());
    }

    pub(super) fn hears(&mut self, event: &HealthEvent) {
        let degree = match event {
            HealthEvent::Answered { .. } => Degree::Good,
            HealthEvent::Failed { .. } => Degree::Failing,
            HealthEvent::Hung(_) => Degree::Hung,
            // Nobody knows how it is.
            HealthEvent::GuardianLost => return,
        };
        if let Some(text) = (self.words)(event) {
            (self.degree, self.text) = (degree, text);
        }
    }

    /// When there is something to write.
    pub(super) fn due(&self) -> Instant {
        match self.written {
            Some(written) if written == self.degree => Instant::FOREVER,
            _ => self.next,
        }
    }

    /// What is to be written now, if something is; it counts as written from here on.
    pub fn write(&mut self, now: Instant) -> Option<String> {
        if now < self.due() {
            return None;
        }
        self.next = now + self.every;
        Some(self.announce())
    }

    /// What a write says that is made anyway.
    pub fn announce(&mut self) -> String {
        self.written = Some(self.degree);
        self.text.clone()
    }

    /// The last write was not answered as it should be.
    pub fn was_lost(&mut self) {
        self.written = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{Hung, ProbeFailure};

    const GOOD: HealthEvent = HealthEvent::Answered { again: false };
    const HUNG: HealthEvent = HealthEvent::Hung(Hung::Triggered);

    fn failed(number: u32) -> HealthEvent {
        HealthEvent::Failed {
            how: ProbeFailure::TimedOut,
            number,
            of: 3,
        }
    }

    fn words(event: &HealthEvent) -> Option<String> {
        Some(match event {
            HealthEvent::Answered { .. } => String::new(),
            HealthEvent::Failed { number, .. } => format!("failing {number}"),
            HealthEvent::Hung(_) => "hung".to_owned(),
            HealthEvent::GuardianLost => return None,
        })
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn record() -> HealthRecord {
        HealthRecord::new(Duration::from_secs(10), words)
    }

    #[test]
    fn a_change_is_written_once_and_the_next_not_before_a_check_s_time() {
        let mut record = record();
        record.hears(&GOOD);
        assert_eq!(record.due(), Instant::FOREVER, "nothing is wrong");
        record.hears(&failed(1));
        assert_eq!(record.write(at(20)), Some("failing 1".to_owned()));
        record.hears(&failed(2));
        assert_eq!(record.write(at(30)), None, "it says so already");
        record.hears(&failed(3));
        record.hears(&GOOD);
        record.hears(&HUNG);
        assert_eq!(record.due(), at(30), "ten seconds after the last");
        assert_eq!(record.write(at(29)), None);
        assert_eq!(record.write(at(31)), Some("hung".to_owned()));
        record.hears(&HealthEvent::GuardianLost);
        assert_eq!(record.due(), Instant::FOREVER, "nobody knows more");
        // What is wrong with one command is not wrong with the next.
        record.started();
        assert_eq!(record.write(at(41)), Some(String::new()));
    }

    #[test]
    fn a_failure_that_was_over_before_it_could_be_written_is_not() {
        let mut record = record();
        record.hears(&failed(1));
        assert!(record.write(at(20)).is_some());
        record.hears(&GOOD);
        assert_eq!(record.due(), at(30));
        record.hears(&failed(1));
        assert_eq!(record.due(), Instant::FOREVER);
    }

    #[test]
    fn a_lost_write_is_made_up_for_by_the_next_even_if_all_is_well_again() {
        let mut record = record();
        record.hears(&failed(1));
        assert!(record.write(at(20)).is_some());
        record.was_lost();
        assert_eq!(record.write(at(25)), None, "not at once");
        record.hears(&GOOD);
        // It may have been written all the same.
        assert_eq!(record.write(at(30)), Some(String::new()));
        assert_eq!(record.due(), Instant::FOREVER);
    }

    #[test]
    fn what_a_drain_announces_is_not_written_again_and_a_new_tenure_owes_nothing() {
        let mut record = record();
        record.hears(&HUNG);
        assert_eq!(record.announce(), "hung");
        assert_eq!(record.due(), Instant::FOREVER);
        record.was_lost();
        record.begins();
        assert_eq!(record.due(), Instant::FOREVER);
        record.hears(&failed(1));
        assert_eq!(record.due(), Instant::ZERO, "at once");
    }
}
