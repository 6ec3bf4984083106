//! One taken message as a lock store: its lock *is* the lease that the driver renews and gives back.
//!
//! Made by the worker, and by the library's `MessageLock`. What giving back means is decided by
//! whoever has it ([`MessageLease::decide`]), after the last process of the command is gone; until then it
//! means "as it was". It must never settle anything twice, or a message whose lock is in doubt.

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

// How long a queue is asked to settle a message, as long as its lock lasts: work that was done
// is not done again because of a network that is away for some seconds.
const PATIENCE: Duration = Duration::from_secs(60);
// The same for a message that is only given back: its lock runs out by itself.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
// The longest sleep between two looks at the clock: the runtime's stands still while the machine
// sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// From the end of one attempt to settle to the next, at first and at most.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(4));

/// The lease that is a message's lock.
pub struct MessageLease {
    name: String,
    lock_time: Duration,
    t0: Instant,
    token: u64,
    lock: Arc<dyn Lock>,
    granted: AtomicBool,
    /// The moment before the request was sent that locked it last.
    confirmed: Arc<AtomicU64>,
    renewals: Arc<AtomicU32>,
    /// Turns true when settling is not to be tried again and again.
    hurry: Option<watch::Receiver<bool>>,
    /// What giving back means; nothing is settled where another may have it.
    decision: Mutex<Option<Settlement>>,
    result: Mutex<Option<Result<(), Failure>>>,
}

