//! Who may take over a lock that is a chain of versions, and when: the lease that is observed.
//!
//! A shared drive grants nothing and counts no time. What it keeps is that of two who make one
//! version, one is told that it exists. So a lock is a chain V = 1, 2, 3 …, of which the greatest
//! counts, and taking over, renewing, draining and releasing are all the same act: make V + 1.
//!
//! ```text
//! holder     t0 ── make V ─── answered ······ deadlines count from t0 ······ kill_at ─ margin ─ t0+D
//! contender              └── sees V ── stamp ························· stamp+D: may make V+1
//! ```
//! The stamp is taken *after* V was seen, which was after V was made, which was after t0: whoever
//! waits for D from its own stamp comes after the end of the holder's lease, whatever their two
//! clocks say, as long as they run at the same pace (the margin takes what drift there is).
//! A stale view costs an answer "it exists" and a walk forward, never an overlap.
//!
//! Called by the store of shared drives, which does what [`Observed::next`] says. Pure. What must
//! never happen here: a take-over before the stamp is a whole lease old; a version without a
//! readable record taken for released; an answer "it exists" taken for a success.

use std::time::Duration;

use super::budget::DRIFT;
use crate::clock::Instant;

/// The number of a version. The first that anybody makes is 1; 0 comes with the chain, and is nobody's.
pub type Version = u64;

/// The shortest lease of a chain: two attempts to renew have to fit in.
pub const SHORTEST_LEASE: Duration = Duration::from_secs(10);

/// The longest lease of a chain. A version whose record cannot be read is held for as long: its
/// maker may have any lease, and a record that says more was not written by us.
pub const LONGEST_LEASE: Duration = Duration::from_secs(60);

/// What the record of a version says that others' decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who made it: a random number, another one for each tenure.
    pub nonce: u128,
    /// The lease of its maker, counted from before it was made.
    pub lease: Duration,
    /// Its maker has nothing any more: the next version may be made at once.
    pub released: bool,
}

/// What a contender may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Make this version: if that is answered, the lock is ours.
    Make(Version),
    /// Look again; if nothing is made meanwhile, this is when the lock may be had.
    Wait(Instant),
    /// There is no number after the greatest.
    Exhausted,
}

/// What it means to a holder that the version it was to make exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exists {
    /// It is ours: an earlier answer was lost. Its lease counts from an attempt that is long past,
    /// so make the next one.
    Ours,
    /// It is another's.
    Lost,
    /// Its record cannot be read, and by now another can have made it.
    Unknown,
}

/// A version, as it was seen first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    version: Version,
    // Our clock, after it was seen: so it comes after the t0 of whoever made it, whatever clock that
    // one goes by.
    stamp: Instant,
    claim: Option<Claim>,
}

/// The last version that is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Own {
    version: Version,
    // Just before the request was sent that made the last version of which the answer came.
    t0: Instant,
}

/// What one instance knows of a chain.
#[derive(Clone, Debug)]
pub struct Observed {
    nonce: u128,
    lease: Duration,
    seen: Option<Seen>,
    own: Option<Own>,
}

impl Observed {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(nonce: u128, lease: Duration) -> Observed {
        Observed {
            nonce,
            lease,
            seen: None,
            own: None,
        }
    }

    /// The claim of a version that we make.
    #[must_use]
    pub fn claim(&self, released: bool) -> Claim {
        Claim {
            nonce: self.nonce,
            lease: self.lease,
            released,
        }
    }

    /// The greatest version known; 0: none.
    #[must_use]
    pub fn version(&self) -> Version {
        let own = self.own.map_or(0, |own| own.version);
        own.max(self.seen.map_or(0, |seen| seen.version))
    }

    /// The last version that is ours.
    #[must_use]
    pub fn own(&self) -> Option<Version> {
        self.own.map(|own| own.version)
    }

    /// Just before the request was sent that made the last version of ours whose answer came.
    #[must_use]
    pub fn t0(&self) -> Option<Instant> {
        self.own.map(|own| own.t0)
    }

