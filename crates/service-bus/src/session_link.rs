//! Sessions in AMQP: the link that holds one, the requests about one, and the task that reads its link.
//!
//! The service answers the attach of a link when it has a session. That can take minutes, and the session is
//! locked from some moment in between. So each such link has an AMQP session of its own: a caller that gives up
//! ends that, and with it a lock that was granted meanwhile.

use std::sync::Arc;
use std::time::Duration;

use fe2o3_amqp::link::delivery::{self, DeliveryInfo};
use fe2o3_amqp::link::{CreditMode, RecvError};
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{Fields, ReceiverSettleMode, SenderSettleMode};
use fe2o3_amqp::types::messaging::{Body, FilterSet, Source};
use fe2o3_amqp::types::primitives::{Binary, Symbol, Value};
use fe2o3_amqp::{Receiver, Session};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinError;

use super::amqp::{Connection, limited};
use super::error::BusError;
use super::wire::{self, Delivery, Ticket};
use trafficcop_azure::before;
use trafficcop_azure::queue::Settlement;
use trafficcop_core::clock::Instant;

const FILTER: &str = "com.microsoft:session-filter";
const TIMEOUT: &str = "com.microsoft:timeout";
const ON_THE_WAY: Duration = Duration::from_secs(5);

pub(super) async fn attach_receiver(
    name: &str,
    source: Source,
    properties: Fields,
    session: &mut SessionHandle<()>,
) -> Result<Receiver, BusError> {
    let attached = Receiver::builder()
        .name(name)
        .source(source)
        .properties(properties)
        // A message is locked until the service has confirmed its settlement.
        .sender_settle_mode(SenderSettleMode::Unsettled)
        .receiver_settle_mode(ReceiverSettleMode::Second)
        // The library would lock messages without a free slot.
        .credit_mode(CreditMode::Manual)
        .verify_incoming_source(false)
        .verify_incoming_target(false)
        .attach(session)
        .await;
    Ok(attached?)
}

pub(super) struct SessionLink {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) receiver: Receiver,
    amqp: SessionHandle<()>,
}

impl SessionLink {
    /// Ends the link, and with it the lock. Unsettled messages stay unchanged.
    pub(super) async fn close(mut self, give_up_at: Instant) {
        // First: its answer confirms the end of the lock.
        let closing = async {
            let _ = self.receiver.close().await;
            let _ = self.amqp.end().await;
        };
        before(give_up_at, closing).await;
    }
}

impl Connection {
    /// Accepts the next free session that has messages; `None` if there was none for `patience`.
    pub(super) async fn accept(
        self: &Arc<Self>,
        name: String,
        patience: Duration,
    ) -> Result<Option<SessionLink>, BusError> {
        let sent = Instant::now();
        let attaching = self.attach(name.clone(), patience);
        let accepted = before(sent + patience + ON_THE_WAY, attaching).await;
        if !matches!(accepted, Some(Ok(_))) {
            // A refusal is an attach, too, that then ends.
            self.state.forget_link(&name);
        }
        match accepted {
            Some(Err(error)) if error.is_no_session() => Ok(None),
            Some(accepted) => accepted.map(Some),
            None => {
                self.state.suspect(sent);
                let why = "no answer to whether there is a session";
                Err(BusError::Unanswered(why.into()))
            }
        }
    }

    /// Begins an AMQP session, in a task, because the caller may be dropped. The library would take the late
    /// answer for that of an unknown session, and end the whole connection.
    async fn begin(self: &Arc<Self>) -> Result<SessionHandle<()>, BusError> {
        let this = Arc::clone(self);
        let beginning = tokio::spawn(async move {
            let mut handles = this.handles.lock().await;
            let gone = || BusError::Unsent("the connection is closed".into());
            let (_, connection) = handles.as_mut().ok_or_else(gone)?;
            tokio::select! {
                biased;
                begun = Session::begin(connection) => Ok(begun?),
                // Otherwise a missing answer would keep a connection that has ended.
                why = this.ended() => Err(why),
            }
        });
        let cut = |why: JoinError| BusError::Unanswered(why.to_string());
        beginning.await.map_err(cut)?
    }

    async fn attach(
        self: &Arc<Self>,
        name: String,
        patience: Duration,
    ) -> Result<SessionLink, BusError> {
        let mut amqp = self.begin().await?;
        // Null means any session.
        let filter = FilterSet::from_iter([(Symbol::from(FILTER), Value::Null)]);
        let source = Source::builder().address(self.target.entity.as_str());
        let patience = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let properties = Fields::from_iter([(Symbol::from(TIMEOUT), Value::Uint(patience))]);
        let source = source.filter(filter).build();
        let receiver = attach_receiver(&name, source, properties, &mut amqp).await?;
        let given = receiver.source().as_ref().and_then(|it| it.filter.as_ref());
        let id = given.and_then(|filter| filter.get(&Symbol::from(FILTER)));
        let id = id.and_then(text).ok_or_else(|| {
            // The service may be about to end it, with the reason.
            BusError::Unanswered("the service gave a session without a name".into())
        })?;
        Ok(SessionLink {
            id,
            name,
            receiver,
            amqp,
        })
    }

