//! What lies between the link and the driver: how many messages may come, and those that have come
//! and were not handed out yet. Pure, but for waking who waits.
//!
//! Shared by the connection task, which fills it, and by `take`, which empties it and can be dropped at any
//! moment. What holds at any time: credit that is out, messages that are here and messages whose lock
//! is being renewed are together never more than the driver wants.
//!
//! # When a lock began
//! A message is locked when the service sends it, which is somewhere between our giving the credit and
//! our reading the message. Only the first of these moments is safe to count from. Messages use credit
//! in its order, so each is counted from the moment before *its* credit was given. On a busy queue that
//! is milliseconds ago. Where it is longer ago than a small share of the lock (an idle queue, a pause of
//! ours), the lock is renewed once before the message is handed out, and counts from the moment before
//! that request.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::lock::Held;
use crate::clock::Instant;
use crate::queue::{About, Message, Unreadable};
use crate::util::lock;

/// A lock that may be older than this, or than an eighth of it, is renewed before it counts.
const OLD: Duration = Duration::from_secs(1);
/// The first renewal of a lock whose length was told by another machine's clock.
const FIRST_RENEWAL: Duration = Duration::from_secs(20);

/// A message that came.
pub(super) struct Taken {
    pub(super) id: String,
    pub(super) attempt: u32,
    pub(super) body: Result<Vec<u8>, Unreadable>,
    pub(super) about: About,
    pub(super) held: Arc<Held>,
    pub(super) t0: Instant,
    pub(super) lock_time: Duration,
    /// Its lock was renewed since it came.
    pub(super) renewed: bool,
}

impl Taken {
    fn is_old(&self, now: Instant) -> bool {
        let age = now.since(self.t0);
        if self.renewed {
            age > self.lock_time / 4
        } else {
            age > OLD.min(self.lock_time / 8)
        }
    }

    fn message(self) -> Message {
        Message {
            id: self.id,
            attempt: self.attempt,
            t0: self.t0,
            lock_time: self.lock_time,
            first_renewal: Some(FIRST_RENEWAL),
            body: self.body,
            about: self.about,
            lock: self.held,
        }
    }
}

/// See the module's text.
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
    pub(super) fn new() -> Prefetch {
        Prefetch {
            state: Mutex::default(),
            filled: Notify::new(),
            changed: Notify::new(),
            quiet: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The driver wants at most so many.
    pub(super) fn want(&self, most: usize) {
        let mut state = self.state();
        if state.wanted != most && !state.closed {
            state.wanted = most;
            self.changed.notify_one();
        }
    }

    /// Hands out what is here and locked for long enough.
    pub(super) fn hand_out(&self, now: Instant) -> Vec<Message> {
        let mut state = self.state();
        let mut out = Vec::new();
        while out.len() < state.wanted
            && let Some(taken) = state.ready.pop_front()
        {
            if taken.is_old(now) {
                state.old.push(taken);
                self.changed.notify_one();
            } else {
                out.push(taken.message());
            }
        }
        // Those slots are no longer free.
        state.wanted -= out.len();
        out
    }

    /// How much credit is to be given, and how much will be out then.
    pub(super) fn missing(&self) -> Option<(u32, u32)> {
        let state = self.state();
        if state.closed {
            return None;
        }
        let out = state.credit.len();
        let missing = state.wanted.saturating_sub(state.here() + out);
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        (missing > 0).then(|| (small(missing), small(out + missing)))
    }

    /// So much credit was given, after this moment.
    pub(super) fn gave(&self, count: u32, at: Instant) {
        let mut state = self.state();
        state.credit.extend((0..count).map(|_| at));
    }

    /// How many messages may still come.
    pub(super) fn credit(&self) -> usize {
        self.state().credit.len()
    }

    /// A message came: the moment before its credit was given. None if there was no credit for it.
    pub(super) fn came(&self) -> Option<Instant> {
        self.state().credit.pop_front()
    }

    /// The credit was that of a connection which is no more.
    pub(super) fn forget_credit(&self) {
        self.state().credit.clear();
    }

    /// Puts a message here that came. It comes back if it is not wanted any more.
    #[must_use]
    pub(super) fn put(&self, taken: Taken, now: Instant) -> Option<Taken> {
        let mut state = self.state();
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
        let mut state = self.state();
        let old = std::mem::take(&mut state.old);
        state.busy += old.len();
        old
    }

    /// One of those was renewed. It comes back if it is not wanted any more, and counts as here until
    /// [`Prefetch::done`].
    #[must_use]
    pub(super) fn renewed(&self, taken: Taken, now: Instant) -> Option<Taken> {
        let mut state = self.state();
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
        self.state().busy += 1;
    }

    /// A message that somebody saw to is gone.
    pub(super) fn done(&self) {
        self.state().busy -= 1;
        self.changed.notify_one();
        self.quiet.notify_waiters();
    }

    /// Those that are here and not wanted any more.
    pub(super) fn surplus(&self) -> Vec<Taken> {
        let mut state = self.state();
        let mut surplus = Vec::new();
        while state.here() > state.wanted
            && let Some(taken) = state.ready.pop_back()
        {
            surplus.push(taken);
        }
        surplus
    }

    /// Nothing is wanted any more: what is here.
    pub(super) fn close(&self) -> Vec<Taken> {
        let mut state = self.state();
        state.closed = true;
        state.wanted = 0;
        let mut here: Vec<Taken> = state.ready.drain(..).collect();
        here.append(&mut state.old);
        here
    }

    /// Waits until nobody sees to any message any more.
    pub(super) async fn settled(&self) {
        loop {
            let mut quiet = pin!(self.quiet.notified());
            quiet.as_mut().enable();
            if self.state().busy == 0 {
                return;
            }
            quiet.await;
        }
    }
}
