//! State that the connection task shares with callers: the present connection, and the messages that came by
//! it.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::amqp::Connection;
use super::error::BusError;
use super::lock::{Held, LockDuration};
use trafficcop_azure::before;
use trafficcop_azure::queue::Message;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::lock;

// Credit can lie for hours on an idle queue. A lock that may be older than this, or than an eighth of its
// length, is renewed before the message is handed out.
const OLD: Duration = Duration::from_secs(1);

pub(super) struct SharedConnection {
    state: watch::Sender<ConnectionStatus>,
    pub(super) hurry: Notify,
    pub(super) lock_duration: LockDuration,
    pub(super) link_settle: bool,
}

#[derive(Clone, Default)]
struct ConnectionStatus {
    connection: Option<Arc<Connection>>,
    error: Option<BusError>,
    failures: u64,
}

impl SharedConnection {
    pub(super) fn new(lock_time: Option<Duration>, link_settle: bool) -> SharedConnection {
        SharedConnection {
            state: watch::Sender::new(ConnectionStatus::default()),
            hurry: Notify::new(),
            lock_duration: LockDuration::new(lock_time),
            link_settle,
        }
    }

    pub(super) fn up(&self, connection: Arc<Connection>) {
        self.state.send_modify(|state| {
            state.connection = Some(connection);
            state.error = None;
        });
    }

    pub(super) fn down(&self, why: BusError) {
        self.state.send_modify(|state| {
            state.connection = None;
            state.error = Some(why);
        });
    }

    pub(super) fn failed(&self, why: BusError) {
        self.state.send_modify(|state| {
            state.error = Some(why);
            // A count, not a flag: each caller waits for later failures only.
            state.failures += 1;
        });
    }

    pub(super) fn failures(&self) -> u64 {
        self.state.borrow().failures
    }

    pub(super) fn error(&self) -> Option<BusError> {
        let state = self.state.borrow();
        let none = || BusError::Unsent("there is no connection yet".into());
        let error = || state.error.clone().unwrap_or_else(none);
        state.connection.is_none().then(error)
    }

    /// Waits for a connection other than the one that has ended.
    pub(super) async fn connection(
        &self,
        ended: Option<&Arc<Connection>>,
        give_up_at: Instant,
    ) -> Result<Arc<Connection>, BusError> {
        let good = |state: &ConnectionStatus| {
            let connection = state.connection.as_ref()?;
            let is_it = ended.is_some_and(|ended| Arc::ptr_eq(ended, connection));
            (!is_it).then(|| Arc::clone(connection))
        };
        let mut state = self.state.subscribe();
        if good(&state.borrow()).is_none() {
            // The task may be resting, and a lock cannot wait.
            self.hurry.notify_one();
        }
        // The connection that ended stays here for a moment longer.
        let up = state.wait_for(|state| good(state).is_some());
        let up = before(give_up_at, up).await;
        let connection = up.and_then(|state| good(&*state.ok()?));
        connection.ok_or_else(|| {
            self.error()
                .unwrap_or_else(|| BusError::Unsent("too late".into()))
        })
    }

    pub(super) async fn failing(&self, failures: u64) -> BusError {
        let mut state = self.state.subscribe();
        let failed = state.wait_for(|state| state.failures > failures).await;
        let error = failed.ok().and_then(|state| state.error.clone());
        error.unwrap_or_else(|| BusError::Unsent("there is no connection".into()))
    }
}

pub(super) struct Taken {
    pub(super) message: Message,
    pub(super) held: Arc<Held>,
    pub(super) renewed: bool,
}

impl Taken {
    fn is_old(&self, now: Instant) -> bool {
        let Message { t0, lock_time, .. } = self.message;
        let age = now.since(t0);
        if self.renewed {
            // Another renewal on a slow line would not make it younger.
            age > lock_time / 4
        } else {
            age > OLD.min(lock_time / 8)
        }
    }
}

/// Messages between the link and the driver: how many may come, and those not handed out yet. Pure, except that
/// it wakes waiting tasks.
///
/// The connection task fills it; `take`, which can be dropped at any moment, empties it. Credit that is out,
/// messages that are here and messages being renewed are together never more than the driver wants.
///
/// # When a lock began
/// The service locks a message somewhere between the giving of credit and the reading of the message. Only the
/// first of these moments is safe to count from. Messages use credit in its order, so each counts from the
/// moment before *its* credit was given. If that is too long ago (an idle queue, a pause of this process), the
/// lock is renewed once before the message is handed out.
#[derive(Default)]
pub(super) struct Prefetch {
    state: Mutex<PrefetchState>,
    /// Signal for a message to hand out.
    pub(super) filled: Notify,
    /// Signal for the connection task.
    pub(super) changed: Notify,
    /// Signal for the end of all work on messages.
    quiet: Notify,
}

