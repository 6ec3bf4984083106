use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{Cordon, Exit, Hung, Rules, State};

use super::bell::Listening;
use super::condition::Fitness;
use super::drive::Chain;
use super::health::Watched;
use super::record::Record;
use super::window::Window;
use super::{Held, Next, RETRY, Run, Why};
use crate::alone::plan::{Plan, ms, secs};
use crate::alone::world::BEGIN;

pub(crate) struct Ledger {
    pub(crate) broken: Option<Instant>,
    pub(super) stop: Option<(Instant, i32)>,
    pub(super) at_once: bool,
    pub(super) cordon: Option<Cordon>,
    pub(super) guardian_lost: bool,
    pub(super) stuck: bool,
    pub(super) contacted: bool,
    pub(super) controlled: bool,
    /// Value before this tenure, because a tenure without a command does not count.
    pub(super) controlled_before: bool,
    pub(super) first_sent: Option<Instant>,
    pub(super) ambiguous: bool,
    /// Next attempt; `None` if the lock wakes its waiters.
    pub(super) look: Option<Window>,
    pub(super) woken: Option<Instant>,
    pub(super) seen: Option<bool>,
    /// Time at which it learnt that another has control, how long it then waits, and whether it
    /// knew before.
    pub(super) waits: Option<(Instant, Duration, bool)>,
    pub(super) bell: Listening,
    pub(super) standing: bool,
    pub(super) held: Option<Held>,
    pub(super) run: Option<Run>,
    pub(super) tenure: bool,
    pub(super) next: Option<Next>,
    pub(super) natural: bool,
    pub(super) exit: Option<Exit>,
    pub(super) spent: bool,
    pub(super) hook_failed: bool,
    pub(super) not_started: Option<i32>,
    pub(super) done_told: bool,
    pub(super) fatal: bool,
    /// Start of the release, and the window of the next request.
    pub(super) leaving: Option<(Instant, Window)>,
    pub(super) released: bool,
    pub(super) run_out: bool,
    pub(super) record: Option<(Instant, Window)>,
    pub(super) record_failed: bool,
    pub(super) last: Option<Why>,
    pub(super) doubt: Option<Instant>,
    /// Last report of a refused credential in this doubt.
    pub(super) denied_at: Option<Instant>,
    pub(super) overlapped: bool,
    /// Last request to acquire or release.
    pub(super) sent: Instant,
    pub(super) free_since: Instant,
    pub(super) told_at: Instant,
    /// Sending time of the request whose answer came last.
    pub(super) told_of: Instant,
    pub(crate) controlled_at: Instant,
    pub(super) tired_at: Instant,
    /// Whether this event is the second request to stop.
    pub(super) urgent: bool,
    pub(super) found_lost: bool,
    pub(super) refused: bool,
    pub(super) said: bool,
    pub(super) told_cordoned: bool,
    pub(super) doubt_is: Option<String>,
    pub(super) doubt_was: Option<String>,
    pub(super) acting: bool,
    pub(super) empty_at: Option<Instant>,
    /// Whether the tree outlived the known end of the lease.
    pub(super) outlived: bool,
    pub(super) owes_a_word: bool,
    pub(super) paused: bool,
    pub(super) cordoned: bool,
    pub(super) hurried: bool,
    pub(super) expected: Option<Why>,
    pub(super) fitness: Option<Fitness>,
    pub(super) looking: Option<Instant>,
    pub(super) came: Instant,
    /// Whether the store keeps the lock for it.
    pub(super) offered: bool,
    pub(super) watched: Option<Watched>,
    pub(super) health: Record,
    pub(super) hung: Option<Hung>,
    /// Whether it waits longer because its command hung.
    pub(super) was_hung: bool,
    pub(super) corpse: bool,
    pub(crate) chain: Chain,
    /// Whether the last change of state was followed.
    pub(super) followed: bool,
}

impl Ledger {
    pub(crate) fn new(cordon: Option<Cordon>, plan: &Plan) -> Ledger {
        Ledger {
            broken: None,
            stop: None,
            at_once: false,
            cordon,
            guardian_lost: false,
            stuck: false,
            contacted: false,
            controlled: false,
            controlled_before: false,
            first_sent: None,
            ambiguous: false,
            look: Some(Window::at(BEGIN)),
            woken: None,
            seen: None,
            waits: None,
            bell: Listening::default(),
            standing: false,
            held: None,
            run: None,
            tenure: false,
            next: None,
            natural: false,
            exit: None,
            spent: false,
            hook_failed: false,
            not_started: None,
            done_told: false,
            fatal: false,
            leaving: None,
            released: false,
            run_out: false,
            record: None,
            record_failed: false,
            last: None,
            doubt: None,
            denied_at: None,
            overlapped: false,
            sent: BEGIN,
            free_since: BEGIN,
            told_at: BEGIN,
            told_of: BEGIN,
            controlled_at: BEGIN,
            tired_at: Instant::FOREVER,
            urgent: false,
            found_lost: false,
            refused: false,
            said: false,
            told_cordoned: false,
            doubt_is: None,
            doubt_was: None,
            acting: false,
            empty_at: None,
            outlived: false,
            owes_a_word: false,
            paused: false,
            cordoned: false,
            hurried: false,
            expected: None,
            fitness: plan.condition.map(Fitness::new),
            looking: None,
            came: BEGIN,
            offered: false,
            watched: None,
            health: Record::new(),
            hung: None,
            was_hung: false,
            corpse: false,
            chain: Chain::default(),
            followed: false,
        }
    }

