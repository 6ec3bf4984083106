//! Acquires control, and writes the record under the lease.
//!
//! It can be dropped at any await: it notes what it may obtain before it sends the request.

use std::sync::atomic::Ordering;
use std::time::Duration;

use azure_core::time::{OffsetDateTime, to_rfc3339};

use super::client::{LeaseState, View};
use super::metadata::{self, Metadata};
use super::{Blob, Held, Spent, fresh_lease_id, is_gone, is_taken, is_there};
use crate::errors::{fatal, transient};
use crate::record::Record;
use trafficcop_azure::{Operation, ServiceError};
use trafficcop_core::budget::LATE;
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::{Failure, Grant, HolderInfo};

// Longer than any attempt takes from its acquire to its record.
const SIGNED_WITHIN: Duration = Duration::from_secs(10);

impl Blob {
    pub(super) async fn compete(&self, give_up_at: Instant) -> Result<Grant, Failure> {
        self.lock.account.tell();
        let (id, spent) = self.begin();
        if let Some(spent) = spent {
            // Release it once more, without a long wait.
            let limit = give_up_at.min(Instant::now() + Duration::from_secs(1));
            spent.unclear.store(true, Ordering::Relaxed);
            match self.client.release(&spent.id, limit).await {
                Ok(()) => self.state().spent = None,
                Err(error) if is_gone(&error) => self.state().spent = None,
                Err(_) => {}
            }
        }
        // Look first: a refused acquire tells neither the holder nor whether the task is done.
        let (view, is_new) = self.look_or_create(give_up_at).await?;
        self.check(&view.metadata)?;
        self.hear(view.date);
        self.check_task(&view.metadata)?;
        self.warn_of_data(&view, give_up_at).await;
        if view.lease == LeaseState::Free {
            self.state().seen_free = view.etag.clone().map(|etag| (etag, None));
        }
        // After an unanswered acquire the lease may be this instance's: the service grants it again under the
        // same id.
        if view.lease != LeaseState::Free && !self.may_be_ours() {
            return Err(Failure::Held(self.holder_info(&view)));
        }
        // Take `t0` before sending: the service counts from later. Note it before sending: a caller that drops
        // this future must still be able to undo it.
        let t0 = Instant::now();
        let earlier = self.state().perhaps.replace(t0);
        let etag = match self.client.acquire(&id, self.seconds, give_up_at).await {
            Ok((etag, date)) => {
                self.prove(Operation::Acquire);
                // Under the lease, the date decides the run's period.
                self.hear(date);
                etag
            }
            Err(error) => {
                if error.is_refusal() {
                    // An earlier request may still arrive.
                    self.state().perhaps = earlier;
                }
                return Err(self.not_acquired(&error, &view));
            }
        };
        // Only if no write came before the lease began.
        let known = Some(view).filter(|view| view.etag.is_some() && view.etag == etag);
        match self.sign(&id, known, is_new, give_up_at).await {
            Ok(held) => {
                let (token, failed) = (held.record.token, self.failed(&held));
                let mut state = self.state();
                state.held = Some(held);
                state.perhaps = None;
                state.proposed = None;
                Ok(Grant { t0, token, failed })
            }
            Err(failure) => {
                // Without a record it has no token, and would keep out others for nothing.
                self.undo(&id, give_up_at).await;
                Err(failure)
            }
        }
    }

    /// Returns this series' id, and a lease whose release is unanswered.
    fn begin(&self) -> (String, Option<Spent>) {
        let mut state = self.state();
        if state.held.take().is_some() {
            // A lost lease runs out; an acquire must not revive it.
            state.proposed = None;
            state.perhaps = None;
        }
        let id = state.proposed.get_or_insert_with(fresh_lease_id).clone();
        (id, state.spent.clone())
    }

    fn may_be_ours(&self) -> bool {
        let perhaps = self.state().perhaps;
        // A request can arrive late.
        perhaps.is_some_and(|sent| Instant::now() < sent + self.config.lease + LATE)
    }

    pub(super) async fn check_result(&self, give_up_at: Instant) -> Result<(), Failure> {
        let view = match self.client.look(None, give_up_at).await {
            Ok(view) => view,
            // A missing blob has no result.
            Err(error) => match error.code() {
                Some("BlobNotFound" | "ContainerNotFound") => return Ok(()),
                _ => return Err(self.failure(&error, Operation::Look)),
            },
        };
        self.prove(Operation::Look);
        self.hear(view.date);
        self.check_task(&view.metadata)
    }

