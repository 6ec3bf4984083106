//! The command's health in the lock's record: the latest word, written at once and repeated until
//! confirmed, no more often than the command is checked, and only while the lease stays.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{Event, WorkloadEvent};

use crate::alone::record::words;
use crate::alone::world::World;

#[derive(Clone, Debug)]
pub(super) struct Record {
    word: String,
    /// Content of the record, if it is known.
    says: Option<String>,
    told: Option<Instant>,
}

impl Record {
    pub(super) fn new() -> Record {
        Record {
            word: String::new(),
            says: Some(String::new()),
            told: None,
        }
    }
}

impl World {
    pub(super) fn hear_of_health(&mut self, event: &Event) {
        let record = &mut self.ledger.health;
        match event {
            // The last word was about another command.
            Event::Workload(WorkloadEvent::Started { .. }) => record.word.clear(),
            Event::Workload(WorkloadEvent::Health(heard)) => {
                if let Some(word) = words(heard) {
                    record.word = word;
                }
            }
            _ => {}
        }
    }

    pub(crate) fn hear_that_it_was_lost(&mut self) {
        self.ledger.health.says = None;
    }

    /// Returns the interval of the checks, or of the heartbeats.
    fn is_told_every(&self) -> Option<Duration> {
        let asks = self.plan.health.probe.map(|probe| probe.every);
        asks.or(self.plan.health.watchdog)
    }

    /// Whether the lease will stay, as known when the drain began.
    fn stays(&self) -> bool {
        let run = self.ledger.run.as_ref().filter(|_| !self.ledger.corpse);
        run.is_some_and(|run| !run.killed && (run.reason.is_none() || self.will_be_kept()))
    }

    pub(crate) fn judge_when_health_is_told(&mut self) {
        let (now, record) = (self.now, &self.ledger.health);
        let due = match self.is_told_every() {
            Some(every) if self.stays() && record.says.as_ref() != Some(&record.word) => {
                record.told.map_or(now, |told| told + every).max(now)
            }
            _ => Instant::FOREVER,
        };
        let is = self.tenure.health_due().max(now);
        if is != due {
            let late = if is > due { "late" } else { "soon" };
            self.violate(format!("the record is told too {late}: {record:?}"));
        }
    }

    pub(crate) fn judge_what_is_told(&mut self, word: Option<String>) {
        self.ledger.health.told = Some(self.now);
        self.judge_what_is_said(word);
    }

    pub(crate) fn judge_what_is_announced(&mut self, word: String) {
        self.judge_what_is_said(Some(word));
    }

    fn judge_what_is_said(&mut self, word: Option<String>) {
        let record = &mut self.ledger.health;
        record.says = word;
        if record.says.as_ref() != Some(&record.word) {
            let text = format!("another word of the command's health: {record:?}");
            self.violate(text);
        }
    }
}
