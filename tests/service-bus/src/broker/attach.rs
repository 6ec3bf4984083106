//! Attaching and detaching links.

use crate::codec::Value;
use crate::codec::performative::{Attach, Detach, Performative};
use crate::codec::state::AmqpError;

use super::engine::{Answer, Engine, Request};
use super::faults::On;
use super::journal::Event;
use super::namespace::{Node, Place, not_found};
use super::session::{CREDIT, In, Link, LinkEnd, Out};
use super::sessions::SESSION_FILTER;

impl Engine {
    pub(crate) fn attach(&mut self, id: u64, channel: u16, attach: Attach) {
        let connection = self.connections.get(&id);
        let session = connection.and_then(|connection| connection.sessions.get(&channel));
        if session.is_some_and(|session| session.links.contains_key(&attach.handle)) {
            let text = format!("the handle {} is in use", attach.handle);
            return self.end(id, channel, "amqp:session:handle-in-use", text);
        }
        let terminus = if attach.receiver {
            &attach.source
        } else {
            &attach.target
        };
        let Some(address) = Attach::address(terminus) else {
            let error = AmqpError::new("amqp:not-implemented", "links without an address are not");
            return self.refuse_attach(id, channel, &attach, error);
        };
        let node = Node::parse(address);
        let refused = attach.clone();
        self.play(Request {
            connection: id,
            on: On::Attach,
            address: node.address(),
            link: None,
            work: Box::new(move |engine| {
                match engine.may_attach(id, &node, &attach) {
                    Ok(()) => match wanted_session(&node, &attach) {
                        None => engine.attached(id, channel, node, &attach, None),
                        Some(session) => {
                            engine.accept(id, channel, node, attach, session.as_deref());
                        }
                    },
                    Err(error) => engine.refuse_attach(id, channel, &attach, error),
                }
                Vec::new()
            }),
            refuse: Box::new(move |_, error| refusal(channel, &refused, error)),
        });
    }

    fn may_attach(&self, id: u64, node: &Node, attach: &Attach) -> Result<(), AmqpError> {
        let Some(place) = node.place() else {
            return Ok(());
        };
        self.may_use(id, place)?;
        let Some(entity) = self.namespace.entity(place) else {
            return Err(not_found(&place.address()));
        };
        if entity.settings.disabled {
            let text = format!("Messaging entity '{}' is currently disabled.", place.entity);
            return Err(AmqpError::new("com.microsoft:entity-disabled", text));
        }
        let not_allowed = |text: &str| Err(AmqpError::new("amqp:not-allowed", text));
        if matches!(node, Node::Management(_)) {
            return Ok(());
        }
        if !attach.receiver {
            let closed = place.dead || place.entity.contains("/subscriptions/");
            return if closed {
                not_allowed("It is not possible to send to a sub-queue or a subscription.")
            } else {
                Ok(())
            };
        }
        if entity.subscriptions.is_some() {
            return not_allowed("It is not possible to receive from a topic.");
        }
        let wants_session = Attach::filter(&attach.source)
            .is_some_and(|filter| filter.get(SESSION_FILTER).is_some());
        match (entity.settings.sessions && !place.dead, wants_session) {
            (false, false) | (true, true) => Ok(()),
            (true, false) => not_allowed(
                "It is not possible for an entity that requires sessions to create a \
                 non-sessionful message receiver.",
            ),
            (false, true) => not_allowed(
                "A sessionful message receiver cannot be created on an entity that does not \
                 require sessions.",
            ),
        }
    }

    pub(crate) fn may_use(&self, id: u64, place: &Place) -> Result<(), AmqpError> {
        let address = place.address();
        let granted = self.connections.get(&id).is_some_and(|connection| {
            let mut all = connection.granted.iter();
            all.any(|granted| granted.covers(&address, self.now))
        });
        if granted || !self.settings.access.required {
            return Ok(());
        }
        Err(AmqpError::new(
            "amqp:unauthorized-access",
            format!(
                "Unauthorized access. 'Listen' or 'Send' claim(s) are required for '{address}'."
            ),
        ))
    }

    /// Attaches a link; `given` is its session, with the end of the lock as clients see it.
    pub(crate) fn attached(
        &mut self,
        id: u64,
        channel: u16,
        node: Node,
        attach: &Attach,
        given: Option<(&str, i64)>,
    ) {
        let (now, largest) = (self.now, self.settings.max_message_size);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Some(session) = connection.sessions.get_mut(&channel) else {
            return;
        };
        let address = node.address();
        let reply = Attach {
            receiver: !attach.receiver,
            initial_delivery_count: attach.receiver.then_some(0),
            max_message_size: Some(largest),
            properties: given.map_or(Value::Null, |(_, until)| locked_until(until)),
            source: match given {
                Some((session, _)) => Attach::with_session(&attach.source, session),
                None => attach.source.clone(),
            },
            ..attach.clone()
        };
        let end = if attach.receiver {
            LinkEnd::Out(Out {
                settle_mode: attach.snd_settle_mode,
                target: Attach::address(&attach.target).map(str::to_owned),
                of_session: given.map(|(session, _)| session.to_owned()),
                ..Out::default()
            })
        } else {
            LinkEnd::In(In {
                credit: CREDIT,
                delivery_count: attach.initial_delivery_count.unwrap_or(0),
                partial: None,
            })
        };
        let link = Link {
            name: attach.name.clone(),
            node,
            end,
            active: now,
        };
        session.links.insert(attach.handle, link);
        connection.send(channel, &Performative::Attach(reply));
        if !attach.receiver {
            connection.send_flow(channel, attach.handle);
        }
        self.log(Event::Attached {
            address,
            receiver: attach.receiver,
        });
    }

