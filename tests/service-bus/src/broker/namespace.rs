//! Queues, topics and subscriptions, their addresses, and the fate of a message that is sent or
//! settled, or whose lock ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::codec::state::AmqpError;
use crate::codec::{Guid, Message, Value};

use super::journal::{Event, Outcome};
use super::store::{MessageState, Shelf, Stored};

/// Settings of a queue or a subscription.
#[derive(Clone, Debug)]
pub struct QueueSettings {
    /// Length of a lock.
    pub lock: Duration,
    /// Failed deliveries after which a message is dead-lettered.
    pub max_delivery_count: u32,
    /// Admits only receivers of sessions, and every message must name one.
    pub sessions: bool,
    /// Whether no link is admitted.
    pub disabled: bool,
    /// Time until an abandoned message is available again; later messages are available meanwhile.
    pub abandon_takes: Duration,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            lock: Duration::from_secs(30),
            max_delivery_count: 10,
            sessions: false,
            disabled: false,
            abandon_takes: Duration::ZERO,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Cbs,
    /// About a queue or a topic.
    Management(Place),
    Entity(Place),
}

impl Node {
    /// Parses an address: bare, or a URI with the host's name, in lower or upper case.
    pub(crate) fn parse(address: &str) -> Self {
        let path = path_of(address);
        if path == "$cbs" {
            return Self::Cbs;
        }
        match path.strip_suffix("/$management") {
            Some(place) => Self::Management(Place::parse(place)),
            None => Self::Entity(Place::parse(&path)),
        }
    }

    pub(crate) fn address(&self) -> String {
        match self {
            Self::Cbs => "$cbs".into(),
            Self::Management(place) => format!("{}/$management", place.address()),
            Self::Entity(place) => place.address(),
        }
    }

    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Self::Cbs => None,
            Self::Management(place) | Self::Entity(place) => Some(place),
        }
    }
}

/// A queue (or a topic), or its dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) entity: String,
    pub(crate) dead: bool,
}

impl Place {
    pub(crate) fn parse(path: &str) -> Self {
        let path = path_of(path);
        match path.strip_suffix("/$deadletterqueue") {
            Some(entity) => Self {
                entity: entity.to_owned(),
                dead: true,
            },
            None => Self {
                entity: path,
                dead: false,
            },
        }
    }

    pub(crate) fn address(&self) -> String {
        let tail = if self.dead { "/$deadletterqueue" } else { "" };
        format!("{}{tail}", self.entity)
    }
}

/// Returns the path without scheme, host and outer slashes, in lower case.
pub(crate) fn path_of(address: &str) -> String {
    let path = match address.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => address,
    };
    path.trim_matches('/').to_ascii_lowercase()
}

/// A queue or subscription with its dead letters, or a topic.
#[derive(Debug)]
pub(crate) struct Entity {
    pub(crate) settings: QueueSettings,
    /// Subscriptions, if this is a topic.
    pub(crate) subscriptions: Option<Vec<String>>,
    main: Shelf,
    dead: Shelf,
    /// Locked or with a state, with messages or without.
    pub(crate) sessions: BTreeMap<String, Session>,
    next_sequence: u64,
}

impl Entity {
    pub(crate) fn new(settings: QueueSettings, topic: bool) -> Self {
        Self {
            settings,
            subscriptions: topic.then(Vec::new),
            main: Shelf::default(),
            dead: Shelf::default(),
            sessions: BTreeMap::new(),
            next_sequence: 1,
        }
    }

    pub(crate) fn shelf(&self, dead: bool) -> &Shelf {
        if dead { &self.dead } else { &self.main }
    }

