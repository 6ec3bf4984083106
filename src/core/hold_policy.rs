//! What an instance does with control it could keep: start a command that ended again, hand
//! control round, keep it a while after a short command.
//!
//! Called by the tenure, and by `config` for [`Restart::limit_is_within_reach`]. Pure, and knows
//! no lease: whether a lease allows a start is decided where the lease is.

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
}
