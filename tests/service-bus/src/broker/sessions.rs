//! Sessions: their locks, the receivers that wait for them, and their states.
//!
//! A session is locked for the link that accepted it, for the queue's lock time, and again with
//! each renewal. It is free at once when that link ends, for whatever reason: unsettled deliveries
//! return, and no attempt is counted. If the lock has expired, each counts as an attempt, and the
//! link is detached. (Microsoft's table of delivery counts in sessions.)

use std::time::{Duration, Instant};

use crate::codec::Value;
use crate::codec::performative::Attach;
use crate::codec::state::AmqpError;

use super::engine::Engine;
use super::journal::Event;
use super::management::Response;
use super::namespace::{Holder, Node, Place, Session};
use super::{SESSION_LOST, SESSION_LOST_TEXT};

pub(crate) const SESSION_FILTER: &str = "com.microsoft:session-filter";
/// Default wait of a receiver for a session: the limit of the real service.
const WAIT_LIMIT: Duration = Duration::from_secs(65);
/// Link property for that, in milliseconds.
const TIMEOUT: &str = "com.microsoft:timeout";

#[derive(Debug)]
pub(crate) struct Accepting {
    connection: u64,
    channel: u16,
    node: Node,
    attach: Attach,
    pub(crate) until: Instant,
}

impl Engine {
    /// Requests a session for a receiver: this one, or the next.
    pub(crate) fn accept(
        &mut self,
        id: u64,
        channel: u16,
        node: Node,
        attach: Attach,
        session: Option<&str>,
    ) {
        let Some(place) = node.place().cloned() else {
            return;
        };
        if let Some(session) = session {
            if self.is_free(&place, session) {
                return self.give(id, channel, node, &attach, session);
            }
            let text = format!("The requested session '{session}' cannot be accepted.");
            let error = AmqpError::new("com.microsoft:session-cannot-be-locked", text);
            return self.refuse_attach(id, channel, &attach, error);
        }
        let patience = attach.properties.get(TIMEOUT).and_then(Value::unsigned);
        let patience = patience.map_or(WAIT_LIMIT, Duration::from_millis);
        self.waiting.push(Accepting {
            connection: id,
            channel,
            node,
            attach,
            until: self.now + patience,
        });
        self.give_sessions();
    }

    fn is_free(&self, place: &Place, session: &str) -> bool {
        let entity = self.namespace.entity(place);
        let session = entity.and_then(|entity| entity.sessions.get(session));
        session.is_none_or(|session| session.holder.is_none())
    }

    fn next_session(&self, place: &Place) -> Option<String> {
        let entity = self.namespace.entity(place)?;
        let sessions = entity.shelf(place.dead).sessions();
        let free = sessions.filter(|(_, session)| self.is_free(place, session));
        free.min().map(|(_, session)| session.to_owned())
    }

    pub(crate) fn give_sessions(&mut self) {
        let (now, mut at) = (self.now, 0);
        while let Some(waiting) = self.waiting.get(at) {
            let connection = self.connections.get(&waiting.connection);
            let Some(connection) =
                connection.filter(|connection| connection.sessions.contains_key(&waiting.channel))
            else {
                // Its connection or session has ended.
                self.waiting.remove(at);
                continue;
            };
            let place = waiting.node.place().filter(|_| !connection.frozen);
            let next = place.and_then(|place| self.next_session(place));
            let over = now >= waiting.until && !connection.frozen;
            if next.is_none() && !over {
                at += 1;
                continue;
            }
            let waiting = self.waiting.remove(at);
            let Accepting {
                connection,
                channel,
                node,
                attach,
                ..
            } = waiting;
            match next {
                Some(session) => self.give(connection, channel, node, &attach, &session),
                None => {
                    let text = "The operation did not complete within the allotted timeout. The time \
                                allotted to this operation may have been a portion of a longer timeout.";
                    let error = AmqpError::new(TIMEOUT, text);
                    self.refuse_attach(connection, channel, &attach, error);
                }
            }
        }
    }

    fn give(&mut self, id: u64, channel: u16, node: Node, attach: &Attach, session: &str) {
        let now = self.now;
        let Some(place) = node.place().cloned() else {
            return;
        };
        let Some(entity) = self.namespace.entities.get_mut(&place.entity) else {
            return;
        };
        let until = now + entity.settings.lock;
        let record: &mut Session = entity.sessions.entry(session.to_owned()).or_default();
        record.holder = Some(Holder {
            connection: id,
            channel,
            handle: attach.handle,
            until,
        });
        self.log(Event::SessionAccepted {
            address: place.address(),
            session: session.to_owned(),
        });
        let told = self.told(until);
        self.attached(id, channel, node, attach, Some((session, told)));
    }

