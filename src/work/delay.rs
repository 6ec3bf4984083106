//! Keeps a message away from everybody for a while, where its queue cannot do that: by its lock.
//!
//! Called by the processor when a command has failed and nothing of it lives any more. Nothing runs
//! meanwhile, so a lock that is lost costs nothing but the rest of the delay.

use std::time::Duration;

use tokio::sync::watch;

use super::lease::MessageLease;
use crate::clock::Instant;
use crate::core::{Budget, Failure};
use crate::lease::LeaseStore as _;
use crate::queue::Settlement;

/// The longest sleep between two looks at the clock: the runtime's stands still while the machine
/// sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Renews the lock until `delay` is over or `leaving` turns true, and settles the message so that it
/// may come again at once.
pub(super) async fn keep(
    held: &MessageLease,
    budget: &Budget,
    delay: Duration,
    mut leaving: watch::Receiver<bool>,
) {
    let due = Instant::now() + delay;
    let lost = tokio::select! {
        // Whoever could tell us is gone.
        _ = leaving.wait_for(|leaving| *leaving) => None,
        lost = renew_until(due, held, budget) => lost,
    };
    match lost {
        Some(failure) => held.lose(failure),
        // Its result is kept.
        None => drop(held.settle(&Settlement::Retry(Duration::ZERO)).await),
    }
}

/// Why the lock was definitely lost before `due`, if it was.
async fn renew_until(due: Instant, held: &MessageLease, budget: &Budget) -> Option<Failure> {
    let mut next = budget.renew_at(held.confirmed());
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
        next = match held.renew(now + budget.attempt).await {
            Ok(()) => budget.renew_at(held.confirmed()),
            Err(failure @ Failure::Lost { .. }) => return Some(failure),
            // From the start of one attempt to that of the next.
            Err(_) => now + budget.retry(),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::work::scripted::{self, Scripted};

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
        keep(&held, &budget, delay, leaving).await;
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
        let keeping = keep(&held, &budget, day, leaving);
        let stop = async {
            tokio::task::yield_now().await;
            leave.send_replace(true);
        };
        tokio::join!(keeping, stop);
        assert_eq!(lock.asked(), [AGAIN]);
    }

    #[tokio::test]
    async fn a_lock_that_was_lost_is_not_settled() {
        let lock = Scripted::renewing([scripted::lost()]);
        let (held, budget) = kept(&lock);
        let (_stay, leaving) = watch::channel(false);
        keep(&held, &budget, Duration::from_secs(86_400), leaving).await;
        assert_eq!(lock.asked(), []);
        assert!(matches!(held.result(), Some(Err(Failure::Lost { .. }))));
    }
}
