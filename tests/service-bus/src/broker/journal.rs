//! All events in order, by which tests judge.

use std::time::Instant;

use crate::codec::Guid;

use super::faults::{Act, On};

/// An event with its time.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Time on this process's monotonic clock.
    pub at: Instant,
    /// The event.
    pub event: Event,
}

/// Outcome of a settled message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, and removed.
    Complete,
    /// Back in the queue, with one more attempt counted.
    Abandon,
    /// Back in the queue, with no attempt counted.
    Release,
    /// Kept for a request by its number.
    Defer,
    /// Moved to the dead-letter queue.
    DeadLetter {
        /// `DeadLetterReason`
        reason: Option<String>,
        /// `DeadLetterErrorDescription`
        description: Option<String>,
    },
}

/// Way in which a message was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Disposition on the delivering link.
    Link,
    /// Request to `$management`.
    Management,
}

/// An event. Addresses are in lower case, such as `jobs/$deadletterqueue`.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names of the fields say it")]
pub enum Event {
    /// A connection was accepted.
    Connected { connection: u64 },
    /// A connection ended, on either side.
    Disconnected { connection: u64 },
    /// The peer sent no AMQP.
    Malformed { connection: u64, what: String },
    /// A token was put and answered.
    TokenPut { audience: String, status: u16 },
    /// A link was attached; `receiver` if the client receives on it.
    Attached { address: String, receiver: bool },
    /// A link was refused.
    AttachRefused { address: String, condition: String },
    /// A link was detached by the broker (with a condition) or the client.
    Detached {
        address: String,
        condition: Option<String>,
    },
    /// A receiver requested a drain of its credit.
    Drained { address: String },
    /// A message came into a queue.
    Enqueued { address: String, sequence: u64 },
    /// A message was delivered; earlier failed attempts are counted.
    Delivered {
        address: String,
        sequence: u64,
        token: Guid,
        failed: u32,
    },
    /// A message was delivered and removed.
    Removed { address: String, sequence: u64 },
    /// The lock of a message was renewed.
    Renewed {
        address: String,
        sequence: u64,
        token: Guid,
    },
    /// A renewal was refused: no message is locked with that token.
    RenewRefused { address: String, token: Guid },
    /// A message was settled.
    Settled {
        address: String,
        sequence: u64,
        token: Guid,
        outcome: Outcome,
        way: Way,
    },
    /// A settlement was refused: no message is locked with that token.
    SettleRefused {
        address: String,
        token: Guid,
        outcome: Outcome,
        way: Way,
    },
    /// A message's lock ended unsettled.
    LockExpired {
        address: String,
        sequence: u64,
        token: Guid,
    },
    /// A message moved to the dead-letter queue.
    DeadLettered {
        address: String,
        sequence: u64,
        reason: String,
    },
    /// A receiver got a session.
    SessionAccepted { address: String, session: String },
    /// The lock of a session was renewed.
    SessionRenewed { address: String, session: String },
    /// A session's lock ended, with its link or at its time.
    SessionFreed {
        address: String,
        session: String,
        over: bool,
    },
    /// The state of a session was set; `None` removes it.
    StateSet {
        address: String,
        session: String,
        state: Option<Vec<u8>>,
    },
    /// A fault was played.
    Faulted { on: On, act: Act },
}
