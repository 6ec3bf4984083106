//! The thread that waits until the kernel grants the lock, on a description of its own, and hands the locked
//! one to the next attempt.
//! Called by `store`. It must never keep a lock that nobody of us is about to use.
//!
//! To the kernel the waiter's description and that of the attempts are two owners, so neither can
//! unlock what the other has locked. What was granted is an owned value: whoever drops it unlocks.
//!
//! A waiter blocked in the kernel is not interrupted when nobody listens any more: signals are the
//! supervisor's and the command's. It is left behind, does not keep the process from ending, and
//! unlocks at once if it is granted the lock.

use std::fs;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

use tokio::sync::Notify;

use super::lock::LockedFile;
use super::open;
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::util::lock;

// For how long a lock that the waiter obtained is kept for an attempt that does not come: short enough that an
// instance that hangs does not shut the others out.
const PATIENCE: Duration = Duration::from_secs(10);
// How long a waiter that failed waits before it makes anybody try again: without it a lock that cannot be
// waited for (ENOLCK) is asked for as fast as the processor can.
const BACK_OFF: Duration = Duration::from_secs(1);

/// The state behind the mutex.
#[derive(Default)]
struct State {
    // The file whose lock the latest thread waits for. There is one for each file at most: it cannot be
    // interrupted, so each that is left behind stays until the lock is free. Weak, because it may be behind a
    // tenure of ours on this description, whose last copy must be closed when the tenure's owner is gone.
    waits_for: Weak<fs::File>,
    /// How many futures wait to hear that the lock is free.
    listeners: usize,
    /// What was granted, until an attempt takes it, and by which thread, which takes it back.
    granted: Option<(u64, LockedFile)>,
    /// How many threads were started.
    threads: u64,
    /// The waiter failed; an attempt will tell why.
    failed: bool,
}

impl State {
    /// What was granted to this thread was not taken yet.
    fn is_mine(&self, me: u64) -> bool {
        self.granted.as_ref().is_some_and(|(by, _)| *by == me)
    }
}

/// See the text of this file.
#[derive(Default)]
pub(super) struct Waiter {
    state: Mutex<State>,
    changed: Notify,
    taken: Condvar,
}

impl Waiter {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// What was granted to the waiter, for an attempt to go on with, or to be dropped.
    pub(super) fn take(&self) -> Option<LockedFile> {
        let granted = self.state().granted.take();
        self.taken.notify_all();
        granted.map(|(_, locked)| locked)
    }

    /// Resolves when the lock of `file` was granted (and is kept for the next attempt), or waiting
    /// has failed in a way that an attempt will tell.
    pub(super) async fn until_free(self: &Arc<Waiter>, file: &Arc<fs::File>) {
        let mut listening = Listening::new(self);
        loop {
            // Registered before the state is looked at: a waiter that is granted the lock in between would
            // tell nobody, and we would wait for a lock that we have.
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.state();
                if state.granted.is_some() || std::mem::take(&mut state.failed) {
                    listening.received = true;
                    return;
                }
                if state.waits_for.as_ptr() != Arc::as_ptr(file) {
                    self.start_thread(&mut state, Arc::downgrade(file));
                }
            }
            changed.await;
        }
    }

    fn start_thread(self: &Arc<Waiter>, state: &mut State, file: Weak<fs::File>) {
        state.threads += 1;
        let me = state.threads;
        // Never joined: it ends when the kernel grants the lock, which may be never. The process ends without.
        let (waiter, on) = (Arc::clone(self), Weak::clone(&file));
        let wait = move || waiter.wait(me, &on);
        let (waiter, on) = (Arc::clone(self), Weak::clone(&file));
        let mut until = None;
        let look = move || waiter.look(me, &on, &mut until);
        match clock::start_waiting("lock-waiter", wait, look) {
            Ok(()) => state.waits_for = file,
            // The attempt that follows needs a thread too, and tells why there is none.
            Err(_error) => {
                state.failed = true;
                self.changed.notify_waiters();
            }
        }
    }

    /// The waiter's thread.
    fn wait(&self, me: u64, file: &Weak<fs::File>) {
        let outcome = wait_for(file);
        if let Err(error) = &outcome {
            tracing::debug!(%error, "waiting for the file's lock failed");
            thread::sleep(BACK_OFF);
        }
        if !self.hand_over(me, file, outcome) {
            return;
        }
        let is_mine = |state: &mut State| state.is_mine(me);
        let waited = self
            .taken
            .wait_timeout_while(self.state(), PATIENCE, is_mine);
        drop(waited);
        self.take_back(me);
    }

    /// The same in a simulation, step by step: the kernel grants what it has when it is asked.
    fn look(&self, me: u64, file: &Weak<fs::File>, until: &mut Option<Instant>) -> Option<Instant> {
        if let Some(until) = *until {
            if self.state().is_mine(me) && Instant::now() < until {
                return Some(until);
            }
            self.take_back(me);
            return None;
        }
        let again = file.upgrade().map(|file| open::reopen(&file));
        let again = again?.ok().map(Arc::new)?;
        let granted = match LockedFile::of(&again) {
            Ok(None) => return Some(Instant::FOREVER),
            Ok(Some(granted)) => Ok(granted),
            Err(errno) => Err(errno.into()),
        };
        if !self.hand_over(me, file, granted) {
            return None;
        }
        *until = Some(Instant::now() + PATIENCE);
        *until
    }

    /// What came of waiting is for the next attempt; tells whether anything is to be waited for.
    fn hand_over(&self, me: u64, file: &Weak<fs::File>, outcome: io::Result<LockedFile>) -> bool {
        let mut state = self.state();
        // The file was replaced meanwhile, and another thread waits: nobody of us wants the old one's lock.
        if !Weak::ptr_eq(&state.waits_for, file) {
            return false;
        }
        state.waits_for = Weak::new();
        match outcome {
            // Nobody of ours waits, and every moment that we keep it all others are shut out.
            Ok(unwanted) if state.listeners == 0 => drop(unwanted),
            Ok(locked) => state.granted = Some((me, locked)),
            Err(_) => state.failed = true,
        }
        self.changed.notify_waiters();
        true
    }

    /// Nobody has come for it in time.
    fn take_back(&self, me: u64) {
        let mut state = self.state();
        if state.is_mine(me) {
            state.granted = None;
        }
    }
}

/// Opens `file` once more and locks it, however long that takes.
fn wait_for(file: &Weak<fs::File>) -> io::Result<LockedFile> {
    let again = file.upgrade().map(|file| open::reopen(&file));
    let again = again.ok_or(io::ErrorKind::NotFound)??;
    Ok(LockedFile::wait(again)?)
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
        let listeners = {
            let mut state = self.waiter.state();
            state.listeners -= 1;
            state.listeners
        };
        // Dropped without having been told (a stop, a signal): what was obtained for us goes back at once.
        if !self.received && listeners == 0 {
            drop(self.waiter.take());
        }
    }
}

#[cfg(test)]
mod tests;
