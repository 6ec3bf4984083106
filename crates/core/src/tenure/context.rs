//! Knowledge that outlasts the rounds of one instance: its rules, the state of the store, and requests to
//! stop.

mod fitness;

use std::time::Duration;

use super::held_lease::HeldLease;
use super::holding::CommandRun;
use super::{Phase, Releasing, Rules, Step};
use crate::budget::{ATTEMPT, RETRY};
use crate::clock::Instant;
use crate::condition::Condition;
use crate::doorbell::Doorbell;
use crate::retry::Jitter;
use crate::stop::StopRequests;
use crate::{
    Action, Cause, Cordon, Ending, Event, Failed, HandOverReason, HealthRecord, HolderInfo, Notice,
    Ring, Unfit, WorkloadEvent,
};

// Longest time for which an instance with one look asks a silent store. With the undoing, it must end in
// five seconds, because a crontab's `-n` waits.
const ONE_LOOK: Duration = Duration::from_secs(3);

// A single report of an outage would soon be far up in the log.
const REMINDER: Duration = Duration::from_secs(60);

// A wrong clock must not turn a cordon's drain into a kill.
const LEAST_GRACE: Duration = Duration::from_secs(5);

// Time for the release and a standby's look before a cordoned machine goes.
const HAND_OVER: Duration = Duration::from_secs(3);

// Time in which standbys that the store wakes take a lock.
const WOKEN: Duration = Duration::from_millis(500);

// Time for which a holder without a lease does not compete after its command hung.
const AFTER_HUNG: Duration = Duration::from_secs(10);

// A look-up and a TLS handshake must fit in.
const LEAST_ATTEMPT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Context {
    pub(super) rules: Rules,
    pub(super) jitter: Jitter,
    began: Instant,
    first_sent: Option<Instant>,
    pub(super) woken: Option<Instant>,
    pub(super) doorbell: Doorbell,
    // The store answered once, so silence never ends this instance.
    contacted: bool,
    // The command was started once, so no wait limit ends this instance.
    controlled: bool,
    controlled_before: bool,
    // Failure in the last tenure, unless another holder was seen since.
    failed_hook: Option<Failed>,
    standing: bool,
    // An unanswered attempt may have obtained the lease. Unless it is undone, it keeps all others out.
    ambiguous: bool,
    seen: Option<HolderInfo>,
    doubt: Option<String>,
    told_doubt: Instant,
    // Beginning of refusals without another answer since.
    refused_since: Option<Instant>,
    told_refused: bool,
    pub(super) stop: StopRequests,
    cordon: Option<Cordon>,
    told_cordoned: bool,
    // `None`: always fit.
    condition: Option<Condition>,
    told_unfit: Option<Unfit>,
    pub(super) guardian_lost: bool,
    pub(super) health: Option<HealthRecord>,
}

impl Context {
    pub(super) fn new(rules: Rules, now: Instant) -> Context {
        Context {
            jitter: Jitter::new(rules.seed),
            rules,
            began: now,
            first_sent: None,
            woken: None,
            doorbell: Doorbell::default(),
            contacted: false,
            controlled: false,
            controlled_before: false,
            failed_hook: None,
            standing: false,
            ambiguous: false,
            seen: None,
            doubt: None,
            told_doubt: now,
            refused_since: None,
            told_refused: false,
            stop: StopRequests::default(),
            cordon: None,
            told_cordoned: false,
            condition: None,
            told_unfit: None,
            guardian_lost: false,
            health: None,
        }
    }

    pub(super) fn attempt_sent(&mut self, now: Instant) {
        self.first_sent.get_or_insert(now);
    }

    pub(super) fn contacted(&self) -> bool {
        self.contacted
    }

    pub(super) fn patience_ends(&self) -> Instant {
        let patience = match self.rules.wait {
            Some(Duration::ZERO) => self.rules.patience.min(ONE_LOOK),
            _ => self.rules.patience,
        };
        // A machine that was cordoned at first has not asked yet.
        self.first_sent.unwrap_or(self.began) + patience
    }

    pub(super) fn attempt_ends(&self, now: Instant) -> Instant {
        // A later grant would need a renewal before anything could start.
        let half = self.rules.budget.map_or(ATTEMPT, |b| b.lease / 2);
        let end = now + ATTEMPT.min(half);
        if self.contacted {
            return end;
        }
        end.min(self.patience_ends().max(now + LEAST_ATTEMPT))
    }

