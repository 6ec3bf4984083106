//! At most N holders: one store made of N, of which we hold one at a time.
//!
//! Made by `run` for `--slots N`, used through [`LeaseStore`]. The slots are the locks `NAME.0` to
//! `NAME.N-1`; each has a fencing token and a record of its own. An instance begins at a random
//! slot and looks at no more than four of them in one attempt (unless it makes only one), so that many instances do not come
//! to the same slot, and one instance does not flood the store. What must never happen here: that
//! two slots count as ours, or that what an unanswered attempt may have obtained is forgotten.
//!
//! It does not wake anybody. The kernel hands a file's lock to whoever waits for it, and a waiter at
//! every slot would be handed locks that it does not want: each of them would be missing until it
//! is given back. So a file with slots is polled, like a blob.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;

use super::blocking::BlockingJobs;
use super::mount::beside;
use super::{Competitor, LeaseStore, NamedLock, OpenError, OrphanRelease, RecordUpdate, StoreInfo};
use crate::errors::{fatal, lost, transient};
use trafficcop_core::clock::Instant;
use trafficcop_core::util::lock;
use trafficcop_core::{Bell, Failure, Grant, HolderInfo};

// How many slots one attempt looks at: a hundred instances that each look at a hundred slots every two seconds
// would be what a storage account answers 503 to.
const LOOKS: usize = 4;
// How long the undoing of one slot's unclear attempt may take before the attempt ends: what is not undone stays
// in mind, and one slot that hangs must not cost the looks at the others.
const UNDO: Duration = Duration::from_secs(1);

/// Opens the store of a slot. It may block, and runs in a thread of its own but for the first.
pub type Opener = dyn Fn(u32) -> Result<Arc<dyn LeaseStore>, Failure> + Send + Sync;

/// N locks, one of which is to be ours.
pub struct Slots {
    /// The lock's name without a slot.
    base: String,
    names: Vec<String>,
    lease: Option<Duration>,
    /// How many slots one attempt looks at.
    looks: usize,
    /// The slot that was looked at first.
    first: u32,
    open: Arc<Opener>,
    jobs: BlockingJobs,
    state: Mutex<State>,
}

struct State {
    // Those that were looked at; the others are not even open: a file's descriptor each, and a name that is
    // created on a disk.
    stores: BTreeMap<u32, Arc<dyn LeaseStore>>,
    /// Where the next attempt begins.
    next: u32,
    held: Option<u32>,
    // This attempt looks first at what may be ours already; every other one looks there last,
    // because a slot that never answers must not keep us from the others.
    own_first: bool,
    // Slots of which we may have something without knowing it. Forgotten, it would be a slot that nobody can
    // have until its lease ends, beside the one that we get next.
    perhaps: BTreeSet<u32>,
    /// What was seen of the slots that others hold.
    holders: BTreeMap<u32, HolderInfo>,
    /// Slots whose trouble was told and has not ended.
    told: BTreeSet<u32>,
}

impl Slots {
    /// Slots beside `lock`: `NAME.0` and so on. Opens one of them (on a local disk it is created);
    /// synchronous, for the time before there is any thread.
    ///
    /// # Errors
    /// If that one cannot serve as a lock, or the last one's name would be too long.
    pub fn open(
        lock: Arc<dyn NamedLock>,
        count: u32,
        competitor: Competitor,
    ) -> Result<Slots, OpenError> {
        // The longest name tells whether all of them can be.
        lock.slot(count - 1)?;
        // At random: many instances that start together would all try slot 0 first.
        let first = fastrand::u32(0..count);
        let open = move |slot| lock.slot(slot)?.open(&competitor);
        let store = open(first)?;
        let open = Arc::new(move |slot| Ok(open(slot)?));
        Ok(Slots::over(count, first, store, open))
    }

    /// `count` slots that `open` opens, of which the `first` one to be looked at is open already.
    /// The stores' names end with a dot and the number of their slot.
    ///
    /// # Panics
    /// If there is no such slot as `first`.
    #[must_use]
    pub fn over(count: u32, first: u32, store: Arc<dyn LeaseStore>, open: Arc<Opener>) -> Slots {
        assert!(first < count, "slot {first} of {count}");
        let suffix = format!(".{first}");
        let StoreInfo { name, lease, .. } = store.info();
        let base = name.strip_suffix(&suffix).unwrap_or(&name);
        Slots {
            names: (0..count).map(|slot| format!("{base}.{slot}")).collect(),
            base: base.to_owned(),
            lease,
            looks: LOOKS.min(count as usize),
            first,
            open,
            jobs: BlockingJobs::new(),
            state: Mutex::new(State {
                stores: BTreeMap::from([(first, store)]),
                next: first,
                held: None,
                own_first: false,
                perhaps: BTreeSet::new(),
                holders: BTreeMap::new(),
                told: BTreeSet::new(),
            }),
        }
    }