impl MessageLease {
    /// This message of the queue with this name.
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
            // Whoever ends without a word has done nothing with it.
            decision: Mutex::new(Some(Settlement::Release)),
            result: Mutex::new(None),
        }
    }

    /// The same, which is settled with one more attempt when this has turned true.
    #[must_use]
    pub fn hurried_by(mut self, hurry: watch::Receiver<bool>) -> MessageLease {
        self.hurry = Some(hurry);
        self
    }

    /// What giving it back will mean; `None`: nothing is settled, whatever is said later.
    pub fn decide(&self, settlement: Option<Settlement>) {
        let mut decision = lock(&self.decision);
        // A program may ask for its end in the moment in which the message was lost.
        if decision.is_some() {
            *decision = settlement;
        }
    }

    /// What the queue said to that; `None` as long as (or because) it was not asked, or its answer
    /// not waited for.
    #[must_use]
    pub fn result(&self) -> Option<Result<(), Failure>> {
        lock(&self.result).clone()
    }

    /// Whether the message is gone for good: it expired, or its queue was deleted.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.lock.is_gone()
    }

    /// How often the lock was renewed.
    #[must_use]
    pub fn renewals(&self) -> u32 {
        self.renewals.load(Ordering::Acquire)
    }

    /// The moment before the request was sent that locked it last.
    fn confirmed(&self) -> Instant {
        Instant::from_nanos(self.confirmed.load(Ordering::Acquire))
    }

    /// Keeps it away from everybody for `delay`, where its queue cannot do that, and settles it then so
    /// that it may come again at once; sooner when `leaving` turns true. Nothing runs meanwhile: a lock
    /// that is lost costs nothing but the rest of the delay, and the deadlines of a tenure are not needed.
    pub async fn retry_after(
        &self,
        delay: Duration,
        budget: &Budget,
        mut leaving: watch::Receiver<bool>,
    ) {
        let due = Instant::now() + delay;
        let lost = tokio::select! {
            // An error: whoever could tell us is gone.
            _ = leaving.wait_for(|leaving| *leaving) => None,
            lost = self.renew_until(due, budget) => lost,
        };
        match lost {
            Some(failure) => *lock(&self.result) = Some(Err(failure)),
            // Its result is kept.
            None => drop(self.settle(&Settlement::Retry(Duration::ZERO)).await),
        }
    }

    /// Why the lock was definitely lost before `due`, if it was.
    pub(super) async fn renew_until(&self, due: Instant, budget: &Budget) -> Option<Failure> {
        // From what was confirmed, not from now: the core renewed it until a moment ago.
        let mut next = budget.renew_at(self.confirmed());
        loop {
            let now = Instant::now();
            if now >= due {
                return None;
            }
            if now < next {
                let until = next.min(due).since(now).min(LONGEST_SLEEP);
                tokio::time::sleep(until).await;
                continue;
            }
            next = match self.renew(now + budget.attempt).await {
                Ok(()) => budget.renew_at(self.confirmed()),
                Err(failure @ Failure::Lost { .. }) => return Some(failure),
                // From the start of one attempt to that of the next.
                Err(_) => now + budget.retry(),
            };
        }
    }

    /// Ends when the queue says unasked that the lock is not ours any more: why.
    pub async fn lost(&self) -> Failure {
        self.lock.lost().await
    }

    /// Settles it, as often as it takes and its lock (and our patience) allows.
    ///
    /// # Errors
    /// What the queue said last.
    pub async fn settle(&self, settlement: &Settlement) -> Result<(), Failure> {
        let begin = Instant::now();
        let confirmed = self.confirmed();
        let patience = match settlement {
            Settlement::Release => RELEASE_PATIENCE,
            Settlement::Complete | Settlement::Retry(_) | Settlement::DeadLetter { .. } => PATIENCE,
        };
        // There is always a first attempt: a lock that has run out is still ours until somebody
        // else takes the message, and the queue knows.
        let lock_end = confirmed + self.lock_time;
        let until = lock_end
            .min(begin + patience)
            .max(begin + ATTEMPT.min(self.lock_time));
        let mut pauses = PAUSES;
        let mut hurry = self.hurry.clone();
        let result = loop {
            // Asked before the attempt: whoever is in a hurry gets one more, and not two.
            let hurried = hurry.as_ref().is_some_and(|hurry| *hurry.borrow());
            let give_up_at = until.min(Instant::now() + ATTEMPT);
            let result = self.lock.settle(settlement, give_up_at).await;
            let Err(Failure::Transient { retry_after, .. }) = &result else {
                break result;
            };
            // Granted as long as one attempt remains before the lock's end: work that was done would be done again.
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

/// Never, where there is nothing to turn.
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
            // What was settled before its command started is nobody else's, for ever.
            lease: self.result().is_none().then_some(self.lock_time),
            ..StoreInfo::default()
        }
    }

    /// It was taken already; and once given back it is over.
    async fn acquire(&self, _give_up_at: Instant) -> Result<Grant, Failure> {
        if self.granted.swap(true, Ordering::AcqRel) {
            // The core competes again after each tenure: this is the answer that ends it.
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

    /// By a task of its own: nobody waits for it any more when the command ends meanwhile, but what
    /// settles the message is in its answer, and is waited for by whatever comes after it.
    async fn renew(&self, give_up_at: Instant) -> Result<(), Failure> {
        let t0 = Instant::now();
        let lock = Arc::clone(&self.lock);
        let (confirmed, renewals) = (Arc::clone(&self.confirmed), Arc::clone(&self.renewals));
        let lock_time = self.lock_time;
        let renewal = tokio::spawn(async move {
            lock.renew(give_up_at).await?;
            // All deadlines of this tenure, and the pace of its renewals, are of the lock that it began
            // with: somebody has made the queue's locks shorter, or a clock that told their length was wrong.
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
            // Here, where nobody can drop it: a renewal that was answered late still counts.
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

    /// Has a patience of its own: the core's is for locks that others wait for.
    async fn release(&self, _give_up_at: Instant) -> Result<(), Failure> {
        if self.result().is_some() {
            return Ok(());
        }
        // Released, as far as the core goes: there is nothing left that anybody could do.
        let Some(settlement) = lock(&self.decision).clone() else {
            return Ok(());
        };
        match self.settle(&settlement).await {
            // Enough was tried: the core is not to begin anew.
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

    /// A lock whose renewals are answered when they are let.
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
    async fn a_renewal_that_nobody_waits_for_any_more_is_carried_through() {
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
    async fn in_a_hurry_a_settlement_is_tried_once_more_and_not_for_a_minute() {
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

    /// Of a service that is busy, and of one that will never say anything else.
    #[tokio::test]
    async fn a_wish_that_outlasts_the_lock_leaves_time_for_one_more_attempt() {
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
    async fn what_is_not_to_be_settled_stays_so_whatever_is_said_later() {
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
    async fn it_is_renewed_until_the_delay_is_over_and_then_may_come_again() {
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
    async fn a_worker_that_leaves_waits_for_no_delay() {
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
    async fn a_lock_that_was_made_much_shorter_is_ours_for_no_longer() {
        let lock = Arc::new(Scripted::default());
        let (held, _budget) = kept(&lock);
        // What came of a slow answer is none.
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
    async fn a_lock_that_was_lost_is_not_settled() {
        let lock = Scripted::renewing([scripted::lost()]);
        let (held, budget) = kept(&lock);
        let (_stay, leaving) = watch::channel(false);
        held.retry_after(Duration::from_secs(86_400), &budget, leaving)
            .await;
        assert_eq!(lock.asked(), []);
        assert!(matches!(held.result(), Some(Err(Failure::Lost { .. }))));
    }
}
