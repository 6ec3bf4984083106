//! [`BlockingJobs`]: blocking work on a file, one job at a time, each in a thread of its own and with a
//! time limit.
//!
//! Called by the stores on files, their inspector and `slots`. A thread that hangs in the kernel (a file
//! server that is gone) is left behind: it must never keep the runtime from working, nor the process from
//! ending, and that is why these are not the runtime's own blocking threads, which are waited for at its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::errors::transient;
use trafficcop_core::Failure;
use trafficcop_core::clock::{self, Instant, Request};

/// Why a job has no result.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stalled {
    #[error("the request before this one still hangs")]
    Occupied,
    // Its result is dropped when it comes, in its own thread.
    #[error("no answer in time")]
    Overtime,
    #[error(
        "no thread could be started: raise the limits of processes and memory (ulimit -a, pids.max)"
    )]
    NoThread,
}

/// The jobs of one lock. One permit: two steps of one lock at once would each undo what the other has
/// obtained, and a drive that hangs would collect a thread for every poll.
pub(super) struct BlockingJobs(Arc<Semaphore>);

/// A result on its way.
struct Answer<T> {
    // Dropped in this order: a result that nobody takes has undone itself (a lock is unlocked) before the
    // next job begins, which would otherwise find the lock taken by ourselves.
    result: T,
    _permit: OwnedSemaphorePermit,
}

impl BlockingJobs {
    pub(super) fn new() -> BlockingJobs {
        BlockingJobs(Arc::new(Semaphore::new(1)))
    }

    /// Whether no job is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.0.available_permits() > 0
    }

    /// Whether no job is under way, now or by then.
    pub(super) async fn is_idle_by(&self, limit: Instant) -> bool {
        tokio::select! {
            biased;
            permit = self.0.acquire() => permit.is_ok(),
            () = until(limit) => false,
        }
    }

    /// As [`BlockingJobs::run`], for a step of a lock: `of` and `what` say in an error where it stalled.
    pub(super) async fn step<T: Send + 'static>(
        &self,
        of: &str,
        what: &str,
        give_up_at: Instant,
        step: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let done = self.run(give_up_at, step).await;
        done.unwrap_or_else(|stalled| Err(transient(format!("{of}: {what}: {stalled}"))))
    }

    /// Runs `job` when the job before it has ended. If this future is dropped the job goes on,
    /// and its result is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        give_up_at: Instant,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stalled> {
        let permit = tokio::select! {
            // The result first: a caller whose time is up just as the job is done must not be told of doubt.
            biased;
            permit = Arc::clone(&self.0).acquire_owned() => {
                permit.map_err(|_closed| Stalled::NoThread)?
            }
            () = until(give_up_at) => return Err(Stalled::Occupied),
        };
        let (sender, receiver) = oneshot::channel();
        let job = move || {
            let request = Request::new();
            let result = job();
            drop(request);
            drop(sender.send(Answer {
                result,
                _permit: permit,
            }));
        };
        clock::start_thread("lock-file", job).map_err(|_error| Stalled::NoThread)?;
        tokio::select! {
            biased;
            answer = receiver => answer.map(|answer| answer.result).map_err(|_| Stalled::NoThread),
            () = until(give_up_at) => Err(Stalled::Overtime),
        }
    }
}

/// Resolves at `at`. In short naps, because the runtime's timers stand still in a suspend.
async fn until(at: Instant) {
    const NAP: Duration = Duration::from_millis(500);
    loop {
        let left = at.since(Instant::now());
        if left.is_zero() {
            return;
        }
        clock::sleep(left.min(NAP)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[tokio::test]
    async fn hanging_job_stalls_the_next_and_its_late_result_is_dropped() {
        struct Undo(mpsc::Sender<&'static str>);
        impl Drop for Undo {
            fn drop(&mut self) {
                self.0.send("undone").expect("the test listens");
            }
        }
        let blocking = BlockingJobs::new();
        let (go_on, hang) = mpsc::channel::<()>();
        let (told, received) = mpsc::channel();
        let undo = Undo(told.clone());
        let late = blocking
            .run(soon(), move || {
                hang.recv().expect("to be let go");
                undo
            })
            .await;
        assert!(matches!(late, Err(Stalled::Overtime)));
        let next = blocking.run(soon(), || ()).await;
        assert_eq!(next, Err(Stalled::Occupied));

        go_on.send(()).expect("the job still hangs");
        let after = blocking
            .run(Instant::FOREVER, move || told.send("next").is_ok())
            .await;
        assert_eq!(after, Ok(true));
        assert_eq!(received.recv(), Ok("undone"), "before the next job began");
        assert_eq!(received.recv(), Ok("next"));
    }
}
