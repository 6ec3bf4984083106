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
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::sync::Notify;

use super::lock::LockedFile;
use super::open;
use crate::util::lock;

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
    granted: Option<(ThreadId, LockedFile)>,
    /// The waiter failed; an attempt will tell why.
    failed: bool,
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
        // Never joined: it ends when the kernel grants the lock, which may be never. The process ends without.
        let (waiter, on) = (Arc::clone(self), Weak::clone(&file));
        let started = thread::Builder::new()
            .name("lock-waiter".into())
            .spawn(move || waiter.wait(&on));
        match started {
            Ok(_detached) => state.waits_for = file,
            // The attempt that follows needs a thread too, and tells why there is none.
            Err(_error) => {
                state.failed = true;
                self.changed.notify_waiters();
            }
        }
    }

    /// The waiter's thread.
    fn wait(&self, file: &Weak<fs::File>) {
        let outcome = wait_for(file);
        if let Err(error) = &outcome {
            tracing::debug!(%error, "waiting for the file's lock failed");
            thread::sleep(BACK_OFF);
        }
        let me = thread::current().id();
        let mut state = self.state();
        // The file was replaced meanwhile, and another thread waits: nobody of us wants the old one's lock.
        if !Weak::ptr_eq(&state.waits_for, file) {
            return;
        }
        state.waits_for = Weak::new();
        match outcome {
            // Nobody of ours waits, and every moment that we keep it all others are shut out.
            Ok(unwanted) if state.listeners == 0 => drop(unwanted),
            Ok(locked) => state.granted = Some((me, locked)),
            Err(_) => state.failed = true,
        }
        self.changed.notify_waiters();
        let is_mine = |state: &mut State| state.granted.as_ref().is_some_and(|(by, _)| *by == me);
        let (mut state, _timeout) = self
            .taken
            .wait_timeout_while(state, PATIENCE, is_mine)
            .unwrap_or_else(PoisonError::into_inner);
        if is_mine(&mut state) {
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
