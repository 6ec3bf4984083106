//! The first look at a queue, before anything is taken from it.
//!
//! Called by the worker alone.

use std::future::pending;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};

use super::observer::WorkerObserver;
use super::processor::MessageProcessor;
use crate::clock::Instant;
use crate::core::Failure;
use crate::core::budget::{ATTEMPT, RETRY};
use crate::guardian::WorkloadEvent;
use crate::queue::{Missing, Queue};
use crate::signals::{SignalEvent, Signals};

/// How long a queue may stay silent before the first answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Looks at the queue, for as long as it may take; a signal ends that.
pub(super) async fn prepare(
    queue: &dyn Queue,
    signals: &mut Signals,
    idle: &mut [MessageProcessor],
    observer: &WorkerObserver,
) -> Result<Option<i32>, Missing> {
    let give_up_at = Instant::now() + PATIENCE;
    let mut told = false;
    loop {
        let sent = Instant::now();
        let attempt = queue.prepare(give_up_at.min(sent + ATTEMPT));
        tokio::select! {
            biased;
            signal = stop(signals) => return Ok(Some(signal)),
            () = answer_for(idle) => {}
            looked = attempt => match looked {
                Ok(()) => {
                    observer.doubts(None);
                    return Ok(None);
                }
                Err(Missing::Failed(Failure::Transient { why, .. }))
                    if Instant::now() + RETRY < give_up_at =>
                {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!("cannot reach the queue: {why}; retrying");
                        observer.doubts(Some(format!("cannot reach the queue: {why}")));
                    }
                }
                Err(missing) => return Err(missing),
            }
        }
        let next = (sent + RETRY).since(Instant::now());
        tokio::select! {
            biased;
            signal = stop(signals) => return Ok(Some(signal)),
            () = answer_for(idle) => {}
            () = tokio::time::sleep(next) => {}
        }
    }
}

/// What happens to the guardians of idle slots: somebody has to answer whether they are well.
pub(super) async fn news_of(idle: &mut [MessageProcessor]) -> WorkloadEvent {
    let event = idle.iter_mut().map(|processor| async {
        let event = processor.handle.next_event().await;
        processor.lost |= event == WorkloadEvent::Lost;
        event
    });
    let mut event: FuturesUnordered<_> = event.collect();
    match event.next().await {
        Some(event) => event,
        None => pending().await,
    }
}

/// The same for as long as nothing can be made of it.
async fn answer_for(idle: &mut [MessageProcessor]) {
    loop {
        let _ = news_of(idle).await;
    }
}

async fn stop(signals: &mut Signals) -> i32 {
    loop {
        if let SignalEvent::Stop(signal) = signals.next().await {
            return signal;
        }
    }
}
