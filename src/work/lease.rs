//! One taken message as a lease store.
//!
//! Giving back means "unchanged" until [`MessageLease::decide`] is called after the last process. It must
//! never settle a message twice, or one whose lock is in doubt.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::clock::Instant;
use crate::core::budget::ATTEMPT;
use crate::core::retry::Backoff;
use crate::core::{Budget, Failure, Grant, TaskResult};
use crate::lease::{LeaseStore, StoreInfo};
use crate::queue::{Lock, Message, NEVER, Settlement};
use crate::util::lock;

// A network that fails for some seconds must not cause finished work to be repeated.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
// Shorter: an unchanged message's lock expires by itself.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
// Sleep in steps: the runtime's clock stops while the machine sleeps.
const CLOCK_INTERVAL: Duration = Duration::from_secs(60);
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(4));

/// Lock of one message, renewed while its command runs.
pub struct MessageLease {
    name: String,
    lock_time: Duration,
    t0: Instant,
    token: u64,
    lock: Arc<dyn Lock>,
    granted: AtomicBool,
    confirmed: Arc<AtomicU64>,
    renewals: Arc<AtomicU32>,
    hurry: Option<watch::Receiver<bool>>,
    /// `None` if another worker may have the message.
    decision: Mutex<Option<Settlement>>,
    result: Mutex<Option<Result<(), Failure>>>,
}

impl MessageLease {
    /// Creates the lease of a message from this queue.
    #[must_use]
    pub fn new(message: &Message, queue: &str) -> MessageLease {
        MessageLease {
            name: queue.to_owned(),
            lock_time: message.lock_time,
            t0: message.t0,
            token: u64::from(message.attempt),
            lock: Arc::clone(&message.lock),
            granted: AtomicBool::new(false),
            confirmed: Arc::new(AtomicU64::new(message.t0.as_nanos())),
            renewals: Arc::default(),
            hurry: None,
            decision: Mutex::new(Some(Settlement::Release)),
            result: Mutex::new(None),
        }
    }

    /// Allows one more attempt to settle once this turns true.
    #[must_use]
    pub fn hurried_by(mut self, hurry: watch::Receiver<bool>) -> MessageLease {
        self.hurry = Some(hurry);
        self
    }

    /// Sets the settlement on release. After `None` nothing is ever settled.
    pub fn decide(&self, settlement: Option<Settlement>) {
        let mut decision = lock(&self.decision);
        // A program may decide at the moment of the loss.
        if decision.is_some() {
            *decision = settlement;
        }
    }

    /// Returns the queue's answer to the settlement.
    #[must_use]
    pub fn result(&self) -> Option<Result<(), Failure>> {
        lock(&self.result).clone()
    }

