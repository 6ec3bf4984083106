//! Liveness of the guardian: [`LivenessTimer`] (pure) decides when the supervisor pings it, and [`HealthCheck`]
//! lets the rest of the process ask. One ping serves both.
//!
//! A pause of the supervisor (stopped, starved, suspended) must never count as silence of the guardian: only
//! time in which it looked regularly counts, and after a pause it pings again.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::Notify;

use trafficcop_core::clock::Instant;

// Rare, because each ping wakes two processes of an idle machine. It is for a stuck guardian: a stopped one is
// pinged at once, on the kernel's report, and all are at the deadline.
const EVERY: Duration = Duration::from_secs(4);
// The guardian's loop never blocks: only a starved machine needs a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
// A start: fork, namespace and exec take seconds on a starved machine. No kill waits for this: see the next.
const PATIENCE_AT_THE_START: Duration = Duration::from_secs(10);
// At the deadline: less than the margin of the shortest lease (500 ms), so that the supervisor can still kill
// in time.
const PATIENCE_AT_THE_END: Duration = Duration::from_millis(100);
// No single late look decides.
const LOOK_AT_THE_END: Duration = Duration::from_millis(20);
/// Time between looks while an answer is missing.
const ANSWER_INTERVAL: Duration = Duration::from_millis(150);
// A longer gap means that this process was stopped, suspended or starved: the guardian may have answered long
// ago.
const PAUSE: Duration = Duration::from_millis(400);

/// Result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// No action before [`LivenessTimer::next`].
    Quiet,
    /// Send a ping with this number.
    Ping(u64),
    /// The guardian did not answer in time.
    Silent,
}

#[derive(Clone, Copy, Debug)]
pub struct LivenessTimer {
    seq: u64,
    answered: bool,
    /// A caller waits for the next ping.
    wanted: bool,
    asked: Instant,
    looked: Instant,
    listened: Duration,
    starting: bool,
    urgent: bool,
}

#[expect(clippy::new_without_default, reason = "open for a test only")]
impl LivenessTimer {
    /// Makes a timer whose first look pings.
    pub fn new() -> LivenessTimer {
        LivenessTimer {
            seq: 0,
            answered: true,
            wanted: false,
            asked: Instant::ZERO,
            looked: Instant::ZERO,
            listened: Duration::ZERO,
            starting: false,
            urgent: false,
        }
    }

    /// Begins anew with a start. The numbers go on: a late answer must not count.
    pub fn starts(&mut self) {
        *self = LivenessTimer {
            seq: self.seq,
            starting: true,
            ..LivenessTimer::new()
        };
    }

    /// Requests a ping at the next look, or after the awaited answer.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Looks while there is nothing to guard: silence has no consequence.
    pub fn look_idle(&mut self, now: Instant) -> Beat {
        if self.wanted && self.answered {
            self.ask(now)
        } else {
            Beat::Quiet
        }
    }

    /// Ends the long patience of a start.
    pub fn started(&mut self) {
        self.starting = false;
        self.listened = Duration::ZERO;
    }

    /// Pings anew at the deadline.
    pub fn hurry(&mut self, now: Instant) -> Beat {
        if self.urgent {
            return Beat::Quiet;
        }
        self.urgent = true;
        self.looked = now;
        self.ask(now)
    }

    /// Notes an answer.
    pub fn answered(&mut self, seq: u64) {
        // An older answer may date from before a pause.
        self.answered |= seq == self.seq;
    }

    /// Looks at the clock.
    pub fn look(&mut self, now: Instant) -> Beat {
        let gap = now.since(self.looked);
        self.looked = now;
        if self.answered {
            return if self.wanted || now.since(self.asked) >= EVERY {
                self.ask(now)
            } else {
                Beat::Quiet
            };
        }
        // The last answer may be older than the pause.
        if gap > PAUSE {
            return self.ask(now);
        }
        // Count looks: an answer can only be read in them. At the deadline, too, one late look is no silence: a
        // new answer is read before the next.
        self.listened += match self.urgent {
            true => gap.min(PATIENCE_AT_THE_END.saturating_sub(LOOK_AT_THE_END)),
            false => gap,
        };
        let patience = if self.urgent {
            PATIENCE_AT_THE_END
        } else if self.starting {
            PATIENCE_AT_THE_START
        } else {
            ANSWER_TIMEOUT
        };
        if self.listened >= patience {
            Beat::Silent
        } else {
            Beat::Quiet
        }
    }

    /// Returns the time to the next look.
    pub fn next(&self, now: Instant) -> Duration {
        if self.answered && self.wanted {
            Duration::ZERO
        } else if self.answered {
            EVERY.saturating_sub(now.since(self.asked))
        } else if self.urgent {
            LOOK_AT_THE_END
        } else {
            ANSWER_INTERVAL
        }
    }

    fn ask(&mut self, now: Instant) -> Beat {
        self.seq += 1;
        self.answered = false;
        self.wanted = false;
        self.asked = now;
        self.listened = Duration::ZERO;
        Beat::Ping(self.seq)
    }

    /// Whether the last ping is answered.
    pub fn is_answered(&self) -> bool {
        self.answered
    }
}

/// Question from any thread through the supervisor's loop to the guardian, and back: whether this instance
/// works. A silent guardian gets no further ping.
#[derive(Debug, Default)]
pub struct HealthCheck {
    wanted: AtomicU64,
    answered: AtomicU64,
    asked: Notify,
    told: Notify,
}

