//! Messages from clients: to a queue, to `$cbs`, to `$management`.

use crate::codec::performative::{Disposition, Performative};
use crate::codec::state::{AmqpError, DeliveryState};
use crate::codec::{Message, Value};

use super::engine::{Answer, Engine, Request};
use super::faults::On;
use super::journal::Event;
use super::management::Response;
use super::namespace::{Node, Place, not_found, path_of};
use super::session::{LinkEnd, Partial};

/// Format of a batch: each data section is a message.
const BATCH: u32 = 0x8001_3700;

impl Engine {
    pub(crate) fn received(
        &mut self,
        id: u64,
        channel: u16,
        handle: u32,
        node: &Node,
        partial: Partial,
    ) {
        let largest = self.settings.max_message_size;
        let Partial {
            delivery,
            format,
            settled,
            bytes,
        } = partial;
        let said = move |state: DeliveryState| {
            if settled {
                return Vec::new();
            }
            vec![Answer::Frame(
                channel,
                Performative::Disposition(Disposition {
                    receiver: true,
                    first: delivery,
                    last: Some(delivery),
                    settled: true,
                    state: Some(state),
                }),
            )]
        };
        let decoded = if bytes.len() as u64 > largest {
            Err(AmqpError::new(
                "amqp:link:message-size-exceeded",
                format!("The message is larger than {largest} bytes."),
            ))
        } else {
            unpack(format, &bytes)
        };
        let now_said = |engine: &mut Self, state| {
            if let Some(connection) = engine.connections.get_mut(&id) {
                said(state)
                    .into_iter()
                    .for_each(|answer| connection.answer(answer));
            }
        };
        let messages = match decoded {
            Ok(messages) => messages,
            Err(error) => return now_said(self, DeliveryState::Rejected(Some(error))),
        };
        match node {
            Node::Entity(place) => {
                let place = place.clone();
                self.play(Request {
                    connection: id,
                    on: On::Send,
                    address: place.address(),
                    link: Some((channel, handle)),
                    work: Box::new(move |engine| {
                        said(match engine.enqueue(&place, &messages) {
                            Ok(()) => DeliveryState::Accepted,
                            Err(error) => DeliveryState::Rejected(Some(error)),
                        })
                    }),
                    refuse: Box::new(move |_, error| said(DeliveryState::Rejected(Some(error)))),
                });
            }
            Node::Cbs => {
                now_said(self, DeliveryState::Accepted);
                for message in messages {
                    self.put_token(id, channel, handle, &message);
                }
            }
            Node::Management(place) => {
                now_said(self, DeliveryState::Accepted);
                for message in messages {
                    self.managed(id, channel, handle, place, message);
                }
            }
        }
    }

    fn enqueue(&mut self, place: &Place, messages: &[Message]) -> Result<(), AmqpError> {
        let Some(entity) = self.namespace.entity(place) else {
            return Err(not_found(&place.address()));
        };
        if entity.settings.sessions && messages.iter().any(|it| it.property(10).is_none()) {
            return Err(AmqpError::new(
                "amqp:not-allowed",
                "The SessionId was not set on a message, and it cannot be sent to the entity.",
            ));
        }
        for message in messages {
            for event in self.namespace.enqueue(&place.entity, message) {
                self.log(event);
            }
        }
        Ok(())
    }

