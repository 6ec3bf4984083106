//! The table from the end of a command to the settlement of its message.
//!
//! Called once no process of the command is alive. It must never settle a message whose lock was lost or in
//! doubt: another worker may have it.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config;
use crate::core::retry::Backoff;
use crate::core::{Cause, Exit, Failure};
use crate::queue::Settlement;
use crate::units;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// Attempts before a message is dead-lettered, at least 1; `None`: the queue counts.
    pub(super) max_attempts: Option<u32>,
    /// False for a dead-letter queue.
    pub(super) puts_aside: bool,
    pub(super) retry_delay: Backoff,
    pub(super) dead_letter_exit: Vec<RangeInclusive<u8>>,
    pub(super) retry_exit: Vec<RangeInclusive<u8>>,
    pub(super) timeout: Option<Duration>,
    pub(super) at_most_once: bool,
}

/// Final result of a message, for logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Completed,
    Retried,
    DeadLettered,
    /// Completed before its command, which then failed.
    Failed,
    Released,
    /// Removed by the queue: its time had ended, or the queue was deleted.
    Expired,
    /// Not settled: the lock was lost, or in doubt at the deadline.
    Lost,
    /// Not confirmed by the queue: it may come again.
    Unconfirmed,
    /// Refused by the queue: it comes again when its lock has expired.
    Unsettled,
}

impl Outcome {
    pub(super) fn word(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Retried => "retried",
            Outcome::DeadLettered => "dead-lettered",
            Outcome::Failed => "failed",
            Outcome::Released => "released",
            Outcome::Expired => "expired",
            Outcome::Lost => "lost",
            Outcome::Unconfirmed => "unconfirmed",
            Outcome::Unsettled => "unsettled",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// `None`: no request, because another worker may have the lock.
    pub(super) settlement: Option<Settlement>,
    pub(super) outcome: Outcome,
    pub(super) reason: Option<&'static str>,
}

impl Decision {
    fn new(settlement: Settlement, reason: Option<&'static str>) -> Decision {
        let outcome = match settlement {
            Settlement::Complete => Outcome::Completed,
            Settlement::Retry(_) => Outcome::Retried,
            Settlement::DeadLetter { .. } => Outcome::DeadLettered,
            Settlement::Release => Outcome::Released,
        };
        Decision {
            settlement: Some(settlement),
            outcome,
            reason,
        }
    }

    pub(super) fn release(reason: &'static str) -> Decision {
        Decision::new(Settlement::Release, Some(reason))
    }

    pub(super) fn dead_letter(reason: &'static str, detail: String) -> Decision {
        let settlement = Settlement::DeadLetter {
            reason: reason.to_owned(),
            detail,
        };
        Decision::new(settlement, Some(reason))
    }

    /// Returns a decision unless the completion was confirmed. `is_gone`: the message was gone before.
    pub(super) fn not_started(result: &Result<(), Failure>, is_gone: bool) -> Option<Decision> {
        let confirmed = result.is_ok() && !is_gone;
        (!confirmed).then_some(Decision {
            settlement: Some(Settlement::Complete),
            outcome: Outcome::Released,
            reason: Some("NotSettled"),
        })
    }

    pub(super) fn completed_before(self) -> Decision {
        Decision {
            settlement: None,
            outcome: match self.outcome {
                Outcome::Completed => Outcome::Completed,
                _ => Outcome::Failed,
            },
            reason: self.reason,
        }
    }

