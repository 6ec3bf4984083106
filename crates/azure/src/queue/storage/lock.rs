//! Lock of one message, with the only copy of its newest pop receipt.
//!
//! It must never use an unconfirmed receipt, never overlap two requests about one message, and never delete a
//! message before its copy is in the poison queue.
//!
//! # A receipt is a compare-and-swap
//! Every update and the delete carry the valid receipt, and an update replaces it. So a request that is
//! repeated, delayed or overtaken takes effect at most once. Repeating is safe; believing the answer to the
//! repetition is not.
//!
//! # When an update was not answered
//! If it was not carried out, the receipt is good, and the next renewal succeeds. If it was, the new receipt is
//! lost with the answer. The next request is then refused (400 `PopReceiptMismatch`, sometimes 404
//! `MessageNotFound`), exactly as if another worker had taken the message. Without a receipt nothing can be
//! settled, so the message is lost. But no other worker can take it before the last *confirmed* lock ends. That
//! is the `until` of [`Failure::Lost`]: the command is drained, not killed at once. A refusal that no
//! unanswered request explains means that another client took or deleted the message: no `until`.
//!
//! # When the message is gone for all workers
//! It expired, by the `Date` of the answer that does not find it, or its queue was deleted. That is no loss if
//! its last confirmed lock had not ended by then: no other worker has it. So renewals succeed, and settlements
//! have nothing left to do. A message that vanishes earlier was deleted by another
//! client: it is lost.
//!
//! # When a settlement was not answered
//! If its repetition is refused, the first one took effect, provided that the confirmed lock lasts and no
//! renewal was unanswered. Otherwise the result is unconfirmed: neither failed nor done.

use std::mem::discriminant;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::client::{QueueApi, Received};
use super::{GRAIN, LONGEST};
use crate::queue::{Closed, Lock, Settlement, turn};
use crate::{Operation, ServiceError};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;

pub(super) struct Service {
    pub(super) client: QueueApi,
    pub(super) poison: QueueApi,
    pub(super) seconds: i32,
    /// The part of it that trafficcop counts on.
    pub(super) lock_time: Duration,
}

pub(super) struct Held {
    service: Arc<Service>,
    message: Received,
    state: Mutex<ReceiptState>,
    gone: AtomicBool,
}

struct ReceiptState {
    /// The newest confirmed receipt.
    receipt: String,
    /// No other worker can have it before.
    until: Instant,
    /// Whether a renewal with this receipt may have been carried out.
    renewing: bool,
    /// A settlement with this receipt that may have been carried out.
    settling: Option<Settlement>,
    /// Whether its copy is in the poison queue.
    put: bool,
    closed: Option<Closed>,
}

impl ReceiptState {
    fn lose(&mut self, error: &ServiceError) -> Failure {
        // After an unanswered settlement any worker may have it.
        let unheard = self.renewing && self.settling.is_none();
        let why = match unheard {
            true => format!(
                "{}: the answer to a renewal was lost, and with it the receipt",
                error.why()
            ),
            false => error.why(),
        };
        // With an end, the command is drained, not killed at once.
        let until = unheard.then_some(self.until);
        let closed = Closed::Failed(Failure::Lost { until, why });
        let failure = closed.failure();
        self.closed = Some(closed);
        failure
    }

    fn judge(
        &mut self,
        settlement: &Settlement,
        earlier: Option<&Settlement>,
        error: &ServiceError,
    ) -> Result<(), Failure> {
        let Some(earlier) = earlier else {
            return Err(self.lose(error));
        };
        let deletes = matches!(
            settlement,
            Settlement::Complete | Settlement::DeadLetter { .. }
        );
        // Of two different kinds it is unknown which one was carried out.
        let same = discriminant(earlier) == discriminant(settlement);
        let there = error.code() == Some("PopReceiptMismatch");
        if same && !self.renewing {
            if deletes && there {
                // It is there, under another worker's receipt.
                return Err(self.lose(error));
            }
            // No other worker could get it until now, so the first request made this receipt stale. The
            // answer's moment counts: another worker may have taken and deleted it meanwhile.
            if Instant::now() < self.until {
                return Ok(());
            }
        }
        Err(Failure::Transient {
            why: format!(
                "{}: it is not known whether the message was settled",
                error.why()
            ),
            retry_after: None,
        })
    }
}

