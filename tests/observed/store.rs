//! What the store of shared drives does, step by step, in virtual time: every step is a job in a
//! thread that nobody may be waiting for any more. Drives the real [`Observed`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use trafficcop::Instant;
use trafficcop::internals::core::observed::{Claim, Exists, Next, Version};
use trafficcop::internals::core::{Failure, Grant, HolderInfo, Observed};

use super::protocol::{Check, Mutation, Protocol};
use super::share::{Reply, Request};

/// How many versions of our own a renewal steps over whose answers were lost.
const STEPS: usize = 4;
/// How many versions one look walks forward before it reads the whole directory.
const WALK: usize = 16;

/// One thread's way to the share, and its view of the clock.
#[derive(Default)]
pub(crate) struct Desk {
    pub(crate) now: Cell<Instant>,
    pub(crate) out: RefCell<Option<Request>>,
    pub(crate) reply: RefCell<Option<Reply>>,
}

impl Desk {
    pub(crate) async fn ask(&self, request: Request) -> Reply {
        *self.out.borrow_mut() = Some(request);
        poll_fn(|_| match self.reply.borrow_mut().take() {
            Some(reply) => Poll::Ready(reply),
            None => Poll::Pending,
        })
        .await
    }
}

/// What one process knows, and its threads share.
pub(crate) struct Progress {
    pub(crate) observed: Observed,
    /// A tenure was granted, and neither released nor renounced.
    pub(crate) tenure: bool,
    remembered: bool,
    /// Made, but whether the version before it is there was not answered.
    unchecked: Option<(Version, Instant)>,
}

/// One process's store: for its worker thread, its writer thread, or its guardian.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) desk: Rc<Desk>,
    pub(crate) state: Rc<RefCell<Progress>>,
    /// What is to be written behind the making of versions.
    pub(crate) records: Rc<RefCell<VecDeque<(Version, Claim)>>>,
    /// The last version that was written.
    pub(crate) written: Rc<Cell<Version>>,
    /// What the guardian finds when the supervisor has died.
    pub(crate) memory: Rc<RefCell<Option<Observed>>>,
    /// Stamps of processes of this machine that have ended.
    pub(crate) stamps: Rc<Cell<Option<(Version, Instant)>>>,
    pub(crate) nonces: Rc<Cell<u128>>,
    pub(crate) lease: Duration,
    pub(crate) margin: Duration,
    pub(crate) protocol: Protocol,
    /// From which version on old ones are looked for again.
    pub(crate) removal: Rc<Cell<Version>>,
}

fn transient(why: &str) -> Failure {
    Failure::Transient {
        why: why.to_owned(),
        retry_after: None,
    }
}

fn lost(why: &str) -> Failure {
    Failure::Lost {
        until: None,
        why: why.to_owned(),
    }
}

fn held(expires: Option<Instant>) -> Failure {
    Failure::Held(HolderInfo {
        expires,
        ..HolderInfo::default()
    })
}

/// A number that was never given.
pub(crate) fn fresh(nonces: &Cell<u128>) -> u128 {
    nonces.set(nonces.get() + 1);
    nonces.get()
}

impl Progress {
    pub(crate) fn new(nonce: u128, lease: Duration) -> Progress {
        Progress {
            observed: Observed::new(nonce, lease),
            tenure: false,
            remembered: false,
            unchecked: None,
        }
    }
}

impl Store {
    pub(crate) fn now(&self) -> Instant {
        self.desk.now.get()
    }

    pub(crate) fn is(&self, mutation: Mutation) -> bool {
        self.protocol.mutation == Some(mutation)
    }

    /// The record as it is believed: where a mutation believes something else, here.
    fn believed(&self, claim: Option<Claim>) -> Option<Claim> {
        let mut claim = claim;
        if self.is(Mutation::OwnLease)
            && let Some(claim) = &mut claim
        {
            claim.lease = self.lease;
        }
        if claim.is_none() && self.is(Mutation::UnreadIsReleased) {
            return Some(Claim {
                nonce: 0,
                lease: self.lease,
                released: true,
            });
        }
        if claim.is_none() && self.is(Mutation::UnreadForKnownLease) {
            return Some(Claim {
                nonce: 0,
                lease: self.protocol.known_lease,
                released: false,
            });
        }
        claim
    }

    fn next(&self, now: Instant) -> Next {
        let early = if self.is(Mutation::EarlyTakeOver) {
            self.margin
        } else {
            Duration::ZERO
        };
        self.state.borrow().observed.next(now + early)
    }

