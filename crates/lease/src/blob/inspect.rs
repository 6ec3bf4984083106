//! Looks at blobs' locks, and intervenes in them.
//!
//! A break changes only that lease. Forgetting writes only the results, under its own lease: no instance can
//! have begun, or be about to.

use std::time::Duration;

use async_trait::async_trait;

use super::client::{BlobApi, LeaseState};
use super::metadata::{self, Metadata};
use super::{OpenError, Target, fresh_lease_id, is_taken};
use crate::errors::fatal;
use crate::inspect::{
    BreakResult, FORGETTING, Inspector, LockState, LockStatus, REQUEST, ResetResult, Tasks,
    UNREADABLE,
};
use crate::once::TaskLog;
use trafficcop_azure::{Account, Operation, ServiceError};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;

// The holder writes at the start of a tenure or a drain, and with a result.
pub(super) const LOOKS: usize = 3;
// Shorter than a poll, or a standby is always first.
const AGAIN: Duration = Duration::from_millis(250);
// The shortest lease, in case this process dies with it.
const SECONDS: i32 = 15;
/// Longest lease with an end, and longest break, in seconds.
const LONGEST: u8 = 60;

/// Inspector of a blob, or of a container and a prefix.
pub struct BlobInspector {
    target: Target,
    address: String,
    account: Account,
    client: BlobApi,
}

impl BlobInspector {
    /// Makes the clients; sends nothing.
    ///
    /// # Errors
    /// If the official client refuses the address.
    pub fn open(target: Target, account: &Account) -> Result<BlobInspector, OpenError> {
        let account = account.clone();
        let (address, client) = super::connect(&target, &account)?;
        Ok(BlobInspector {
            target,
            address,
            account,
            client,
        })
    }

    /// A missing container may be a mistyped name.
    fn unseen(&self, error: &ServiceError, operation: Operation) -> Failure {
        match error.code() {
            Some("ContainerNotFound") => fatal(format!(
                "there is no container {}: the first 'run' creates it; or check its name",
                self.target.container()
            )),
            _ => self.failure(error, operation),
        }
    }

    fn failure(&self, error: &ServiceError, operation: Operation) -> Failure {
        match error.failure(operation, &self.address, false) {
            Failure::Transient { retry_after, .. } => Failure::Transient {
                why: format!("{}: {}", self.address, error.why()),
                retry_after,
            },
            other => self.account.naming_the_credential(other),
        }
    }

    async fn forget_now(
        &self,
        tasks: &Tasks,
        shown: &TaskLog,
        give_up_at: Instant,
    ) -> Result<ResetResult, Failure> {
        // Chosen here, to give it back even after a lost answer.
        let id = fresh_lease_id();
        if let Err(error) = self.client.acquire(&id, SECONDS, give_up_at).await {
            return match error.code() {
                _ if is_taken(&error) => Ok(ResetResult::Held),
                Some("BlobNotFound" | "ContainerNotFound") => Ok(ResetResult::Nothing),
                _ => {
                    // It may have succeeded, and would shut everyone out.
                    if !error.is_refusal() {
                        self.give_back(&id, give_up_at).await;
                    }
                    Err(self.failure(&error, Operation::Acquire))
                }
            };
        }
        let done = self.forget_under(&id, tasks, shown, give_up_at).await;
        self.give_back(&id, give_up_at).await;
        done
    }

    async fn forget_under(
        &self,
        id: &str,
        tasks: &Tasks,
        shown: &TaskLog,
        give_up_at: Instant,
    ) -> Result<ResetResult, Failure> {
        let view = self.client.look(Some(id), give_up_at).await;
        let view = view.map_err(|error| self.failure(&error, Operation::Look))?;
        // Writing the record would replace it by a number, and the token could go back.
        if let Some(token) = &view.metadata.broken_token {
            return Err(fatal(format!(
                "the metadata trafficcop_token of {} is '{token}', not a number: set it to a number \
                 greater than every fencing token given out so far",
                self.address
            )));
        }
        let metadata = match without(view.metadata, tasks, shown) {
            Ok(Metadata {
                record: Some(record),
                others,
                ..
            }) => metadata::write(&others, &record),
            Ok(Metadata { others, .. }) => others.into_iter().collect(),
            Err(nothing) => return Ok(nothing),
        };
        // The ETag guards against a lease that ran out meanwhile.
        let etag = view.etag.as_deref();
        let written = self.client.set_metadata(id, etag, &metadata, give_up_at);
        match written.await {
            Ok(_) => Ok(ResetResult::Done),
            Err(error) if error.code() == Some("ConditionNotMet") => Ok(ResetResult::Changed),
            Err(error) => Err(self.failure(&error, Operation::Record)),
        }
    }

