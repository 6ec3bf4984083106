//! Who has a claim on the description's lock just now, and the waiter that the kernel wakes.
//! Called by `store`. It must never unlock what a tenure stands on.
//!
//! All of our threads share one open file description, so to the kernel they are one owner: a
//! waiter can be granted a lock that an attempt has obtained at the same time, and one unlock
//! takes it away from both. Two rules make that harmless:
//! - an attempt always asks the kernel (`try_exclusive`); it never trusts that a waiter has it;
//! - a waiter unlocks only under the mutex and only while nobody of us attempts or holds. What it
//!   obtained otherwise is a *debt*, which the next attempt takes over or gives up.
//!
//! A waiter blocked in the kernel is not interrupted when nobody listens any more: signals are the
//! supervisor's and the command's. It is left behind, does not keep the process from ending, and
//! unlocks at once if it is granted the lock.

use std::fs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use tokio::sync::Notify;

use super::lock;
use crate::lease::record::Record;
use crate::util::lock;

// For how long a lock that the waiter obtained is kept for an attempt that does not come: longer than the
// last attempt may still hang, and short enough that an instance that hangs does not shut the others out.
const PATIENCE: Duration = Duration::from_secs(10);
// How long a waiter that failed waits before it makes anybody try again: without it a lock that cannot be
// waited for (ENOLCK) is asked for as fast as the processor can.
const BACK_OFF: Duration = Duration::from_secs(1);

/// What we are doing with the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing; whatever a waiter obtained is a debt.
    Idle,
    /// An attempt or a release is under way.
    Busy,
    /// A tenure stands on it.
    Held,
}

/// The state behind the mutex.
struct State {
    phase: Phase,
    file: Arc<fs::File>,
    // The number of the waiter that obtained the lock and has not unlocked it. A number, because a later
    // waiter's debt is not an earlier one's to unlock.
    debt: Option<u64>,
    /// How many waiters there were.
    waiters: u64,
    // The description that a waiter is blocked on. There is one thread at most for each: it cannot be
    // interrupted, so each that is left behind stays until the lock is free.
    waiting_on: Option<Arc<fs::File>>,
    /// How many futures wait to hear that the lock is free.
    listeners: usize,
    /// The waiter failed; an attempt will tell why.
    failed: bool,
    /// The record of our tenure, as it stands in the file.
    record: Option<Record>,
    // The greatest token ever seen, in this file or in one that was replaced: whoever removes the file
    // must not make the count begin anew under those who have seen it.
    seen: u64,
}

/// See the text of this file.
pub(super) struct Waiter {
    state: Mutex<State>,
    changed: Notify,
    settled: Condvar,
}