    /// Looks at the lock, and takes it over if it may be.
    pub(crate) async fn acquire(self) -> Result<Grant, Failure> {
        {
            let mut state = self.state.borrow_mut();
            if std::mem::take(&mut state.tenure) {
                let nonce = fresh(&self.nonces);
                state.observed.renounce(nonce, self.now());
            }
        }
        self.check_what_was_made().await?;
        let before = self.now();
        let (version, claim) = self.look().await?;
        let now = self.now();
        {
            let mut state = self.state.borrow_mut();
            let stamp = if self.is(Mutation::StampBefore) {
                before
            } else {
                now
            };
            state.observed.saw(version, self.believed(claim), stamp);
            if !std::mem::replace(&mut state.remembered, true)
                && let Some((seen, stamp)) = self.stamps.get()
            {
                state.observed.remember(seen, stamp);
            }
        }
        match self.next(now) {
            Next::Make(version) => self.take_over(version).await,
            Next::Wait(due) => Err(held(Some(due))),
            Next::Exhausted => unreachable!("short schedules"),
        }
    }

    async fn look(&self) -> Result<(Version, Option<Claim>), Failure> {
        let hint = match self.desk.ask(Request::Hint).await {
            Reply::Hint(hint) => hint,
            _ => return Err(transient("the hint")),
        };
        let known = self.state.borrow().observed.version();
        let mut version = known.max(hint.map_or(0, |(version, _)| version));
        if version == 0 {
            version = self.greatest().await?;
        }
        let mut steps = 0;
        while self.exists(version + 1).await? {
            version += 1;
            steps += 1;
            if steps == WALK {
                version = version.max(self.greatest().await?);
            }
        }
        if let Some((_, claim)) = hint.filter(|(hinted, _)| *hinted == version) {
            return Ok((version, Some(claim)));
        }
        let claim = if version > 0 {
            self.read(version).await?
        } else {
            None
        };
        Ok((version, claim))
    }

    async fn greatest(&self) -> Result<Version, Failure> {
        match self.desk.ask(Request::List).await {
            Reply::List(list) => Ok(list.last().map_or(0, |(version, _)| *version)),
            _ => Err(transient("the directory")),
        }
    }

    async fn exists(&self, version: Version) -> Result<bool, Failure> {
        match self.desk.ask(Request::Exists(version)).await {
            Reply::Yes(exists) => Ok(exists),
            _ => Err(transient("a version")),
        }
    }

    /// A record that cannot be read is none.
    async fn read(&self, version: Version) -> Result<Option<Claim>, Failure> {
        match self.desk.ask(Request::Read(version)).await {
            Reply::Claim(claim) => Ok(claim),
            _ => Ok(None),
        }
    }

    /// The record of a version that exists against what was expected.
    async fn record_of(&self, version: Version) -> Result<Option<Claim>, Failure> {
        if self.is(Mutation::HintOverExists) {
            return match self.desk.ask(Request::Hint).await {
                Reply::Hint(hint) => Ok(hint.map(|(_, claim)| claim)),
                _ => Ok(None),
            };
        }
        // Without opening anything where there is nothing to open.
        match self.desk.ask(Request::HasRecord(version)).await {
            Reply::Yes(true) => self.read(version).await,
            _ => Ok(None),
        }
    }

    async fn take_over(&self, version: Version) -> Result<Grant, Failure> {
        let mut t0 = self.now();
        match self.desk.ask(Request::Make(version)).await {
            Reply::Made => {}
            Reply::Exists if self.is(Mutation::ExistsIsSuccess) => {}
            Reply::Exists if self.is(Mutation::ExistsIsTransient) => {
                return Err(transient("it exists"));
            }
            Reply::Exists => {
                let claim = self.record_of(version).await?;
                let now = self.now();
                let claim = self.believed(claim);
                self.state.borrow_mut().observed.saw(version, claim, now);
                return Err(held(match self.next(now) {
                    Next::Wait(due) => Some(due),
                    Next::Make(_) | Next::Exhausted => None,
                }));
            }
            _ => return Err(transient("making it")),
        }
        if self.is(Mutation::T0After) {
            t0 = self.now();
        }
        if version >= 2 && self.protocol.looks_twice && !self.is(Mutation::NoPredecessor) {
            // Two of them: an ancient view that died here may have left one that means nothing.
            self.state.borrow_mut().unchecked = Some((version, t0));
            match self.desk.ask(Request::MakeInside(version - 2)).await {
                Reply::Missing => {
                    return Err(self.withdraw(version).await);
                }
                Reply::Error => return Err(transient("confirming it")),
                _ => {}
            }
        }
        self.made(version, t0).await?;
        self.state.borrow_mut().tenure = true;
        self.write(version, false);
        Ok(Grant {
            t0,
            token: version,
            failed: 0,
        })
    }

    /// A version of ours was made: is the one before it there?
    async fn made(&self, version: Version, t0: Instant) -> Result<(), Failure> {
        if self.protocol.checked_first {
            self.state.borrow_mut().unchecked = Some((version, t0));
        } else {
            self.state.borrow_mut().observed.made(version, t0);
        }
        self.check(version).await?;
        let mut state = self.state.borrow_mut();
        state.unchecked = None;
        state.observed.made(version, t0);
        Ok(())
    }

