//! What this room needs of AMQP, so that what speaks it can be replaced.
//!
//! Implemented by [`super::amqp`] alone; asked by the connection task, which has the one connection there is,
//! and by locks. An engine tells what it received, and decides nothing. Everything here ends by itself
//! in some time; what the caller has less of is said by `give_up_at`.

use std::sync::Arc;

use async_trait::async_trait;

use super::error::BusError;
use super::lock_token::LockToken;
use super::tokens::CbsToken;
use crate::clock::Instant;
use crate::queue::{About, Settlement, Unreadable};

/// Opens connections.
#[async_trait]
pub(super) trait Engine: Send + Sync {
    /// A connection to the queue, authorised, with everything attached and no credit given.
    async fn connect(&self, token: &CbsToken, give_up_at: Instant) -> Result<Connection, BusError>;
}

/// A connection, in two halves.
pub(super) struct Connection {
    /// What many may ask at the same time.
    pub(super) service: Arc<dyn Service>,
    /// What one takes messages from.
    pub(super) intake: Box<dyn Intake>,
}

/// The half of requests.
#[async_trait]
pub(super) trait Service: Send + Sync {
    /// Puts a new token.
    async fn authorise(&self, token: &CbsToken, give_up_at: Instant) -> Result<(), BusError>;

    /// Renews a lock. Until when it is locked, by the service's clock, in milliseconds since 1970.
    async fn renew(&self, lock: LockToken, give_up_at: Instant) -> Result<Option<i64>, BusError>;

    /// Settles by the lock's token, and hears what the service says to it. A release cannot be said
    /// in this way.
    async fn settle(
        &self,
        lock: LockToken,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError>;

    /// Settles by a disposition on the link that delivered the message, and hears what the service
    /// says to it.
    async fn dispose(
        &self,
        ticket: Ticket,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError>;

    /// Forgets a delivery that was settled in another way.
    fn forget(&self, ticket: Ticket, how: &Settlement);

    /// Whether this connection delivered it.
    fn delivered(&self, ticket: Ticket) -> bool;

    /// Ends when the connection has ended: why.
    async fn ended(&self) -> BusError;

    /// Ends the connection in good order.
    async fn close(&self, give_up_at: Instant);
}

/// The half that messages come in by. There is one, and it is asked all the time: what others settle
/// on the link goes out by it.
#[async_trait]
pub(super) trait Intake: Send {
    /// Lets `total` messages come, those included that were let before and have not come. Never less
    /// than were let before.
    async fn let_come(&mut self, total: u32) -> Result<(), BusError>;

    /// The next message. Loses nothing when it is dropped.
    async fn next(&mut self) -> Result<Delivery, BusError>;

    /// Lets nothing come any more, and tells of what comes until the service has received of it. That is
    /// so as well when all has come that was let: `left` more.
    ///
    /// # Errors
    /// Why that was not to be received.
    async fn drain(
        &mut self,
        left: usize,
        give_up_at: Instant,
        came: &mut (dyn FnMut(Delivery) + Send),
    ) -> Result<(), BusError>;
}

/// A delivery on the link of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    /// Which connection of this process.
    pub(super) connection: u64,
    /// Its number there.
    pub(super) delivery: u32,
}

/// A message as it was delivered.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) ticket: Ticket,
    /// The token of its lock; without one it cannot be worked on.
    pub(super) lock: Option<LockToken>,
    pub(super) id: String,
    /// From 1.
    pub(super) attempt: u32,
    pub(super) body: Result<Vec<u8>, Unreadable>,
    pub(super) about: About,
    /// By the service's clock, in milliseconds since 1970.
    pub(super) locked_until: Option<i64>,
}