    /// Has each attempt look at all slots: for an instance that makes one attempt only.
    #[must_use]
    pub fn looking_at_all(mut self) -> Slots {
        self.looks = self.count();
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn count(&self) -> usize {
        self.names.len()
    }

    /// Which slots this attempt looks at: what may be ours, and the next in turn.
    fn choose(&self) -> Vec<u32> {
        let mut state = self.state();
        state.own_first = !state.own_first;
        if let Some(left) = state.held.take() {
            // Left to run out. Whatever is still ours of it is found there.
            state.perhaps.insert(left);
            state.own_first = true;
        }
        let own = state.perhaps.iter().copied();
        let mut chosen: Vec<u32> = own.take(LOOKS - 1).collect();
        let own = chosen.len();
        for _ in 0..self.count() {
            if chosen.len() >= self.looks {
                break;
            }
            let slot = state.next;
            state.next = (slot + 1) % u32::try_from(self.count()).unwrap_or(u32::MAX);
            if !chosen.contains(&slot) {
                chosen.push(slot);
            }
        }
        if !state.own_first {
            chosen.rotate_left(own);
        }
        chosen
    }

    /// The store of a slot, opened if it is not yet.
    async fn store(&self, slot: u32, give_up_at: Instant) -> Result<Arc<dyn LeaseStore>, Failure> {
        if let Some(store) = self.state().stores.get(&slot) {
            return Ok(Arc::clone(store));
        }
        let open = Arc::clone(&self.open);
        let opened = self.jobs.run(give_up_at, move || open(slot)).await;
        let name = &self.names[slot as usize];
        let store = opened
            .map_err(|_stalled| transient(format!("{name}: it could not be opened in time")))??;
        // The rules of the tenure were made for the first slot's lease, and hold for all of them.
        if store.info().lease != self.lease {
            return Err(fatal(format!(
                "{name}: it lies on another kind of mount than the other slots"
            )));
        }
        self.state().stores.insert(slot, Arc::clone(&store));
        Ok(store)
    }

    /// Tries one slot. After an error nothing is ours of it, unless it stays in `perhaps`.
    async fn try_slot(&self, slot: u32, give_up_at: Instant) -> Result<Grant, Failure> {
        let store = self.store(slot, give_up_at).await?;
        // Written down before it is asked for: this call can be dropped at any await.
        self.state().perhaps.insert(slot);
        let failure = match store.acquire(give_up_at).await {
            Ok(grant) => {
                let mut state = self.state();
                state.perhaps.remove(&slot);
                state.held = Some(slot);
                // After a tenure the same slot is tried first: a command that keeps something by its
                // TRAFFICCOP_SLOT finds it again.
                state.next = slot;
                state.holders.clear();
                return Ok(grant);
            }
            Err(failure) => failure,
        };
        if let Failure::Held(holder) = &failure {
            let mut state = self.state();
            state.perhaps.remove(&slot);
            state.told.remove(&slot);
            state.holders.insert(slot, holder.clone());
            return Err(failure);
        }
        // Undone before the next slot is tried: of two slots that both turn out to be ours one would have a
        // holder who does not know of it.
        let limit = give_up_at.min(Instant::now() + UNDO);
        if is_settled(&store.release(limit).await) {
            self.state().perhaps.remove(&slot);
        }
        Err(failure)
    }

    /// Trouble with one slot, told once where the others hide it.
    fn tell(&self, slot: u32, failure: &Failure) {
        if self.state().told.insert(slot) {
            tracing::warn!("slot {slot} is not available: {failure}; trying the others");
        }
    }

    /// All of the slots' holders as one, the same as long as they are the same.
    fn holder_info(&self, draining: bool) -> HolderInfo {
        let state = self.state();
        let names = state.holders.values().filter_map(|one| one.holder.clone());
        let names: Vec<String> = names.collect();
        // Where only some are looked at in turn, the list would change with every look.
        let all = self.count() <= LOOKS && !names.is_empty();
        HolderInfo {
            holder: all.then(|| names.join(", ")),
            draining,
            expires: state.holders.values().filter_map(|one| one.expires).min(),
            // Of one of them, for as long as it is there; standbys that began at different slots listen
            // to different holders.
            bell: self.attended(&state.holders),
            polls_as_ever: true,
            ..HolderInfo::default()
        }
    }

    fn attended(&self, holders: &BTreeMap<u32, HolderInfo>) -> Option<Box<Bell>> {
        let from_first = holders
            .range(self.first..)
            .chain(holders.range(..self.first));
        from_first.filter_map(|(_, one)| one.bell.clone()).next()
    }

    fn held(&self) -> Option<Arc<dyn LeaseStore>> {
        let state = self.state();
        state.stores.get(&state.held?).cloned()
    }
}

#[async_trait]
impl LeaseStore for Slots {
    fn info(&self) -> StoreInfo {
        let held = self.state().held;
        let name = held.map_or(&self.base, |slot| &self.names[slot as usize]);
        StoreInfo {
            name: name.clone(),
            slot: held.unwrap_or(0),
            lease: self.lease,
            ..StoreInfo::default()
        }
    }

    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure> {
        // One after another and not at once: two that are granted together would have to be given back again.
        let (mut seen, mut draining) = (false, false);
        let mut troubles: Vec<(u32, Failure)> = Vec::new();
        for (nth, slot) in self.choose().into_iter().enumerate() {
            if nth > 0 && Instant::now() >= give_up_at {
                break;
            }
            match self.try_slot(slot, give_up_at).await {
                Ok(grant) => return Ok(grant),
                Err(Failure::Held(holder)) => {
                    seen = true;
                    draining |= holder.draining;
                }
                Err(failure) => {
                    let answered = matches!(failure, Failure::Fatal { .. });
                    troubles.push((slot, failure));
                    let silent = troubles.iter().filter(|(_, why)| !is_fatal(why)).count();
                    // One slot in trouble must not hide the others; two are a store in trouble.
                    if !answered && (silent > 1 || self.state().perhaps.contains(&slot)) {
                        break;
                    }
                }
            }
        }
        // "Held" would end an instance that waits no more, with something of ours left in the store.
        let open = !self.state().perhaps.is_empty();
        if seen && !open {
            for (slot, failure) in &troubles {
                self.tell(*slot, failure);
            }
            return Err(Failure::Held(self.holder_info(draining)));
        }
        // Doubt goes before refusal: what is passing for one slot may be so for all.
        let worst = troubles.iter().position(|(_, why)| !is_fatal(why));
        match troubles.into_iter().nth(worst.unwrap_or(0)) {
            Some((_, failure)) => Err(failure),
            None => Err(transient(format!(
                "{}: no slot answered in time",
                self.base
            ))),
        }
    }

    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        match self.held() {
            Some(store) => store.renew(give_up_at).await,
            None => Err(lost(format!("{}: this instance has no slot", self.base))),
        }
    }

