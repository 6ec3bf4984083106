//! At most N holders: one store made of N, of which this instance holds one.
//!
//! The slots are the locks `NAME.0` to `NAME.N-1`, each with its own fencing token and record. An instance
//! begins at a random slot. It looks at no more than four in one attempt, unless it makes only one: so none
//! floods the store. It must never hold two slots, nor forget what an unanswered attempt may have obtained.
//!
//! It wakes no instance. The kernel hands a file's lock to a waiter. One that waits at every slot would get
//! locks that it does not want, each missing until it is given back. So slots are polled.

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

// If a hundred instances each looked at a hundred slots every two seconds, a storage account would answer 503.
const LOOKS: usize = 4;
// A slot that hangs must not cost the looks at the others.
const UNDO: Duration = Duration::from_secs(1);

/// Opens the store of a slot. It may block, and has its own thread except for the first.
pub type Opener = dyn Fn(u32) -> Result<Arc<dyn LeaseStore>, Failure> + Send + Sync;

/// Store of N locks.
pub struct Slots {
    base: String,
    names: Vec<String>,
    lease: Option<Duration>,
    looks: usize,
    first: u32,
    open: Arc<Opener>,
    jobs: BlockingJobs,
    state: Mutex<SlotsState>,
}

struct SlotsState {
    // Opening the other slots would cost descriptors, and create files.
    stores: BTreeMap<u32, Arc<dyn LeaseStore>>,
    next: u32,
    held: Option<u32>,
    // Whether this attempt begins with slots that it may hold. Every other attempt ends with them: one that
    // never answers must not keep it from the others.
    own_first: bool,
    // Slots that this instance may hold. A forgotten one would be out of reach until its lease ends.
    perhaps: BTreeSet<u32>,
    holders: BTreeMap<u32, HolderInfo>,
    /// Slots whose trouble was reported and has not ended.
    told: BTreeSet<u32>,
}

impl Slots {
    /// Makes slots beside `lock`, and opens one of them. Synchronous, for the time before there are threads.
    ///
    /// # Errors
    /// If that one cannot be a lock, or the last one's name would be too long.
    pub fn open(
        lock: Arc<dyn NamedLock>,
        count: u32,
        competitor: Competitor,
    ) -> Result<Slots, OpenError> {
        // If the longest name is valid, all are.
        lock.slot(count - 1)?;
        // At random: instances that start together would all try slot 0 first.
        let first = fastrand::u32(0..count);
        let open = move |slot| lock.slot(slot)?.open(&competitor);
        let store = open(first)?;
        let open = Arc::new(move |slot| Ok(open(slot)?));
        Ok(Slots::over(count, first, store, open))
    }