    pub(crate) fn free_link(&mut self, id: u64, channel: u16, handle: u32) {
        self.free_sessions(|holder| {
            (holder.connection, holder.channel, holder.handle) == (id, channel, handle)
        });
    }

    pub(crate) fn free_sessions(&mut self, which: impl Fn(&Holder) -> bool) {
        let mut events = Vec::new();
        for (name, entity) in &mut self.namespace.entities {
            let held = entity.sessions.iter().filter(|(_, session)| {
                let holder = session.holder.as_ref();
                holder.is_some_and(&which)
            });
            let held: Vec<String> = held.map(|(session, _)| session.clone()).collect();
            for session in held {
                events.extend(entity.free(&Place::parse(name), &session, false));
            }
        }
        for event in events {
            self.log(event);
        }
    }

    pub(crate) fn held_sessions(&self, place: &Place) -> Vec<String> {
        let sessions = self.namespace.entity(place).map(|entity| &entity.sessions);
        let sessions = sessions.into_iter().flatten();
        let held = sessions.filter(|(_, session)| session.holder.is_some());
        held.map(|(session, _)| session.clone()).collect()
    }

    pub(crate) fn expire_sessions(&mut self) {
        let mut over = Vec::new();
        for (name, entity) in &self.namespace.entities {
            for (session, record) in &entity.sessions {
                if record.holder.is_some_and(|holder| holder.until <= self.now) {
                    over.push((Place::parse(name), session.clone()));
                }
            }
        }
        for (place, session) in over {
            self.lose_session(&place, &session);
        }
    }

    pub(crate) fn lose_session(&mut self, place: &Place, session: &str) {
        let Some(entity) = self.namespace.entities.get_mut(&place.entity) else {
            return;
        };
        let record = entity.sessions.get(session);
        let Some(holder) = record.and_then(|record| record.holder) else {
            return;
        };
        for event in entity.free(place, session, true) {
            self.log(event);
        }
        let error = AmqpError::new(SESSION_LOST, SESSION_LOST_TEXT);
        self.detach(
            holder.connection,
            holder.channel,
            holder.handle,
            Some(error),
        );
    }

    /// Returns the session of a request, if that comes from its holder.
    fn requested(
        &mut self,
        id: u64,
        place: &Place,
        body: &Value,
    ) -> Result<(String, Duration, &mut Session), Response> {
        let Some(name) = body.get("session-id").and_then(Value::text) else {
            return Err(Response::bad("'session-id' must be a string."));
        };
        let lost = || Response::refused(410, AmqpError::new(SESSION_LOST, SESSION_LOST_TEXT));
        let entity = self.namespace.entities.get_mut(&place.entity);
        let entity = entity.ok_or_else(lost)?;
        let session = entity.sessions.get_mut(name).filter(|session| {
            let holder = session.holder;
            holder.is_some_and(|holder| holder.connection == id)
        });
        let lock = entity.settings.lock;
        Ok((name.to_owned(), lock, session.ok_or_else(lost)?))
    }

    pub(crate) fn renew_session(&mut self, id: u64, place: &Place, body: &Value) -> Response {
        let now = self.now;
        let (session, until) = match self.requested(id, place, body) {
            Ok((name, lock, session)) => {
                if let Some(holder) = &mut session.holder {
                    holder.until = now + lock;
                }
                (name, now + lock)
            }
            Err(refused) => return refused,
        };
        let address = place.address();
        self.log(Event::SessionRenewed { address, session });
        let until = Value::Timestamp(self.told(until));
        Response::ok(Value::string_map([("expiration", until)]))
    }

    pub(crate) fn session_state(&mut self, id: u64, place: &Place, body: &Value) -> Response {
        match self.requested(id, place, body) {
            Ok((_, _, session)) => {
                let state = session.state.clone().map_or(Value::Null, Value::Binary);
                Response::ok(Value::string_map([("session-state", state)]))
            }
            Err(refused) => refused,
        }
    }

    pub(crate) fn set_session_state(&mut self, id: u64, place: &Place, body: &Value) -> Response {
        let state = match body.get("session-state") {
            Some(Value::Binary(state)) => Some(state.clone()),
            None | Some(Value::Null) => None,
            Some(_) => return Response::bad("'session-state' must be binary, or null."),
        };
        if state
            .as_ref()
            .is_some_and(|state| state.len() as u64 > self.settings.max_state_size)
        {
            let text = "The session state is larger than what is allowed.";
            return Response::refused(403, AmqpError::new("amqp:link:message-size-exceeded", text));
        }
        let session = match self.requested(id, place, body) {
            Ok((name, _, session)) => {
                session.state.clone_from(&state);
                name
            }
            Err(refused) => return refused,
        };
        let address = place.address();
        self.log(Event::StateSet {
            address,
            session,
            state,
        });
        Response::ok(Value::Map(Vec::new()))
    }
}