    /// Renews the lock of a session. Returns its end, in milliseconds since 1970.
    pub(super) async fn renew_session(
        &self,
        link: &str,
        session: &str,
        give_up_at: Instant,
    ) -> Result<Option<i64>, BusError> {
        let request = about("com.microsoft:renew-session-lock", session, []);
        let body = self.ask(link, request, give_up_at).await?;
        Ok(entry(&body, "expiration").and_then(wire::millis))
    }

    /// Returns the state of a session; `None` if it never had any.
    pub(super) async fn session_state(
        &self,
        link: &str,
        session: &str,
        give_up_at: Instant,
    ) -> Result<Option<Vec<u8>>, BusError> {
        let request = about("com.microsoft:get-session-state", session, []);
        let body = self.ask(link, request, give_up_at).await?;
        Ok(match entry(&body, "session-state") {
            Some(Value::Binary(state)) => Some(state.to_vec()),
            // Other clients may have stored text.
            Some(Value::String(state)) => Some(state.clone().into_bytes()),
            _ => None,
        })
    }

    pub(super) async fn set_session_state(
        &self,
        link: &str,
        session: &str,
        state: &[u8],
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        // Other clients would tell an empty state from none.
        let state = match state {
            [] => Value::Null,
            state => Value::Binary(Binary::from(state.to_vec())),
        };
        let request = about(
            "com.microsoft:set-session-state",
            session,
            [("session-state", state)],
        );
        self.ask(link, request, give_up_at).await.map(drop)
    }

    /// Returns the number of a session's first message from this number on, even if it is locked.
    pub(super) async fn peek_session(
        &self,
        link: &str,
        session: &str,
        from: i64,
        give_up_at: Instant,
    ) -> Result<Option<i64>, BusError> {
        let request = about(
            "com.microsoft:peek-message",
            session,
            [
                ("from-sequence-number", Value::Long(from)),
                ("message-count", Value::Int(1)),
            ],
        );
        let body = self.ask(link, request, give_up_at).await?;
        let Some(Value::List(messages)) = entry(&body, "messages") else {
            return Ok(None);
        };
        let message = messages.first().and_then(|first| entry(first, "message"));
        let Some(Value::Binary(message)) = message else {
            return Ok(None);
        };
        Ok(sequence_number(message))
    }
}

/// Returns the number in an encoded message, which the library cannot decode. The service's annotations precede
/// anything that a sender wrote.
fn sequence_number(message: &[u8]) -> Option<i64> {
    const KEY: &[u8] = b"x-opt-sequence-number";
    let at = message.windows(KEY.len()).position(|part| part == KEY)?;
    match message.get(at + KEY.len()..)? {
        [0x81, number @ ..] => Some(i64::from_be_bytes(*number.first_chunk()?)),
        [0x55, number, ..] => Some(i64::from(number.cast_signed())),
        _ => None,
    }
}

fn about<const N: usize>(
    operation: &'static str,
    session: &str,
    more: [(&'static str, Value); N],
) -> (&'static str, Value) {
    let session = [("session-id", Value::String(session.to_owned()))];
    (operation, wire::map(session.into_iter().chain(more)))
}

fn entry<'a>(body: &'a Value, key: &str) -> Option<&'a Value> {
    match body {
        Value::Map(body) => body.get(&Value::String(key.to_owned())),
        _ => None,
    }
}

/// Returns the text of a filter, with or without a description.
fn text(filter: &Value) -> Option<String> {
    match filter {
        Value::String(text) => Some(text.clone()),
        Value::Described(described) => text(&described.value),
        _ => None,
    }
}

pub(super) enum Want {
    Message,
    Settle(Settlement),
    Close(Instant, oneshot::Sender<()>),
}

/// Task that reads the link of a session: only a reader notices its end.
pub(super) struct Reader {
    link: SessionLink,
    connection: Arc<Connection>,
    max_body: usize,
    deliveries: mpsc::UnboundedSender<Delivery>,
    last: Option<DeliveryInfo>,
    credit: bool,
}

impl Reader {
    pub(super) fn new(
        link: SessionLink,
        connection: Arc<Connection>,
        max_body: usize,
        deliveries: mpsc::UnboundedSender<Delivery>,
    ) -> Reader {
        Reader {
            link,
            connection,
            max_body,
            deliveries,
            last: None,
            credit: false,
        }
    }

