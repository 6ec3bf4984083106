//! Writes under the lease: the drain, the command's health, and a one-time task's result.
//!
//! A result is written only if no write came since: neither a late announcement nor the record of an earlier
//! attempt can remove it.
//!
//! A write needs the lease's id, so the blob has this instance's last write, if that was answered. Otherwise a
//! copy of this instance is in control as well, and that is reported. It must never take a write of this
//! instance for another's.

use super::metadata::{self, Metadata};
use super::{Blob, Held, is_gone};
use crate::errors::{fatal, lost, transient};
use crate::once::{NoRoom, TaskLog};
use trafficcop_azure::{Operation, ServiceError};
use trafficcop_core::clock::Instant;
use trafficcop_core::{Failure, Outcome};

// One or two other writes are this instance's own, with lost answers; more mean a second writer, which would be
// fought for ever.
const ROUNDS: usize = 4;

impl Blob {
    pub(super) fn hear(&self, date: Option<u64>) {
        if let (Some(task), Some(date)) = (&self.task, date) {
            task.hear(date, Instant::now());
        }
    }

    pub(super) fn check_task(&self, metadata: &Metadata) -> Result<(), Failure> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        // A task must not be done twice.
        if metadata.has_unread_results() {
            return Err(self.fatal(
                "the metadata trafficcop_once of",
                "cannot be read, so it is not known which tasks are done: \
                 correct it, or remove it to run all tasks again",
            ));
        }
        let result = task.result(metadata.task_log());
        result.map_or(Ok(()), |result| Err(Failure::AlreadyDone(result)))
    }

    /// Decides the run's period, and checks that its result will find room.
    pub(super) fn begin_task(&self, held: &Held) -> Result<(), Failure> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        // This machine's clock is no substitute: a fleet would not agree on the period.
        if task.lacks_the_time() {
            return Err(transient(
                "the service's answers have no Date, so the present period is not known".into(),
            ));
        }
        let by = &self.config.candidate.identity;
        let fits = |task_log: &TaskLog| metadata::fits(&held.others, &held.record, task_log);
        task.begin(&held.record.once, by, fits)
            .map_err(|NoRoom| self.no_room())?;
        Ok(())
    }

    pub(super) fn failed(&self, held: &Held) -> u32 {
        let task = self.task.as_ref();
        task.map_or(0, |task| task.failed(&held.record.once))
    }

    pub(super) async fn announce(
        &self,
        drains: bool,
        health: &str,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        let _alone = self.writing.lock().await;
        for _ in 0..ROUNDS {
            let Some(held) = self.state().held.clone() else {
                return Ok(());
            };
            let mut next = held.clone();
            next.record.tell(drains, health.to_owned());
            let Err((error, unanswered)) = self.put(&held, next, give_up_at).await else {
                return Ok(());
            };
            if is_gone(&error) {
                return Err(lost(error.why()));
            }
            if error.code() != Some("ConditionNotMet") || !unanswered {
                return Err(error.doubt(Operation::Record));
            }
            self.reread(held, give_up_at).await?;
        }
        Err(again_and_again())
    }

    /// Replaces the metadata. An error also tells whether the write before was unanswered.
    async fn put(
        &self,
        held: &Held,
        mut next: Held,
        give_up_at: Instant,
    ) -> Result<(), (ServiceError, bool)> {
        let unanswered = self.begin_to_write();
        // Only this instance writes under the lease. The condition keeps a delayed request from undoing a later
        // one.
        let metadata = metadata::write(&next.others, &next.record);
        let etag = held.etag.as_deref();
        let written = self
            .client
            .set_metadata(&held.id, etag, &metadata, give_up_at);
        match written.await {
            Ok(etag) => {
                (next.etag, next.unanswered) = (etag, false);
                self.replace_held(next);
                Ok(())
            }
            Err(error) => {
                self.not_written(&error, unanswered);
                Err((error, unanswered))
            }
        }
    }

    async fn reread(&self, held: Held, give_up_at: Instant) -> Result<Held, Failure> {
        let view = match self.client.look(Some(&held.id), give_up_at).await {
            Ok(view) => view,
            Err(error) if is_gone(&error) => return Err(lost(error.why())),
            Err(error) => return Err(error.doubt(Operation::Look)),
        };
        let mut known = held;
        known.etag = view.etag;
        known.record.once = view.metadata.task_log().clone();
        known.others = view.metadata.others;
        known.unanswered = false;
        self.replace_held(known.clone());
        Ok(known)
    }

    pub(super) async fn write_outcome(
        &self,
        outcome: &Outcome,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        let Some(task) = &self.task else {
            return Err(self.fatal("there is no task on", "so there is no result to record"));
        };
        let _alone = self.writing.lock().await;
        for _ in 0..ROUNDS {
            // The lease can be lost while an answer is under way.
            let Some(held) = self.state().held.clone() else {
                return Err(lost("there is no lease to record it under".to_owned()));
            };
            let mut next = held.clone();
            let by = &self.config.candidate.identity;
            let fits = |task_log: &TaskLog| metadata::fits(&held.others, &held.record, task_log);
            task.note(&mut next.record, outcome, by, fits)
                .map_err(|NoRoom| self.no_room())?;
            let Err((error, unanswered)) = self.put(&held, next, give_up_at).await else {
                self.prove(Operation::Record);
                return Ok(());
            };
            if is_gone(&error) {
                return Err(lost(error.why()));
            }
            if error.code() != Some("ConditionNotMet") {
                return Err(error.doubt(Operation::Record));
            }
            // An unanswered write came in between: perhaps the result itself.
            let known = self.reread(held, give_up_at).await?;
            let done = task.is_noted(&known.record);
            // Only an unanswered write can have put it there.
            if done && unanswered {
                return Ok(());
            }
            if done {
                return Err(lost(
                    "another instance recorded its result under the same lease: a copy of this machine ran it"
                        .to_owned(),
                ));
            }
        }
        Err(again_and_again())
    }

    pub(super) fn replace_held(&self, known: Held) {
        let mut state = self.state();
        if let Some(held) = state.held.as_mut().filter(|held| held.id == known.id) {
            let copied = held.copied;
            *held = Held { copied, ..known };
        }
    }

    fn no_room(&self) -> Failure {
        self.fatal(
            "the metadata of",
            "have no room for the result of --once: remove other metadata",
        )
    }

    fn fatal(&self, what: &str, why: &str) -> Failure {
        fatal(format!("{what} {} {why}", self.name))
    }
}

