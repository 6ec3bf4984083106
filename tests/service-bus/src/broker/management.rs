//! Requests to `$management`: renewing, settling by lock token, peeking, deferred messages.

use crate::codec::state::AmqpError;
use crate::codec::{Guid, Message, Value};

use super::engine::Engine;
use super::journal::{Event, Outcome, Way};
use super::namespace::{Place, not_found};
use super::store::MessageState;
use super::{LOCK_LOST, LOCK_LOST_TEXT};

const MOST_PEEKED: u64 = 250;

pub(crate) struct Response {
    status: u16,
    text: String,
    condition: Option<String>,
    body: Value,
}

impl Response {
    pub(crate) fn ok(body: Value) -> Self {
        Self {
            status: 200,
            text: "OK".into(),
            condition: None,
            body,
        }
    }

    pub(crate) fn refused(status: u16, error: AmqpError) -> Self {
        Self {
            status,
            text: error.description.unwrap_or_default(),
            condition: Some(error.condition),
            body: Value::Null,
        }
    }

    pub(crate) fn bad(text: &str) -> Self {
        Self::refused(400, AmqpError::new("com.microsoft:argument-error", text))
    }

    fn lock_lost() -> Self {
        Self::refused(410, AmqpError::new(LOCK_LOST, LOCK_LOST_TEXT))
    }

    pub(crate) fn into_message(self) -> Message {
        let mut properties = vec![
            (Value::string("statusCode"), Value::Int(self.status.into())),
            (Value::string("statusDescription"), Value::String(self.text)),
        ];
        if let Some(condition) = self.condition {
            properties.push((Value::string("errorCondition"), Value::Symbol(condition)));
        }
        Message::value(&self.body).with_application_properties(properties)
    }
}

impl Engine {
    pub(crate) fn manage(
        &mut self,
        id: u64,
        place: &Place,
        operation: &str,
        body: &Value,
    ) -> Response {
        if self.namespace.entity(place).is_none() {
            return Response::refused(404, not_found(&place.address()));
        }
        match operation {
            "com.microsoft:renew-lock" => self.renew(place, body),
            "com.microsoft:update-disposition" => self.update_disposition(place, body),
            "com.microsoft:peek-message" => self.peek(place, body),
            "com.microsoft:renew-session-lock" => self.renew_session(id, place, body),
            "com.microsoft:get-session-state" => self.session_state(id, place, body),
            "com.microsoft:set-session-state" => self.set_session_state(id, place, body),
            "com.microsoft:receive-by-sequence-number" => self.receive_deferred(place, body),
            other => Response::refused(
                501,
                AmqpError::new(
                    "amqp:not-implemented",
                    format!("The stand-in broker has no operation '{other}'."),
                ),
            ),
        }
    }

    fn renew(&mut self, place: &Place, body: &Value) -> Response {
        let Some(tokens) = lock_tokens(body) else {
            return Response::bad("'lock-tokens' must be an array of uuid.");
        };
        let mut expirations = Vec::new();
        for token in tokens {
            let now = self.now;
            let lock = self
                .namespace
                .entity(place)
                .map(|entity| entity.settings.lock);
            let renewed = lock.and_then(|lock| {
                let shelf = self.namespace.shelf_mut(place)?;
                Some((shelf.renew(token, now, lock)?, now + lock))
            });
            let address = place.address();
            let Some((sequence, until)) = renewed else {
                self.log(Event::RenewRefused { address, token });
                return Response::lock_lost();
            };
            self.log(Event::Renewed {
                address,
                sequence,
                token,
            });
            expirations.push(Value::Timestamp(self.told(until)));
        }
        Response::ok(Value::string_map([(
            "expirations",
            Value::Array(expirations),
        )]))
    }

