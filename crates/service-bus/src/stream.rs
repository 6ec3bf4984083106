//! The stream under AMQP: TCP without delay, TLS from the first byte, and an observer between the socket and
//! the library ([`super::frame_scanner`]).
//!
//! It must never go on without TLS if TLS is configured. It must never change, delay or swallow a byte, except
//! after a malformed frame or the end of the connection.

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

// A connection that received nothing for so long, while a request waited, counts as dead: a lock cannot wait
// for missed heartbeats.
const SILENCE: Duration = Duration::from_secs(1);

/// Part of the names of links that are attached for a session.
pub(super) const OF_SESSION: &str = ":session-";

pub(super) trait Stream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Stream for T {}

pub(super) async fn connect(
    host: &str,
    port: u16,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<Box<dyn Stream>, BusError> {
    let unsent = |why: io::Error| BusError::Unsent(format!("{host}:{port}: {why}"));
    // Neither resolver nor certificate knows the brackets of an IPv6 address.
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    // tokio's own look-up panics without a thread to spare, and every command would end with this process.
    let addresses = addresses(bare, port).await.map_err(unsent)?;
    let stream = trafficcop_azure::connect(&addresses).await;
    let stream =
        stream.map_err(|why| BusError::Unsent(format!("{host}:{port}: cannot connect: {why}")))?;
    // Each short request would be held back for the answer to the one before.
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

fn explain(host: &str, port: u16, why: &io::Error) -> BusError {
    let inner = why.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(error): Option<&TlsError> = inner else {
        return BusError::Unsent(format!("{host}:{port}: TLS: {why}"));
    };
    BusError::Unusable(match error {
        TlsError::InvalidMessage(_) => format!(
            "{host}:{port} does not speak TLS, so it is not a Service Bus (its port is 5671): check the endpoint, or \
             set UseDevelopmentEmulator=true for the emulator"
        ),
        _ => tls_refusal(&format!("{host}:{port}"), error),
    })
}

/// Explains what the other side is, by its first bytes.
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

pub(super) struct ConnectionState {
    /// Time of the last received byte.
    received: AtomicU64,
    receiving: Mutex<Receiving>,
    /// Channels of the links that hold sessions.
    channels: Mutex<HashMap<String, u16>>,
    changed: Notify,
    settled: Waiting<DeliveryState>,
    /// Time of the first request since which nothing was received; 0: something was.
    silent: AtomicU64,
    sessions: AtomicUsize,
    closed: watch::Sender<Option<BusError>>,
}

/// The link that messages come by.
#[derive(Default)]
struct Receiving {
    name: String,
    link: Option<LinkState>,
    delivered: u64,
    /// Messages that had been delivered when its credit was used up.
    drained: Option<u64>,
}

impl ConnectionState {
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

    /// Waits until the link has used up its credit; returns how many messages it delivered in all.
    pub(super) async fn drained(&self) -> u64 {
        loop {
            let changed = self.changed.notified();
            if let Some(delivered) = lock(&self.receiving).drained {
                return delivered;
            }
            changed.await;
        }
    }

    pub(super) fn expect(&self, delivery: u32) -> Expected<'_, DeliveryState> {
        let channel = lock(&self.receiving).link.map(|link| link.channel);
        self.settled
            .expect(numbered(channel.unwrap_or_default(), delivery))
    }

    pub(super) fn expect_on(&self, link: &str, delivery: u32) -> Expected<'_, DeliveryState> {
        let channel = lock(&self.channels).get(link).copied();
        self.settled
            .expect(numbered(channel.unwrap_or_default(), delivery))
    }

    fn saw(&self, event: FrameEvent) {
        let mut receiving = lock(&self.receiving);
        match event {
            FrameEvent::Attach { link, name } if name == receiving.name => {
                receiving.link = Some(link);
            }
            FrameEvent::Attach { link, name } if name.contains(OF_SESSION) => {
                lock(&self.channels).insert(name, link.channel);
            }
            FrameEvent::Delivered(link) if receiving.link == Some(link) => receiving.delivered += 1,
            FrameEvent::Drained(link) if receiving.link == Some(link) => {
                // The library may still have to hand out some of them.
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
                // So long a range cannot belong to dispositions of this process.
                for delivery in (first..=last).take(10_000) {
                    self.settled
                        .answered(&numbered(channel, delivery), said.clone());
                }
            }
        }
    }

    /// Ends the connection and its stream. The first reason counts: later ones follow from it.
    pub(super) fn close(&self, why: BusError) {
        self.closed.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(why);
            first
        });
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.borrow().is_some()
    }

    pub(super) async fn closed(&self) -> BusError {
        let mut closed = self.closed.subscribe();
        let why = closed.wait_for(Option::is_some).await;
        let why = why.ok().and_then(|why| why.clone());
        why.unwrap_or_else(|| BusError::Unsent("there is no connection".into()))
    }

    pub(super) fn holds_session(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn gives_up_session(&self, link: &str) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
        self.forget_link(link);
    }

    pub(super) fn forget_link(&self, link: &str) {
        lock(&self.channels).remove(link);
    }

    #[cfg(test)]
    pub(super) fn links(&self) -> usize {
        lock(&self.channels).len()
    }

    /// Notes that a request sent at `sent` was not answered in time. If nothing else was received for long
    /// enough either, gives the connection up, unless a session depends on it: that would certainly be lost,
    /// and has its own deadlines.
    pub(super) fn suspect(&self, sent: Instant) {
        if self.sessions.load(Ordering::Relaxed) > 0 {
            return;
        }
        let received = self.received.load(Ordering::Relaxed);
        let since = self.silent.load(Ordering::Relaxed);
        // Several unanswered requests in a row are one silence.
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

/// State of a connection's owner: dropping it closes the connection and its stream.
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

fn numbered(channel: u16, delivery: u32) -> String {
    format!("{channel}:{delivery}")
}

pub(super) fn observed(stream: Box<dyn Stream>, state: Arc<ConnectionState>) -> impl Stream {
    // The library knows what goes out.
    let (stream, write) = tokio::io::split(stream);
    let observer = FrameObserver {
        stream,
        scanner: FrameScanner::default(),
        malformed: false,
        state,
    };
    tokio::io::join(observer, write)
}

struct FrameObserver {
    stream: ReadHalf<Box<dyn Stream>>,
    scanner: FrameScanner,
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
        // The library must see that end, too. Otherwise it polls without a pause for up to a minute, for the
        // other side's close.
        if this.state.is_closed() {
            return Poll::Ready(Ok(()));
        }
        // Permanent: the beginning of the next frame is unknown.
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
                // Pass on what came before; the library would panic at the rest.
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
    async fn stream_of_an_ended_connection_is_at_its_end() {
        let (ours, mut service) = tokio::io::duplex(64);
        let state = Arc::new(ConnectionState::new("link".into()));
        let mut stream = observed(Box::new(ours), Arc::clone(&state));
        service.write_all(b"AMQP").await.expect("room");
        let mut read = [0; 4];
        stream.read_exact(&mut read).await.expect("four bytes");
        assert_eq!(&read, b"AMQP");
        state.close(BusError::Unsent("given up".into()));
        assert_eq!(stream.read(&mut read).await.expect("its end"), 0);
        stream.write_all(b"bye").await.expect("room");
        let mut heard = [0; 3];
        service.read_exact(&mut heard).await.expect("three bytes");
    }
}