    async fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        let ours: Vec<(u32, Arc<dyn LeaseStore>)> = {
            let mut state = self.state();
            if let Some(held) = state.held.take() {
                // Until it is said: asked again by the next release, or found by the next attempt.
                state.perhaps.insert(held);
            }
            let stores = &state.stores;
            let ours = state.perhaps.iter();
            ours.filter_map(|slot| Some((*slot, Arc::clone(stores.get(slot)?))))
                .collect()
        };
        // All at once: each may take its whole time where the store does not answer.
        let replies = ours.iter().map(|(slot, store)| async move {
            let reply = store.release(give_up_at).await;
            if is_settled(&reply) {
                self.state().perhaps.remove(slot);
            }
            reply
        });
        let mut replies = futures::future::join_all(replies).await;
        // That control was taken from us is said here or never; the others stay in mind.
        replies.sort_by_key(|reply| !matches!(reply, Err(Failure::Lost { .. })));
        replies.into_iter().collect()
    }

    async fn update_record(
        &self,
        update: RecordUpdate,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        match self.held() {
            Some(store) => store.update_record(update, give_up_at).await,
            None => Ok(()),
        }
    }

    async fn leave(&self, give_up_at: Instant) {
        let stores: Vec<_> = self.state().stores.values().cloned().collect();
        let leave = stores.iter().map(|store| store.leave(give_up_at));
        futures::future::join_all(leave).await;
    }

    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        if let Some(held) = self.held() {
            return held.orphan_release();
        }
        let any = self.state().stores.values().next().cloned();
        let any = any.map(|store| store.orphan_release()).transpose()?;
        // No lock of it is ours.
        Ok(OrphanRelease {
            descriptor: None,
            release_info: any.and_then(|any| any.release_info),
        })
    }
}

/// The path of a slot.
#[must_use]
pub fn path_of(base: &Path, slot: u32) -> PathBuf {
    beside(base, format!(".{slot}"))
}

/// Nothing is ours of it any more, and nobody has to be asked again.
fn is_settled(reply: &Result<(), Failure>) -> bool {
    matches!(reply, Ok(()) | Err(Failure::Lost { .. }))
}

fn is_fatal(failure: &Failure) -> bool {
    matches!(failure, Failure::Fatal { .. })
}

#[cfg(test)]
mod tests;
