//! Who tells the lock's record of the command's health, as the driver does: one word after another, when the core has
//! one. Some are lost, or nobody hears that they were not.

use std::time::Duration;

use fastrand::Rng;
use trafficcop::Instant;
use trafficcop_core::{HealthEvent, HealthRecord, Tenure};

use super::plan::{Plan, ms, one};
use super::world::{Due, World};

#[derive(Default)]
pub(crate) struct Telling {
    /// The word that is under way, by its number.
    under_way: Option<usize>,
    words: usize,
    /// When to come back for the next.
    wakes_at: Option<Instant>,
}

impl Plan {
    pub(crate) fn tenure(&self, now: Instant) -> Tenure {
        let every = self.health.is_told_every();
        Tenure::new(self.rules.clone(), now).telling_health(every, words)
    }
}

pub(super) fn words(event: &HealthEvent) -> Option<String> {
    let word = match event {
        HealthEvent::Answered { .. } => "",
        HealthEvent::Failed { .. } => "failing",
        HealthEvent::Hung(_) => "hung",
        HealthEvent::NotAsked { .. } | HealthEvent::GuardianLost => return None,
    };
    Some(word.to_owned())
}

impl World {
    /// What is under way is about a lease that is ours no more.
    pub(crate) fn tells_no_more(&mut self) {
        self.telling.under_way = None;
    }

    pub(crate) fn tells_of_health(&mut self) {
        if self.over || self.violation.is_some() {
            return;
        }
        self.judge_when_health_is_told();
        let (now, due) = (self.now, self.tenure.health_due());
        if self.telling.under_way.is_some() {
            return;
        }
        if now < due {
            let known = self.telling.wakes_at.replace(due) == Some(due);
            if due < Instant::FOREVER && !known {
                self.due(due, Due::Tells);
            }
            return;
        }
        let record = self.tenure.health_record();
        let word = record.and_then(|record| record.write(now));
        self.say(|| format!("the record is told {word:?}"));
        self.judge_what_is_told(word);
        let (is_lost, span) = self.plan.told[self.telling.words % 16];
        self.telling.words += 1;
        self.telling.under_way = Some(self.telling.words);
        self.due(now + span, Due::Told(self.telling.words, is_lost));
    }

    pub(crate) fn told(&mut self, number: usize, is_lost: bool) {
        if self.telling.under_way.take_if(|of| *of == number).is_none() {
            return;
        }
        if let (true, Some(record)) = (is_lost, self.tenure.health_record()) {
            record.was_lost();
            self.hear_that_it_was_lost();
        }
        self.tells_of_health();
    }

    pub(crate) fn announces(&mut self) {
        let record = self.tenure.health_record();
        let word = record.map(HealthRecord::announce).unwrap_or_default();
        self.judge_what_is_announced(word);
    }
}

/// Whether what the record is told is lost, and after how long that is known.
pub(super) fn told(seed: u64) -> Vec<(bool, Duration)> {
    let mut rng = Rng::with_seed(seed ^ 0x7E11_0000);
    let lost = one(&mut rng, &[0, 20, 60]);
    let mut one = || {
        let span = ms(one(&mut rng, &[0, 0, 1, 10, 300, 2000]));
        (rng.u8(0..100) < lost, span)
    };
    (0..16).map(|_| one()).collect()
}
