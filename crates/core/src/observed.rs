//! Observed lease: who may take over a lock that is a chain of versions, and when.
//!
//! A shared drive grants nothing and counts no time. But if two clients make one version, one of them
//! learns that it exists. So a lock is a chain of versions, of which the greatest counts. Each change of a
//! lease, its release included, makes the next one.
//!
//! ```text
//! holder     t0 ── make V ─── answered ······ deadlines count from t0 ······ kill_at ─ margin ─ t0+D
//! contender              └── sees V ── stamp ························· stamp+D: may make V+1
//! ```
//! The stamp is taken after V was seen, so after t0. A contender that waits for D from its stamp comes
//! after the holder's lease, if both clocks run at one pace (the margin covers drift). A stale view costs
//! an answer "it exists" and a walk forward, never an overlap.

use std::time::Duration;

use super::budget::DRIFT;
use crate::clock::Instant;

/// Number of a version; 0 comes with the chain.
pub type Version = u64;

/// Shortest lease of a chain: two attempts to renew must fit in.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(10);

/// Longest lease of a chain. A version without a readable record is held for as long: its maker may have
/// any lease.
pub const LONGEST_LEASE: Duration = Duration::from_secs(60);

/// Facts in a version's record on which other instances' decisions depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Random number of its maker's tenure.
    pub nonce: u128,
    /// Lease of its maker, counted from before it was made.
    pub lease: Duration,
    /// The maker has released the lock.
    pub released: bool,
}

/// Next act of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Make this version, which takes the lock.
    Make(Version),
    /// Look again; without a new version, the lock is available at this moment.
    Wait(Instant),
    /// No number is left.
    Exhausted,
}

/// Meaning for a holder of a version that exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exists {
    /// An earlier attempt made it, and the answer was lost. Its lease counts from long ago: make the next
    /// version.
    Ours,
    /// Another instance made it.
    Lost,
    /// Another instance may have made it: the record cannot be read.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    version: Version,
    stamp: Instant,
    claim: Option<Claim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Own {
    version: Version,
    // Moment just before the last answered request.
    t0: Instant,
}

/// Knowledge of one instance about a chain.
#[derive(Clone, Debug)]
pub struct Observed {
    nonce: u128,
    lease: Duration,
    seen: Option<Seen>,
    own: Option<Own>,
}

impl Observed {
    /// Starts without any knowledge.
    #[must_use]
    pub fn new(nonce: u128, lease: Duration) -> Observed {
        Observed {
            nonce,
            lease,
            seen: None,
            own: None,
        }
    }

    /// Returns the claim for a version that this instance makes.
    #[must_use]
    pub fn claim(&self, released: bool) -> Claim {
        Claim {
            nonce: self.nonce,
            lease: self.lease,
            released,
        }
    }

    /// Returns the greatest version known; 0: none.
    #[must_use]
    pub fn version(&self) -> Version {
        let own = self.own.map_or(0, |own| own.version);
        own.max(self.seen.map_or(0, |seen| seen.version))
    }

    /// Returns the last version that this instance made.
    #[must_use]
    pub fn own(&self) -> Option<Version> {
        self.own.map(|own| own.version)
    }

    /// Returns the moment just before the request for this instance's last answered version.
    #[must_use]
    pub fn t0(&self) -> Option<Instant> {
        self.own.map(|own| own.t0)
    }

    /// Takes a version that was seen, with its record if readable; `now` was read after that.
    pub fn saw(&mut self, version: Version, claim: Option<Claim>, now: Instant) {
        // A record out of range was not written by trafficcop. A lease of zero would let all instances in,
        // one of a year none, and `released` is worth no more.
        let claim = claim.filter(|claim| (SHORTEST_LEASE..=LONGEST_LEASE).contains(&claim.lease));
        match &mut self.seen {
            _ if version == 0 => {}
            // A stale view, of a cache or another server of the share.
            Some(seen) if version < seen.version => {}
            // The stamp stays: the holder has done nothing since.
            Some(seen) if version == seen.version => seen.claim = seen.claim.or(claim),
            seen => {
                *seen = Some(Seen {
                    version,
                    stamp: now,
                    claim,
                });
            }
        }
    }

