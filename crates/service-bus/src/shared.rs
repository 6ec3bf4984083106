//! What the connection task shares with those who call the queue: the connection that there is at the
//! moment ([`SharedConnection`]), and the messages that came by it ([`Prefetch`]).

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

// Credit can lie for hours on an idle queue, and the lock counts from its giving: what may be older
// than this, or than an eighth of its time, is renewed before it is handed out.
const OLD: Duration = Duration::from_secs(1);

/// What the connection task and all locks of a queue share: the connection that there is at the moment,
/// and what is known of locks.
pub(super) struct SharedConnection {
    state: watch::Sender<ConnectionStatus>,
    /// Somebody waits for a connection.
    pub(super) hurry: Notify,
    pub(super) lock_duration: LockDuration,
    /// Settle on the link wherever that can be, instead of through `$management`.
    pub(super) link_settle: bool,
}

#[derive(Clone, Default)]
struct ConnectionStatus {
    connection: Option<Arc<Connection>>,
    /// Why there is no connection.
    error: Option<BusError>,
    /// How many attempts have failed.
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

    /// There is a connection.
    pub(super) fn up(&self, connection: Arc<Connection>) {
        self.state.send_modify(|state| {
            state.connection = Some(connection);
            state.error = None;
        });
    }

    /// There is none any more.
    pub(super) fn down(&self, why: BusError) {
        self.state.send_modify(|state| {
            state.connection = None;
            state.error = Some(why);
        });
    }

    /// An attempt to connect has failed.
    pub(super) fn failed(&self, why: BusError) {
        self.state.send_modify(|state| {
            state.error = Some(why);
            // Counted, not flagged: whoever waits wants to hear of those that fail from now on.
            state.failures += 1;
        });
    }

    /// How many attempts have failed.
    pub(super) fn failures(&self) -> u64 {
        self.state.borrow().failures
    }

    /// Why there is no connection, if there is none.
    pub(super) fn error(&self) -> Option<BusError> {
        let state = self.state.borrow();
        let none = || BusError::Unsent("there is no connection yet".into());
        let error = || state.error.clone().unwrap_or_else(none);
        state.connection.is_none().then(error)
    }

    /// The connection, once there is one, and once there is another than the one that has ended.
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
            // The task may be resting after a failure; a lock cannot wait for the end of that.
            self.hurry.notify_one();
        }
        // Until another one is there: the one that ended is known as the connection for a moment
        // longer.
        let up = state.wait_for(|state| good(state).is_some());
        let up = before(give_up_at, up).await;
        let connection = up.and_then(|state| good(&*state.ok()?));
        connection.ok_or_else(|| {
            self.error()
                .unwrap_or_else(|| BusError::Unsent("too late".into()))
        })
    }

    /// Ends when an attempt fails after the first `failures`: why.
    pub(super) async fn failing(&self, failures: u64) -> BusError {
        let mut state = self.state.subscribe();
        let failed = state.wait_for(|state| state.failures > failures).await;
        let error = failed.ok().and_then(|state| state.error.clone());
        error.unwrap_or_else(|| BusError::Unsent("there is no connection".into()))
    }
}

/// A message that came.
pub(super) struct Taken {
    /// As it is handed out.
    pub(super) message: Message,
    /// The same lock that the message has.
    pub(super) held: Arc<Held>,
    /// Its lock was renewed since it came.
    pub(super) renewed: bool,
}

impl Taken {
    fn is_old(&self, now: Instant) -> bool {
        let Message { t0, lock_time, .. } = self.message;
        let age = now.since(t0);
        if self.renewed {
            // Once more would not make it younger on a slow line: a quarter is good enough then.
            age > lock_time / 4
        } else {
            age > OLD.min(lock_time / 8)
        }
    }
}

/// The messages between the link and the driver: how many may come, and those that have come and were
/// not handed out yet. Pure, but for waking who waits.
///
/// Filled by the connection task, and emptied by `take`, which can be dropped at any moment. What holds
/// at any time: credit that is out, messages that are here and messages whose lock is being renewed are
/// together never more than the driver wants.
///
/// # When a lock began
/// A message is locked when the service sends it, which is somewhere between our giving the credit and
/// our reading the message. Only the first of these moments is safe to count from. Messages use credit
/// in its order, so each is counted from the moment before *its* credit was given. On a busy queue that
/// is milliseconds ago. Where it is longer ago than a small share of the lock (an idle queue, a pause of
/// ours), the lock is renewed once before the message is handed out, and counts from the moment before
/// that request.
#[derive(Default)]
pub(super) struct Prefetch {
    state: Mutex<State>,
    /// There may be something to hand out.
    pub(super) filled: Notify,
    /// There may be something to do for the connection task.
    pub(super) changed: Notify,
    /// Nobody may be seeing to any message any more.
    quiet: Notify,
}

#[derive(Default)]
struct State {
    wanted: usize,
    /// The moments before each credit was given that is still out, the oldest first.
    credit: VecDeque<Instant>,
    ready: VecDeque<Taken>,
    /// To be renewed.
    old: Vec<Taken>,
    /// How many are being renewed, or given back.
    busy: usize,
    closed: bool,
}

