//! Lease of this instance: its deadlines, and the pace of its renewals.
//!
//! All arithmetic of "until when is it held" is here; the states decide what follows for the command.

use std::time::Duration;

use super::Step;
use super::context::Context;
use crate::Deadlines;
use crate::budget::{ATTEMPT, RETRY};
use crate::clock::Instant;
use crate::{Action, Budget, Failure, Grant, Start};

// Time from SIGKILL until others may come, if no lease sets it.
const MARGIN: Duration = Duration::from_secs(1);

// A lease that is being broken can be broken again, with less of it left.
const ASK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct HeldLease {
    budget: Option<Budget>,
    token: u64,
    failed: u32,
    // Moment before the first request.
    began: Instant,
    // Moment before the last granted request. Not that of its answer: the store began to count before that
    // was on its way.
    t0: Instant,
    // Moment before the last request that the store may have granted, and may keep others out by.
    asked: Instant,
    // End of the safe time of a broken lease; `ZERO`: not safe now.
    safe_until: Instant,
    renewal: Renewal,
}

#[derive(Debug)]
enum Renewal {
    Due(Instant),
    InFlight {
        sent: Instant,
        give_up_at: Instant,
    },
    /// No renewal is needed, or none would count.
    Over,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RenewalAnswer {
    /// The deadlines have moved on.
    Confirmed,
    /// A success that does not count, after kill_at or a loss.
    TooLate,
    /// A retry follows.
    Doubt(String),
    /// The deadlines have moved to what is known to be safe.
    Lost(String),
}

impl HeldLease {
    pub(super) fn new(budget: Option<Budget>, grant: Grant, now: Instant) -> HeldLease {
        // A grant from the future would make the lease too long.
        let t0 = grant.t0.min(now);
        HeldLease {
            budget,
            token: grant.token,
            failed: grant.failed,
            began: t0,
            t0,
            asked: t0,
            safe_until: Instant::FOREVER,
            renewal: budget.map_or(Renewal::Over, |b| Renewal::Due(b.renew_at(t0))),
        }
    }

    pub(super) fn token(&self) -> u64 {
        self.token
    }

