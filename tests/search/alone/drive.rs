//! A lock on a shared drive: a chain of versions with the real [`Observed`], and other makers of
//! versions. Views may be stale, records late or never written, old versions removed.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::observed::{Claim, Exists, Next, Version};
use trafficcop_core::{Cause, Failure, Grant, HolderInfo, Observed};
use trafficcop_guardian::state::GuardianState;

use super::plan::{Plan, ms, secs};
use super::referee::Ledger;
use super::world::{Call, Due, Id, Kind, RIVAL, Reply, World};

/// Number of own versions with lost answers that a renewal steps over.
const STEPS: u32 = 4;
/// Nonces below this one belong to others.
const OURS: u128 = 1000;

#[derive(Clone, Debug)]
pub(crate) struct DrivePlan {
    pub(crate) rival_lease: Duration,
    /// Per cent of the tenures that the rival does not release.
    pub(crate) dies: u8,
    /// Per cent of the versions whose record is late, or never written.
    pub(crate) unread: u8,
    /// Per cent of the looks that show an old state.
    pub(crate) stale: u8,
    /// Pause between processes that look once each.
    pub(crate) cron: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Made {
    claim: Claim,
    readable_at: Instant,
    draining: bool,
}

/// Conclusions of the store from an answer, even if the call was abandoned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Learned {
    made: Option<(Version, Instant)>,
    released: bool,
    ancient: bool,
}

pub(crate) struct Drive {
    chain: Vec<Made>,
    kept: Version,
    pub(crate) observed: Observed,
    nonces: u128,
    /// Whether a waiting call was granted a tenure that is not released.
    pub(crate) granted: bool,
    /// Stamp that earlier processes have left.
    stamp: Option<(Version, Instant)>,
    remembered: bool,
    /// Version that looks show, and until when.
    view: Option<(Version, Instant)>,
    busy_until: Instant,
    waits: bool,
    pub(crate) tenures_before: u64,
}

impl Drive {
    pub(crate) fn new(plan: &Plan) -> Option<Drive> {
        let (_, budget) = plan.drive.as_ref().zip(plan.rules.budget)?;
        Some(Drive {
            chain: Vec::new(),
            kept: 1,
            observed: Observed::new(OURS, budget.lease),
            nonces: OURS,
            granted: false,
            stamp: None,
            remembered: false,
            view: None,
            busy_until: Instant::ZERO,
            waits: false,
            tenures_before: 0,
        })
    }

    fn greatest(&self) -> Version {
        self.chain.len() as Version
    }

    fn at(&self, version: Version) -> Option<&Made> {
        self.chain
            .get(usize::try_from(version).ok()?.checked_sub(1)?)
    }

    /// Returns a version's claim, if its record is readable.
    fn claim(&self, version: Version, now: Instant) -> Option<Claim> {
        let made = self.at(version).filter(|made| now >= made.readable_at);
        made.map(|made| made.claim)
    }

    fn nonce(&mut self) -> u128 {
        self.nonces += 1;
        self.nonces
    }
}

impl World {
    fn drive(&mut self) -> &mut Drive {
        self.drive.as_mut().expect("a drive")
    }

    fn percent(&mut self, of: u8) -> bool {
        self.rng.u8(0..100) < of
    }

    fn push(&mut self, claim: Claim, draining: bool) {
        let unread = self.plan.drive.as_ref().map_or(0, |drive| drive.unread);
        let late = [ms(10), secs(3), secs(20)];
        let readable_at = match (self.percent(unread), self.rng.u8(0..4)) {
            (false, _) => self.now,
            (true, 3) => Instant::FOREVER,
            (true, which) => self.now + late[which as usize],
        };
        self.drive().chain.push(Made {
            claim,
            readable_at,
            draining,
        });
    }

