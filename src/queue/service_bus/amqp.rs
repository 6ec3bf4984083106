//! The engine: AMQP 1.0 through `fe2o3-amqp`, over a stream of our own.
//!
//! Called by the connection task (through [`super::engine`]), and knows what the library can and cannot do:
//!
//! - **It pairs nothing.** Requests and answers are [`super::request_link`]; the library's own client for
//!   `$management` takes the next message for the answer.
//! - **It forgets what the service says to a disposition**, and when a link has used up its credit.
//!   Both are read on the way in ([`super::frame_observer`]). So a message is settled by its lock's token through
//!   `$management`, whose answer is received and which works on any connection; the disposition that
//!   follows only empties the library's map.
//! - **Its awaits can hang** where a socket has died: each has a time limit here.
//! - **Less credit than was given is an error to it** once messages are under way. So credit is only
//!   ever added, until it is drained for good.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::TerminalDeliveryState;
use fe2o3_amqp::link::{CreditMode, RecvError, delivery::DeliveryInfo};
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{
    Error, ErrorCondition, Fields, ReceiverSettleMode, SenderSettleMode,
};
use fe2o3_amqp::types::messaging::{Accepted, Body, Modified, Rejected, Released};
use fe2o3_amqp::types::primitives::{SimpleValue, Symbol, Timestamp, Value};
use fe2o3_amqp::{Connection as Amqp, Receiver, Session};
use time::OffsetDateTime;
use tokio::sync::mpsc;

use super::Target;
use super::close_signal::CloseSignal;
use super::engine::{Connection, Delivery, Engine, Intake, Service, Ticket};
use super::error;
use super::error::BusError;
use super::frame_observer::{FrameObserver, Seen};
use super::frame_scanner::Said;
use super::lock_token::LockToken;
use super::request_link::RequestLink;
use super::tokens::CbsToken;
use super::transport;
use super::wire;
use crate::azure::before;
use crate::clock::Instant;
use crate::queue::Settlement;
use crate::util::lock;

/// No more often than this half the service has to say something for us to hear that it lives.
const IDLE: u32 = 60_000;
/// What is sent at once anyway takes no longer.
const LIMIT: Duration = Duration::from_secs(5);
/// As the real service has it.
const MAX_FRAME: u32 = 65_536;

/// See the module's text.
pub(super) struct Fe2o3 {
    target: Target,
    max_body: usize,
    /// The name of this process among the service's clients.
    container: String,
    connections: AtomicU64,
}

type Deliveries = Arc<Mutex<HashMap<u32, DeliveryInfo>>>;

fn locked(deliveries: &Deliveries) -> MutexGuard<'_, HashMap<u32, DeliveryInfo>> {
    lock(deliveries)
}

impl Fe2o3 {
    pub(super) fn new(target: Target, max_body: usize) -> Fe2o3 {
        Fe2o3 {
            target,
            max_body,
            container: format!("trafficcop-{:016x}", fastrand::u64(..)),
            connections: AtomicU64::new(1),
        }
    }

