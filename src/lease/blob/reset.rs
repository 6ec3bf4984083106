//! Forgets results of tasks that are to be done once, in a blob's metadata.
//!
//! Called by the verb `reset`. All of it happens under a lease of its own, so that no instance can
//! have begun, or be just about to: it must never write without, nor anything but the results. The
//! token, the rest of the record and what others keep there stay as they are.

use azure_core::Uuid;

use super::inspect::{Inspector, has_unread};
use super::notes::{self, Notes};
use crate::azure::{Operation, ServiceError};
use crate::clock::Instant;
use crate::core::Failure;
use crate::lease::inspect::{Errands, Forgotten};
use crate::lease::once::Ledger;

/// How long the lease lasts if we die with it: the shortest there is.
const SECONDS: i32 = 15;

impl Inspector {
    /// Forgets these results, if nobody has the lease and they are still what was `shown`.
    ///
    /// # Errors
    /// As [`Inspector::look`]. After `Transient` they may be forgotten or not.
    pub async fn forget(
        &self,
        errands: &Errands,
        shown: &Ledger,
        give_up_at: Instant,
    ) -> Result<Forgotten, Failure> {
        let id = Uuid::new_v4().hyphenated().to_string();
        if let Err(trouble) = self.wire.acquire(&id, SECONDS, give_up_at).await {
            return match trouble.code() {
                Some(
                    "LeaseAlreadyPresent"
                    | "LeaseIsBreakingAndCannotBeAcquired"
                    | "LeaseIsBrokenAndCannotBeRenewed",
                ) => Ok(Forgotten::Held),
                Some("BlobNotFound" | "ContainerNotFound") => Ok(Forgotten::Nothing),
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
        errands: &Errands,
        shown: &Ledger,
        give_up_at: Instant,
    ) -> Result<Forgotten, Failure> {
        let failed = |trouble: ServiceError, operation| self.failure(&trouble, operation);
        let view = self.wire.look(Some(id), give_up_at).await;
        let view = view.map_err(|trouble| failed(trouble, Operation::Look))?;
        let mut notes = view.notes;
        if let Some(token) = &notes.broken_token {
            return Err(Failure::Fatal {
                why: format!(
                    "the metadata trafficcop_token of {} is `{token}`, not a number: correct it first",
                    self.address
                ),
                denied: false,
            });
        }
        if !errands.are_same(shown, ledger(&notes)) {
            return Ok(Forgotten::Changed);
        }
        if !leave(&mut notes, errands) {
            return Ok(Forgotten::Nothing);
        }
        let metadata = match &notes.record {
            Some(record) => notes::write(&notes.others, record),
            None => notes.others.into_iter().collect(),
        };
        let etag = view.etag.as_deref();
        let written = self
            .wire
            .set_metadata(id, etag, &metadata, give_up_at)
            .await;
        match written {
            Ok(_) => Ok(Forgotten::Done),
            Err(trouble) if trouble.code() == Some("ConditionNotMet") => Ok(Forgotten::Changed),
            Err(trouble) => Err(failed(trouble, Operation::Record)),
        }
    }

    async fn give_back(&self, id: &str, give_up_at: Instant) {
        if let Err(trouble) = self.wire.release(id, give_up_at).await {
            tracing::warn!(
                "the lease could not be given back, and keeps others out for {SECONDS} seconds: {}",
                trouble.why()
            );
        }
    }
}

fn ledger(notes: &Notes) -> &Ledger {
    static NOTHING: Ledger = Ledger::EMPTY;
    let record = notes.record.as_ref();
    record.map_or(&NOTHING, |record| &record.once)
}

/// Takes them out of the metadata; whether there was anything.
fn leave(notes: &mut Notes, errands: &Errands) -> bool {
    let record = notes.record.as_mut();
    let left = record.is_some_and(|record| errands.leave(&mut record.once));
    let unread = *errands == Errands::All && has_unread(notes);
    if unread {
        notes.others.retain(|key, _| !notes::is_once(key));
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
        let mut notes = notes::read(there.into_iter());
        let before = notes.clone();
        assert!(!leave(&mut notes, &Errands::Of("c".into())));
        assert_eq!(notes, before);
        assert!(leave(&mut notes, &Errands::Of("a".into())));
        let record = notes.record.clone().expect("a record");
        assert_eq!((record.token, &*record.holder), (7, "web1"));
        assert!(record.draining);
        assert_eq!(record.once.entries().len(), 1);
        assert_eq!(notes.others, before.others);
        assert!(leave(&mut notes, &Errands::All));
        assert_eq!(ledger(&notes), &Ledger::EMPTY);
        assert!(!leave(&mut notes, &Errands::All));
    }

    #[test]
    fn what_cannot_be_read_is_forgotten_only_with_all() {
        let there = [("Owner", "somebody"), ("trafficcop_once", "[{")];
        let mut notes = notes::read(there.into_iter());
        assert!(has_unread(&notes));
        assert!(!leave(&mut notes, &Errands::Of("a".into())));
        assert!(leave(&mut notes, &Errands::All));
        assert_eq!(notes.others.keys().collect::<Vec<_>>(), ["Owner"]);
    }
}
