//! Reports of the command's health to the lock's record, as the driver makes them: one word after
//! another. Some writes are lost, and so are some answers.

use std::time::Duration;

use fastrand::Rng;
use trafficcop::Instant;
use trafficcop_core::{HealthEvent, HealthRecord, Tenure};

use super::plan::{Plan, ms, one};
use super::world::{Due, World};

#[derive(Default)]
pub(crate) struct Telling {
    under_way: Option<usize>,
    words: usize,
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

pub(super) fn told(seed: u64) -> Vec<(bool, Duration)> {
    let mut rng = Rng::with_seed(seed ^ 0x7E11_0000);
    let lost = one(&mut rng, &[0, 20, 60]);
    let mut one = || {
        let span = ms(one(&mut rng, &[0, 0, 1, 10, 300, 2000]));
        (rng.u8(0..100) < lost, span)
    };
    (0..16).map(|_| one()).collect()
}