    /// Makes a store of `count` slots; `store` is that of `first`. Their names end with a dot and the number.
    ///
    /// # Panics
    /// If `first` is no slot.
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
            state: Mutex::new(SlotsState {
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

    /// Makes each attempt look at all slots.
    #[must_use]
    pub fn looking_at_all(mut self) -> Slots {
        self.looks = self.count();
        self
    }

    fn state(&self) -> MutexGuard<'_, SlotsState> {
        lock(&self.state)
    }

    fn count(&self) -> usize {
        self.names.len()
    }

    /// Chooses this attempt's slots: those that it may hold, and the next in turn.
    fn choose(&self) -> Vec<u32> {
        let mut state = self.state();
        state.own_first = !state.own_first;
        if let Some(left) = state.held.take() {
            // A lost lease runs out by itself; a look finds what is left of it.
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

    async fn store(&self, slot: u32, give_up_at: Instant) -> Result<Arc<dyn LeaseStore>, Failure> {
        if let Some(store) = self.state().stores.get(&slot) {
            return Ok(Arc::clone(store));
        }
        let open = Arc::clone(&self.open);
        let opened = self.jobs.run(give_up_at, move || open(slot)).await;
        let name = &self.names[slot as usize];
        let store = opened
            .map_err(|_stalled| transient(format!("{name}: it could not be opened in time")))??;
        // The tenure's rules were made for the first slot's lease.
        if store.info().lease != self.lease {
            return Err(fatal(format!(
                "{name}: it lies on another kind of mount than the other slots"
            )));
        }
        self.state().stores.insert(slot, Arc::clone(&store));
        Ok(store)
    }

    /// Tries one slot. After an error this instance holds nothing of it, unless it stays in `perhaps`.
    async fn try_slot(&self, slot: u32, give_up_at: Instant) -> Result<Grant, Failure> {
        let store = self.store(slot, give_up_at).await?;
        // Before sending: this call can be dropped at any await.
        self.state().perhaps.insert(slot);
        let failure = match store.acquire(give_up_at).await {
            Ok(grant) => {
                let mut state = self.state();
                state.perhaps.remove(&slot);
                state.held = Some(slot);
                // For a command that keeps something by its TRAFFICCOP_SLOT.
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
        // Before trying the next slot: otherwise this instance could hold two.
        let limit = give_up_at.min(Instant::now() + UNDO);
        if is_settled(&store.release(limit).await) {
            self.state().perhaps.remove(&slot);
        }
        Err(failure)
    }

    fn tell(&self, slot: u32, failure: &Failure) {
        if self.state().told.insert(slot) {
            tracing::warn!("slot {slot} is not available: {failure}; trying the others");
        }
    }

    /// Merges the slots' holders into one.
    fn holder_info(&self, draining: bool) -> HolderInfo {
        let state = self.state();
        let names = state.holders.values().filter_map(|one| one.holder.clone());
        let names: Vec<String> = names.collect();
        // If only some are looked at, the list would change with every look.
        let all = self.count() <= LOOKS && !names.is_empty();
        HolderInfo {
            holder: all.then(|| names.join(", ")),
            draining,
            expires: state.holders.values().filter_map(|one| one.expires).min(),
            // Standbys that began at different slots listen to different holders.
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
        // Of two granted together one would have to be given back.
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
                    // One slot in trouble must not hide the others; two mean a store in trouble.
                    if !answered && (silent > 1 || self.state().perhaps.contains(&slot)) {
                        break;
                    }
                }
            }
        }
        // "Held" would end an instance that does not wait, perhaps with a slot left held.
        let open = !self.state().perhaps.is_empty();
        if seen && !open {
            for (slot, failure) in &troubles {
                self.tell(*slot, failure);
            }
            return Err(Failure::Held(self.holder_info(draining)));
        }
        // Doubt goes before refusal: trouble that passes for one slot may pass for all.
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
                // Until the store confirms it.
                state.perhaps.insert(held);
            }
            let stores = &state.stores;
            let ours = state.perhaps.iter();
            ours.filter_map(|slot| Some((*slot, Arc::clone(stores.get(slot)?))))
                .collect()
        };
        // Each may take its whole time if the store does not answer.
        let replies = ours.iter().map(|(slot, store)| async move {
            let reply = store.release(give_up_at).await;
            if is_settled(&reply) {
                self.state().perhaps.remove(slot);
            }
            reply
        });
        let mut replies = futures::future::join_all(replies).await;
        // Report a slot that was taken away: no later call does.
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
        Ok(OrphanRelease {
            descriptor: None,
            release_info: any.and_then(|any| any.release_info),
        })
    }
}

/// Returns the path of a slot.
#[must_use]
pub fn path_of(base: &Path, slot: u32) -> PathBuf {
    beside(base, format!(".{slot}"))
}

/// Whether nothing is held, and no request is left to make.
fn is_settled(reply: &Result<(), Failure>) -> bool {
    matches!(reply, Ok(()) | Err(Failure::Lost { .. }))
}

fn is_fatal(failure: &Failure) -> bool {
    matches!(failure, Failure::Fatal { .. })
}

#[cfg(test)]
mod tests;
