//! AMQP 1.0 through `fe2o3-amqp`, over a stream of our own: opens connections, sends requests and takes
//! deliveries. Decides nothing.
//!
//! Called by the connection task, which has the one connection there is, and by locks. Everything here
//! ends by itself in some time; what the caller has less of is said by `give_up_at`. It knows what the
//! library can and cannot do:
//!
//! - **It pairs nothing.** Requests and answers are [`super::request_link`]; the library's own client for
//!   `$management` takes the next message for the answer.
//! - **It forgets what the service says to a disposition**, and when a link has used up its credit.
//!   Both are read on the way in ([`super::stream`]). So a message is settled by its lock's token through
//!   `$management`, whose answer is received and which works on any connection; the disposition that
//!   follows only empties the library's map.
//! - **Its awaits can hang** where a socket has died: each has a time limit here.
//! - **Less credit than was given is an error to it** once messages are under way. So credit is only
//!   ever added, until it is drained for good.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::TerminalDeliveryState;
use fe2o3_amqp::link::{RecvError, delivery::DeliveryInfo};
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::Fields;
use fe2o3_amqp::types::messaging::{Accepted, Body, Released, Source};
use fe2o3_amqp::types::primitives::{SimpleValue, Timestamp, Value};
use fe2o3_amqp::{Receiver, Session};
use time::OffsetDateTime;
use tokio::sync::mpsc;

use super::error::{BusError, opening};
use super::frame_scanner::DeliveryState;
use super::request_link::RequestLink;
use super::session_link::attach_receiver;
use super::stream::{ConnectionState, OwnState, connect, observed};
use super::wire::{self, Delivery, LockToken, Ticket};
use super::{CbsToken, Target};
use trafficcop_azure::before;
use trafficcop_azure::queue::Settlement;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::lock;

// Milliseconds without a byte after which the library gives the connection up; the service sends
// something twice in that time. A dead connection that matters is found sooner, by a request that
// is not answered (`ConnectionState::suspect`).
const IDLE: u32 = 60_000;
// For what only hands bytes to the connection: it takes longer only where the socket has died, and
// there the library would wait for ever.
const LIMIT: Duration = Duration::from_secs(5);
// What the real service answers in its own `open`.
const MAX_FRAME: u32 = 65_536;

/// Opens connections to the queue.
pub(super) struct Connector {
    target: Target,
    max_body: usize,
    /// Messages come in sessions: by links of their own, that are attached for each.
    sessions: bool,
    /// The name of this process among the service's clients.
    container: String,
    connections: AtomicU64,
}

impl Connector {
    pub(super) fn new(target: Target, max_body: usize, sessions: bool) -> Connector {
        Connector {
            target,
            max_body,
            sessions,
            // Link names begin with it: the service takes a name that it knows for the same link
            // come back.
            container: format!("trafficcop-{:016x}", fastrand::u64(..)),
            connections: AtomicU64::new(1),
        }
    }

    /// A connection to the queue, authorised, with everything attached and no credit given; and the half
    /// of it that messages come in by; none, where they come in sessions.
    pub(super) async fn connect(
        &self,
        token: &CbsToken,
        give_up_at: Instant,
    ) -> Result<(Arc<Connection>, Option<Intake>), BusError> {
        // One limit for all of it: TLS, SASL, the token and five links each have an await that can
        // hang.
        let opened = before(give_up_at, self.open(token, give_up_at)).await;
        opened.unwrap_or_else(|| {
            let Target { host, port, .. } = &self.target;
            Err(BusError::Unsent(format!(
                "{host}:{port} does not answer in time"
            )))
        })
    }