    fn put_token(&mut self, id: u64, channel: u16, handle: u32, message: &Message) {
        let asked = message.application_properties();
        let field = |name: &str| {
            let value = asked.get(name).and_then(Value::text);
            value.unwrap_or_default().to_owned()
        };
        let (kind, audience) = (field("type"), field("name"));
        let (operation, address) = (field("operation"), path_of(&audience));
        let expiration = asked.get("expiration").and_then(Value::signed);
        let token = match message.body_value() {
            Some(Value::String(token)) => token,
            _ => String::new(),
        };
        let reply = reply_to(channel, Node::Cbs, message);
        let refused = reply.clone();
        self.play(Request {
            connection: id,
            on: On::PutToken,
            address,
            link: Some((channel, handle)),
            work: Box::new(move |engine| {
                let access = &engine.settings.access;
                let judged = if operation == "put-token" {
                    access.judge(&kind, &audience, &token, expiration, engine.now)
                } else {
                    Err(format!("'{operation}' is no operation of $cbs."))
                };
                let (status, text) = match judged {
                    Ok(granted) => {
                        if let Some(connection) = engine.connections.get_mut(&id) {
                            // A new token replaces the old one for the same resource.
                            connection.granted.retain(|old| old.path != granted.path);
                            connection.granted.push(granted);
                        }
                        (202, "Accepted".to_owned())
                    }
                    Err(why) => (401, why),
                };
                engine.log(Event::TokenPut { audience, status });
                vec![reply(cbs_reply(status, text))]
            }),
            refuse: Box::new(move |status, error| {
                let text = error.description.unwrap_or_default();
                vec![refused(cbs_reply(status, text))]
            }),
        });
    }

    fn managed(&mut self, id: u64, channel: u16, handle: u32, place: &Place, message: Message) {
        let asked = message.application_properties();
        let operation = asked.get("operation").and_then(Value::text);
        let operation = operation.unwrap_or_default().to_owned();
        if let Some(name) = asked.get("associated-link-name").and_then(Value::text) {
            self.touch(id, name);
        }
        let reply = reply_to(channel, Node::Management(place.clone()), &message);
        let refused = reply.clone();
        let place = place.clone();
        self.play(Request {
            connection: id,
            on: match operation.as_str() {
                "com.microsoft:renew-lock" => On::RenewLock,
                "com.microsoft:update-disposition" => On::UpdateDisposition,
                "com.microsoft:renew-session-lock" => On::RenewSession,
                "com.microsoft:set-session-state" => On::SetState,
                _ => On::OtherRequest,
            },
            address: place.address(),
            link: Some((channel, handle)),
            work: Box::new(move |engine| {
                let body = message.body_value().unwrap_or(Value::Null);
                let response = engine.manage(id, &place, &operation, &body);
                vec![reply(response.into_message())]
            }),
            refuse: Box::new(move |status, error| {
                vec![refused(Response::refused(status, error).into_message())]
            }),
        });
    }

    /// Keeps the named link active.
    fn touch(&mut self, id: u64, name: &str) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        for session in connection.sessions.values_mut() {
            for link in session.links.values_mut() {
                if link.name == name && matches!(link.end, LinkEnd::Out(_)) {
                    link.active = now;
                }
            }
        }
    }
}

fn unpack(format: u32, bytes: &[u8]) -> Result<Vec<Message>, AmqpError> {
    let read = |bytes: &[u8]| {
        Message::decode(bytes)
            .map_err(|malformed| AmqpError::new(malformed.condition, malformed.what))
    };
    let message = read(bytes)?;
    if format != BATCH {
        return Ok(vec![message]);
    }
    message
        .data_sections()
        .iter()
        .map(|bytes| read(bytes))
        .collect()
}

/// Addresses and correlates an answer.
fn reply_to(
    channel: u16,
    node: Node,
    request: &Message,
) -> impl Fn(Message) -> Answer + Clone + Send + 'static {
    let correlation = request.property(0).unwrap_or(Value::Null);
    let to = request
        .property(4)
        .and_then(|to| to.text().map(str::to_owned));
    move |message| {
        let mut fields = vec![Value::Null; 6];
        fields[2] = to.clone().map_or(Value::Null, Value::String);
        fields[5] = correlation.clone();
        Answer::Reply {
            channel,
            node: node.clone(),
            to: to.clone(),
            message: message.with_properties(fields),
        }
    }
}

fn cbs_reply(status: u16, text: String) -> Message {
    Message::value(&Value::Null).with_application_properties(vec![
        (Value::string("status-code"), Value::Int(status.into())),
        (Value::string("status-description"), Value::String(text)),
    ])
}