#[derive(Default)]
struct PrefetchState {
    wanted: usize,
    /// Moments before each credit that is out was given, the oldest first.
    credit: VecDeque<Instant>,
    ready: VecDeque<Taken>,
    old: Vec<Taken>,
    /// Messages that are being renewed, or given back.
    busy: usize,
    closed: bool,
}

impl PrefetchState {
    fn here(&self) -> usize {
        self.ready.len() + self.old.len() + self.busy
    }
}

impl Prefetch {
    pub(super) fn want(&self, most: usize) {
        let mut state = lock(&self.state);
        if state.wanted != most && !state.closed {
            state.wanted = most;
            self.changed.notify_one();
        }
    }

    pub(super) fn hand_out(&self, now: Instant) -> Vec<Message> {
        let mut state = lock(&self.state);
        let mut out = Vec::new();
        while out.len() < state.wanted
            && let Some(taken) = state.ready.pop_front()
        {
            if taken.is_old(now) {
                state.old.push(taken);
                self.changed.notify_one();
            } else {
                out.push(taken.message);
            }
        }
        // These slots are no longer free. Otherwise more messages would come and lie here while their locks run
        // out.
        state.wanted -= out.len();
        out
    }

    /// Returns how much credit to give, and how much will be out then.
    pub(super) fn missing(&self) -> Option<(u32, u32)> {
        let state = lock(&self.state);
        if state.closed {
            return None;
        }
        let out = state.credit.len();
        let missing = state.wanted.saturating_sub(state.here() + out);
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        (missing > 0).then(|| (small(missing), small(out + missing)))
    }

    pub(super) fn gave(&self, count: u32, at: Instant) {
        let mut state = lock(&self.state);
        state.credit.extend((0..count).map(|_| at));
    }

    pub(super) fn credit(&self) -> usize {
        lock(&self.state).credit.len()
    }

    /// Notes a message; returns the moment before its credit was given, if there was any.
    pub(super) fn came(&self) -> Option<Instant> {
        lock(&self.state).credit.pop_front()
    }

    pub(super) fn forget_credit(&self) {
        lock(&self.state).credit.clear();
    }

    /// Keeps a message, or returns an unwanted one.
    #[must_use]
    pub(super) fn put(&self, taken: Taken, now: Instant) -> Option<Taken> {
        let mut state = lock(&self.state);
        // A smaller `take` may have followed the one that let it come.
        if state.closed || state.here() >= state.wanted {
            return Some(taken);
        }
        self.lay_down(&mut state, taken, now);
        None
    }

    fn lay_down(&self, state: &mut PrefetchState, taken: Taken, now: Instant) {
        if taken.is_old(now) {
            state.old.push(taken);
            self.changed.notify_one();
        } else {
            state.ready.push_back(taken);
            self.filled.notify_one();
        }
    }

    pub(super) fn old(&self) -> Vec<Taken> {
        let mut state = lock(&self.state);
        let old = std::mem::take(&mut state.old);
        // Under the same lock: otherwise credit would be given for them.
        state.busy += old.len();
        old
    }

    /// Keeps a renewed message. Returns an unwanted one, which counts as here until [`Prefetch::done`].
    #[must_use]
    pub(super) fn renewed(&self, taken: Taken, now: Instant) -> Option<Taken> {
        let mut state = lock(&self.state);
        // `>`: it is itself one of those here.
        if state.closed || state.here() > state.wanted {
            return Some(taken);
        }
        state.busy -= 1;
        self.lay_down(&mut state, taken, now);
        None
    }

    pub(super) fn begin(&self) {
        lock(&self.state).busy += 1;
    }

    pub(super) fn done(&self) {
        lock(&self.state).busy -= 1;
        self.changed.notify_one();
        self.quiet.notify_waiters();
    }

    pub(super) fn surplus(&self) -> Vec<Taken> {
        let mut state = lock(&self.state);
        let mut surplus = Vec::new();
        // Those in front came first, and are handed out next.
        while state.here() > state.wanted
            && let Some(taken) = state.ready.pop_back()
        {
            surplus.push(taken);
        }
        surplus
    }

    /// Stops taking messages; returns those that are here.
    pub(super) fn close(&self) -> Vec<Taken> {
        let mut state = lock(&self.state);
        state.closed = true;
        state.wanted = 0;
        let mut here: Vec<Taken> = state.ready.drain(..).collect();
        here.append(&mut state.old);
        here
    }

    pub(super) async fn settled(&self) {
        loop {
            let mut quiet = pin!(self.quiet.notified());
            // Before looking: an end between the two must not be missed.
            quiet.as_mut().enable();
            if lock(&self.state).busy == 0 {
                return;
            }
            quiet.await;
        }
    }
}
