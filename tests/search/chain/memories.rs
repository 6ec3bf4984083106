//! Memories of the two processes: each possible state of the real [`Observed`] once.

use std::collections::HashMap;
use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::Observed;
use trafficcop_core::observed::{Claim, Exists, Next, Version};

use super::mistakes::Mistake;

/// One step of time, as long as a margin: coarse and strict.
const TICK: Duration = Duration::from_secs(10);
/// Leases of the two processes.
pub(crate) const LEASES: [u8; 2] = [2, 3];
/// Time from SIGKILL to the end of the lease.
pub(crate) const MARGIN: u8 = 1;

pub(crate) fn at(tick: u8) -> Instant {
    Instant::ZERO + Duration::from_secs(10_000) + TICK * u32::from(tick)
}

pub(crate) fn ticks_of(version: Version) -> u8 {
    u8::try_from(version).expect("few versions")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Told {
    New(u8, u8),
    Saw(u8, Option<(u8, u8, bool)>, u8),
    Made(u8, u8),
    Exists(u8, Option<(u8, u8, bool)>, u8),
    Renounced(u8, u8, u8),
    Released(u8, u8, u8),
}

pub(crate) struct Memories {
    pub(crate) all: Vec<Observed>,
    pub(crate) by_text: HashMap<String, u16>,
    pub(crate) known: HashMap<(u16, Told), (u16, Option<Exists>)>,
    pub(crate) mistake: Option<Mistake>,
}

pub(crate) fn nonce(process: u8, number: u8) -> u128 {
    u128::from(process) << 8 | u128::from(number) | 0x1000
}

impl Memories {
    pub(crate) fn new(mistake: Option<Mistake>) -> Memories {
        Memories {
            all: Vec::new(),
            by_text: HashMap::new(),
            known: HashMap::new(),
            mistake,
        }
    }

    /// Returns the lease in a record: an operator's has the broken holder's, and a free lock's does
    /// not matter.
    fn lease(process: u8) -> Duration {
        TICK * u32::from(LEASES.get(usize::from(process)).copied().unwrap_or(3))
    }

    fn claim(&self, whose: u8, claim: Option<(u8, u8, bool)>) -> Option<Claim> {
        let Some((process, number, released)) = claim else {
            let released = self.mistake == Some(Mistake::UnreadIsReleased);
            let known = self.mistake == Some(Mistake::UnreadForUsualLease);
            return (released || known).then(|| Claim {
                nonce: 0,
                lease: TICK * u32::from(LEASES[0]),
                released,
            });
        };
        let own = self.mistake == Some(Mistake::OwnLease);
        Some(Claim {
            nonce: nonce(process, number),
            lease: Memories::lease(if own { whose } else { process }),
            released,
        })
    }

    pub(crate) fn tell(&mut self, whose: u8, memory: u16, told: Told) -> (u16, Option<Exists>) {
        if let Some(known) = self.known.get(&(memory, told)) {
            return *known;
        }
        let mut one = match told {
            Told::New(process, number) => {
                Observed::new(nonce(process, number), Memories::lease(process))
            }
            _ => self.all[usize::from(memory)].clone(),
        };
        let mut answer = None;
        match told {
            Told::New(..) => {}
            Told::Saw(version, claim, tick) => {
                one.saw(Version::from(version), self.claim(whose, claim), at(tick));
            }
            Told::Made(version, tick) => one.made(Version::from(version), at(tick)),
            Told::Exists(version, claim, tick) => {
                let claim = claim.and_then(|claim| self.claim(whose, Some(claim)));
                answer = Some(one.exists(Version::from(version), claim, at(tick)));
            }
            Told::Renounced(p, number, tick) => one.abandon(nonce(p, number), at(tick)),
            Told::Released(p, number, tick) => one.released(nonce(p, number), at(tick)),
        }
        let text = format!("{one:?}");
        let next = u16::try_from(self.all.len()).expect("not so many memories");
        let id = *self.by_text.entry(text).or_insert(next);
        if id == next {
            self.all.push(one);
        }
        self.known.insert((memory, told), (id, answer));
        (id, answer)
    }

    pub(crate) fn own(&self, memory: u16) -> Option<u8> {
        self.all[usize::from(memory)].own().map(ticks_of)
    }

    pub(crate) fn next(&self, memory: u16, tick: u8) -> Option<u8> {
        let early = u8::from(self.mistake == Some(Mistake::EarlyTakeOver)) * MARGIN;
        match self.all[usize::from(memory)].next(at(tick + early)) {
            Next::Make(version) => Some(ticks_of(version)),
            Next::Wait(_) | Next::Exhausted => None,
        }
    }
}