    pub(super) fn wait_ends(&self) -> Instant {
        match self.rules.wait {
            None => Instant::FOREVER,
            Some(_) if self.controlled => Instant::FOREVER,
            // A cordoned or unfit machine cannot make its one look: only the time counts.
            Some(span) if self.cordon.is_some() || self.unfit().is_some() => self.began + span,
            // There may never be an attempt; the only question has its own time limit.
            Some(span) if self.condition.is_some() && !span.is_zero() => self.began + span,
            Some(_) if self.first_sent.is_none() => Instant::FOREVER,
            // One look ends with the first answer.
            Some(span) if span.is_zero() => Instant::FOREVER,
            Some(span) => self.began + span,
        }
    }

    pub(super) fn out_of_time(&self, now: Instant) -> bool {
        let looked_once =
            self.contacted && !self.controlled && self.rules.wait == Some(Duration::ZERO);
        looked_once || now >= self.wait_ends()
    }

    pub(super) fn not_obtained(&self) -> Cause {
        if let Some(cause) = self.cordon_as_cause() {
            return cause;
        }
        if let Some(unfit) = self.unfit() {
            return Cause::Unfit(unfit);
        }
        if self.condition.as_ref().is_some_and(Condition::is_unknown) {
            return Cause::Unfit(Unfit::TimedOut);
        }
        if let Some(how) = self.failed_hook {
            return Cause::GivenUp(HandOverReason::HookFailed(how));
        }
        if self.contacted {
            return Cause::NotObtained(self.seen.clone().unwrap_or_default());
        }
        Cause::Store {
            why: self.doubt.clone().unwrap_or_default(),
            denied: false,
        }
    }

    /// Returns the time from one round to the next: a poll, or a retry if the store wakes this instance.
    pub(super) fn between_rounds(&mut self) -> Duration {
        let base = self.rules.poll.unwrap_or(RETRY);
        self.jitter.spread(base)
    }

    /// Returns the time from a hand-over to the next attempt: others must be able to take control.
    pub(super) fn cool_down(&self, cause: Option<&Cause>) -> Duration {
        let hold_policy = &self.rules.hold_policy;
        if let Some(cooldown) = hold_policy.cooldown {
            return cooldown;
        }
        // This machine may have caused the hang: the others get more than one look.
        if cause.is_some_and(Cause::is_hung) {
            return self.rules.budget.map_or(AFTER_HUNG, |budget| budget.lease);
        }
        // Each standby looks at least once within two polls, whatever the spread.
        self.rules.poll.map_or(WOKEN, |poll| 2 * poll)
    }

    pub(super) fn hands_over_at(&self, held_lease: &HeldLease) -> Instant {
        let max_hold = self.rules.hold_policy.max_hold;
        max_hold.map_or(Instant::FOREVER, |span| held_lease.began() + span)
    }

    pub(super) fn next_restart(
        &self,
        run: &mut CommandRun,
        now: Instant,
    ) -> Option<(Duration, u32)> {
        let rule = self.rules.hold_policy.restart.as_ref()?;
        let ran = run.ran(now);
        run.history.next(rule, ran, now)
    }

    pub(super) fn answered(&mut self, step: &mut Step) {
        // The request had the same lease id, so the answer would tell if an earlier attempt had succeeded.
        self.ambiguous = false;
        self.was_seen(step);
    }

    pub(super) fn was_seen(&mut self, step: &mut Step) {
        self.contacted = true;
        (self.refused_since, self.told_refused) = (None, false);
        if self.doubt.take().is_some() {
            step.report(Notice::Recovered);
        }
    }

    pub(super) fn doubts(&mut self, step: &mut Step, why: String, term_at: Option<Instant>) {
        // Silence is no refusal: an outage must end no standby.
        self.refused_since = None;
        if self.doubt.is_none() || step.now >= self.told_doubt + REMINDER {
            self.told_doubt = step.now;
            step.report(Notice::Doubt {
                why: why.clone(),
                term_at,
            });
        }
        self.doubt = Some(why);
    }

    /// Notes that the store refuses a credential that it accepted before; returns when this instance
    /// leaves. Reported at once even after a doubt.
    pub(super) fn refused(&mut self, step: &mut Step, why: &str) -> Instant {
        let since = *self.refused_since.get_or_insert(step.now);
        let leaves_at = since + self.rules.auth_patience;
        let is_known = std::mem::replace(&mut self.told_refused, true);
        if !is_known || step.now >= self.told_doubt + REMINDER {
            self.told_doubt = step.now;
            step.report(Notice::Refused {
                why: why.to_owned(),
                leaves_at,
            });
            // Report the holder anew after a recovery.
            self.seen = None;
        }
        self.doubt = Some(why.to_owned());
        leaves_at
    }

    // The request may not have been sent. But a needless undo costs one request, and a missing one a whole
    // lease.
    pub(super) fn may_have_obtained(&mut self) {
        self.ambiguous = true;
    }

