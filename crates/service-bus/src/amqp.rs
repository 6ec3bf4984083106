//! AMQP 1.0 through `fe2o3-amqp`, over a stream of this crate. Decides nothing. This module knows the limits of
//! the library:
//!
//! - **It pairs nothing.** Its client for `$management` takes the next message for the answer;
//!   [`super::request_link`] does not.
//! - **It forgets the service's answer to a disposition**, and when a link has used up its credit.
//!   [`super::stream`] reads both on the way in. So the lock's token settles a message through `$management`.
//!   The disposition that follows only empties the library's map.
//! - **Its awaits can hang** when a socket has died: each has a time limit here.
//! - **It reports an error for less credit than before** once messages are under way. So credit is only added,
//!   until it is drained for good.

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

// Milliseconds without a byte after which the library gives up; the service sends something twice in that time.
// An unanswered request finds a dead connection sooner (`ConnectionState::suspect`).
const IDLE: u32 = 60_000;
// Limit for handing bytes to the connection: with a dead socket the library waits for ever.
const LIMIT: Duration = Duration::from_secs(5);
// The real service's value in its own `open`.
const MAX_FRAME: u32 = 65_536;

pub(super) struct Connector {
    target: Target,
    max_body: usize,
    sessions: bool,
    container: String,
    connections: AtomicU64,
}

impl Connector {
    pub(super) fn new(target: Target, max_body: usize, sessions: bool) -> Connector {
        Connector {
            target,
            max_body,
            sessions,
            // Link names begin with it: to the service, a known name is the same link come back.
            container: format!("trafficcop-{:016x}", fastrand::u64(..)),
            connections: AtomicU64::new(1),
        }
    }