impl State {
    fn here(&self) -> usize {
        self.ready.len() + self.old.len() + self.busy
    }
}

impl Prefetch {
    /// The driver wants at most so many.
    pub(super) fn want(&self, most: usize) {
        let mut state = lock(&self.state);
        if state.wanted != most && !state.closed {
            state.wanted = most;
            self.changed.notify_one();
        }
    }

    /// Hands out what is here and locked for long enough.
    pub(super) fn hand_out(&self, now: Instant) -> Vec<Message> {
        let mut state = lock(&self.state);
        let mut out = Vec::new();
        while out.len() < state.wanted
            && let Some(taken) = state.ready.pop_front()
        {
            if taken.is_old(now) {
                // It has become old while it lay here: a slot was free, and nobody asked.
                state.old.push(taken);
                self.changed.notify_one();
            } else {
                out.push(taken.message);
            }
        }
        // Those slots are no longer free. Left as it was, it would have as many more sent, to lie here
        // while their locks run out.
        state.wanted -= out.len();
        out
    }

    /// How much credit is to be given, and how much will be out then.
    pub(super) fn missing(&self) -> Option<(u32, u32)> {
        let state = lock(&self.state);
        if state.closed {
            return None;
        }
        let out = state.credit.len();
        let missing = state.wanted.saturating_sub(state.here() + out);
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        // The library is told how much is out in all: less than it was told before is an error to
        // it.
        (missing > 0).then(|| (small(missing), small(out + missing)))
    }

    /// So much credit was given, after this moment.
    pub(super) fn gave(&self, count: u32, at: Instant) {
        let mut state = lock(&self.state);
        state.credit.extend((0..count).map(|_| at));
    }

    /// How many messages may still come.
    pub(super) fn credit(&self) -> usize {
        lock(&self.state).credit.len()
    }

    /// A message came: the moment before its credit was given. None if there was no credit for it.
    pub(super) fn came(&self) -> Option<Instant> {
        lock(&self.state).credit.pop_front()
    }

    /// The credit was that of a connection which is no more.
    pub(super) fn forget_credit(&self) {
        lock(&self.state).credit.clear();
    }

    /// Puts a message here that came. It comes back if it is not wanted any more.
    #[must_use]
    pub(super) fn put(&self, taken: Taken, now: Instant) -> Option<Taken> {
        let mut state = lock(&self.state);
        // A smaller `take` may have replaced the one that it was let come for.
        if state.closed || state.here() >= state.wanted {
            return Some(taken);
        }
        self.lay_down(&mut state, taken, now);
        None
    }

    fn lay_down(&self, state: &mut State, taken: Taken, now: Instant) {
        if taken.is_old(now) {
            state.old.push(taken);
            self.changed.notify_one();
        } else {
            state.ready.push_back(taken);
            self.filled.notify_one();
        }
    }

    /// Those that are to be renewed; each counts as here.
    pub(super) fn old(&self) -> Vec<Taken> {
        let mut state = lock(&self.state);
        let old = std::mem::take(&mut state.old);
        // Under the same lock: between the two it would be nowhere, and credit would be given for
        // it.
        state.busy += old.len();
        old
    }

    /// One of those was renewed. It comes back if it is not wanted any more, and counts as here until
    /// [`Prefetch::done`].
    #[must_use]
    pub(super) fn renewed(&self, taken: Taken, now: Instant) -> Option<Taken> {
        let mut state = lock(&self.state);
        // It is among those that are here.
        if state.closed || state.here() > state.wanted {
            return Some(taken);
        }
        state.busy -= 1;
        self.lay_down(&mut state, taken, now);
        None
    }

    /// One more message is seen to by somebody else, until [`Prefetch::done`].
    pub(super) fn begin(&self) {
        lock(&self.state).busy += 1;
    }

    /// A message that somebody saw to is gone.
    pub(super) fn done(&self) {
        lock(&self.state).busy -= 1;
        self.changed.notify_one();
        self.quiet.notify_waiters();
    }

    /// Those that are here and not wanted any more.
    pub(super) fn surplus(&self) -> Vec<Taken> {
        let mut state = lock(&self.state);
        let mut surplus = Vec::new();
        // From the end: those in front came first, and are handed out next.
        while state.here() > state.wanted
            && let Some(taken) = state.ready.pop_back()
        {
            surplus.push(taken);
        }
        surplus
    }

    /// Nothing is wanted any more: what is here.
    pub(super) fn close(&self) -> Vec<Taken> {
        let mut state = lock(&self.state);
        state.closed = true;
        state.wanted = 0;
        let mut here: Vec<Taken> = state.ready.drain(..).collect();
        // What is old goes as well: from now on nobody renews it.
        here.append(&mut state.old);
        here
    }

    /// Waits until nobody sees to any message any more.
    pub(super) async fn settled(&self) {
        loop {
            let mut quiet = pin!(self.quiet.notified());
            // Before the look: what ends between the two must not be missed.
            quiet.as_mut().enable();
            if lock(&self.state).busy == 0 {
                return;
            }
            quiet.await;
        }
    }
}