    /// Returns whether the message is gone for good: it expired, or its queue was deleted.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.lock.is_gone()
    }

    /// Returns the number of renewals.
    #[must_use]
    pub fn renewals(&self) -> u32 {
        self.renewals.load(Ordering::Acquire)
    }

    fn confirmed(&self) -> Instant {
        Instant::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    /// Keeps the message locked for `delay`, or until `leaving` turns true, then settles it as a retry.
    ///
    /// For queues without delays: a lost lock costs only the rest of the delay.
    pub async fn retry_after(
        &self,
        delay: Duration,
        budget: &Budget,
        mut leaving: watch::Receiver<bool>,
    ) {
        let due = Instant::now() + delay;
        let lost = tokio::select! {
            _ = leaving.wait_for(|leaving| *leaving) => None,
            lost = self.renew_until(due, budget) => lost,
        };
        match lost {
            Some(failure) => *lock(&self.result) = Some(Err(failure)),
            None => drop(self.settle(&Settlement::Retry(Duration::ZERO)).await),
        }
    }

    pub(super) async fn renew_until(&self, due: Instant, budget: &Budget) -> Option<Failure> {
        // From the last confirmation: the core renewed it a moment ago.
        let mut next = budget.renew_at(self.confirmed());
        loop {
            let now = Instant::now();
            if now >= due {
                return None;
            }
            if now < next {
                let until = next.min(due).since(now).min(CLOCK_INTERVAL);
                tokio::time::sleep(until).await;
                continue;
            }
            next = match self.renew(now + budget.attempt).await {
                Ok(()) => budget.renew_at(self.confirmed()),
                Err(failure @ Failure::Lost { .. }) => return Some(failure),
                Err(_) => now + budget.retry(),
            };
        }
    }

    /// Waits until the queue reports the loss of the lock; returns why.
    pub async fn lost(&self) -> Failure {
        self.lock.lost().await
    }

    /// Settles the message, repeatedly while its lock and a time limit allow.
    ///
    /// # Errors
    /// The queue's last answer.
    pub async fn settle(&self, settlement: &Settlement) -> Result<(), Failure> {
        let begin = Instant::now();
        let confirmed = self.confirmed();
        let patience = match settlement {
            Settlement::Release => RELEASE_TIMEOUT,
            Settlement::Complete | Settlement::Retry(_) | Settlement::DeadLetter { .. } => {
                SETTLE_TIMEOUT
            }
        };
        // At least one attempt: an expired lock counts until another worker takes the message.
        let lock_end = confirmed + self.lock_time;
        let until = lock_end
            .min(begin + patience)
            .max(begin + ATTEMPT.min(self.lock_time));
        let mut pauses = PAUSES;
        let mut hurry = self.hurry.clone();
        let result = loop {
            // Read before the attempt: a hurry allows exactly one more.
            let hurried = hurry.as_ref().is_some_and(|hurry| *hurry.borrow());
            let give_up_at = until.min(Instant::now() + ATTEMPT);
            let result = self.lock.settle(settlement, give_up_at).await;
            let Err(Failure::Transient { retry_after, .. }) = &result else {
                break result;
            };
            // Obey the queue, but keep time for one attempt before the lock's end.
            let wish = retry_after.unwrap_or_default();
            let last = until.min(lock_end).since(Instant::now());
            let last = last.saturating_sub(ATTEMPT.min(self.lock_time / 4));
            let wait = pauses.next_pause().max(wish.min(last));
            if hurried || wish >= NEVER || Instant::now() + wait >= until {
                break result;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = turns_true(&mut hurry) => {}
            }
        };
        *lock(&self.result) = Some(result.clone());
        result
    }
}