    fn update_disposition(&mut self, place: &Place, body: &Value) -> Response {
        let Some(tokens) = lock_tokens(body) else {
            return Response::bad("'lock-tokens' must be an array of uuid.");
        };
        let text = |key: &str| body.get(key).and_then(Value::text).map(str::to_owned);
        let outcome = match text("disposition-status").as_deref() {
            Some("completed") => Outcome::Complete,
            Some("abandoned") => Outcome::Abandon,
            Some("defered") => Outcome::Defer,
            Some("suspended") => Outcome::DeadLetter {
                reason: text("deadletter-reason"),
                description: text("deadletter-description"),
            },
            _ => return Response::bad("'disposition-status' is not one that is known."),
        };
        let changes = body.get("properties-to-modify").unwrap_or(&Value::Null);
        // All or none: the client gets one status for all.
        let lost = tokens.iter().find(|token| {
            let shelf = self
                .namespace
                .entity(place)
                .map(|entity| entity.shelf(place.dead));
            shelf.is_none_or(|shelf| shelf.locked(**token).is_none())
        });
        if let Some(token) = lost {
            self.log(Event::SettleRefused {
                address: place.address(),
                token: *token,
                outcome,
                way: Way::Management,
            });
            return Response::lock_lost();
        }
        for token in tokens {
            self.settle(place, token, &outcome, changes, Way::Management);
        }
        Response::ok(Value::Map(Vec::new()))
    }

    fn peek(&self, place: &Place, body: &Value) -> Response {
        let from = body.get("from-sequence-number").and_then(Value::signed);
        let session = body.get("session-id").and_then(Value::text);
        let most = body.get("message-count").and_then(Value::unsigned);
        let (Some(from), Some(most)) = (from, most) else {
            return Response::bad("'from-sequence-number' and 'message-count' must be numbers.");
        };
        let Some(entity) = self.namespace.entity(place) else {
            return Response::refused(404, not_found(&place.address()));
        };
        let messages: Vec<Value> = entity
            .shelf(place.dead)
            .iter()
            .filter(|(sequence, _)| *sequence as i64 >= from)
            .filter(|(_, stored)| session.is_none() || stored.session.as_deref() == session)
            .take(most.min(MOST_PEEKED) as usize)
            .map(|(sequence, stored)| {
                let message = self.dressed(place, sequence, stored, None);
                Value::string_map([("message", Value::Binary(message.encode()))])
            })
            .collect();
        if messages.is_empty() {
            return Response {
                status: 204,
                text: "NoContent".into(),
                ..Response::ok(Value::Map(Vec::new()))
            };
        }
        Response::ok(Value::string_map([("messages", Value::List(messages))]))
    }

    fn receive_deferred(&mut self, place: &Place, body: &Value) -> Response {
        let numbers = body.get("sequence-numbers").and_then(Value::elements);
        let numbers: Option<Vec<u64>> =
            numbers.and_then(|all| all.iter().map(Value::unsigned).collect());
        let (Some(numbers), Some(lock)) = (
            numbers,
            self.namespace
                .entity(place)
                .map(|entity| entity.settings.lock),
        ) else {
            return Response::bad("'sequence-numbers' must be an array of long.");
        };
        // All or none here, too.
        let missing = numbers.iter().find(|sequence| {
            let shelf = self
                .namespace
                .entity(place)
                .map(|entity| entity.shelf(place.dead));
            let stored = shelf.and_then(|shelf| shelf.get(**sequence));
            stored.is_none_or(|stored| stored.state != MessageState::Deferred)
        });
        if let Some(sequence) = missing {
            let text = format!("No deferred message has the sequence number {sequence}.");
            let error = AmqpError::new("com.microsoft:message-not-found", text);
            return Response::refused(404, error);
        }
        let mut messages = Vec::new();
        for sequence in numbers {
            let now = self.now;
            let taken = self.namespace.shelf_mut(place).and_then(|shelf| {
                let token = shelf.lock_deferred(sequence, now, lock)?;
                Some((token, shelf.get(sequence)?.clone()))
            });
            // Twice in one request.
            let Some((token, stored)) = taken else {
                continue;
            };
            self.log(Event::Delivered {
                address: place.address(),
                sequence,
                token,
                failed: stored.failed,
            });
            let message = self.dressed(place, sequence, &stored, None);
            messages.push(Value::string_map([
                ("message", Value::Binary(message.encode())),
                ("lock-token", Value::Uuid(token)),
            ]));
        }
        Response::ok(Value::string_map([("messages", Value::List(messages))]))
    }
}

/// Returns the lock tokens of a request, in the byte order of an AMQP `uuid` (RFC 4122).
fn lock_tokens(body: &Value) -> Option<Vec<Guid>> {
    let tokens = body.get("lock-tokens")?.elements()?.iter();
    tokens
        .map(|token| match token {
            Value::Uuid(token) => Some(*token),
            _ => None,
        })
        .collect()
}
