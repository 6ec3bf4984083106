//! What a queue is to the driver of `work`: messages that are taken, held and settled; and what the
//! locks of every kind of queue have in common.
//!
//! Implemented once for each kind of queue, each in its own file. A queue speaks to its service and
//! maps what it hears to the five meanings of [`Failure`]; it decides nothing: how often a message
//! is tried, what its command's exit status means and when a lock is renewed is said by the driver
//! and the core. It never knows a process. Requests about one message never overlap, and once it is
//! settled or lost nothing is asked for any more.

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

/// A `retry_after` beyond every lock: whoever is asked would say the same again. A service that is busy wishes for less.
pub const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A queue, as one worker takes from it.
#[async_trait]
pub trait Queue: Send + Sync {
    /// The queue's address for people and for `TRAFFICCOP_MESSAGE_QUEUE`; never with a secret in it.
    fn name(&self) -> &str;

    /// For how long a message is locked as far as that is known before one was taken; what counts for
    /// a message is its own [`Message::lock_time`].
    fn lock_time(&self) -> Duration;

    /// Whether [`Queue::take`] itself waits for messages, until its `give_up_at`. Such a `take` loses
    /// nothing when it is dropped: what has arrived by then comes with the next one. So one is always
    /// pending while there are free slots, and is dropped and asked anew when there are more of them.
    fn waits(&self) -> bool {
        false
    }

    /// Whether the queue itself keeps a message away for [`Settlement::Retry`]'s delay. If not, the
    /// driver keeps the message locked for so long, and then settles it with a delay of nothing.
    fn delays(&self) -> bool {
        true
    }

    /// Looks at the queue (and makes what it needs, where that was asked for) before anything is
    /// taken.
    ///
    /// # Errors
    /// Why nothing can be taken from it.
    async fn prepare(&self, give_up_at: Instant) -> Result<(), Missing>;

    /// Takes at most `most` messages that are there now; none is an answer, too.
    ///
    /// # Errors
    /// `Transient` if it could not be said; what an unanswered request may have taken comes back by
    /// itself when its lock has run out. `Fatal` where it may not be used any more.
    async fn take(&self, most: usize, give_up_at: Instant) -> Result<Vec<Message>, Failure>;

    /// No more messages are wanted, and no `take` is pending: what has arrived and was not taken is
    /// given back, as it was. Called once, when the worker begins to leave; what it has taken goes on.
    async fn stop(&self, give_up_at: Instant) {
        // A queue that is asked and answers has handed out whatever it has locked.
        let _nothing_is_on_its_way = give_up_at;
    }

    /// Whether the service answered last that the queue does not exist any more. A queue that was deleted has
    /// no messages, and those that were taken from it can be given to no worker.
    fn is_deleted(&self) -> bool {
        false
    }

    /// Nothing more will be asked for: everything taken was settled, or never will be.
    async fn close(&self, give_up_at: Instant) {
        let _nothing_is_open = give_up_at;
    }
}

/// Why a queue cannot be worked on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// There is no such queue (exit status 66).
    #[error("{0}")]
    NoQueue(String),
    /// It is of another kind than was said: which flag is to be used (exit status 64).
    #[error("{0}")]
    OtherKind(String),
    /// Anything else, as a store would say it.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// A message that was taken, with its lock.
pub struct Message {
    /// Its id in the queue: the same at every attempt.
    pub id: String,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The moment before the request was sent that took it, or another before which its lock cannot
    /// have begun: it lasts at least `lock_time` from here.
    pub t0: Instant,
    /// For how long it is locked by each request that takes or renews it, as far as is known.
    pub lock_time: Duration,
    /// The longest time from `t0` to the first renewal, and from one to the next, where `lock_time` is
    /// only as good as a comparison of two machines' clocks; `None`: it is known.
    pub first_renewal: Option<Duration>,
    /// The exact bytes, or why they cannot be had: such a message is put aside.
    pub body: Result<Vec<u8>, Unreadable>,
    /// What else is known of it.
    pub about: About,
    /// Its lock.
    pub lock: Arc<dyn Lock>,
}

/// What a queue tells of a message, apart from its body. Times are the service's (RFC 3339, UTC): for
/// people and for the command, never for decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct About {
    /// When it was put into the queue.
    pub enqueued: Option<String>,
    /// Until when the service locked it for this attempt.
    pub locked_until: Option<String>,
    /// When it vanishes by itself.
    pub expires: Option<String>,
    /// How its body was read, where that has to be said: `text`, as it was sent, or `base64`, decoded.
    pub encoding: Option<&'static str>,
    /// The type of its content, by its sender.
    pub content_type: Option<String>,
    /// Properties of the service and of its sender, by name.
    pub properties: std::collections::BTreeMap<String, String>,
}

/// A moment that a service or a sender named, for people; none, where no date can say it, as the years that
/// it can bear go from 0 to 9999.
pub fn date(at: OffsetDateTime) -> Option<String> {
    at.format(&Rfc3339).ok()
}

/// A message whose body cannot be handed to a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Unreadable {
    /// One word for machines, e.g. `TooLarge`.
    pub reason: &'static str,
    /// One line for a person.
    pub detail: String,
}

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It was processed: it goes away.
    Complete,
    /// It failed and may come again after so long; the attempt counts.
    Retry(Duration),
    /// It is put aside, for people to look at.
    DeadLetter {
        /// One word for machines, e.g. `CommandFailed`.
        reason: String,
        /// One line for a person.
        detail: String,
    },
    /// Nothing was done with it: it may come again at once, and where the queue can do that the
    /// attempt does not count.
    Release,
}