async fn turns_true(flag: &mut Option<watch::Receiver<bool>>) {
    if let Some(flag) = flag
        && flag.wait_for(|is_set| *is_set).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

#[async_trait]
impl LeaseStore for MessageLease {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            name: self.name.clone(),
            // A message settled before its command has no lock that could end.
            lease: self.result().is_none().then_some(self.lock_time),
            ..StoreInfo::default()
        }
    }

    /// Grants the lock once: the message is taken already.
    async fn acquire(&self, _give_up_at: Instant) -> Result<Grant, Failure> {
        if self.granted.swap(true, Ordering::AcqRel) {
            // The core competes again after each tenure: this answer ends that.
            return Err(Failure::AlreadyDone(TaskResult {
                status: 0,
                holder: String::new(),
                at: String::new(),
                token: self.token,
            }));
        }
        Ok(Grant {
            t0: self.t0,
            token: self.token,
            failed: 0,
        })
    }

    /// Renews in a task: the command's end does not wait for it, but a later settlement needs its answer.
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        let t0 = Instant::now();
        let lock = Arc::clone(&self.lock);
        let (confirmed, renewals) = (Arc::clone(&self.confirmed), Arc::clone(&self.renewals));
        let lock_time = self.lock_time;
        let renewal = tokio::spawn(async move {
            lock.renew(give_up_at).await?;
            // All deadlines come from the first lock time, which was much longer (changed, or a wrong clock).
            if let Some(lasts) = lock.lasts().filter(|lasts| *lasts < lock_time * 3 / 4) {
                return Err(Failure::Lost {
                    until: Some(t0 + lasts),
                    why: format!(
                        "the lock is renewed for {} s and not for {} s as before",
                        lasts.as_secs(),
                        lock_time.as_secs()
                    ),
                });
            }
            // Inside the task, which is never dropped: a late answer still counts.
            confirmed.store(t0.as_nanos(), Ordering::Release);
            renewals.fetch_add(1, Ordering::AcqRel);
            Ok(())
        });
        renewal.await.unwrap_or_else(|_| {
            Err(Failure::Transient {
                why: "the renewal failed".to_owned(),
                retry_after: None,
            })
        })
    }

    /// Ignores the core's deadline, which is for standbys.
    async fn release(&self, _give_up_at: Instant) -> Result<(), Failure> {
        if self.result().is_some() {
            return Ok(());
        }
        let Some(settlement) = lock(&self.decision).clone() else {
            return Ok(());
        };
        match self.settle(&settlement).await {
            // `settle` has tried often enough: the core must not try again.
            Err(Failure::Transient { why, .. }) => Err(Failure::Fatal { why, denied: false }),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::scripted::{self, Scripted};
    use tokio::sync::Semaphore;

    struct Slow {
        asked: Semaphore,
        let_go: Semaphore,
    }

    #[async_trait]
    impl Lock for Slow {
        async fn renew(&self, _give_up_at: Instant) -> Result<(), Failure> {
            self.asked.add_permits(1);
            let _go = self.let_go.acquire().await;
            Ok(())
        }

        async fn settle(&self, _: &Settlement, _: Instant) -> Result<(), Failure> {
            Ok(())
        }
    }

    fn held(lock: Arc<dyn Lock>) -> MessageLease {
        let message = Message {
            lock,
            ..scripted::message("id-1", 1, b"body")
        };
        MessageLease::new(&message, "queue")
    }

    #[tokio::test]
    async fn abandoned_renewal_is_completed() {
        let lock = Arc::new(Slow {
            asked: Semaphore::new(0),
            let_go: Semaphore::new(0),
        });
        let held = held(Arc::clone(&lock) as _);
        tokio::select! {
            said = held.renew(Instant::FOREVER) => panic!("answered: {said:?}"),
            asked = lock.asked.acquire() => drop(asked),
        }
        lock.let_go.add_permits(1);
        while held.renewals() == 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn hurry_limits_settling_to_one_more_attempt() {
        let lock = Scripted::settling((0..1000).map(|_| scripted::transient()));
        let (hurry, hurried) = watch::channel(false);
        let held = held(Arc::clone(&lock) as _).hurried_by(hurried);
        let settled = held.settle(&Settlement::Complete);
        let hurries = async {
            while lock.asked().len() < 2 {
                tokio::task::yield_now().await;
            }
            hurry.send_replace(true);
        };
        let (said, ()) = tokio::join!(settled, hurries);
        assert!(matches!(said, Err(Failure::Transient { .. })), "{said:?}");
        assert_eq!(lock.asked().len(), 3);
    }

    fn busy(wish: Duration) -> Result<(), Failure> {
        Err(Failure::Transient {
            why: "503".to_owned(),
            retry_after: Some(wish),
        })
    }

    #[tokio::test]
    async fn long_retry_after_leaves_time_for_one_more_attempt() {
        let minute = Duration::from_secs(60);
        for (wish, said, times) in [(minute, Ok(()), 2), (NEVER, busy(NEVER), 1)] {
            let lock = Scripted::settling([busy(wish)]);
            let mut message = scripted::with_lock(Arc::clone(&lock));
            message.lock_time = Duration::from_secs(1);
            let held = MessageLease::new(&message, "queue");
            assert_eq!(held.settle(&Settlement::Complete).await, said, "{wish:?}");
            assert_eq!(lock.asked().len(), times, "{wish:?}");
        }
    }

    #[tokio::test]
    async fn busy_service_is_asked_again_before_the_end_of_a_lock_that_ends_soon() {
        let lock = Scripted::settling([busy(Duration::from_secs(60))]);
        let mut message = scripted::with_lock(Arc::clone(&lock));
        let lock_end = Instant::now() + Duration::from_secs(2);
        message.lock_time = Duration::from_secs(4);
        message.t0 = lock_end - message.lock_time;
        let held = MessageLease::new(&message, "queue");
        assert_eq!(held.settle(&Settlement::Complete).await, Ok(()));
        assert!(Instant::now() < lock_end);
    }

    #[tokio::test]
    async fn decision_to_settle_nothing_is_final() {
        let lock = Arc::new(Scripted::default());
        let held = held(Arc::clone(&lock) as _);
        held.decide(None);
        held.decide(Some(Settlement::Complete));
        assert_eq!(held.release(Instant::FOREVER).await, Ok(()));
        assert_eq!(lock.asked(), []);
        assert_eq!(held.result(), None);
    }

    const AGAIN: Settlement = Settlement::Retry(Duration::ZERO);

    fn kept(lock: &Arc<Scripted>) -> (MessageLease, Budget) {
        let mut message = scripted::with_lock(Arc::clone(lock));
        message.lock_time = Duration::from_secs(2);
        let budget = Budget::for_lock(message.lock_time, 10);
        (MessageLease::new(&message, "queue"), budget)
    }

    #[tokio::test]
    async fn lock_is_renewed_during_the_retry_delay() {
        let lock = Scripted::renewing([Ok(()), scripted::transient(), Ok(())]);
        let (held, budget) = kept(&lock);
        let (_stay, leaving) = watch::channel(false);
        let begin = Instant::now();
        let delay = Duration::from_millis(1200);
        held.retry_after(delay, &budget, leaving).await;
        assert!(Instant::now().since(begin) >= delay);
        assert!(*lock.renewed.lock().unwrap() >= 2);
        assert_eq!(lock.asked(), [AGAIN]);
        assert_eq!(held.result(), Some(Ok(())));
    }

    #[tokio::test]
    async fn leaving_worker_skips_the_retry_delay() {
        let lock = Arc::new(Scripted::default());
        let (held, budget) = kept(&lock);
        let (leave, leaving) = watch::channel(false);
        let day = Duration::from_secs(86_400);
        let keeping = held.retry_after(day, &budget, leaving);
        let stop = async {
            tokio::task::yield_now().await;
            leave.send_replace(true);
        };
        tokio::join!(keeping, stop);
        assert_eq!(lock.asked(), [AGAIN]);
    }

    #[tokio::test]
    async fn much_shorter_lock_time_is_a_loss() {
        let lock = Arc::new(Scripted::default());
        let (held, _budget) = kept(&lock);
        *lock.lasts.lock().unwrap() = Some(Duration::from_millis(1600));
        assert_eq!(held.renew(Instant::FOREVER).await, Ok(()));
        let shorter = Duration::from_millis(1400);
        *lock.lasts.lock().unwrap() = Some(shorter);
        let said = held.renew(Instant::FOREVER).await;
        let Err(Failure::Lost { until, .. }) = said else {
            panic!("{said:?}");
        };
        assert!(until.is_some_and(|until| until <= Instant::now() + shorter));
        assert_eq!(held.renewals(), 1);
    }

    #[tokio::test]
    async fn lost_lock_is_not_settled() {
        let lock = Scripted::renewing([scripted::lost()]);
        let (held, budget) = kept(&lock);
        let (_stay, leaving) = watch::channel(false);
        held.retry_after(Duration::from_secs(86_400), &budget, leaving)
            .await;
        assert_eq!(lock.asked(), []);
        assert!(matches!(held.result(), Some(Err(Failure::Lost { .. }))));
    }
}
