//! The doorbell as a standby hears it: which looks at the lock it moves, and when it is not believed.
//!
//! Called by the states that wait. Whoever rings moves a look forward and nothing else: the store
//! alone says who has control. So everything here is about cost: how many looks a ring, a herd of
//! standbys or a liar may cause.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use super::HolderInfo;
use super::retry::Jitter;
use crate::clock::Instant;

/// From one standby's look to the next one's. Fifty would ask at one moment else, of which
/// forty-nine in vain.
const APART: Duration = Duration::from_millis(5);

/// From one look to the next, however often it rings.
const GAP: Duration = Duration::from_millis(100);

/// So many rings without a change of the holder are nobody's hand-over: a holder rings twice (it
/// drains, it has released) and its connection may break now and then.
const MOST_RINGS: u32 = 10;

/// How long a bell is not listened to that rang so often.
const DEAF: Duration = Duration::from_secs(60);

/// While the bell lives it says in time what a poll would find, so that the polls are there for
/// what nobody rings for: a lease that was broken by hand. Not where [`HolderInfo::polls_as_ever`] says otherwise.
const SELDOM: Duration = Duration::from_secs(12);

/// How often those look who were first at the bell, after its holder has vanished: its guardian may
/// still be ending the command, and rings no bell. Four are enough to lose three of them.
const FIRST: u32 = 0;
const NEXT: u32 = 3;
const NEXT_PACE: Duration = Duration::from_millis(250);

/// Where a holder can be heard. Nothing in it is secret: it tells the holder from a stranger who
/// listens at its address later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bell {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it greets with.
    pub nonce: u128,
}

impl Bell {
    /// Whether it may be connected to: a record can be written by whoever may write the lock, and
    /// nobody is to be sent to strangers by it.
    #[must_use]
    pub fn is_near(&self) -> bool {
        is_near(self.address.ip())
    }
}

/// Whether it is an address of this machine, of its wire, or of a private network.
#[must_use]
pub fn is_near(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

impl fmt::Display for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:032x}", self.address, self.nonce)
    }
}

/// What stands in a record for a bell cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a doorbell: ADDRESS:PORT and 32 hexadecimal digits")]
pub struct NoBell;

impl FromStr for Bell {
    type Err = NoBell;

    fn from_str(text: &str) -> Result<Bell, NoBell> {
        let (address, nonce) = text.split_once(' ').ok_or(NoBell)?;
        let digits = nonce.len() == 32 && nonce.bytes().all(|b| b.is_ascii_hexdigit());
        let nonce = digits.then(|| u128::from_str_radix(nonce, 16).ok());
        Ok(Bell {
            address: address.parse().map_err(|_| NoBell)?,
            nonce: nonce.flatten().ok_or(NoBell)?,
        })
    }
}

/// What is heard of a bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// It has greeted us, and is heard from now on; so many came before us.
    Greeted {
        /// From 0.
        rank: u32,
    },
    /// The holder drains.
    Draining,
    /// The holder has given the lease back, and the store has said so.
    Released,
    /// The connection ended without that.
    Closed,
    /// Nobody answers there, or no longer, or it is somebody else.
    Silent,
}

impl Ring {
    /// Whether the bell is heard after this.
    #[must_use]
    pub fn is_alive(self) -> bool {
        matches!(self, Ring::Greeted { .. } | Ring::Draining)
    }
}

/// What a standby knows of its holder's bell.
#[derive(Clone, Debug, Default)]
pub(super) struct Doorbell {
    /// The one that is listened to, or tried.
    bell: Option<Bell>,
    /// It lives, and so many are before us.
    rank: Option<u32>,
    /// A bell that lives does not replace the polls ([`HolderInfo::polls_as_ever`]).
    polls_as_ever: bool,
    /// How often it has rung for this holder.
    rings: u32,
    /// Until when it is not believed.
    deaf_until: Option<Instant>,
    /// When a look was begun last.
    looked: Option<Instant>,
    /// When a look is wanted earlier than the polls have planned it.
    look_at: Option<Instant>,
    /// This bell has ended once without a release. Another program may answer at its address by now, with the nonce
    /// from the record: it moves looks forward and never spaces them.
    ended: bool,
    /// The holder has vanished: until when, and how often, it is looked whether its guardian is done.
    hurry: Option<(Instant, Duration)>,
}

/// What is to be done about a bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attend {
    /// As it is.
    Same,
    /// Listen to this one (again), and to no other; `None`: to none.
    To(Option<Bell>),
}

impl Doorbell {
    /// A look begins: what rang before it has been followed.
    pub(super) fn looks(&mut self, now: Instant) {
        self.looked = Some(now);
        self.look_at = None;
    }

