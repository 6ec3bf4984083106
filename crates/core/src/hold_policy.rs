//! What an instance does with control when its command has ended: start it again, hand control round, keep
//! it a while, or, of a task that is to be done once, say what the run came to. Called by the tenure, by the
//! stores, which keep the records of tasks, and by `config` for [`Restart::limit_is_within_reach`].
//! Pure, and knows no lease, no key and no clock: whether a lease allows a start is decided where the lease
//! is, and which task it is, and in which period, is between `config` and the store.

use std::time::Duration;

use super::Exit;
use super::retry::Backoff;
use crate::clock::Instant;

// Seldom enough that a command which cannot start does not fill the log, often enough that one which
// can again is not waited for.
const LONGEST: Duration = Duration::from_secs(30);

/// From the end of a command to its next start. The first is not at once: what ended because a port was
/// still taken, or a peer was starting, would spend its limit in vain.
pub(super) const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), LONGEST);

// A command that ran this long was well: what it died of now is not what it died of before.
const WELL_AFTER: Duration = Duration::from_secs(60);

/// What to do with control apart from running a command once. The default is nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldPolicy {
    /// Start a command that ended by itself again; `None`: never.
    pub restart: Option<Restart>,
    /// Hand control over when a tenure, counted from its acquire, is this old.
    pub max_hold: Option<Duration>,
    /// Keep the lease until a tenure, counted from its acquire, is this old, although the command
    /// has ended by itself.
    pub min_hold: Option<Duration>,
    /// How long to cool down before competing again after control was handed over; `None`: two
    /// polls.
    pub cooldown: Option<Duration>,
}

/// When a command is started again, and when that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// After which ends.
    pub after: After,
    /// So many restarts within the window; instead of the next one control is handed over.
    pub limit: u32,
    /// See `limit`.
    pub window: Duration,
}

/// The ends after which a command is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// A status other than 0, or a signal.
    Failure,
    /// Every end.
    Any,
}

impl Restart {
    /// Whether a command that ended so is started again.
    #[must_use]
    pub fn applies_to(&self, exit: Exit) -> bool {
        match self.after {
            After::Any => true,
            After::Failure => exit != Exit::Code(0),
        }
    }

    /// What a command that fails at once spends in back-off before the limit is hit.
    #[must_use]
    pub fn time_to_limit(&self) -> Duration {
        // The first eight are summed; by then the back-off has reached its cap, and a limit of four
        // thousand million needs no loop.
        let growing: Duration = (0..self.limit.min(8)).map(|n| BACKOFF.after(n)).sum();
        growing.saturating_add(LONGEST.saturating_mul(self.limit.saturating_sub(8)))
    }

    /// Whether the limit can be hit at all: the back-offs alone may take longer than the window.
    #[must_use]
    pub fn limit_is_within_reach(&self) -> bool {
        self.time_to_limit() < self.window
    }
}

/// The restarts of one tenure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    // Ends in a row after less than [`WELL_AFTER`].
    in_a_row: u32,
    // When restarts were granted, as far as they are within the window.
    recent: Vec<Instant>,
}

impl History {
    /// A command that ran for `ran` ended at `now` and is to be started again: after which
    /// back-off, and as which restart within the window. `None`: the limit is hit.
    pub fn next(&mut self, rule: &Restart, ran: Duration, now: Instant) -> Option<(Duration, u32)> {
        self.recent.retain(|at| now.since(*at) < rule.window);
        let done = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
        // Not counted: whoever is refused one does not use it up.
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

/// The rule of a task that is to be done once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// What a failed run means.
    pub on_failure: OnFailure,
    /// After so many failed runs, of all candidates together, the task has failed; `None`: never.
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
    /// What a run that ended so means, after `failed` runs that failed before it.
    #[must_use]
    pub fn outcome(&self, exit: Exit, failed: u32) -> Outcome {
        let last = match self.on_failure {
            OnFailure::Stop => true,
            OnFailure::Retry => self
                .attempts
                .is_some_and(|most| failed.saturating_add(1) >= most),
        };
        // A success counts whenever it comes: also where others used up the attempts meanwhile.
        Outcome {
            exit,
            over: last || exit == Exit::Code(0),
        }
    }
}

/// What a run came to: what is written into the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How the command ended.
    pub exit: Exit,
    /// Nobody runs it again: it succeeded, or it was the last attempt.
    pub over: bool,
}

/// How a task ended, as its record says: all of it is for people, but for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskResult {
    /// The exit status of the run that settled it (128 + n for signal n).
    pub status: u8,
    /// The identity of the instance that ran it.
    pub holder: String,
    /// When it was recorded (RFC 3339, UTC).
    pub at: String,
    /// The fencing token of the run.
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
    fn the_back_off_doubles_from_one_second_to_thirty() {
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
    fn a_minute_up_begins_the_back_off_anew() {
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
    fn a_limit_that_the_back_off_keeps_out_of_reach_is_known() {
        assert_eq!(rule(5, 300).time_to_limit(), secs(31));
        assert_eq!(rule(10, 300).time_to_limit(), secs(31 + 5 * 30));
        assert!(rule(5, 32).limit_is_within_reach());
        assert!(!rule(5, 31).limit_is_within_reach());
        assert!(!rule(u32::MAX, 300).limit_is_within_reach());
    }

    #[test]
    fn a_success_settles_it_and_a_failure_only_if_it_was_the_last_attempt() {
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
