//! The lock of one message, with the only copy of its newest pop receipt.
//!
//! Called by the driver through [`Lock`]. Must never use a receipt that the service has not
//! confirmed, never overlap two requests about one message, and never delete a message whose copy is
//! not known to be in the poison queue.
//!
//! # A receipt is a compare-and-swap
//! Every update and the delete bear the receipt that is valid now, and an update replaces it. So a
//! request that is repeated, delayed on its way or overtaken does its work at most once: whichever
//! comes first makes the others stale. Repeating is therefore safe; what is not safe is to believe
//! what the repetition is told.
//!
//! # When an update was not answered
//! Either it was not carried out: our receipt is good, and the next renewal succeeds. Or it was:
//! then the message is hidden for longer, but the receipt that it needs now was in the lost answer
//! and cannot be asked for again. Our next request is refused (400 `PopReceiptMismatch`, or 404
//! `MessageNotFound` as Azure sometimes says it), exactly as if another worker had taken the
//! message. It is lost for us either way, because without a receipt nothing can be settled. But
//! nobody else can have taken it before the end of the last lock that was *confirmed* (an update only
//! moves that end away), so that is the `until` of [`Failure::Lost`]: the command is drained within
//! it instead of being killed at once. A refusal that no doubt of ours explains means that somebody
//! else has it, or has deleted it, and is told without an `until`.
//!
//! # When the message is gone for everybody
//! It expired, by the `Date` of the answer that does not find it, or its queue was deleted. That is no loss: as
//! long as its last confirmed lock had not ended by then, nobody else has it, and nobody will. So
//! renewals succeed from then on, and settlements have nothing left to do. A message that is not found
//! before it expires was deleted by somebody, and is lost.
//!
//! # When a settlement was not answered
//! If its repetition is refused, then the first one did it, as long as nobody else can have the
//! message for another reason: the last confirmed lock has not ended, and no renewal was unanswered.
//! Otherwise it cannot be said, and that is the answer: unconfirmed, not failed and not done.

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

/// What all locks of a queue share.
pub(super) struct Service {
    /// The queue's address, without a secret.
    pub(super) name: String,
    pub(super) client: QueueApi,
    /// The same of the queue for what is put aside.
    pub(super) poison_name: String,
    pub(super) poison: QueueApi,
    /// For how long a message is hidden.
    pub(super) seconds: i32,
    /// How much of that is counted on.
    pub(super) lock_time: Duration,
}

/// A message that was taken.
pub(super) struct Held {
    service: Arc<Service>,
    /// As the service told it; its text is for the poison queue.
    message: Received,
    state: Mutex<State>,
    /// The service has said that it is gone for everybody.
    gone: AtomicBool,
}

struct State {
    /// The newest confirmed one.
    receipt: String,
    /// Nobody else can have it before, by the last answer that confirmed a lock.
    until: Instant,
    /// A renewal was sent with this receipt and may have been carried out.
    renewing: bool,
    /// A settlement was sent with this receipt and may have been carried out.
    settling: Option<Settlement>,
    /// Its copy is in the poison queue.
    put: bool,
    /// Nothing can be done with it any more.
    closed: Option<Closed>,
}

impl State {
    /// The service refused our receipt.
    fn lose(&mut self, error: &ServiceError) -> Failure {
        // After an unanswered settlement it may be anybody's.
        let unheard = self.renewing && self.settling.is_none();
        let why = match unheard {
            true => format!(
                "{}: the answer to a renewal was lost, and with it the receipt",
                error.why()
            ),
            false => error.why(),
        };
        // With an end, within which nobody else can have it, the command is drained; without one it
        // is killed at once.
        let until = unheard.then_some(self.until);
        let closed = Closed::Failed(Failure::Lost { until, why });
        let failure = closed.failure();
        self.closed = Some(closed);
        failure
    }