impl HealthCheck {
    /// Asks, and resolves when the supervisor's loop has turned and the guardian has answered, perhaps never.
    pub async fn round_trip(&self) {
        let number = self.wanted.fetch_add(1, Ordering::AcqRel) + 1;
        // Leaves a permit if the loop is busy.
        self.asked.notify_one();
        loop {
            let mut told = pin!(self.told.notified());
            // Before the look, or an answer between the two would be missed.
            told.as_mut().enable();
            if self.answered.load(Ordering::Acquire) >= number {
                return;
            }
            told.await;
        }
    }

    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// A ping that is sent now serves all questions up to this one.
    pub(super) fn latest(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    pub(super) fn answer(&self, number: u64) {
        // Answers may come out of order.
        self.answered.fetch_max(number, Ordering::AcqRel);
        self.told.notify_waiters();
    }
}

/// Asks each of them, and resolves when all have answered, perhaps never.
pub async fn all_answer(health_check: &[Arc<HealthCheck>]) {
    join_all(health_check.iter().map(|one| one.round_trip())).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1000) + Duration::from_millis(millis)
    }

    #[test]
    fn ping_is_repeated_every_four_seconds_after_an_answer() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        liveness.answered(1);
        assert_eq!(liveness.look(at(1)), Beat::Quiet);
        assert_eq!(liveness.next(at(1)), Duration::from_millis(3999));
        assert_eq!(liveness.look(at(4000)), Beat::Ping(2));
    }

    #[test]
    fn wanted_ping_is_sent_at_once_or_after_the_awaited_answer() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        liveness.want();
        assert_eq!(liveness.look(at(1)), Beat::Quiet, "one is on its way");
        liveness.answered(1);
        assert_eq!(liveness.next(at(2)), Duration::ZERO);
        assert_eq!(liveness.look(at(2)), Beat::Ping(2));
        liveness.answered(2);
        assert_eq!(liveness.look_idle(at(3)), Beat::Quiet);
        liveness.want();
        assert_eq!(liveness.look_idle(at(3)), Beat::Ping(3));
        assert_eq!(
            liveness.look_idle(at(9000)),
            Beat::Quiet,
            "nothing to guard"
        );
    }

    #[test]
    fn answer_from_before_the_start_does_not_count() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        liveness.starts();
        assert_eq!(liveness.look(at(1)), Beat::Ping(2));
        liveness.answered(1);
        assert!(!liveness.is_answered());
    }

    #[test]
    fn a_second_without_an_answer_is_silence() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        for millis in (150..1000).step_by(150) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "after {millis} ms");
        }
        assert_eq!(liveness.look(at(1050)), Beat::Silent);
    }

    #[test]
    fn a_start_may_take_its_time_but_not_past_the_deadline() {
        let mut liveness = LivenessTimer::new();
        liveness.starts();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        for millis in (150..5000).step_by(150) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "after {millis} ms");
        }
        let mut late = liveness;
        assert_eq!(late.hurry(at(5000)), Beat::Ping(2));
        assert_eq!(late.look(at(5080)), Beat::Quiet);
        assert_eq!(late.look(at(5100)), Beat::Silent);
        liveness.started();
        for millis in (5100..6000).step_by(150) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "after {millis} ms");
        }
        assert_eq!(liveness.look(at(6150)), Beat::Silent);
    }

    #[test]
    fn start_without_an_answer_becomes_silence() {
        let mut liveness = LivenessTimer::new();
        liveness.starts();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        for millis in (150..9950).step_by(150) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "after {millis} ms");
        }
        assert_eq!(liveness.look(at(10_050)), Beat::Silent);
    }

    #[test]
    fn one_late_look_at_the_deadline_is_not_silence() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        liveness.answered(1);
        assert_eq!(liveness.hurry(at(100)), Beat::Ping(2));
        assert_eq!(liveness.look(at(400)), Beat::Quiet);
        assert_eq!(liveness.look(at(420)), Beat::Silent);
    }

    #[test]
    fn tenth_of_a_second_at_the_deadline_is_silence() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        liveness.answered(1);
        assert_eq!(liveness.hurry(at(100)), Beat::Ping(2));
        assert_eq!(liveness.hurry(at(100)), Beat::Quiet, "once");
        for millis in (120..200).step_by(20) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "at {millis} ms");
        }
        assert_eq!(liveness.look(at(200)), Beat::Silent);
    }

    #[test]
    fn pause_of_the_supervisor_is_not_silence() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        assert_eq!(liveness.look(at(150)), Beat::Quiet);
        // The supervisor was stopped for an hour.
        assert_eq!(liveness.look(at(3_600_000)), Beat::Ping(2));
        liveness.answered(1);
        assert!(!liveness.is_answered());
        for millis in (150..1000).step_by(150) {
            assert_eq!(liveness.look(at(3_600_000 + millis)), Beat::Quiet);
        }
        assert_eq!(liveness.look(at(3_601_050)), Beat::Silent);
    }

    #[tokio::test]
    async fn all_answer_resolves_after_the_last_answer() {
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
            one.answer(one.latest());
        }
        ask.await.expect("answered");
    }

    #[tokio::test]
    async fn round_trip_resolves_with_its_own_or_a_later_answer() {
        let health_check = Arc::new(HealthCheck::default());
        let ask = || {
            let health_check = Arc::clone(&health_check);
            tokio::spawn(async move { health_check.round_trip().await })
        };
        let (first, second) = (ask(), ask());
        health_check.asked().await;
        tokio::task::yield_now().await;
        let sent = health_check.latest();
        assert_eq!(sent, 2, "one ping for both");
        let third = ask();
        tokio::task::yield_now().await;
        health_check.answer(sent);
        first.await.expect("answered");
        second.await.expect("answered");
        assert!(!third.is_finished(), "it asked after the ping was sent");
        health_check.asked().await;
        health_check.answer(health_check.latest());
        third.await.expect("answered");
    }
}