    /// Returns and clears whether an unanswered attempt may hold the lease.
    pub(super) fn take_ambiguous(&mut self) -> bool {
        std::mem::take(&mut self.ambiguous)
    }

    pub(super) fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }

    /// Tells whether the next look keeps the interval: not after the first look, or when a drain begins or
    /// ends.
    pub(super) fn keeps_the_interval(&self, holder: &HolderInfo) -> bool {
        let before = self.seen.as_ref();
        before.is_some_and(|seen| seen.draining == holder.draining)
    }

    pub(super) fn sees(&mut self, step: &mut Step, mut holder: HolderInfo) {
        // The expiry changes with each renewal, and the bell is for programs.
        holder.expires = None;
        holder.bell = None;
        self.failed_hook = None;
        if self.seen.as_ref() != Some(&holder) {
            step.report(Notice::StandingBy(holder.clone()));
            self.seen = Some(holder);
        }
    }

    pub(super) fn hears(&mut self, step: &mut Step, ring: Ring) {
        if let Some(poll) = self.rules.poll {
            let poll = self.jitter.rest_of(poll);
            let attend = self.doorbell.rang(step.now, ring, self.rules.grace, poll);
            step.attend(attend);
        }
    }

    pub(super) fn stands_by(&mut self, step: &mut Step) {
        if !std::mem::replace(&mut self.standing, true) {
            step.act(Action::StandBy);
        }
    }

    pub(super) fn in_control(&mut self) {
        self.controlled_before = std::mem::replace(&mut self.controlled, true);
        self.failed_hook = None;
        self.standing = false;
        // Report the next holder even if it is the same as before.
        self.seen = None;
        self.doorbell = Doorbell::default();
        self.health.iter_mut().for_each(HealthRecord::begins);
    }

    pub(super) fn hears_of_health(&mut self, event: &Event) {
        match (&mut self.health, event) {
            (Some(health), Event::Workload(WorkloadEvent::Started { .. })) => health.started(),
            (Some(health), Event::Workload(WorkloadEvent::Health(heard))) => health.hears(heard),
            _ => {}
        }
    }

    /// From now on the tenure counts, even if a hook fails at a restart.
    pub(super) fn hears_of_the_start(&mut self, event: &Event) {
        self.controlled_before |= matches!(event, Event::Workload(WorkloadEvent::Started { .. }));
    }

    /// The wait limit holds again, or an instance with one look would try for ever. `None`: a stop
    /// interrupted the hook.
    pub(super) fn not_prepared(&mut self, how: Option<Failed>) {
        self.controlled = self.controlled_before;
        self.failed_hook = how;
    }

    pub(super) fn on_cordon(&mut self, step: &mut Step, event: &Event) {
        if let Event::Cordoned(cordon) = event {
            self.cordoned(cordon.clone());
        }
        if *event == Event::Uncordoned {
            self.cordon = None;
            if std::mem::take(&mut self.told_cordoned) {
                step.report(Notice::Uncordoned);
            }
        }
    }

    pub(super) fn cordoned(&mut self, cordon: Cordon) {
        self.cordon = Some(cordon);
    }

    pub(super) fn is_cordoned(&self) -> bool {
        self.cordon.is_some()
    }

    pub(super) fn cordon_as_cause(&self) -> Option<Cause> {
        let cordon = self.cordon.as_ref()?;
        Some(Cause::Cordoned {
            why: cordon.why.clone(),
        })
    }

    /// Ends the grace early enough to give control away before the disturbance, as far as a command can be
    /// that quick.
    pub(super) fn end_of_grace_for_a_cordon(&self, now: Instant) -> Instant {
        let grace = self.rules.grace;
        let before = self.cordon.as_ref().map_or(now, |cordon| cordon.before);
        // With a wrong clock, `before` may lie in the past.
        let latest = before - HAND_OVER;
        (now + grace).min(latest.max(now + grace.min(LEAST_GRACE)))
    }

    /// Tells whether a cordon forbids to compete; reports each cordon once.
    pub(super) fn keeps_out(&mut self, step: &mut Step) -> bool {
        let Some(cordon) = &self.cordon else {
            return false;
        };
        if !std::mem::replace(&mut self.told_cordoned, true) {
            let why = cordon.why.clone();
            step.report(Notice::Cordoned { why });
            self.seen = None;
        }
        true
    }

    /// Ends an instance that runs nothing and was granted nothing.
    pub(super) fn leave(&mut self, step: &mut Step, cause: Cause) -> Phase {
        if self.ambiguous {
            return Releasing::undo_uncertain_acquire(self, step, cause);
        }
        Phase::Done(Ending {
            cause,
            exit: None,
            overlap: false,
            released: false,
        })
    }
}
