//! Traits of a message queue for the driver of `work`.
//!
//! A queue maps its service's answers to the five meanings of [`Failure`], and decides nothing: driver and core
//! decide how often to try a message and when to renew a lock. Requests about one message never overlap, and
//! none follow its end.

pub mod storage;

use std::future::pending;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::{Mutex, MutexGuard};

use crate::before;
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;

/// A `retry_after` beyond every lock: the error is permanent.
pub const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A queue, as one worker takes from it.
#[async_trait]
pub trait Queue: Send + Sync {
    /// Address without a secret, for people and for `TRAFFICCOP_MESSAGE_QUEUE`.
    fn name(&self) -> &str;

    /// Lock duration until a message was taken; [`Message::lock_time`] overrides it.
    fn lock_time(&self) -> Duration;

    /// Returns whether [`Queue::take`] waits until its `give_up_at`, and loses nothing when it is dropped. The
    /// driver then keeps one pending while there are free slots.
    fn waits(&self) -> bool {
        false
    }

    /// Returns whether the queue withholds a message for the delay of [`Settlement::Retry`]. If not, the driver
    /// keeps it locked for that time.
    fn delays(&self) -> bool {
        true
    }

    /// Checks the queue before the first `take`, and creates it if that was requested.
    async fn prepare(&self, give_up_at: Instant) -> Result<(), Missing>;

    /// Takes at most `most` messages that are available now.
    ///
    /// # Errors
    /// `Transient` if the result is unknown: messages that it took return when their locks expire. `Fatal` if
    /// the queue may not be used any more.
    async fn take(&self, most: usize, give_up_at: Instant) -> Result<Vec<Message>, Failure>;

    /// Gives back unchanged what has arrived and was not taken. Called once, when the worker begins to leave,
    /// with no `take` pending.
    async fn stop(&self, give_up_at: Instant) {
        let _nothing_is_on_its_way = give_up_at;
    }

    /// Returns whether the queue is deleted: no worker can get its messages any more.
    fn is_deleted(&self) -> bool {
        false
    }

    /// Closes the queue, when nothing more will be settled.
    async fn close(&self, give_up_at: Instant) {
        let _nothing_is_open = give_up_at;
    }
}

/// Reason why a queue cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No such queue (exit status 66).
    #[error("{0}")]
    NoQueue(String),
    /// A queue of another kind; names the right flag (exit status 64).
    #[error("{0}")]
    OtherKind(String),
    /// Any other failure.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// A message that was taken, with its lock.
pub struct Message {
    /// Id in the queue: the same at every attempt.
    pub id: String,
    /// Number of this attempt, from 1.
    pub attempt: u32,
    /// A moment before which its lock cannot have begun: usually the one before the request that took it.
    pub t0: Instant,
    /// Lock duration of each take or renewal, as far as is known.
    pub lock_time: Duration,
    /// The longest time to the first renewal and between renewals, if `lock_time` comes from comparing two
    /// machines' clocks.
    pub first_renewal: Option<Duration>,
    /// The exact bytes; if they are not available, the message is dead-lettered.
    pub body: Result<Vec<u8>, Unreadable>,
    /// Other facts about it.
    pub about: About,
    /// The lock.
    pub lock: Arc<dyn Lock>,
}

/// Facts about a message. Times are the service's (RFC 3339, UTC): never for decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct About {
    /// When a sender put it into the queue.
    pub enqueued: Option<String>,
    /// End of the lock of this attempt.
    pub locked_until: Option<String>,
    /// When it expires.
    pub expires: Option<String>,
    /// Encoding of its body, where that matters: `text` (unchanged) or `base64` (decoded).
    pub encoding: Option<&'static str>,
    /// Type of its content, by its sender.
    pub content_type: Option<String>,
    /// Properties of the service and of its sender.
    pub properties: std::collections::BTreeMap<String, String>,
}

/// Formats a time for people; `None` outside of the years 0 to 9999.
pub fn date(at: OffsetDateTime) -> Option<String> {
    at.format(&Rfc3339).ok()
}

/// A message whose body no command can get.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Unreadable {
    /// One word for machines, e.g. `TooLarge`.
    pub reason: &'static str,
    /// One line for a person.
    pub detail: String,
}

/// Result of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Processed: the queue deletes it.
    Complete,
    /// Failed: it may return after this delay, and the attempt counts.
    Retry(Duration),
    /// Dead-lettered for people.
    DeadLetter {
        /// One word for machines, e.g. `CommandFailed`.
        reason: String,
        /// One line for a person.
        detail: String,
    },
    /// Not processed: it may return at once, if possible without counting the attempt.
    Release,
}

