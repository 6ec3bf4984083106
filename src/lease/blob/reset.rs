//! Forgets results of tasks that are to be done once, in a blob's metadata.
//!
//! Called by the verb `reset`. All of it happens under a lease of its own, so that no instance can
//! have begun, or be just about to: it must never write without, nor anything but the results. The
//! token, the rest of the record and what others keep there stay as they are.

use azure_core::Uuid;

use super::inspect::{Inspector, has_unread};
use super::metadata::{self, Metadata};
use crate::azure::{Operation, ServiceError};
use crate::clock::Instant;
use crate::core::Failure;
use crate::lease::inspect::{ResetResult, Tasks};
use crate::lease::once::TaskLog;

/// How long the lease lasts if we die with it: the shortest there is.
const SECONDS: i32 = 15;

impl Inspector {
    /// Forgets these results, if nobody has the lease and they are still what was `shown`.
    ///
    /// # Errors
    /// As [`Inspector::look`]. After `Transient` they may be forgotten or not.
    pub async fn forget(
        &self,
        errands: &Tasks,
        shown: &TaskLog,
        give_up_at: Instant,
    ) -> Result<ResetResult, Failure> {
        let id = Uuid::new_v4().hyphenated().to_string();
        if let Err(trouble) = self.client.acquire(&id, SECONDS, give_up_at).await {
            return match trouble.code() {
                Some(
                    "LeaseAlreadyPresent"
                    | "LeaseIsBreakingAndCannotBeAcquired"
                    | "LeaseIsBrokenAndCannotBeRenewed",
                ) => Ok(ResetResult::Held),
                Some("BlobNotFound" | "ContainerNotFound") => Ok(ResetResult::Nothing),
                _ => {
                    if !trouble.is_refusal() {
                        self.give_back(&id, give_up_at).await;
                    }
                    Err(self.failure(&trouble, Operation::Acquire))
                }
            };
        }
        let done = self.forget_under(&id, errands, shown, give_up_at).await;
        self.give_back(&id, give_up_at).await;
        done
    }

    async fn forget_under(
        &self,
        id: &str,
        errands: &Tasks,
        shown: &TaskLog,
        give_up_at: Instant,
    ) -> Result<ResetResult, Failure> {
        let failed = |trouble: ServiceError, operation| self.failure(&trouble, operation);
        let view = self.client.look(Some(id), give_up_at).await;
        let view = view.map_err(|trouble| failed(trouble, Operation::Look))?;
        let mut metadata = view.metadata;
        if let Some(token) = &metadata.broken_token {
            return Err(Failure::Fatal {
                why: format!(
                    "the metadata trafficcop_token of {} is `{token}`, not a number: correct it first",
                    self.address
                ),
                denied: false,
            });
        }
        if !errands.are_same(shown, task_log(&metadata)) {
            return Ok(ResetResult::Changed);
        }
        if !leave(&mut metadata, errands) {
            return Ok(ResetResult::Nothing);
        }
        let metadata = match &metadata.record {
            Some(record) => metadata::write(&metadata.others, record),
            None => metadata.others.into_iter().collect(),
        };
        let etag = view.etag.as_deref();
        let written = self
            .client
            .set_metadata(id, etag, &metadata, give_up_at)
            .await;
        match written {
            Ok(_) => Ok(ResetResult::Done),
            Err(trouble) if trouble.code() == Some("ConditionNotMet") => Ok(ResetResult::Changed),
            Err(trouble) => Err(failed(trouble, Operation::Record)),
        }
    }

    async fn give_back(&self, id: &str, give_up_at: Instant) {
        if let Err(trouble) = self.client.release(id, give_up_at).await {
            tracing::warn!(
                "the lease could not be given back, and keeps others out for {SECONDS} seconds: {}",
                trouble.why()
            );
        }
    }
}

fn task_log(metadata: &Metadata) -> &TaskLog {
    static NOTHING: TaskLog = TaskLog::EMPTY;
    let record = metadata.record.as_ref();
    record.map_or(&NOTHING, |record| &record.once)
}

/// Takes them out of the metadata; whether there was anything.
fn leave(metadata: &mut Metadata, errands: &Tasks) -> bool {
    let record = metadata.record.as_mut();
    let left = record.is_some_and(|record| errands.leave(&mut record.once));
    let unread = *errands == Tasks::All && has_unread(metadata);
    if unread {
        metadata.others.retain(|key, _| !metadata::is_once(key));
    }
    left || unread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_the_results_is_left_out() {
        let there = [
            ("owner", "somebody"),
            ("trafficcop_token", "7"),
            ("trafficcop_holder", "web1"),
            ("trafficcop_draining", "true"),
            (
                "trafficcop_once",
                r#"[{"key":"a","over":{"exit":0,"token":6,"by":"b","at":"c"}},{"key":"d","tries":{"failed":1,"token":7}}]"#,
            ),
        ];
        let mut metadata = metadata::read(there.into_iter());
        let before = metadata.clone();
        assert!(!leave(&mut metadata, &Tasks::Of("c".into())));
        assert_eq!(metadata, before);
        assert!(leave(&mut metadata, &Tasks::Of("a".into())));
        let record = metadata.record.clone().expect("a record");
        assert_eq!((record.token, &*record.holder), (7, "web1"));
        assert!(record.draining);
        assert_eq!(record.once.entries().len(), 1);
        assert_eq!(metadata.others, before.others);
        assert!(leave(&mut metadata, &Tasks::All));
        assert_eq!(task_log(&metadata), &TaskLog::EMPTY);
        assert!(!leave(&mut metadata, &Tasks::All));
    }

    #[test]
    fn what_cannot_be_read_is_forgotten_only_with_all() {
        let there = [("Owner", "somebody"), ("trafficcop_once", "[{")];
        let mut metadata = metadata::read(there.into_iter());
        assert!(has_unread(&metadata));
        assert!(!leave(&mut metadata, &Tasks::Of("a".into())));
        assert!(leave(&mut metadata, &Tasks::All));
        assert_eq!(metadata.others.keys().collect::<Vec<_>>(), ["Owner"]);
    }
}