    /// Opens an authorised connection, with everything attached and no credit given. Also returns the half that
    /// takes messages in, unless they come in sessions.
    pub(super) async fn connect(
        &self,
        token: &CbsToken,
        give_up_at: Instant,
    ) -> Result<(Arc<Connection>, Option<Intake>), BusError> {
        // TLS, SASL, the token and five links each have an await that can hang.
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
        // Dropping it closes an unfinished connection.
        let state = OwnState(Arc::new(ConnectionState::new(name.clone())));
        let mut connection = fe2o3_amqp::Connection::builder()
            .container_id(self.container.clone())
            .hostname(host.as_str())
            // TLS, if any, is under the stream.
            .scheme("amqp")
            // The token on `$cbs` proves the identity, as in Microsoft's clients.
            .sasl_profile(SaslProfile::Anonymous)
            .max_frame_size(MAX_FRAME)
            .idle_time_out(IDLE)
            .open_with_stream(observed(stream, Arc::clone(&state)))
            .await
            .map_err(|error| opening(&error, host, *port))?;
        let mut session = Session::begin(&mut connection).await?;
        let cbs = format!("{name}:cbs");
        let cbs = RequestLink::attach(&mut session, "$cbs", cbs, Arc::clone(&state)).await?;
        // Without a token no other link may be attached.
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
        // It holds no more than the delivered messages, so settling never waits for room.
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

async fn authorise(
    target: &Target,
    cbs: &RequestLink,
    token: &CbsToken,
    give_up_at: Instant,
) -> Result<(), BusError> {
    let left = token
        .good_until
        .since(Instant::now())
        // A ready-made signature may have no end: "never" is no date in AMQP.
        .min(Duration::from_secs(u64::from(u32::MAX)));
    // The service reads this wall-clock time; this crate uses `good_until`.
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

struct Disposition {
    info: DeliveryInfo,
    outcome: TerminalDeliveryState,
}

pub(super) struct Connection {
    pub(super) serial: u64,
    /// Name of the link that messages come by.
    pub(super) name: String,
    pub(super) target: Target,
    cbs: RequestLink,
    management: RequestLink,
    pub(super) state: OwnState,
    deliveries: Mutex<HashMap<u32, DeliveryInfo>>,
    dispositions: mpsc::UnboundedSender<Disposition>,
    /// The connection lives as long as these.
    pub(super) handles: tokio::sync::Mutex<Option<(SessionHandle<()>, ConnectionHandle<()>)>>,
}

impl Connection {
    pub(super) async fn ask(
        &self,
        link: &str,
        (operation, body): (&'static str, Value),
        give_up_at: Instant,
    ) -> Result<Value, BusError> {
        let left = give_up_at.since(Instant::now()).as_millis();
        let marks = [
            ("operation", SimpleValue::String(operation.to_owned())),
            // Otherwise the service cuts the link that messages come by as unused.
            ("associated-link-name", SimpleValue::String(link.to_owned())),
            (
                // The service gives up when the caller does: later work would count as not done.
                "com.microsoft:server-timeout",
                SimpleValue::Uint(u32::try_from(left).unwrap_or(u32::MAX)),
            ),
        ];
        self.management.ask(marks, body, give_up_at).await?.result()
    }

    pub(super) async fn authorise(
        &self,
        token: &CbsToken,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        authorise(&self.target, &self.cbs, token, give_up_at).await
    }

    /// Renews a lock. Returns its end by the service's clock, in milliseconds since 1970.
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

    /// Settles by the lock's token, which cannot express a release.
    pub(super) async fn settle(
        &self,
        lock: LockToken,
        how: &Settlement,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        let request = wire::settlement(lock, how, None)?;
        self.ask(&self.name, request, give_up_at).await.map(drop)
    }

    /// Settles by a disposition on the link that delivered the message.
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
        // Before sending: the answer may come first.
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
        // Each connection numbers its deliveries anew.
        if !self.delivered(ticket) {
            return;
        }
        let info = lock(&self.deliveries).remove(&ticket.delivery);
        if let Some(info) = info {
            // The service refuses a second settlement. If it took this one nevertheless, only a completed
            // message may go.
            let outcome = match how {
                Settlement::Complete => Accepted {}.into(),
                _ => Released {}.into(),
            };
            let _ = self.dispositions.send(Disposition { info, outcome });
        }
    }

    /// Whether this connection delivered it, and its link can still settle it: any answer, even a temporary
    /// refusal, is the service's last one there.
    pub(super) fn delivered(&self, ticket: Ticket) -> bool {
        ticket.connection == self.serial && lock(&self.deliveries).contains_key(&ticket.delivery)
    }

    pub(super) async fn ended(&self) -> BusError {
        self.state.closed().await
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.is_closed()
    }

    pub(super) async fn close(&self, give_up_at: Instant) {
        let closing = async {
            // An AMQP session that is beginning has them until the service has answered.
            let handles = self.handles.lock().await.take();
            if let Some((mut session, mut connection)) = handles {
                let _ = session.end().await;
                let _ = connection.close().await;
            }
        };
        before(give_up_at, closing).await;
        // Even without an answer: callers that wait on it must learn of its end.
        self.state
            .close(BusError::Unsent("the connection is closed".into()));
    }
}

/// The half of a connection that takes messages in. Poll it all the time: it also sends dispositions.
pub(super) struct Intake {
    connection: Arc<Connection>,
    receiver: Receiver,
    to_send: mpsc::UnboundedReceiver<Disposition>,
    /// The disposition that is being sent: the call that sends it may be dropped.
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

    /// Lets `total` messages come, including those still out. Never less than before.
    pub(super) async fn let_come(&mut self, total: u32) -> Result<(), BusError> {
        limited(self.receiver.set_credit(total)).await
    }

    /// Returns the next message. Loses nothing when it is dropped.
    pub(super) async fn next(&mut self) -> Result<Delivery, BusError> {
        loop {
            if let Some(Disposition { info, outcome }) = &self.sending {
                let disposing = self.receiver.dispose(info.clone(), outcome.clone());
                limited(disposing).await?;
                // Only now: any other event drops this call.
                self.sending = None;
            }
            let received = tokio::select! {
                // Dispositions first: a busy queue always has a message.
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
                // Dead-letter it. An error would end the connection, and the message would come again, for
                // ever.
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

    /// Lets no more messages come. Passes on those under way, until the service confirms the end or all `left`
    /// have come.
    pub(super) async fn drain(
        &mut self,
        mut left: usize,
        give_up_at: Instant,
        mut came: impl FnMut(Delivery),
    ) -> Result<(), BusError> {
        let state = Arc::clone(&self.connection.state);
        let drained = async {
            if left > 0 {
                // Otherwise messages that the service has just sent stay locked (70 in 200 stops, measured).
                limited(self.receiver.drain()).await?;
            }
            let mut total = None;
            // A link whose credit is used up need not confirm that.
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
