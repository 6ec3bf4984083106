//! Policy of an instance whose command has ended: restart it, hand control over, keep control a while, or
//! record the result of a task.

use std::time::Duration;

use super::Exit;
use super::retry::Backoff;
use crate::clock::Instant;

// Long enough not to fill the log with failed starts, short enough to notice soon that the command can
// start.
const LONGEST: Duration = Duration::from_secs(30);

/// Pauses from a command's end to its next start. The first is not zero: a port still taken, or a peer
/// still starting, would use up the restarts.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), LONGEST);

// A command that ran this long was well: earlier failures count no more.
const WELL_AFTER: Duration = Duration::from_secs(60);

/// Policy for control, apart from running a command once. The default does nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldPolicy {
    /// Restarts of a command that ended by itself.
    pub restart: Option<Restart>,
    /// Longest tenure, from its acquire; then control is handed over.
    pub max_hold: Option<Duration>,
    /// Shortest tenure, from its acquire, even if the command ends by itself.
    pub min_hold: Option<Duration>,
    /// Time before this instance competes again after a hand-over; `None`: two polls.
    pub cooldown: Option<Duration>,
}

/// Rule of restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Ends that lead to a restart.
    pub after: After,
    /// Most restarts within the window; then control is handed over.
    pub limit: u32,
    /// Window of `limit`.
    pub window: Duration,
}

/// Ends after which a command is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// A status other than 0, or a signal.
    Failure,
    /// Every end.
    Any,
}

impl Restart {
    /// Tells whether a command that ended so is started again.
    #[must_use]
    pub fn applies_to(&self, exit: Exit) -> bool {
        match self.after {
            After::Any => true,
            After::Failure => exit != Exit::Code(0),
        }
    }

    /// Returns the total back-off of a command that fails at once until the limit.
    #[must_use]
    pub fn time_to_limit(&self) -> Duration {
        // The back-off reaches its cap within eight; a limit of four thousand million needs no loop.
        let growing: Duration = (0..self.limit.min(8)).map(|n| BACKOFF.after(n)).sum();
        growing.saturating_add(LONGEST.saturating_mul(self.limit.saturating_sub(8)))
    }

    /// Tells whether the back-offs leave the limit within reach.
    #[must_use]
    pub fn limit_is_within_reach(&self) -> bool {
        self.time_to_limit() < self.window
    }
}

/// Restarts of one tenure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    in_a_row: u32,
    recent: Vec<Instant>,
}

impl History {
    /// Returns the back-off and the number within the window of a restart, after a run of `ran`; `None` at
    /// the limit.
    pub fn next(&mut self, rule: &Restart, ran: Duration, now: Instant) -> Option<(Duration, u32)> {
        self.recent.retain(|at| now.since(*at) < rule.window);
        let done = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
        if done >= rule.limit {
            return None;
        }
        self.recent.push(now);
        if ran >= WELL_AFTER {
            self.in_a_row = 0;
        }
        let wait = BACKOFF.after(self.in_a_row);
        self.in_a_row = self.in_a_row.saturating_add(1);
        Some((wait, done + 1))
    }
}

/// Rule of a task that is to be done once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// Meaning of a failed run.
    pub on_failure: OnFailure,
    /// Most failed runs, of all candidates together; `None`: no limit.
    pub attempts: Option<u32>,
}

/// What a failed run means; as it is typed, with its help.
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// After a back-off of 1 to 30 seconds the next candidate runs the command
    #[default]
    Retry,
    /// The task has failed: that is recorded, and all instances exit with the command's status
    Stop,
}

impl Once {
    /// Returns the outcome of a run after `failed` failed runs.
    #[must_use]
    pub fn outcome(&self, exit: Exit, failed: u32) -> Outcome {
        let last = match self.on_failure {
            OnFailure::Stop => true,
            OnFailure::Retry => self
                .attempts
                .is_some_and(|most| failed.saturating_add(1) >= most),
        };
        // A success counts even if other candidates used up the attempts meanwhile.
        Outcome {
            exit,
            over: last || exit == Exit::Code(0),
        }
    }
}

