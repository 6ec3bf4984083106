//! Doorbell of the holder, as a standby hears it.
//!
//! A ring only moves a look forward: the store alone says who has control. So this module limits cost: how
//! many looks a ring, a herd of standbys or a liar may cause.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use super::HolderInfo;
use super::retry::Jitter;
use crate::clock::Instant;

/// Time from one standby's look to the next one's: of fifty at one moment, forty-nine would be in vain.
const APART: Duration = Duration::from_millis(5);

/// Shortest time between two looks.
const GAP: Duration = Duration::from_millis(100);

/// Most rings of one holder: it drains, it has released, and its connection may break now and then.
const MOST_RINGS: u32 = 10;

/// Time for which a bell is ignored that rang more often.
const DEAF: Duration = Duration::from_secs(60);

/// Shortest poll while the bell lives. It reports in time what a poll would find, but for a lease that was
/// broken by hand.
const SELDOM: Duration = Duration::from_secs(12);

/// Ranks at the bell that look more often after the holder has vanished, while its guardian may still be
/// ending the command. Four standbys are enough to lose three of them.
const FIRST: u32 = 0;
const NEXT: u32 = 3;
const NEXT_PACE: Duration = Duration::from_millis(250);

/// Address at which a holder can be heard. Nothing in it is secret: the nonce tells the holder from a later
/// program at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bell {
    /// Address on which it listens.
    pub address: SocketAddr,
    /// Number that it greets with.
    pub nonce: u128,
}

impl Bell {
    /// Tells whether a standby may connect to it. A writer of the lock's record must not send standbys to
    /// strangers.
    #[must_use]
    pub fn is_near(&self) -> bool {
        is_near(self.address.ip())
    }
}

/// Tells whether an address is of this machine, its link or a private network.
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

/// Text that is no bell.
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

/// Message from a bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The bell greets, and is heard from now on.
    Greeted {
        /// Number of standbys that came before this one.
        rank: u32,
    },
    /// The holder drains.
    Draining,
    /// The holder has given the lease back, and the store has confirmed it.
    Released,
    /// The connection ended without a release.
    Closed,
    /// No program answers there, or another one.
    Silent,
}