    /// The receipt was refused to a settlement; `earlier`: one that was sent before and may have been
    /// carried out.
    fn judge(
        &mut self,
        settlement: &Settlement,
        earlier: Option<&Settlement>,
        error: &ServiceError,
    ) -> Result<(), Failure> {
        // Refused at the first try: no doubt of ours explains that, so somebody else has it, or has
        // deleted it.
        let Some(earlier) = earlier else {
            return Err(self.lose(error));
        };
        let deletes = matches!(
            settlement,
            Settlement::Complete | Settlement::DeadLetter { .. }
        );
        // Of two kinds nobody can say which of them the service has carried out.
        let same = discriminant(earlier) == discriminant(settlement);
        let there = error.code() == Some("PopReceiptMismatch");
        if same && !self.renewing {
            if deletes && there {
                // It was not deleted: it is there, under the receipt of another.
                return Err(self.lose(error));
            }
            // No other worker could be given it until now: our own first request made our receipt stale. The
            // moment of the answer counts, not that of the request, which can be late on its way: another worker
            // may by then have taken the message and deleted it.
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

/// What settles a message in the end.
#[derive(Clone, Copy)]
enum Last {
    Delete,
    /// Visible again in so many seconds.
    Show(i32),
}

impl Held {
    pub(super) fn new(service: Arc<Service>, message: Received, until: Instant) -> Held {
        let state = State {
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

    /// Whether this answer, which does not find the message, says that it is gone for everybody.
    fn has_gone(&self, state: &State, error: &ServiceError) -> bool {
        // Another worker may have taken it before it vanished, and its command may run.
        let was_ours =
            state.settling.is_none() && (self.message.is_last || Instant::now() < state.until);
        let why = match (error.code(), self.message.expires, error.date()) {
            _ if is_deleted(error) => "its queue was deleted",
            // By one clock, the service's, which tells both in whole seconds.
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

    /// Whether this refused to hide it for so long because it expires before that.
    fn outlasts_it(&self, seconds: i32, error: &ServiceError) -> bool {
        let hidden = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let refused = matches!(error, ServiceError::Answer { status: 400, .. });
        match (self.message.expires, error.date()) {
            (Some(expires), Some(date)) => {
                refused && !is_not_found(error) && date + hidden + GRAIN >= expires
            }
            _ => false,
        }
    }

    /// Whether no other worker can be given it, although nobody locks it any more.
    fn keeps_itself(&self) -> bool {
        self.message.is_last || self.is_gone()
    }

    /// Locks it anew, in its turn.
    async fn relock(&self, state: &mut State, give_up_at: Instant) -> Result<(), Failure> {
        let Service {
            client,
            seconds,
            lock_time,
            ..
        } = &*self.service;
        // Written down before it is asked for: this call can be dropped at any await.
        let doubt = std::mem::replace(&mut state.renewing, true);
        let t0 = Instant::now();
        match client
            .update(&self.message.id, &state.receipt, *seconds, give_up_at)
            .await
        {
            Ok(receipt) => {
                // The new receipt counts from here: the old one names nothing any more.
                state.receipt = receipt;
                state.until = t0 + *lock_time;
                // What bears an older receipt will never be carried out.
                state.renewing = false;
                state.settling = None;
                Ok(())
            }
            Err(error) => {
                // A clear refusal of this one says nothing of an earlier one whose answer was lost.
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

    /// Sends what settles it, in its turn.
    async fn finish(
        &self,
        state: &mut State,
        settlement: &Settlement,
        last: Last,
        give_up_at: Instant,
    ) -> Result<(), Failure> {
        let (client, id) = (&self.service.client, self.message.id.as_str());
        // Written down before it is asked for: this call can be dropped at any await.
        let earlier = state.settling.replace(settlement.clone());
        let (answer, operation) = match last {
            Last::Delete => (
                client.delete(id, &state.receipt, give_up_at).await,
                Operation::DeleteMessage,
            ),
            Last::Show(seconds) => {
                let update = client.update(id, &state.receipt, seconds, give_up_at);
                // Its new receipt is forgotten: whoever gave a message back has no business with it
                // any more.
                (update.await.map(drop), Operation::Update)
            }
        };
        if let Err(error) = answer {
            // What was clearly refused has changed nothing: what was in doubt before still is.
            if !error.is_unclear() {
                state.settling.clone_from(&earlier);
            }
            match last {
                // It stays hidden until its lock ends, and comes again then unless it has expired.
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

    /// Puts a copy into the poison queue, in its turn.
    async fn put_aside(&self, state: &mut State, give_up_at: Instant) -> Result<(), Failure> {
        // What is not ours any more is not ours to put aside: the copy would be one of a message
        // that another worker has. And time is needed for what follows.
        let enough = Instant::now() + self.service.lock_time / 2;
        if !self.keeps_itself() && (state.renewing || state.until < enough) {
            self.relock(state, give_up_at).await?;
        }
        let Service {
            poison,
            poison_name,
            ..
        } = &*self.service;
        let mut put = poison.put(&self.message.text, give_up_at).await;
        if matches!(&put, Err(error) if error.code() == Some("QueueNotFound")) {
            // Refused where it may not be created; somebody else may have done it meanwhile.
            poison
                .create(give_up_at)
                .await
                .map_err(|error| error.failure(Operation::CreateQueue, poison_name, false))?;
            put = poison.put(&self.message.text, give_up_at).await;
        }
        put.map_err(|error| error.failure(Operation::Put, poison_name, false))?;
        // Kept beyond this call: where the deletion fails it is repeated alone, and no second copy
        // is put.
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
            // The service knows no release: the attempt was counted when the message was taken, and
            // stays so.
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

/// The service itself says that the message is not there under this receipt.
fn is_not_found(error: &ServiceError) -> bool {
    is_deleted(error) || matches!(error.code(), Some("PopReceiptMismatch" | "MessageNotFound"))
}

/// The service itself says that the queue is not there; it takes its messages along.
pub(super) fn is_deleted(error: &ServiceError) -> bool {
    matches!(error.code(), Some("QueueNotFound" | "QueueBeingDeleted"))
}

/// In the service's whole seconds, never sooner than asked and never longer than it hides one.
fn seconds(after: Duration) -> i32 {
    let whole = after.min(LONGEST);
    // The service cuts fractions: a delay of half a second would be none, and the retry a hot loop.
    let whole = whole.as_secs() + u64::from(whole.subsec_nanos() > 0);
    i32::try_from(whole).unwrap_or(i32::MAX)
}