/// Recorded outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// End of the command.
    pub exit: Exit,
    /// The task succeeded, or this was the last attempt.
    pub over: bool,
}

/// Result of a task, from its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskResult {
    /// Exit status of the run that settled the task (128 + n for signal n).
    pub status: u8,
    /// Instance that ran it.
    pub holder: String,
    /// Moment of the record (RFC 3339, UTC).
    pub at: String,
    /// Fencing token of the run.
    pub token: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Instant = Instant::from_nanos(1_000_000_000_000);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn rule(limit: u32, window: u64) -> Restart {
        Restart {
            after: After::Any,
            limit,
            window: secs(window),
        }
    }

    #[test]
    fn back_off_doubles_from_one_second_to_thirty() {
        let mut history = History::default();
        let waits: Vec<u64> = (0..40)
            .map(|n| {
                let rule = rule(100, 1000);
                history.next(&rule, secs(0), T + secs(n)).unwrap().0
            })
            .map(|wait| wait.as_secs())
            .collect();
        assert_eq!(waits[..7], [1, 2, 4, 8, 16, 30, 30]);
        assert!(waits[7..].iter().all(|wait| *wait == 30));
    }

    #[test]
    fn run_of_a_minute_resets_the_back_off() {
        let mut history = History::default();
        let mut wait = |ran| history.next(&rule(100, 1000), ran, T).unwrap().0;
        assert_eq!(wait(secs(0)), secs(1));
        assert_eq!(wait(secs(59)), secs(2));
        assert_eq!(wait(secs(60)), secs(1));
        assert_eq!(wait(secs(0)), secs(2));
    }

    #[test]
    fn the_limit_counts_restarts_within_the_window_only() {
        let mut history = History::default();
        let rule = rule(2, 100);
        let mut number = |n| {
            history
                .next(&rule, secs(60), T + secs(n))
                .map(|next| next.1)
        };
        assert_eq!(number(0), Some(1));
        assert_eq!(number(50), Some(2));
        assert_eq!(number(99), None);
        assert_eq!(number(100), Some(2), "the first is out of the window");
        assert_eq!(number(149), None);
    }

    #[test]
    fn on_failure_means_a_status_or_a_signal() {
        let mut rule = rule(1, 1);
        assert!(rule.applies_to(Exit::Code(0)));
        rule.after = After::Failure;
        assert!(!rule.applies_to(Exit::Code(0)));
        assert!(rule.applies_to(Exit::Code(1)));
        assert!(rule.applies_to(Exit::Signal(9)));
    }

    #[test]
    fn limit_that_the_back_off_keeps_out_of_reach_is_known() {
        assert_eq!(rule(5, 300).time_to_limit(), secs(31));
        assert_eq!(rule(10, 300).time_to_limit(), secs(31 + 5 * 30));
        assert!(rule(5, 32).limit_is_within_reach());
        assert!(!rule(5, 31).limit_is_within_reach());
        assert!(!rule(u32::MAX, 300).limit_is_within_reach());
    }

    #[test]
    fn success_settles_a_task_and_a_failure_only_on_the_last_attempt() {
        let (done, failed, killed) = (Exit::Code(0), Exit::Code(3), Exit::Signal(9));
        for (on_failure, attempts, before, fails_for_good) in [
            (OnFailure::Retry, None, 0, false),
            (OnFailure::Retry, None, u32::MAX, false),
            (OnFailure::Retry, Some(3), 0, false),
            (OnFailure::Retry, Some(3), 1, false),
            (OnFailure::Retry, Some(3), 2, true),
            (OnFailure::Retry, Some(3), 9, true),
            (OnFailure::Retry, Some(1), 0, true),
            (OnFailure::Stop, None, 0, true),
        ] {
            let once = Once {
                on_failure,
                attempts,
            };
            assert!(once.outcome(done, before).over);
            for exit in [failed, killed] {
                let outcome = once.outcome(exit, before);
                assert_eq!(outcome.over, fails_for_good, "{once:?} after {before}");
                assert_eq!(outcome.exit, exit);
            }
        }
    }
}