impl Ring {
    /// Tells whether the bell is heard after this.
    #[must_use]
    pub fn is_alive(self) -> bool {
        matches!(self, Ring::Greeted { .. } | Ring::Draining)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Doorbell {
    bell: Option<Bell>,
    /// Rank at a bell that lives.
    rank: Option<u32>,
    polls_as_ever: bool,
    rings: u32,
    deaf_until: Option<Instant>,
    looked: Option<Instant>,
    look_at: Option<Instant>,
    /// The bell has ended without a release. Another program may answer there by now, with the nonce from
    /// the record, so the bell moves looks forward and never spaces them.
    ended: bool,
    /// End and pace of looks for the end of a vanished holder's guardian.
    hurry: Option<(Instant, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attend {
    Same,
    /// `None`: to none.
    To(Option<Bell>),
}

impl Doorbell {
    pub(super) fn looks(&mut self, now: Instant) {
        self.looked = Some(now);
        self.look_at = None;
    }

    pub(super) fn finds(&mut self, now: Instant, holder: &HolderInfo) -> Attend {
        let bell = holder.bell.as_deref().copied().filter(Bell::is_near);
        self.polls_as_ever = holder.polls_as_ever;
        if bell != self.bell {
            // Another holder: rings of the last one mean nothing.
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
            // A holder listens only after it has written its record.
            Some(_) if self.rank.is_none() => Attend::To(bell),
            _ => Attend::Same,
        }
    }

    /// The guardian of a vanished holder may need `grace`; `poll` is the wait without a bell.
    pub(super) fn rang(
        &mut self,
        now: Instant,
        ring: Ring,
        grace: Duration,
        poll: Duration,
    ) -> Attend {
        if let Ring::Greeted { rank } = ring {
            self.rank = Some(rank);
            self.hurry = None;
            return Attend::Same;
        }
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
        // Both end the connection. The same holder may take the lease again, with the same bell.
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
            // The lock is free, and each holder rings so once.
            (Ring::Released, _) | (_, None) => now,
            (_, Some(looked)) => now.max(looked + GAP),
        };
        self.want(earliest + APART * rank);
        Attend::Same
    }

    /// The next look was planned for a standby with a bell.
    fn falls_silent(&mut self, now: Instant, poll: Duration) {
        self.rank = None;
        self.want(now + poll);
    }

    fn want(&mut self, at: Instant) {
        self.look_at = Some(self.look_at.map_or(at, |before| before.min(at)));
    }

    pub(super) fn look_at(&self) -> Instant {
        self.look_at.unwrap_or(Instant::FOREVER)
    }

    /// `None`: `--poll` decides.
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
    fn bell_is_read_back_and_other_text_is_refused() {
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
    fn only_bells_in_private_networks_are_followed() {
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
    fn a_release_moves_the_look_of_each_standby_by_its_rank() {
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
    fn polls_return_after_a_release_until_a_bell_greets_again() {
        let mut jitter = Jitter::new(1);
        let mut doorbell = greeted(0);
        doorbell.rang(at(5000), Ring::Released, GRACE, POLL);
        doorbell.looks(at(5000));
        assert_eq!(
            doorbell.finds(at(5001), &holder(bell(1))),
            Attend::To(Some(bell(1)))
        );
        assert_eq!(doorbell.interval(at(5001), POLL, &mut jitter), None);
        doorbell.rang(at(5002), Ring::Greeted { rank: 0 }, GRACE, POLL);
        assert!(doorbell.interval(at(5002), POLL, &mut jitter) >= Some(SELDOM * 4 / 5));
    }

    #[test]
    fn looks_after_rings_keep_their_gap() {
        let mut doorbell = greeted(0);
        doorbell.looks(at(5000));
        doorbell.rang(at(5001), Ring::Draining, GRACE, POLL);
        assert_eq!(doorbell.look_at(), at(5100));
        doorbell.rang(at(5040), Ring::Draining, GRACE, POLL);
        assert_eq!(doorbell.look_at(), at(5100));
        doorbell.rang(at(5050), Ring::Released, GRACE, POLL);
        assert_eq!(doorbell.look_at(), at(5050));
    }

    #[test]
    fn bell_that_rings_without_end_costs_ten_looks_and_is_ignored_for_a_minute() {
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
    fn new_holder_may_ring_ten_times_more() {
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
    fn first_ranks_look_often_for_a_grace_after_the_holder_vanished() {
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
        doorbell.rang(at(6000), Ring::Draining, GRACE, POLL);
        assert_eq!(doorbell.look_at(), at(6000));
        doorbell.finds(at(6001), &holder(bell(2)));
        doorbell.rang(at(6002), Ring::Greeted { rank: 0 }, GRACE, POLL);
        assert!(doorbell.interval(at(6002), POLL, &mut jitter) >= Some(SELDOM * 4 / 5));
    }

    #[test]
    fn polls_are_rare_while_the_bell_lives_and_return_when_it_is_silent() {
        let mut jitter = Jitter::new(1);
        let mut doorbell = greeted(9);
        let interval = doorbell.interval(at(0), POLL, &mut jitter).expect("lives");
        assert!(interval >= SELDOM * 4 / 5 && interval <= SELDOM * 6 / 5);
        let minute = Duration::from_secs(60);
        let interval = doorbell
            .interval(at(0), minute, &mut jitter)
            .expect("lives");
        assert!(interval >= minute * 4 / 5, "a rare poll stays as it is");
        doorbell.rang(at(9000), Ring::Silent, GRACE, POLL);
        assert_eq!(doorbell.interval(at(9000), POLL, &mut jitter), None);
        assert_eq!(doorbell.look_at(), at(9000) + POLL, "no later than a poll");
    }

    #[test]
    fn bell_spaces_no_looks_where_polls_go_on() {
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
    fn rings_before_a_greeting_are_ignored() {
        let mut doorbell = Doorbell::default();
        doorbell.rang(at(0), Ring::Released, GRACE, POLL);
        doorbell.finds(at(0), &holder(bell(1)));
        for ring in [Ring::Draining, Ring::Released, Ring::Closed] {
            doorbell.rang(at(1), ring, GRACE, POLL);
        }
        assert_eq!(doorbell.look_at(), Instant::FOREVER);
    }
}