    pub(crate) fn rival_on_drive(&mut self) {
        let Some(plan) = self.plan.drive.clone() else {
            return;
        };
        let claim = |nonce, released| Claim {
            nonce,
            lease: plan.rival_lease,
            released,
        };
        let (now, pause) = (self.now, ms(self.rng.u64(1..8000)));
        let nonce = u128::from(self.lock.token % 1000);
        if self.lock.holder != RIVAL || self.lock.until <= now {
            if self.rests {
                return;
            }
            let comes = self.percent(self.plan.rival);
            if comes && !self.lock.keeps_out(now) {
                self.lock.token += 1;
                let nonce = u128::from(self.lock.token % 1000);
                self.lock.holder = RIVAL;
                self.lock.until = now + plan.rival_lease;
                self.lock.rival_ends = now + self.plan.rival_holds;
                self.push(claim(nonce, false), false);
                self.say(|| "the rival has it".to_owned());
            }
            return self.due(now + pause, Due::Rival);
        }
        if now < self.lock.rival_ends && !self.rests {
            self.lock.until = now + plan.rival_lease;
            let draining = now + self.plan.rival_drains >= self.lock.rival_ends;
            self.push(claim(nonce, false), draining);
            let next = now + plan.rival_lease / 3;
            let drains = self.lock.rival_ends - self.plan.rival_drains;
            let drains = if drains > now {
                drains
            } else {
                self.lock.rival_ends
            };
            return self.due(next.min(drains), Due::Rival);
        }
        if self.percent(plan.dies) {
            self.say(|| "the rival dies".to_owned());
            return self.due(self.lock.until + pause, Due::Rival);
        }
        self.say(|| "the rival gives it back".to_owned());
        self.lock.holder = 0;
        self.push(claim(nonce, true), false);
        self.due(now + pause, Due::Rival);
    }

    pub(crate) fn breaks_on_drive(&mut self) {
        let claim = Claim {
            nonce: 999_999,
            lease: secs(15),
            released: true,
        };
        self.push(claim, false);
        if self.lock.holder != 0 && self.lock.holder != RIVAL {
            self.ledger.broken = Some(self.now);
        }
        self.lock.holder = 0;
    }

    /// Carries out a call; its answer is lost if `back` is `None`.
    pub(crate) fn drive_serves(&mut self, call: Call, back: Option<Duration>) {
        let is_lost = back.is_none();
        let (reply, learned) = match call.kind {
            Kind::Acquire => self.competes(call.id, is_lost),
            Kind::Renew => self.renews(call.id, is_lost),
            Kind::Release => self.gives_back(call.id, is_lost),
            Kind::Record(_) | Kind::Look => unreachable!("no task on a drive"),
        };
        self.say(|| {
            format!(
                "drive: {:?} of {} -> {reply:?}, {learned:?}",
                call.kind, call.id
            )
        });
        if let Some(back) = back {
            // The answer may find another call waiting, or none.
            let at = self.now + back * 2;
            self.drive().busy_until = at;
            self.due(at, Due::Learns(learned));
            self.due(at, Due::Answers(call.number, reply));
        }
    }

    /// Whether the last request still hangs.
    pub(crate) fn is_busy(&self) -> bool {
        let drive = self.drive.as_ref();
        drive.is_some_and(|drive| self.now < drive.busy_until)
    }

    pub(crate) fn learns(&mut self, learned: Learned) {
        let now = self.now;
        if let Some((version, t0)) = learned.made {
            self.drive().observed.made(version, t0);
            self.ledger.chain.made(version, t0);
        }
        if learned.ancient {
            self.drive().observed.reset_stale_view();
            self.drive().granted = false;
            self.ledger.chain.reset_stale_view();
        }
        if learned.released {
            let nonce = self.drive().nonce();
            self.drive().observed.released(nonce, now);
            self.drive().granted = false;
            let lease = self.plan.rules.budget.map_or(Duration::ZERO, |b| b.lease);
            self.ledger.chain.ends(lease, true, now);
        }
        self.judge_chain();
    }