    /// A look found this holder's bell.
    pub(super) fn finds(&mut self, now: Instant, holder: &HolderInfo) -> Attend {
        let bell = holder.bell.as_deref().copied().filter(Bell::is_near);
        self.polls_as_ever = holder.polls_as_ever;
        if bell != self.bell {
            // Another holder: what was said by the last one is no longer true.
            *self = Doorbell {
                bell,
                polls_as_ever: self.polls_as_ever,
                looked: self.looked,
                ..Doorbell::default()
            };
            return Attend::To(bell);
        }
        match self.deaf_until {
            Some(until) if now < until => return Attend::Same,
            Some(_) => {
                self.deaf_until = None;
                self.rings = 0;
            }
            None => {}
        }
        match bell {
            // It is tried again at each look, until it greets: a holder listens only after it has
            // written its record.
            Some(_) if self.rank.is_none() => Attend::To(bell),
            _ => Attend::Same,
        }
    }

    /// The bell was heard. A vanished holder's guardian may need `grace` to end its command; `poll` is
    /// how long a standby waits that hears nothing.
    pub(super) fn rang(
        &mut self,
        now: Instant,
        ring: Ring,
        grace: Duration,
        poll: Duration,
    ) -> Attend {
        if let Ring::Greeted { rank } = ring {
            self.rank = Some(rank);
            // It lives after all.
            self.hurry = None;
            return Attend::Same;
        }
        // Who has not greeted is no holder, and one that is not listened to has not.
        let Some(rank) = self.rank else {
            return Attend::Same;
        };
        self.ended |= matches!(ring, Ring::Silent | Ring::Closed);
        if ring == Ring::Silent {
            self.falls_silent(now, poll);
            return Attend::Same;
        }
        self.rings += 1;
        if self.rings > MOST_RINGS {
            self.deaf_until = Some(now + DEAF);
            self.ended = true;
            self.look_at = None;
            self.falls_silent(now, poll);
            return Attend::To(None);
        }
        // Its connection ends with either. Who took the lease back may take it again, with the same bell.
        if ring != Ring::Draining {
            self.rank = None;
        }
        if ring == Ring::Closed {
            let pace = match rank {
                FIRST => Some(GAP),
                1..=NEXT => Some(NEXT_PACE),
                _ => None,
            };
            self.hurry = pace.map(|pace| (now + grace, pace));
        }
        let earliest = match (ring, self.looked) {
            // It is free, and each holder says so once.
            (Ring::Released, _) | (_, None) => now,
            (_, Some(looked)) => now.max(looked + GAP),
        };
        self.want(earliest + APART * rank);
        Attend::Same
    }

    /// The next look was planned for one who hears: it comes with the polls again.
    fn falls_silent(&mut self, now: Instant, poll: Duration) {
        self.rank = None;
        self.want(now + poll);
    }

    fn want(&mut self, at: Instant) {
        self.look_at = Some(self.look_at.map_or(at, |before| before.min(at)));
    }

    /// When a look is wanted earlier than it was planned; `FOREVER`: none is.
    pub(super) fn look_at(&self) -> Instant {
        self.look_at.unwrap_or(Instant::FOREVER)
    }