#[derive(Clone, Copy)]
enum Last {
    Delete,
    Show(i32),
}

impl Held {
    pub(super) fn new(service: Arc<Service>, message: Received, until: Instant) -> Held {
        let state = ReceiptState {
            receipt: message.receipt.clone(),
            until,
            renewing: false,
            settling: None,
            put: false,
            closed: None,
        };
        Held {
            service,
            message,
            state: Mutex::new(state),
            gone: AtomicBool::new(false),
        }
    }

    fn has_gone(&self, state: &ReceiptState, error: &ServiceError) -> bool {
        // Otherwise another worker may have taken it before it expired, and its command may run.
        let was_ours =
            state.settling.is_none() && (self.message.is_last || Instant::now() < state.until);
        let why = match (error.code(), self.message.expires, error.date()) {
            _ if is_deleted(error) => "its queue was deleted",
            // Both by the service's clock, in whole seconds.
            (Some("MessageNotFound"), Some(expires), Some(date)) if date + GRAIN >= expires => {
                "it has expired"
            }
            _ => return false,
        };
        if was_ours {
            let id = &self.message.id;
            tracing::warn!("message {id} is gone: {why}; no worker can be given it any more");
            self.gone.store(true, Ordering::Relaxed);
        }
        was_ours
    }

    /// Whether the service refused because the message expires earlier.
    fn outlasts_it(&self, seconds: i32, error: &ServiceError) -> bool {
        let hidden = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let refused = error.status() == Some(400);
        match (self.message.expires, error.date()) {
            (Some(expires), Some(date)) => {
                refused && !is_not_found(error) && date + hidden + GRAIN >= expires
            }
            _ => false,
        }
    }

    /// Whether no other worker can get it even without a lock.
    fn keeps_itself(&self) -> bool {
        self.message.is_last || self.is_gone()
    }

    async fn relock(&self, state: &mut ReceiptState, give_up_at: Instant) -> Result<(), Failure> {
        let Service {
            client,
            seconds,
            lock_time,
            ..
        } = &*self.service;
        // Before the request: this call can be dropped at any await.
        let doubt = std::mem::replace(&mut state.renewing, true);
        let t0 = Instant::now();
        match client
            .update(&self.message.id, &state.receipt, *seconds, give_up_at)
            .await
        {
            Ok(receipt) => {
                state.receipt = receipt;
                state.until = t0 + *lock_time;
                // The new receipt makes requests with older ones stale.
                state.renewing = false;
                state.settling = None;
                Ok(())
            }
            Err(error) => {
                // A clear refusal says nothing about an earlier request without an answer.
                if !error.is_unclear() {
                    state.renewing = doubt;
                }
                if self.outlasts_it(*seconds, &error) {
                    let why = format!(
                        "{}: the message expires before a new lock would end; a --lock-time longer than \
                         its time to live locks it for good",
                        error.why()
                    );
                    let retry_after = None;
                    return Err(Failure::Transient { why, retry_after });
                }
                match is_not_found(&error) {
                    true if self.has_gone(state, &error) => Ok(()),
                    true => Err(state.lose(&error)),
                    false => Err(error.doubt(Operation::Update)),
                }
            }
        }
    }

