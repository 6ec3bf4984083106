//! One connection: SASL, opening, sessions, closing, freezing.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::codec::frame::{self, AMQP_HEADER, Input, MIN_MAX_FRAME, SASL_HEADER};
use crate::codec::performative::{Begin, Open, Performative};
use crate::codec::state::AmqpError;

use super::access::Granted;
use super::engine::{Answer, Engine, Request};
use super::faults::On;
use super::session::Session;
use super::wire::{self, Line};

/// Mechanisms of the real service. Clients authenticate later, with `$cbs`.
const MECHANISMS: [&str; 4] = ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"];
const CHANNEL_MAX: u16 = 4999;
/// Time to hang up after the close.
const LINGER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Start,
    Sasl,
    SaslDone,
    Header,
    Opening,
    Open,
    Closed,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) line: Line,
    pub(crate) stage: Stage,
    pub(crate) sessions: BTreeMap<u16, Session>,
    pub(crate) granted: Vec<Granted>,
    /// Answers that follow the next one.
    pub(crate) shifted: Vec<Answer>,
    pub(crate) frozen: bool,
    pub(crate) held_in: VecDeque<Input>,
    pub(crate) held_out: Vec<Vec<u8>>,
    /// Last input from the peer.
    pub(crate) heard: Instant,
    /// Largest frame that the peer accepts.
    pub(crate) max_frame: u32,
    heartbeat_every: Option<Duration>,
    next_heartbeat: Instant,
}

impl Connection {
    pub(crate) fn new(line: Line, now: Instant) -> Self {
        Self {
            line,
            stage: Stage::Start,
            sessions: BTreeMap::new(),
            granted: Vec::new(),
            shifted: Vec::new(),
            frozen: false,
            held_in: VecDeque::new(),
            held_out: Vec::new(),
            heard: now,
            max_frame: MIN_MAX_FRAME,
            heartbeat_every: None,
            next_heartbeat: now,
        }
    }

    pub(crate) fn write(&mut self, bytes: Vec<u8>) {
        if self.frozen {
            self.held_out.push(bytes);
        } else {
            self.line.send(bytes);
        }
    }

    pub(crate) fn send(&mut self, channel: u16, performative: &Performative) {
        self.write(frame::encode(false, channel, performative, &[]));
    }

    /// Sends a heartbeat if the peer's idle time-out requires one.
    pub(crate) fn heartbeat(&mut self, now: Instant) {
        let Some(every) = self.heartbeat_every else {
            return;
        };
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + every;
            self.write(frame::heartbeat());
        }
    }

    pub(crate) fn next_deadline(&self, silence: Duration, idle: Duration) -> Option<Instant> {
        if self.frozen || self.stage != Stage::Open {
            return None;
        }
        let links = self.sessions.values().flat_map(|session| &session.links);
        let links = links.map(|(_, link)| link.active + idle);
        let tokens = self.granted.iter().filter_map(|granted| granted.until);
        let heartbeat = self.heartbeat_every.map(|_| self.next_heartbeat);
        links
            .chain(tokens)
            .chain(heartbeat)
            .chain([self.heard + silence])
            .min()
    }

    pub(crate) fn answer(&mut self, answer: Answer) {
        match answer {
            Answer::Frame(channel, performative) => {
                self.send(channel, &performative);
                // A delivery is forgotten with the answer to its disposition, not before: a client
                // that has lost the answer may repeat it.
                if let Performative::Disposition(it) = &performative
                    && !it.receiver
                    && let Some(session) = self.sessions.get_mut(&channel)
                {
                    session.unsettled.remove(&it.first);
                } else if matches!(performative, Performative::Close(_)) {
                    self.stage = Stage::Closed;
                    self.line.finish();
                }
            }
            Answer::Reply {
                channel,
                node,
                to,
                message,
            } => {
                let here = self.sessions.get_mut(&channel);
                if let Some(link) =
                    here.and_then(|session| session.reply_link(&node, to.as_deref()))
                {
                    link.outbox.push_back(message);
                }
            }
        }
    }

    fn opened(&mut self, open: &Open, now: Instant) {
        self.max_frame = open.max_frame_size.unwrap_or(u32::MAX).max(MIN_MAX_FRAME);
        // Half of the peer's limit, so that a delay does no harm.
        self.heartbeat_every = open
            .idle_time_out
            .filter(|millis| *millis > 0)
            .map(|millis| Duration::from_millis(u64::from(millis / 2).max(10)));
        self.next_heartbeat = now + self.heartbeat_every.unwrap_or_default();
        self.stage = Stage::Open;
    }
}

