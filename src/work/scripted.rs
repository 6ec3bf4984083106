//! Messages whose locks answer by a script, for tests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
#[cfg(feature = "cli")]
use tokio::sync::watch;

#[cfg(feature = "cli")]
use super::{observer::WorkerObserver, processor::ProcessorContext, settle::Rules};
use crate::clock::Instant;
use crate::core::Failure;
#[cfg(feature = "cli")]
use crate::core::retry::Backoff;
use crate::queue::{About, Lock, Message, Session, Settlement};

pub(crate) const LOCK: Duration = Duration::from_secs(60);

/// Lock that gives these answers in turn, then `Ok`.
#[derive(Default)]
pub(crate) struct Scripted {
    pub(crate) renewals: Mutex<VecDeque<Result<(), Failure>>>,
    pub(crate) settlements: Mutex<VecDeque<Result<(), Failure>>>,
    pub(crate) renewed: Mutex<u32>,
    pub(crate) asked: Mutex<Vec<Settlement>>,
    pub(crate) lasts: Mutex<Option<Duration>>,
    pub(crate) gone: tokio::sync::Notify,
}

impl Scripted {
    pub(crate) fn settling(
        answers: impl IntoIterator<Item = Result<(), Failure>>,
    ) -> Arc<Scripted> {
        Arc::new(Scripted {
            settlements: Mutex::new(answers.into_iter().collect()),
            ..Scripted::default()
        })
    }

    pub(crate) fn renewing(
        answers: impl IntoIterator<Item = Result<(), Failure>>,
    ) -> Arc<Scripted> {
        Arc::new(Scripted {
            renewals: Mutex::new(answers.into_iter().collect()),
            ..Scripted::default()
        })
    }

    pub(crate) fn asked(&self) -> Vec<Settlement> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Lock for Scripted {
    async fn renew(&self, _give_up_at: Instant) -> Result<(), Failure> {
        *self.renewed.lock().unwrap() += 1;
        self.renewals.lock().unwrap().pop_front().unwrap_or(Ok(()))
    }

    async fn settle(&self, settlement: &Settlement, _give_up_at: Instant) -> Result<(), Failure> {
        self.asked.lock().unwrap().push(settlement.clone());
        self.settlements
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(Ok(()))
    }

    fn lasts(&self) -> Option<Duration> {
        *self.lasts.lock().unwrap()
    }

    async fn lost(&self) -> Failure {
        self.gone.notified().await;
        Failure::Lost {
            until: None,
            why: "another has it".into(),
        }
    }
}

pub(crate) fn with_lock(lock: Arc<Scripted>) -> Message {
    Message {
        lock,
        ..message("id-1", 1, b"body")
    }
}

pub(crate) fn message(id: &str, attempt: u32, body: &[u8]) -> Message {
    Message {
        id: id.into(),
        attempt,
        t0: Instant::now(),
        lock_time: LOCK,
        first_renewal: None,
        body: Ok(body.to_vec()),
        about: About::default(),
        lock: Arc::new(Scripted::default()),
    }
}

pub(crate) fn transient() -> Result<(), Failure> {
    Err(Failure::Transient {
        why: "no answer".into(),
        retry_after: None,
    })
}

pub(crate) fn lost() -> Result<(), Failure> {
    Err(Failure::Lost {
        until: None,
        why: "another has it".into(),
    })
}

pub(crate) fn refused() -> Result<(), Failure> {
    Err(Failure::Fatal {
        why: "403".into(),
        denied: true,
    })
}

#[cfg(feature = "cli")]
pub(super) fn context(
    leaving: watch::Receiver<bool>,
    hurry: watch::Receiver<bool>,
) -> ProcessorContext {
    let instant = Duration::from_millis(1);
    ProcessorContext {
        queue: "q".into(),
        rules: Rules {
            max_attempts: Some(2),
            puts_aside: true,
            retry_delay: Backoff::new(instant, instant),
            dead_letter_exit: Vec::new(),
            retry_exit: Vec::new(),
            timeout: None,
            at_most_once: false,
        },
        renew_at: 50,
        stop_signal: libc::SIGTERM,
        stop_to: crate::guardian::StopTo::Group,
        kill_after: Duration::from_secs(5),
        base: None,
        in_directories: false,
        sessions: None,
        may_begin: None,
        observer: WorkerObserver::of_nobody(),
        delays: false,
        leaving,
        hurry,
    }
}

#[cfg(feature = "cli")]
pub(crate) fn of_session(id: &str) -> Message {
    Message {
        lock: Arc::new(OfSession),
        ..message(id, 2, b"body")
    }
}

struct OfSession;

#[async_trait]
impl Lock for OfSession {
    async fn renew(&self, _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    async fn settle(&self, _: &Settlement, _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    fn session(&self) -> Option<Arc<dyn Session>> {
        Some(Arc::new(OfSession))
    }
}

#[async_trait]
impl Session for OfSession {
    fn id(&self) -> &str {
        "s-1"
    }

    fn taken(&self) -> Instant {
        Instant::ZERO
    }

    fn locked(&self) -> (Instant, Duration) {
        (Instant::now(), LOCK)
    }

    async fn next(&self, _: Instant) -> Result<Option<Message>, Failure> {
        Ok(None)
    }

    async fn state(&self, _: Instant) -> Result<Vec<u8>, Failure> {
        Ok(Vec::new())
    }

    async fn set_state(&self, _: &[u8], _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    async fn close(&self, _: Instant) {}
}
