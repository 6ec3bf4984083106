//! Looks at a blob's lock without competing for it, lists a container's locks, breaks a lease.
//!
//! Called by the verbs. Only [`Inspector::break_lease`] changes anything, and only that lease.

use super::client::{BlobApi, LeaseState};
use super::metadata::{self, Metadata};
use super::{OpenError, Target};
use crate::azure::{Account, Operation, ServiceError};
use crate::clock::Instant;
use crate::core::Failure;
use crate::lease::inspect::{Broken, LockState, LockStatus, UNREAD};

/// A blob (or, for a listing, a container and a prefix), to be looked at.
pub struct Inspector {
    target: Target,
    pub(super) address: String,
    endpoint: url::Url,
    pub(super) client: BlobApi,
}

impl Inspector {
    /// Makes the clients; nothing is sent.
    ///
    /// # Errors
    /// An address that the official client refuses.
    pub fn open(target: Target, account: &Account) -> Result<Inspector, OpenError> {
        let endpoint = account.endpoint().clone();
        let (address, client) = super::connect(&target, account)?;
        Ok(Inspector {
            target,
            address,
            endpoint,
            client,
        })
    }

    /// The blob's address, without a secret.
    #[must_use]
    pub fn lock(&self) -> &str {
        &self.address
    }

    /// Looks, with one request.
    ///
    /// # Errors
    /// `Fatal` where the service refuses, `Transient` where it is not known.
    pub async fn look(&self, give_up_at: Instant) -> Result<LockStatus, Failure> {
        let name = self.target.title();
        match self.client.look(None, give_up_at).await {
            Ok(view) => {
                let version = view.etag;
                let seen = sighting(name, self.address.clone(), view.lease, view.metadata);
                Ok(LockStatus { version, ..seen })
            }
            Err(trouble) if trouble.code() == Some("BlobNotFound") => Ok(LockStatus {
                name,
                lock: self.address.clone(),
                state: LockState::Missing,
                record: None,
                flaw: None,
                unread: false,
                version: None,
            }),
            Err(trouble) => Err(self.unseen(&trouble, Operation::Look)),
        }
    }

    /// A name in a container that is not there is mistyped as likely as not.
    fn unseen(&self, trouble: &ServiceError, operation: Operation) -> Failure {
        match trouble.code() {
            Some("ContainerNotFound") => Failure::Fatal {
                why: format!(
                    "there is no container {}: the first who competes makes it, unless its name is mistyped",
                    self.target.container()
                ),
                denied: false,
            },
            _ => self.failure(trouble, operation),
        }
    }

    /// The locks whose names begin with the target's: blobs that bear our record.
    ///
    /// # Errors
    /// As [`Inspector::look`].
    pub async fn list(&self, give_up_at: Instant) -> Result<Vec<LockStatus>, Failure> {
        self.list_beside("", give_up_at).await
    }

    /// The same of those whose names begin with the target's and this.
    ///
    /// # Errors
    /// As [`Inspector::look`].
    pub async fn list_beside(
        &self,
        suffix: &str,
        give_up_at: Instant,
    ) -> Result<Vec<LockStatus>, Failure> {
        let prefix = format!("{}{suffix}", self.target.name());
        let found = self.client.list(&prefix, give_up_at).await;
        let found = found.map_err(|trouble| self.unseen(&trouble, Operation::List))?;
        let ours = found
            .into_iter()
            .filter(|(_, _, metadata)| metadata.record.is_some());
        Ok(ours
            .map(|(name, lease, metadata)| {
                let blob = self.target.named(&name);
                let address = blob.blob_url(&self.endpoint).to_string();
                sighting(blob.title(), address, lease, metadata)
            })
            .collect())
    }

    /// Breaks the lease after `period` seconds, or at its end; only if the blob is still at
    /// `version`.
    ///
    /// # Errors
    /// As [`Inspector::look`]. After `Transient` it may have been broken or not.
    pub async fn break_lease(
        &self,
        period: Option<u8>,
        version: Option<&str>,
        give_up_at: Instant,
    ) -> Result<Broken, Failure> {
        match self.client.break_lease(period, version, give_up_at).await {
            Ok(rest) => Ok(Broken::Within(rest)),
            Err(trouble) => match trouble.code() {
                Some("LeaseNotPresentWithLeaseOperation" | "LeaseAlreadyBroken") => {
                    Ok(Broken::Free)
                }
                Some("ConditionNotMet") => Ok(Broken::Changed),
                _ => Err(self.failure(&trouble, Operation::BreakLease)),
            },
        }
    }

    pub(super) fn failure(&self, trouble: &ServiceError, operation: Operation) -> Failure {
        match trouble.failure(operation, &self.address, false) {
            Failure::Transient { retry_after, .. } => Failure::Transient {
                why: format!("{}: {}", self.address, trouble.why()),
                retry_after,
            },
            other => other,
        }
    }
}

fn sighting(name: String, lock: String, lease: LeaseState, metadata: Metadata) -> LockStatus {
    LockStatus {
        name,
        lock,
        state: match lease {
            LeaseState::Free => LockState::Free,
            LeaseState::Leased => LockState::Held,
            LeaseState::Breaking => LockState::Breaking,
        },
        flaw: flaw(&metadata),
        unread: has_unread(&metadata),
        record: metadata.record,
        version: None,
    }
}

/// What is wrong with our part of the metadata.
fn flaw(metadata: &Metadata) -> Option<String> {
    if let Some(token) = &metadata.broken_token {
        return Some(format!(
            "the metadata trafficcop_token is `{token}`, not a number"
        ));
    }
    has_unread(metadata).then(|| UNREAD.to_owned())
}

/// Whether there are results that cannot be read.
pub(super) fn has_unread(metadata: &Metadata) -> bool {
    metadata.others.keys().any(|key| metadata::is_once(key))
}