impl Engine {
    pub(crate) fn input(&mut self, id: u64, input: Input) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.frozen {
            connection.held_in.push_back(input);
            return;
        }
        connection.heard = now;
        match (connection.stage, input) {
            (Stage::Start, Input::Header(SASL_HEADER)) => {
                connection.write(SASL_HEADER.to_vec());
                let all = MECHANISMS.map(str::to_owned).to_vec();
                let mechanisms = Performative::SaslMechanisms(all);
                connection.write(frame::encode(true, 0, &mechanisms, &[]));
                connection.stage = Stage::Sasl;
            }
            (Stage::SaslDone, Input::Header(AMQP_HEADER)) => {
                connection.write(AMQP_HEADER.to_vec());
                connection.stage = Stage::Header;
            }
            (Stage::Start, Input::Header(_)) => self.wrong_header(id, SASL_HEADER),
            (Stage::SaslDone, Input::Header(_)) => self.wrong_header(id, AMQP_HEADER),
            (
                stage,
                Input::Frame {
                    sasl,
                    channel,
                    performative,
                    payload,
                },
            ) => match (stage, sasl, *performative) {
                (Stage::Sasl, true, Performative::SaslInit(mechanism, _)) => {
                    self.sasl(id, &mechanism);
                }
                (Stage::Header, false, Performative::Open(open)) => self.open(id, open),
                (Stage::Open, false, Performative::Close(_)) => {
                    connection.send(0, &Performative::Close(None));
                    self.finish(id);
                }
                (Stage::Opening, false, Performative::Close(_)) => self.finish(id),
                // Some clients do not wait for the answer to their open.
                (Stage::Opening, sasl, performative) => {
                    connection.held_in.push_back(Input::Frame {
                        sasl,
                        channel,
                        performative: Box::new(performative),
                        payload,
                    })
                }
                (Stage::Open, false, performative) => {
                    self.frame(id, channel, performative, payload);
                }
                // Sent before the client saw the close.
                (Stage::Closed, _, _) => {}
                (stage, _, performative) => {
                    let text = format!("{performative:?} is not expected now ({stage:?})");
                    self.fail(id, AmqpError::new("amqp:connection:framing-error", text));
                }
            },
            (Stage::Open | Stage::Closed | Stage::Opening, Input::Heartbeat) => {}
            (stage, other) => {
                let text = format!("{} is not expected now ({stage:?})", wire::name(&other));
                self.fail(id, AmqpError::new("amqp:connection:framing-error", text));
            }
        }
    }

    fn wrong_header(&mut self, id: u64, right: [u8; 8]) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.write(right.to_vec());
        }
        self.finish(id);
    }

    fn sasl(&mut self, id: u64, mechanism: &str) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        // PLAIN would need the key here; clients put a token to `$cbs`.
        let good = mechanism != "PLAIN" && MECHANISMS.contains(&mechanism);
        let outcome = Performative::SaslOutcome(u8::from(!good));
        connection.write(frame::encode(true, 0, &outcome, &[]));
        if good {
            connection.stage = Stage::SaslDone;
        } else {
            self.finish(id);
        }
    }

    fn open(&mut self, id: u64, open: Open) {
        let ours = self.our_open();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.stage = Stage::Opening;
        }
        let refusal = ours.clone();
        self.play(Request {
            connection: id,
            on: On::Open,
            address: String::new(),
            link: None,
            work: Box::new(move |engine| {
                let now = engine.now;
                if let Some(connection) = engine.connections.get_mut(&id) {
                    connection.opened(&open, now);
                }
                // Input that came meanwhile follows this answer.
                engine.later(Duration::ZERO, Box::new(move |engine| engine.resume(id)));
                vec![Answer::Frame(0, ours)]
            }),
            refuse: Box::new(move |_, error| {
                vec![
                    Answer::Frame(0, refusal),
                    Answer::Frame(0, Performative::Close(Some(error))),
                ]
            }),
        });
    }

    fn resume(&mut self, id: u64) {
        let connection = self.connections.get_mut(&id);
        if connection.is_some_and(|connection| !connection.frozen) {
            self.thaw(id);
        }
    }

    fn our_open(&self) -> Performative {
        Performative::Open(Open {
            container_id: "stand-in-broker".into(),
            hostname: None,
            max_frame_size: Some(self.settings.max_frame_size),
            channel_max: Some(CHANNEL_MAX),
            idle_time_out: Some(
                self.settings
                    .idle_time_out
                    .as_millis()
                    .try_into()
                    .unwrap_or(u32::MAX),
            ),
        })
    }

    pub(crate) fn fail(&mut self, id: u64, error: AmqpError) {
        let ours = self.our_open();
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        match connection.stage {
            Stage::Closed => return,
            Stage::Header | Stage::Opening => connection.send(0, &ours),
            Stage::Start | Stage::Sasl | Stage::SaslDone | Stage::Open => {}
        }
        // Before the opening no frame can carry an error.
        if !matches!(
            connection.stage,
            Stage::Start | Stage::Sasl | Stage::SaslDone
        ) {
            connection.send(0, &Performative::Close(Some(error)));
        }
        self.finish(id);
    }

    fn finish(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.stage = Stage::Closed;
            connection.line.finish();
        }
        self.later(LINGER, Box::new(move |engine| engine.cut(id)));
    }

    fn frame(&mut self, id: u64, channel: u16, performative: Performative, payload: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let known = connection.sessions.contains_key(&channel);
        match performative {
            Performative::Begin(begin) if !known && channel <= CHANNEL_MAX => {
                let session = Session::new(&begin);
                let ours = Performative::Begin(Begin {
                    remote_channel: Some(channel),
                    ..session.begin()
                });
                connection.sessions.insert(channel, session);
                let begun = ours.clone();
                self.play(Request {
                    connection: id,
                    on: On::Begin,
                    address: String::new(),
                    link: None,
                    work: Box::new(move |_| vec![Answer::Frame(channel, ours)]),
                    refuse: Box::new(move |_, error| {
                        vec![
                            Answer::Frame(channel, begun),
                            Answer::Frame(channel, Performative::End(Some(error))),
                        ]
                    }),
                });
            }
            Performative::End(_) if known => {
                connection.sessions.remove(&channel);
                connection.send(channel, &Performative::End(None));
                self.free_sessions(|it| it.connection == id && it.channel == channel);
            }
            // Sent before the client saw the session's end.
            _ if connection
                .sessions
                .get(&channel)
                .is_some_and(|session| session.ended) => {}
            Performative::Attach(attach) if known => self.attach(id, channel, attach),
            Performative::Flow(flow) if known => self.flow(id, channel, &flow),
            Performative::Transfer(transfer) if known => {
                self.transfer(id, channel, &transfer, &payload);
            }
            Performative::Disposition(disposition) if known => {
                self.disposition(id, channel, &disposition);
            }
            Performative::Detach(detach) if known => self.detached(id, channel, &detach),
            other => {
                let text = format!("{other:?} is not expected on channel {channel}");
                self.fail(id, AmqpError::new("amqp:not-allowed", text));
            }
        }
    }

    pub(crate) fn end(&mut self, id: u64, channel: u16, condition: &str, text: String) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if let Some(session) = connection.sessions.get_mut(&channel) {
            session.end();
            let error = AmqpError::new(condition, text);
            connection.send(channel, &Performative::End(Some(error)));
        }
        self.free_sessions(|it| it.connection == id && it.channel == channel);
    }
}