    /// Takes the stamp at which an earlier process saw this version, on this boot of this machine.
    pub fn remember(&mut self, version: Version, stamp: Instant) {
        // Without this, `-n` once a minute would never take over from a dead holder.
        if let Some(seen) = &mut self.seen
            && seen.version == version
        {
            seen.stamp = seen.stamp.min(stamp);
        }
    }

    /// Returns the version seen last, and its stamp.
    #[must_use]
    pub fn seen(&self) -> Option<(Version, Instant)> {
        self.seen.map(|seen| (seen.version, seen.stamp))
    }

    /// Returns what a contender may do at `now`.
    #[must_use]
    pub fn next(&self, now: Instant) -> Next {
        let after = |version: Version| version.checked_add(1).map_or(Next::Exhausted, Next::Make);
        let ahead = |own: &Own| self.seen.is_none_or(|seen| seen.version <= own.version);
        if let Some(own) = self.own.filter(ahead) {
            // An abandoned attempt succeeded; nothing runs under it.
            return after(own.version);
        }
        let Some(seen) = self.seen else {
            return Next::Make(1);
        };
        let span = match seen.claim {
            Some(claim) if claim.released => return after(seen.version),
            Some(claim) => claim.lease,
            None => LONGEST_LEASE,
        };
        let due = seen.stamp + span;
        if now < due {
            return Next::Wait(due);
        }
        after(seen.version)
    }

    /// Takes a version that this instance made; `t0` was read just before the request.
    pub fn made(&mut self, version: Version, t0: Instant) {
        self.own = Some(Own { version, t0 });
    }

    /// Judges a version that this instance tried to make and that exists, with its record if readable.
    /// Without one, the caller must know that no operator made it to break the lease.
    pub fn exists(&mut self, version: Version, claim: Option<Claim>, now: Instant) -> Exists {
        let Some(own) = self.own else {
            self.saw(version, claim, now);
            return Exists::Lost;
        };
        let ours = match claim {
            Some(claim) => claim.nonce == self.nonce,
            // No contender can have made it before the lease is over. The lease counts from the last
            // answer: others may have seen this version long ago.
            None if now < own.t0 + (self.lease - self.lease / DRIFT) => true,
            None => return Exists::Unknown,
        };
        if ours {
            // Keep the t0: others count from when they saw the version. Counting from now overlaps (found
            // by search).
            self.own = Some(Own { version, ..own });
            return Exists::Ours;
        }
        self.own = None;
        self.saw(version, claim, now);
        Exists::Lost
    }

    /// Forgets everything: a version is missing, so the view was stale.
    pub fn reset_stale_view(&mut self) {
        self.own = None;
        self.seen = None;
    }

    /// Ends a tenure that released the lock; `nonce` is that of the next.
    pub fn released(&mut self, nonce: u128, now: Instant) {
        self.end(self.claim(true), nonce, now);
    }

    /// Ends a tenure whose lease runs out: this instance waits for that like all others.
    pub fn abandon(&mut self, nonce: u128, now: Instant) {
        self.end(self.claim(false), nonce, now);
    }