/// Lock of one message, with the only copy of its newest receipt. An implementation serialises overlapping
/// calls. Each ends by its `give_up_at`, with `Transient`.
#[async_trait]
pub trait Lock: Send + Sync {
    /// Locks the message again for [`Message::lock_time`], counted from before the call.
    ///
    /// # Errors
    /// `Lost` if this worker definitely does not have it any more; `Transient` for every doubt.
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Settles the message; dead letters are copied first. The caller may repeat a settlement in doubt.
    ///
    /// # Errors
    /// `Lost` if another instance has it and nothing was settled; `Transient` if the result is unknown; `Fatal`
    /// if it will never work.
    async fn settle(&self, settlement: &Settlement, give_up_at: Instant) -> Result<(), Failure>;

    /// Returns whether the message expired, or its queue was deleted. No worker can get it, so its command may
    /// finish. Renewals and settlements then succeed.
    fn is_gone(&self) -> bool {
        false
    }

    /// Returns how long the last renewal lasts, counted from before its request, if not [`Message::lock_time`].
    fn lasts(&self) -> Option<Duration> {
        None
    }

    /// Waits until the queue itself reports that the lock is lost, or that another worker may get the message.
    /// Most queues never do.
    async fn lost(&self) -> Failure {
        pending().await
    }

    /// Returns the message's session, if any. This lock is then the session's, and covers all messages to come.
    fn session(&self) -> Option<Arc<dyn Session>> {
        None
    }
}

/// A session: messages in order, all for the worker that has it locked. Each must be settled before the next is
/// taken; with [`Settlement::Retry`] the same one returns.
#[async_trait]
pub trait Session: Send + Sync {
    /// Name of the session, by its senders.
    fn id(&self) -> &str;

    /// Returns a moment after which no other worker got the session. The previous worker may need time from
    /// here to notice its loss.
    fn taken(&self) -> Instant;

    /// Returns start and length of the newest confirmed lock.
    fn locked(&self) -> (Instant, Duration);

    /// Waits for the session's next message; `None` if none came in time. Loses nothing when it is dropped.
    ///
    /// # Errors
    /// `Lost` if this worker does not have the session any more, or the queue could not keep its order.
    async fn next(&self, give_up_at: Instant) -> Result<Option<Message>, Failure>;

    /// Reads the session's stored bytes; empty by default.
    async fn state(&self, give_up_at: Instant) -> Result<Vec<u8>, Failure>;

    /// Replaces the session's stored bytes; `Fatal` if the queue does not accept them.
    async fn set_state(&self, state: &[u8], give_up_at: Instant) -> Result<(), Failure>;

    /// Gives the session up, with its unsettled messages.
    async fn close(&self, give_up_at: Instant);
}

/// Reason why a message is closed.
pub enum Closed {
    /// This worker settled it.
    Settled(Settlement),
    /// This worker does not have it any more, or the result is unknown.
    Failed(Failure),
}

impl Closed {
    /// Returns the failure for any request about it.
    pub fn failure(&self) -> Failure {
        match self {
            Closed::Settled(_) => Failure::Lost {
                until: None,
                why: "the message is settled".to_owned(),
            },
            Closed::Failed(Failure::Lost { until, why }) => Failure::Lost {
                // An end in the past protects no command.
                until: until.filter(|until| *until > Instant::now()),
                why: why.clone(),
            },
            Closed::Failed(failure) => failure.clone(),
        }
    }

    /// Returns the result of a settlement: repeating one that was done succeeds.
    pub fn settled_as(&self, settlement: &Settlement) -> Result<(), Failure> {
        match self {
            // Its delay or text may differ: the first one is final.
            Closed::Settled(how) if discriminant(how) == discriminant(settlement) => Ok(()),
            _ => Err(self.failure()),
        }
    }
}

/// Waits for this call's turn with a message; `Transient` after `give_up_at`.
pub async fn turn<State>(
    state: &Mutex<State>,
    give_up_at: Instant,
) -> Result<MutexGuard<'_, State>, Failure> {
    // A renewal that overtakes a settlement is refused, and would look like a lost lock. In a storage queue the
    // first of two updates makes the second's receipt stale.
    let turn = before(give_up_at, state.lock()).await;
    turn.ok_or_else(|| Failure::Transient {
        why: "the request before this one is still under way".to_owned(),
        retry_after: None,
    })
}
