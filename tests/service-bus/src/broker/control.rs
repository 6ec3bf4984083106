//! The test's interface: queues, messages, views, waiting, faults.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::codec::state::AmqpError;
use crate::codec::{Message, Value};

use super::engine::{self, Engine};
use super::faults::Fault;
use super::journal::Entry;
use super::namespace::{Entity, Node, Place, QueueSettings, path_of};
use super::session::{Link, LinkEnd};
use super::store::{Counts, MessageState};
use super::{Access, Settings, wire};

/// A broker that runs until it is dropped.
pub struct Broker {
    address: SocketAddr,
    access: Access,
    tls: bool,
    engine: Sender<engine::Message>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A message in a queue.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Number, which dead letters keep.
    pub sequence: u64,
    /// The message as sent; dead letters have their reason in the application properties.
    pub message: Message,
    /// Number of failed deliveries.
    pub failed: u32,
    /// State in the queue.
    pub state: MessageState,
}

impl Waiting {
    /// Returns a dead letter's reason and description.
    #[must_use]
    pub fn dead_letter(&self) -> (Option<String>, Option<String>) {
        let marks = self.message.application_properties();
        let text = |key: &str| marks.get(key).and_then(Value::text).map(str::to_owned);
        (text("DeadLetterReason"), text("DeadLetterErrorDescription"))
    }
}

/// View of one consistent moment.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a Engine);

impl View<'_> {
    /// Returns all events.
    #[must_use]
    pub fn journal(&self) -> &[Entry] {
        &self.0.journal
    }

    /// Counts connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.0.connections.len()
    }

    /// Returns the messages at an address; none if it does not exist.
    #[must_use]
    pub fn messages(&self, address: &str) -> Vec<Waiting> {
        let place = Place::parse(address);
        let Some(entity) = self.0.namespace.entity(&place) else {
            return Vec::new();
        };
        let all = entity.shelf(place.dead).iter();
        all.map(|(sequence, stored)| Waiting {
            sequence,
            message: stored.message.clone(),
            failed: stored.failed,
            state: stored.state,
        })
        .collect()
    }

    /// Returns the credit of all receivers.
    #[must_use]
    pub fn credit(&self, address: &str) -> u32 {
        let node = Node::Entity(Place::parse(address));
        let connections = self.0.connections.values();
        let sessions = connections.flat_map(|connection| connection.sessions.values());
        let links = sessions.flat_map(|session| session.links.values());
        let credit = links.map(|link| match &link.end {
            LinkEnd::Out(out) if link.node == node => out.credit,
            LinkEnd::Out(_) | LinkEnd::In(_) => 0,
        });
        credit.sum()
    }

    /// Whether this session is locked.
    #[must_use]
    pub fn is_held(&self, address: &str, session: &str) -> bool {
        let place = Place::parse(address);
        let entity = self.0.namespace.entity(&place);
        let session = entity.and_then(|entity| entity.sessions.get(session));
        session.is_some_and(|session| session.holder.is_some())
    }

    /// Returns a session's state.
    #[must_use]
    pub fn session_state(&self, address: &str, session: &str) -> Option<Vec<u8>> {
        let entity = self.0.namespace.entity(&Place::parse(address))?;
        entity.sessions.get(session)?.state.clone()
    }

    /// Counts messages by state.
    #[must_use]
    pub fn counts(&self, address: &str) -> Counts {
        let place = Place::parse(address);
        let entity = self.0.namespace.entity(&place);
        entity.map_or_else(Counts::default, |entity| entity.shelf(place.dead).counts())
    }
}