/// The lock of one message: the only one that knows its newest receipt. Calls are made one after
/// another (an implementation serialises those that are not); each keeps its own time limit
/// (`give_up_at`), past which it answers `Transient`.
#[async_trait]
pub trait Lock: Send + Sync {
    /// Locks it anew for [`Message::lock_time`]. The caller has stamped the moment before the call as
    /// `t0`.
    ///
    /// # Errors
    /// `Lost` if it is definitely not ours any more; `Transient` for everything that is doubt.
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure>;

    /// Settles it. May be asked again with the same settlement while that is in doubt. What is put
    /// aside is put there before it goes away here.
    ///
    /// # Errors
    /// `Lost` if another instance has it now and nothing was settled; `Transient` if it could not be
    /// said; `Fatal` if it will never work (no right to put it aside, say).
    async fn settle(&self, settlement: &Settlement, give_up_at: Instant) -> Result<(), Failure>;

    /// Whether the queue has said that the message is gone for good, so that no worker can be given it any more:
    /// it expired, or its queue was deleted. Its command may finish. Renewals then succeed, and so does every
    /// settlement: nothing is left to settle but a copy for the dead letters, where that is asked for.
    fn is_gone(&self) -> bool {
        false
    }

    /// For how long the renewal before this lasts, from the moment before it was asked for, where the queue
    /// can have made that another time than [`Message::lock_time`]; `None`: it has not, or nobody can say.
    fn lasts(&self) -> Option<Duration> {
        None
    }

    /// Ends when the queue says unasked that it is definitely not ours any more, or can be another's at
    /// any moment: why. Most queues never do.
    async fn lost(&self) -> Failure {
        pending().await
    }

    /// The session that the message belongs to, where messages come in sessions. Then this lock is the
    /// session's: whoever renews it renews it for all that is still to come.
    fn session(&self) -> Option<Arc<dyn Session>> {
        None
    }
}

/// A session: messages that belong together, which come in their order and are all one worker's for as
/// long as it has the session locked. Each of them is settled before the next one is asked for; with
/// [`Settlement::Retry`] the same one comes again.
#[async_trait]
pub trait Session: Send + Sync {
    /// Its name, by its senders.
    fn id(&self) -> &str;

    /// A moment after which nobody else was given it: from here on the worker before us may still be
    /// finding out that it has lost it.
    fn taken(&self) -> Instant;

    /// The newest lock of it that the queue has confirmed: the moment from which it counts, and its length
    /// ([`Message::t0`], [`Message::lock_time`]).
    fn locked(&self) -> (Instant, Duration);

    /// Its next message; none, if none came until then. Loses nothing when it is dropped.
    ///
    /// # Errors
    /// `Lost` if the session is not ours any more, or its order could not be kept.
    async fn next(&self, give_up_at: Instant) -> Result<Option<Message>, Failure>;

    /// What was last stored with it; nothing, if nothing was.
    ///
    /// # Errors
    /// As [`Lock::renew`].
    async fn state(&self, give_up_at: Instant) -> Result<Vec<u8>, Failure>;

    /// Stores this with it, until something else is; nothing takes it away.
    ///
    /// # Errors
    /// As [`Lock::settle`]; `Fatal` if the queue will not have it.
    async fn set_state(&self, state: &[u8], give_up_at: Instant) -> Result<(), Failure>;

    /// Gives it up: what was not settled of it is as it was, and anybody's.
    async fn close(&self, give_up_at: Instant);
}

/// Why nothing can be done with a message any more.
pub enum Closed {
    /// It was settled, by us.
    Settled(Settlement),
    /// It is not ours any more, or nobody can say whether it was settled.
    Failed(Failure),
}

impl Closed {
    /// What whoever asks for something is told.
    pub fn failure(&self) -> Failure {
        match self {
            Closed::Settled(_) => Failure::Lost {
                until: None,
                why: "the message is settled".to_owned(),
            },
            Closed::Failed(Failure::Lost { until, why }) => Failure::Lost {
                // What has passed by now protects nobody.
                until: until.filter(|until| *until > Instant::now()),
                why: why.clone(),
            },
            Closed::Failed(failure) => failure.clone(),
        }
    }

    /// The same for whoever asks for a settlement: one that was done may be asked for again.
    pub fn settled_as(&self, settlement: &Settlement) -> Result<(), Failure> {
        match self {
            // By its kind alone: whichever delay or text the first one bore, it is done and cannot
            // be done anew.
            Closed::Settled(how) if discriminant(how) == discriminant(settlement) => Ok(()),
            _ => Err(self.failure()),
        }
    }
}

/// What is known of the message, for as long as it is this call's turn. Never waits for longer than
/// the caller has.
///
/// # Errors
/// `Transient` if another call had it until `give_up_at`.
pub async fn turn<State>(
    state: &Mutex<State>,
    give_up_at: Instant,
) -> Result<MutexGuard<'_, State>, Failure> {
    // A renewal that overtakes a settlement is refused, and would be taken for a lost lock; of two
    // updates of a storage queue the first makes the second's receipt stale.
    let turn = before(give_up_at, state.lock()).await;
    turn.ok_or_else(|| Failure::Transient {
        why: "the request before this one is still under way".to_owned(),
        retry_after: None,
    })
}
