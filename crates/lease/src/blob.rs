//! Lock that is a lease on an Azure blob.
//!
//! It must never count an answer without its own lease id as control, nor let a fencing token go back. It must
//! not lease an id again after its release was sent, nor send secrets to anything but the service.
//!
//! **The fencing token** is a counter in the metadata. It is raised under the lease, if no write came since it
//! was read. On a blob without a token that this instance did not make, it begins with the seconds since 1970:
//! the metadata may have been replaced.
//!
//! **Other people's metadata** is kept; its keys come back in lower case, because HTTP headers have no case.

mod acquire;
mod broken;
mod client;
mod inspect;
#[doc(hidden)]
pub mod metadata;
mod orphan_release;
mod surroundings;
mod target;
mod update;

pub use acquire::data_warning;
pub use client::{BlobApi, LeaseState};
pub use inspect::BlobInspector;
pub(super) use orphan_release::release_orphaned;
pub use orphan_release::{prepare_orphan_release, release_orphaned_with};
pub use surroundings::Around;
pub use target::{Target, TargetError};

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;

use super::inspect::Inspector;
use super::once::OnceTask;
use super::record::Record;
use super::store::OpenError as NamedError;
use super::{Competitor, LeaseStore, LockInfo, NamedLock, OrphanRelease, RecordUpdate, StoreInfo};
use crate::errors::lost;
use trafficcop_azure::{Account, Operation, ServiceClock, ServiceError};
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::retry::Backoff;
use trafficcop_core::util::lock;
use trafficcop_core::{Failure, Grant};

// Repeats of a renewal whose answer belonged to an earlier request.
const AGAIN_AT_ONCE: usize = 2;

/// Lease on a blob, as it was named.
#[derive(Clone, Debug)]
pub struct BlobLock {
    /// Blob of the lock.
    pub target: Target,
    /// Storage account and credential.
    pub account: Account,
    /// Whether to create a missing blob and container.
    pub create: bool,
    /// Bytes (a multiple of 512) of a page blob, instead of a block blob.
    pub page_blob: Option<u64>,
}

impl NamedLock for BlobLock {
    fn info(&self) -> LockInfo {
        let endpoint = self.account.endpoint();
        let url = self.target.url().unwrap_or(endpoint);
        LockInfo {
            host: url.host_str().map(str::to_owned),
            // Opening it checks the lease.
            leases: Duration::ZERO..=Duration::MAX,
            shortest_break: Some(0),
            force_breaks: true,
            ..LockInfo::new(self.target.blob_url(endpoint).to_string(), "on a blob")
        }
    }

    fn open(&self, competitor: &Competitor) -> Result<Arc<dyn LeaseStore>, NamedError> {
        Ok(Arc::new(Blob::open(self, competitor)?))
    }

    fn slot(&self, slot: u32) -> Result<Arc<dyn NamedLock>, NamedError> {
        // A name of 1024 characters can be a lock, but has no slots.
        let target = self.target.with_suffix(&format!(".{slot}"));
        Ok(Arc::new(BlobLock {
            target: target.map_err(OpenError::Target)?,
            ..self.clone()
        }))
    }

    fn inspector(&self) -> Result<Box<dyn Inspector>, NamedError> {
        let inspector = BlobInspector::open(self.target.clone(), &self.account)?;
        Ok(Box::new(inspector))
    }
}

/// Reason why a store could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No such length of a lease.
    #[error("a lease on a blob lasts 15 to 60 whole seconds, not {0:?}")]
    Lease(Duration),
    /// No such size of a page blob.
    #[error("a page blob's size is a multiple of 512 bytes, not {0}")]
    PageBlob(u64),
    /// The official client refused the address.
    #[error("the blob's address cannot be used: {0}")]
    Address(String),
    /// The name is too long with a slot's number.
    #[error("with the number of its slot, {0}")]
    Target(#[from] TargetError),
}

/// Store of a blob's lock.
pub struct Blob {
    name: String,
    client: BlobApi,
    clock: Arc<ServiceClock>,
    seconds: i32,
    lock: BlobLock,
    config: Competitor,
    task: Option<OnceTask>,
    state: Mutex<BlobState>,
    data_is_told: AtomicBool,
    // Announcements and results are each written on the ETag of the one before. Of two at once one would be
    // refused, and take the other for a copy of this machine.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct BlobState {
    // Id of this series of attempts: after a lost answer the service recognises a repeated acquire (201). A
    // fresh id would wait for this instance's own lease to run out.
    proposed: Option<String>,
    /// Time of the last acquire under `proposed` that may have succeeded.
    perhaps: Option<Instant>,
    held: Option<Held>,
    /// Lease whose release is unconfirmed.
    spent: Option<Spent>,
    /// ETag when the lease was last seen free, and when it was first seen taken with that ETag.
    seen_free: Option<(String, Option<Instant>)>,
    // Greatest token seen: another program may strip the metadata between two looks.
    floor: u64,
    // Operations that succeeded, as a set of `1 << Operation`. A 403 to one of them will be mended (a token, a
    // clock); to any other it is a missing right.
    proven: u16,
}

