//! The stores: one trait, one file per store, and the record that a holder leaves for people.
//!
//! A store speaks to its service and maps what it hears to the five meanings of
//! [`Failure`]; it decides nothing. It never knows a process, and `guardian` never knows a store.

pub mod blob;
pub mod file;
pub mod inspect;
pub mod mount;
pub mod once;
pub mod record;
mod release;
pub mod shared_file;
pub mod slots;

pub use release::release_orphaned;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Instant;
use crate::core::{Failure, Grant, Outcome};

/// Memory that the supervisor shares with the guardian that was forked from it. What it bears
/// stands there whole, whenever its writer dies.
pub trait SharedMemory: Send + Sync {
    /// Replaces what it bears.
    fn put(&self, bytes: &[u8]);
    /// What it bears, if anything was put there.
    fn take(&self) -> Option<Vec<u8>>;
}

/// What the core must know of a store before it makes its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    /// For how long a grant or a renewal lasts. `None`: as long as somebody has the lock's
    /// descriptor open, so there is no deadline.
    pub lease: Option<Duration>,
    /// The store wakes us by [`LeaseStore::until_free`] when the lock can be had; otherwise it is polled.
    pub wakes: bool,
}

/// A lock in a store, as one instance competes for it.
///
/// All methods take `&self` and may be called while another call is under way, with one exception:
/// `acquire`, `renew` and `release` never overlap each other. Every method keeps its own time
/// limit (`give_up_at`), past which it returns [`Failure::Transient`]. An `acquire` or `release`
/// whose reply was lost is asked again with the same lease id by the next call.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// The lock's address for people and for `TRAFFICCOP_LOCK`; never with a secret in it.
    fn name(&self) -> &str;

    /// Which of several locks is ours, from 0; for `TRAFFICCOP_SLOT`. Has a meaning only while we
    /// have control.
    fn slot(&self) -> u32 {
        0
    }

    /// The terms of this store.
    fn info(&self) -> StoreInfo;

    /// Looks whether the lock is free and, only if it is, acquires it, raises the fencing token
    /// and writes the record, all under the lease.
    ///
    /// A store with a task that is to be done once looks at its record, too: before, and again under
    /// the lease.
    ///
    /// # Errors
    /// `Held` if another has it, `AlreadyDone` if there is no task to do any more; nothing is held by us after any error (an ambiguous acquire is
    /// remembered, and undone by the next `release` or recognised by the next `acquire`).
    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure>;

    /// Renews the lease we have. The caller has stamped the moment before the call as `t0`; a store
    /// whose lock has no lease is never asked.
    ///
    /// # Errors
    /// `Lost` if it is definitely not ours any more; `Transient` for everything that is doubt.
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Gives the lease back, or undoes what an interrupted or ambiguous `acquire` may have
    /// obtained. Without either it does nothing.
    ///
    /// # Errors
    /// `Transient` if it could not be said; the lease then runs out by itself. `Lost` if it was
    /// ours, is not any more, and no request of ours can have given it back: somebody took it from
    /// us, or it has run out and was taken.
    async fn release(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Records what the run of the task came to that is to be done once, under the lease we have;
    /// asked again with the same outcome if that was in doubt. It may overlap a renewal, and never a
    /// release.
    ///
    /// # Errors
    /// `Lost` if the lease is not ours any more; then it may be recorded all the same only if an
    /// earlier attempt was in doubt. `Fatal` where no task is.
    async fn record(&self, _outcome: Outcome, _give_up_at: Instant) -> Result<(), Failure> {
        Err(Failure::Fatal {
            why: format!("{}: this store keeps no results", self.name()),
            denied: false,
        })
    }

    /// Which slot of time the present run belongs to, where a task is to be done once in each:
    /// its beginning (RFC 3339, UTC).
    fn period(&self) -> Option<String> {
        None
    }

    /// Says in the record that the holder has begun to drain. Best effort.
    ///
    /// # Errors
    /// Any, for the log only.
    async fn announce(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// We compete no more, whatever we were among those who wait: said to them as far as that can
    /// be done by then.
    async fn leave(&self, _give_up_at: Instant) {}

    /// Resolves when the lock can be had now, for a store that [`StoreInfo::wakes`]; else never.
    async fn until_free(&self);

    /// The descriptor that guardian and command must keep open, so that the lock lives as long as
    /// anything of the tree; `None`, if the lock does not hang on one. A duplicate that shares the
    /// lock; ask again after every successful `acquire`, because a store may have had to open its
    /// file anew.
    ///
    /// # Errors
    /// Those of dup(2). Nothing may be started without it then.
    fn descriptor(&self) -> io::Result<Option<OwnedFd>>;

    /// What the guardian needs to give the lease we have back after our death (see
    /// [`release_orphaned`]); `None` where the kernel does that by itself. At most 2048 bytes, no
    /// secret in it.
    fn release_info(&self) -> Option<Vec<u8>>;
}
