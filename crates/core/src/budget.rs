//! Arithmetic of a lease's time: when to renew, drain and kill.
//!
//! ```text
//! t0 ──────── renew ──────── term_at ──────── kill_at ─ margin ─ expiry = t0 + lease
//! ```
//! Knows no store: `config` checks the limits of each kind of lease (15 to 60 s on a blob).

use std::fmt;
use std::time::Duration;

use crate::clock::Instant;

/// Longest time for one attempt to acquire, renew or release.
// A dead connection shows only when an attempt gives up, and a lease of 15 s needs time for another one.
pub const ATTEMPT: Duration = Duration::from_secs(5);

/// Time from the start of a failed attempt to the start of the next (±20 %).
pub const RETRY: Duration = Duration::from_secs(2);

/// Time after which an unanswered request is no longer on its way.
// The store may grant an acquire that late, and the lease lasts from there.
pub const LATE: Duration = Duration::from_secs(5);

// Two clocks, each off by 1 % in opposite directions, part by a fiftieth of the lease. Crystals are a
// hundred times better; clocks of virtual machines sometimes are not.
pub(super) const DRIFT: u32 = 50;

// Time of a SIGKILL to a whole tree on a busy machine.
const KILLING: Duration = Duration::from_millis(200);

/// Division of a lease's time (design section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Time of a grant at the store.
    pub lease: Duration,
    /// Time from one renewal to the next.
    pub renew_every: Duration,
    /// Time from SIGTERM to SIGKILL when control is in doubt.
    pub grace_on_loss: Duration,
    /// Time from SIGKILL to the end of the lease.
    pub margin: Duration,
    /// Longest time for one attempt to renew.
    pub attempt: Duration,
}

/// Inequality that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Lease without a length.
    #[error("--lease is 0 s: a lease needs a length")]
    NoLease,
    /// Renewals would come faster than retries.
    #[error(
        "renewing every {} is more often than the {} between two attempts: raise --lease",
        Seconds(*renew_every), Seconds(RETRY)
    )]
    RenewsTooOften {
        /// Time from one renewal to the next.
        renew_every: Duration,
    },
    /// The lease may end before the SIGKILL has worked.
    #[error(
        "--margin {} is too short for --lease {}: two clocks that are each off by 1 % and a SIGKILL need {}",
        Seconds(*margin), Seconds(*lease), Seconds(*least)
    )]
    MarginTooShort {
        /// Margin.
        margin: Duration,
        /// Lease.
        lease: Duration,
        /// Smallest sound margin.
        least: Duration,
    },
    /// One lost packet would stop the command.
    #[error(
        "no room for two attempts to renew: the first comes {} after the last success and two need {}, \
         but SIGTERM is due after {} (--lease {} less --grace-on-loss {} less --margin {}): \
         raise --lease or lower --grace-on-loss",
        Seconds(budget.renew_every), Seconds(2 * RETRY), Seconds(budget.term_after()),
        Seconds(budget.lease), Seconds(budget.grace_on_loss), Seconds(budget.margin)
    )]
    NoSecondAttempt {
        /// Division of the lease.
        budget: Budget,
    },
}

impl Budget {
    /// Returns the default division: renewal after a third, grace of a sixth (1 to 10 whole seconds),
    /// margin of a thirtieth (whole seconds). The grace is 1 s if two attempts would not fit in.
    #[must_use]
    pub fn for_lease(lease: Duration) -> Budget {
        let budget = Budget {
            lease,
            // A store may be away for almost half of the lease without harm.
            renew_every: lease / 3,
            grace_on_loss: whole_seconds(lease / 6).min(Duration::from_secs(10)),
            margin: whole_seconds(lease / 30),
            attempt: ATTEMPT,
        };
        // The case of a shared drive's shortest lease.
        match budget.validate() {
            Err(BudgetError::NoSecondAttempt { .. }) => Budget {
                grace_on_loss: Duration::from_secs(1),
                ..budget
            },
            _ => budget,
        }
    }

    /// Returns the division of a message's lock, of any length.
    ///
    /// The grace is a sixth (at most 10 s). The margin is a thirtieth (at most 2 s), or more if the clocks
    /// demand it. The renewal is at `share` per cent of the lock, or earlier if two attempts would not fit
    /// in before SIGTERM. They need 4 s, or a quarter of a shorter lock than 16 s. An attempt takes at most
    /// half of the time from the renewal to SIGTERM, and at most `renew_every`.
    #[must_use]
    pub fn for_lock(lock: Duration, share: u32) -> Budget {
        // The rules of `validate`, turned round: the queue sets the lock's time.
        let least = lock / DRIFT + KILLING;
        let margin = least.max((lock / 30).min(Duration::from_secs(2)));
        let grace_on_loss = (lock / 6).min(Duration::from_secs(10));
        let term_after = lock.saturating_sub(margin).saturating_sub(grace_on_loss);
        let two = (2 * RETRY).min(lock / 4);
        let renew_every = (lock * share / 100).min(term_after.saturating_sub(two));
        let room = term_after.saturating_sub(renew_every);
        Budget {
            lease: lock,
            renew_every,
            grace_on_loss,
            margin,
            attempt: ATTEMPT.min(room / 2).min(renew_every),
        }
    }

