//! A task that is to be done once, on a blob: its result in the metadata, its time from the
//! service's `Date`.
//!
//! Called by [`Blob`] while it competes and when a run has ended. A result is written under the
//! lease, on the condition that nobody wrote since: so an announcement that is still on its way
//! cannot take it away again, and neither can a record of an earlier attempt.

use super::metadata::{self, Metadata};
use super::{Blob, Held, is_gone};
use crate::azure::Operation;
use crate::clock::Instant;
use crate::core::{Failure, Outcome};
use crate::lease::once::{NoRoom, OnceTask, Task, TaskLog};

/// How often a record is written anew in one attempt because something else was written meanwhile.
const ROUNDS: usize = 4;

impl Blob {
    /// Has this store keep the result of `task`, and grant control only while it is to be done.
    #[must_use]
    pub fn with_task(mut self, task: Task) -> Blob {
        self.task = Some(OnceTask::new(task));
        self
    }

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
        if metadata.has_unread_results() {
            return Err(self.fatal("the metadata trafficcop_once of", "cannot be read, so nobody knows what has been done: correct it, or remove it to have everything done anew"));
        }
        let verdict = task.verdict(metadata.task_log());
        verdict.map_or(Ok(()), |verdict| Err(Failure::AlreadyDone(verdict)))
    }

    /// Before a run, under the lease: which slot it belongs to, and whether its result will find room.
    pub(super) fn begin_task(&self, held: &Held) -> Result<(), Failure> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        if task.lacks_the_time() {
            return Err(Failure::Transient {
                why: "the service's answers lack a Date, so it is not known which slot it is"
                    .into(),
                retry_after: None,
            });
        }
        let by = &self.config.candidate.identity;
        let fits = |task_log: &TaskLog| metadata::fits(&held.others, &held.record, task_log);
        task.begin(&held.record.once, by, fits)
            .map_err(|NoRoom| self.no_room())?;
        Ok(())
    }

    /// How often the task had failed in the present run's slot before it.
    pub(super) fn failed(&self, held: &Held) -> u32 {
        let task = self.task.as_ref();
        task.map_or(0, |task| task.failed(&held.record.once))
    }

    /// See [`LeaseStore::update_record`](crate::lease::LeaseStore::update_record).
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
            let Some(held) = self.state().held.clone() else {
                return Err(lost("there is no lease to record it under".to_owned()));
            };
            let mut next = held.clone();
            let by = &self.config.candidate.identity;
            let fits = |task_log: &TaskLog| metadata::fits(&held.others, &held.record, task_log);
            task.note(&mut next.record, outcome, by, fits)
                .map_err(|NoRoom| self.no_room())?;
            let metadata = metadata::write(&next.others, &next.record);
            let etag = held.etag.as_deref();
            let unanswered = self.begin_to_write();
            let written = self
                .client
                .set_metadata(&held.id, etag, &metadata, give_up_at);
            let trouble = match written.await {
                Ok(etag) => {
                    self.prove(Operation::Record);
                    next.etag = etag;
                    next.unanswered = false;
                    self.replace_held(next);
                    return Ok(());
                }
                Err(trouble) => trouble,
            };
            self.not_written(&trouble, unanswered);
            if is_gone(&trouble) {
                return Err(lost(trouble.why()));
            }
            if trouble.code() != Some("ConditionNotMet") {
                return Err(trouble.doubt(Operation::Record));
            }
            // Something of ours was written whose reply we did not get: the result itself, perhaps.
            let view = match self.client.look(Some(&held.id), give_up_at).await {
                Ok(view) => view,
                Err(trouble) if is_gone(&trouble) => return Err(lost(trouble.why())),
                Err(trouble) => return Err(trouble.doubt(Operation::Look)),
            };
            let mut known = held;
            known.etag = view.etag;
            known.record.once = view.metadata.task_log().clone();
            known.others = view.metadata.others;
            known.unanswered = false;
            let done = task.is_noted(&known.record);
            self.replace_held(known);
            if done && unanswered {
                return Ok(());
            }
            if done {
                return Err(lost(
                    "its result stands there already, and not by us: a copy of this machine ran it \
                     under the same lease"
                        .to_owned(),
                ));
            }
        }
        Err(Failure::Transient {
            why: "the metadata are being changed by somebody else, again and again".to_owned(),
            retry_after: None,
        })
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
            "have no room left for the result of --once: remove some of the others",
        )
    }

    fn fatal(&self, what: &str, why: &str) -> Failure {
        Failure::Fatal {
            why: format!("{what} {} {why}", self.name),
            denied: false,
        }
    }
}

fn lost(why: String) -> Failure {
    Failure::Lost { until: None, why }
}