    pub(crate) fn refuse_attach(
        &mut self,
        id: u64,
        channel: u16,
        attach: &Attach,
        error: AmqpError,
    ) {
        let terminus = if attach.receiver {
            &attach.source
        } else {
            &attach.target
        };
        self.log(Event::AttachRefused {
            address: Attach::address(terminus)
                .unwrap_or_default()
                .to_ascii_lowercase(),
            condition: error.condition.clone(),
        });
        if let Some(connection) = self.connections.get_mut(&id) {
            for answer in refusal(channel, attach, error) {
                connection.answer(answer);
            }
        }
    }

    pub(crate) fn detached(&mut self, id: u64, channel: u16, detach: &Detach) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Some(session) = connection.sessions.get_mut(&channel) else {
            return;
        };
        // Locks outlive their link; later dispositions on it have no effect.
        session
            .unsettled
            .retain(|_, unsettled| unsettled.handle != detach.handle);
        let Some(link) = session.links.remove(&detach.handle) else {
            return;
        };
        let reply = Detach {
            error: None,
            ..detach.clone()
        };
        connection.send(channel, &Performative::Detach(reply));
        self.log(Event::Detached {
            address: link.node.address(),
            condition: None,
        });
        self.free_link(id, channel, detach.handle);
    }

    pub(crate) fn detach(&mut self, id: u64, channel: u16, handle: u32, error: Option<AmqpError>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Some(session) = connection.sessions.get_mut(&channel) else {
            return;
        };
        let Some(link) = session.links.remove(&handle) else {
            return;
        };
        session
            .unsettled
            .retain(|_, unsettled| unsettled.handle != handle);
        let condition = error.as_ref().map(|error| error.condition.clone());
        let detach = Detach {
            handle,
            closed: true,
            error,
        };
        connection.send(channel, &Performative::Detach(detach));
        self.log(Event::Detached {
            address: link.node.address(),
            condition,
        });
        self.free_link(id, channel, handle);
    }

    pub(crate) fn detach_where(
        &mut self,
        which: impl Fn(&Engine, u64, &Link) -> bool,
        error: &AmqpError,
    ) {
        let mut found = Vec::new();
        for (id, connection) in &self.connections {
            for (channel, session) in &connection.sessions {
                for (handle, link) in &session.links {
                    if which(self, *id, link) {
                        found.push((*id, *channel, *handle));
                    }
                }
            }
        }
        for (id, channel, handle) in found {
            self.detach(id, channel, handle, Some(error.clone()));
        }
    }

    pub(crate) fn detach_idle(&mut self, id: u64) {
        let (now, idle) = (self.now, self.settings.idle_detach);
        let error = AmqpError::new(
            "amqp:link:detach-forced",
            format!(
                "The link is force detached. Code: consumer. Details: idle for {} ms.",
                idle.as_millis()
            ),
        );
        self.detach_where(|_, of, link| of == id && now >= link.active + idle, &error);
    }

    pub(crate) fn detach_unauthorized(&mut self, id: u64) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let before = connection.granted.len();
        connection
            .granted
            .retain(|granted| granted.until.is_none_or(|until| now < until));
        if connection.granted.len() == before {
            return;
        }
        let error = AmqpError::new(
            "amqp:unauthorized-access",
            "ExpiredToken: The token is expired.",
        );
        self.detach_where(
            |engine, of, link| {
                let place = link.node.place();
                of == id && place.is_some_and(|place| engine.may_use(id, place).is_err())
            },
            &error,
        );
    }
}

/// Returns the session that a receiver requests, by name or the next.
fn wanted_session(node: &Node, attach: &Attach) -> Option<Option<String>> {
    if !attach.receiver || !matches!(node, Node::Entity(_)) {
        return None;
    }
    let filter = Attach::filter(&attach.source)?.get(SESSION_FILTER)?;
    // Microsoft's clients send a described value; the descriptor adds nothing.
    let name = match filter {
        Value::Described(_, name) => name,
        name => name,
    };
    Some(name.text().map(str::to_owned))
}

/// Converts the end of a session's lock for its receiver: .NET's ticks, ten million a second, since
/// the year 1.
fn locked_until(millis: i64) -> Value {
    const EPOCH: i64 = 621_355_968_000_000_000;
    let until = Value::Long(EPOCH + millis * 10_000);
    Value::Map(vec![(
        Value::symbol("com.microsoft:locked-until-utc"),
        until,
    )])
}

/// Answers a refused link with an attach without source (or target), followed by a detach.
fn refusal(channel: u16, attach: &Attach, error: AmqpError) -> Vec<Answer> {
    let mut reply = Attach {
        receiver: !attach.receiver,
        initial_delivery_count: attach.receiver.then_some(0),
        properties: Value::Null,
        ..attach.clone()
    };
    if attach.receiver {
        reply.source = Value::Null;
    } else {
        reply.target = Value::Null;
    }
    let detach = Detach {
        handle: attach.handle,
        closed: true,
        error: Some(error),
    };
    vec![
        Answer::Frame(channel, Performative::Attach(reply)),
        Answer::Frame(channel, Performative::Detach(detach)),
    ]
}