    pub(super) fn failed(&self) -> u32 {
        self.failed
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn confirmed(&self) -> Instant {
        self.t0
    }

    pub(super) fn term_at(&self) -> Instant {
        let planned = self.budget.map_or(Instant::FOREVER, |b| b.term_at(self.t0));
        // A lease that was lost may end before doubt would have begun.
        planned.min(self.kill_at())
    }

    pub(super) fn kill_at(&self) -> Instant {
        let planned = self.budget.map_or(Instant::FOREVER, |b| b.kill_at(self.t0));
        if !self.lost() {
            return planned;
        }
        // Less the margin again: the store's clock counted that time, too.
        planned.min(self.safe_until - self.budget.map_or(MARGIN, |b| b.margin))
    }

    pub(super) fn others_from(&self) -> Instant {
        let budget = self.budget;
        let planned = budget.map_or(Instant::FOREVER, |b| b.others_from(self.t0));
        planned.min(self.safe_until)
    }

    pub(super) fn may_last_until(&self) -> Instant {
        self.budget
            .map_or(Instant::FOREVER, |b| b.expiry(self.asked))
    }

    pub(super) fn lost(&self) -> bool {
        self.safe_until != Instant::FOREVER
    }

    pub(super) fn deadlines(&self) -> Deadlines {
        Deadlines {
            term_at: self.term_at(),
            kill_at: self.kill_at(),
        }
    }

    pub(super) fn start(&self) -> Start {
        let half = |budget: Budget| self.t0 + budget.lease / 2;
        Start {
            deadlines: self.deadlines(),
            fresh_until: self.budget.map_or(Instant::FOREVER, half),
            token: self.token,
        }
    }

    /// Tells whether half of the lease is gone: the first failed renewals would stop what starts then.
    pub(super) fn half_gone(&self, now: Instant) -> bool {
        self.budget
            .is_some_and(|b| now.since(self.t0) > b.lease / 2)
    }

    pub(super) fn grace_on_loss(&self, otherwise: Duration) -> Duration {
        self.budget.map_or(otherwise, |b| b.grace_on_loss)
    }

    pub(super) fn hurry(&mut self, now: Instant) {
        // Requests to the store do not overlap.
        if let Renewal::Due(at) = &mut self.renewal {
            *at = now.min(*at);
        }
    }

    /// Sends a renewal if one is due and an answer before `limit` is possible.
    pub(super) fn renew_if_due(&mut self, step: &mut Step, limit: Instant) {
        let Renewal::Due(at) = self.renewal else {
            return;
        };
        if step.now >= self.kill_at() {
            // A success proves nothing about the time in between: Azurite renews a lease that has run out,
            // and Azure one that no other client took meanwhile.
            self.renewal = Renewal::Over;
        } else if step.now >= at && step.now < limit {
            let attempt = self.budget.map_or(ATTEMPT, |b| b.attempt);
            let give_up_at = limit.min(step.now + attempt);
            self.renewal = Renewal::InFlight {
                sent: step.now,
                give_up_at,
            };
            // Even without an answer, the lease may have been prolonged.
            self.asked = step.now;
            step.act(Action::Renew { give_up_at });
        }
    }

    pub(super) fn renewal_due(&self, limit: Instant) -> Instant {
        match self.renewal {
            Renewal::Due(at) if at < limit => at,
            Renewal::Due(_) | Renewal::InFlight { .. } | Renewal::Over => Instant::FOREVER,
        }
    }

    pub(super) fn in_flight_until(&self) -> Option<Instant> {
        match self.renewal {
            Renewal::InFlight { give_up_at, .. } => Some(give_up_at),
            Renewal::Due(_) | Renewal::Over => None,
        }
    }

    pub(super) fn renewed(
        &mut self,
        context: &mut Context,
        now: Instant,
        t0: Instant,
        reply: Result<(), Failure>,
        limit: Instant,
    ) -> RenewalAnswer {
        match reply {
            Ok(()) => self.confirm(now, t0),
            Err(Failure::Held(info)) => {
                self.lose(now, None);
                let who = info.holder.as_deref().unwrap_or("another");
                RenewalAnswer::Lost(format!("held by {who}"))
            }
            Err(Failure::Lost { until, why }) => {
                self.lose(now, until);
                RenewalAnswer::Lost(why)
            }
            Err(Failure::Transient { why, retry_after }) => {
                // One attempt must remain before the limit.
                self.retry(context, now, retry_after, limit - self.pace());
                RenewalAnswer::Doubt(why)
            }
            // A key is being rotated, or a right was taken away by mistake: that may be mended in time.
            Err(Failure::Fatal { why, .. }) => {
                self.retry(context, now, None, limit);
                RenewalAnswer::Doubt(why)
            }
            // This does not answer a renewal, so it proves nothing.
            Err(over @ Failure::AlreadyDone(_)) => {
                self.retry(context, now, None, limit);
                RenewalAnswer::Doubt(over.to_string())
            }
        }
    }

    fn confirm(&mut self, now: Instant, t0: Instant) -> RenewalAnswer {
        if now >= self.kill_at() || self.lost() {
            self.renewal = Renewal::Over;
            return RenewalAnswer::TooLate;
        }
        // Never back: answers can overtake each other.
        self.t0 = self.t0.max(t0.min(now));
        self.asked = self.asked.max(self.t0);
        self.renewal = self
            .budget
            .map_or(Renewal::Over, |b| Renewal::Due(b.renew_at(self.t0)));
        RenewalAnswer::Confirmed
    }

    /// The lease is safe until `until` only; `None`: not even now.
    pub(super) fn lose(&mut self, now: Instant, until: Option<Instant>) {
        // Another break can only shorten the lease.
        self.safe_until = self.safe_until.min(until.unwrap_or(Instant::ZERO));
        self.renewal = until.map_or(Renewal::Over, |_| Renewal::Due(now + ASK_AGAIN));
    }

    fn retry(
        &mut self,
        context: &mut Context,
        now: Instant,
        asked: Option<Duration>,
        latest: Instant,
    ) {
        if let Renewal::InFlight { sent, .. } = self.renewal {
            let pace = self.pace();
            let at = context.jitter.again_within(pace, sent, now, asked, latest);
            self.renewal = Renewal::Due(at);
        }
    }

    fn pace(&self) -> Duration {
        self.budget.map_or(RETRY, |b| b.retry())
    }
}