    /// From a look that found another in control to the next, where that is not up to `--poll`.
    pub(super) fn interval(
        &self,
        now: Instant,
        poll: Duration,
        jitter: &mut Jitter,
    ) -> Option<Duration> {
        if self.rank.is_some() && !self.polls_as_ever && !self.ended {
            return Some(jitter.spread(poll.max(SELDOM)));
        }
        let (until, pace) = self.hurry?;
        (now < until).then(|| pace.min(poll))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(30);
    const POLL: Duration = Duration::from_secs(2);

    fn bell(port: u16) -> Bell {
        Bell {
            address: ([10, 0, 0, 4], port).into(),
            nonce: 7,
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1000) + Duration::from_millis(millis)
    }

    fn holder(bell: Bell) -> HolderInfo {
        HolderInfo {
            bell: Some(Box::new(bell)),
            ..HolderInfo::default()
        }
    }

    /// A standby that has looked, found a bell and was greeted as the `rank`th.
    fn greeted(rank: u32) -> Doorbell {
        let mut doorbell = Doorbell::default();
        doorbell.looks(at(0));
        assert_eq!(
            doorbell.finds(at(0), &holder(bell(1))),
            Attend::To(Some(bell(1)))
        );
        doorbell.rang(at(0), Ring::Greeted { rank }, GRACE, POLL);
        doorbell
    }

    #[test]
    fn a_bell_is_written_and_read_and_nothing_else_is_one() {
        for address in ["10.1.2.3:4711", "[fd00::1]:80"] {
            let bell = Bell {
                address: address.parse().expect("an address"),
                nonce: u128::MAX - 5,
            };
            assert_eq!(bell.to_string().parse(), Ok(bell));
        }
        for text in [
            "",
            "10.0.0.1:1",
            "10.0.0.1 0",
            "10.0.0.1:1 xyz",
            "host:1 00",
        ] {
            assert_eq!(text.parse::<Bell>(), Err(NoBell), "{text}");
        }
        let signed = format!("10.0.0.1:1 +{:031x}", 5);
        assert_eq!(signed.parse::<Bell>(), Err(NoBell));
    }

    #[test]
    fn only_what_is_near_is_rung_at() {
        for (address, near) in [
            ("127.0.0.1:1", true),
            ("10.255.0.1:1", true),
            ("172.16.0.1:1", true),
            ("172.32.0.1:1", false),
            ("192.168.0.1:1", true),
            ("169.254.1.1:1", true),
            ("8.8.8.8:1", false),
            ("[::1]:1", true),
            ("[fe80::1]:1", true),
            ("[fd12::1]:1", true),
            ("[2001:db8::1]:1", false),
            ("[::ffff:10.0.0.1]:1", true),
            ("[::ffff:8.8.8.8]:1", false),
            ("0.0.0.0:1", false),
        ] {
            let bell = Bell {
                address: address.parse().expect("an address"),
                nonce: 0,
            };
            assert_eq!(bell.is_near(), near, "{address}");
            let attended = Doorbell::default().finds(at(0), &holder(bell));
            assert_eq!(attended != Attend::Same, near, "{address}");
        }
    }

    #[test]
    fn a_release_moves_the_look_and_each_standby_s_by_its_rank() {
        for rank in [0, 1, 40] {
            let mut doorbell = greeted(rank);
            assert_eq!(doorbell.look_at(), Instant::FOREVER);
            doorbell.rang(at(5000), Ring::Released, GRACE, POLL);
            assert_eq!(doorbell.look_at(), at(5000) + APART * rank);
            doorbell.looks(at(5000));
            assert_eq!(doorbell.look_at(), Instant::FOREVER);
        }
    }

    #[test]
    fn after_a_release_polls_are_as_ever_until_a_bell_is_heard_again_be_it_the_same() {
        let mut jitter = Jitter::new(1);
        let mut doorbell = greeted(0);
        doorbell.rang(at(5000), Ring::Released, GRACE, POLL);
        doorbell.looks(at(5000));
        // Still its record, or again.
        assert_eq!(
            doorbell.finds(at(5001), &holder(bell(1))),
            Attend::To(Some(bell(1)))
        );
        assert_eq!(doorbell.interval(at(5001), POLL, &mut jitter), None);
        doorbell.rang(at(5002), Ring::Greeted { rank: 0 }, GRACE, POLL);
        assert!(doorbell.interval(at(5002), POLL, &mut jitter) >= Some(SELDOM * 4 / 5));
    }

    #[test]
    fn looks_that_are_rung_for_keep_their_gap() {
        let mut doorbell = greeted(0);
        doorbell.looks(at(5000));
        doorbell.rang(at(5001), Ring::Draining, GRACE, POLL);
        assert_eq!(doorbell.look_at(), at(5100));
        doorbell.rang(at(5040), Ring::Draining, GRACE, POLL);
        assert_eq!(doorbell.look_at(), at(5100));
        // It waits for nothing when it is free.
        doorbell.rang(at(5050), Ring::Released, GRACE, POLL);
        assert_eq!(doorbell.look_at(), at(5050));
    }

    #[test]
    fn a_bell_that_rings_without_end_costs_ten_looks_and_is_not_heard_for_a_minute() {
        let mut doorbell = greeted(0);
        let (mut now, mut looks, mut deaf) = (at(1000), 0, None);
        for _ in 0..100_000 {
            now = now + Duration::from_millis(1);
            let tired = doorbell.rang(now, Ring::Draining, GRACE, POLL);
            if tired == Attend::To(None) {
                deaf = Some(now);
            }
            if now >= doorbell.look_at() {
                looks += 1;
                doorbell.looks(now);
                doorbell.finds(now, &holder(bell(1)));
            }
        }
        assert!(looks <= 10, "{looks}");
        let deaf = deaf.expect("deaf");
        assert_eq!(
            doorbell.finds(deaf + Duration::from_secs(59), &holder(bell(1))),
            Attend::Same
        );
        let later = deaf + DEAF;
        assert_eq!(
            doorbell.finds(later, &holder(bell(1))),
            Attend::To(Some(bell(1)))
        );
    }

    #[test]
    fn a_change_of_the_holder_is_worth_ten_more_rings() {
        let mut doorbell = greeted(0);
        for n in 0..MOST_RINGS {
            let heard = doorbell.rang(at(1000 * u64::from(n)), Ring::Draining, GRACE, POLL);
            assert_eq!(heard, Attend::Same);
        }
        assert_eq!(
            doorbell.finds(at(20_000), &holder(bell(2))),
            Attend::To(Some(bell(2)))
        );
        doorbell.rang(at(20_001), Ring::Greeted { rank: 0 }, GRACE, POLL);
        let heard = doorbell.rang(at(21_000), Ring::Draining, GRACE, POLL);
        assert_eq!(heard, Attend::Same);
        assert_ne!(doorbell.look_at(), Instant::FOREVER);
    }

    #[test]
    fn after_its_holder_has_vanished_the_first_look_often_for_a_grace() {
        let mut jitter = Jitter::new(1);
        for (rank, pace) in [(0, Some(100)), (1, Some(250)), (3, Some(250)), (4, None)] {
            let mut doorbell = greeted(rank);
            doorbell.rang(at(5000), Ring::Closed, GRACE, POLL);
            assert_eq!(doorbell.look_at(), at(5000) + APART * rank);
            doorbell.looks(doorbell.look_at());
            let pace = pace.map(Duration::from_millis);
            assert_eq!(
                doorbell.interval(at(5100), POLL, &mut jitter),
                pace,
                "{rank}"
            );
            assert_eq!(doorbell.interval(at(35_000), POLL, &mut jitter), None);
        }
    }

    #[test]
    fn bell_that_ended_without_a_release_spaces_no_looks_when_it_greets_again() {
        let mut jitter = Jitter::new(1);
        let mut doorbell = greeted(0);
        doorbell.rang(at(5000), Ring::Closed, GRACE, POLL);
        doorbell.looks(at(5000));
        assert_eq!(
            doorbell.finds(at(5001), &holder(bell(1))),
            Attend::To(Some(bell(1)))
        );
        doorbell.rang(at(5002), Ring::Greeted { rank: 0 }, GRACE, POLL);
        assert_eq!(doorbell.interval(at(5002), POLL, &mut jitter), None);
        assert_eq!(doorbell.look_at(), Instant::FOREVER);
        // It moves looks forward as before, and the bell of another holder spaces them again.
        doorbell.rang(at(6000), Ring::Draining, GRACE, POLL);
        assert_eq!(doorbell.look_at(), at(6000));
        doorbell.finds(at(6001), &holder(bell(2)));
        doorbell.rang(at(6002), Ring::Greeted { rank: 0 }, GRACE, POLL);
        assert!(doorbell.interval(at(6002), POLL, &mut jitter) >= Some(SELDOM * 4 / 5));
    }

    #[test]
    fn while_the_bell_lives_polls_are_seldom_and_as_ever_when_it_is_silent() {
        let mut jitter = Jitter::new(1);
        let mut doorbell = greeted(9);
        let interval = doorbell.interval(at(0), POLL, &mut jitter).expect("lives");
        assert!(interval >= SELDOM * 4 / 5 && interval <= SELDOM * 6 / 5);
        let minute = Duration::from_secs(60);
        let interval = doorbell
            .interval(at(0), minute, &mut jitter)
            .expect("lives");
        assert!(interval >= minute * 4 / 5, "who polls seldom goes on so");
        doorbell.rang(at(9000), Ring::Silent, GRACE, POLL);
        assert_eq!(doorbell.interval(at(9000), POLL, &mut jitter), None);
        assert_eq!(doorbell.look_at(), at(9000) + POLL, "and not only then");
    }

    #[test]
    fn a_bell_that_is_heard_spaces_no_looks_where_polls_go_on_and_is_followed() {
        let mut jitter = Jitter::new(1);
        let mut doorbell = greeted(0);
        let one = HolderInfo {
            polls_as_ever: true,
            ..holder(bell(1))
        };
        assert_eq!(doorbell.finds(at(1), &one), Attend::Same);
        assert_eq!(doorbell.interval(at(1), POLL, &mut jitter), None);
        doorbell.rang(at(5000), Ring::Released, GRACE, POLL);
        assert_eq!(doorbell.look_at(), at(5000));
    }

    #[test]
    fn nobody_is_heard_who_has_not_greeted() {
        let mut doorbell = Doorbell::default();
        doorbell.rang(at(0), Ring::Released, GRACE, POLL);
        doorbell.finds(at(0), &holder(bell(1)));
        for ring in [Ring::Draining, Ring::Released, Ring::Closed] {
            doorbell.rang(at(1), ring, GRACE, POLL);
        }
        assert_eq!(doorbell.look_at(), Instant::FOREVER);
    }
}
