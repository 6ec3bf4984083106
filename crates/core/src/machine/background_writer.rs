//! Work that waits for a thread of its own, because it can hang: what is written to a disk.
//!
//! Called by the status file and the event log, after the guardian was forked. Whoever puts
//! something there never waits for it, and never hears how it went: the worker tells people. It
//! must never hold more than it was allowed to. What is waited for is put [`apart`]: unlike the
//! runtime's own pool it never panics where no thread is to be had.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::util::lock;
use tokio::sync::oneshot;

/// Begins this on a thread of its own; its result comes through the channel.
///
/// # Errors
/// Why no thread is to be had, and the job: it was not begun.
pub fn apart<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
    name: &'static str,
    job: J,
) -> Result<oneshot::Receiver<T>, (io::Error, J)> {
    let (tell, told) = oneshot::channel();
    // What was given to a thread that cannot be had is gone: so it finds its job here.
    let place = Arc::new(Mutex::new(Some(job)));
    let theirs = Arc::clone(&place);
    let take = |place: &Mutex<Option<J>>| {
        let mut place = lock(place);
        place.take()
    };
    let started = std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            if let Some(job) = take(&theirs) {
                // Whoever waited may have gone.
                let _ = tell.send(job());
            }
        });
    let Err(why) = started else {
        return Ok(told);
    };
    // Without a thread nobody has taken it.
    take(&place).map_or(Ok(told), |job| Err((why, job)))
}

/// How long whoever ends waits at most for what was put there.
const PATIENCE: Duration = Duration::from_secs(2);

struct Pending<T> {
    waiting: VecDeque<T>,
    closed: bool,
    /// The worker has nothing in hand.
    idle: bool,
}

struct Shared<T> {
    pending: Mutex<Pending<T>>,
    changed: Condvar,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Pending<T>> {
        lock(&self.pending)
    }
}

/// What waits, and the thread that works it off. Dropped, it waits a while for that.
pub struct BackgroundWriter<T> {
    shared: Arc<Shared<T>>,
}

impl<T: Send + 'static> BackgroundWriter<T> {
    /// Starts the thread. Without one, and one warning, whatever is put there is lost.
    #[must_use]
    pub fn new(
        name: &'static str,
        mut work: impl FnMut(T) + Send + 'static,
    ) -> BackgroundWriter<T> {
        let writer = BackgroundWriter::without_a_thread();
        let theirs = Arc::clone(&writer.shared);
        let started = std::thread::Builder::new()
            .name(name.into())
            .stack_size(128 * 1024)
            .spawn(move || serve(&theirs, &mut work));
        if let Err(why) = started {
            tracing::warn!("cannot keep the {name}: no thread can be started: {why}");
            let mut pending = writer.shared.lock();
            // Idle as well, else the end would be waited for in vain.
            (pending.closed, pending.idle) = (true, true);
        }
        writer
    }

    /// Nobody works it off.
    fn without_a_thread() -> BackgroundWriter<T> {
        let pending = Pending {
            waiting: VecDeque::new(),
            closed: false,
            idle: false,
        };
        BackgroundWriter {
            shared: Arc::new(Shared {
                pending: Mutex::new(pending),
                changed: Condvar::new(),
            }),
        }
    }

    /// Puts one more there, unless `most` wait already: then it is `false`. Returns at once.
    pub fn put(&self, one: T, most: usize) -> bool {
        let mut pending = self.shared.lock();
        if pending.closed {
            // Nobody works it off; that has been told.
            return true;
        }
        // A disk that hangs for hours must not cost us our memory.
        if pending.waiting.len() >= most {
            return false;
        }
        pending.waiting.push_back(one);
        drop(pending);
        self.shared.changed.notify_all();
        true
    }

    /// Puts this there instead of all that waits. Returns at once.
    pub fn replace(&self, one: T) {
        // What a slow disk has not taken yet is out of date by now.
        self.shared.lock().waiting.clear();
        self.put(one, usize::MAX);
    }
}

impl<T> BackgroundWriter<T> {
    /// Waits until all is worked off, but not for longer than `limit`.
    pub fn finish(&self, limit: Duration) {
        let pending = self.shared.lock();
        let busy = |pending: &mut Pending<T>| !pending.waiting.is_empty() || !pending.idle;
        let _ = self
            .shared
            .changed
            .wait_timeout_while(pending, limit, busy)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

impl<T> Drop for BackgroundWriter<T> {
    fn drop(&mut self) {
        // What it says of our end is worth a wait, but not for ever: the disk may hang.
        self.finish(PATIENCE);
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

fn serve<T>(shared: &Shared<T>, work: &mut impl FnMut(T)) {
    let mut pending = shared.lock();
    loop {
        if let Some(one) = pending.waiting.pop_front() {
            pending.idle = false;
            // Not under the lock: it can hang, and whoever puts something there must not.
            drop(pending);
            work(one);
            pending = shared.lock();
        } else if pending.closed {
            return;
        } else {
            // Whoever waits for the end sleeps on the same condition.
            pending.idle = true;
            shared.changed.notify_all();
            pending = shared
                .changed
                .wait(pending)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_hangs_holds_nobody_up_and_costs_bounded_memory() {
        let writer = BackgroundWriter::without_a_thread();
        let put = (0..200).filter(|number| writer.put(*number, 100)).count();
        assert_eq!(put, 100);
        assert_eq!(writer.shared.lock().waiting.len(), 100);
        writer.replace(7);
        assert_eq!(writer.shared.lock().waiting, [7]);
        writer.finish(Duration::from_millis(10));
    }

    #[test]
    fn everything_is_worked_off_in_order_before_the_end() {
        let (to, from) = std::sync::mpsc::channel();
        let writer = BackgroundWriter::new("test", move |number: u32| {
            to.send(number).expect("the test listens");
        });
        for number in 0..100 {
            assert!(writer.put(number, 1000));
        }
        writer.finish(Duration::from_secs(60));
        drop(writer);
        assert_eq!(
            from.iter().collect::<Vec<_>>(),
            (0..100).collect::<Vec<_>>()
        );
    }
}