    /// Returns this division with renewals at most `most` apart, for a lock whose length comes from
    /// comparing two clocks.
    #[must_use]
    pub fn renewing_within(self, most: Option<Duration>) -> Budget {
        let renew_every = most.map_or(self.renew_every, |most| self.renew_every.min(most));
        Budget {
            renew_every,
            attempt: self.attempt.min(renew_every),
            ..self
        }
    }

    /// Time from the start of a failed attempt to renew to the start of the next.
    #[must_use]
    pub fn retry(&self) -> Duration {
        RETRY.min(self.attempt)
    }

    /// Moment from which others may acquire.
    #[must_use]
    pub fn expiry(&self, t0: Instant) -> Instant {
        t0 + self.lease
    }

    /// Moment before which no other instance can have control, however far the clocks have parted.
    #[must_use]
    pub fn others_from(&self, t0: Instant) -> Instant {
        // The other clock may be the one that runs fast.
        t0 + (self.lease - self.lease / DRIFT)
    }

    /// Moment at which the whole tree must be killed.
    #[must_use]
    pub fn kill_at(&self, t0: Instant) -> Instant {
        t0 + self.lease.saturating_sub(self.margin)
    }

    /// Moment at which doubt becomes a drain.
    #[must_use]
    pub fn term_at(&self, t0: Instant) -> Instant {
        t0 + self.term_after()
    }

    /// Moment of the next renewal.
    #[must_use]
    pub fn renew_at(&self, t0: Instant) -> Instant {
        t0 + self.renew_every
    }

    /// Checks that this division keeps the promise and survives one failed attempt.
    ///
    /// # Errors
    /// The first inequality that does not hold.
    pub fn validate(&self) -> Result<(), BudgetError> {
        if self.lease.is_zero() {
            return Err(BudgetError::NoLease);
        }
        let least = self.lease / DRIFT + KILLING;
        if self.margin < least {
            return Err(BudgetError::MarginTooShort {
                margin: self.margin,
                lease: self.lease,
                least,
            });
        }
        let retry = self.retry();
        if self.renew_every < retry {
            return Err(BudgetError::RenewsTooOften {
                renew_every: self.renew_every,
            });
        }
        if self.renew_every.saturating_add(2 * retry) > self.term_after() {
            return Err(BudgetError::NoSecondAttempt { budget: *self });
        }
        Ok(())
    }

    fn term_after(&self) -> Duration {
        // `validate` refuses the zero of a grace longer than the lease.
        self.lease
            .saturating_sub(self.margin)
            .saturating_sub(self.grace_on_loss)
    }
}

fn whole_seconds(span: Duration) -> Duration {
    let up = span.as_secs() + u64::from(span.subsec_nanos() > 0);
    Duration::from_secs(up.max(1))
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.subsec_millis();
        if millis == 0 {
            return write!(f, "{} s", self.0.as_secs());
        }
        let digits = format!("{millis:03}");
        let digits = digits.trim_end_matches('0');
        write!(f, "{}.{digits} s", self.0.as_secs())
    }
}

/// Moments until which a command may run without a later word from the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Moment at which the guardian drains on its own.
    pub term_at: Instant,
    /// Moment at which the guardian kills on its own.
    pub kill_at: Instant,
}

impl Deadlines {
    /// No deadlines: the guardian ends nothing on its own.
    pub const NONE: Deadlines = Deadlines {
        term_at: Instant::FOREVER,
        kill_at: Instant::FOREVER,
    };

    /// Returns the earlier of the two.
    #[must_use]
    pub fn first(self) -> Instant {
        self.term_at.min(self.kill_at)
    }
}

