//! The one thread that owns everything: connections, messages, faults, the journal, and the time.
//!
//! It takes one input after another (an accepted connection, a frame, a wish of the test), changes
//! the state, delivers what it can, and sleeps until the next input or deadline. Nothing is shared
//! or locked, so a test sees one consistent moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::codec::Malformed;
use crate::codec::frame::Input;
use crate::codec::performative::Performative;
use crate::codec::state::AmqpError;

use super::Settings;
use super::connection::{Connection, Stage};
use super::faults::{Act, Faults, On};
use super::journal::{Entry, Event};
use super::namespace::{Namespace, Node};
use super::sessions::Accepting;
use super::wire::Line;

pub(crate) enum Message {
    Accepted(u64, Line),
    Input(u64, Input),
    Malformed(u64, Malformed),
    Gone(u64),
    Control(Wish),
    Stop,
}

pub(crate) type Wish = Box<dyn FnOnce(&mut Engine) + Send>;
/// Looks at every state, until it returns true.
pub(crate) type Watcher = Box<dyn FnMut(&Engine) -> bool + Send>;
pub(crate) type Work = Box<dyn FnOnce(&mut Engine) -> Vec<Answer> + Send>;

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Frame(u16, Performative),
    Reply {
        channel: u16,
        node: Node,
        to: Option<String>,
        message: crate::codec::Message,
    },
}

/// A client's request, to which a fault may apply.
pub(crate) struct Request {
    pub(crate) connection: u64,
    pub(crate) on: On,
    pub(crate) address: String,
    /// Channel and handle it came on.
    pub(crate) link: Option<(u16, u32)>,
    pub(crate) work: Work,
    pub(crate) refuse: Box<dyn FnOnce(u16, AmqpError) -> Vec<Answer> + Send>,
}