    async fn give_back(&self, id: &str, give_up_at: Instant) {
        if let Err(error) = self.client.release(id, give_up_at).await {
            tracing::warn!(
                "the lease could not be given back, and keeps other instances out for {SECONDS} seconds: {}",
                error.why()
            );
        }
    }
}

#[async_trait]
impl Inspector for BlobInspector {
    async fn look(&self, give_up_at: Instant) -> Result<LockStatus, Failure> {
        let name = self.target.title();
        match self.client.look(None, give_up_at).await {
            Ok(view) => {
                // Its failure must not hide the rest.
                let data = self.client.data(&view, give_up_at).await.unwrap_or(0);
                let tag = view.etag;
                let seen = status(
                    &self.target,
                    self.address.clone(),
                    view.lease,
                    view.metadata,
                );
                Ok(LockStatus { tag, data, ..seen })
            }
            Err(error) if error.code() == Some("BlobNotFound") => Ok(LockStatus {
                name,
                lock: self.address.clone(),
                ..LockStatus::default()
            }),
            Err(error) => Err(self.unseen(&error, Operation::Look)),
        }
    }

    async fn list(&self, suffix: &str, give_up_at: Instant) -> Result<Vec<LockStatus>, Failure> {
        let prefix = format!("{}{suffix}", self.target.name());
        let found = self.client.list(&prefix, give_up_at).await;
        let found = found.map_err(|error| self.unseen(&error, Operation::List))?;
        let ours = found.into_iter().filter(|(_, lease, metadata)| {
            metadata.record.is_some() || *lease == LeaseState::Endless
        });
        Ok(ours
            .map(|(name, lease, metadata)| {
                let blob = self.target.named(&name);
                let address = blob.blob_url(self.account.endpoint()).to_string();
                status(&blob, address, lease, metadata)
            })
            .collect())
    }

    async fn break_lease(
        &self,
        mut seen: LockStatus,
        period: Option<u8>,
        _by: &str,
    ) -> Result<BreakResult, Failure> {
        // A break cannot name a lease: the ETag of what was shown protects every other. The record's token
        // recognises a holder that wrote meanwhile.
        let tenure = |seen: &LockStatus| seen.record.as_ref().map(|record| record.token);
        let shown = tenure(&seen);
        // No lease of trafficcop lasts longer. Without a period the service would end another program's endless
        // lease at once.
        let period = period.or(Some(LONGEST));
        for _ in 0..LOOKS {
            let limit = Instant::now() + REQUEST;
            let tag = seen.tag.as_deref();
            let error = match self.client.break_lease(period, tag, limit).await {
                Ok(rest) => return Ok(BreakResult::Within(rest)),
                Err(error) => error,
            };
            match error.code() {
                Some("LeaseNotPresentWithLeaseOperation" | "LeaseAlreadyBroken") => {
                    return Ok(BreakResult::Free);
                }
                Some("ConditionNotMet") => {}
                _ => return Err(self.failure(&error, Operation::BreakLease)),
            }
            seen = self.look(Instant::now() + REQUEST).await?;
            match seen.state {
                LockState::Missing | LockState::Free => return Ok(BreakResult::Free),
                LockState::Held | LockState::Breaking if tenure(&seen) == shown => {}
                LockState::Held | LockState::Breaking => break,
            }
        }
        Ok(BreakResult::Changed)
    }

