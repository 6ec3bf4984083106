//! Truths independent of the instance's knowledge: no other gets control while its command lives,
//! and a command runs in the end.

use crate::alone::plan::{ms, secs};
use crate::alone::world::World;

impl World {
    pub(crate) fn judge_protection(&mut self) {
        let Some(tree) = &self.tree else { return };
        let ours = self.lock.holder == tree.id && self.lock.keeps_out(self.now);
        if ours {
            return;
        }
        self.ledger.overlapped = true;
        if self.stuck {
            return;
        }
        let told = self
            .ledger
            .held
            .as_ref()
            .is_some_and(|held| held.safe_until.is_some());
        // An operator broke it, which the instance does not know yet.
        let told_since = |broken| told && broken <= self.ledger.told_at;
        let knew = self.ledger.broken.is_none_or(told_since);
        let lately = self.now <= self.ledger.told_at.max(self.resumed) + ms(500);
        if knew && (self.ledger.broken.is_none() || !lately && !self.paused) {
            self.violate("a command lives, and others are not kept out");
        }
    }

    pub(crate) fn judge_birth(&mut self) {
        self.judge_protection();
    }

    /// Judges whether, after a long quiet time, an instance is in control or has a reason not to
    /// be.
    pub(crate) fn judge_liveness(&mut self) {
        if let Some(drive) = &self.drive
            && self.waits_for_a_process()
            && drive.tenures_before == self.tenures
        {
            return self.violate("an instance that looks once never takes a free lock");
        }
        if self.over || self.ledger.cordon.is_some() {
            return;
        }
        let lately = self.now - self.ledger.bound(&self.plan) - secs(60);
        if self.ledger.controlled_at < lately && self.ledger.run.is_none() {
            self.violate("no instance is in control although it is quiet");
        }
    }
}
