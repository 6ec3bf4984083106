//! Thread that waits until the kernel grants the lock, on a description of its own, and hands it to the next
//! attempt. It must never keep a lock that no attempt of this process is about to use.
//!
//! To the kernel, waiter and attempts are two owners: neither can unlock what the other has locked. Signals are
//! the supervisor's and the command's, so a blocked waiter is not interrupted. It does not keep the process
//! from ending, and unlocks at once if it is granted the lock without a listener.

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

// Time that a granted lock is kept for an attempt that does not come: short, so that an instance that hangs
// does not shut the others out.
const UNCLAIMED_LIMIT: Duration = Duration::from_secs(10);
// Pause of a failed waiter before it causes another attempt: without it a lock that cannot be waited for
// (ENOLCK) is requested as fast as the processor can.
const BACK_OFF: Duration = Duration::from_secs(1);

#[derive(Default)]
struct WaiterState {
    // File whose lock the latest thread waits for. Weak: it may wait behind this instance's tenure on this
    // description, whose last copy must close with the tenure.
    waits_for: Weak<fs::File>,
    listeners: usize,
    /// Granted lock until an attempt takes it, and its thread.
    granted: Option<(u64, LockedFile)>,
    threads: u64,
    failed: bool,
}

impl WaiterState {
    fn is_mine(&self, me: u64) -> bool {
        self.granted.as_ref().is_some_and(|(by, _)| *by == me)
    }
}

#[derive(Default)]
pub(super) struct Waiter {
    state: Mutex<WaiterState>,
    changed: Notify,
    taken: Condvar,
}

impl Waiter {
    fn state(&self) -> MutexGuard<'_, WaiterState> {
        lock(&self.state)
    }

    pub(super) fn take(&self) -> Option<LockedFile> {
        let granted = self.state().granted.take();
        self.taken.notify_all();
        granted.map(|(_, locked)| locked)
    }

    /// Resolves when the lock was granted, or waiting failed in a way that an attempt will report.
    pub(super) async fn until_free(self: &Arc<Waiter>, file: &Arc<fs::File>) {
        let mut listening = Listening::new(self);
        loop {
            // Register before looking: a grant in between would notify no listener.
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

    fn start_thread(self: &Arc<Waiter>, state: &mut WaiterState, file: Weak<fs::File>) {
        state.threads += 1;
        let me = state.threads;
        // Never joined: the kernel may never grant the lock.
        let (waiter, on) = (Arc::clone(self), Weak::clone(&file));
        let wait = move || waiter.wait(me, &on);
        let (waiter, on) = (Arc::clone(self), Weak::clone(&file));
        let mut until = None;
        let look = move || waiter.look(me, &on, &mut until);
        match clock::start_waiting("lock-waiter", wait, look) {
            Ok(()) => state.waits_for = file,
            // The attempt that follows needs a thread, too, and reports why there is none.
            Err(_error) => {
                state.failed = true;
                self.changed.notify_waiters();
            }
        }
    }

    fn wait(&self, me: u64, file: &Weak<fs::File>) {
        let outcome = wait_for(file);
        if let Err(error) = &outcome {
            tracing::debug!(%error, "waiting for the file's lock failed");
            thread::sleep(BACK_OFF);
        }
        if !self.hand_over(me, file, outcome) {
            return;
        }
        let is_mine = |state: &mut WaiterState| state.is_mine(me);
        let waited = self
            .taken
            .wait_timeout_while(self.state(), UNCLAIMED_LIMIT, is_mine);
        drop(waited);
        self.take_back(me);
    }

    /// Takes the place of `wait` in a simulation.
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
        *until = Some(Instant::now() + UNCLAIMED_LIMIT);
        *until
    }

    /// Returns whether the thread should wait for an attempt.
    fn hand_over(&self, me: u64, file: &Weak<fs::File>, outcome: io::Result<LockedFile>) -> bool {
        let mut state = self.state();
        // Another thread waits: no attempt wants the old file's lock.
        if !Weak::ptr_eq(&state.waits_for, file) {
            return false;
        }
        state.waits_for = Weak::new();
        match outcome {
            // No listener is left, and keeping the lock shuts the others out.
            Ok(unwanted) if state.listeners == 0 => drop(unwanted),
            Ok(locked) => state.granted = Some((me, locked)),
            Err(_) => state.failed = true,
        }
        self.changed.notify_waiters();
        true
    }

    fn take_back(&self, me: u64) {
        let mut state = self.state();
        if state.is_mine(me) {
            state.granted = None;
        }
    }
}

fn wait_for(file: &Weak<fs::File>) -> io::Result<LockedFile> {
    let again = file.upgrade().map(|file| open::reopen(&file));
    let again = again.ok_or(io::ErrorKind::NotFound)??;
    Ok(LockedFile::wait(again)?)
}

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
        // Dropped before it knew (a stop, a signal): give the lock back at once.
        if !self.received && listeners == 0 {
            drop(self.waiter.take());
        }
    }
}

#[cfg(test)]
mod tests;
