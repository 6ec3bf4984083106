//! What outlasts the rounds of one instance: its rules, what it knows of the store, and what was
//! asked of it.
//!
//! Called by every state of the tenure. Decides nothing about processes or leases.

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

// How long whoever looks once asks a store that does not answer: what may have been obtained is
// undone afterwards, and all of it is to be over in five seconds, because a crontab's `-n` waits.
const ONE_LOOK: Duration = Duration::from_secs(3);

// From one word that the store does not answer to the next: an outage that was told of once, hours
// ago, would be far up in the log when somebody looks.
const REMINDER: Duration = Duration::from_secs(60);

// What a command gets to end in any case, however soon a cordoned machine goes away: a clock that
// is wrong must not step a drain into a kill.
const LEAST_GRACE: Duration = Duration::from_secs(5);

// For giving control away before a cordoned machine goes away: the release, and a standby's look.
const HAND_OVER: Duration = Duration::from_secs(3);

// What those who are woken by the store need to take what was given away.
const WOKEN: Duration = Duration::from_millis(500);

// How long who held a lock without a lease does not compete after its command hung: a lease, elsewhere.
const AFTER_HUNG: Duration = Duration::from_secs(10);

// What even the most impatient attempt gets: less than a look-up and a TLS handshake need would
// fail on a store that is well.
const LEAST_ATTEMPT: Duration = Duration::from_secs(1);

