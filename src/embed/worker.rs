//! [`Worker`]: takes a storage queue's messages for a program.
//!
//! The rules are those of `trafficcop work`. It must never hand out a message with an unreadable body.

use std::fmt;
use std::time::Duration;

use super::{Connection, Error, MessageLock};
use crate::azure::Account;
use crate::clock::{self, Instant};
use crate::core::Failure;
use crate::core::budget::ATTEMPT;
use crate::core::retry::Backoff;
use crate::queue::storage::{Config, Encoding, StorageQueue, Target};
use crate::queue::{Message, Queue as _, Settlement};
use crate::work::lease::MessageLease;

// As on the command line.
const LOCK_TIME: Duration = Duration::from_secs(60);
const MAX_ATTEMPTS: u32 = 5;
const WAITS: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
// Larger than any message of a storage queue.
const LONGEST_BODY: usize = 1 << 20;

/// Source of messages from a storage queue.
///
/// Several tasks may share it, each with its own message. The crate's page has an example.
pub struct Worker {
    queue: StorageQueue,
    max_attempts: u32,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("queue", &self.queue.name())
            .finish_non_exhaustive()
    }
}

/// Settings of a worker, from [`Worker::queue`] or [`Connection::queue`].
#[derive(Debug)]
#[must_use = "nothing is taken before it is started"]
pub struct WorkerBuilder {
    config: Config,
    max_attempts: u32,
}

impl WorkerBuilder {
    pub(super) fn of(target: Target, account: Account) -> WorkerBuilder {
        WorkerBuilder {
            config: Config {
                target,
                account,
                lock_time: LOCK_TIME,
                encoding: Some(Encoding::Text),
                max_body: LONGEST_BODY,
                poison: None,
                create: false,
            },
            max_attempts: MAX_ATTEMPTS,
        }
    }

    /// Sets the time that a request locks a message: whole seconds, 2 s to 7 days (default 60 s). If the
    /// program dies, the message comes again after it.
    pub fn lock_time(mut self, lock_time: Duration) -> WorkerBuilder {
        self.config.lock_time = lock_time;
        self
    }

    /// Sets the number of attempts before the poison queue (default 5; at least 1).
    pub fn max_attempts(mut self, attempts: u32) -> WorkerBuilder {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Sets the encoding that senders use (default: text, passed on unchanged).
    pub fn encoding(mut self, encoding: Encoding) -> WorkerBuilder {
        self.config.encoding = Some(encoding);
        self
    }

    /// Sets the poison queue (default `QUEUE-poison`), created when first needed.
    pub fn poison_queue(mut self, name: impl Into<String>) -> WorkerBuilder {
        self.config.poison = Some(name.into());
        self
    }

    /// Creates the queue if it is missing.
    pub fn create(mut self) -> WorkerBuilder {
        self.config.create = true;
        self
    }

    /// Checks the queue, and starts.
    ///
    /// # Errors
    /// If a setting is invalid, there is no runtime, or the queue is missing, unreachable or refuses the
    /// credential.
    pub async fn start(self) -> Result<Worker, Error> {
        // tokio's timers would panic.
        tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let queue = StorageQueue::open(self.config).map_err(Error::refused)?;
        let looked = queue.prepare(Instant::now() + ATTEMPT).await;
        looked.map_err(Error::refused)?;
        Ok(Worker {
            queue,
            max_attempts: self.max_attempts,
        })
    }
}

impl Worker {
    /// Prepares to take messages from a queue, by its name or URL, with the environment's account and
    /// credential.
    ///
    /// # Errors
    /// If the name is invalid, or account and credential are missing or contradictory.
    pub fn queue(name: &str) -> Result<WorkerBuilder, Error> {
        Worker::builder().queue(name)
    }

    /// Starts with an account and a credential, instead of the environment's.
    pub fn builder() -> Connection {
        Connection::default()
    }

    /// Waits for the next message, with pauses of 100 ms to 30 s after an empty answer or none.
    /// `tokio::time::timeout` limits it: a message of the dropped request comes again when its lock ends.
    ///
    /// # Errors
    /// If the queue refuses the credential, or does not exist any more.
    pub async fn next(&self) -> Result<MessageLock, Error> {
        let mut pauses = WAITS;
        loop {
            let limit = ATTEMPT.min(self.queue.lock_time() / 2);
            match self.queue.take(1, Instant::now() + limit).await {
                Ok(messages) => {
                    if let Some(message) = messages.into_iter().next() {
                        match self.problem(&message) {
                            None => return MessageLock::hold(message),
                            Some((reason, detail)) => {
                                self.put_aside(&message, reason, detail).await?;
                                continue;
                            }
                        }
                    }
                }
                Err(Failure::Fatal { why, denied }) => {
                    return Err(Error::of_store(&why, denied));
                }
                Err(failure) if self.queue.is_deleted() => return Err(Error::refused(failure)),
                Err(failure) => tracing::warn!("cannot take messages: {failure}; retrying"),
            }
            clock::sleep(pauses.next_pause()).await;
        }
    }

    fn problem(&self, message: &Message) -> Option<(&'static str, String)> {
        if let Err(why) = &message.body {
            return Some((why.reason, why.detail.clone()));
        }
        let (attempt, most) = (message.attempt, self.max_attempts);
        (attempt > most).then(|| {
            let detail = format!("it was taken {attempt} times, max_attempts is {most}");
            ("TooManyAttempts", detail)
        })
    }

    async fn put_aside(
        &self,
        message: &Message,
        reason: &str,
        detail: String,
    ) -> Result<(), Error> {
        tracing::warn!("message {}: dead-lettered: {reason} ({detail})", message.id);
        let settlement = Settlement::DeadLetter {
            reason: reason.to_owned(),
            detail,
        };
        let lease = MessageLease::new(message, self.queue.name());
        match lease.settle(&settlement).await {
            Ok(()) | Err(Failure::Lost { .. }) => Ok(()),
            Err(failure) => Err(Error::refused(format!(
                "message {} cannot be dead-lettered: {failure}",
                message.id
            ))),
        }
    }
}