    async fn open(
        &self,
        token: &CbsToken,
        give_up_at: Instant,
    ) -> Result<(Arc<Connection>, Option<Intake>), BusError> {
        let Target {
            host, port, tls, ..
        } = &self.target;
        let serial = self.connections.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{serial}", self.container);
        let stream = connect(host, *port, tls.as_ref()).await?;
        // Whoever gives the attempt up drops this, and with it the end of what did not come to be.
        let state = OwnState(Arc::new(ConnectionState::new(name.clone())));
        let mut connection = fe2o3_amqp::Connection::builder()
            .container_id(self.container.clone())
            .hostname(host.as_str())
            // TLS, where there is any, is under the stream.
            .scheme("amqp")
            // Who we are is said by the token on `$cbs`, as Microsoft's clients do it.
            .sasl_profile(SaslProfile::Anonymous)
            .max_frame_size(MAX_FRAME)
            .idle_time_out(IDLE)
            .open_with_stream(observed(stream, Arc::clone(&state)))
            .await
            .map_err(|error| opening(&error, host, *port))?;
        let mut session = Session::begin(&mut connection).await?;
        let cbs = format!("{name}:cbs");
        let cbs = RequestLink::attach(&mut session, "$cbs", cbs, Arc::clone(&state)).await?;
        // First of all: without a token nothing else may be attached.
        authorise(&self.target, &cbs, token, give_up_at).await?;
        // Before `$management`, whose requests name this link: see `Connection::ask`.
        let receiver = match self.sessions {
            true => None,
            false => {
                let source = Source::from(self.target.entity.as_str());
                let empty = Fields::default();
                Some(attach_receiver(&name, source, empty, &mut session).await?)
            }
        };
        let address = format!("{}/$management", self.target.entity);
        let management = format!("{name}:management");
        let management =
            RequestLink::attach(&mut session, &address, management, Arc::clone(&state)).await?;
        // Never full of more than the messages that were delivered, so nobody who settles has to
        // wait.
        let (dispositions, to_send) = mpsc::unbounded_channel();
        let connection = Arc::new(Connection {
            serial,
            name,
            target: self.target.clone(),
            cbs,
            management,
            state,
            deliveries: Mutex::default(),
            dispositions,
            handles: tokio::sync::Mutex::new(Some((session, connection))),
        });
        let intake = receiver.map(|receiver| Intake {
            connection: Arc::clone(&connection),
            receiver,
            to_send,
            sending: None,
            received: 0,
            max_body: self.max_body,
        });
        Ok((connection, intake))
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
        // A ready-made signature need not say when it ends: "never" is no date that AMQP has.
        .min(Duration::from_secs(u64::from(u32::MAX)));
    // By the wall clock, because the service reads it; we go by `good_until`.
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

/// What is to be said on the link that messages come by.
struct Disposition {
    info: DeliveryInfo,
    outcome: TerminalDeliveryState,
}

/// A connection, as far as many may ask it at the same time.
pub(super) struct Connection {
    pub(super) serial: u64,
    /// Of the link that messages come by.
    pub(super) name: String,
    pub(super) target: Target,
    cbs: RequestLink,
    management: RequestLink,
    pub(super) state: OwnState,
    /// What the library wants back to settle a delivery on the link, by its number.
    deliveries: Mutex<HashMap<u32, DeliveryInfo>>,
    dispositions: mpsc::UnboundedSender<Disposition>,
    /// As long as these live, the connection does.
    pub(super) handles: tokio::sync::Mutex<Option<(SessionHandle<()>, ConnectionHandle<()>)>>,
}

impl Connection {
    /// Asks `$management` for something that is about the link of this name.
    pub(super) async fn ask(
        &self,
        link: &str,
        (operation, body): (&'static str, Value),
        give_up_at: Instant,
    ) -> Result<Value, BusError> {
        let left = give_up_at.since(Instant::now()).as_millis();
        let marks = [
            ("operation", SimpleValue::String(operation.to_owned())),
            // Keeps the link that messages come by from being cut for want of use.
            ("associated-link-name", SimpleValue::String(link.to_owned())),
            (
                // The service gives up when we do: what it did later would be taken for not done.
                "com.microsoft:server-timeout",
                SimpleValue::Uint(u32::try_from(left).unwrap_or(u32::MAX)),
            ),
        ];
        self.management.ask(marks, body, give_up_at).await?.result()
    }

    /// Puts a new token.
    pub(super) async fn authorise(
        &self,
        token: &CbsToken,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        authorise(&self.target, &self.cbs, token, give_up_at).await
    }

    /// Renews a lock. Until when it is locked, by the service's clock, in milliseconds since 1970.
    pub(super) async fn renew(
        &self,
        lock: LockToken,
        give_up_at: Instant,
    ) -> Result<Option<i64>, BusError> {
        let body = self
            .ask(&self.name, wire::renewal(lock), give_up_at)
            .await?;
        Ok(wire::expiration(&body))
    }

    /// Settles by the lock's token, and hears what the service says to it. A release cannot be said
    /// in this way.
    pub(super) async fn settle(
        &self,
        lock: LockToken,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        let request = wire::settlement(lock, how, None)?;
        self.ask(&self.name, request, give_up_at).await.map(drop)
    }

    /// Settles by a disposition on the link that delivered the message, and hears what the service
    /// says to it.
    pub(super) async fn dispose(
        &self,
        ticket: Ticket,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        let sent = Instant::now();
        let gone = || BusError::Unsent("the link that delivered it is gone".into());
        let info = lock(&self.deliveries).get(&ticket.delivery).cloned();
        let info = info.ok_or_else(gone)?;
        // Before it is sent: the answer may be quicker than we are.
        let mut expected = self.state.expect(ticket.delivery);
        let outcome = wire::outcome(how);
        self.dispositions
            .send(Disposition { info, outcome })
            .map_err(|_| gone())?;
        let said = async {
            tokio::select! {
                biased;
                said = expected.answer() => said.ok_or_else(gone),
                why = self.state.closed() => Err(BusError::Unanswered(why.why())),
            }
        };
        let said = before(give_up_at, said).await.unwrap_or_else(|| {
            self.state.suspect(sent);
            Err(BusError::Unanswered("no answer to the disposition".into()))
        })?;
        // Not before the answer: a disposition that was not answered is to be repeated.
        lock(&self.deliveries).remove(&ticket.delivery);
        match said {
            DeliveryState::Done => Ok(()),
            DeliveryState::Refused(condition, text) => {
                Err(BusError::refused(&condition, Some(&text)))
            }
        }
    }

    /// Forgets a delivery that was settled in another way.
    pub(super) fn forget(&self, ticket: Ticket, how: &Settlement) {
        // Deliveries are numbered on each connection anew: here it would be another message's.
        if !self.delivered(ticket) {
            return;
        }
        let info = lock(&self.deliveries).remove(&ticket.delivery);
        if let Some(info) = info {
            // What is settled already is refused, and freed. Should a service take it all the same,
            // only a message that was completed may go.
            let outcome = match how {
                Settlement::Complete => Accepted {}.into(),
                _ => Released {}.into(),
            };
            // A connection that has ended has forgotten everything.
            let _ = self.dispositions.send(Disposition { info, outcome });
        }
    }

    /// Whether this connection delivered it, and its link can still say something of it: whatever the service
    /// answers there is its last word on the link, a refusal for the moment included.
    pub(super) fn delivered(&self, ticket: Ticket) -> bool {
        ticket.connection == self.serial && lock(&self.deliveries).contains_key(&ticket.delivery)
    }

    /// Ends when the connection has ended: why.
    pub(super) async fn ended(&self) -> BusError {
        self.state.closed().await
    }

    /// Whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.state.is_closed()
    }

    /// Ends the connection in good order.
    pub(super) async fn close(&self, give_up_at: Instant) {
        let closing = async {
            // Whoever begins an AMQP session has them until the service has answered.
            let handles = self.handles.lock().await.take();
            if let Some((mut session, mut connection)) = handles {
                // They have nothing to say that matters any more.
                let _ = session.end().await;
                let _ = connection.close().await;
            }
        };
        before(give_up_at, closing).await;
        // Where the service did not answer, too: whoever waits for something on it is to hear that
        // it is over.
        self.state
            .close(BusError::Unsent("the connection is closed".into()));
    }
}

/// The half of a connection that messages come in by. It is asked all the time: what others settle on
/// the link goes out by it.
pub(super) struct Intake {
    connection: Arc<Connection>,
    receiver: Receiver,
    to_send: mpsc::UnboundedReceiver<Disposition>,
    /// The one that is being said: kept here, because whoever waits for a message may be dropped.
    sending: Option<Disposition>,
    received: u64,
    max_body: usize,
}

impl Intake {
    fn arrived(&mut self, info: DeliveryInfo) -> Ticket {
        self.received += 1;
        let delivery = info.delivery_id();
        lock(&self.connection.deliveries).insert(delivery, info);
        Ticket {
            connection: self.connection.serial,
            delivery,
        }
    }

    /// Lets `total` messages come, those included that were let before and have not come. Never less
    /// than were let before.
    pub(super) async fn let_come(&mut self, total: u32) -> Result<(), BusError> {
        limited(self.receiver.set_credit(total)).await
    }

    /// The next message. Loses nothing when it is dropped.
    pub(super) async fn next(&mut self) -> Result<Delivery, BusError> {
        loop {
            if let Some(Disposition { info, outcome }) = &self.sending {
                let disposing = self.receiver.dispose(info.clone(), outcome.clone());
                limited(disposing).await?;
                // Not before it has gone out: whatever else happens first drops this call.
                self.sending = None;
            }
            let received = tokio::select! {
                // What is to be settled goes first: on a busy queue there is always a message, and
                // the others wait for an answer.
                biased;
                Some(disposition) = self.to_send.recv() => {
                    self.sending = Some(disposition);
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
                // One message that cannot be read is put aside. As an error it would end the
                // connection, and come again on the next one, for ever.
                Err(RecvError::MessageDecode(error)) => {
                    let tag = error.info.delivery_tag().to_vec();
                    let ticket = self.arrived(error.info);
                    Ok(wire::unreadable(ticket, &tag, &error.source.to_string()))
                }
                Err(error) => {
                    let error = BusError::from(error);
                    self.connection.state.close(error.clone());
                    Err(error)
                }
            };
        }
    }

    /// Lets nothing come any more, and tells of what comes until the service has received of it. That is
    /// so as well when all has come that was let: `left` more.
    ///
    /// # Errors
    /// Why that was not to be received.
    pub(super) async fn drain(
        &mut self,
        mut left: usize,
        give_up_at: Instant,
        mut came: impl FnMut(Delivery),
    ) -> Result<(), BusError> {
        let state = Arc::clone(&self.connection.state);
        let drained = async {
            if left > 0 {
                // The service is to say when no more is under way: without that what it has just
                // sent stays locked (70 messages in 200 stops, measured).
                limited(self.receiver.drain()).await?;
            }
            let mut total = None;
            // A link whose credit was used up by messages has nothing to drain, and need not say so.
            while left > 0 && total.is_none_or(|total| self.received < total) {
                tokio::select! {
                    biased;
                    delivered = state.drained(), if total.is_none() => total = Some(delivered),
                    delivery = self.next() => {
                        came(delivery?);
                        left -= 1;
                    }
                }
            }
            Ok(())
        };
        before(give_up_at, drained).await.unwrap_or_else(|| {
            let why = "the service does not confirm the drain";
            Err(BusError::Unanswered(why.into()))
        })
    }
}

/// Within the time that anything takes.
pub(super) async fn limited<T>(
    work: impl Future<Output = Result<T, fe2o3_amqp::link::IllegalLinkStateError>>,
) -> Result<T, BusError> {
    match before(Instant::now() + LIMIT, work).await {
        Some(done) => Ok(done?),
        None => Err(BusError::Unanswered(
            "the connection does not send any more".into(),
        )),
    }
}
