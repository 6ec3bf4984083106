//! Reads along on the connection, between the socket and the library: see [`super::frame_scanner`].
//!
//! Made by the engine for each connection. It also knows when anything was received last, which tells a
//! lost answer from a dead line. It must never change, hold up or swallow a byte, but for those of a
//! frame that cannot be: there the stream has ended, with an error.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::correlation::{Expected, Waiting};
use super::frame_scanner::{FrameEvent, FrameScanner, LinkState, Said};
use crate::clock::Instant;
use crate::util::lock;

/// What was seen on one connection.
pub(super) struct Seen {
    received: AtomicU64,
    receiving: Mutex<Receiving>,
    changed: Notify,
    settled: Waiting<Said>,
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

impl Seen {
    /// Nothing yet; messages will come by the link of this name.
    pub(super) fn new(name: String) -> Seen {
        Seen {
            received: AtomicU64::new(Instant::now().as_nanos()),
            receiving: Mutex::new(Receiving {
                name,
                ..Receiving::default()
            }),
            changed: Notify::new(),
            settled: Waiting::new(),
        }
    }

    fn receiving(&self) -> MutexGuard<'_, Receiving> {
        lock(&self.receiving)
    }

    /// When anything was received last.
    pub(super) fn received(&self) -> Instant {
        Instant::from_nanos(self.received.load(Ordering::Relaxed))
    }

    /// Waits until the link has used up its credit: how many messages it delivered in all.
    pub(super) async fn drained(&self) -> u64 {
        loop {
            let changed = self.changed.notified();
            if let Some(delivered) = self.receiving().drained {
                return delivered;
            }
            changed.await;
        }
    }

    /// A place for what the service says to the disposition of this delivery.
    pub(super) fn expect(&self, delivery: u32) -> Expected<'_, Said> {
        self.settled.expect(delivery.to_string())
    }

    fn saw(&self, sight: FrameEvent) {
        let mut receiving = self.receiving();
        match sight {
            FrameEvent::Attach { link, name } if name == receiving.name => {
                receiving.link = Some(link);
            }
            FrameEvent::Delivered(link) if receiving.link == Some(link) => receiving.delivered += 1,
            FrameEvent::Drained(link) if receiving.link == Some(link) => {
                receiving.drained = Some(receiving.delivered);
                self.changed.notify_waiters();
            }
            FrameEvent::Attach { .. } | FrameEvent::Delivered(_) | FrameEvent::Drained(_) => {}
            FrameEvent::Settled { first, last, said } => {
                // A range that long is none of ours.
                for delivery in (first..=last).take(10_000) {
                    self.settled.answered(&delivery.to_string(), said.clone());
                }
            }
        }
    }
}

/// A stream that is read along.
pub(super) struct FrameObserver<S> {
    stream: S,
    scanner: FrameScanner,
    /// A frame came that cannot be.
    malformed: bool,
    seen: Arc<Seen>,
}

impl<S> FrameObserver<S> {
    pub(super) fn new(stream: S, seen: Arc<Seen>) -> FrameObserver<S> {
        FrameObserver {
            stream,
            scanner: FrameScanner::default(),
            malformed: false,
            seen,
        }
    }
}

fn malformed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the service sent a frame that is shorter than its own header",
    )
}

impl<S> std::fmt::Debug for FrameObserver<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameObserver").finish_non_exhaustive()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FrameObserver<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let frame_observer = self.get_mut();
        if frame_observer.malformed {
            return Poll::Ready(Err(malformed()));
        }
        let before = into.filled().len();
        let polled = Pin::new(&mut frame_observer.stream).poll_read(cx, into);
        let read = into.filled().get(before..).unwrap_or_default();
        if !read.is_empty() {
            let now = Instant::now().as_nanos();
            frame_observer.seen.received.store(now, Ordering::Relaxed);
            let seen = &frame_observer.seen;
            let fed = frame_observer.scanner.feed(read, |sight| seen.saw(sight));
            if let Err(sound) = fed {
                frame_observer.malformed = true;
                into.set_filled(before + sound);
                if sound == 0 {
                    return Poll::Ready(Err(malformed()));
                }
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FrameObserver<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