    pub(super) fn nothing(reason: &'static str) -> Decision {
        Decision {
            settlement: None,
            outcome: Outcome::Lost,
            reason: Some(reason),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub(super) attempt: u32,
    pub(super) cause: Option<&'a Cause>,
    pub(super) exit: Option<Exit>,
    pub(super) timed_out: bool,
}

impl Rules {
    pub(super) fn of(config: &config::Work) -> Rules {
        Rules {
            max_attempts: config.max_attempts,
            puts_aside: config.source.puts_aside(),
            retry_delay: Backoff::new(config.retry_delay.0, config.retry_delay.1),
            dead_letter_exit: config.dead_letter_exit.clone(),
            retry_exit: config.retry_exit.clone(),
            timeout: config.timeout,
            at_most_once: config.at_most_once,
        }
    }

    /// A worker killed with its command never reports.
    pub(super) fn before_running(&self, attempt: u32) -> Option<Decision> {
        // The last attempt is still to be made.
        let most = self.max_attempts.filter(|most| attempt > *most)?;
        let detail = format!(
            "it was taken {attempt} times, --max-attempts is {most}: its workers were stopped or died before the end"
        );
        Some(self.put_aside(attempt, "TooManyAttempts", detail))
    }

    pub(super) fn put_aside(&self, attempt: u32, reason: &'static str, detail: String) -> Decision {
        if self.puts_aside {
            return Decision::dead_letter(reason, detail);
        }
        // From a dead-letter queue: the message comes again after a while.
        Decision::new(Settlement::Retry(self.delay(attempt)), Some(reason))
    }

    pub(super) fn decide(&self, run: &Run<'_>) -> Decision {
        match run.cause {
            Some(Cause::Doubt { .. }) => Decision::nothing("LockInDoubt"),
            Some(Cause::Lost { .. }) => Decision::nothing("LockLost"),
            Some(Cause::CommandEnded | Cause::Stopped(_) | Cause::GuardianLost)
                if run.timed_out =>
            {
                let limit = self.timeout.map(units::show).unwrap_or_default();
                self.failed(
                    run.attempt,
                    "CommandTimedOut",
                    &format!("it ran longer than {limit}"),
                )
            }
            Some(Cause::CommandEnded) => self.ended(run.attempt, run.exit),
            // Even with status 0: it was told to end, so its work may be incomplete.
            Some(Cause::Stopped(_)) => Decision::release("WorkerStopped"),
            Some(Cause::NotStarted { .. }) => Decision::release("NotStarted"),
            Some(Cause::GuardianLost) => Decision::release("GuardianLost"),
            // The lock was granted too late to start anything under it.
            None => Decision::release("NotStarted"),
            Some(
                Cause::HandOver
                | Cause::Cordoned { .. }
                | Cause::Unfit(_)
                | Cause::GivenUp(_)
                | Cause::NotRecorded { .. }
                | Cause::AlreadyDone(_)
                | Cause::NotObtained(_)
                | Cause::Store { .. },
            ) => Decision::release("NotStarted"),
        }
    }

    fn ended(&self, attempt: u32, exit: Option<Exit>) -> Decision {
        let within = |list: &[RangeInclusive<u8>], status: u8| {
            list.iter().any(|range| range.contains(&status))
        };
        match exit {
            Some(Exit::Code(0)) => Decision::new(Settlement::Complete, None),
            Some(Exit::Code(status))
                if within(&self.dead_letter_exit, status) && !within(&self.retry_exit, status) =>
            {
                let detail = format!("exit status {status}");
                self.put_aside(attempt, "CommandRejected", detail)
            }
            Some(Exit::Code(status)) => {
                self.failed(attempt, "CommandFailed", &format!("exit status {status}"))
            }
            Some(Exit::Signal(signal)) => {
                let name = units::signal_name(signal);
                self.failed(attempt, "CommandFailed", &format!("killed by {name}"))
            }
            // An unknown exit cannot count as success.
            None => self.failed(attempt, "CommandFailed", "it is not known how it ended"),
        }
    }

    fn failed(&self, attempt: u32, reason: &'static str, how: &str) -> Decision {
        if let Some(most) = self.max_attempts.filter(|most| attempt >= *most) {
            let detail = format!("{how}, attempt {attempt} of {most}");
            return self.put_aside(attempt, reason, detail);
        }
        Decision::new(Settlement::Retry(self.delay(attempt)), Some(reason))
    }

    pub(super) fn delay(&self, attempt: u32) -> Duration {
        self.retry_delay.after(attempt.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::scripted;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn rules() -> Rules {
        Rules {
            max_attempts: Some(5),
            puts_aside: true,
            retry_delay: Backoff::new(secs(10), secs(300)),
            dead_letter_exit: vec![65..=65],
            retry_exit: vec![75..=75],
            timeout: Some(secs(60)),
            at_most_once: false,
        }
    }

    fn run(attempt: u32, cause: &Cause, exit: Option<Exit>) -> Run<'_> {
        Run {
            attempt,
            cause: Some(cause),
            exit,
            timed_out: false,
        }
    }

    /// Each row of the table, on the first and the last attempt.
    #[test]
    fn each_end_has_its_settlement() {
        let why = || "why".to_owned();
        let ended = Cause::CommandEnded;
        let stopped = Cause::Stopped(15);
        let doubt = Cause::Doubt { why: why() };
        let lost = Cause::Lost { why: why() };
        let not_found = Cause::NotStarted { errno: 2 };
        let guardian = Cause::GuardianLost;
        let code = |status| Some(Exit::Code(status));
        let killed = Some(Exit::Signal(9));
        let (completed, retried, poisoned, released, none) = (
            Outcome::Completed,
            Outcome::Retried,
            Outcome::DeadLettered,
            Outcome::Released,
            Outcome::Lost,
        );
        for (cause, exit, first, last) in [
            (&ended, code(0), completed, completed),
            (&ended, code(65), poisoned, poisoned),
            (&ended, code(75), retried, poisoned),
            (&ended, code(1), retried, poisoned),
            (&ended, code(255), retried, poisoned),
            (&ended, killed, retried, poisoned),
            (&ended, None, retried, poisoned),
            (&doubt, None, none, none),
            (&doubt, code(0), none, none),
            (&doubt, code(65), none, none),
            (&lost, killed, none, none),
            (&lost, code(0), none, none),
            (&not_found, None, released, released),
            (&stopped, None, released, released),
            (&stopped, killed, released, released),
            (&stopped, code(0), released, released),
            (&stopped, code(65), released, released),
            (&guardian, None, released, released),
        ] {
            for (attempt, outcome) in [(1, first), (4, first), (5, last), (6, last)] {
                let decision = rules().decide(&run(attempt, cause, exit));
                assert_eq!(
                    decision.outcome, outcome,
                    "{cause:?} {exit:?}, attempt {attempt}"
                );
                assert_eq!(decision.settlement.is_none(), outcome == Outcome::Lost);
                assert_eq!(decision.reason.is_none(), outcome == Outcome::Completed);
            }
        }
        let nothing_began = Run {
            attempt: 1,
            cause: None,
            exit: None,
            timed_out: false,
        };
        assert_eq!(rules().decide(&nothing_began).outcome, Outcome::Released);
    }

    #[test]
    fn timed_out_run_is_a_failure_whatever_its_exit() {
        for cause in [Cause::CommandEnded, Cause::Stopped(15), Cause::GuardianLost] {
            for exit in [
                Some(Exit::Code(0)),
                Some(Exit::Code(65)),
                Some(Exit::Signal(15)),
            ] {
                for (attempt, outcome) in [(1, Outcome::Retried), (5, Outcome::DeadLettered)] {
                    let mut run = run(attempt, &cause, exit);
                    run.timed_out = true;
                    let decision = rules().decide(&run);
                    assert_eq!(decision.outcome, outcome, "{cause:?} {exit:?}");
                    assert_eq!(decision.reason, Some("CommandTimedOut"));
                }
            }
        }
        let doubt = Cause::Doubt { why: String::new() };
        let mut run = run(1, &doubt, None);
        run.timed_out = true;
        assert_eq!(rules().decide(&run).settlement, None);
    }

    #[test]
    fn dead_letter_reason_names_the_exit() {
        let of = |attempt, exit| {
            let decision = rules().decide(&run(attempt, &Cause::CommandEnded, Some(exit)));
            match decision.settlement {
                Some(Settlement::DeadLetter { reason, detail }) => (reason, detail),
                other => panic!("{other:?}"),
            }
        };
        let pair = |reason: &str, detail: &str| (reason.to_owned(), detail.to_owned());
        assert_eq!(
            of(1, Exit::Code(65)),
            pair("CommandRejected", "exit status 65")
        );
        assert_eq!(
            of(5, Exit::Code(3)),
            pair("CommandFailed", "exit status 3, attempt 5 of 5")
        );
        assert_eq!(
            of(7, Exit::Signal(9)),
            pair("CommandFailed", "killed by SIGKILL, attempt 7 of 5")
        );
    }

    #[test]
    fn retry_statuses_are_exceptions_from_the_others() {
        let rules = Rules {
            dead_letter_exit: vec![1..=255],
            retry_exit: vec![75..=75, 110..=112],
            ..rules()
        };
        for (status, outcome) in [
            (0, Outcome::Completed),
            (1, Outcome::DeadLettered),
            (75, Outcome::Retried),
            (109, Outcome::DeadLettered),
            (110, Outcome::Retried),
            (112, Outcome::Retried),
            (113, Outcome::DeadLettered),
        ] {
            let decision = rules.decide(&run(1, &Cause::CommandEnded, Some(Exit::Code(status))));
            assert_eq!(decision.outcome, outcome, "{status}");
        }
    }

    #[test]
    fn message_taken_too_often_is_dead_lettered_without_a_run() {
        assert_eq!(rules().before_running(1), None);
        assert_eq!(rules().before_running(5), None);
        let decision = rules().before_running(6).unwrap();
        assert_eq!(decision.outcome, Outcome::DeadLettered);
        assert_eq!(decision.reason, Some("TooManyAttempts"));
    }

    #[test]
    fn without_max_attempts_the_queue_counts() {
        let rules = Rules {
            max_attempts: None,
            ..rules()
        };
        assert_eq!(rules.before_running(u32::MAX), None);
        let of = |status| {
            let exit = Some(Exit::Code(status));
            rules.decide(&run(u32::MAX, &Cause::CommandEnded, exit))
        };
        assert_eq!(of(1).outcome, Outcome::Retried);
        assert_eq!(of(65).outcome, Outcome::DeadLettered);
    }

    #[test]
    fn command_starts_only_after_its_completion_was_confirmed() {
        let not_started = |result, is_gone| Decision::not_started(&result, is_gone);
        assert_eq!(not_started(Ok(()), false), None);
        for (result, is_gone) in [
            (Ok(()), true),
            (scripted::transient(), false),
            (scripted::lost(), false),
            (scripted::refused(), false),
        ] {
            let decision = not_started(result, is_gone).unwrap();
            assert_eq!(decision.reason, Some("NotSettled"));
            assert_ne!(decision.outcome, Outcome::Completed);
        }
    }

    #[test]
    fn completed_message_is_not_settled_again() {
        for (exit, outcome) in [
            (0, Outcome::Completed),
            (1, Outcome::Failed),
            (65, Outcome::Failed),
        ] {
            for attempt in [1, 5] {
                let exit = Some(Exit::Code(exit));
                let decision = rules().decide(&run(attempt, &Cause::CommandEnded, exit));
                let decision = decision.completed_before();
                assert_eq!((decision.settlement, decision.outcome), (None, outcome));
            }
        }
    }

    #[test]
    fn dead_letter_is_not_dead_lettered_again() {
        let rules = Rules {
            puts_aside: false,
            ..rules()
        };
        for decision in [
            rules.before_running(6).unwrap(),
            rules.decide(&run(1, &Cause::CommandEnded, Some(Exit::Code(65)))),
            rules.decide(&run(5, &Cause::CommandEnded, Some(Exit::Code(1)))),
            rules.put_aside(1, "TooLarge", "too large".into()),
        ] {
            assert_eq!(decision.outcome, Outcome::Retried, "{decision:?}");
            assert!(
                matches!(decision.settlement, Some(Settlement::Retry(after)) if !after.is_zero())
            );
        }
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let delays: Vec<u64> = (1..=8).map(|n| rules().delay(n).as_secs()).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(rules().delay(u32::MAX), secs(300));
        let none = Rules {
            retry_delay: Backoff::new(Duration::ZERO, secs(300)),
            ..rules()
        };
        assert_eq!(none.delay(9), Duration::ZERO);
    }
}
