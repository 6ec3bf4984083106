//! The lease we have: its deadlines, and the pace of its renewals.
//!
//! Called by every state that has one. All arithmetic of "until when is it ours" is here; what
//! follows from it for the command is decided by the states.

use std::time::Duration;

use super::Step;
use super::context::Context;
use crate::Deadlines;
use crate::budget::{ATTEMPT, RETRY};
use crate::clock::Instant;
use crate::{Action, Budget, Failure, Grant, Start};

// Between SIGKILL and the moment others may come, where no lease says how long that should be.
const MARGIN: Duration = Duration::from_secs(1);

// A lease that is being broken can be broken again, and less of it left: asked for this often. The
// answer can only bring the kill nearer.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The lease that we have, from the grant until it is given back, lost or run out.
#[derive(Debug)]
pub(super) struct HeldLease {
    budget: Option<Budget>,
    token: u64,
    failed: u32,
    // The moment before the request was sent that obtained it.
    began: Instant,
    // The moment before the request was sent that the store granted last. Not that of the answer: the
    // store began to count before that was on its way.
    t0: Instant,
    // The moment before the last request was sent that the store may have granted: until when it may
    // keep others out, although we may not count on it.
    asked: Instant,
    // Known to be safe until here only, because the lease was broken; `ZERO`: it is not safe now.
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
    /// None is needed, or none would count.
    Over,
}

/// What the answer to a renewal means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The deadlines have moved on.
    Confirmed,
    /// It succeeded after kill_at, or after the lease was lost: it counts for nothing.
    TooLate,
    /// Nobody knows; it will be tried again.
    Doubt(String),
    /// Definitely not ours any more; the deadlines have moved to what is known to be safe.
    Lost(String),
}

impl HeldLease {
    pub(super) fn new(budget: Option<Budget>, grant: Grant, now: Instant) -> HeldLease {
        // A grant from the future would give us time that is not ours.
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

    /// How often the task had failed before this tenure.
    pub(super) fn failed(&self) -> u32 {
        self.failed
    }

    /// Since when we have it.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// The moment before the request was sent that the store granted last.
    pub(super) fn confirmed(&self) -> Instant {
        self.t0
    }

    /// When doubt becomes a drain.
    pub(super) fn term_at(&self) -> Instant {
        let planned = self.budget.map_or(Instant::FOREVER, |b| b.term_at(self.t0));
        // A lease that was lost may end before doubt would have begun.
        planned.min(self.kill_at())
    }

    /// When nothing of the tree may be spared any longer.
    pub(super) fn kill_at(&self) -> Instant {
        let planned = self.budget.map_or(Instant::FOREVER, |b| b.kill_at(self.t0));
        if !self.lost() {
            return planned;
        }
        // The margin again: that time was counted by the store's clock, too.
        planned.min(self.safe_until - self.budget.map_or(MARGIN, |b| b.margin))
    }

    /// From when on somebody else may be in control.
    pub(super) fn others_from(&self) -> Instant {
        let budget = self.budget;
        let planned = budget.map_or(Instant::FOREVER, |b| b.others_from(self.t0));
        planned.min(self.safe_until)
    }

    /// Until when the store may believe that the lease is ours.
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

    /// What is told to whoever starts a command under it.
    pub(super) fn start(&self) -> Start {
        let half = |budget: Budget| self.t0 + budget.lease / 2;
        Start {
            deadlines: self.deadlines(),
            fresh_until: self.budget.map_or(Instant::FOREVER, half),
            token: self.token,
        }
    }

    /// Whether the last word of the store is older than that: what is started then would be stopped
    /// by the first renewals that fail.
    pub(super) fn half_gone(&self, now: Instant) -> bool {
        self.budget
            .is_some_and(|b| now.since(self.t0) > b.lease / 2)
    }

    /// How long a drain for want of control may take.
    pub(super) fn grace_on_loss(&self, otherwise: Duration) -> Duration {
        self.budget.map_or(otherwise, |b| b.grace_on_loss)
    }

    /// Asks for the next renewal to be due now.
    pub(super) fn hurry(&mut self, now: Instant) {
        // Not while one is in flight: calls to the store do not overlap.
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
            // One that succeeds after that proves nothing of the time in between: Azurite renews a
            // lease that has run out, and Azure one that nobody took meanwhile.
            self.renewal = Renewal::Over;
        } else if step.now >= at && step.now < limit {
            let attempt = self.budget.map_or(ATTEMPT, |b| b.attempt);
            let give_up_at = limit.min(step.now + attempt);
            self.renewal = Renewal::InFlight {
                sent: step.now,
                give_up_at,
            };
            // Before the answer: without one it may have been prolonged all the same.
            self.asked = step.now;
            step.act(Action::Renew { give_up_at });
        }
    }

    /// When the next renewal is due, if it can still be answered before `limit`.
    pub(super) fn renewal_due(&self, limit: Instant) -> Instant {
        match self.renewal {
            Renewal::Due(at) if at < limit => at,
            Renewal::Due(_) | Renewal::InFlight { .. } | Renewal::Over => Instant::FOREVER,
        }
    }

    /// When the renewal in flight will have ended at the latest, if there is one.
    pub(super) fn in_flight_until(&self) -> Option<Instant> {
        match self.renewal {
            Renewal::InFlight { give_up_at, .. } => Some(give_up_at),
            Renewal::Due(_) | Renewal::Over => None,
        }
    }

    /// Takes in the answer to a renewal that was sent at `t0` and had to be answered by `limit`.
    pub(super) fn renewed(
        &mut self,
        context: &mut Context,
        now: Instant,
        t0: Instant,
        reply: Result<(), Failure>,
        limit: Instant,
    ) -> Answer {
        match reply {
            Ok(()) => self.confirm(now, t0),
            Err(Failure::Held(info)) => {
                self.lose(now, None);
                let who = info.holder.as_deref().unwrap_or("another");
                Answer::Lost(format!("held by {who}"))
            }
            Err(Failure::Lost { until, why }) => {
                self.lose(now, until);
                Answer::Lost(why)
            }
            Err(Failure::Transient { why, retry_after }) => {
                // The service's wish is granted as long as one attempt remains before the limit.
                self.retry(context, now, retry_after, limit - self.pace());
                Answer::Doubt(why)
            }
            // It worked before. A key is being turned, or a right was taken away by mistake, which
            // somebody may mend before the lease is over.
            Err(Failure::Fatal { why, .. }) => {
                self.retry(context, now, None, limit);
                Answer::Doubt(why)
            }
            // No answer to this question: it proves nothing.
            Err(over @ Failure::AlreadyDone(_)) => {
                self.retry(context, now, None, limit);
                Answer::Doubt(over.to_string())
            }
        }
    }

    fn confirm(&mut self, now: Instant, t0: Instant) -> Answer {
        if now >= self.kill_at() || self.lost() {
            self.renewal = Renewal::Over;
            return Answer::TooLate;
        }
        // Never back: answers can overtake each other.
        self.t0 = self.t0.max(t0.min(now));
        self.asked = self.asked.max(self.t0);
        self.renewal = self
            .budget
            .map_or(Renewal::Over, |b| Renewal::Due(b.renew_at(self.t0)));
        Answer::Confirmed
    }

    /// It is known to be safe until then only; `None`: not even now.
    pub(super) fn lose(&mut self, now: Instant, until: Option<Instant>) {
        // The earliest that was ever said: a break that was asked for again can only shorten it.
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

    /// From the start of one attempt to the start of the next.
    fn pace(&self) -> Duration {
        self.budget.map_or(RETRY, |b| b.retry())
    }
}
