//! Threads for writes to a disk, which can hang.
//!
//! A caller of `put` never waits, so the work itself reports its errors. Work that a caller waits for is
//! started with [`spawn_job`], which, unlike the runtime's own pool, never panics if no thread is available.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::util::lock;
use tokio::sync::oneshot;

/// Begins a job on its own thread; its result comes through the channel.
///
/// # Errors
/// If no thread is available; the job comes back.
pub fn spawn_job<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
    name: &'static str,
    job: J,
) -> Result<oneshot::Receiver<T>, (io::Error, J)> {
    let (tell, told) = oneshot::channel();
    // A failed spawn drops what it was given, so the job stays in this place.
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
                let _ = tell.send(job());
            }
        });
    let Err(why) = started else {
        return Ok(told);
    };
    // Still there, since no thread ran.
    take(&place).map_or(Ok(told), |job| Err((why, job)))
}

const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

struct Pending<T> {
    waiting: VecDeque<T>,
    closed: bool,
    idle: bool,
}

struct WriterQueue<T> {
    pending: Mutex<Pending<T>>,
    changed: Condvar,
}

impl<T> WriterQueue<T> {
    fn lock(&self) -> MutexGuard<'_, Pending<T>> {
        lock(&self.pending)
    }
}

/// Queue, with a thread that works through it. Dropping it waits for the work, 2 s at most.
pub struct BackgroundWriter<T> {
    shared: Arc<WriterQueue<T>>,
}

impl<T: Send + 'static> BackgroundWriter<T> {
    /// Starts the thread. If that fails, warns once that nothing writes `name` (such as the event log), and
    /// drops all work.
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
            tracing::warn!("cannot write the {name}: no thread can be started: {why}");
            let mut pending = writer.shared.lock();
            // Otherwise the drop would wait for a thread that never started.
            (pending.closed, pending.idle) = (true, true);
        }
        writer
    }

    fn without_a_thread() -> BackgroundWriter<T> {
        let pending = Pending {
            waiting: VecDeque::new(),
            closed: false,
            idle: false,
        };
        BackgroundWriter {
            shared: Arc::new(WriterQueue {
                pending: Mutex::new(pending),
                changed: Condvar::new(),
            }),
        }
    }

    /// Queues the work; drops it if there is no thread. Returns `false` if `max` items wait already. Does not
    /// block.
    pub fn put(&self, one: T, max: usize) -> bool {
        let mut pending = self.shared.lock();
        if pending.closed {
            // No thread: `new` has warned.
            return true;
        }
        // A disk that hangs for hours must not use up the memory.
        if pending.waiting.len() >= max {
            return false;
        }
        pending.waiting.push_back(one);
        drop(pending);
        self.shared.changed.notify_all();
        true
    }

    /// Replaces all that waits. Does not block.
    pub fn replace(&self, one: T) {
        self.shared.lock().waiting.clear();
        self.put(one, usize::MAX);
    }
}

impl<T> BackgroundWriter<T> {
    /// Waits until all work is done, at most for `limit`.
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
        self.finish(FLUSH_TIMEOUT);
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

fn serve<T>(shared: &WriterQueue<T>, work: &mut impl FnMut(T)) {
    let mut pending = shared.lock();
    loop {
        if let Some(one) = pending.waiting.pop_front() {
            pending.idle = false;
            // The work can hang, and `put` must not.
            drop(pending);
            work(one);
            pending = shared.lock();
        } else if pending.closed {
            return;
        } else {
            // `finish` waits for this.
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
    fn worker_that_hangs_blocks_no_caller_and_costs_bounded_memory() {
        let writer = BackgroundWriter::without_a_thread();
        let put = (0..200).filter(|number| writer.put(*number, 100)).count();
        assert_eq!(put, 100);
        assert_eq!(writer.shared.lock().waiting.len(), 100);
        writer.replace(7);
        assert_eq!(writer.shared.lock().waiting, [7]);
        writer.finish(Duration::from_millis(10));
    }

    #[test]
    fn all_work_is_done_in_order_before_the_end() {
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