    /// Returns the view of the blob, and whether it is new.
    async fn look_or_create(&self, give_up_at: Instant) -> Result<(View, bool), Failure> {
        let error = match self.client.look(None, give_up_at).await {
            Ok(view) => {
                self.prove(Operation::Look);
                return Ok((view, false));
            }
            Err(error) => error,
        };
        let missing = match error.code() {
            Some("BlobNotFound") => "blob",
            Some("ContainerNotFound") => "container",
            _ => return Err(self.failure(&error, Operation::Look)),
        };
        if !self.lock.create {
            return Err(fatal(format!(
                "the {missing} of {} does not exist: create it, or leave --no-create out",
                self.name
            )));
        }
        let etag = self.create(missing == "container", give_up_at).await?;
        let view = View {
            lease: LeaseState::Free,
            etag,
            metadata: Metadata::default(),
            date: None,
            is_used: false,
            content: 0,
            is_page_blob: false,
        };
        Ok((view, true))
    }

    /// Creates the blob and a missing container. Returns the ETag unless another instance was faster.
    async fn create(
        &self,
        container_first: bool,
        give_up_at: Instant,
    ) -> Result<Option<String>, Failure> {
        // The blob first: many credentials may write blobs and not create containers. Twice at most, so as not
        // to race a program that deletes them.
        let mut container_missing = container_first;
        for _ in 0..2 {
            if container_missing {
                match self.client.create_container(give_up_at).await {
                    Ok(()) => {}
                    Err(error) if error.code() == Some("ContainerAlreadyExists") => {}
                    Err(error) => {
                        return Err(self.failure(&error, Operation::CreateContainer));
                    }
                }
            }
            let page_blob = self.lock.page_blob;
            match self.client.create_blob(page_blob, give_up_at).await {
                Ok(etag) => return Ok(etag),
                Err(error) if is_there(&error) => return Ok(None),
                Err(error) => match error.code() {
                    Some("ContainerNotFound") if !container_missing => container_missing = true,
                    _ => return Err(self.failure(&error, Operation::CreateBlob)),
                },
            }
        }
        Err(transient(
            "the container was deleted while the blob was created".to_owned(),
        ))
    }

    /// Refuses an unreadable token, which cannot be raised.
    fn check(&self, metadata: &Metadata) -> Result<(), Failure> {
        match &metadata.broken_token {
            Some(token) => Err(fatal(format!(
                "the metadata trafficcop_token of {} is '{token}', not a number: set it to a \
                     number greater than every fencing token given out so far, or remove all \
                     metadata trafficcop_* if no fencing token is in use",
                self.name
            ))),
            None => {
                // If the blob is made anew, its count is lost; this instance's goes on.
                let seen = metadata.record.as_ref().map_or(0, |record| record.token);
                let mut state = self.state();
                state.floor = state.floor.max(seen);
                Ok(())
            }
        }
    }

    /// Returns the holder. The record does not name another program, whose lease has no end.
    fn holder_info(&self, view: &View) -> HolderInfo {
        let foreign = match view.lease {
            LeaseState::Endless => format!(
                "the lease is another program's and has no end: no instance gets control until '{}' ends it",
                self.lock.target.how_to_break(&self.name)
            ),
            _ if self.is_unsigned(view) => {
                let holder = view.metadata.record.as_ref().map(|record| &*record.holder);
                let holder = holder.filter(|holder| !holder.is_empty()).unwrap_or("none");
                format!("the lease is another program's; last recorded holder: {holder}")
            }
            _ => return holder_info(&view.metadata),
        };
        HolderInfo {
            foreign: Some(foreign.into()),
            ..HolderInfo::default()
        }
    }

    /// Whether the record is still the one seen beside a free lease, long after a holder would have written its
    /// own.
    fn is_unsigned(&self, view: &View) -> bool {
        match self.state().seen_free.as_mut() {
            Some((etag, taken)) if view.etag.as_ref() == Some(etag) => {
                Instant::now() > *taken.get_or_insert_with(Instant::now) + SIGNED_WITHIN
            }
            _ => false,
        }
    }

    /// Warns once of a blob with data.
    async fn warn_of_data(&self, view: &View, give_up_at: Instant) {
        if self.data_is_told.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Ok(bytes @ 1..) = self.client.data(view, give_up_at).await {
            tracing::warn!("{}", data_warning(&self.name, bytes));
        }
    }

    fn not_acquired(&self, error: &ServiceError, view: &View) -> Failure {
        if is_taken(error) {
            self.prove(Operation::Acquire);
            // The faster instance has not written its name yet.
            return Failure::Held(match view.lease {
                LeaseState::Free => HolderInfo::default(),
                _ => self.holder_info(view),
            });
        }
        match error.code() {
            Some("BlobNotFound" | "ContainerNotFound") => {
                transient("the blob was deleted while its lease was acquired".to_owned())
            }
            _ => self.failure(error, Operation::Acquire),
        }
    }

