//! What the official clients sleep and spawn with: tokio, as everything here.
//!
//! Installed by the transport before its first request. Their own adapter for tokio would bring in
//! its runtime of many threads, and the mathematics library that only that one needs: a library to
//! load at every start. It must never be needed for anything that decides: time limits are ours.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use azure_core::async_runtime::{
    AbortableTask, AsyncRuntime, SpawnedTask, TaskFuture, set_async_runtime,
};

/// Installs it for all clients of this process.
pub(super) fn install() {
    // Fails only where a program that we are a library of installed another, which serves as well.
    let _ = set_async_runtime(Arc::new(Tokio));
}

struct Tokio;

impl AsyncRuntime for Tokio {
    fn spawn(&self, task: TaskFuture) -> SpawnedTask {
        Box::pin(Task(tokio::spawn(task)))
    }

    fn sleep(&self, duration: azure_core::time::Duration) -> TaskFuture {
        // A negative one is none.
        Box::pin(tokio::time::sleep(duration.try_into().unwrap_or_default()))
    }

    fn yield_now(&self) -> TaskFuture {
        Box::pin(tokio::task::yield_now())
    }
}

struct Task(tokio::task::JoinHandle<()>);

impl Future for Task {
    type Output = Result<(), Box<dyn Error + Send>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = Pin::new(&mut self.0).poll(context);
        ended.map_err(|error| Box::new(error) as Box<dyn Error + Send>)
    }
}

impl AbortableTask for Task {
    fn abort(&self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use azure_core::async_runtime::get_async_runtime;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn the_clients_tasks_and_naps_are_tokio_s() {
        install();
        let runtime = get_async_runtime();
        let (done, was_done) = oneshot::channel();
        let task = runtime.spawn(Box::pin(async { done.send(()).expect("heard") }));
        task.await.expect("it ended");
        was_done.await.expect("it ran");
        let nap = Duration::from_millis(20);
        let begun = std::time::Instant::now();
        let for_them = nap.try_into().expect("a duration");
        runtime.sleep(for_them).await;
        assert!(begun.elapsed() >= nap);
        runtime.sleep(azure_core::time::Duration::seconds(-1)).await;
    }

    #[tokio::test]
    async fn a_task_that_is_aborted_ends() {
        install();
        let task = get_async_runtime().spawn(Box::pin(std::future::pending()));
        task.abort();
        assert!(task.await.is_err());
    }
}