fn again_and_again() -> Failure {
    transient("another program changes the metadata again and again".to_owned())
}

impl Held {
    /// Returns the id, and the blob's ETag if only this instance writes.
    pub(super) fn known(&self) -> (String, Option<String>) {
        // After an unanswered write both ETags are possible.
        let etag = self.etag.clone().filter(|_| !self.unanswered);
        (self.id.clone(), etag)
    }
}

impl Blob {
    /// Notes that a write is sent, which may be carried out. Returns whether the one before was unanswered.
    pub(super) fn begin_to_write(&self) -> bool {
        let mut state = self.state();
        let held = state.held.as_mut();
        held.is_some_and(|held| std::mem::replace(&mut held.unanswered, true))
    }

    /// Notes a failed write; `unanswered` is what [`Blob::begin_to_write`] returned.
    pub(super) fn not_written(&self, error: &ServiceError, unanswered: bool) {
        if error.is_unclear() {
            return;
        }
        if let Some(held) = &mut self.state().held {
            held.unanswered = unanswered;
        }
        // No write of this instance can have changed the metadata.
        if error.code() == Some("ConditionNotMet") && !unanswered {
            self.tell_of_a_copy();
        }
    }

    /// Reports a copy if the blob's ETag is not the known one.
    pub(super) fn compare(&self, known: &(String, Option<String>), etag: Option<String>) {
        // A write may have been answered during this renewal, and changed the ETag.
        let now = self.state().held.as_ref().map(Held::known);
        let is_ours = etag.is_none() || known.1.is_none() || etag == known.1;
        if !is_ours && now.as_ref() == Some(known) {
            self.tell_of_a_copy();
        }
    }

    /// Reports a copy once: no other program knows the lease's id.
    fn tell_of_a_copy(&self) {
        let mut state = self.state();
        let held = state.held.as_mut();
        if held.is_some_and(|held| !std::mem::replace(&mut held.copied, true)) {
            drop(state);
            tracing::warn!(
                "{}: another instance writes under this lease: a copy of this machine \
                 (cloned, or restored from a snapshot) is in control as well, and both renew it: \
                 end one of the two",
                self.name
            );
        }
    }
}