    async fn forget(
        &self,
        tasks: &Tasks,
        seen: LockStatus,
        force: bool,
    ) -> Result<ResetResult, Failure> {
        let shown = seen.task_log();
        let limit = || Instant::now() + FORGETTING;
        if !force {
            return self.forget_now(tasks, &shown, limit()).await;
        }
        // The holder can stop its command before its lease ends.
        let rest = match self.break_lease(seen, None, "").await? {
            BreakResult::Within(rest) => rest,
            BreakResult::Free => Duration::ZERO,
            BreakResult::Changed | BreakResult::Overtaken => return Ok(ResetResult::Held),
        };
        let give_up_at = Instant::now() + rest + REQUEST;
        loop {
            match self.forget_now(tasks, &shown, limit()).await? {
                ResetResult::Held if Instant::now() < give_up_at => {
                    tokio::time::sleep(AGAIN).await;
                }
                went => return Ok(went),
            }
        }
    }
}

fn status(target: &Target, lock: String, lease: LeaseState, metadata: Metadata) -> LockStatus {
    let unreadable = metadata.has_unread_results();
    let broken = metadata.broken_token.as_ref();
    let broken =
        broken.map(|token| format!("the metadata trafficcop_token is '{token}', not a number"));
    let foreign = (lease == LeaseState::Endless).then(|| {
        format!(
            "leased by another program, without an end: no instance gets control until '{}' ends the lease",
            target.how_to_break(&lock)
        )
    });
    LockStatus {
        name: target.title(),
        lock,
        state: match lease {
            LeaseState::Free => LockState::Free,
            LeaseState::Leased | LeaseState::Endless => LockState::Held,
            LeaseState::Breaking => LockState::Breaking,
        },
        foreign: foreign.is_some(),
        problem: foreign
            .or(broken)
            .or_else(|| unreadable.then(|| UNREADABLE.to_owned())),
        unreadable,
        record: metadata.record,
        ..LockStatus::default()
    }
}

fn without(
    mut metadata: Metadata,
    tasks: &Tasks,
    shown: &TaskLog,
) -> Result<Metadata, ResetResult> {
    let unreadable = metadata.has_unread_results();
    let left = tasks.remaining_of(metadata.task_log(), unreadable, shown)?;
    if let Some(record) = &mut metadata.record {
        record.once = left;
    }
    metadata.others.retain(|key, _| !metadata::is_once(key));
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgetting_removes_only_the_results() {
        let there = [
            ("owner", "somebody"),
            ("trafficcop_token", "7"),
            ("trafficcop_holder", "web1"),
            ("trafficcop_draining", "true"),
            (
                "trafficcop_once",
                concat!(
                    r#"[{"key":"a","over":{"exit":0,"token":6,"by":"b","at":"c"}},"#,
                    r#"{"key":"d","tries":{"failed":1,"token":7}}]"#
                ),
            ),
        ];
        let before = metadata::read(there.into_iter());
        let leave = |metadata: &Metadata, tasks: &Tasks| {
            let shown = metadata.task_log().clone();
            without(metadata.clone(), tasks, &shown)
        };
        let nothing = leave(&before, &Tasks::Of("c".into()));
        assert_eq!(nothing, Err(ResetResult::Nothing));
        let metadata = leave(&before, &Tasks::Of("a".into())).expect("left out");
        let record = metadata.record.clone().expect("a record");
        assert_eq!((record.token, &*record.holder), (7, "web1"));
        assert!(record.draining);
        assert_eq!(record.once.entries().len(), 1);
        assert_eq!(metadata.others, before.others);
        let changed = without(before, &Tasks::All, metadata.task_log());
        assert_eq!(changed, Err(ResetResult::Changed));
        let metadata = leave(&metadata, &Tasks::All).expect("left out");
        assert_eq!(metadata.task_log(), &TaskLog::EMPTY);
        assert_eq!(leave(&metadata, &Tasks::All), Err(ResetResult::Nothing));
    }

    #[test]
    fn unreadable_results_are_forgotten_only_with_all() {
        let there = [("Owner", "somebody"), ("trafficcop_once", "[{")];
        let metadata = metadata::read(there.into_iter());
        assert!(metadata.has_unread_results());
        let of = without(metadata.clone(), &Tasks::Of("a".into()), &TaskLog::EMPTY);
        assert_eq!(of, Err(ResetResult::Changed));
        let left = without(metadata, &Tasks::All, &TaskLog::EMPTY).expect("left out");
        assert_eq!(left.others.keys().collect::<Vec<_>>(), ["Owner"]);
    }
}
