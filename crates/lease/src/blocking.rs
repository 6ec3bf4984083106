//! Blocking work on a file ([`BlockingJobs`]): one job at a time, each in its own thread with a time limit.
//!
//! A thread that hangs in the kernel (on a dead file server) is left behind. The runtime would wait for its own
//! blocking threads when the process ends, so these are not among them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::errors::transient;
use trafficcop_core::Failure;
use trafficcop_core::clock::{self, Instant, Request};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stalled {
    #[error("the request before this one still hangs")]
    Occupied,
    // The job's thread drops the late result.
    #[error("no answer in time")]
    Overtime,
    #[error(
        "no thread could be started: raise the limits of processes and memory (ulimit -a, pids.max)"
    )]
    NoThread,
}

/// Jobs of one lock, one at a time. Two steps at once would each undo what the other obtained, and a drive that
/// hangs would collect a thread for every poll.
pub(super) struct BlockingJobs(Arc<Semaphore>);

struct JobResult<T> {
    // In this order: an unclaimed result unlocks before the next job begins, which would otherwise find this
    // process's own lock.
    result: T,
    _permit: OwnedSemaphorePermit,
}

impl BlockingJobs {
    pub(super) fn new() -> BlockingJobs {
        BlockingJobs(Arc::new(Semaphore::new(1)))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.available_permits() > 0
    }

    pub(super) async fn is_idle_by(&self, limit: Instant) -> bool {
        tokio::select! {
            biased;
            permit = self.0.acquire() => permit.is_ok(),
            () = until(limit) => false,
        }
    }

    /// Runs a step of a lock; `of` and `what` name it if it stalls.
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

    /// Runs `job` after the one before. If this future is dropped, the job goes on and drops its result.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        give_up_at: Instant,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stalled> {
        let permit = tokio::select! {
            // Last, because what is ready just in time must not be reported as doubt.
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
            drop(sender.send(JobResult {
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

/// Resolves at `at`, in short steps, because the runtime's timers stop in a suspend.
async fn until(at: Instant) {
    const CLOCK_INTERVAL: Duration = Duration::from_millis(500);
    loop {
        let left = at.since(Instant::now());
        if left.is_zero() {
            return;
        }
        clock::sleep(left.min(CLOCK_INTERVAL)).await;
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
                hang.recv().expect("the test ends the wait");
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
