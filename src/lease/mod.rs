//! The stores: one trait, one file per store, and the record that a holder leaves for people.
//!
//! A store speaks to its service and maps what it hears to the four meanings of
//! [`Failure`]; it decides nothing. It never knows a process, and `supervise` never knows a store.

pub mod blob;
pub mod file;
pub mod record;
pub mod slots;

/// What the guardian calls after the supervisor's death: see [`Store::will`].
pub use blob::execute_will;

use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Instant;
use crate::core::{Failure, Grant};

/// What the core must know of a store before it makes its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// For how long a grant or a renewal lasts. `None`: as long as somebody has the lock's
    /// descriptor open, so there is no deadline.
    pub lease: Option<Duration>,
    /// The store wakes us by [`Store::freed`] when the lock can be had; otherwise it is polled.
    pub wakes: bool,
}

/// A lock in a store, as one instance competes for it.
///
/// All methods take `&self` and may be called while another call is under way, with one exception:
/// `acquire`, `renew` and `release` never overlap each other. Every method keeps its own time
/// limit (`give_up_at`), past which it returns [`Failure::Transient`]. An `acquire` or `release`
/// whose reply was lost is asked again with the same lease id by the next call.
#[async_trait]
pub trait Store: Send + Sync {
    /// The lock's address for people and for `TRAFFICCOP_LOCK`; never with a secret in it.
    fn name(&self) -> &str;

    /// Which of several locks is ours, from 0; for `TRAFFICCOP_SLOT`. Has a meaning only while we
    /// have control.
    fn slot(&self) -> u32 {
        0
    }

    /// The terms of this store.
    fn terms(&self) -> Terms;

    /// Looks whether the lock is free and, only if it is, acquires it, raises the fencing token
    /// and writes the record, all under the lease.
    ///
    /// # Errors
    /// `Held` if another has it; nothing is held by us after any error (an ambiguous acquire is
    /// remembered, and undone by the next `release` or recognised by the next `acquire`).
    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure>;

    /// Renews the lease we have (or beats the heart of a file's lock). The caller has stamped the
    /// moment before the call as `t0`.
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

    /// Says in the record that the holder has begun to drain. Best effort.
    ///
    /// # Errors
    /// Any, for the log only.
    async fn announce(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Resolves when the lock can be had now, for a store that [`Terms::wakes`]; else never.
    async fn freed(&self);

    /// The descriptor that guardian and command must keep open, so that the lock lives as long as
    /// anything of the tree. A duplicate that shares the lock; ask again after every successful
    /// `acquire`, because a store may have had to open its file anew.
    fn descriptor(&self) -> Option<OwnedFd>;

    /// What the guardian needs to give the lease we have back after our death (see
    /// [`execute_will`]); `None` where the kernel does that by itself. At most 2048 bytes, no
    /// secret in it.
    fn will(&self) -> Option<Vec<u8>>;
}