#[derive(Clone)]
struct Held {
    id: String,
    record: Record,
    others: BTreeMap<String, String>,
    etag: Option<String>,
    // After an unanswered write an unknown ETag does not prove a copy of this instance.
    unanswered: bool,
    // Whether a second writer was reported.
    copied: bool,
    /// Whether the lease is being broken, and the core knows its end.
    breaking: bool,
}

/// Lease that is being given back.
#[derive(Clone)]
struct Spent {
    id: String,
    // Whether it was certainly held: then "not yours" means taken away.
    had: bool,
    // Whether an earlier release may have been carried out: then "not yours" means given back.
    unclear: Arc<AtomicBool>,
}

impl Spent {
    fn new(id: String, had: bool) -> Spent {
        Spent {
            id,
            had,
            unclear: Arc::default(),
        }
    }
}

enum Returned {
    /// Given back, or never this instance's.
    Done,
    /// Taken away, not by a request of this instance; with the reason.
    Taken(String),
}

impl Blob {
    /// Makes the store; sends nothing.
    ///
    /// # Errors
    /// If the service does not know the values.
    pub fn open(lock: &BlobLock, competitor: &Competitor) -> Result<Blob, OpenError> {
        let lease = competitor.lease;
        // The service would refuse only an acquire: a standby would fail when it is needed.
        let seconds = i32::try_from(lease.as_secs())
            .ok()
            .filter(|seconds| (15..=60).contains(seconds) && lease.subsec_nanos() == 0)
            .ok_or(OpenError::Lease(lease))?;
        if let Some(size) = lock.page_blob.filter(|size| size % 512 != 0) {
            return Err(OpenError::PageBlob(size));
        }
        let (name, client) = connect(&lock.target, &lock.account)?;
        Ok(Blob {
            name,
            client,
            clock: lock.account.service_clock(),
            seconds,
            lock: lock.clone(),
            config: competitor.clone(),
            task: competitor.task.clone().map(OnceTask::new),
            state: Mutex::default(),
            data_is_told: AtomicBool::default(),
            writing: tokio::sync::Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, BlobState> {
        lock(&self.state)
    }

    fn prove(&self, operation: Operation) {
        self.state().proven |= 1 << operation as u16;
    }

    fn is_breaking(&self) -> bool {
        self.state().held.as_ref().is_some_and(|held| held.breaking)
    }

    /// Maps an error outside a tenure.
    fn failure(&self, error: &ServiceError, operation: Operation) -> Failure {
        let proven = self.state().proven & (1 << operation as u16) != 0;
        let failure = error.failure(operation, &self.name, proven);
        self.lock.account.naming_the_credential(failure)
    }

    async fn release_until(
        client: &BlobApi,
        spent: &Spent,
        give_up_at: Instant,
    ) -> Result<Returned, ServiceError> {
        // Quickly at first: without an answer a standby waits for the lease to run out.
        let mut pauses = Backoff::new(Duration::from_millis(250), Duration::from_secs(2));
        loop {
            // Before sending: this call can be dropped at any await.
            let unclear = spent.unclear.swap(true, Ordering::Relaxed);
            let error = match client.release(&spent.id, give_up_at).await {
                Ok(()) => return Ok(Returned::Done),
                Err(error) if !is_gone(&error) => error,
                Err(error) if spent.had && !unclear => {
                    return Ok(Returned::Taken(error.why()));
                }
                Err(_) => return Ok(Returned::Done),
            };
            // Only an earlier request may still have been carried out.
            if !error.is_unclear() {
                spent.unclear.store(unclear, Ordering::Relaxed);
            }
            let wish = error.retry_after().unwrap_or_default();
            let pause = pauses.next_pause().max(wish);
            if give_up_at.since(Instant::now()) <= pause {
                return Err(error);
            }
            clock::sleep(pause).await;
        }
    }
}

/// Returns the blob's address without a secret, and its clients; sends nothing.
pub fn connect(target: &Target, account: &Account) -> Result<(String, BlobApi), OpenError> {
    let blob_url = target.blob_url(account.endpoint());
    let container_url = target.container_url(account.endpoint());
    let client = BlobApi::new(
        account.authorised(&blob_url),
        account.authorised(&container_url),
        &account.client_options(),
    )
    .map_err(|error| OpenError::Address(error.why()))?;
    Ok((blob_url.to_string(), client))
}

/// Makes an id that no lease has had.
// In lower case with hyphens: the service compares GUIDs, the emulator texts.
pub fn fresh_lease_id() -> String {
    azure_core::Uuid::new_v4().hyphenated().to_string()
}

fn is_gone(error: &ServiceError) -> bool {
    // Not by the status: 409 and 412 mean many things, and a loss kills the command at once.
    matches!(
        error.code(),
        Some(
            "LeaseIdMismatchWithLeaseOperation"
                | "LeaseNotPresentWithLeaseOperation"
                | "LeaseIdMismatchWithBlobOperation"
                | "LeaseNotPresentWithBlobOperation"
                | "LeaseLost"
                | "BlobNotFound"
                | "ContainerNotFound"
                | "ContainerBeingDeleted"
        )
    )
}

/// Whether another instance made the blob first.
fn is_there(error: &ServiceError) -> bool {
    matches!(
        error.code(),
        Some(
            // Azure answers 412 `LeaseIdMissing` where the blob is leased, the emulator 409.
            "BlobAlreadyExists"
                | "LeaseIdMissing"
                | "ConditionNotMet"
                | "UnauthorizedBlobOverwrite"
        )
    )
}

fn is_taken(error: &ServiceError) -> bool {
    matches!(
        error.code(),
        Some(
            "LeaseAlreadyPresent"
                | "LeaseIsBreakingAndCannotBeAcquired"
                | "LeaseIsBrokenAndCannotBeRenewed"
        )
    )
}

#[async_trait]
impl LeaseStore for Blob {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            name: self.name.clone(),
            period: self.task.as_ref().and_then(OnceTask::period),
            lease: Some(self.config.lease),
            ..StoreInfo::default()
        }
    }

    async fn acquire(&self, give_up_at: Instant) -> Result<Grant, Failure> {
        self.compete(give_up_at).await
    }

    async fn look_for_result(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.check_result(give_up_at).await
    }

    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        let known = self.state().held.as_ref().map(Held::known);
        let Some((id, known)) = known else {
            return Err(lost("no lease to renew".to_owned()));
        };
        let mut renewed = self.client.renew(&id, give_up_at).await;
        // At once, on another connection: the next attempt is seconds away.
        for _ in 0..AGAIN_AT_ONCE {
            if renewed == Err(ServiceError::Stale) {
                renewed = self.client.renew(&id, give_up_at).await;
            }
        }
        let error = match renewed {
            Ok(etag) => {
                self.prove(Operation::Renew);
                self.lock.account.tell();
                self.compare(&(id, known), etag);
                return Ok(());
            }
            Err(error) => error,
        };
        // Not yet lost: no other instance can acquire until the broken lease ends.
        if error.code() == Some("LeaseIsBrokenAndCannotBeRenewed") {
            let until = match self.rest_of_breaking(give_up_at).await {
                Ok(until) => until,
                // The earlier answer stands until there is another.
                Err(error) if self.is_breaking() => return Err(error.doubt(Operation::Break)),
                Err(_) => None,
            };
            let mut state = self.state();
            state.held = state.held.take().filter(|_| until.is_some());
            if let Some(held) = &mut state.held {
                held.breaking = true;
            }
            // Without an answer the end is now: otherwise an overlap would be possible.
            return Err(Failure::Lost {
                until,
                why: "the lease was broken".to_owned(),
            });
        }
        if is_gone(&error) {
            self.state().held = None;
            return Err(lost(error.why()));
        }
        // Even a 403 is doubt: the lease runs on, and rights come back.
        Err(error.doubt(Operation::Renew))
    }

