//! When a lock on a shared drive may be taken: at once if its last version says that it is free;
//! otherwise one lease of its maker after a process of this machine first saw it, and not before.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::observed::{Claim, Exists, Next, Version};

use crate::alone::plan::secs;
use crate::alone::world::World;

const LONGEST: Duration = secs(60);

/// The chain as seen, and the instance's part of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    views: Vec<(Version, Option<Claim>, Instant)>,
    /// The instance's last version, and the sending time of the last answered request for it.
    own: Option<(Version, Instant)>,
}

impl Chain {
    pub(crate) fn saw(&mut self, version: Version, claim: Option<Claim>, now: Instant) {
        // A foreign record is not believed.
        let claim = claim.filter(|claim| (secs(10)..=LONGEST).contains(&claim.lease));
        if version > 0 && version >= self.greatest() {
            self.views.push((version, claim, now));
        }
    }

    /// Notes that an earlier process of this machine saw a version then.
    pub(crate) fn remembers(&mut self, version: Version, at: Instant) {
        if version > 0 && version == self.greatest() {
            self.views.push((version, None, at));
        }
    }

    pub(crate) fn made(&mut self, version: Version, t0: Instant) {
        self.own = Some((version, t0));
    }

    pub(crate) fn reset_stale_view(&mut self) {
        (self.own, self.views) = (None, Vec::new());
    }

    pub(crate) fn ends(&mut self, lease: Duration, released: bool, now: Instant) {
        let claim = Claim {
            nonce: 0,
            lease,
            released,
        };
        if let Some((version, _)) = self.own.take() {
            self.saw(version, Some(claim), now);
        }
    }

    fn greatest(&self) -> Version {
        let all = self.views.iter().map(|(version, ..)| *version);
        all.max().unwrap_or(0)
    }

    fn stamp(&self) -> Option<Instant> {
        let greatest = self.greatest();
        let of = self
            .views
            .iter()
            .filter(|(version, ..)| *version == greatest);
        of.map(|(_, _, at)| *at).min()
    }

    fn next(&self, now: Instant) -> Next {
        let greatest = self.greatest();
        if let Some((own, _)) = self.own.filter(|(own, _)| *own >= greatest) {
            return Next::Make(own + 1);
        }
        let mut of = self
            .views
            .iter()
            .filter(|(version, ..)| *version == greatest);
        let claim = of.find_map(|(_, claim, _)| *claim);
        let due = self.stamp().map_or(now, |stamp| match claim {
            Some(claim) if claim.released => now,
            claim => stamp + claim.map_or(LONGEST, |claim| claim.lease),
        });
        match now < due {
            true => Next::Wait(due),
            false => Next::Make(greatest + 1),
        }
    }
}

impl World {
    pub(crate) fn judge_next(&mut self, next: Next) {
        let expected = self.ledger.chain.next(self.now);
        match (next, expected) {
            _ if next == expected => {}
            (_, Next::Make(_)) => self.violate(format!("what is free is not taken: {next:?}")),
            _ => self.violate(format!(
                "it would take what is not free: {next:?} instead of {expected:?}"
            )),
        }
        self.judge_chain();
    }

    pub(crate) fn judge_chain(&mut self) {
        let chain = &self.ledger.chain;
        let (own, greatest) = (chain.own.map(|(own, _)| own), chain.greatest());
        let seen = chain.stamp().map(|stamp| (greatest, stamp));
        let Some(drive) = &self.drive else { return };
        let observed = &drive.observed;
        let known = observed.version() == own.unwrap_or(0).max(greatest);
        if !known || observed.own() != own || observed.seen() != seen {
            self.violate(format!(
                "it does not know what it saw, or has: {observed:?}, and {seen:?}, {own:?}"
            ));
        }
    }

    pub(crate) fn judge_existing(&mut self, version: Version, claim: Option<Claim>, is: Exists) {
        let now = self.now;
        let lease = self.plan.rules.budget.map_or(Duration::ZERO, |b| b.lease);
        let nonce = self
            .drive
            .as_ref()
            .map(|drive| drive.observed.claim(false).nonce);
        let t0 = self.ledger.chain.own.map_or(Instant::ZERO, |(_, t0)| t0);
        // Before the end of its lease only this instance can have made it.
        let alone = now < t0 + (lease - lease / 50);
        let expected = match claim {
            Some(claim) if Some(claim.nonce) == nonce => Exists::Ours,
            Some(_) => Exists::Lost,
            None if alone => Exists::Ours,
            None => Exists::Unknown,
        };
        match expected {
            Exists::Ours => self.ledger.chain.own = Some((version, t0)),
            Exists::Lost => {
                self.ledger.chain.own = None;
                self.ledger.chain.saw(version, claim, now);
            }
            Exists::Unknown => {}
        }
        if is != expected {
            self.violate(format!(
                "version {version} exists: {is:?} instead of {expected:?}"
            ));
        }
        self.judge_chain();
    }
}