    pub(crate) fn shelf_mut(&mut self, dead: bool) -> &mut Shelf {
        if dead { &mut self.dead } else { &mut self.main }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Session {
    pub(crate) holder: Option<Holder>,
    pub(crate) state: Option<Vec<u8>>,
}

/// The link that has locked a session, and the end of the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder {
    pub(crate) connection: u64,
    pub(crate) channel: u16,
    pub(crate) handle: u32,
    pub(crate) until: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Namespace {
    pub(crate) entities: BTreeMap<String, Entity>,
}

impl Namespace {
    pub(crate) fn entity(&self, place: &Place) -> Option<&Entity> {
        self.entities.get(&place.entity)
    }

    pub(crate) fn shelf_mut(&mut self, place: &Place) -> Option<&mut Shelf> {
        Some(self.entities.get_mut(&place.entity)?.shelf_mut(place.dead))
    }

    pub(crate) fn enqueue(&mut self, entity: &str, message: &Message) -> Vec<Event> {
        let targets = match self
            .entities
            .get(entity)
            .and_then(|e| e.subscriptions.clone())
        {
            Some(subscriptions) => subscriptions,
            None => vec![entity.to_owned()],
        };
        let mut events = Vec::new();
        for target in targets {
            let Some(entity) = self.entities.get_mut(&target) else {
                continue;
            };
            let sequence = entity.next_sequence;
            entity.next_sequence += 1;
            let mut message = message.clone();
            message.delivery_annotations.clear();
            let stored = Stored {
                enqueued: wall_millis(),
                failed: 0,
                state: MessageState::Ready,
                session: session_of(&message),
                message,
            };
            entity.main.put(sequence, stored);
            events.push(Event::Enqueued {
                address: target,
                sequence,
            });
        }
        events
    }

    /// Returns the sequence number, and further events.
    pub(crate) fn settle(
        &mut self,
        place: &Place,
        token: Guid,
        outcome: &Outcome,
        changes: &Value,
    ) -> Option<(u64, Vec<Event>)> {
        let entity = self.entities.get_mut(&place.entity)?;
        let shelf = entity.shelf_mut(place.dead);
        let (sequence, mut stored) = shelf.unlock(token)?;
        if let Value::Map(changes) = changes
            && !changes.is_empty()
        {
            stored.message.set_application_properties(changes.clone());
        }
        let mut events = Vec::new();
        match outcome {
            Outcome::Complete => {}
            Outcome::Release => shelf.put(sequence, stored),
            Outcome::Defer => {
                stored.failed += 1;
                shelf.defer(sequence, stored);
            }
            Outcome::Abandon => {
                stored.failed += 1;
                events = entity.put_back(place, sequence, stored);
            }
            Outcome::DeadLetter {
                reason,
                description,
            } => {
                let (reason, description) = (reason.as_deref(), description.as_deref());
                events = entity.bury(place, sequence, stored, reason, description);
            }
        }
        Some((sequence, events))
    }

    pub(crate) fn expire(&mut self, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        for (name, entity) in &mut self.entities {
            for dead in [false, true] {
                while let Some(token) = entity.shelf(dead).expired(now) {
                    let place = Place {
                        entity: name.clone(),
                        dead,
                    };
                    events.extend(entity.lose(&place, token));
                }
            }
        }
        events
    }

    pub(crate) fn lose(&mut self, place: &Place, token: Guid) -> Vec<Event> {
        match self.entities.get_mut(&place.entity) {
            Some(entity) => entity.lose(place, token),
            None => Vec::new(),
        }
    }

    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.entities
            .values()
            .flat_map(|entity| {
                let holders = entity.sessions.values().filter_map(|it| it.holder);
                let sessions = holders.map(|holder| holder.until).min();
                [
                    entity.main.next_expiry(),
                    entity.dead.next_expiry(),
                    sessions,
                ]
            })
            .flatten()
            .min()
    }
}

impl Entity {
    fn lose(&mut self, place: &Place, token: Guid) -> Vec<Event> {
        let Some((sequence, mut stored)) = self.shelf_mut(place.dead).unlock(token) else {
            return Vec::new();
        };
        stored.failed += 1;
        let mut events = vec![Event::LockExpired {
            address: place.address(),
            sequence,
            token,
        }];
        events.extend(self.put_back(place, sequence, stored));
        events
    }

    /// Ends a session's lock. Messages locked under it return unchanged, or with a failed attempt
    /// if it had expired.
    pub(crate) fn free(&mut self, place: &Place, session: &str, over: bool) -> Vec<Event> {
        if let Some(session) = self.sessions.get_mut(session) {
            session.holder = None;
        }
        let address = place.address();
        let mut events = vec![Event::SessionFreed {
            address,
            session: session.to_owned(),
            over,
        }];
        for token in self.main.locked_of(session) {
            if over {
                events.extend(self.lose(place, token));
            } else if let Some((sequence, stored)) = self.main.unlock(token) {
                self.main.put(sequence, stored);
            }
        }
        events
    }

