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
//! # When a settlement was not answered
//! If its repetition is refused, then the first one did it, as long as nobody else can have the
//! message for another reason: the last confirmed lock has not ended, and no renewal was unanswered.
//! Otherwise it cannot be said, and that is the answer: unconfirmed, not failed and not done.

use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::LONGEST;
use super::client::QueueApi;
use crate::azure::{Operation, ServiceError};
use crate::clock::Instant;
use crate::core::Failure;
use crate::queue::{Closed, Lock, Settlement, turn};

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
    id: String,
    /// As the service told it, for the poison queue.
    text: String,
    state: Mutex<State>,
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

    /// The receipt was refused to a settlement that was sent at `sent`; `earlier`: one that was
    /// sent before and may have been carried out.
    fn judge(
        &mut self,
        settlement: &Settlement,
        earlier: Option<&Settlement>,
        error: &ServiceError,
        sent: Instant,
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
            // Nobody else could be given it yet: what made our receipt stale was our own first
            // request.
            if sent < self.until {
                return Ok(());
            }
        }
        Err(Failure::Transient {
            why: format!(
                "{}: whether the message was settled cannot be said",
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
    pub(super) fn new(
        service: Arc<Service>,
        id: String,
        receipt: String,
        text: String,
        until: Instant,
    ) -> Held {
        let state = State {
            receipt,
            until,
            renewing: false,
            settling: None,
            put: false,
            closed: None,
        };
        Held {
            service,
            id,
            text,
            state: Mutex::new(state),
        }
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
            .update(&self.id, &state.receipt, *seconds, give_up_at)
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
                Err(match is_gone(&error) {
                    true => state.lose(&error),
                    false => error.doubt(Operation::Update),
                })
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
        let (client, id) = (&self.service.client, self.id.as_str());
        // Written down before it is asked for: this call can be dropped at any await.
        let earlier = state.settling.replace(settlement.clone());
        let sent = Instant::now();
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
            if !is_gone(&error) {
                return Err(error.doubt(operation));
            }
            state.judge(settlement, earlier.as_ref(), &error, sent)?;
        }
        state.closed = Some(Closed::Settled(settlement.clone()));
        Ok(())
    }

    /// Puts a copy into the poison queue, in its turn.
    async fn put_aside(&self, state: &mut State, give_up_at: Instant) -> Result<(), Failure> {
        // What is not ours any more is not ours to put aside: the copy would be one of a message
        // that another worker has. And time is needed for what follows.
        let enough = Instant::now() + self.service.lock_time / 2;
        if state.renewing || state.until < enough {
            self.relock(state, give_up_at).await?;
        }
        let Service {
            poison,
            poison_name,
            ..
        } = &*self.service;
        let mut put = poison.put(&self.text, give_up_at).await;
        if matches!(&put, Err(error) if error.code() == Some("QueueNotFound")) {
            // Refused where it may not be created; somebody else may have done it meanwhile.
            poison
                .create(give_up_at)
                .await
                .map_err(|error| error.failure(Operation::CreateQueue, poison_name, false))?;
            put = poison.put(&self.text, give_up_at).await;
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
        self.finish(&mut state, settlement, last, give_up_at).await
    }
}

/// The service itself says that the message is not there under this receipt.
fn is_gone(error: &ServiceError) -> bool {
    matches!(
        error.code(),
        // A deleted queue takes its messages along: there is no lock left to keep, and nothing to
        // settle.
        Some("PopReceiptMismatch" | "MessageNotFound" | "QueueNotFound" | "QueueBeingDeleted")
    )
}

/// In the service's whole seconds, never sooner than asked and never longer than it hides one.
fn seconds(after: Duration) -> i32 {
    let whole = after.min(LONGEST);
    // The service cuts fractions: a delay of half a second would be none, and the retry a hot loop.
    let whole = whole.as_secs() + u64::from(whole.subsec_nanos() > 0);
    i32::try_from(whole).unwrap_or(i32::MAX)
}
