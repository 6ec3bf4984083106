//! The stream under AMQP, and what is known of the connection on it: TCP without delay, TLS from the
//! first byte, and an observer between the socket and the library ([`super::frame_scanner`]).
//!
//! Made by [`super::amqp`] for each connection. What is wrong with whom we speak to is said in words
//! that help, because it is what a new user meets first. Must never go on without TLS where TLS was
//! meant, and never change, hold up or swallow a byte, but for those of a frame that cannot be, where
//! the stream has ended, with an error, and those that come when the connection has ended.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Error as TlsError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsConnector;

use super::error::BusError;
use super::frame_scanner::{DeliveryState, FrameEvent, FrameScanner, LinkState};
use super::request_link::{Expected, Waiting};
use trafficcop_azure::{self, addresses, tls_refusal};
use trafficcop_core::clock::Instant;
use trafficcop_core::util::lock;

// A connection on which nothing at all was received for so long, while an answer was waited for, is
// taken for dead: a lock cannot wait for heartbeats to be missed.
const SILENCE: Duration = Duration::from_secs(1);

/// What the names of links have in them that are attached for a session.
pub(super) const OF_SESSION: &str = ":session-";

/// A stream of bytes, whatever is under it.
pub(super) trait Stream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Stream for T {}

/// Connects, with TLS if there is a configuration for it.
pub(super) async fn connect(
    host: &str,
    port: u16,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<Box<dyn Stream>, BusError> {
    let unsent = |why: io::Error| BusError::Unsent(format!("{host}:{port}: {why}"));
    // A URL has an IPv6 address in brackets; neither resolver nor certificate knows them.
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    // Not tokio's own look-up: it panics where the machine has no thread to spare, and the command
    // of a lock that lasts would end with us.
    let addresses = addresses(bare, port).await.map_err(unsent)?;
    let stream = trafficcop_azure::connect(&addresses).await;
    let stream =
        stream.map_err(|why| BusError::Unsent(format!("{host}:{port}: cannot connect: {why}")))?;
    // Requests are short and waited for: each would be held back for the answer to the one before.
    stream.set_nodelay(true).map_err(unsent)?;
    let Some(tls) = tls else {
        return Ok(Box::new(stream));
    };
    let name = ServerName::try_from(bare.to_owned()).map_err(|_| {
        BusError::Unusable(format!("'{host}' is no name that a certificate can have"))
    })?;
    let connector = TlsConnector::from(Arc::clone(tls));
    match connector.connect(name, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(why) => Err(explain(host, port, &why)),
    }
}

/// Why there is no TLS.
fn explain(host: &str, port: u16, why: &io::Error) -> BusError {
    let inner = why.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(error): Option<&TlsError> = inner else {
        return BusError::Unsent(format!("{host}:{port}: TLS: {why}"));
    };
    BusError::Unusable(match error {
        TlsError::InvalidMessage(_) => format!(
            "{host}:{port} does not speak TLS, so it is not a Service Bus (its port is 5671): check the endpoint, or set UseDevelopmentEmulator=true for the emulator"
        ),
        _ => tls_refusal(&format!("{host}:{port}"), error),
    })
}

/// What the other side is, by the first bytes that it said instead of AMQP's.
pub(super) fn stranger(host: &str, port: u16, said: &[u8]) -> BusError {
    let what = if said.starts_with(b"HTTP") {
        "it speaks HTTP"
    } else if said.first() == Some(&0x15) || said.first() == Some(&0x16) {
        "it speaks TLS, and the connection was without"
    } else {
        "it speaks something else"
    };
    BusError::Unusable(format!(
        "{host}:{port} is not an AMQP server: {what}: check the endpoint and its port"
    ))
}

/// What is known of one connection by everybody who uses it: what was seen on it, and that it has
/// ended, and why.
pub(super) struct ConnectionState {
    /// When anything was received last, which tells a lost answer from a dead connection.
    received: AtomicU64,
    receiving: Mutex<Receiving>,
    /// The channels of the links that have sessions, by their names: each has one of its own.
    channels: Mutex<HashMap<String, u16>>,
    changed: Notify,
    settled: Waiting<DeliveryState>,
    /// When the first request was sent after which nothing was received; 0: something was.
    silent: AtomicU64,
    /// How many sessions are held by links of it.
    sessions: AtomicUsize,
    closed: watch::Sender<Option<BusError>>,
}

/// The link that messages come by.
#[derive(Default)]
struct Receiving {
    name: String,
    link: Option<LinkState>,
    delivered: u64,
    /// How many had been delivered when its credit was used up.
    drained: Option<u64>,
}

impl ConnectionState {
    /// Nothing yet; messages will come by the link of this name.
    pub(super) fn new(name: String) -> ConnectionState {
        ConnectionState {
            received: AtomicU64::new(Instant::now().as_nanos()),
            receiving: Mutex::new(Receiving {
                name,
                ..Receiving::default()
            }),
            channels: Mutex::default(),
            changed: Notify::new(),
            settled: Waiting::new(),
            silent: AtomicU64::new(0),
            sessions: AtomicUsize::new(0),
            closed: watch::Sender::new(None),
        }
    }

    /// Waits until the link has used up its credit: how many messages it delivered in all.
    pub(super) async fn drained(&self) -> u64 {
        loop {
            let changed = self.changed.notified();
            if let Some(delivered) = lock(&self.receiving).drained {
                return delivered;
            }
            changed.await;
        }
    }

    /// A place for what the service says to the disposition of this delivery.
    pub(super) fn expect(&self, delivery: u32) -> Expected<'_, DeliveryState> {
        let channel = lock(&self.receiving).link.map(|link| link.channel);
        self.settled
            .expect(numbered(channel.unwrap_or_default(), delivery))
    }

    /// The same for a delivery on a link that has a session.
    pub(super) fn expect_on(&self, link: &str, delivery: u32) -> Expected<'_, DeliveryState> {
        let channel = lock(&self.channels).get(link).copied();
        self.settled
            .expect(numbered(channel.unwrap_or_default(), delivery))
    }

    fn saw(&self, event: FrameEvent) {
        let mut receiving = lock(&self.receiving);
        match event {
            FrameEvent::Attach { link, name } if name == receiving.name => {
                // Of the five links that are attached here, the one that messages come by: the
                // others' are no messages.
                receiving.link = Some(link);
            }
            FrameEvent::Attach { link, name } if name.contains(OF_SESSION) => {
                lock(&self.channels).insert(name, link.channel);
            }
            FrameEvent::Delivered(link) if receiving.link == Some(link) => receiving.delivered += 1,
            FrameEvent::Drained(link) if receiving.link == Some(link) => {
                // The library is behind: it may still have to hand out some of those that were
                // counted here.
                receiving.drained = Some(receiving.delivered);
                self.changed.notify_waiters();
            }
            FrameEvent::Attach { .. } | FrameEvent::Delivered(_) | FrameEvent::Drained(_) => {}
            FrameEvent::Settled {
                channel,
                first,
                last,
                said,
            } => {
                // A range that long is none of ours.
                for delivery in (first..=last).take(10_000) {
                    self.settled
                        .answered(&numbered(channel, delivery), said.clone());
                }
            }
        }
    }

    /// It has ended: what is read of its stream is the stream's end. The first reason counts: the later ones
    /// are what comes of it.
    pub(super) fn close(&self, why: BusError) {
        self.closed.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(why);
            first
        });
    }

    /// Whether it has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.borrow().is_some()
    }

    /// Waits until it has ended: why.
    pub(super) async fn closed(&self) -> BusError {
        let mut closed = self.closed.subscribe();
        let why = closed.wait_for(Option::is_some).await;
        let why = why.ok().and_then(|why| why.clone());
        why.unwrap_or_else(|| BusError::Unsent("there is no connection".into()))
    }

    /// A link of it has a session: until [`ConnectionState::gives_up_session`].
    pub(super) fn holds_session(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// The link of this name has it no more.
    pub(super) fn gives_up_session(&self, link: &str) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
        self.forget_link(link);
    }

    /// The link of this name was to have a session, and does not live.
    pub(super) fn forget_link(&self, link: &str) {
        lock(&self.channels).remove(link);
    }

    /// How many links are known to have a session, or are about to.
    #[cfg(test)]
    pub(super) fn links(&self) -> usize {
        lock(&self.channels).len()
    }

    /// A request that was sent at `sent` has not been answered in its time. If nothing else was received
    /// since for long enough either, the connection is given up; not while a session depends on it: that
    /// would be lost with it for certain, and its own deadlines see to a connection that is dead.
    pub(super) fn suspect(&self, sent: Instant) {
        if self.sessions.load(Ordering::Relaxed) > 0 {
            return;
        }
        let received = self.received.load(Ordering::Relaxed);
        let since = self.silent.load(Ordering::Relaxed);
        // Several unanswered requests in a row are one silence, which began with the first.
        let first = if since > received {
            since
        } else {
            sent.as_nanos()
        };
        if first <= received {
            return self.silent.store(0, Ordering::Relaxed);
        }
        self.silent.store(first, Ordering::Relaxed);
        let silence = Instant::now().since(Instant::from_nanos(first));
        if silence >= SILENCE {
            let silence = silence.as_secs_f32();
            self.close(BusError::Unanswered(format!(
                "nothing was heard for {silence:.1} s: the connection is given up"
            )));
        }
    }
}