    fn end(&mut self, claim: Claim, nonce: u128, now: Instant) {
        // A new nonce: a late record of the ended tenure must not count for the next.
        if let Some(own) = self.own.take() {
            self.saw(own.version, Some(claim), now);
        }
        self.nonce = nonce;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Duration = Duration::from_secs(15);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1000) + Duration::from_millis(millis)
    }

    fn held(nonce: u128) -> Option<Claim> {
        Some(Claim {
            nonce,
            lease: D,
            released: false,
        })
    }

    fn released(nonce: u128) -> Option<Claim> {
        Some(Claim {
            released: true,
            ..held(nonce).unwrap()
        })
    }

    #[test]
    fn empty_chain_begins_at_one_and_a_released_version_is_followed_at_once() {
        let mut chain = Observed::new(1, D);
        assert_eq!(chain.next(at(0)), Next::Make(1));
        chain.saw(7, released(2), at(0));
        assert_eq!(chain.next(at(0)), Next::Make(8));
    }

    #[test]
    fn held_version_is_waited_for_by_its_own_lease_and_each_new_one_from_the_start() {
        let mut chain = Observed::new(1, LONGEST_LEASE);
        chain.saw(7, held(2), at(0));
        assert_eq!(chain.next(at(14_999)), Next::Wait(at(15_000)));
        assert_eq!(chain.next(at(15_000)), Next::Make(8));
        chain.saw(7, held(2), at(9_000));
        assert_eq!(chain.next(at(9_000)), Next::Wait(at(15_000)), "seen before");
        chain.saw(6, released(2), at(9_000));
        assert_eq!(chain.next(at(9_000)), Next::Wait(at(15_000)), "stale");
        chain.saw(8, held(2), at(10_000));
        assert_eq!(chain.next(at(15_000)), Next::Wait(at(25_000)));
    }

    #[test]
    fn version_without_a_record_is_held_for_the_longest_lease_and_a_late_record_counts() {
        let mut chain = Observed::new(1, D);
        chain.saw(7, None, at(0));
        assert_eq!(chain.next(at(59_999)), Next::Wait(at(60_000)));
        chain.saw(7, held(2), at(14_000));
        assert_eq!(chain.next(at(14_000)), Next::Wait(at(15_000)));
        let mut chain = Observed::new(1, D);
        chain.saw(7, None, at(0));
        chain.saw(7, released(2), at(1));
        assert_eq!(chain.next(at(1)), Next::Make(8));
    }

    #[test]
    fn claim_with_a_lease_out_of_range_is_ignored() {
        for lease in [Duration::ZERO, Duration::from_secs(9), Duration::MAX] {
            let mut chain = Observed::new(1, D);
            let hostile = Claim {
                nonce: 2,
                lease,
                released: true,
            };
            chain.saw(7, Some(hostile), at(0));
            assert_eq!(chain.next(at(0)), Next::Wait(at(60_000)), "{lease:?}");
        }
    }

    #[test]
    fn no_version_follows_the_greatest_number() {
        let mut chain = Observed::new(1, D);
        chain.saw(Version::MAX, released(2), at(0));
        assert_eq!(chain.next(at(0)), Next::Exhausted);
    }

    #[test]
    fn existing_version_is_own_by_its_nonce_or_while_no_other_instance_can_have_made_it() {
        let mut chain = Observed::new(1, D);
        chain.made(7, at(0));
        assert_eq!(chain.exists(8, None, at(14_699)), Exists::Ours);
        assert_eq!(chain.own(), Some(8));
        assert_eq!(chain.exists(9, None, at(14_700)), Exists::Unknown);
        assert_eq!(chain.exists(9, held(1), at(99_000)), Exists::Ours);
        assert_eq!(chain.exists(10, held(2), at(1)), Exists::Lost);
        assert_eq!(chain.own(), None);
        assert_eq!(chain.next(at(1)), Next::Wait(at(15_001)));
    }

    #[test]
    fn abandoned_attempt_is_followed_at_once_and_a_renounced_lease_is_not() {
        let mut chain = Observed::new(1, D);
        chain.made(7, at(0));
        assert_eq!(chain.next(at(1)), Next::Make(8));
        chain.abandon(3, at(2_000));
        assert_eq!(chain.next(at(2_000)), Next::Wait(at(17_000)));
        assert_eq!(chain.claim(false).nonce, 3);
        chain.made(8, at(17_000));
        chain.released(4, at(18_000));
        assert_eq!(chain.next(at(18_000)), Next::Make(9));
    }

    #[test]
    fn overtaken_version_is_not_followed() {
        let mut chain = Observed::new(1, D);
        chain.made(7, at(0));
        chain.saw(8, held(2), at(1));
        assert_eq!(chain.next(at(1)), Next::Wait(at(15_001)));
        assert_eq!(chain.next(at(15_001)), Next::Make(9));
    }

    #[test]
    fn ancient_view_is_forgotten() {
        let mut chain = Observed::new(1, D);
        chain.saw(7, held(2), at(0));
        chain.made(8, at(99_000));
        chain.reset_stale_view();
        assert_eq!((chain.version(), chain.own()), (0, None));
    }

    #[test]
    fn stamp_of_an_earlier_process_counts_only_for_its_version() {
        let mut chain = Observed::new(1, D);
        chain.saw(7, held(2), at(20_000));
        chain.remember(6, at(0));
        assert_eq!(chain.next(at(20_000)), Next::Wait(at(35_000)));
        chain.remember(7, at(4_000));
        assert_eq!(chain.next(at(20_000)), Next::Make(8));
    }
}