    /// Puts a message back into the queue, or among the dead letters if it failed too often.
    fn put_back(&mut self, place: &Place, sequence: u64, stored: Stored) -> Vec<Event> {
        let most = self.settings.max_delivery_count;
        if place.dead || stored.failed < most {
            self.shelf_mut(place.dead).put(sequence, stored);
            return Vec::new();
        }
        let description = format!("Message could not be consumed after {most} delivery attempts.");
        let reason = Some("MaxDeliveryCountExceeded");
        self.bury(place, sequence, stored, reason, Some(&description))
    }

    fn bury(
        &mut self,
        place: &Place,
        sequence: u64,
        mut stored: Stored,
        reason: Option<&str>,
        description: Option<&str>,
    ) -> Vec<Event> {
        let marks = [
            ("DeadLetterReason", reason),
            ("DeadLetterErrorDescription", description),
        ];
        let marks = marks
            .into_iter()
            .filter_map(|(key, text)| Some((Value::string(key), Value::string(text?))))
            .collect();
        stored.message.set_application_properties(marks);
        self.dead.put(sequence, stored);
        vec![Event::DeadLettered {
            address: place.address(),
            sequence,
            reason: reason.unwrap_or_default().to_owned(),
        }]
    }
}

fn session_of(message: &Message) -> Option<String> {
    message.property(10)?.text().map(str::to_owned)
}

/// Returns milliseconds since 1970, for people and clients, never for a decision.
pub(crate) fn wall_millis() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as i64)
}

pub(crate) fn not_found(address: &str) -> AmqpError {
    AmqpError::new(
        "amqp:not-found",
        format!("The messaging entity '{address}' could not be found."),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_bare_and_as_uris_in_any_case() {
        let jobs = |dead| Place {
            entity: "jobs".into(),
            dead,
        };
        for (address, node) in [
            ("$cbs", Node::Cbs),
            ("Jobs", Node::Entity(jobs(false))),
            ("sb://127.0.0.1:5672/jobs/", Node::Entity(jobs(false))),
            ("jobs/$DeadLetterQueue", Node::Entity(jobs(true))),
            (
                "amqps://ns.example.net/jobs/$management",
                Node::Management(jobs(false)),
            ),
            (
                "jobs/$deadletterqueue/$management",
                Node::Management(jobs(true)),
            ),
        ] {
            assert_eq!(Node::parse(address), node, "{address}");
        }
        assert_eq!(
            Place::parse("Orders/Subscriptions/Mail").address(),
            "orders/subscriptions/mail"
        );
    }

    #[test]
    fn a_message_dies_of_its_last_failed_delivery_and_not_before() {
        let mut namespace = Namespace::default();
        let settings = QueueSettings {
            max_delivery_count: 2,
            ..QueueSettings::default()
        };
        let lock = settings.lock;
        let place = Place::parse("jobs");
        namespace
            .entities
            .insert("jobs".into(), Entity::new(settings, false));
        namespace.enqueue("jobs", &Message::data(b"x"));
        let now = Instant::now();
        for round in 0..2 {
            let shelf = namespace.shelf_mut(&place).expect("the queue is there");
            let (_, token) = shelf
                .lock_next(None, now, lock)
                .expect("still in the queue");
            // Each way of failing once.
            let events = match round {
                0 => namespace.lose(&place, token),
                _ => {
                    let settled = namespace.settle(&place, token, &Outcome::Abandon, &Value::Null);
                    settled.expect("it is locked").1
                }
            };
            let died = events
                .iter()
                .any(|event| matches!(event, Event::DeadLettered { .. }));
            assert_eq!(died, round == 1);
        }
        let entity = namespace.entity(&place).expect("the queue is there");
        let (_, dead) = entity
            .shelf(true)
            .iter()
            .next()
            .expect("it is a dead letter");
        let marks = dead.message.application_properties();
        assert_eq!(
            marks.get("DeadLetterReason").and_then(Value::text),
            Some("MaxDeliveryCountExceeded")
        );
    }
}
