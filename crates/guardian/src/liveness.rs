//! Whether the guardian lives: when the supervisor asks it ([`LivenessTimer`], pure), and who else of
//! this process wants to know ([`HealthCheck`]). One ping serves both.
//!
//! Called by [`super::handle`] each time it looks, after it has read everything that had
//! arrived. It must never take a pause of the supervisor (stopped, starved, suspended) for the
//! silence of the guardian: what was asked before a pause is asked again after it, and only time
//! in which we looked regularly counts.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::Notify;

use trafficcop_core::clock::Instant;

// From one ping to the next. Rare, because each wakes two processes of a machine that may have
// nothing else to do: a guardian that is stopped is asked at once, on the kernel's word, and at the
// deadline all are. What is left for this is one that runs and is stuck.
const EVERY: Duration = Duration::from_secs(4);
// Nothing in its loop waits, so on a sound machine it answers at once: a second is what a starved
// one needs.
const PATIENCE: Duration = Duration::from_secs(1);
// How long it may be silent while it starts a command: a fork, a namespace and an exec are the
// kernel's work, and on a starved machine that takes seconds. What it must do in time is not put
// off by that: see the next.
const PATIENCE_AT_THE_START: Duration = Duration::from_secs(10);
// How long it may be silent once the tree's deadline is reached: less than the margin of the
// shortest lease (500 ms), so that what it does not do is still done in time.
const PATIENCE_AT_THE_END: Duration = Duration::from_millis(100);
// Several times within the patience above, so that it is over by a look and not by a late one.
const LOOK_AT_THE_END: Duration = Duration::from_millis(20);
/// How often to look while an answer is missing.
const LOOK: Duration = Duration::from_millis(150);
// More than twice the time that we sleep while we wait: we were stopped, suspended or starved, and
// the guardian may have answered long ago.
const PAUSE: Duration = Duration::from_millis(400);

/// What a look leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Nothing to do before [`LivenessTimer::next`].
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
    /// Somebody wants to know, and was not yet asked for.
    wanted: bool,
    asked: Instant,
    looked: Instant,
    /// How long we have listened for the answer.
    listened: Duration,
    /// A command is being started.
    starting: bool,
    /// The tree has to be gone very soon.
    urgent: bool,
}

#[expect(clippy::new_without_default, reason = "open for a test only")]
impl LivenessTimer {
    /// Nothing asked; the first look asks.
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

    /// The guardian was told to start a command. The numbers go on: an answer that is still on its way
    /// is none to what is asked from here on.
    pub fn starts(&mut self) {
        *self = LivenessTimer {
            seq: self.seq,
            starting: true,
            ..LivenessTimer::new()
        };
    }

    /// Somebody wants to know now: the next look asks, or the one after the answer that is awaited.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Looks for those who want to know of a guardian that has nothing to guard: its silence is nobody's
    /// business.
    pub fn look_idle(&mut self, now: Instant) -> Beat {
        if self.wanted && self.answered {
            self.ask(now)
        } else {
            Beat::Quiet
        }
    }

    /// The start counts no more: the command was started, or is to go at once.
    pub fn started(&mut self) {
        self.starting = false;
        self.listened = Duration::ZERO;
    }

    /// The deadline is reached: the guardian has to answer anew, and quickly.
    pub fn hurry(&mut self, now: Instant) -> Beat {
        if self.urgent {
            return Beat::Quiet;
        }
        self.urgent = true;
        self.looked = now;
        self.ask(now)
    }