/// Order to start the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Deadlines until a renewal moves them.
    pub deadlines: Deadlines,
    /// Moment after which the store must confirm the lease before anything starts.
    pub fresh_until: Instant,
    /// Fencing token of the tenure.
    pub token: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::SHORTEST_LEASE;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn default_division_has_the_documented_values() {
        for (lease, renew, grace, margin, term, kill) in [
            (60, 20, 10, 2, 48, 58),
            (30, 10, 5, 1, 24, 29),
            (15, 5, 3, 1, 11, 14),
        ] {
            let budget = Budget::for_lease(secs(lease));
            let t0 = Instant::ZERO + secs(1000);
            assert_eq!(budget.renew_at(t0), t0 + secs(renew), "lease {lease}");
            assert_eq!(budget.grace_on_loss, secs(grace), "lease {lease}");
            assert_eq!(budget.margin, secs(margin), "lease {lease}");
            assert_eq!(budget.term_at(t0), t0 + secs(term), "lease {lease}");
            assert_eq!(budget.kill_at(t0), t0 + secs(kill), "lease {lease}");
            assert_eq!(budget.expiry(t0), t0 + secs(lease), "lease {lease}");
            assert_eq!(budget.validate(), Ok(()), "lease {lease}");
        }
    }

    #[test]
    fn every_default_is_sound() {
        for lease in SHORTEST_LEASE.as_secs()..=60 {
            assert_eq!(Budget::for_lease(secs(lease)).validate(), Ok(()), "{lease}");
        }
    }

    #[test]
    fn every_lock_of_a_message_has_a_sound_division() {
        let ms = Duration::from_millis;
        for (lock, renew, grace, margin, attempt) in [
            (ms(2000), 926_666, 333_333, 240_000, 250_000),
            (ms(5000), 2_500_000 + 116_666, 833_333, 300_000, 625_000),
            (ms(10_000), 5_433_333, 1_666_666, 400_000, 1_250_000),
            (ms(30_000), 20_000_000, 5_000_000, 1_000_000, 2_000_000),
            (ms(60_000), 42_000_000, 10_000_000, 2_000_000, 3_000_000),
            (secs(3600), 2_520_000_000, 10_000_000, 72_200_000, 5_000_000),
        ] {
            let budget = Budget::for_lock(lock, 70);
            let micros = |span: Duration| span.as_micros();
            assert_eq!(micros(budget.renew_every), renew, "{lock:?}");
            assert_eq!(micros(budget.grace_on_loss), grace, "{lock:?}");
            assert_eq!(micros(budget.margin), margin, "{lock:?}");
            assert_eq!(micros(budget.attempt), attempt, "{lock:?}");
        }
        for lock in (2..=604_800).step_by(61).map(secs) {
            for share in [10, 70, 90] {
                let budget = Budget::for_lock(lock, share);
                assert_eq!(budget.validate(), Ok(()), "{lock:?} {share}");
                assert!(budget.renew_every <= lock * share / 100);
                assert!(budget.renew_every + 2 * budget.attempt <= budget.term_after());
            }
        }
    }

    #[test]
    fn a_lock_of_doubtful_length_is_renewed_early_and_its_deadlines_stay() {
        let whole = Budget::for_lock(secs(300), 70);
        assert_eq!(whole.renewing_within(None), whole);
        let early = whole.renewing_within(Some(secs(20)));
        let t0 = Instant::ZERO + secs(1000);
        assert_eq!(early.renew_at(t0), t0 + secs(20));
        assert_eq!(early.term_at(t0), whole.term_at(t0));
        assert_eq!(early.kill_at(t0), whole.kill_at(t0));
        for lock in (5..=300).map(secs) {
            let budget = Budget::for_lock(lock, 70);
            let early = budget.renewing_within(Some(secs(20)));
            assert_eq!(early.validate(), Ok(()), "{lock:?}");
            assert_eq!(early.renew_every, budget.renew_every.min(secs(20)));
        }
    }

    #[test]
    fn zero_lease_is_refused() {
        let refused = Budget::for_lease(Duration::ZERO).validate();
        assert_eq!(refused, Err(BudgetError::NoLease));
    }

    #[test]
    fn a_margin_that_clock_drift_eats_is_refused_with_the_least_that_would_do() {
        let mut budget = Budget::for_lease(secs(60));
        budget.margin = Duration::from_millis(1399);
        assert_eq!(
            budget.validate().unwrap_err().to_string(),
            "--margin 1.399 s is too short for --lease 60 s: \
             two clocks that are each off by 1 % and a SIGKILL need 1.4 s"
        );
        budget.margin = Duration::from_millis(1400);
        assert_eq!(budget.validate(), Ok(()));
    }

    #[test]
    fn a_grace_that_leaves_no_second_attempt_is_refused() {
        let mut budget = Budget::for_lease(secs(15));
        budget.grace_on_loss = secs(5);
        assert_eq!(
            budget.validate(),
            Ok(()),
            "5 + 4 s of attempts fit into 9 s"
        );
        budget.grace_on_loss = Duration::from_millis(5001);
        assert_eq!(
            budget.validate().unwrap_err().to_string(),
            "no room for two attempts to renew: the first comes 5 s after the last success and two need 4 s, \
             but SIGTERM is due after 8.999 s (--lease 15 s less --grace-on-loss 5.001 s less --margin 1 s): \
             raise --lease or lower --grace-on-loss"
        );
    }

    #[test]
    fn a_grace_longer_than_the_lease_is_refused_not_wrapped() {
        let mut budget = Budget::for_lease(secs(60));
        budget.grace_on_loss = Duration::MAX;
        assert!(matches!(
            budget.validate(),
            Err(BudgetError::NoSecondAttempt { .. })
        ));
    }

    #[test]
    fn a_lease_too_short_to_be_renewed_in_peace_is_refused() {
        let refused = Budget::for_lease(secs(5)).validate();
        assert_eq!(
            refused.unwrap_err().to_string(),
            "renewing every 1.666 s is more often than the 2 s between two attempts: raise --lease"
        );
    }
}