impl Broker {
    /// Starts a broker on loopback.
    ///
    /// # Errors
    /// If the port is not available.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.port))?;
        let address = listener.local_addr()?;
        #[cfg(feature = "tls")]
        let tls = settings.tls.clone();
        #[cfg(feature = "tls")]
        let (split, has_tls) = match tls {
            Some(tls) => (tls.split(), true),
            None => (wire::plain(), false),
        };
        #[cfg(not(feature = "tls"))]
        let (split, has_tls) = (wire::plain(), false);
        let (engine, messages) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let max_frame = settings.max_frame_size;
        let access = settings.access.clone();
        let (accept_stop, accept_engine) = (stop.clone(), engine.clone());
        let threads = vec![
            thread::Builder::new()
                .name("broker-engine".into())
                .spawn(move || Engine::new(settings).run(&messages))?,
            thread::Builder::new()
                .name("broker-accept".into())
                .spawn(move || {
                    wire::accept(&listener, &accept_stop, &split, max_frame, &accept_engine);
                })?,
        ];
        Ok(Self {
            address,
            access,
            tls: has_tls,
            engine,
            stop,
            threads,
        })
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a connection string; plain TCP is marked as for Microsoft's emulator.
    #[must_use]
    pub fn connection_string(&self) -> String {
        let (host, emulator) = if self.tls {
            ("localhost", "")
        } else {
            ("127.0.0.1", ";UseDevelopmentEmulator=true")
        };
        format!(
            "Endpoint=sb://{host}:{}/;SharedAccessKeyName={};SharedAccessKey={}{emulator}",
            self.address.port(),
            self.access.key_name,
            self.access.key
        )
    }

    /// Runs a closure in the engine.
    fn ask<T: Send + 'static>(&self, wish: impl FnOnce(&mut Engine) -> T + Send + 'static) -> T {
        let (answer, answered) = channel();
        let wish = move |engine: &mut Engine| {
            // The caller waits below.
            let _received = answer.send(wish(engine));
        };
        let told = self.engine.send(engine::Message::Control(Box::new(wish)));
        told.ok()
            .and_then(|()| answered.recv().ok())
            .expect("the engine of the stand-in broker runs as long as its handle lives")
    }

    /// Looks at one moment.
    pub fn look<T: Send + 'static>(&self, look: impl FnOnce(View<'_>) -> T + Send + 'static) -> T {
        self.ask(move |engine| look(View(engine)))
    }

    /// Looks at every moment until `look` finds something; `None` if that takes too long.
    pub fn wait<T: Send + 'static>(
        &self,
        limit: Duration,
        mut look: impl FnMut(View<'_>) -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let (seen, sight) = channel();
        let waiting = Arc::new(());
        let still = Arc::downgrade(&waiting);
        self.ask(move |engine| {
            engine.watch(Box::new(move |engine| {
                if still.strong_count() == 0 {
                    return true;
                }
                let found = look(View(engine));
                let done = found.is_some();
                if let Some(found) = found {
                    // The caller may have given up.
                    let _received = seen.send(found);
                }
                done
            }));
        });
        let found = sight.recv_timeout(limit).ok();
        drop(waiting);
        found
    }

    /// Makes a queue, or `TOPIC/Subscriptions/NAME` with its topic. An existing one gets the
    /// settings and keeps its messages.
    pub fn create(&self, address: &str, settings: QueueSettings) {
        let name = path_of(address);
        self.ask(move |engine| {
            let entities = &mut engine.namespace.entities;
            if let Some((topic, _)) = name.split_once("/subscriptions/") {
                let topic = entities
                    .entry(topic.to_owned())
                    .or_insert_with(|| Entity::new(QueueSettings::default(), true));
                let all = topic.subscriptions.get_or_insert_default();
                if !all.contains(&name) {
                    all.push(name.clone());
                }
            }
            entities
                .entry(name)
                .and_modify(|entity| entity.settings = settings.clone())
                .or_insert_with(|| Entity::new(settings, false));
        });
    }

    /// Disables a queue and detaches its links, or enables it.
    pub fn disable(&self, address: &str, disabled: bool) {
        let name = path_of(address);
        self.ask(move |engine| {
            if let Some(entity) = engine.namespace.entities.get_mut(&name) {
                entity.settings.disabled = disabled;
            }
        });
        if disabled {
            let text = "Messaging entity is currently disabled.";
            self.detach(address, "com.microsoft:entity-disabled", text);
        }
    }

    /// Deletes a queue, and detaches its links.
    pub fn delete(&self, address: &str) {
        let name = path_of(address);
        self.ask(move |engine| engine.namespace.entities.remove(&name));
        self.detach(
            address,
            "amqp:not-found",
            "The messaging entity was deleted.",
        );
    }

    /// Puts a message into a queue or a topic.
    pub fn put(&self, address: &str, message: Message) {
        let name = path_of(address);
        self.ask(move |engine| {
            for event in engine.namespace.enqueue(&name, &message) {
                engine.log(event);
            }
        });
    }

    /// Forgets all events, for long runs that measure memory.
    pub fn forget(&self) {
        self.ask(|engine| engine.journal = Vec::new());
    }

    /// Adds a fault.
    pub fn fault(&self, fault: Fault) {
        self.ask(move |engine| engine.faults.add(fault));
    }

    /// Removes all pending faults.
    pub fn clear_faults(&self) {
        self.ask(|engine| engine.faults.clear());
    }

    /// Sets the broker's wall clock ahead, in every locked-until from now on. The length of the
    /// locks does not change.
    pub fn skew(&self, millis: i64) {
        self.ask(move |engine| engine.skew = millis);
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.ask(|engine| {
            let ids: Vec<u64> = engine.connections.keys().copied().collect();
            ids.into_iter().for_each(|id| engine.cut(id));
        });
    }

    /// Sets whether new connections are closed at once.
    pub fn refuse_connections(&self, refuse: bool) {
        self.ask(move |engine| engine.refusing = refuse);
    }

    /// Freezes all connections, present and new, while time passes: as if the broker were stopped,
    /// or the network dropped everything.
    pub fn freeze(&self) {
        self.ask(|engine| {
            engine.freezing = true;
            let ids: Vec<u64> = engine.connections.keys().copied().collect();
            ids.into_iter().for_each(|id| engine.freeze(id));
        });
    }

    /// Continues all connections with what they held back.
    pub fn thaw(&self) {
        self.ask(|engine| {
            engine.freezing = false;
            let ids: Vec<u64> = engine.connections.keys().copied().collect();
            ids.into_iter().for_each(|id| engine.thaw(id));
        });
    }

    /// Detaches a queue's links (and its `$management`'s) by force.
    pub fn detach(&self, address: &str, condition: &str, text: &str) {
        let place = Place::parse(address);
        let error = AmqpError::new(condition, text);
        self.ask(move |engine| {
            engine.detach_where(|_, _, link| link.node.place() == Some(&place), &error);
        });
    }

    /// Ends all locks of a queue as expired; returns how many.
    pub fn lose_locks(&self, address: &str) -> usize {
        let place = Place::parse(address);
        self.ask(move |engine| {
            let Some(entity) = engine.namespace.entity(&place) else {
                return 0;
            };
            let all = entity.shelf(place.dead).iter();
            let tokens: Vec<_> = all
                .filter_map(|(_, stored)| match stored.state {
                    MessageState::Locked { token, .. } => Some(token),
                    MessageState::Ready | MessageState::Deferred => None,
                })
                .collect();
            for token in &tokens {
                for event in engine.namespace.lose(&place, *token) {
                    engine.log(event);
                }
            }
            tokens.len()
        })
    }
}