/// What outlasts the rounds of one instance.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) rules: Rules,
    pub(super) jitter: Jitter,
    began: Instant,
    // When the first attempt to acquire was sent.
    first_sent: Option<Instant>,
    // When the latest attempt was due that followed a wake-up by the store.
    pub(super) woken: Option<Instant>,
    pub(super) doorbell: Doorbell,
    // The store has answered a question of ours, so we are configured as we should be: from now on no
    // silence makes us leave.
    contacted: bool,
    // The command was started once: from now on no wait limit makes us leave.
    controlled: bool,
    // The same before the present tenure.
    controlled_before: bool,
    // Why the command was not started when control was had last, if nobody else was seen to have it since.
    failed_hook: Option<Failed>,
    // What runs without control was told to run.
    standing: bool,
    // An unanswered attempt to acquire may have obtained the lease: whoever leaves without undoing it
    // keeps everybody out for as long as it lasts.
    ambiguous: bool,
    seen: Option<HolderInfo>,
    doubt: Option<String>,
    // When people were told of it last.
    told_doubt: Instant,
    // Since when the store has refused our credential, and has said nothing else.
    refused_since: Option<Instant>,
    // People know that it does.
    told_refused: bool,
    pub(super) stop: StopRequests,
    // This machine must not have control. Kept apart from the state: it lasts through all of them.
    cordon: Option<Cordon>,
    // Nothing of ours runs because of it, and people know.
    told_cordoned: bool,
    // Whether this machine is fit to take control is asked; `None`: it is.
    condition: Option<Condition>,
    // People know that it is not, and why.
    told_unfit: Option<Unfit>,
    pub(super) guardian_lost: bool,
    // What the record is to say of the command's health; `None`: nothing.
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

    /// Until when a store that never answered is asked again.
    pub(super) fn patience_ends(&self) -> Instant {
        let patience = match self.rules.wait {
            Some(Duration::ZERO) => self.rules.patience.min(ONE_LOOK),
            _ => self.rules.patience,
        };
        // A machine that was cordoned when it began has not asked yet, however long ago that was.
        self.first_sent.unwrap_or(self.began) + patience
    }

    /// Until when an attempt to acquire may take that is sent now.
    pub(super) fn attempt_ends(&self, now: Instant) -> Instant {
        // What is granted later than that would have to be renewed before anything could start.
        let half = self.rules.budget.map_or(ATTEMPT, |b| b.lease / 2);
        let end = now + ATTEMPT.min(half);
        if self.contacted {
            return end;
        }
        // There is always a first attempt, and it has a moment.
        end.min(self.patience_ends().max(now + LEAST_ATTEMPT))
    }

    /// When the wait for control ends, as far as a clock can say that.
    pub(super) fn wait_ends(&self) -> Instant {
        match self.rules.wait {
            None => Instant::FOREVER,
            // No limit any more after a first tenure.
            Some(_) if self.controlled => Instant::FOREVER,
            // One look that is not to be had is none.
            Some(span) if self.cordon.is_some() || self.unfit().is_some() => self.began + span,
            // There may never be an attempt; the one question has a time limit of its own.
            Some(span) if self.condition.is_some() && !span.is_zero() => self.began + span,
            // There is always a first attempt.
            Some(_) if self.first_sent.is_none() => Instant::FOREVER,
            // One look: it ends with the first answer, not at a time.
            Some(span) if span.is_zero() => Instant::FOREVER,
            Some(span) => self.began + span,
        }
    }

    /// Whether no further attempt may begin.
    pub(super) fn out_of_time(&self, now: Instant) -> bool {
        let looked_once =
            self.contacted && !self.controlled && self.rules.wait == Some(Duration::ZERO);
        looked_once || now >= self.wait_ends()
    }

    /// Why the wait ended without control.
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

    /// From one round to the next: a poll, or a retry where the store wakes us.
    pub(super) fn between_rounds(&mut self) -> Duration {
        let base = self.rules.poll.unwrap_or(RETRY);
        self.jitter.spread(base)
    }

    /// From handing control over to the next attempt to get it: long enough for others to take it.
    pub(super) fn cool_down(&self, cause: Option<&Cause>) -> Duration {
        let hold_policy = &self.rules.hold_policy;
        if let Some(cooldown) = hold_policy.cooldown {
            return cooldown;
        }
        // This machine may be what made it hang: the others get more than their next look.
        if cause.is_some_and(Cause::is_hung) {
            return self.rules.budget.map_or(AFTER_HUNG, |budget| budget.lease);
        }
        // Two polls: each of the others looks at least once in that time, however far the spread
        // takes it. Who is woken by the store has it before we could look.
        self.rules.poll.map_or(WOKEN, |poll| 2 * poll)
    }

    /// When a tenure has been long enough.
    pub(super) fn hands_over_at(&self, held_lease: &HeldLease) -> Instant {
        let max_hold = self.rules.hold_policy.max_hold;
        max_hold.map_or(Instant::FOREVER, |span| held_lease.began() + span)
    }

    /// After which back-off, and as which restart, a command that ended is started again; `None`
    /// where that is over.
    pub(super) fn next_restart(
        &self,
        run: &mut CommandRun,
        now: Instant,
    ) -> Option<(Duration, u32)> {
        let rule = self.rules.hold_policy.restart.as_ref()?;
        let ran = run.ran(now);
        run.history.next(rule, ran, now)
    }

    /// The store answered.
    pub(super) fn answered(&mut self, step: &mut Step) {
        // Asked with the same lease id again, it would have said so if an attempt had succeeded.
        self.ambiguous = false;
        self.was_seen(step);
    }

    /// The same, by an answer that says nothing of what an attempt has obtained.
    pub(super) fn was_seen(&mut self, step: &mut Step) {
        self.contacted = true;
        (self.refused_since, self.told_refused) = (None, false);
        if self.doubt.take().is_some() {
            step.report(Notice::Recovered);
        }
    }

    /// The store did not answer as hoped; said at once, and once a minute until it does.
    pub(super) fn doubts(&mut self, step: &mut Step, why: String, term_at: Option<Instant>) {
        // Silence is no refusal: what may be an outage ends nobody.
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

    /// The store refuses a credential that it accepted before; told like a doubt, and at once although there
    /// was one. Returns when that has lasted for long enough to leave.
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
            // Whoever is in control when it accepts us again is news.
            self.seen = None;
        }
        self.doubt = Some(why.to_owned());
        leaves_at
    }

    /// An attempt to acquire ended without a clear answer.
    // A store's doubt does not say whether the request was sent. To undo what never was costs one request,
    // and not to undo what was a whole lease.
    pub(super) fn may_have_obtained(&mut self) {
        self.ambiguous = true;
    }

    /// Whether one did, and nothing was heard of it since; it is given back now, or left to run out.
    pub(super) fn take_ambiguous(&mut self) -> bool {
        std::mem::take(&mut self.ambiguous)
    }

    /// What the store said last, if it did not answer as hoped.
    pub(super) fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }

    /// Whether the next look comes at the interval of the one before: nothing was seen before the
    /// first, and a drain changes it.
    pub(super) fn keeps_the_interval(&self, holder: &HolderInfo) -> bool {
        let before = self.seen.as_ref();
        before.is_some_and(|seen| seen.draining == holder.draining)
    }

    /// Somebody else holds the lock; said when it is news.
    pub(super) fn sees(&mut self, step: &mut Step, mut holder: HolderInfo) {
        // It changes with each of the holder's renewals, which are nobody's news.
        holder.expires = None;
        // Nor is where it rings.
        holder.bell = None;
        self.failed_hook = None;
        if self.seen.as_ref() != Some(&holder) {
            step.report(Notice::StandingBy(holder.clone()));
            self.seen = Some(holder);
        }
    }

    /// The doorbell of the holder was heard.
    pub(super) fn hears(&mut self, step: &mut Step, ring: Ring) {
        // A store that wakes us needs no bell.
        if let Some(poll) = self.rules.poll {
            let poll = self.jitter.rest_of(poll);
            let attend = self.doorbell.rang(step.now, ring, self.rules.grace, poll);
            step.attend(attend);
        }
    }

    /// There is time until the next attempt: what runs without control may run.
    pub(super) fn stands_by(&mut self, step: &mut Step) {
        // Once, and not for each poll: the standby command is running by then.
        if !std::mem::replace(&mut self.standing, true) {
            step.act(Action::StandBy);
        }
    }

    /// The command is about to be started.
    pub(super) fn in_control(&mut self) {
        self.controlled_before = std::mem::replace(&mut self.controlled, true);
        self.failed_hook = None;
        self.standing = false;
        // Whoever is in control after us is news, also if it is the same as before.
        self.seen = None;
        self.doorbell = Doorbell::default();
        self.health.iter_mut().for_each(HealthRecord::begins);
    }

    /// Takes in what an event says of the command's health.
    pub(super) fn hears_of_health(&mut self, event: &Event) {
        match (&mut self.health, event) {
            (Some(health), Event::Workload(WorkloadEvent::Started { .. })) => health.started(),
            (Some(health), Event::Workload(WorkloadEvent::Health(heard))) => health.hears(heard),
            _ => {}
        }
    }

    /// Takes in that the command was started: from now on the tenure counts, whatever fails at a restart.
    pub(super) fn hears_of_the_start(&mut self, event: &Event) {
        self.controlled_before |= matches!(event, Event::Workload(WorkloadEvent::Started { .. }));
    }

    /// The command was not started, because what has to succeed before it failed (`None`: it was asked to
    /// end): a wait limit counts on, or whoever is to look once would go round for ever.
    pub(super) fn not_prepared(&mut self, how: Option<Failed>) {
        self.controlled = self.controlled_before;
        self.failed_hook = how;
    }

    /// Takes in what an event says of cordons, whatever else it means.
    pub(super) fn hears_of_cordons(&mut self, step: &mut Step, event: &Event) {
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

    /// This machine must not have control.
    pub(super) fn cordoned(&mut self, cordon: Cordon) {
        self.cordon = Some(cordon);
    }

    /// Whether this machine must not have control.
    pub(super) fn is_cordoned(&self) -> bool {
        self.cordon.is_some()
    }

    /// That as the reason for the end of something.
    pub(super) fn cordon_as_cause(&self) -> Option<Cause> {
        let cordon = self.cordon.as_ref()?;
        Some(Cause::Cordoned {
            why: cordon.why.clone(),
        })
    }

    /// When the grace of a drain for a cordon ends: early enough to give control away before what
    /// it was cordoned for, as far as a command that is to end can be asked to be so quick.
    pub(super) fn end_of_grace_for_a_cordon(&self, now: Instant) -> Instant {
        let grace = self.rules.grace;
        let before = self.cordon.as_ref().map_or(now, |cordon| cordon.before);
        // A clock that is off makes `before` lie in the past: the least grace is for that.
        let latest = before - HAND_OVER;
        (now + grace).min(latest.max(now + grace.min(LEAST_GRACE)))
    }

    /// We do not compete while this machine is cordoned; said once for each cordon.
    pub(super) fn keeps_out(&mut self, step: &mut Step) -> bool {
        let Some(cordon) = &self.cordon else {
            return false;
        };
        if !std::mem::replace(&mut self.told_cordoned, true) {
            let why = cordon.why.clone();
            step.report(Notice::Cordoned { why });
            // Whoever is in control by then is news.
            self.seen = None;
        }
        true
    }

    /// Ends an instance that runs nothing and was granted nothing, undoing first what an
    /// unanswered attempt may have obtained.
    pub(super) fn leave(&mut self, step: &mut Step, cause: Cause) -> Phase {
        if self.ambiguous {
            return Releasing::of_a_maybe(self, step, cause);
        }
        Phase::Done(Ending {
            cause,
            exit: None,
            overlap: false,
            released: false,
        })
    }
}