    async fn finish(
        &self,
        state: &mut ReceiptState,
        settlement: &Settlement,
        last: Last,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        let (client, id) = (&self.service.client, self.message.id.as_str());
        // Before the request, as in `relock`.
        let earlier = state.settling.replace(settlement.clone());
        let (answer, operation) = match last {
            Last::Delete => (
                client.delete(id, &state.receipt, give_up_at).await,
                Operation::DeleteMessage,
            ),
            Last::Show(seconds) => {
                let update = client.update(id, &state.receipt, seconds, give_up_at);
                // Drop the new receipt: a message given back must not be touched any more.
                (update.await.map(drop), Operation::Update)
            }
        };
        if let Err(error) = answer {
            // A clear refusal changes nothing: earlier doubts remain.
            if !error.is_unclear() {
                state.settling.clone_from(&earlier);
            }
            match last {
                // It stays hidden until its lock ends.
                Last::Show(seconds) if self.outlasts_it(seconds, &error) => {
                    self.gone.store(self.message.is_last, Ordering::Relaxed);
                }
                _ if !is_not_found(&error) => return Err(error.doubt(operation)),
                _ if self.has_gone(state, &error) => {}
                _ => state.judge(settlement, earlier.as_ref(), &error)?,
            }
        }
        state.closed = Some(Closed::Settled(settlement.clone()));
        Ok(())
    }

    async fn put_aside(
        &self,
        state: &mut ReceiptState,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        // Without the lock another worker may have the message. And the deletion needs time.
        let enough = Instant::now() + self.service.lock_time / 2;
        if !self.keeps_itself() && (state.renewing || state.until < enough) {
            self.relock(state, give_up_at).await?;
        }
        let poison = &self.service.poison;
        let mut put = poison.put(&self.message.text, give_up_at).await;
        if matches!(&put, Err(error) if error.code() == Some("QueueNotFound")) {
            poison
                .create(give_up_at)
                .await
                .map_err(|error| error.failure(Operation::CreateQueue, &poison.name, false))?;
            put = poison.put(&self.message.text, give_up_at).await;
        }
        put.map_err(|error| error.failure(Operation::Put, &poison.name, false))?;
        // If the deletion fails, only that is repeated: no second copy appears.
        state.put = true;
        Ok(())
    }
}

#[async_trait]
impl Lock for Held {
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        let mut state = turn(&self.state, give_up_at).await?;
        match &state.closed {
            Some(closed) => Err(closed.failure()),
            None if self.keeps_itself() => Ok(()),
            None => self.relock(&mut state, give_up_at).await,
        }
    }

    async fn settle(&self, settlement: &Settlement, give_up_at: Instant) -> Result<(), Failure> {
        let mut state = turn(&self.state, give_up_at).await?;
        if let Some(closed) = &state.closed {
            return closed.settled_as(settlement);
        }
        let last = match settlement {
            Settlement::Complete => Last::Delete,
            // A storage queue has no release: it counted the attempt already.
            Settlement::Release => Last::Show(0),
            Settlement::Retry(after) => Last::Show(seconds(*after)),
            Settlement::DeadLetter { .. } => {
                if !state.put {
                    self.put_aside(&mut state, give_up_at).await?;
                }
                Last::Delete
            }
        };
        if self.is_gone() {
            state.closed = Some(Closed::Settled(settlement.clone()));
            return Ok(());
        }
        self.finish(&mut state, settlement, last, give_up_at).await
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

fn is_not_found(error: &ServiceError) -> bool {
    is_deleted(error) || matches!(error.code(), Some("PopReceiptMismatch" | "MessageNotFound"))
}

pub(super) fn is_deleted(error: &ServiceError) -> bool {
    matches!(error.code(), Some("QueueNotFound" | "QueueBeingDeleted"))
}

fn seconds(after: Duration) -> i32 {
    let whole = after.min(LONGEST);
    // The service cuts fractions: half a second would be no delay, and the retry a hot loop.
    let whole = whole.as_secs() + u64::from(whole.subsec_nanos() > 0);
    i32::try_from(whole).unwrap_or(i32::MAX)
}
