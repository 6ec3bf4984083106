//! What happened, in order: tests judge by it.

use std::time::Instant;

use crate::codec::Guid;

use super::faults::{Act, On};

/// One thing that happened, and when.
#[derive(Clone, Debug)]
pub struct Entry {
    /// On the monotonic clock of this process.
    pub at: Instant,
    /// What.
    pub event: Event,
}

/// What a settled message became, or was to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done and gone.
    Complete,
    /// Back in the queue, one more attempt counted.
    Abandon,
    /// Back in the queue, nothing counted.
    Release,
    /// Kept for the one who asks for it by its number.
    Defer,
    /// In the dead-letter queue.
    DeadLetter {
        /// `DeadLetterReason`
        reason: Option<String>,
        /// `DeadLetterErrorDescription`
        description: Option<String>,
    },
}

/// How a message was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By a disposition on the link that delivered it.
    Link,
    /// By a request to `$management`.
    Management,
}

/// What happened. Addresses are those of queues, lower-case, such as `jobs/$deadletterqueue`.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Event {
    /// A connection was accepted.
    Connected { connection: u64 },
    /// It is gone, by whomever it was ended.
    Disconnected { connection: u64 },
    /// The peer sent what is not AMQP.
    Malformed { connection: u64, what: String },
    /// A token was put and answered.
    TokenPut { audience: String, status: u16 },
    /// A link was attached; `receiver` if the client receives on it.
    Attached { address: String, receiver: bool },
    /// It was refused.
    AttachRefused { address: String, condition: String },
    /// It was ended by the broker (with a condition) or by the client.
    Detached {
        address: String,
        condition: Option<String>,
    },
    /// A receiver asked for its credit to be used up.
    Drained { address: String },
    /// A message came into a queue.
    Enqueued { address: String, sequence: u64 },
    /// It was given to a receiver; attempts that failed before are counted.
    Delivered {
        address: String,
        sequence: u64,
        token: Guid,
        failed: u32,
    },
    /// It was given to a receiver for good.
    Removed { address: String, sequence: u64 },
    /// Its lock was renewed.
    Renewed {
        address: String,
        sequence: u64,
        token: Guid,
    },
    /// Nothing is locked with that token.
    RenewRefused { address: String, token: Guid },
    /// It was settled.
    Settled {
        address: String,
        sequence: u64,
        token: Guid,
        outcome: Outcome,
        way: Way,
    },
    /// Nothing is locked with that token.
    SettleRefused {
        address: String,
        token: Guid,
        outcome: Outcome,
        way: Way,
    },
    /// Its lock ended unsettled.
    LockExpired {
        address: String,
        sequence: u64,
        token: Guid,
    },
    /// It moved to the dead-letter queue.
    DeadLettered {
        address: String,
        sequence: u64,
        reason: String,
    },
    /// A receiver got a session.
    SessionAccepted { address: String, session: String },
    /// Its lock was renewed.
    SessionRenewed { address: String, session: String },
    /// Its lock ended: with its link, or because its time was over.
    SessionFreed {
        address: String,
        session: String,
        over: bool,
    },
    /// Its state was set; nothing takes it away.
    StateSet {
        address: String,
        session: String,
        state: Option<Vec<u8>>,
    },
    /// A fault was played.
    Faulted { on: On, act: Act },
}