/// What the one who has a connection, or is about to, knows of it: dropped, whatever for, it has ended, and its
/// stream as well ([`ConnectionState::close`]).
pub(super) struct OwnState(pub(super) Arc<ConnectionState>);

impl Deref for OwnState {
    type Target = Arc<ConnectionState>;

    fn deref(&self) -> &Arc<ConnectionState> {
        &self.0
    }
}

impl Drop for OwnState {
    fn drop(&mut self) {
        self.0
            .close(BusError::Unsent("the connection is closed".into()));
    }
}

/// A delivery among those of the whole connection.
fn numbered(channel: u16, delivery: u32) -> String {
    format!("{channel}:{delivery}")
}

/// The stream, read along.
pub(super) fn observed(stream: Box<dyn Stream>, state: Arc<ConnectionState>) -> impl Stream {
    // Only what comes in is read along: what goes out is ours, and the library knows it.
    let (stream, write) = tokio::io::split(stream);
    let observer = FrameObserver {
        stream,
        scanner: FrameScanner::default(),
        malformed: false,
        state,
    };
    tokio::io::join(observer, write)
}

/// The half of a stream that is read from, read along.
struct FrameObserver {
    stream: ReadHalf<Box<dyn Stream>>,
    scanner: FrameScanner,
    /// A frame came that cannot be.
    malformed: bool,
    state: Arc<ConnectionState>,
}

