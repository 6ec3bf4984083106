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
use crate::lease::once::{NoRoom, Task, TaskLog, tell_forgotten};

/// How often a record is written anew in one attempt because something else was written meanwhile.
const ROUNDS: usize = 4;

impl Blob {
    /// Has this store keep the result of `task`, and grant control only while it is to be done.
    #[must_use]
    pub fn with_task(mut self, task: Task) -> Blob {
        self.task = Some(task);
        self
    }

    /// What the service's clock said in an answer that came just now.
    pub(super) fn hear(&self, date: Option<u64>) {
        if let (Some(task), Some(date)) = (&self.task, date) {
            self.state().clock.hear(task, date, Instant::now());
        }
    }

    /// Whether there is anything to get control for.
    pub(super) fn check_task(&self, metadata: &Metadata) -> Result<(), Failure> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        if metadata.others.keys().any(|key| metadata::is_once(key)) {
            return Err(self.fatal("the metadata trafficcop_once of", "cannot be read, so nobody knows what has been done: correct it, or remove it to have everything done anew"));
        }
        let verdict = self.state().clock.verdict(task, task_log(metadata));
        verdict.map_or(Ok(()), |verdict| Err(Failure::AlreadyDone(verdict)))
    }

    /// Before a run, under the lease: which slot it belongs to, and whether its result will find room.
    pub(super) fn begin_task(&self, held: &Held) -> Result<(), Failure> {
        let Some(task) = &self.task else {
            return Ok(());
        };
        let mut state = self.state();
        if task.per.is_some() && !state.clock.has_heard() {
            return Err(Failure::Transient {
                why: "the service's answers lack a Date, so it is not known which slot it is"
                    .into(),
                retry_after: None,
            });
        }
        let task_log = &held.record.once;
        state.clock.begin(task, task_log);
        if task_log.has_room(task, &self.config.candidate.identity, |task_log| {
            fits(held, task_log)
        }) {
            return Ok(());
        }
        Err(self.fatal(
            "the metadata of",
            "have no room left for the result of --once: remove some of the others",
        ))
    }

    /// How often the task had failed in the present run's slot before it.
    pub(super) fn failed(&self, held: &Held) -> u32 {
        let task = self.task.as_ref();
        task.map_or(0, |task| {
            let slot = self.state().clock.slot();
            held.record.once.failed(task, slot)
        })
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
            self.note(task, &mut next, outcome)?;
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
            let there = task_log(&view.metadata).clone();
            let done = there.bears(task, held.record.token);
            let mut known = held;
            known.etag = view.etag;
            known.others = view.metadata.others;
            known.record.once = there;
            known.unanswered = false;
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

    /// Writes the outcome into what is to be the record, and says what had to make room for it.
    fn note(&self, task: &Task, next: &mut Held, outcome: &Outcome) -> Result<(), Failure> {
        let (slot, at) = {
            let state = self.state();
            (state.clock.slot(), state.clock.stamp())
        };
        let mut task_log = std::mem::take(&mut next.record.once);
        let (token, by) = (next.record.token, &self.config.candidate.identity);
        task_log.note(task, slot, outcome, token, by, &at);
        match task_log.fit(task, |task_log| fits(next, task_log)) {
            Ok(forgotten) => tell_forgotten(&forgotten),
            Err(NoRoom) => {
                return Err(self.fatal(
                    "the metadata of",
                    "have no room left for the result of --once: remove some of the others",
                ));
            }
        }
        next.record.once = task_log;
        Ok(())
    }

    /// What we know of the metadata has changed, unless the lease is another one by now.
    pub(super) fn replace_held(&self, known: Held) {
        let mut state = self.state();
        if let Some(held) = state.held.as_mut().filter(|held| held.id == known.id) {
            let copied = held.copied;
            *held = Held { copied, ..known };
        }
    }

    fn fatal(&self, what: &str, why: &str) -> Failure {
        Failure::Fatal {
            why: format!("{what} {} {why}", self.name),
            denied: false,
        }
    }
}

fn task_log(metadata: &Metadata) -> &TaskLog {
    static NOTHING: TaskLog = TaskLog::EMPTY;
    metadata
        .record
        .as_ref()
        .map_or(&NOTHING, |record| &record.once)
}

fn fits(held: &Held, task_log: &TaskLog) -> bool {
    metadata::fits(&held.others, &held.record, task_log)
}

fn lost(why: String) -> Failure {
    Failure::Lost { until: None, why }
}