    async fn check_what_was_made(&self) -> Result<(), Failure> {
        let unchecked = self.state.borrow().unchecked;
        if let Some((version, t0)) = unchecked {
            self.check(version).await?;
            let mut state = self.state.borrow_mut();
            state.unchecked = None;
            state.observed.made(version, t0);
        }
        Ok(())
    }

    async fn check(&self, version: Version) -> Result<(), Failure> {
        let first = u64::from(!self.protocol.first_is_removed);
        if version <= first || self.is(Mutation::NoPredecessor) {
            return Ok(());
        }
        let before = version - 1;
        let there = match self.protocol.check {
            Check::ByMaking => match self.desk.ask(Request::Make(before)).await {
                Reply::Exists => true,
                Reply::Made => false,
                _ => return Err(transient("confirming it")),
            },
            Check::ByMakingInside => match self.desk.ask(Request::MakeInside(before)).await {
                Reply::Made | Reply::Exists => true,
                Reply::Missing => false,
                _ => return Err(transient("confirming it")),
            },
        };
        if there {
            return Ok(());
        }
        // The later one first: what is left in between must not look like a chain.
        let withdrawn = self.withdraw(version).await;
        if self.protocol.check == Check::ByMaking {
            self.desk.ask(Request::Remove(before)).await;
        }
        Err(withdrawn)
    }

    /// What was made has nothing before it.
    async fn withdraw(&self, version: Version) -> Failure {
        self.desk.ask(Request::Remove(version)).await;
        let mut state = self.state.borrow_mut();
        state.unchecked = None;
        state.observed.is_ancient();
        lost("its versions have been removed")
    }

    /// Makes the version after our last, and those after it that turn out to be ours.
    pub(crate) async fn step(&self) -> Result<Version, Failure> {
        self.check_what_was_made().await?;
        for _ in 0..STEPS {
            let Some(own) = self.state.borrow().observed.own() else {
                return Err(lost("it is not ours any more"));
            };
            let version = own + 1;
            let mut t0 = self.now();
            match self.desk.ask(Request::Make(version)).await {
                Reply::Made => {
                    if self.is(Mutation::T0After) {
                        t0 = self.now();
                    }
                    self.made(version, t0).await?;
                    return Ok(version);
                }
                Reply::Exists if self.is(Mutation::ExistsIsSuccess) => {
                    self.state.borrow_mut().observed.made(version, t0);
                    return Ok(version);
                }
                Reply::Exists if self.is(Mutation::ExistsIsTransient) => {
                    return Err(transient("it exists"));
                }
                Reply::Exists => {
                    let claim = self.record_of(version).await?;
                    let now = self.now();
                    let meaning = self.state.borrow_mut().observed.exists(version, claim, now);
                    match meaning {
                        Exists::Ours if self.is(Mutation::OursCounts) => return Ok(version),
                        Exists::Ours => {}
                        Exists::Lost => return Err(lost("held by another")),
                        Exists::Unknown => return Err(transient("its record cannot be read")),
                    }
                }
                _ => return Err(transient("making its next version")),
            }
        }
        Err(transient("the answers to versions of ours were lost"))
    }

    /// Makes the next version; `t0` of the answer is the driver's.
    pub(crate) async fn renew(self) -> Result<(), Failure> {
        if !self.state.borrow().tenure {
            return Err(lost("it is not ours"));
        }
        let version = self.step().await?;
        self.write(version, false);
        Ok(())
    }

    /// Makes the next version, which says that nothing of ours is left.
    pub(crate) async fn release(self, give_up_at: Instant) -> Result<(), Failure> {
        self.check_what_was_made().await?;
        let had = self.state.borrow().tenure;
        if self.state.borrow().observed.own().is_none() {
            self.state.borrow_mut().tenure = false;
            return Ok(());
        }
        match self.step().await {
            Ok(version) => {
                self.write(version, true);
                let written = poll_fn(|_| {
                    if self.written.get() >= version {
                        return Poll::Ready(true);
                    }
                    if self.now() >= give_up_at {
                        return Poll::Ready(false);
                    }
                    Poll::Pending
                })
                .await;
                let mut state = self.state.borrow_mut();
                state.tenure = false;
                *self.memory.borrow_mut() = None;
                let nonce = fresh(&self.nonces);
                state.observed.released(nonce, self.now());
                if written {
                    Ok(())
                } else {
                    Err(transient("that it is free could not be written"))
                }
            }
            Err(Failure::Lost { .. }) if !had => Ok(()),
            Err(failure) => {
                if matches!(failure, Failure::Lost { .. }) {
                    self.state.borrow_mut().tenure = false;
                }
                Err(failure)
            }
        }
    }

    /// Has the record of a version of ours written, and the guardian know of it.
    fn write(&self, version: Version, released: bool) {
        let state = self.state.borrow();
        let claim = state.observed.claim(released);
        if state.observed.own() == Some(version) {
            *self.memory.borrow_mut() = Some(state.observed.clone());
        }
        let mut records = self.records.borrow_mut();
        records.clear();
        records.push_back((version, claim));
    }
}