    /// The guardian answered this ping.
    pub fn answered(&mut self, seq: u64) {
        // An older answer may have been on its way since before a pause.
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
        // Asked anew: the answer to the last ping may be older than the pause, and say nothing of
        // now.
        if gap > PAUSE {
            return self.ask(now);
        }
        // Summed up from looks, and not by the clock from the ping on: only while we looked could
        // it be heard.
        // At the deadline a pause of ours is shorter than that, and one late look is no silence either: the
        // answer that came meanwhile is heard before the next.
        self.listened += match self.urgent {
            true => gap.min(PATIENCE_AT_THE_END.saturating_sub(LOOK_AT_THE_END)),
            false => gap,
        };
        let patience = if self.urgent {
            PATIENCE_AT_THE_END
        } else if self.starting {
            PATIENCE_AT_THE_START
        } else {
            PATIENCE
        };
        if self.listened >= patience {
            Beat::Silent
        } else {
            Beat::Quiet
        }
    }

    /// How long after `now` to look again.
    pub fn next(&self, now: Instant) -> Duration {
        if self.answered && self.wanted {
            Duration::ZERO
        } else if self.answered {
            EVERY.saturating_sub(now.since(self.asked))
        } else if self.urgent {
            LOOK_AT_THE_END
        } else {
            LOOK
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

    /// Whether the last ping has been answered.
    pub fn is_answered(&self) -> bool {
        self.answered
    }
}

/// A question that goes once round: from any thread through the supervisor's loop to the guardian, and
/// back. Asked by whoever has to say whether this instance is sound (a health check, a watchdog). It
/// costs nothing while nobody asks, and a guardian that is silent is not asked again before it spoke.
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
        // It leaves a permit where nobody waits yet: the loop may just be doing something else.
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

    /// The number of the latest question: a ping that is sent now is for all up to this one.
    pub(super) fn latest(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
    }

    /// The questions up to this one were answered.
    pub(super) fn answer(&self, number: u64) {
        // The greatest: two answers may come in another order than their questions.
        self.answered.fetch_max(number, Ordering::AcqRel);
        self.told.notify_waiters();
    }
}

/// Resolves when each of them has answered a question that is asked now. It may never resolve.
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
    fn who_answers_is_asked_every_four_seconds() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        liveness.answered(1);
        assert_eq!(liveness.look(at(1)), Beat::Quiet);
        assert_eq!(liveness.next(at(1)), Duration::from_millis(3999));
        assert_eq!(liveness.look(at(4000)), Beat::Ping(2));
    }

    #[test]
    fn who_is_wanted_is_asked_at_once_and_once_at_a_time() {
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
    fn an_answer_from_before_the_start_is_none() {
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
    fn a_start_is_not_waited_for_without_end() {
        let mut liveness = LivenessTimer::new();
        liveness.starts();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        for millis in (150..9950).step_by(150) {
            assert_eq!(liveness.look(at(millis)), Beat::Quiet, "after {millis} ms");
        }
        assert_eq!(liveness.look(at(10_050)), Beat::Silent);
    }

    #[test]
    fn at_the_deadline_one_late_look_is_not_silence() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        liveness.answered(1);
        assert_eq!(liveness.hurry(at(100)), Beat::Ping(2));
        assert_eq!(liveness.look(at(400)), Beat::Quiet);
        // What came meanwhile has been read by now.
        assert_eq!(liveness.look(at(420)), Beat::Silent);
    }

    #[test]
    fn at_the_deadline_a_tenth_of_a_second_is_silence() {
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
    fn a_pause_of_ours_is_not_silence() {
        let mut liveness = LivenessTimer::new();
        assert_eq!(liveness.look(at(0)), Beat::Ping(1));
        assert_eq!(liveness.look(at(150)), Beat::Quiet);
        // Stopped for an hour; the guardian is asked anew, and the answer from before is not one.
        assert_eq!(liveness.look(at(3_600_000)), Beat::Ping(2));
        liveness.answered(1);
        assert!(!liveness.is_answered());
        for millis in (150..1000).step_by(150) {
            assert_eq!(liveness.look(at(3_600_000 + millis)), Beat::Quiet);
        }
        assert_eq!(liveness.look(at(3_601_050)), Beat::Silent);
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
            one.answer(one.latest());
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