    async fn open(&self, token: &CbsToken, give_up_at: Instant) -> Result<Connection, BusError> {
        let Target {
            host, port, tls, ..
        } = &self.target;
        let serial = self.connections.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{serial}", self.container);
        let stream = transport::connect(host, *port, tls.as_ref()).await?;
        let seen = Arc::new(Seen::new(name.clone()));
        let end = Arc::new(CloseSignal::new(Arc::clone(&seen)));
        let mut connection = Amqp::builder()
            .container_id(self.container.clone())
            .hostname(host.as_str())
            // TLS, where there is any, is under the stream.
            .scheme("amqp")
            .sasl_profile(SaslProfile::Anonymous)
            .max_frame_size(MAX_FRAME)
            .idle_time_out(IDLE)
            .open_with_stream(FrameObserver::new(stream, Arc::clone(&seen)))
            .await
            .map_err(|error| error::amqp::opening(&error, host, *port))?;
        let mut session = Session::begin(&mut connection)
            .await
            .map_err(|error| error::amqp::beginning(&error))?;
        let requests = |what: &str| (format!("{name}:{what}"), Arc::clone(&end));
        let (cbs_name, cbs_end) = requests("cbs");
        let cbs = RequestLink::attach(&mut session, "$cbs", cbs_name, cbs_end).await?;
        self.authorise(&cbs, token, give_up_at).await?;
        let receiver = Receiver::builder()
            .name(name.clone())
            .source(self.target.entity.as_str())
            .sender_settle_mode(SenderSettleMode::Unsettled)
            .receiver_settle_mode(ReceiverSettleMode::Second)
            .credit_mode(CreditMode::Manual)
            .verify_incoming_source(false)
            .verify_incoming_target(false)
            .attach(&mut session)
            .await
            .map_err(|error| error::amqp::attaching_receiver(&error))?;
        let address = format!("{}/$management", self.target.entity);
        let (management_name, management_end) = requests("management");
        let management =
            RequestLink::attach(&mut session, &address, management_name, management_end).await?;
        let deliveries = Deliveries::default();
        let (orders, ordered) = mpsc::unbounded_channel();
        let open = Arc::new(Open {
            serial,
            name,
            target: self.target.clone(),
            cbs,
            management,
            seen: Arc::clone(&seen),
            end: Arc::clone(&end),
            deliveries: Arc::clone(&deliveries),
            orders,
            handles: tokio::sync::Mutex::new(Some((session, connection))),
        });
        let arrivals = Arrivals {
            serial,
            receiver,
            ordered,
            order: None,
            deliveries,
            received: 0,
            seen,
            end,
            max_body: self.max_body,
        };
        Ok(Connection {
            service: open,
            intake: Box::new(arrivals),
        })
    }

    async fn authorise(
        &self,
        cbs: &RequestLink,
        token: &CbsToken,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        authorise(&self.target, cbs, token, give_up_at).await
    }
}

/// Puts a token for everything that is below the entity.
async fn authorise(
    target: &Target,
    cbs: &RequestLink,
    token: &CbsToken,
    give_up_at: Instant,
) -> Result<(), BusError> {
    let left = token
        .good_until
        .since(Instant::now())
        .min(Duration::from_secs(u64::from(u32::MAX)));
    let now = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000;
    let expiry = i64::try_from(now)
        .unwrap_or(0)
        .saturating_add(left.as_millis() as i64);
    let text = |text: &str| SimpleValue::String(text.to_owned());
    let marks = [
        ("operation", text("put-token")),
        ("type", text(token.kind)),
        ("name", text(&target.audience())),
        (
            "expiration",
            SimpleValue::Timestamp(Timestamp::from_milliseconds(expiry)),
        ),
    ];
    let body = Value::String(token.token.secret().to_owned());
    cbs.ask(marks, body, give_up_at).await?.result().map(drop)
}

#[async_trait]
impl Engine for Fe2o3 {
    async fn connect(&self, token: &CbsToken, give_up_at: Instant) -> Result<Connection, BusError> {
        let opened = before(give_up_at, self.open(token, give_up_at)).await;
        opened.unwrap_or_else(|| {
            let Target { host, port, .. } = &self.target;
            Err(BusError::Unsent(format!(
                "{host}:{port} does not answer in time"
            )))
        })
    }
}

/// What is to be said on the link.
struct Instruction {
    info: DeliveryInfo,
    state: TerminalDeliveryState,
}

/// The half of requests.
struct Open {
    serial: u64,
    /// Of the link that messages come by.
    name: String,
    target: Target,
    cbs: RequestLink,
    management: RequestLink,
    seen: Arc<Seen>,
    end: Arc<CloseSignal>,
    deliveries: Deliveries,
    orders: mpsc::UnboundedSender<Instruction>,
    /// As long as these live, the connection does.
    handles: tokio::sync::Mutex<Option<(SessionHandle<()>, ConnectionHandle<()>)>>,
}