    async fn release(&self, give_up_at: Instant) -> Result<(), Failure> {
        let spent = {
            let mut state = self.state();
            let held = state.held.take().map(|held| Spent::new(held.id, true));
            let perhaps = state.perhaps.take().and(state.proposed.clone());
            let ours = held.or(perhaps.map(|id| Spent::new(id, false)));
            let Some(spent) = ours.or(state.spent.clone()) else {
                return Ok(());
            };
            // From here on the id is never leased again: this release may arrive late.
            state.proposed = None;
            state.spent = Some(spent.clone());
            spent
        };
        // After an error it stays in `spent`: the next attempt asks again, because this lease may shut everyone
        // out.
        let returned = match Blob::release_until(&self.client, &spent, give_up_at).await {
            Ok(returned) => returned,
            Err(error) => return Err(error.doubt(Operation::Release)),
        };
        self.state().spent = None;
        self.prove(Operation::Release);
        match returned {
            Returned::Done => Ok(()),
            Returned::Taken(why) => Err(lost(why)),
        }
    }

    async fn update_record(
        &self,
        update: RecordUpdate,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        match update {
            RecordUpdate::Draining { health } => self.announce(true, &health, give_up_at).await,
            RecordUpdate::Health(health) => self.announce(false, &health, give_up_at).await,
            RecordUpdate::Outcome(outcome) => self.write_outcome(&outcome, give_up_at).await,
        }
    }

    fn orphan_release(&self) -> io::Result<OrphanRelease> {
        let lease = self.state().held.as_ref().map(|held| held.id.clone());
        // No key and no token: the guardian has the account since its fork.
        let release_info = lease.and_then(|lease| {
            serde_json::to_vec(&orphan_release::ReleaseInfo {
                blob: self.name.clone(),
                lease,
                clock: self.clock.ahead(),
            })
            .ok()
        });
        Ok(OrphanRelease {
            descriptor: None,
            // An encoded name can be too long; then the lease runs out.
            release_info: release_info.filter(|info| info.len() <= 2048),
        })
    }
}