impl Waiter {
    pub(super) fn new(file: fs::File) -> Waiter {
        Waiter {
            state: Mutex::new(State {
                phase: Phase::Idle,
                file: Arc::new(file),
                debt: None,
                waiters: 0,
                waiting_on: None,
                listeners: 0,
                failed: false,
                record: None,
                seen: 0,
            }),
            changed: Notify::new(),
            settled: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn file(&self) -> Arc<fs::File> {
        Arc::clone(&self.state().file)
    }

    /// The file of the tenure and its record, if there is a tenure.
    pub(super) fn tenure(&self) -> Option<(Arc<fs::File>, Record)> {
        let state = self.state();
        let record = state.record.clone()?;
        (state.phase == Phase::Held).then(|| (Arc::clone(&state.file), record))
    }

    /// Remembers what now stands in the file.
    pub(super) fn set_record(&self, record: Record) {
        let mut state = self.state();
        state.seen = state.seen.max(record.token);
        state.record = Some(record);
    }

    /// The greatest token seen, `token` included.
    pub(super) fn see(&self, token: u64) -> u64 {
        let mut state = self.state();
        state.seen = state.seen.max(token);
        state.seen
    }

    /// Begins an attempt (or a release); it ends with the guard.
    pub(super) fn begin(self: &Arc<Waiter>) -> LockGuard {
        // From here on a waiter unlocks nothing: it would unlock what this attempt has just obtained.
        self.state().phase = Phase::Busy;
        LockGuard {
            waiter: Arc::clone(self),
            locked: None,
            kept: false,
        }
    }

    /// Resolves when a waiter has obtained the lock (and keeps it for the next attempt), or has
    /// failed in a way that an attempt will tell.
    pub(super) async fn until_free(self: &Arc<Waiter>) {
        let mut listening = Listening::new(self);
        loop {
            // Registered before the state is looked at: a waiter that is granted the lock in between would
            // tell nobody, and we would wait for a lock that we have.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.state();
                if state.debt.is_some() || std::mem::take(&mut state.failed) {
                    listening.received = true;
                    return;
                }
                let waits = state.waiting_on.as_ref();
                if !waits.is_some_and(|file| Arc::ptr_eq(file, &state.file)) {
                    self.start_waiter(&mut state);
                }
            }
            changed.await;
        }
    }

    fn start_waiter(self: &Arc<Waiter>, state: &mut State) {
        let file = Arc::clone(&state.file);
        // Never joined: it ends when the kernel grants the lock, which may be never. The process ends without.
        state.waiters += 1;
        let (waiter, me, on) = (Arc::clone(self), state.waiters, Arc::clone(&file));
        let started = thread::Builder::new()
            .name("lock-waiter".into())
            .spawn(move || waiter.wait(me, &on));
        match started {
            Ok(_detached) => state.waiting_on = Some(file),
            // The attempt that follows needs a thread too, and tells why there is none.
            Err(_error) => state.failed = true,
        }
        if state.failed {
            self.changed.notify_waiters();
        }
    }

    /// The waiter's thread.
    fn wait(&self, me: u64, file: &Arc<fs::File>) {
        let outcome = lock::wait_exclusive(file);
        if let Err(errno) = outcome {
            tracing::debug!(%errno, "waiting for the file's lock failed");
            thread::sleep(BACK_OFF);
        }
        let mut state = self.state();
        if (state.waiting_on.as_ref()).is_some_and(|on| Arc::ptr_eq(on, file)) {
            state.waiting_on = None;
        }
        if outcome.is_err() {
            state.failed = true;
        } else if !Arc::ptr_eq(file, &state.file) {
            // The file was replaced meanwhile: nobody of us wants the old one's lock any more.
            unlock_quietly(file);
        } else {
            match state.phase {
                // The tenure's own lock, granted once more.
                Phase::Held => {}
                // Nobody of ours waits, and every moment that we keep it all others are shut out.
                Phase::Idle if state.listeners == 0 => unlock_quietly(file),
                Phase::Idle | Phase::Busy => state.debt = Some(me),
            }
        }
        self.changed.notify_waiters();
        let (mut state, _timeout) = self
            .settled
            .wait_timeout_while(state, PATIENCE, |state| state.debt == Some(me))
            .unwrap_or_else(PoisonError::into_inner);
        if state.debt == Some(me) && state.phase == Phase::Idle {
            state.debt = None;
            unlock_quietly(file);
            self.changed.notify_waiters();
        }
    }

    /// Gives up what a waiter obtained, unless an attempt will see to it.
    fn drop_debt(&self, state: &mut State) {
        if state.phase == Phase::Idle && state.debt.take().is_some() {
            unlock_quietly(&state.file);
            self.settled.notify_all();
        }
    }

    /// Nobody will come any more. A tenure's lock stays: it belongs to the tree too.
    pub(super) fn close(&self) {
        self.drop_debt(&mut self.state());
    }
}

/// An attempt or a release under way. Dropped, it unlocks what it locked, unless that was kept.
pub(super) struct LockGuard {
    waiter: Arc<Waiter>,
    locked: Option<Arc<fs::File>>,
    kept: bool,
}

impl LockGuard {
    /// This attempt has locked `file` (or is to unlock it, whoever of us locked it).
    pub(super) fn take(&mut self, file: &Arc<fs::File>) {
        self.locked = Some(Arc::clone(file));
    }

    /// Another file lies at the path now; what is locked of the old one is unlocked.
    pub(super) fn go_over_to(&mut self, file: fs::File) {
        if let Some(old) = self.locked.take() {
            unlock_quietly(&old);
        }
        // What a waiter obtained was the old file's lock, and was unlocked with it above.
        let mut state = self.waiter.state();
        state.file = Arc::new(file);
        state.debt = None;
        self.waiter.settled.notify_all();
    }

    /// A tenure stands on the lock from now on.
    pub(super) fn keep(mut self) {
        self.kept = true;
        let mut state = self.waiter.state();
        state.phase = Phase::Held;
        // Paid: it is the tenure's lock now, and the waiter must not unlock it when its patience ends.
        state.debt = None;
        self.waiter.settled.notify_all();
    }

    /// Unlocks, and tells whether that went well.
    pub(super) fn let_go(mut self) -> Result<(), Errno> {
        self.locked
            .take()
            .map_or(Ok(()), |file| lock::unlock(&file))
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // Outside the mutex: on a network mount it can take long. There are no waiters there.
        if let Some(file) = self.locked.take() {
            unlock_quietly(&file);
        }
        // In this order: once the phase is idle a waiter may be granted the lock and keep it, and would lose
        // it to an unlock that comes after.
        let mut state = self.waiter.state();
        state.phase = Phase::Idle;
        state.record = None;
        self.waiter.drop_debt(&mut state);
        self.waiter.changed.notify_waiters();
    }
}

/// A future that waits to hear that the lock is free.
struct Listening<'a> {
    waiter: &'a Waiter,
    received: bool,
}

impl<'a> Listening<'a> {
    fn new(waiter: &'a Waiter) -> Listening<'a> {
        waiter.state().listeners += 1;
        Listening {
            waiter,
            received: false,
        }
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut state = self.waiter.state();
        state.listeners -= 1;
        // Dropped without having been told (a stop, a signal): what was obtained for us goes back at once.
        if !self.received && state.listeners == 0 {
            self.waiter.drop_debt(&mut state);
        }
    }
}

/// Unlocking can fail only where there is nothing to unlock any more, or no server to tell.
fn unlock_quietly(file: &fs::File) {
    if let Err(errno) = lock::unlock(file) {
        tracing::warn!(%errno, "the file's lock could not be given back");
    }
}
