//! A question that goes once round: from any thread through the supervisor's loop to the guardian,
//! and back.
//!
//! Asked by whoever has to say whether this instance is sound (a health check, a watchdog);
//! answered by [`super::handle`]. It must cost nothing while nobody asks, and a guardian that
//! does not answer must not have questions heaped upon it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use tokio::sync::Notify;

/// Marks the number of a ping as one of these questions, and none of the liveness timer's.
const MARK: u64 = 1 << 63;

/// Asks supervisor and guardian for a sign of life.
#[derive(Debug, Default)]
pub struct HealthCheck {
    /// The number of the latest question.
    wanted: AtomicU64,
    /// The number of the latest question that was answered.
    answered: AtomicU64,
    asked: Notify,
    told: Notify,
}

impl HealthCheck {
    /// Resolves when a question that is asked now has been answered: the supervisor's loop has
    /// turned and the guardian has spoken. It may never resolve.
    pub async fn round_trip(&self) {
        let number = self.wanted.fetch_add(1, Ordering::AcqRel) + 1;
        self.asked.notify_one();
        loop {
            let mut told = pin!(self.told.notified());
            // Listening before looking, or an answer between the two would be missed.
            told.as_mut().enable();
            if self.answered.load(Ordering::Acquire) >= number {
                return;
            }
            told.await;
        }
    }

    /// Resolves when somebody asks.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// The number of the ping that is due, if one is: not before the last one was answered.
    pub(super) fn due(&self, sent: u64) -> Option<u64> {
        let wanted = self.wanted.load(Ordering::Acquire);
        let answered = self.answered.load(Ordering::Acquire);
        (wanted > sent && answered == sent).then_some(wanted | MARK)
    }

    /// Takes in the answer to a ping; whether it was one of ours.
    pub(super) fn received(&self, ping: u64) -> bool {
        if ping & MARK == 0 {
            return false;
        }
        self.answered.store(ping & !MARK, Ordering::Release);
        self.told.notify_waiters();
        true
    }

    /// The question that a ping carries.
    pub(super) fn number(ping: u64) -> u64 {
        ping & !MARK
    }
}

/// Resolves when each of them has answered a question that is asked now. It may never resolve.
pub async fn all_answer(health_check: &[Arc<HealthCheck>]) {
    join_all(health_check.iter().map(|one| one.round_trip())).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pulse_s_pings_are_not_ours() {
        let health_check = HealthCheck::default();
        assert!(!health_check.received(1));
        assert_eq!(health_check.due(0), None, "nobody has asked");
    }

    #[tokio::test]
    async fn all_answer_when_the_last_one_has() {
        let health_check = [
            Arc::new(HealthCheck::default()),
            Arc::new(HealthCheck::default()),
        ];
        let ask = {
            let health_check = health_check.clone();
            tokio::spawn(async move { all_answer(&health_check).await })
        };
        for one in &health_check {
            one.asked().await;
            tokio::task::yield_now().await;
            assert!(!ask.is_finished(), "one has not answered");
            assert!(one.received(one.due(0).expect("asked")));
        }
        ask.await.expect("answered");
    }

    #[tokio::test]
    async fn a_question_is_answered_by_its_own_answer_or_a_later_one() {
        let health_check = Arc::new(HealthCheck::default());
        let ask = || {
            let health_check = Arc::clone(&health_check);
            tokio::spawn(async move { health_check.round_trip().await })
        };
        let (first, second) = (ask(), ask());
        health_check.asked().await;
        tokio::task::yield_now().await;
        let ping = health_check.due(0).expect("asked");
        let sent = HealthCheck::number(ping);
        assert_eq!(sent, 2, "one ping for both");
        // A guardian that is silent is asked once, however many ask.
        let third = ask();
        tokio::task::yield_now().await;
        assert_eq!(health_check.due(sent), None);
        assert!(health_check.received(ping));
        first.await.expect("answered");
        second.await.expect("answered");
        assert!(!third.is_finished(), "it asked after the ping was sent");
        let ping = health_check.due(sent).expect("one is waiting");
        assert!(health_check.received(ping));
        third.await.expect("answered");
    }
}
