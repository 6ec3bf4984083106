use trafficcop::Instant;
use trafficcop_core::{Action, After, Deadlines, Exit, Notice, Rules, Start};

use super::bell::Listening;
use super::record::Record;
use super::{Held, Next, Reason, Run};
use crate::alone::plan::{ms, secs};
use crate::alone::world::{BEGIN, World};

impl World {
    pub(super) fn judge_start(
        &mut self,
        start: Start,
        before: Option<&Action>,
    ) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let next = self.ledger.next.take();
        let ledger = &mut self.ledger;
        let Some(held) = &ledger.held else {
            return Some("it starts without control");
        };
        if ledger.run.is_some() || self.tree.is_some() {
            return Some("it starts beside another");
        }
        if ledger.stop.is_some() || ledger.cordon.is_some() || ledger.guardian_lost {
            return Some("it starts although it must not");
        }
        if held.safe_until.is_some() || now >= held.term(&rules) || held.is_half_gone(&rules, now) {
            return Some("it starts under a lease that is not fresh");
        }
        let fresh = rules
            .budget
            .map_or(Instant::FOREVER, |b| held.confirmed + b.lease / 2);
        let first = start.deadlines.term_at.min(start.deadlines.kill_at);
        if start.deadlines.first() != first
            || start.deadlines != held.deadlines(&rules)
            || start.fresh_until != fresh
            || start.token != held.token
        {
            return Some("it starts with other deadlines");
        }
        let long = rules
            .hold_policy
            .max_hold
            .is_some_and(|span| now >= held.began + span);
        let said = match next {
            None if ledger.tenure => return Some("it starts a second time"),
            Some(Next::Restart { until }) => {
                if now < until {
                    return Some("it starts again too soon");
                }
                if long {
                    return Some("it starts what is to be handed over");
                }
                Notice::Restarting
            }
            Some(_) => return Some("it starts what is over"),
            None => {
                ledger.health = Record::new();
                Notice::InControl { token: held.token }
            }
        };
        if before != Some(&Action::Notify(said)) {
            return Some("the start is not reported");
        }
        ledger.tenure = true;
        ledger.controlled_before = std::mem::replace(&mut ledger.controlled, true);
        ledger.bell = Listening::default();
        ledger.standing = false;
        ledger.seen = None;
        ledger.look = None;
        ledger.spent = false;
        ledger.hook_failed = false;
        ledger.not_started = None;
        ledger.natural = false;
        ledger.record_failed = false;
        ledger.paused = false;
        ledger.cordoned = false;
        ledger.overlapped = false;
        ledger.found_lost = false;
        ledger.refused = false;
        ledger.said = false;
        ledger.acting = false;
        ledger.empty_at = None;
        ledger.outlived = false;
        ledger.hurried = false;
        ledger.expected = None;
        ledger.at_once = false;
        ledger.hung = None;
        ledger.run = Some(Run {
            since: now,
            started: false,
            exit: None,
            reason: None,
            drained: None,
            killed: false,
            announced: false,
            quiet: false,
            doubt_ends: None,
        });
        None
    }

    pub(super) fn judge_extension(
        &mut self,
        at: usize,
        deadlines: Deadlines,
    ) -> Option<&'static str> {
        let held = self.ledger.held.as_ref();
        if self.ledger.run.as_ref().is_some_and(|run| run.killed) {
            return Some("who is killed is given time");
        }
        if at != 0 {
            return Some("something goes before the deadlines");
        }
        if held.is_none_or(|held| held.deadlines(self.rules()) != deadlines) {
            return Some("these are no deadlines of ours");
        }
        None
    }

    pub(super) fn judge_drain(&mut self, signal: i32, end: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let cordon = self.ledger.cordon.clone();
        let (Some(run), Some(held)) = (&mut self.ledger.run, &self.ledger.held) else {
            return Some("nothing is asked to end");
        };
        let Some((reason, _)) = run.reason else {
            return Some("a command is stopped without need");
        };
        if run.drained.replace((now, end)).is_some() || run.killed {
            return Some("it is asked to end twice");
        }
        if signal != rules.stop_signal {
            return Some("another signal");
        }
        let expected = match reason {
            Reason::Doubt => run.doubt_ends.unwrap_or(held.kill(&rules)),
            Reason::Lost => {
                let grace = rules.budget.map_or(rules.grace, |b| b.grace_on_loss);
                held.kill(&rules).min(now + grace)
            }
            Reason::Cordon => {
                // Three seconds before the disturbance, with at least five seconds of grace.
                let before = cordon.map_or(now, |cordon| cordon.before);
                (now + rules.grace).min((before - secs(3)).max(now + rules.grace.min(secs(5))))
            }
            Reason::Exited
            | Reason::Asked
            | Reason::HandOver
            | Reason::Hung
            | Reason::Unwatched => now + rules.grace,
            // The time limit came before.
            Reason::Guardian if now >= held.term(&rules) => held.kill(&rules),
            Reason::Guardian if is_long(held, &rules, now) => now + rules.grace,
            Reason::Guardian => return Some("who is dead is asked"),
        };
        (end != expected).then_some("the grace has another end")
    }

    pub(super) fn judge_kill(&mut self) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let (Some(run), Some(held)) = (&mut self.ledger.run, &self.ledger.held) else {
            return Some("nothing is killed");
        };
        if std::mem::replace(&mut run.killed, true) {
            return Some("it is killed twice");
        }
        let end = run.drained.map_or(Instant::FOREVER, |(_, end)| end);
        let is_due = now >= end.min(held.kill(&rules)) && run.reason.is_some();
        (!is_due && !self.ledger.at_once).then_some("a command is killed without need")
    }

    pub(super) fn judge_announcement(&mut self) -> Option<&'static str> {
        let now = self.now;
        let kept = self.will_be_kept();
        let Some(run) = &mut self.ledger.run else {
            return Some("nothing is announced");
        };
        if std::mem::replace(&mut run.announced, true) {
            return Some("it is announced twice");
        }
        match run.drained {
            None => self
                .rules()
                .hold_policy
                .restart
                .is_some()
                .then_some("a restart is announced"),
            Some(_) if run.killed || kept => {
                Some("no standby shall come closer, or it is too late")
            }
            Some((since, _)) => (now < since + ms(200)).then_some("each short drain is announced"),
        }
    }

    /// Whether the command ended by itself, and the lease is kept.
    pub(super) fn will_be_kept(&self) -> bool {
        let Some(run) = &self.ledger.run else {
            return false;
        };
        if run.quiet {
            return true;
        }
        let (Some((Reason::Exited, at)), Some((_, exit))) = (run.reason, run.exit) else {
            return false;
        };
        let policy = &self.rules().hold_policy;
        let restarts = policy
            .restart
            .is_some_and(|rule| rule.after == After::Any || exit != Exit::Code(0));
        let began = self.ledger.held.as_ref().map_or(BEGIN, |held| held.began);
        restarts || policy.min_hold.is_some_and(|span| at < began + span)
    }
}

fn is_long(held: &Held, rules: &Rules, now: Instant) -> bool {
    let span = rules.hold_policy.max_hold;
    span.is_some_and(|span| now >= held.began + span)
}