    /// Raises the token and writes the record under the lease, until that is confirmed.
    async fn sign(
        &self,
        id: &str,
        known: Option<View>,
        is_new: bool,
        give_up_at: Instant,
    ) -> Result<Held, Failure> {
        // Keep some time to give the lease back.
        let left = give_up_at.since(Instant::now());
        let stop_at = give_up_at - (left / 4).min(Duration::from_secs(1));
        let since = to_rfc3339(&OffsetDateTime::now_utc());
        let mut known = known;
        let mut written: Option<Held> = None;
        // On the ETag that was read: another tool may write until the lease began, and a token could be given
        // out twice.
        loop {
            let view = match known.take() {
                Some(view) => view,
                None => match self.client.look(Some(id), stop_at).await {
                    Ok(view) => view,
                    Err(error) => {
                        self.again(&error, Operation::Look, stop_at).await?;
                        continue;
                    }
                },
            };
            if let Some(held) =
                written.take_if(|held| view.metadata.record.as_ref() == Some(&held.record))
            {
                // Only the reply was lost.
                return Ok(Held {
                    etag: view.etag,
                    ..held
                });
            }
            self.check(&view.metadata)?;
            self.check_task(&view.metadata)?;
            // Without a token the metadata may have been replaced, and a token greater than 1 with it.
            let begins = view.metadata.record.is_none() && !is_new;
            let least = if begins { self.service_seconds() } else { 0 };
            let warns = begins && view.is_used;
            let next = self.state().floor.checked_add(1);
            let token = next.map(|next| next.max(least)).ok_or_else(|| {
                fatal(format!(
                    "the metadata trafficcop_token of {} is the greatest number there is: set a \
                     smaller one, and reset what remembers the old one",
                    self.name
                ))
            })?;
            let once = view.metadata.record.map(|record| record.once);
            let mut held = Held {
                id: id.to_owned(),
                etag: None,
                record: Record {
                    since: since.clone(),
                    once: once.unwrap_or_default(),
                    ..Record::begun(&self.config.candidate, token)
                },
                others: view.metadata.others,
                unanswered: false,
                copied: false,
                breaking: false,
            };
            self.begin_task(&held)?;
            let metadata = metadata::write(&held.others, &held.record);
            let etag = view.etag.as_deref();
            match self.client.set_metadata(id, etag, &metadata, stop_at).await {
                Ok(etag) => {
                    held.etag = etag;
                    self.prove(Operation::Record);
                    let mut state = self.state();
                    state.floor = state.floor.max(token);
                    drop(state);
                    if warns {
                        tracing::warn!(
                            "{} has been written to and has no fencing token: another program replaced its metadata; \
                             tokens continue from {token}, and the results of --once are lost: \
                             let no other program write to this blob",
                            self.name
                        );
                    }
                    return Ok(held);
                }
                Err(error) => {
                    written = Some(held);
                    // Another program wrote, or this write went unanswered: read at once.
                    if error.code() != Some("ConditionNotMet") {
                        self.again(&error, Operation::Record, stop_at).await?;
                    } else if Instant::now() >= stop_at {
                        return Err(error.doubt(Operation::Record));
                    }
                }
            }
        }
    }

    fn service_seconds(&self) -> u64 {
        u64::try_from(self.clock.date().unix_timestamp()).unwrap_or(0)
    }

    async fn again(
        &self,
        error: &ServiceError,
        operation: Operation,
        stop_at: Instant,
    ) -> Result<(), Failure> {
        if is_gone(error) {
            return Err(transient(format!(
                "the lease was lost before its record was written: {}",
                error.why()
            )));
        }
        let failure = self.failure(error, operation);
        // Shorter than a poll: without its record the lease serves no purpose.
        let pause = match &failure {
            Failure::Transient { retry_after, .. } => {
                Duration::from_millis(300).max(retry_after.unwrap_or_default())
            }
            _ => return Err(failure),
        };
        if stop_at.since(Instant::now()) <= pause {
            return Err(failure);
        }
        clock::sleep(pause).await;
        Ok(())
    }

    async fn undo(&self, id: &str, give_up_at: Instant) {
        // Nothing was started under it, so it does not matter who has it now.
        let spent = Spent::new(id.to_owned(), false);
        {
            let mut state = self.state();
            state.perhaps = None;
            state.proposed = None;
            state.spent = Some(spent.clone());
        }
        if Blob::release_until(&self.client, &spent, give_up_at)
            .await
            .is_ok()
        {
            self.state().spent = None;
        }
    }
}

/// Returns the warning for a blob with data.
pub fn data_warning(name: &str, bytes: u64) -> String {
    format!(
        "{name} has {bytes} bytes of data: other writers are refused while the lock is held; if that is data that is \
         in use, name another blob"
    )
}

fn holder_info(metadata: &Metadata) -> HolderInfo {
    let some = |text: &str| (!text.is_empty()).then(|| text.into());
    let Some(record) = &metadata.record else {
        return HolderInfo::default();
    };
    HolderInfo {
        holder: Some(record.holder.clone()).filter(|holder| !holder.is_empty()),
        token: Some(record.token).filter(|token| *token > 0),
        command: some(&record.command),
        draining: record.draining,
        bell: record.bell.parse().ok().map(Box::new),
        since: some(&record.since),
        ..HolderInfo::default()
    }
}