    /// Makes a version if it does not exist; `Some(false)`: the one before it is missing.
    fn makes(&mut self, version: Version, released: bool, id: Id, written: bool) -> Option<bool> {
        let drive = self.drive();
        if version >= drive.kept && version <= drive.greatest() {
            return None;
        }
        if version < drive.kept || version > drive.greatest() + 1 {
            return Some(false);
        }
        if version > 1 && version - 1 < drive.kept {
            return Some(false);
        }
        let claim = drive.observed.claim(released);
        let theirs = self.lock.holder == RIVAL && self.lock.keeps_out(self.now);
        if theirs {
            self.violate("it takes what another has");
        }
        self.push(claim, false);
        if !written {
            let version = self.drive().chain.last_mut().expect("just made");
            version.readable_at = Instant::FOREVER;
        }
        self.lock.token = self.lock.token.max(version) + 1;
        (self.lock.holder, self.lock.until) = (id, self.until());
        if released {
            self.lock.holder = 0;
        }
        Some(true)
    }

    fn competes(&mut self, id: Id, is_lost: bool) -> (Reply, Learned) {
        let now = self.now;
        let lease = self.plan.rules.budget.map_or(Duration::ZERO, |b| b.lease);
        let stale = self.plan.drive.as_ref().map_or(0, |drive| drive.stale);
        let nothing = |reply| (reply, Learned::default());
        if std::mem::take(&mut self.drive().granted) {
            let nonce = self.drive().nonce();
            self.drive().observed.abandon(nonce, now);
            self.ledger.chain.ends(lease, false, now);
        }
        if is_lost && self.rng.bool() {
            return nothing(transient("the look is lost"));
        }
        let mut version = self.drive().greatest();
        if !self.rests && self.percent(stale) {
            let shown = version.saturating_sub(self.rng.u64(1..6));
            let until = now + secs(self.rng.u64(1..90));
            self.drive().view.get_or_insert((shown, until));
        }
        let rests = self.rests;
        if let Some((shown, _)) = self
            .drive()
            .view
            .filter(|(_, until)| now < *until && !rests)
        {
            version = shown;
            // They are not needed any more.
            if self.rng.u8(0..4) == 0 {
                let drive = self.drive();
                drive.kept = drive.kept.max((shown + 2).min(drive.greatest()));
            }
        } else {
            self.drive().view = None;
        }
        let drive = self.drive();
        let claim = drive.claim(version, now);
        drive.observed.saw(version, claim, now);
        let stamp = drive.stamp.filter(|(of, _)| *of == version);
        let remembers = !std::mem::replace(&mut drive.remembered, true);
        if let Some((_, at)) = stamp.filter(|_| remembers) {
            drive.observed.remember(version, at);
        }
        let next = drive.observed.next(now);
        self.ledger.chain.saw(version, claim, now);
        if let Some((version, at)) = stamp.filter(|_| remembers) {
            self.ledger.chain.remembers(version, at);
        }
        self.judge_next(next);
        let version = match next {
            Next::Make(version) => version,
            Next::Wait(due) => return nothing(self.held_on_drive(version, Some(due))),
            Next::Exhausted => unreachable!("no chain is so long"),
        };
        match self.makes(version, false, id, !is_lost) {
            None => {
                let claim = self.drive().claim(version, now);
                self.drive().observed.saw(version, claim, now);
                self.ledger.chain.saw(version, claim, now);
                self.judge_chain();
                let due = match self.drive().observed.next(now) {
                    Next::Wait(due) => Some(due),
                    Next::Make(_) | Next::Exhausted => None,
                };
                nothing(self.held_on_drive(version, due))
            }
            Some(false) => {
                let learned = Learned {
                    ancient: true,
                    ..Learned::default()
                };
                (lost(), learned)
            }
            Some(true) => {
                let learned = Learned {
                    made: Some((version, now)),
                    ..Learned::default()
                };
                let (t0, token, failed) = (now, version, 0);
                (Reply::Granted(Grant { t0, token, failed }), learned)
            }
        }
    }

    fn held_on_drive(&mut self, version: Version, expires: Option<Instant>) -> Reply {
        let now = self.now;
        let made = self.drive().at(version).copied();
        let made = made.filter(|made| now >= made.readable_at);
        Reply::Failed(Failure::Held(HolderInfo {
            holder: made.map(|made| made.claim.nonce.to_string()),
            draining: made.is_some_and(|made| made.draining),
            expires,
            ..HolderInfo::default()
        }))
    }