impl Broker {
    /// Ends all session locks of a queue as expired; returns how many.
    pub fn lose_sessions(&self, address: &str) -> usize {
        let place = Place::parse(address);
        self.ask(move |engine| {
            let held = engine.held_sessions(&place);
            for session in &held {
                engine.lose_session(&place, session);
            }
            held.len()
        })
    }

    /// Detaches by force all links with a session; returns how many.
    pub fn detach_sessions(&self, address: &str) -> usize {
        let place = Place::parse(address);
        let error = AmqpError::new("amqp:link:detach-forced", "The link is force detached.");
        self.ask(move |engine| {
            let held = engine.held_sessions(&place);
            let has_session = |_: &Engine, _, link: &Link| {
                matches!(&link.end, LinkEnd::Out(out) if out.of_session.is_some())
                    && link.node.place() == Some(&place)
            };
            engine.detach_where(has_session, &error);
            held.len()
        })
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // The engine may have panicked, which is reported below.
        let _gone = self.engine.send(engine::Message::Stop);
        // Wakes the accepting thread. A failure means that it is awake.
        let _awake = TcpStream::connect(self.address);
        for thread in self.threads.drain(..) {
            let panicked = thread.join().is_err();
            if panicked && !thread::panicking() {
                panic!("a thread of the stand-in broker panicked: see above");
            }
        }
    }
}
