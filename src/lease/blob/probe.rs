//! Tries out, on a blob of its own beside the lock, everything that competing needs: one request
//! each, for `doctor`.
//!
//! Must never touch the lock's own blob, but for looking at it. The blob it makes is not a lock:
//! it bears no record.

use std::collections::HashMap;

use azure_core::Uuid;
use azure_core::time::OffsetDateTime;
use azure_storage_blob::{BlobServiceClient, BlobServiceClientOptions};

use super::client::{Around, BlobApi, LeaseState};
use super::{OpenError, Target};
use crate::azure::{Account, ServiceError};
use crate::clock::Instant;

/// How long the probe's lease lasts: the shortest there is.
const SECONDS: i32 = 15;

/// What the service says of itself and of the container along the way.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The service's clock, to the second.
    pub date: Option<OffsetDateTime>,
    /// How the server calls itself.
    pub server: Option<String>,
    /// Every write leaves a version of the blob behind.
    pub versioned: bool,
    /// What keeps the container's blobs from being changed.
    pub immutable: Option<&'static str>,
}

impl From<Around> for Surroundings {
    fn from(around: Around) -> Surroundings {
        Surroundings {
            date: around.date,
            server: around.server,
            versioned: around.versioned,
            immutable: around.immutable,
        }
    }
}

/// A blob to try things on.
pub struct Probe {
    name: String,
    lease: String,
    client: BlobApi,
    account: Account,
}

impl Probe {
    /// `NAME` followed by `suffix`, beside the lock; nothing is sent.
    ///
    /// # Errors
    /// A name that becomes too long, or an address that the official client refuses.
    pub fn beside(target: &Target, suffix: &str, account: &Account) -> Result<Probe, OpenError> {
        let (name, client) = super::connect(&target.with_suffix(suffix)?, account)?;
        Ok(Probe {
            name,
            lease: Uuid::new_v4().hyphenated().to_string(),
            client,
            account: account.clone(),
        })
    }

    /// The probe's address, without a secret.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Looks at it.
    ///
    /// # Errors
    /// The service's, as for all that follow.
    pub async fn look(&self, give_up_at: Instant) -> Result<Surroundings, ServiceError> {
        self.client.look_around(give_up_at).await.map(Into::into)
    }

    /// Looks at its container.
    ///
    /// # Errors
    /// See [`Probe::look`].
    pub async fn look_at_container(
        &self,
        give_up_at: Instant,
    ) -> Result<Surroundings, ServiceError> {
        let around = self.client.look_at_container(give_up_at).await;
        around.map(Into::into)
    }

    /// For how many days the account keeps what is deleted; `None`: it does not.
    ///
    /// # Errors
    /// See [`Probe::look`].
    pub async fn soft_delete(&self, give_up_at: Instant) -> Result<Option<i32>, ServiceError> {
        let options = BlobServiceClientOptions {
            client_options: self.account.client_options(),
            ..BlobServiceClientOptions::default()
        };
        let url = self.account.authorised(self.account.endpoint());
        let service = BlobServiceClient::new(url, None, Some(options))
            .map_err(|error| ServiceError::of(&error))?;
        let answer = crate::azure::limited(give_up_at, service.get_properties(None)).await?;
        let known = answer
            .into_model()
            .map_err(|error| ServiceError::of(&error))?;
        let policy = known.delete_retention_policy;
        Ok(policy
            .filter(|policy| policy.enabled == Some(true))
            .map(|policy| policy.days.unwrap_or(0)))
    }

    /// Creates it.
    ///
    /// # Errors
    /// See [`Probe::look`].
    pub async fn create(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        self.client.create_blob(None, give_up_at).await.map(drop)
    }

    /// Acquires its lease.
    ///
    /// # Errors
    /// See [`Probe::look`].
    pub async fn acquire(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        let lease = &self.lease;
        self.client
            .acquire(lease, SECONDS, give_up_at)
            .await
            .map(drop)
    }

    /// Renews it.
    ///
    /// # Errors
    /// See [`Probe::look`].
    pub async fn renew(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        let renewed = self.client.renew(&self.lease, give_up_at).await;
        renewed.map(drop)
    }

    /// Writes metadata under the lease.
    ///
    /// # Errors
    /// See [`Probe::look`].
    pub async fn write(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        // No key of a record: a listing shall not take it for a lock.
        let metadata = HashMap::from([("trafficcop_doctor".to_owned(), "1".to_owned())]);
        self.client
            .set_metadata(&self.lease, None, &metadata, give_up_at)
            .await
            .map(drop)
    }

    /// Gives the lease back.
    ///
    /// # Errors
    /// See [`Probe::look`].
    pub async fn release(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        self.client.release(&self.lease, give_up_at).await
    }

    /// Breaks the lease at once; whether it is free then.
    ///
    /// # Errors
    /// See [`Probe::look`].
    pub async fn break_lease(&self, give_up_at: Instant) -> Result<bool, ServiceError> {
        self.client.break_lease(Some(0), None, give_up_at).await?;
        let view = self.client.look(None, give_up_at).await?;
        Ok(view.lease == LeaseState::Free)
    }

    /// Deletes it.
    ///
    /// # Errors
    /// See [`Probe::look`].
    pub async fn delete(&self, give_up_at: Instant) -> Result<(), ServiceError> {
        self.client.delete(give_up_at).await
    }
}
