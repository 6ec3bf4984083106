//! [`MessageLock`]: a lock that renews itself while a program processes its message.
//!
//! For programs that use a [`Queue`](crate::queue::Queue) themselves. Nothing here can stop the program's own
//! code.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::program::{Control, Program, SharedProgram, rules, spawn};
use super::{Error, Guards, Lost, run_while, words};
use crate::clock::Instant;
use crate::core::{Budget, Cause, Deadlines, Ending, Exit, Failure, IfLost, Tenure, WorkloadEvent};
use crate::driver::{Start, Workload};
use crate::queue::{About, Message, Settlement};
use crate::work::lease::MessageLease;

// Per cent of the lock's time.
const RENEW_AT: u32 = 70;

/// Message with a lock that a task renews until the message is settled.
///
/// Dropping it gives the message back at once.
#[must_use = "dropped, the message is given back"]
pub struct MessageLock {
    id: String,
    attempt: u32,
    body: Vec<u8>,
    about: About,
    held: Arc<MessageLease>,
    shared: Arc<SharedProgram>,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<Ending>>,
}

impl fmt::Debug for MessageLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLock")
            .field("id", &self.id)
            .field("attempt", &self.attempt)
            .field("has_control", &self.has_control())
            .finish_non_exhaustive()
    }
}

impl MessageLock {
    /// Holds a message that was just taken, on a task of this tokio runtime. Settle an unreadable message
    /// with [`Lock::settle`](crate::queue::Lock::settle) instead.
    ///
    /// # Errors
    /// If the body cannot be read, the lock is too short to be renewed, or there is no runtime.
    pub fn hold(message: Message) -> Result<MessageLock, Error> {
        // An empty body would be completed without having been read.
        if let Err(why) = &message.body {
            return Err(Error::refused(why));
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let budget =
            Budget::for_lock(message.lock_time, RENEW_AT).renewing_within(message.first_renewal);
        budget.validate()?;
        // The first look obtains what is already taken. After a loss the queue decides who gets it.
        let poll = Some(Duration::from_millis(1));
        let rules = rules(Some(budget), poll, IfLost::Exit);
        let held = Arc::new(MessageLease::new(&message, "message"));
        // Held before the task begins; counted from before the take was sent.
        let shared = SharedProgram::new(
            "message",
            Control::InControl {
                token: u64::from(message.attempt),
            },
            budget.term_at(message.t0),
            Guards::default(),
        );
        let workload = Processing {
            program: Program::new(&shared, None),
            held: Arc::clone(&held),
            gone: false,
        };
        let store = Arc::clone(&held) as _;
        let tenure = Tenure::new(rules, Instant::now());
        let (stop, task) = spawn(&runtime, &shared, tenure, store, workload, None, None);
        Ok(MessageLock {
            id: message.id,
            attempt: message.attempt,
            body: message.body.unwrap_or_default(),
            about: message.about,
            held,
            shared,
            stop: Some(stop),
            task: Some(task),
        })
    }

    /// Returns the message's id in the queue, the same at every attempt.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the number of the attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the exact bytes.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns what else is known about the message.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns whether the lock is held; only reads the clock. It turns false a sixth of the lock's time (at
    /// most 10 s) before another instance can have the message.
    #[must_use]
    pub fn has_control(&self) -> bool {
        self.shared.is_in_time()
    }

    /// Resolves when another instance has the message, or is about to: stop processing.
    pub async fn lost(&self) {
        let mut watched = self.shared.watch();
        let _gone = watched
            .wait_for(|control| matches!(control, Control::Leaving | Control::Ended))
            .await;
    }

    /// Runs `future` while the lock is held, then drops it where it waits. Settle the message afterwards.
    ///
    /// # Errors
    /// [`Lost`] if the future was dropped before it was done.
    pub async fn run<F: Future>(&self, future: F) -> Result<F::Output, Lost> {
        run_while(|| self.has_control(), self.lost(), future).await
    }

    /// Settles the message as processed: it goes away.
    ///
    /// # Errors
    /// `Lost` if nothing was settled. `Transient` if that is unknown: the message may come again.
    pub async fn complete(self) -> Result<(), Failure> {
        self.settle(Settlement::Complete).await
    }

    /// Gives the message back unchanged: it may come again at once.
    ///
    /// # Errors
    /// Like [`MessageLock::complete`].
    pub async fn abandon(self) -> Result<(), Failure> {
        self.settle(Settlement::Release).await
    }

    /// Settles the message as failed: it may come again after `delay`, or at once on a queue without
    /// [delays](crate::queue::Queue::delays).
    ///
    /// # Errors
    /// Like [`MessageLock::complete`].
    pub async fn retry(self, delay: Duration) -> Result<(), Failure> {
        self.settle(Settlement::Retry(delay)).await
    }

    /// Dead-letters the message: `reason` is one word for machines, `detail` one line for a person.
    ///
    /// # Errors
    /// Like [`MessageLock::complete`]; `Fatal` if it can never succeed.
    pub async fn dead_letter(
        self,
        reason: impl Into<String>,
        detail: impl Into<String>,
    ) -> Result<(), Failure> {
        self.settle(Settlement::DeadLetter {
            reason: reason.into(),
            detail: detail.into(),
        })
        .await
    }

    async fn settle(mut self, settlement: Settlement) -> Result<(), Failure> {
        // First: the release that follows the end is the settlement.
        self.held.decide(Some(settlement));
        self.end();
        let ending = match self.task.take() {
            Some(task) => task.await.ok(),
            None => None,
        };
        let result = self.held.result().unwrap_or_else(|| {
            let why = match ending.map(|ending| ending.cause) {
                Some(Cause::Lost { why } | Cause::Doubt { why }) => why,
                _ => "the message's lock had ended".to_owned(),
            };
            Err(Failure::Lost { until: None, why })
        });
        result.map_err(words::of_a_failure)
    }

    fn end(&mut self) {
        self.shared.end_work();
        if let Some(stop) = self.stop.take() {
            let _over = stop.send(());
        }
    }
}

impl Drop for MessageLock {
    fn drop(&mut self) {
        self.end();
    }
}

struct Processing {
    program: Program,
    held: Arc<MessageLease>,
    gone: bool,
}

#[async_trait]
impl Workload for Processing {
    fn start(&mut self, start: Start) {
        self.program.start(start);
        if self.gone {
            self.program.kill();
        }
    }