    /// Makes the version after the instance's last, stepping over later ones of its own.
    fn steps(&mut self, released: bool, id: Id, is_lost: bool) -> Result<Learned, Reply> {
        let now = self.now;
        for _ in 0..STEPS {
            let Some(own) = self.drive().observed.own() else {
                return Err(lost());
            };
            let version = own + 1;
            match self.makes(version, released, id, !is_lost) {
                Some(true) => {
                    return Ok(Learned {
                        made: Some((version, now)),
                        released,
                        ancient: false,
                    });
                }
                Some(false) => {
                    self.drive().observed.reset_stale_view();
                    self.ledger.chain.reset_stale_view();
                    return Err(lost());
                }
                None if is_lost => return Err(transient("it exists, but the answer is lost")),
                None => {
                    let claim = self.drive().claim(version, now);
                    let is = self.drive().observed.exists(version, claim, now);
                    self.judge_existing(version, claim, is);
                    match is {
                        Exists::Ours => {}
                        Exists::Lost => return Err(lost()),
                        Exists::Unknown => {
                            return Err(transient("it exists, and its maker is unknown"));
                        }
                    }
                }
            }
        }
        Err(transient("the answers to many versions of ours were lost"))
    }

    fn renews(&mut self, id: Id, is_lost: bool) -> (Reply, Learned) {
        match self.steps(false, id, is_lost) {
            Ok(learned) => (Reply::Done, learned),
            Err(reply) => {
                if matches!(reply, Reply::Failed(Failure::Lost { .. })) {
                    self.drive().granted = false;
                }
                (reply, Learned::default())
            }
        }
    }

    fn gives_back(&mut self, id: Id, is_lost: bool) -> (Reply, Learned) {
        let had = self.drive().granted;
        if self.drive().observed.own().is_none() {
            self.drive().granted = false;
            return (Reply::Done, Learned::default());
        }
        match self.steps(true, id, is_lost) {
            Ok(learned) => (Reply::Done, learned),
            Err(Reply::Failed(Failure::Lost { .. })) if !had => (Reply::Done, Learned::default()),
            Err(reply) => {
                if matches!(reply, Reply::Failed(Failure::Lost { .. })) {
                    self.drive().granted = false;
                }
                (reply, Learned::default())
            }
        }
    }

    pub(crate) fn is_followed(&mut self) -> bool {
        let cron = self.plan.drive.as_ref().and_then(|drive| drive.cron);
        let ending = self.tenure.ending();
        let looked = ending.is_some_and(|ending| matches!(ending.cause, Cause::NotObtained(_)));
        let (Some(pause), true) = (cron, looked) else {
            return false;
        };
        if !std::mem::replace(&mut self.drive().waits, true) {
            self.due(self.now + pause, Due::Process);
        }
        true
    }

    pub(crate) fn waits_for_a_process(&self) -> bool {
        self.drive.as_ref().is_some_and(|drive| drive.waits)
    }

    pub(crate) fn next_process(&mut self) {
        let (now, plan) = (self.now, self.plan.clone());
        let lease = plan.rules.budget.map_or(Duration::ZERO, |b| b.lease);
        let drive = self.drive();
        (drive.waits, drive.remembered) = (false, false);
        drive.stamp = drive.observed.seen();
        let (nonce, stamp) = (drive.nonce(), drive.stamp);
        drive.observed = Observed::new(nonce, lease);
        drive.busy_until = now;
        self.tenure = plan.tenure(now);
        let controlled_at = self.ledger.controlled_at;
        self.ledger = Ledger::new(None, &plan).since(now, controlled_at);
        self.say(|| format!("the next process, with the stamp {stamp:?}"));
        self.guardian = GuardianState::with_grace(plan.rules.grace);
        self.guardian_lives = true;
        self.resumed = now;
        self.begins_anew();
    }
}

fn transient(why: &str) -> Reply {
    Reply::Failed(Failure::Transient {
        why: why.to_owned(),
        retry_after: None,
    })
}

fn lost() -> Reply {
    Reply::Failed(Failure::Lost {
        until: None,
        why: "not ours".to_owned(),
    })
}