    /// This version was seen, with this record if it could be read; `now` was read after that.
    pub fn saw(&mut self, version: Version, claim: Option<Claim>, now: Instant) {
        // Of what nobody wrote nothing is believed: a lease of no time would let everybody in, one of a
        // year nobody, and `released` from the same hand is worth no more.
        let claim = claim.filter(|claim| (SHORTEST_LEASE..=LONGEST_LEASE).contains(&claim.lease));
        match &mut self.seen {
            _ if version == 0 => {}
            // A stale view, of a cache or another server of the same share.
            Some(seen) if version < seen.version => {}
            // Its stamp stays: its holder has not said anything since. Its record may come late, but
            // does not change: it is written once.
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

    /// As which this instance was seen before, on this boot of this machine: by a process of ours
    /// that has ended. It counts only while that version is still the greatest.
    pub fn remember(&mut self, version: Version, stamp: Instant) {
        // Without this, ten machines that look once a minute (`-n`) would never take over from a dead
        // holder: none of their processes lives for a whole lease.
        if let Some(seen) = &mut self.seen
            && seen.version == version
        {
            seen.stamp = seen.stamp.min(stamp);
        }
    }

    /// The version seen last, and since when.
    #[must_use]
    pub fn seen(&self) -> Option<(Version, Instant)> {
        self.seen.map(|seen| (seen.version, seen.stamp))
    }

    /// What a contender may do at `now`.
    #[must_use]
    pub fn next(&self, now: Instant) -> Next {
        let after = |version: Version| version.checked_add(1).map_or(Next::Exhausted, Next::Make);
        let ahead = |own: &Own| self.seen.is_none_or(|seen| seen.version <= own.version);
        if let Some(own) = self.own.filter(ahead) {
            // An attempt of ours succeeded that nobody waited for any more; nothing runs under it.
            return after(own.version);
        }
        let Some(seen) = self.seen else {
            return Next::Make(1);
        };
        // By the maker's own lease, which may be longer than ours.
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

    /// We made this version; `t0` was read just before the request was sent.
    pub fn made(&mut self, version: Version, t0: Instant) {
        self.own = Some(Own { version, t0 });
    }

    /// The version after our last, which we were to make, exists, with this record if it could be
    /// read; without one it must be known that no operator has made it, to break our lease. `now` was read
    /// after that.
    pub fn exists(&mut self, version: Version, claim: Option<Claim>, now: Instant) -> Exists {
        // Of a contender: somebody was faster.
        let Some(own) = self.own else {
            self.saw(version, claim, now);
            return Exists::Lost;
        };
        let ours = match claim {
            Some(claim) => claim.nonce == self.nonce,
            // Before our lease is over no contender can have made it. Counted from the last answer,
            // and not from the attempt that made it: others may have seen that long ago.
            None if now < own.t0 + (self.lease - self.lease / DRIFT) => true,
            None => return Exists::Unknown,
        };
        if ours {
            // With the t0 of before: the attempt whose answer was lost may have made it long ago, and
            // others count from when they saw it. Counting from now overlaps (found by search).
            self.own = Some(Own { version, ..own });
            return Exists::Ours;
        }
        self.own = None;
        self.saw(version, claim, now);
        Exists::Lost
    }

    /// The version before the one we made is not there: our view was older than what is kept, and
    /// nothing we have seen or made counts.
    pub fn is_ancient(&mut self) {
        self.own = None;
        self.seen = None;
    }

    /// Our last version says that the lock is free: nothing is ours any more. `nonce`: that of the
    /// next tenure.
    pub fn released(&mut self, nonce: u128, now: Instant) {
        self.end(self.claim(true), nonce, now);
    }

    /// What we have is left to run out: it is waited for like anybody's. `nonce`: that of the next
    /// tenure.
    pub fn renounce(&mut self, nonce: u128, now: Instant) {
        self.end(self.claim(false), nonce, now);
    }

    fn end(&mut self, claim: Claim, nonce: u128, now: Instant) {
        // Another nonce, so that a record of the tenure that has ended, read late, is not taken for
        // our own in the next.
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
    fn an_empty_chain_begins_at_one_and_a_released_version_is_followed_at_once() {
        let mut chain = Observed::new(1, D);
        assert_eq!(chain.next(at(0)), Next::Make(1));
        chain.saw(7, released(2), at(0));
        assert_eq!(chain.next(at(0)), Next::Make(8));
    }

    #[test]
    fn a_held_version_is_waited_for_by_its_own_lease_and_every_new_one_anew() {
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
    fn a_version_without_a_record_is_held_for_the_longest_lease_and_a_late_record_counts() {
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
    fn a_claim_that_nobody_wrote_is_none() {
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
    fn the_greatest_number_is_the_end() {
        let mut chain = Observed::new(1, D);
        chain.saw(Version::MAX, released(2), at(0));
        assert_eq!(chain.next(at(0)), Next::Exhausted);
    }

    #[test]
    fn what_exists_is_ours_by_its_nonce_or_while_nobody_else_can_have_made_it() {
        let mut chain = Observed::new(1, D);
        chain.made(7, at(0));
        assert_eq!(chain.exists(8, None, at(14_699)), Exists::Ours);
        assert_eq!(chain.own(), Some(8));
        // Still counted from the last answer.
        assert_eq!(chain.exists(9, None, at(14_700)), Exists::Unknown);
        assert_eq!(chain.exists(9, held(1), at(99_000)), Exists::Ours);
        assert_eq!(chain.exists(10, held(2), at(1)), Exists::Lost);
        assert_eq!(chain.own(), None);
        assert_eq!(chain.next(at(1)), Next::Wait(at(15_001)));
    }

    #[test]
    fn what_an_abandoned_attempt_obtained_is_followed_at_once_and_what_was_renounced_is_not() {
        let mut chain = Observed::new(1, D);
        chain.made(7, at(0));
        assert_eq!(chain.next(at(1)), Next::Make(8));
        chain.renounce(3, at(2_000));
        assert_eq!(chain.next(at(2_000)), Next::Wait(at(17_000)));
        assert_eq!(chain.claim(false).nonce, 3);
        chain.made(8, at(17_000));
        chain.released(4, at(18_000));
        assert_eq!(chain.next(at(18_000)), Next::Make(9));
    }

    #[test]
    fn what_was_obtained_and_overtaken_is_not_followed() {
        let mut chain = Observed::new(1, D);
        chain.made(7, at(0));
        chain.saw(8, held(2), at(1));
        assert_eq!(chain.next(at(1)), Next::Wait(at(15_001)));
        assert_eq!(chain.next(at(15_001)), Next::Make(9));
    }

    #[test]
    fn an_ancient_view_is_forgotten() {
        let mut chain = Observed::new(1, D);
        chain.saw(7, held(2), at(0));
        chain.made(8, at(99_000));
        chain.is_ancient();
        assert_eq!((chain.version(), chain.own()), (0, None));
    }

    #[test]
    fn a_stamp_of_an_earlier_process_counts_for_the_version_it_was_taken_of() {
        let mut chain = Observed::new(1, D);
        chain.saw(7, held(2), at(20_000));
        chain.remember(6, at(0));
        assert_eq!(chain.next(at(20_000)), Next::Wait(at(35_000)));
        chain.remember(7, at(4_000));
        assert_eq!(chain.next(at(20_000)), Next::Make(8));
    }
}