    fn extend(&mut self, deadlines: Deadlines) {
        self.program.extend(deadlines);
    }

    fn drain(&mut self, signal: i32, end_of_grace: Instant) {
        self.program.drain(signal, end_of_grace);
    }

    fn kill(&mut self) {
        self.program.kill();
    }

    fn pass(&mut self, _signal: i32) {}

    fn pause(&mut self) {}

    fn forget_release_info(&mut self) {}

    fn gives_back(&mut self, cause: Option<&Cause>, _exit: Option<Exit>) {
        // Only the end that the program asked for settles: otherwise another instance may have the message.
        // Without a cause nothing was started, but the program had it.
        if self.gone || !matches!(cause, Some(Cause::Stopped(_))) {
            self.held.decide(None);
        }
    }

    async fn next_event(&mut self) -> WorkloadEvent {
        loop {
            tokio::select! {
                biased;
                _why = self.held.lost(), if !self.gone => {
                    self.gone = true;
                    self.program.kill();
                }
                event = self.program.next_event() => return event,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::scripted::{self, Scripted};

    const LOCK: Duration = Duration::from_secs(2);
    const LONG: Duration = Duration::from_secs(60);

    fn held(lock: &Arc<Scripted>) -> MessageLock {
        let mut message = scripted::with_lock(Arc::clone(lock));
        message.lock_time = LOCK;
        MessageLock::hold(message).unwrap()
    }

    async fn await_for(what: &str, mut look: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !look() {
            assert!(Instant::now().since(begin) < LONG, "{what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn message_lock_renews_itself_until_the_message_is_completed() {
        let lock = Arc::new(Scripted::default());
        let message = held(&lock);
        assert_eq!(
            (message.id(), message.attempt(), message.body()),
            ("id-1", 1, &b"body"[..])
        );
        await_for("a renewal", || *lock.renewed.lock().unwrap() >= 2).await;
        assert!(message.has_control());
        message.complete().await.unwrap();
        assert_eq!(lock.asked(), [Settlement::Complete]);
    }

    #[tokio::test]
    async fn settlement_returns_the_queue_s_answer() {
        let lock = Scripted::settling([scripted::lost()]);
        let said = held(&lock).complete().await;
        assert!(matches!(said, Err(Failure::Lost { .. })), "{said:?}");
        let lock = Scripted::settling([scripted::refused()]);
        let said = held(&lock).dead_letter("Bad", "no").await;
        assert!(matches!(said, Err(Failure::Fatal { .. })), "{said:?}");
        let lock = Scripted::settling([scripted::transient(), Ok(())]);
        held(&lock).retry(LONG).await.unwrap();
        assert_eq!(
            lock.asked(),
            [Settlement::Retry(LONG), Settlement::Retry(LONG)]
        );
    }

    #[tokio::test]
    async fn dropping_a_message_gives_it_back() {
        let lock = Arc::new(Scripted::default());
        drop(held(&lock));
        await_for("the message to be given back", || !lock.asked().is_empty()).await;
        assert_eq!(lock.asked(), [Settlement::Release]);
    }

    #[tokio::test]
    async fn lost_message_is_never_settled() {
        let lock = Scripted::renewing([scripted::lost()]);
        let message = held(&lock);
        assert_eq!(message.run(async { 7 }).await, Ok(7));
        let work = std::future::pending::<()>();
        assert_eq!(message.run(work).await, Err(Lost));
        assert!(!message.has_control());
        let said = message.complete().await;
        assert!(matches!(said, Err(Failure::Lost { .. })), "{said:?}");
        assert_eq!(lock.asked(), []);
    }

    #[tokio::test]
    async fn message_taken_away_unasked_is_lost_at_once_and_never_settled() {
        let lock = Arc::new(Scripted::default());
        let message = held(&lock);
        assert!(message.has_control());
        lock.gone.notify_one();
        let work = std::future::pending::<()>();
        assert_eq!(message.run(work).await, Err(Lost));
        assert!(!message.has_control());
        let said = message.complete().await;
        assert!(matches!(said, Err(Failure::Lost { .. })), "{said:?}");
        assert_eq!(lock.asked(), []);
    }

    #[tokio::test]
    async fn message_in_doubt_is_lost_before_its_lock_ends_and_never_settled() {
        let lock = Scripted::renewing((0..1000).map(|_| scripted::transient()));
        let begin = Instant::now();
        let message = held(&lock);
        message.lost().await;
        assert!(!message.has_control());
        let late = Instant::now().since(begin);
        assert!(
            late < LOCK || *lock.renewed.lock().unwrap() >= 1,
            "{late:?}"
        );
        let said = message.complete().await;
        assert!(matches!(said, Err(Failure::Lost { .. })), "{said:?}");
        assert_eq!(lock.asked(), []);
    }

    fn taken_before(lock: &Arc<Scripted>, lock_time: Duration, ago: Duration) -> MessageLock {
        let mut message = scripted::with_lock(Arc::clone(lock));
        message.lock_time = lock_time;
        message.t0 = message.t0 - ago;
        MessageLock::hold(message).unwrap()
    }

    #[tokio::test]
    async fn message_held_too_late_is_neither_given_back_nor_settled() {
        let (late, old) = (Duration::from_secs(50), LOCK * 11 / 20);
        let in_doubt = (0..1000).map(|_| scripted::transient());
        for (lock, lock_time, ago) in [
            // The whole lock has passed.
            (Arc::new(Scripted::default()), scripted::LOCK, late),
            // Half of it has passed: a renewal comes first, in vain.
            (Scripted::renewing(in_doubt), LOCK, old),
            (Scripted::renewing([scripted::lost()]), LOCK, old),
        ] {
            let message = taken_before(&lock, lock_time, ago);
            message.lost().await;
            assert!(!message.has_control());
            assert_eq!(lock.asked(), []);
            let said = message.complete().await;
            assert!(matches!(said, Err(Failure::Lost { .. })), "{said:?}");
            assert_eq!(lock.asked(), []);
        }
    }

    #[tokio::test]
    async fn message_that_is_renewed_first_can_be_settled() {
        let lock = Arc::new(Scripted::default());
        let message = taken_before(&lock, LOCK, LOCK * 11 / 20);
        await_for("a renewal", || *lock.renewed.lock().unwrap() >= 1).await;
        message.complete().await.unwrap();
        assert_eq!(lock.asked(), [Settlement::Complete]);
    }

    #[tokio::test]
    async fn unreadable_body_is_refused() {
        let lock = Arc::new(Scripted::default());
        let mut message = scripted::with_lock(Arc::clone(&lock));
        message.body = Err(crate::queue::Unreadable {
            reason: "TooLarge",
            detail: "it is too large".into(),
        });
        let said = MessageLock::hold(message);
        let why = "TooLarge: it is too large".to_owned();
        let denied = false;
        assert_eq!(said.err(), Some(Error::Refused { why, denied }));
        assert_eq!(lock.asked(), []);
    }

    #[tokio::test]
    async fn lock_too_short_to_renew_is_refused() {
        let mut message = scripted::message("id", 1, b"");
        message.lock_time = Duration::ZERO;
        assert!(MessageLock::hold(message).is_err());
    }
}