fn malformed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the service sent a frame that is shorter than its own header",
    )
}

impl fmt::Debug for FrameObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameObserver").finish_non_exhaustive()
    }
}

impl AsyncRead for FrameObserver {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // To the library, too. It would wait for the other side's farewell for up to a minute, and while it
        // waits look without a pause for what it has itself seen to be over: a processor, for nothing.
        if this.state.is_closed() {
            return Poll::Ready(Ok(()));
        }
        // For good: behind such a frame nobody can say where the next one begins.
        if this.malformed {
            return Poll::Ready(Err(malformed()));
        }
        let before = into.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, into);
        let read = into.filled().get(before..).unwrap_or_default();
        if !read.is_empty() {
            let now = Instant::now().as_nanos();
            this.state.received.store(now, Ordering::Relaxed);
            let state = &this.state;
            let fed = this.scanner.feed(read, |event| state.saw(event));
            if let Err(sound) = fed {
                this.malformed = true;
                // What came before is passed on; of the rest the library would panic.
                into.set_filled(before + sound);
                if sound == 0 {
                    return Poll::Ready(Err(malformed()));
                }
            }
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn the_stream_of_a_connection_that_has_ended_is_at_its_end() {
        let (ours, mut service) = tokio::io::duplex(64);
        let state = Arc::new(ConnectionState::new("link".into()));
        let mut stream = observed(Box::new(ours), Arc::clone(&state));
        service.write_all(b"AMQP").await.expect("room");
        let mut read = [0; 4];
        stream.read_exact(&mut read).await.expect("four bytes");
        assert_eq!(&read, b"AMQP");
        // The service says nothing more, and does not hang up.
        state.close(BusError::Unsent("given up".into()));
        assert_eq!(stream.read(&mut read).await.expect("its end"), 0);
        // Farewell can be said, and is heard.
        stream.write_all(b"bye").await.expect("room");
        let mut heard = [0; 3];
        service.read_exact(&mut heard).await.expect("three bytes");
    }
}