impl Open {
    async fn ask(
        &self,
        (operation, body): (&'static str, Value),
        give_up_at: Instant,
    ) -> Result<Value, BusError> {
        let left = give_up_at.since(Instant::now()).as_millis();
        let marks = [
            ("operation", SimpleValue::String(operation.to_owned())),
            // Keeps the link that messages come by from being cut for want of use.
            (
                "associated-link-name",
                SimpleValue::String(self.name.clone()),
            ),
            (
                "com.microsoft:server-timeout",
                SimpleValue::Uint(u32::try_from(left).unwrap_or(u32::MAX)),
            ),
        ];
        self.management.ask(marks, body, give_up_at).await?.result()
    }

    fn info(&self, ticket: Ticket) -> Option<DeliveryInfo> {
        locked(&self.deliveries).get(&ticket.delivery).cloned()
    }
}

#[async_trait]
impl Service for Open {
    async fn authorise(&self, token: &CbsToken, give_up_at: Instant) -> Result<(), BusError> {
        authorise(&self.target, &self.cbs, token, give_up_at).await
    }

    async fn renew(&self, lock: LockToken, give_up_at: Instant) -> Result<Option<i64>, BusError> {
        let body = self.ask(wire::renewal(lock), give_up_at).await?;
        Ok(wire::expiration(&body))
    }

    async fn settle(
        &self,
        lock: LockToken,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        let Some(request) = wire::settlement(lock, how) else {
            return Err(BusError::Unsent("a release has no request".into()));
        };
        self.ask(request, give_up_at).await.map(drop)
    }

    async fn dispose(
        &self,
        ticket: Ticket,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        let sent = Instant::now();
        let gone = || BusError::Unsent("the link that delivered it is gone".into());
        let info = self.info(ticket).ok_or_else(gone)?;
        let mut expected = self.seen.expect(ticket.delivery);
        let state = state(how);
        self.orders
            .send(Instruction { info, state })
            .map_err(|_| gone())?;
        let said = async {
            tokio::select! {
                biased;
                said = expected.answer() => said.ok_or_else(gone),
                why = self.end.wait() => Err(BusError::Unanswered(why.why())),
            }
        };
        let said = before(give_up_at, said).await.unwrap_or_else(|| {
            self.end.suspect(sent);
            Err(BusError::Unanswered("no answer to the disposition".into()))
        })?;
        locked(&self.deliveries).remove(&ticket.delivery);
        match said {
            Said::Done => Ok(()),
            Said::Refused(condition, text) => Err(BusError::refused(&condition, Some(&text))),
        }
    }

    fn forget(&self, ticket: Ticket, how: &Settlement) {
        if !self.delivered(ticket) {
            return;
        }
        let info = locked(&self.deliveries).remove(&ticket.delivery);
        if let Some(info) = info {
            // What is settled already is refused, and freed. Should a service take it all the same,
            // only a message that was completed may go.
            let state = match how {
                Settlement::Complete => Accepted {}.into(),
                _ => Released {}.into(),
            };
            // A connection that has ended has forgotten everything.
            let _ = self.orders.send(Instruction { info, state });
        }
    }

    fn delivered(&self, ticket: Ticket) -> bool {
        ticket.connection == self.serial
    }

    async fn ended(&self) -> BusError {
        self.end.wait().await
    }