    /// Returns the ledger of a process that begins now.
    pub(crate) fn since(mut self, now: Instant, controlled_at: Instant) -> Ledger {
        (self.look, self.controlled_at) = (Some(Window::at(now)), controlled_at);
        self
    }

    /// Returns when the next attempt is due, as planned or because of a ring.
    pub(super) fn due(&self) -> Option<Window> {
        let (look, rung) = (self.look?, self.bell.look);
        Some(rung.map_or(look, |rung| Window(look.0.min(rung.0), look.1.min(rung.1))))
    }

    pub(super) fn last_look(&self, rules: &Rules, now: Instant, look: Window) -> Window {
        let end = self.wait_ends(rules);
        let last = end - ms(250);
        if end == Instant::FOREVER || look.1 < end || last <= now {
            return look;
        }
        Window(look.0.min(last), if look.0 < end { end } else { last })
    }

    pub(super) fn follow(&mut self, now: Instant, before: State, state: State, rules: &Rules) {
        if self.run.is_some() || !matches!(self.next, None | Some(Next::Leave)) {
            self.controlled_at = now;
        }
        if state == State::Releasing && self.leaving.is_none() {
            self.leaving = Some((now, Window(now, Instant::FOREVER)));
        }
        let left = matches!(state, State::Releasing | State::Standby) && state != before;
        if let Some(fitness) = self.fitness.as_mut().filter(|_| left) {
            fitness.leaves(state == State::Releasing);
        }
        let gave_back = self.held.is_some() || self.leaving.is_some();
        let looked = matches!(before, State::Standby | State::Acquiring);
        let done = std::mem::take(&mut self.followed);
        if state == State::Standby && (gave_back || !looked) && !done {
            let behind = matches!(self.last, Some(Why::HandOver | Why::GivenUp));
            let poll = rules.poll;
            let cool = poll.map_or(ms(500), |poll| 2 * poll);
            let lease = rules.budget.map_or(secs(10), |budget| budget.lease);
            let cool = if self.was_hung { lease } else { cool };
            let cool = rules.hold_policy.cooldown.unwrap_or(cool);
            let look = if behind {
                Window::at(now + cool)
            } else {
                Window::about(now, poll.unwrap_or(RETRY))
            };
            self.bell.waits(now);
            self.look = Some(look);
            let known = self.overlapped && self.broken.is_none() || self.found_lost;
            self.owes_a_word = known && !self.said;
            (self.held, self.next, self.leaving) = (None, None, None);
            (self.last, self.expected, self.record) = (None, None, None);
            (self.released, self.run_out, self.exit) = (false, false, None);
            (self.came, self.offered) = (now, false);
        }
        if state == State::Standby && self.cordon.is_some() {
            self.seen = None;
        }
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.fitness.as_ref().is_some_and(Fitness::is_asking)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.exit.is_some()
    }

    pub(crate) fn has_started(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.started)
    }

    /// Returns how long after the last deed an instance must be in control again.
    pub(crate) fn bound(&self, plan: &Plan) -> Duration {
        let rules = &plan.rules;
        let lease = rules.budget.map_or(Duration::ZERO, |budget| budget.lease);
        let poll = rules.poll.unwrap_or(RETRY);
        let cool = rules.hold_policy.cooldown.unwrap_or_default();
        let asks = plan.condition.unwrap_or_default() * 2;
        lease * 3 + poll * 4 + cool + asks + secs(210) + rules.grace + plan.rival_holds
    }

    pub(super) fn wait_ends(&self, rules: &Rules) -> Instant {
        match rules.wait {
            Some(span) if !self.controlled => {
                let unfit = self.fitness.as_ref().and_then(Fitness::unfit);
                let asks = self.cordon.is_some() || unfit.is_some();
                let began = self.first_sent.is_some() || self.fitness.is_some();
                let asks = asks || began && !span.is_zero();
                if asks { BEGIN + span } else { Instant::FOREVER }
            }
            _ => Instant::FOREVER,
        }
    }

    pub(super) fn is_out_of_time(&self, rules: &Rules, now: Instant) -> bool {
        let looked = rules.wait == Some(Duration::ZERO) && self.contacted && !self.controlled;
        looked || now >= self.wait_ends(rules)
    }

    pub(super) fn patience_ends(&self, rules: &Rules) -> Instant {
        let one_look = rules.wait == Some(Duration::ZERO);
        let patience = if one_look {
            rules.patience.min(secs(3))
        } else {
            rules.patience
        };
        self.first_sent.unwrap_or(BEGIN) + patience
    }
}