pub(crate) struct Engine {
    pub(crate) settings: Settings,
    pub(crate) now: Instant,
    pub(crate) namespace: Namespace,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) faults: Faults,
    pub(crate) journal: Vec<Entry>,
    /// Milliseconds added to every locked-until that clients see.
    pub(crate) skew: i64,
    pub(crate) refusing: bool,
    pub(crate) freezing: bool,
    pub(crate) waiting: Vec<Accepting>,
    timers: BTreeMap<(Instant, u64), Wish>,
    timers_made: u64,
    watchers: Vec<Watcher>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            now: Instant::now(),
            namespace: Namespace::default(),
            connections: BTreeMap::new(),
            faults: Faults::default(),
            journal: Vec::new(),
            skew: 0,
            refusing: false,
            freezing: false,
            waiting: Vec::new(),
            timers: BTreeMap::new(),
            timers_made: 0,
            watchers: Vec::new(),
        }
    }

    /// Runs until it is stopped, or its inputs end.
    pub(crate) fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let wait = self
                .next_deadline()
                .saturating_duration_since(Instant::now());
            let message = messages.recv_timeout(wait);
            self.tick();
            match message {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.give_sessions();
            self.deliver_all();
            let mut watchers = std::mem::take(&mut self.watchers);
            watchers.retain_mut(|watcher| !watcher(&self));
            self.watchers = watchers;
        }
        for connection in self.connections.values() {
            connection.line.cut();
        }
    }

    pub(crate) fn log(&mut self, event: Event) {
        self.journal.push(Entry {
            at: self.now,
            event,
        });
    }

    pub(crate) fn later(&mut self, after: Duration, wish: Wish) {
        self.timers_made += 1;
        self.timers
            .insert((self.now + after, self.timers_made), wish);
    }

    pub(crate) fn watch(&mut self, watcher: Watcher) {
        self.watchers.push(watcher);
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Accepted(id, line) => {
                self.log(Event::Connected { connection: id });
                if self.refusing {
                    line.cut();
                }
                let mut connection = Connection::new(line, self.now);
                connection.frozen = self.freezing;
                self.connections.insert(id, connection);
            }
            Message::Input(id, input) => self.input(id, input),
            Message::Malformed(id, malformed) => {
                self.log(Event::Malformed {
                    connection: id,
                    what: malformed.to_string(),
                });
                self.fail(id, AmqpError::new(malformed.condition, malformed.what));
            }
            Message::Gone(id) => self.forget(id),
            Message::Control(wish) => wish(self),
            Message::Stop => {}
        }
    }

    /// Cuts a connection. Its locks remain until they end.
    pub(crate) fn cut(&mut self, id: u64) {
        self.forget(id);
    }

    fn forget(&mut self, id: u64) {
        if let Some(connection) = self.connections.remove(&id) {
            connection.line.cut();
            self.log(Event::Disconnected { connection: id });
            self.free_sessions(|holder| holder.connection == id);
        }
    }

    /// Holds back everything of a connection in both directions, including heartbeats.
    pub(crate) fn freeze(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.frozen = true;
        }
    }

    /// Continues with what was held back, in order.
    pub(crate) fn thaw(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.frozen = false;
        connection.heard = self.now;
        for bytes in std::mem::take(&mut connection.held_out) {
            connection.line.send(bytes);
        }
        for input in std::mem::take(&mut connection.held_in) {
            self.input(id, input);
        }
    }

    fn tick(&mut self) {
        self.now = Instant::now();
        for event in self.namespace.expire(self.now) {
            self.log(event);
        }
        self.expire_sessions();
        while let Some(timer) = self.timers.first_entry() {
            if timer.key().0 > self.now {
                break;
            }
            let wish = timer.remove();
            wish(self);
        }
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            self.tick_connection(id);
        }
    }

    fn tick_connection(&mut self, id: u64) {
        let (now, silence) = (self.now, self.settings.idle_time_out);
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.frozen || connection.stage != Stage::Open {
            return;
        }
        connection.heartbeat(now);
        // Twice the announced time-out, as the standard advises.
        if now >= connection.heard + silence * 2 {
            let text = format!(
                "The connection was inactive for more than the allowed {} milliseconds.",
                silence.as_millis() * 2
            );
            self.fail(id, AmqpError::new("amqp:resource-limit-exceeded", text));
            return;
        }
        self.detach_idle(id);
        self.detach_unauthorized(id);
    }

    fn next_deadline(&self) -> Instant {
        let timer = self.timers.keys().next().map(|(at, _)| *at);
        let lock = self.namespace.next_expiry();
        let waiting = self.waiting.iter().map(|waiting| waiting.until).min();
        let connections = self.connections.values().filter_map(|connection| {
            let idle = self.settings.idle_detach;
            connection.next_deadline(self.settings.idle_time_out * 2, idle)
        });
        // Looking a little too often does no harm, and saves separate timers.
        [timer, lock, waiting]
            .into_iter()
            .flatten()
            .chain(connections)
            .chain([self.now + Duration::from_secs(3600)])
            .min()
            .unwrap_or(self.now)
    }

    /// Carries it out, unless a fault applies.
    pub(crate) fn play(&mut self, request: Request) {
        let Request {
            connection: id,
            on,
            address,
            link,
            work,
            refuse,
        } = request;
        let Some(act) = self.faults.next(on, &address) else {
            let answers = work(self);
            return self.answer(id, answers);
        };
        self.log(Event::Faulted {
            on,
            act: act.clone(),
        });
        match act {
            Act::Refuse {
                status,
                condition,
                text,
            } => {
                let answers = refuse(status, AmqpError::new(condition, text));
                self.answer(id, answers);
            }
            Act::Ignore => {}
            Act::Lose => drop(work(self)),
            // Later frames must not overtake an opening.
            Act::Delay(late) if on != On::Open => {
                let answers = work(self);
                self.later(late, Box::new(move |engine| engine.answer(id, answers)));
            }
            Act::Delay(late) | Act::Hold(late) => self.later(
                late,
                Box::new(move |engine| {
                    let answers = work(engine);
                    engine.answer(id, answers);
                }),
            ),
            Act::Duplicate => {
                let answers = work(self);
                self.answer(id, answers.clone());
                self.answer(id, answers);
            }
            Act::Shift => {
                let answers = work(self);
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.shifted.extend(answers);
                }
            }
            Act::Uncorrelated => {
                let answers = work(self).into_iter().map(Answer::without_correlation);
                let answers = answers.collect();
                self.answer(id, answers);
            }
            Act::Cut => self.cut(id),
            Act::CutAfter => {
                drop(work(self));
                self.cut(id);
            }
            Act::Detach { condition } => {
                let error = AmqpError::new(condition, "The link was detached by force.");
                if let Some((channel, handle)) = link {
                    self.detach(id, channel, handle, Some(error));
                }
            }
            Act::Freeze => {
                let answers = work(self);
                self.freeze(id);
                self.answer(id, answers);
            }
            Act::Bytes(bytes) => {
                drop(work(self));
                if let Some(connection) = self.connections.get(&id) {
                    connection.line.send(bytes);
                }
            }
        }
    }

    /// Sends answers, then those held back for them.
    fn answer(&mut self, id: u64, answers: Vec<Answer>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let any = !answers.is_empty();
        let mut answers = answers;
        if any {
            answers.append(&mut connection.shifted);
        }
        for answer in answers {
            connection.answer(answer);
        }
    }
}

impl Answer {
    fn without_correlation(self) -> Self {
        match self {
            Self::Reply {
                channel,
                node,
                to,
                message,
            } => Self::Reply {
                channel,
                node,
                to,
                message: message.with_properties(Vec::new()),
            },
            frame @ Self::Frame(..) => frame,
        }
    }
}
