//! The lock of one message, and what settles it.
//!
//! Called by the driver through [`Lock`], and by the connection task for what it gives back. Must never take
//! the answer to one request for that to another, and never call a message done that the service has
//! not said to be.
//!
//! # By its token
//! A lock is renewed, and a message settled, by the lock's token through `$management`: that is
//! answered, and works on every connection, so a connection that was cut costs nothing. Only a release
//! can be said on the link alone, by the connection that delivered the message; afterwards the message
//! is abandoned instead, which counts one attempt.
//!
//! # When a settlement was not answered
//! It may have been done. It is asked for again as long as the lock lasts; and if the service then says
//! that there is no such lock (410), the first one did it, or the lock was lost before. That cannot be
//! told apart, so the answer stays "not confirmed": never "failed", and never "done".

use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use time::OffsetDateTime;
use tokio::sync::Mutex;

use super::engine::{Service, Ticket};
use super::error::BusError;
use super::lock_duration::LockDuration;
use super::lock_token::LockToken;
use super::shared_connection::SharedConnection;
use crate::clock::Instant;
use crate::core::Failure;
use crate::queue::turn::turn;
use crate::queue::{Lock, Settlement};

/// There is no sense in asking again.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// What all locks of a queue share.
pub(super) struct Shared {
    pub(super) shared_connection: SharedConnection,
    pub(super) lock_duration: LockDuration,
    /// Settle on the link wherever that can be, instead of through `$management`.
    pub(super) link_settle: bool,
}

/// A message that came, as far as its lock goes.
pub(super) struct Held {
    shared: Arc<Shared>,
    lock: LockToken,
    ticket: Ticket,
    state: Mutex<State>,
}

struct State {
    /// The moment from which the newest confirmed lock counts, and for how long it is believed.
    t0: Instant,
    length: Duration,
    /// A settlement was sent and may have been carried out.
    settling: Option<Settlement>,
    over: Option<Ended>,
}

enum Ended {
    Settled(Settlement),
    Lost(String),
    Unconfirmed(String),
}

impl Ended {
    fn failure(&self) -> Failure {
        let why = match self {
            Ended::Settled(_) => "the message is settled".to_owned(),
            Ended::Lost(why) => why.clone(),
            Ended::Unconfirmed(why) => {
                return Failure::Transient {
                    why: why.clone(),
                    retry_after: Some(NEVER),
                };
            }
        };
        Failure::Lost { until: None, why }
    }
}

impl Held {
    pub(super) fn new(
        shared: Arc<Shared>,
        lock: LockToken,
        ticket: Ticket,
        t0: Instant,
        length: Duration,
    ) -> Held {
        let state = State {
            t0,
            length,
            settling: None,
            over: None,
        };
        Held {
            shared,
            lock,
            ticket,
            state: Mutex::new(state),
        }
    }

    async fn service(&self, what: &str, give_up_at: Instant) -> Result<Arc<dyn Service>, Failure> {
        let service = self
            .shared
            .shared_connection
            .service(None, give_up_at)
            .await;
        service.map_err(|fault| fault.doubt(what))
    }

    /// The connection after this one, if the fault is that it has ended; else, or if none comes in time,
    /// the fault.
    async fn after(
        &self,
        service: &Arc<dyn Service>,
        fault: BusError,
        give_up_at: Instant,
    ) -> Result<Arc<dyn Service>, BusError> {
        if service.ended().now_or_never().is_none() {
            return Err(fault);
        }
        let next = self
            .shared
            .shared_connection
            .service(Some(service), give_up_at)
            .await;
        next.map_err(|_| fault)
    }

    /// Locks it anew; for how long. Where the connection ends meanwhile it is asked for on the next one:
    /// that it is renewed twice does no harm, and a short lock has no time for another attempt.
    pub(super) async fn relock(&self, give_up_at: Instant) -> Result<Duration, Failure> {
        const WHAT: &str = "the lock is not renewed";
        let mut state = turn(&self.state, give_up_at).await?;
        if let Some(over) = &state.over {
            return Err(over.failure());
        }
        let mut service = self.service(WHAT, give_up_at).await?;
        loop {
            let t0 = Instant::now();
            match service.renew(self.lock, give_up_at).await {
                Ok(until) => {
                    state.t0 = t0;
                    if until.is_some() {
                        state.length = self.shared.lock_duration.of(until, wall());
                    }
                    return Ok(state.length);
                }
                Err(fault) if fault.is_lost() => {
                    if state.settling.is_none() {
                        let after = Instant::now().since(state.t0);
                        self.shared.lock_duration.ended_early(after, state.length);
                    }
                    return Err(lose(&mut state, &fault));
                }
                Err(fault) => {
                    let next = self.after(&service, fault, give_up_at).await;
                    service = next.map_err(|fault| fault.doubt(WHAT))?;
                }
            }
        }
    }

    /// Asks the service, in the way that can be.
    async fn ask(
        &self,
        service: &dyn Service,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        let on_link = self.shared.link_settle || matches!(how, Settlement::Release);
        if on_link && service.delivered(self.ticket) {
            return service.dispose(self.ticket, how, give_up_at).await;
        }
        let by_token = match how {
            Settlement::Release => &Settlement::Retry(Duration::ZERO),
            _ => how,
        };
        service.settle(self.lock, by_token, give_up_at).await?;
        service.forget(self.ticket, how);
        Ok(())
    }
}

/// The service says that there is no such lock. Nothing is said on the link any more either, not even
/// to empty the library's map: it could still mean something to a service that was wrong.
fn lose(state: &mut State, fault: &BusError) -> Failure {
    let over = if state.settling.is_some() {
        Ended::Unconfirmed(format!(
            "{}: the settlement before was not answered, and whether it was carried out cannot be said",
            fault.why()
        ))
    } else {
        Ended::Lost(fault.why())
    };
    let failure = over.failure();
    state.over = Some(over);
    failure
}

/// By our wall clock, in milliseconds since 1970: compared with the service's, and no more.
pub(super) fn wall() -> i64 {
    let nanos = OffsetDateTime::now_utc().unix_timestamp_nanos();
    i64::try_from(nanos / 1_000_000).unwrap_or(0)
}

#[async_trait]
impl Lock for Held {
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        self.relock(give_up_at).await.map(drop)
    }

    async fn settle(&self, settlement: &Settlement, give_up_at: Instant) -> Result<(), Failure> {
        const WHAT: &str = "the message is not settled";
        let mut state = turn(&self.state, give_up_at).await?;
        match &state.over {
            Some(Ended::Settled(how)) if discriminant(how) == discriminant(settlement) => {
                return Ok(());
            }
            Some(over) => return Err(over.failure()),
            None => {}
        }
        let mut service = self.service(WHAT, give_up_at).await?;
        loop {
            // Written down before it is asked for: this call can be dropped at any await.
            let earlier = state.settling.replace(settlement.clone());
            let fault = match self.ask(&*service, settlement, give_up_at).await {
                Ok(()) => {
                    state.over = Some(Ended::Settled(settlement.clone()));
                    return Ok(());
                }
                Err(fault) => fault,
            };
            if !fault.is_unclear() {
                state.settling = earlier;
            }
            if fault.is_lost() {
                return Err(lose(&mut state, &fault));
            }
            // What was not even sent is asked for on the next connection.
            let next = match &fault {
                BusError::Unsent(_) => self.after(&service, fault, give_up_at).await,
                _ => Err(fault),
            };
            service = next.map_err(|fault| fault.doubt(WHAT))?;
        }
    }
}