    async fn close(&self, give_up_at: Instant) {
        let handles = self.handles.lock().await.take();
        if let Some((mut session, mut connection)) = handles {
            let closing = async {
                // They have nothing to say that matters any more.
                let _ = session.end().await;
                let _ = connection.close().await;
            };
            before(give_up_at, closing).await;
        }
        self.end
            .now(BusError::Unsent("the connection is closed".into()));
    }
}

/// The outcome that means this.
fn state(how: &Settlement) -> TerminalDeliveryState {
    match how {
        Settlement::Complete => Accepted {}.into(),
        Settlement::Retry(_) => Modified {
            delivery_failed: Some(true),
            undeliverable_here: None,
            message_annotations: None,
        }
        .into(),
        Settlement::Release => Released {}.into(),
        Settlement::DeadLetter { reason, detail } => {
            let entry = |key: &str, text: &str| (Symbol::from(key), Value::String(wire::cut(text)));
            let info: Fields = [
                entry("DeadLetterReason", reason),
                entry("DeadLetterErrorDescription", detail),
            ]
            .into_iter()
            .collect();
            let condition = ErrorCondition::Custom(Symbol::from("com.microsoft:dead-letter"));
            let error = Error::new(condition, None, info);
            Rejected { error: Some(error) }.into()
        }
    }
}

/// The half that messages come in by.
struct Arrivals {
    serial: u64,
    receiver: Receiver,
    ordered: mpsc::UnboundedReceiver<Instruction>,
    /// The one that is being said.
    order: Option<Instruction>,
    deliveries: Deliveries,
    received: u64,
    seen: Arc<Seen>,
    end: Arc<CloseSignal>,
    max_body: usize,
}

impl Arrivals {
    /// Within the time that anything takes.
    async fn limited<T>(
        work: impl Future<Output = Result<T, fe2o3_amqp::link::IllegalLinkStateError>>,
    ) -> Result<T, BusError> {
        match before(Instant::now() + LIMIT, work).await {
            Some(done) => done.map_err(|error| error::amqp::flowing(&error)),
            None => Err(BusError::Unanswered(
                "the connection takes nothing any more".into(),
            )),
        }
    }

    fn arrived(&mut self, info: DeliveryInfo) -> Ticket {
        self.received += 1;
        let delivery = info.delivery_id();
        locked(&self.deliveries).insert(delivery, info);
        Ticket {
            connection: self.serial,
            delivery,
        }
    }
}

#[async_trait]
impl Intake for Arrivals {
    async fn let_come(&mut self, total: u32) -> Result<(), BusError> {
        Self::limited(self.receiver.set_credit(total)).await
    }

    async fn next(&mut self) -> Result<Delivery, BusError> {
        loop {
            if let Some(order) = &self.order {
                let (info, state) = (order.info.clone(), order.state.clone());
                Self::limited(self.receiver.dispose(info, state)).await?;
                self.order = None;
            }
            let received = tokio::select! {
                biased;
                Some(order) = self.ordered.recv() => {
                    self.order = Some(order);
                    continue;
                }
                received = self.receiver.recv::<Body<Value>>() => received,
            };
            return match received {
                Ok(delivery) => {
                    let (info, message) = delivery.into_parts();
                    let tag = info.delivery_tag().to_vec();
                    let ticket = self.arrived(info);
                    Ok(wire::delivery(ticket, &tag, message, self.max_body))
                }
                Err(RecvError::MessageDecode(error)) => {
                    let tag = error.info.delivery_tag().to_vec();
                    let ticket = self.arrived(error.info);
                    Ok(wire::unreadable(ticket, &tag, &error.source.to_string()))
                }
                Err(error) => {
                    let fault = error::amqp::receiving(&error);
                    self.end.now(fault.clone());
                    Err(fault)
                }
            };
        }
    }

    async fn drain(
        &mut self,
        mut left: usize,
        give_up_at: Instant,
        came: &mut (dyn FnMut(Delivery) + Send),
    ) -> Result<(), BusError> {
        let seen = Arc::clone(&self.seen);
        let drained = async {
            if left > 0 {
                Self::limited(self.receiver.drain()).await?;
            }
            let mut total = None;
            // A link whose credit was used up by messages has nothing to drain, and need not say so.
            while left > 0 && total.is_none_or(|total| self.received < total) {
                tokio::select! {
                    biased;
                    delivered = seen.drained(), if total.is_none() => total = Some(delivered),
                    delivery = self.next() => {
                        came(delivery?);
                        left -= 1;
                    }
                }
            }
            Ok(())
        };
        before(give_up_at, drained).await.unwrap_or_else(|| {
            let why = "the service does not say that it drained";
            Err(BusError::Unanswered(why.into()))
        })
    }
}
