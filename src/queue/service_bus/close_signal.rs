//! The end of one connection: that it has come, why, and when it is time to bring it about.
//!
//! Shared by everything that uses the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::error::BusError;
use super::frame_observer::Seen;
use crate::clock::Instant;

/// A connection on which nothing at all was received for so long, while an answer was waited for, is
/// taken for dead: a lock cannot wait for heartbeats to be missed.
const SILENCE: Duration = Duration::from_secs(1);

/// See the module's text.
pub(super) struct CloseSignal {
    seen: Arc<Seen>,
    /// When the first request was sent after which nothing was received; 0: something was.
    silent: AtomicU64,
    why: watch::Sender<Option<BusError>>,
}

impl CloseSignal {
    pub(super) fn new(seen: Arc<Seen>) -> CloseSignal {
        CloseSignal {
            seen,
            silent: AtomicU64::new(0),
            why: watch::Sender::new(None),
        }
    }

    /// It has come. The first reason counts.
    pub(super) fn now(&self, why: BusError) {
        self.why.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(why);
            first
        });
    }

    /// Waits for it.
    pub(super) async fn wait(&self) -> BusError {
        let mut why = self.why.subscribe();
        match why.wait_for(Option::is_some).await {
            Ok(why) => why.clone(),
            Err(_) => None,
        }
        .unwrap_or_else(|| BusError::Unsent("there is no connection".into()))
    }

    /// A request that was sent at `sent` has not been answered in its time. If nothing else was received
    /// since for long enough either, the connection is given up.
    pub(super) fn suspect(&self, sent: Instant) {
        let received = self.seen.received().as_nanos();
        let since = self.silent.load(Ordering::Relaxed);
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
            self.now(BusError::Unanswered(format!(
                "nothing was heard for {silence:.1} s: the connection is given up"
            )));
        }
    }
}