    pub(super) async fn run(
        mut self,
        mut wants: mpsc::UnboundedReceiver<Want>,
        ended: watch::Sender<Option<String>>,
    ) {
        let connection = Arc::clone(&self.connection);
        let name = self.link.name.clone();
        connection.state.holds_session();
        let why = loop {
            let done = tokio::select! {
                biased;
                // The link learns nothing through a dead connection.
                why = connection.ended() => break why.why(),
                want = wants.recv() => match want {
                    Some(Want::Close(give_up_at, done)) => {
                        // Before the end: no caller may rely on it any more.
                        ended.send_replace(Some("it was given up".to_owned()));
                        connection.state.gives_up_session(&name);
                        self.link.close(give_up_at).await;
                        let _ = done.send(());
                        return;
                    }
                    Some(want) => self.does(want).await,
                    None => break "it is not needed any more".to_owned(),
                },
                received = self.link.receiver.recv::<Body<Value>>() => self.received(received),
            };
            if let Err(error) = done {
                break error.why();
            }
        };
        connection.state.gives_up_session(&name);
        ended.send_replace(Some(why));
    }

    async fn does(&mut self, want: Want) -> Result<(), BusError> {
        match want {
            Want::Message if !self.credit => {
                self.credit = true;
                limited(self.link.receiver.set_credit(1)).await
            }
            Want::Settle(how) => match self.last.clone() {
                Some(info) => limited(self.link.receiver.dispose(info, wire::outcome(&how))).await,
                None => Ok(()),
            },
            // It is already under way.
            Want::Message | Want::Close(..) => Ok(()),
        }
    }

    fn received(
        &mut self,
        received: Result<delivery::Delivery<Body<Value>>, RecvError>,
    ) -> Result<(), BusError> {
        let delivery = match received {
            Ok(delivery) => {
                let (info, message) = delivery.into_parts();
                let (tag, ticket) = (info.delivery_tag().to_vec(), self.arrived(info));
                wire::delivery(ticket, &tag, message, self.max_body)
            }
            Err(RecvError::MessageDecode(error)) => {
                let tag = error.info.delivery_tag().to_vec();
                let ticket = self.arrived(error.info);
                wire::unreadable(ticket, &tag, &error.source.to_string())
            }
            Err(error) => return Err(error.into()),
        };
        // Without a receiver it goes back with the link.
        let _ = self.deliveries.send(delivery);
        Ok(())
    }

    fn arrived(&mut self, info: DeliveryInfo) -> Ticket {
        self.credit = false;
        let delivery = info.delivery_id();
        self.last = Some(info);
        Ticket {
            connection: self.connection.serial,
            delivery,
        }
    }
}

#[cfg(test)]
mod tests {
    use azure_core::credentials::Secret;
    use service_bus_stand_in::{Broker, Message, QueueSettings, Settings};

    use super::*;
    use crate::amqp::Connector;
    use crate::stream::OF_SESSION;
    use crate::{CbsToken, JWT, Target};

    #[tokio::test]
    async fn link_without_a_session_leaves_no_state() {
        let broker = Broker::start(Settings::default()).expect("a broker");
        let settings = QueueSettings {
            sessions: true,
            ..QueueSettings::default()
        };
        broker.create("jobs", settings);
        let target = Target {
            host: "127.0.0.1".into(),
            port: broker.address().port(),
            tls: None,
            entity: "jobs".into(),
        };
        let soon = Instant::now() + Duration::from_secs(60);
        let token = CbsToken {
            kind: JWT,
            token: Secret::new("any"),
            good_until: soon,
        };
        let connector = Connector::new(target, 1024, true);
        let connecting = connector.connect(&token, soon).await;
        let (connection, _) = connecting.expect("a connection");
        let accept = async |number: u32, patience| {
            let name = format!("{}{OF_SESSION}{number}", connection.name);
            let accepted = connection.accept(name, patience).await;
            accepted.expect("an answer")
        };
        for number in 0..3 {
            let patience = Duration::from_millis(50);
            assert!(accept(number, patience).await.is_none());
            assert_eq!(connection.state.links(), 0, "after {number}");
        }
        broker.put("jobs", Message::data(b"x").in_session("a", "1"));
        let link = accept(3, Duration::from_secs(30)).await;
        assert_eq!(link.map(|link| link.id).as_deref(), Some("a"));
        assert_eq!(connection.state.links(), 1);
    }

    #[test]
    fn sequence_number_of_a_peeked_message_is_read() {
        let of = |value: &[u8]| {
            let head = b"\0\x53\x72\xc1\x40\x02\xa3\x15x-opt-sequence-number";
            sequence_number(&[head, value].concat())
        };
        assert_eq!(of(b"\x55\x07\0"), Some(7));
        assert_eq!(of(b"\x81\0\0\0\0\0\x01\0\x02tail"), Some(65_538));
        assert_eq!(of(b"\x81\0\0"), None);
        assert_eq!(of(b"\x40"), None);
        assert_eq!(sequence_number(b"nothing"), None);
    }
}
