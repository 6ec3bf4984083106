//! What is written under the lease: that the holder drains, how its command is, and what a task came to that is to be done once,
//! whose time is the service's `Date`.
//!
//! Called by [`Blob`] while it competes, when a drain begins, when the command's health changes and when a run has ended. A result is written on
//! the condition that nobody wrote since: so an announcement that is still on its way cannot take it away
//! again, and neither can a record of an earlier attempt.
//!
//! Nobody can write there without the id of the lease, so what stands there is what we wrote last, if that
//! was answered: or a copy of us (a machine that was cloned, or restored from a snapshot) is in control as
//! well, and that is told. Only what is answered anyway is looked at. It must never take a write of ours for
//! another's.

use super::metadata::{self, Metadata};
use super::{Blob, Held, is_gone};
use crate::errors::{fatal, lost, transient};
use crate::once::{NoRoom, TaskLog};
use trafficcop_azure::{Operation, ServiceError};
use trafficcop_core::clock::Instant;
use trafficcop_core::{Failure, Outcome};

// How often a record is written anew in one attempt because something else was written meanwhile. That was a
// write of ours whose answer was lost, of which there is one or two; more are a second writer, who would be
// fought for ever.
const ROUNDS: usize = 4;

impl Blob {
    /// What the service's clock said in an answer that came just now.
    pub(super) fn hear(&self, date: Option<u64>) {
        if let (Some(task), Some(date)) = (&self.task, date) {
            task.hear(date, Instant::now());
        }
    }

    /// Whether there is anything to get control for.
    pub(super) fn check_task(&self, metadata: &Metadata) -> Result<(), Failure> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        // Refused and not run: a task that is done twice is what --once is there to prevent.
        if metadata.has_unread_results() {
            return Err(self.fatal("the metadata trafficcop_once of", "cannot be read, so it is not known which tasks are done: correct it, or remove it to run all tasks again"));
        }
        let result = task.result(metadata.task_log());
        result.map_or(Ok(()), |result| Err(Failure::AlreadyDone(result)))
    }

    /// Before a run, under the lease: which period it belongs to, and whether its result will find room.
    pub(super) fn begin_task(&self, held: &Held) -> Result<(), Failure> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        // Our own clock does not take its place: the machines of a fleet would not agree on the period.
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

    /// How often the task had failed in the present run's period before it.
    pub(super) fn failed(&self, held: &Held) -> u32 {
        let task = self.task.as_ref();
        task.map_or(0, |task| task.failed(&held.record.once))
    }

    /// Writes that the holder drains, or how its command is.
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
            // A write of ours was not answered, and was made.
            self.reread(held, give_up_at).await?;
        }
        Err(again_and_again())
    }

    /// Writes this in the place of what stands there; what went wrong, and whether a write before it was not answered.
    async fn put(
        &self,
        held: &Held,
        mut next: Held,
        give_up_at: Instant,
    ) -> Result<(), (ServiceError, bool)> {
        let unanswered = self.begin_to_write();
        // Nobody else can write while we have the lease, so what we know still stands there. On
        // condition all the same: what is delayed on its way must not undo what we wrote later.
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

    /// Takes in what stands there now, while we have the lease.
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

    /// See [`LeaseStore::update_record`](crate::LeaseStore::update_record).
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
            // Read anew in each round: the lease can be lost while we wait for an answer.
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
            // Something of ours was written whose reply we did not get: the result itself, perhaps.
            let known = self.reread(held, give_up_at).await?;
            let done = task.is_noted(&known.record);
            // A result of ours can only stand there if a write of ours went unanswered.
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

    /// What we know of the metadata has changed, unless the lease is another one by now.
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
    /// Its id, and the ETag of what stands there if nobody but us writes.
    pub(super) fn known(&self) -> (String, Option<String>) {
        // Of a write that was not answered both ETags are possible: then nothing is concluded from either.
        let etag = self.etag.clone().filter(|_| !self.unanswered);
        (self.id.clone(), etag)
    }
}

impl Blob {
    /// A write under the lease is sent, and may be done whatever is answered, or not. Whether the one
    /// before it was so already.
    pub(super) fn begin_to_write(&self) -> bool {
        let mut state = self.state();
        let held = state.held.as_mut();
        held.is_some_and(|held| std::mem::replace(&mut held.unanswered, true))
    }

    /// That write was not answered as it should be; `unanswered` is what [`Blob::begin_to_write`] said.
    pub(super) fn not_written(&self, error: &ServiceError, unanswered: bool) {
        if error.is_unclear() {
            return;
        }
        if let Some(held) = &mut self.state().held {
            held.unanswered = unanswered;
        }
        // What stood there was ours, and no write of ours can have changed it.
        if error.code() == Some("ConditionNotMet") && !unanswered {
            self.tell_of_a_copy();
        }
    }

    /// The blob bears this ETag: was it as we knew it, and is what we know still the same?
    pub(super) fn compare(&self, known: &(String, Option<String>), etag: Option<String>) {
        // A write of ours may have been answered while this renewal was under way: what was known when it
        // was sent must still be what is known now.
        let now = self.state().held.as_ref().map(Held::known);
        let is_ours = etag.is_none() || known.1.is_none() || etag == known.1;
        if !is_ours && now.as_ref() == Some(known) {
            self.tell_of_a_copy();
        }
    }

    /// Nobody can write there without the id of our lease, which only we know: or a copy of us.
    fn tell_of_a_copy(&self) {
        let mut state = self.state();
        let held = state.held.as_mut();
        if held.is_some_and(|held| !std::mem::replace(&mut held.copied, true)) {
            drop(state);
            tracing::warn!(
                "{}: another instance writes under this lease: a copy of this machine (cloned, or restored from a snapshot) is in control as well, and both renew it: end one of the two",
                self.name
            );
        }
    }
}
