//! Divisions of a lease, and limits of restarts.

use std::time::Duration;

use trafficcop_core::{Budget, Exit, OnFailure, Outcome, Restart, Rules};

use super::{ATTEMPT, RETRY};
use crate::alone::plan::{ms, secs};
use crate::alone::world::World;

impl World {
    /// Judges that accepted divisions of a lease are sound, others are refused, and a limit of
    /// restarts that cannot be reached is recognized.
    pub(crate) fn judge_settings(&mut self) {
        let rules = self.plan.rules.clone();
        let mut wrong = rules.budget.is_some_and(|budget| !is_sound(&budget));
        let rng = &mut self.rng;
        let lease = secs(rng.u64(1..61));
        let mut made = Budget {
            lease,
            renew_every: ms(500) * rng.u32(0..40),
            grace_on_loss: ms(500) * rng.u32(0..20),
            margin: lease / 50 + ms(200),
            attempt: secs(rng.u64(1..6)),
        };
        wrong |= made.validate().is_ok() != is_sound(&made);
        made.margin -= Duration::from_nanos(1);
        wrong |= made.validate().is_ok();
        let table = [(15, 5, 3, 1), (30, 10, 5, 1), (60, 20, 10, 2)];
        for (lease, renew, grace, margin) in table {
            let by_default = Budget::for_lease(secs(lease));
            let meant = Budget {
                lease: secs(lease),
                renew_every: secs(renew),
                grace_on_loss: secs(grace),
                margin: secs(margin),
                attempt: ATTEMPT,
            };
            wrong |= by_default != meant;
        }
        let (lock, share) = (ms(rng.u64(2000..400_000)), rng.u32(10..95));
        let whole = Budget::for_lock(lock, share);
        let room = (lock - whole.margin - whole.grace_on_loss).saturating_sub(whole.renew_every);
        let two = (2 * RETRY).min(lock / 4);
        // As late a renewal, and as long a grace, as possible.
        let late = (lock * share / 100).min((lock - whole.margin - whole.grace_on_loss) - two);
        wrong |= !is_sound(&whole) || whole.renew_every != late || whole.attempt > room / 2;
        wrong |= whole.grace_on_loss != (lock / 6).min(secs(10));
        wrong |= whole.margin != (lock / 50 + ms(200)).max((lock / 30).min(secs(2)));
        let most = secs(rng.u64(1..60));
        let early = whole.renewing_within(Some(most));
        wrong |= early.renew_every != whole.renew_every.min(most);
        wrong |= early.attempt > early.renew_every || whole.renewing_within(None) != whole;
        wrong |= Budget {
            lease: Duration::ZERO,
            ..whole
        }
        .validate()
        .is_ok();
        if let Some(rule) = rules.hold_policy.restart {
            let spent: Duration = (0..rule.limit).map(backoff).sum();
            wrong |= rule.time_to_limit() != spent;
            wrong |= rule.limit_is_within_reach() != (spent < rule.window);
            let exact = Restart {
                window: spent,
                ..rule
            };
            wrong |= exact.limit_is_within_reach();
        }
        let health = &self.plan.health;
        let none = health.watchdog.is_none() && health.probe.is_none();
        wrong |= health.is_empty() != none;
        if wrong {
            self.violate("settings that are not sound");
        }
    }
}

/// Whether it keeps the promise with two clocks that are wrong by 1 % each, and one failed attempt
/// has no effect.
fn is_sound(budget: &Budget) -> bool {
    let retry = RETRY.min(budget.attempt);
    let term = budget
        .lease
        .saturating_sub(budget.margin)
        .saturating_sub(budget.grace_on_loss);
    !budget.lease.is_zero()
        && budget.margin >= budget.lease / 50 + ms(200)
        && budget.renew_every >= retry
        && budget.renew_every + 2 * retry <= term
}

pub(super) fn backoff(others: u32) -> Duration {
    secs(1 << others.min(5)).min(secs(30))
}

pub(super) fn outcome(rules: &Rules, exit: Exit, failed: u32) -> Outcome {
    let last = rules.once.is_some_and(|once| match once.on_failure {
        OnFailure::Stop => true,
        OnFailure::Retry => once.attempts.is_some_and(|most| failed + 1 >= most),
    });
    Outcome {
        exit,
        over: last || exit == Exit::Code(0),
    }
}
