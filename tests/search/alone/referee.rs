//! What must hold of one instance, whatever befalls it. Knows what the instance was told, what it did, and
//! what the lock and the command are; the arithmetic is that of the book's tables.

use std::time::Duration;

use trafficcop::Instant;
use trafficcop::internals::core::{
    Action, After, Bell, Budget, Cause, Cordon, Deadlines, Ending, Event, Exit, Failure, Grant,
    HolderInfo, IfLost, Notice, OnFailure, Outcome, Restart, Ring, Rules, Start, State,
    WorkloadEvent,
};

use super::plan::{Plan, ms, secs};
use super::world::{BEGIN, Kind, World};

const RETRY: Duration = secs(2);
const ATTEMPT: Duration = secs(5);

/// When something is due: not before the one, not after the other.
#[derive(Clone, Copy, Debug)]
struct Window(Instant, Instant);

impl Window {
    fn at(at: Instant) -> Window {
        Window(at, at)
    }

    /// A fifth more or less after a moment.
    fn about(since: Instant, span: Duration) -> Window {
        Window(since + span * 4 / 5, since + span * 6 / 5)
    }

    fn no_later(self, at: Instant) -> Window {
        Window(self.0.min(at), self.1.min(at))
    }

    fn no_sooner(self, at: Window) -> Window {
        Window(self.0.max(at.0), self.1.max(at.1))
    }
}

/// What is known of the doorbell of whoever has control.
#[derive(Clone, Debug, Default)]
struct Listening {
    bell: Option<Bell>,
    /// It lives, and so many were there before us.
    rank: Option<u32>,
    one_of_many: bool,
    rings: u32,
    deaf_until: Option<Instant>,
    looked: Option<Instant>,
    look: Option<Window>,
    hurry: Option<(Instant, Duration)>,
    /// It is to be listened to, or to none.
    attend: Option<Option<Bell>>,
}

fn is_near(bell: &Bell) -> bool {
    let near = [
        "10.0.0.1",
        "127.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.0.1",
        "::1",
        "fd00::1",
        "fe80::1",
        "::ffff:10.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.0.1",
    ];
    near.contains(&bell.address.ip().to_string().as_str())
}

impl Listening {
    fn look(&mut self, look: Window) {
        self.look = Some(self.look.map_or(look, |before| {
            Window(before.0.min(look.0), before.1.min(look.1))
        }));
    }

    /// A look has found this holder: when is the next, where that is not as ever?
    fn finds(&mut self, now: Instant, poll: Duration, holder: &HolderInfo) -> Option<Window> {
        let bell = holder.bell.as_deref().copied().filter(is_near);
        self.one_of_many = holder.is_one_of_many;
        self.attend = None;
        if bell != self.bell {
            let (one_of_many, looked) = (self.one_of_many, self.looked);
            *self = Listening {
                bell,
                one_of_many,
                looked,
                attend: Some(bell),
                ..Listening::default()
            };
        } else if self.deaf_until.is_none_or(|until| now >= until) {
            if self.deaf_until.take().is_some() {
                self.rings = 0;
            }
            self.attend = bell.filter(|_| self.rank.is_none()).map(Some);
        }
        if self.rank.is_some() && !self.one_of_many {
            return Some(Window::about(now, poll.max(secs(12))));
        }
        let (until, pace) = self.hurry?;
        (now < until).then(|| Window::at(now + pace.min(poll)))
    }

    /// What rang earlier is followed from now on.
    fn waits(&mut self, now: Instant) {
        self.look = self.look.map(|look| Window(look.0, look.1.max(now)));
    }

    fn rang(&mut self, now: Instant, ring: Ring, grace: Duration, poll: Duration) {
        if let Ring::Greeted { rank } = ring {
            (self.rank, self.hurry) = (Some(rank), None);
            return;
        }
        let Some(rank) = self.rank else { return };
        // As long as a poll, from any moment within it.
        let soon = Window(now, now + poll * 6 / 5);
        if ring == Ring::Silent {
            self.rank = None;
            return self.look(soon);
        }
        self.rings += 1;
        if self.rings > 10 {
            (self.rank, self.look) = (None, None);
            self.deaf_until = Some(now + secs(60));
            self.attend = Some(None);
            return self.look(soon);
        }
        if ring != Ring::Draining {
            self.rank = None;
        }
        if ring == Ring::Closed {
            let pace = match rank {
                0 => Some(ms(100)),
                1..=3 => Some(ms(250)),
                _ => None,
            };
            self.hurry = pace.map(|pace| (now + grace, pace));
        }
        let gap = self
            .looked
            .filter(|_| ring != Ring::Released)
            .map(|looked| looked + ms(100));
        let at = gap.map_or(now, |gap| gap.max(now)) + ms(5) * rank;
        self.look(Window::at(at));
    }
}

/// The lease that was granted.
#[derive(Clone, Debug)]
struct Held {
    began: Instant,
    confirmed: Instant,
    asked: Instant,
    token: u64,
    failed: u32,
    /// It was lost, and is safe until then.
    safe_until: Option<Instant>,
    renewal: Window,
    /// When it was asked to be renewed, until that is answered.
    renewing: Option<(Instant, Instant)>,
    doubted: bool,
    restarts: Vec<Instant>,
    in_a_row: u32,
}

/// Why a command is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Exited,
    Asked,
    HandOver,
    Cordon,
    Doubt,
    Lost,
    Guardian,
}

/// A command, from its start until nothing of it lives.
#[derive(Clone, Debug)]
struct Run {
    since: Instant,
    started: bool,
    exit: Option<(Instant, Exit)>,
    /// Why it is to end, and from when on that can have ended it.
    reason: Option<(Reason, Instant)>,
    /// When the drain began, and when it ends.
    drained: Option<(Instant, Instant)>,
    killed: bool,
    announced: bool,
}

/// What comes after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Restart {
        until: Instant,
    },
    Keep {
        until: Instant,
    },
    Record,
    /// A task failed, and the others are to wait as well.
    Pause {
        until: Instant,
    },
    Leave,
}

pub(crate) struct Ledger {
    pub(crate) broken: Option<Instant>,
    stop: Option<(Instant, i32)>,
    at_once: bool,
    cordon: Option<Cordon>,
    guardian_lost: bool,
    stuck: bool,
    contacted: bool,
    controlled: bool,
    first_sent: Option<Instant>,
    ambiguous: bool,
    /// When the next attempt is due; `None`: it is the lock that says so.
    look: Option<Window>,
    woken: Option<Instant>,
    seen: Option<bool>,
    /// When it was told that another has control, how long it waits then, and whether it did before.
    waits: Option<(Instant, Duration, bool)>,
    bell: Listening,
    standing: bool,
    held: Option<Held>,
    run: Option<Run>,
    tenure: bool,
    next: Option<Next>,
    natural: bool,
    exit: Option<Exit>,
    spent: bool,
    hook_failed: bool,
    not_started: Option<i32>,
    done_told: bool,
    fatal: bool,
    /// When what we have began to be given back, and when it is to be asked next.
    leaving: Option<(Instant, Window)>,
    released: bool,
    run_out: bool,
    record: Option<(Instant, Window)>,
    record_failed: bool,
    last: Option<Why>,
    doubt: Option<Instant>,
    overlapped: bool,
    /// When an attempt, or a release, was sent last.
    sent: Instant,
    free_since: Instant,
    told_at: Instant,
    controlled_at: Instant,
    tired_at: Instant,
    /// The second request to stop, which is heard now.
    urgent: bool,
    found_lost: bool,
    refused: bool,
    said: bool,
    told_cordoned: bool,
    doubt_is: Option<String>,
    doubt_was: Option<String>,
    acting: bool,
    empty_at: Option<Instant>,
    /// The tree was seen to be empty after the end of the lease, as far as that was known.
    outlived: bool,
    owes_a_word: bool,
    paused: bool,
    cordoned: bool,
    hurried: bool,
    expected: Option<Why>,
}

/// The kinds of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Ended,
    NotStarted,
    Stopped,
    Doubt,
    Lost,
    Guardian,
    HandOver,
    Cordoned,
    GivenUp,
    NotRecorded,
    AlreadyDone,
    NotObtained,
    Store,
}

impl Reason {
    fn why(self) -> Why {
        match self {
            Reason::Exited => Why::Ended,
            Reason::Asked => Why::Stopped,
            Reason::HandOver => Why::HandOver,
            Reason::Cordon => Why::Cordoned,
            Reason::Doubt => Why::Doubt,
            Reason::Lost => Why::Lost,
            Reason::Guardian => Why::Guardian,
        }
    }
}

fn why(cause: &Cause) -> Why {
    match cause {
        Cause::CommandEnded => Why::Ended,
        Cause::NotStarted { .. } => Why::NotStarted,
        Cause::Stopped(_) => Why::Stopped,
        Cause::Doubt { .. } => Why::Doubt,
        Cause::Lost { .. } => Why::Lost,
        Cause::GuardianLost => Why::Guardian,
        Cause::HandOver => Why::HandOver,
        Cause::Cordoned { .. } => Why::Cordoned,
        Cause::GivenUp(_) => Why::GivenUp,
        Cause::NotRecorded { .. } => Why::NotRecorded,
        Cause::AlreadyDone(_) => Why::AlreadyDone,
        Cause::NotObtained(_) => Why::NotObtained,
        Cause::Store { .. } => Why::Store,
        other => unreachable!("{other:?}"),
    }
}

impl Held {
    fn kill(&self, rules: &Rules) -> Instant {
        let planned = rules.budget.map_or(Instant::FOREVER, |b| {
            self.confirmed + b.lease.saturating_sub(b.margin)
        });
        let margin = rules.budget.map_or(secs(1), |b| b.margin);
        self.safe_until
            .map_or(planned, |until| planned.min(until - margin))
    }

    fn term(&self, rules: &Rules) -> Instant {
        let planned = rules.budget.map_or(Instant::FOREVER, |b| {
            self.confirmed
                + b.lease
                    .saturating_sub(b.margin)
                    .saturating_sub(b.grace_on_loss)
        });
        planned.min(self.kill(rules))
    }

    fn is_half_gone(&self, rules: &Rules, now: Instant) -> bool {
        rules
            .budget
            .is_some_and(|b| now.since(self.confirmed) > b.lease / 2)
    }

    fn deadlines(&self, rules: &Rules) -> Deadlines {
        Deadlines {
            term_at: self.term(rules),
            kill_at: self.kill(rules),
        }
    }

    fn hurry(&mut self, now: Instant) {
        if self.renewal.1 < Instant::FOREVER {
            self.renewal = self.renewal.no_later(now);
        }
    }
}

impl Ledger {
    pub(crate) fn new(cordon: Option<Cordon>) -> Ledger {
        Ledger {
            broken: None,
            stop: None,
            at_once: false,
            cordon,
            guardian_lost: false,
            stuck: false,
            contacted: false,
            controlled: false,
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
            overlapped: false,
            sent: BEGIN,
            free_since: BEGIN,
            told_at: BEGIN,
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
        }
    }

    /// When the next attempt is due: as planned, or because it rang.
    fn due(&self) -> Option<Window> {
        let (look, rung) = (self.look?, self.bell.look);
        Some(rung.map_or(look, |rung| Window(look.0.min(rung.0), look.1.min(rung.1))))
    }

    fn last_look(&self, rules: &Rules, now: Instant, look: Window) -> Window {
        let end = self.wait_ends(rules);
        let last = end - ms(250);
        if end == Instant::FOREVER || look.1 < end || last <= now {
            return look;
        }
        Window(look.0.min(last), if look.0 < end { end } else { last })
    }

    /// What follows from a change of state.
    fn follow(&mut self, now: Instant, before: State, state: State, rules: &Rules) {
        if self.run.is_some() || !matches!(self.next, None | Some(Next::Leave)) {
            self.controlled_at = now;
        }
        if state == State::Releasing && self.leaving.is_none() {
            self.leaving = Some((now, Window(now, Instant::FOREVER)));
        }
        let gave_back = self.held.is_some() || self.leaving.is_some();
        let looked = matches!(before, State::Standby | State::Acquiring);
        if state == State::Standby && (gave_back || !looked) {
            let behind = matches!(self.last, Some(Why::HandOver | Why::GivenUp));
            let poll = rules.poll;
            let cool = poll.map_or(ms(500), |poll| 2 * poll);
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
        }
        if state == State::Standby && self.cordon.is_some() {
            self.seen = None;
        }
    }

    pub(crate) fn has_started(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.started)
    }

    /// How long after the last deed somebody has to be in control again.
    pub(crate) fn bound(&self, plan: &Plan) -> Duration {
        let rules = &plan.rules;
        let lease = rules.budget.map_or(Duration::ZERO, |budget| budget.lease);
        let poll = rules.poll.unwrap_or(RETRY);
        let cool = rules.hold_policy.cooldown.unwrap_or_default();
        lease * 2 + poll * 4 + cool + secs(200) + rules.grace + plan.rival_holds
    }

    fn wait_ends(&self, rules: &Rules) -> Instant {
        match rules.wait {
            Some(span) if !self.controlled => {
                let asks = self.cordon.is_some() || self.first_sent.is_some() && !span.is_zero();
                if asks { BEGIN + span } else { Instant::FOREVER }
            }
            _ => Instant::FOREVER,
        }
    }

    fn is_out_of_time(&self, rules: &Rules, now: Instant) -> bool {
        let looked = rules.wait == Some(Duration::ZERO) && self.contacted && !self.controlled;
        looked || now >= self.wait_ends(rules)
    }

    fn patience_ends(&self, rules: &Rules) -> Instant {
        let one_look = rules.wait == Some(Duration::ZERO);
        let patience = if one_look {
            rules.patience.min(secs(3))
        } else {
            rules.patience
        };
        self.first_sent.unwrap_or(BEGIN) + patience
    }
}

/// From the start of one attempt to the start of the next, or at once where that has passed; by the
/// service's wish if it had one.
fn again(
    pace: Duration,
    sent: Instant,
    now: Instant,
    wish: Option<Duration>,
    latest: Instant,
) -> Window {
    let ours = Window::about(sent, pace).no_sooner(Window(sent, now));
    let Some(wish) = wish.map(|wish| wish.min(secs(30))) else {
        return ours;
    };
    ours.no_sooner(Window(now + wish, now + wish * 6 / 5).no_later(latest))
}

impl World {
    fn rules(&self) -> &Rules {
        &self.plan.rules
    }

    /// After this moment, unless we could not help it.
    fn is_late(&self, at: Instant) -> bool {
        self.now > at.max(self.resumed)
    }

    // --- what it is told ---

    pub(crate) fn hear(&mut self, event: &Event) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let state = *self.tenure.state();
        let resting = matches!(state, State::Resting | State::Recording);
        if let Some(held) = &mut self.ledger.held {
            held.doubted |= now >= held.term(&rules);
        }
        self.ledger.urgent = false;
        let over = self.is_over_by(event);
        // The clock goes before what happened.
        if let (Some(held), Some(run), false) = (&self.ledger.held, &mut self.ledger.run, over)
            && run.reason.is_none()
        {
            let long = rules
                .hold_policy
                .max_hold
                .map_or(Instant::FOREVER, |span| held.began + span);
            if now >= held.term(&rules) {
                run.reason = Some((Reason::Doubt, held.term(&rules)));
            } else if now >= long {
                run.reason = Some((Reason::HandOver, now));
            }
        }
        if let (Some(held), Some(Next::Restart { until })) =
            (&mut self.ledger.held, self.ledger.next)
            && state == State::Resting
            && now >= until
            && held.is_half_gone(&rules, now)
            && !std::mem::replace(&mut self.ledger.hurried, true)
        {
            held.hurry(now);
        }
        if let Event::Renewed {
            reply: Err(failure),
            ..
        }
        | Event::Acquired(Err(failure)) = event
            && let Failure::Transient { why, .. } | Failure::Fatal { why, .. } = failure
            && state != State::Releasing
        {
            self.ledger.doubt_was = self.ledger.doubt_is.replace(why.clone());
        }
        match event {
            Event::StopAsked(signal) => match self.ledger.stop {
                None => {
                    self.ledger.stop = Some((now, *signal));
                    self.is_to_end(Reason::Asked, now);
                }
                Some((first, _)) => {
                    let urgent = [2, 15].contains(signal) && now.since(first) >= ms(100);
                    self.ledger.urgent = urgent;
                    self.ledger.at_once |= urgent && self.ledger.run.is_some();
                }
            },
            Event::Cordoned(cordon) => {
                self.ledger.cordon = Some(cordon.clone());
                self.ledger.cordoned = true;
                self.is_to_end(Reason::Cordon, now);
            }
            Event::Uncordoned => {
                let lifted = self.ledger.cordon.take().is_some();
                if lifted {
                    self.ledger.free_since = now;
                }
                if state == State::Standby && self.ledger.look.is_none() {
                    self.ledger.look = Some(Window::at(now));
                }
            }
            Event::Freed if state == State::Standby => {
                let next = self
                    .ledger
                    .woken
                    .map_or(now, |woken| (woken + ms(50)).max(now));
                self.ledger.woken = Some(next);
                self.ledger.look = Some(Window::at(next));
            }
            Event::Acquired(reply) => self.hear_of_an_attempt(state, reply),
            Event::Renewed { t0, reply } => self.hear_of_a_renewal(state, *t0, reply),
            Event::Recorded(reply) => self.hear_of_a_record(state, reply),
            Event::Released(reply) => self.hear_of_a_release(state, reply),
            Event::Workload(WorkloadEvent::ClockJumped) if resting || state == State::Holding => {
                let ends = self
                    .ledger
                    .run
                    .as_ref()
                    .is_some_and(|run| run.reason.is_some());
                if let Some(held) = &mut self.ledger.held
                    && !ends
                {
                    held.hurry(now);
                }
            }
            Event::Workload(event) => self.hear_of_the_tree(*event, over),
            Event::Ticked | Event::Freed | Event::CommandStopping | Event::Looked(_) => {}
        }
    }

    fn is_to_end(&mut self, reason: Reason, due: Instant) {
        if let Some(run) = &mut self.ledger.run {
            let lost = matches!(reason, Reason::Lost);
            match &mut run.reason {
                None => run.reason = Some((reason, due)),
                Some((before, _)) if lost => {
                    if matches!(before, Reason::Doubt | Reason::HandOver | Reason::Cordon) {
                        *before = Reason::Lost;
                    }
                }
                Some((before, _)) if reason == Reason::Guardian => {
                    if !matches!(before, Reason::Exited | Reason::Asked) {
                        *before = Reason::Guardian;
                    }
                }
                Some(_) => {}
            }
        }
    }

    pub(crate) fn hear_a_ring(&mut self, ring: Ring) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        if let Some(poll) = rules.poll {
            self.ledger.bell.attend = None;
            self.ledger.bell.rang(now, ring, rules.grace, poll);
        }
    }

    fn judge_listening(&mut self, bell: Option<Bell>) -> Option<&'static str> {
        let wanted = self.ledger.bell.attend.take();
        (wanted != Some(bell)).then_some("it listens to another bell")
    }

    fn hear_of_an_attempt(&mut self, state: State, reply: &Result<Grant, Failure>) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let ledger = &mut self.ledger;
        if state == State::Standby && reply.is_ok() {
            // Nobody waits for it.
            ledger.leaving = Some((now, Window::at(now)));
        }
        if state != State::Acquiring {
            return;
        }
        let sent = ledger.sent;
        match reply {
            Ok(grant) => {
                (ledger.contacted, ledger.ambiguous) = (true, false);
                let t0 = grant.t0.min(now);
                let every = rules
                    .budget
                    .map_or(Instant::FOREVER, |b| t0 + b.renew_every);
                let mut held = Held {
                    began: t0,
                    confirmed: t0,
                    asked: t0,
                    token: grant.token,
                    failed: grant.failed,
                    safe_until: None,
                    renewal: Window(every, every.max(now)),
                    renewing: None,
                    doubted: false,
                    restarts: Vec::new(),
                    in_a_row: 0,
                };
                held.doubted = now >= held.term(&rules);
                ledger.exit = None;
                if held.is_half_gone(&rules, now) {
                    held.hurry(now);
                }
                ledger.held = Some(held);
            }
            Err(Failure::Held(holder)) => {
                (ledger.contacted, ledger.ambiguous) = (true, false);
                let kept = ledger.seen.replace(holder.draining) == Some(holder.draining);
                let Some(poll) = rules.poll else {
                    ledger.look = None;
                    return;
                };
                let fast = (poll / 8).clamp(ms(250), secs(2)).min(poll);
                let span = if holder.draining { fast } else { poll };
                let about = Window::about(now, span);
                let mut look = if kept { about } else { Window(now, about.1) };
                if let Some(rung) = ledger.bell.finds(now, poll, holder) {
                    look = rung;
                }
                if let Some(expires) = holder.expires.filter(|expires| *expires > now) {
                    look = look.no_later(expires);
                }
                let plain = look.1 == about.1 && rules.wait.is_none();
                let look = ledger.last_look(&rules, now, look);
                ledger.waits = plain.then_some((now, span, kept));
                ledger.bell.waits(now);
                ledger.look = Some(look);
            }
            Err(Failure::AlreadyDone(_)) => {
                ledger.done_told = true;
                ledger.leaving = Some((now, Window::at(now)));
            }
            Err(Failure::Fatal { .. }) if !ledger.contacted => ledger.fatal = true,
            Err(failure) => {
                ledger.ambiguous = true;
                let wish = match failure {
                    Failure::Transient { retry_after, .. } => *retry_after,
                    _ => None,
                };
                let look = again(RETRY, sent, now, wish, Instant::FOREVER);
                let look = if ledger.contacted {
                    look.no_sooner(Window::about(sent, rules.poll.unwrap_or(RETRY)))
                } else {
                    look.no_later(ledger.patience_ends(&rules))
                };
                let look = ledger.last_look(&rules, now, look);
                ledger.bell.waits(now);
                ledger.look = Some(look);
            }
        }
    }

    fn hear_of_a_renewal(&mut self, state: State, t0: Instant, reply: &Result<(), Failure>) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let ends = self
            .ledger
            .run
            .as_ref()
            .is_some_and(|run| run.reason.is_some());
        let limit = self.limit(if ends { State::Draining } else { state });
        self.ledger.told_at = now;
        let Some(held) = &mut self.ledger.held else {
            return;
        };
        let sent = held.renewing.take();
        // What time it is goes before the answer.
        if matches!(state, State::Confirming | State::Resting) && now >= limit {
            return;
        }
        if state == State::Releasing {
            let waits = self.call.is_some_and(|call| call.kind == Kind::Release);
            if let Some((began, _)) = self.ledger.leaving.filter(|_| !waits && sent.is_some()) {
                self.ledger.leaving = Some((began, Window::at(now)));
            }
            if matches!(reply, Err(Failure::Held(_) | Failure::Lost { .. })) {
                held.safe_until = Some(Instant::ZERO);
            }
            return;
        }
        let pace = rules.budget.map_or(RETRY, |b| RETRY.min(b.attempt));
        match reply {
            Ok(()) => {
                if now < held.kill(&rules) && held.safe_until.is_none() {
                    held.confirmed = held.confirmed.max(t0.min(now));
                    held.asked = held.asked.max(held.confirmed);
                    let every = rules
                        .budget
                        .map_or(Instant::FOREVER, |b| held.confirmed + b.renew_every);
                    held.renewal = Window(every, every.max(now));
                    if state == State::Confirming && held.is_half_gone(&rules, now) {
                        held.hurry(now);
                    }
                } else {
                    held.renewal = Window::at(Instant::FOREVER);
                }
            }
            Err(Failure::Lost { until, .. }) => {
                let until_known = until.unwrap_or(Instant::ZERO);
                let safe = held.safe_until.unwrap_or(Instant::FOREVER).min(until_known);
                held.safe_until = Some(safe);
                held.renewal = Window::at(until.map_or(Instant::FOREVER, |_| now + secs(1)));
                self.is_to_end(Reason::Lost, now);
            }
            Err(Failure::Held(_)) => {
                held.safe_until = Some(Instant::ZERO);
                held.renewal = Window::at(Instant::FOREVER);
                self.is_to_end(Reason::Lost, now);
            }
            Err(failure) => {
                let wish = match failure {
                    Failure::Transient { retry_after, .. } => *retry_after,
                    _ => None,
                };
                if let Some((sent, _)) = sent {
                    held.renewal = again(pace, sent, now, wish, limit - pace);
                }
            }
        }
    }

    fn hear_of_a_record(&mut self, state: State, reply: &Result<(), Failure>) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let Some((sent, _)) = self.ledger.record.filter(|_| state == State::Recording) else {
            return;
        };
        if self.ledger.next != Some(Next::Record) {
            return;
        }
        let latest = self.limit(state) - RETRY;
        let Some(held) = &mut self.ledger.held else {
            return;
        };
        match reply {
            Ok(()) => {
                let over = self
                    .ledger
                    .exit
                    .is_none_or(|exit| outcome(&rules, exit, held.failed).over);
                self.ledger.record = None;
                let until = now + backoff(held.failed);
                self.ledger.paused |= !over;
                self.ledger.next = Some(if over || self.ledger.stop.is_some() {
                    Next::Leave
                } else {
                    Next::Pause { until }
                });
            }
            Err(Failure::Transient { retry_after, .. }) => {
                let due = again(RETRY, sent, now, *retry_after, latest);
                self.ledger.record = Some((sent, due));
            }
            Err(failure) => {
                match failure {
                    Failure::Lost { until, .. } => {
                        let until = until.unwrap_or(Instant::ZERO);
                        let safe = held.safe_until.unwrap_or(Instant::FOREVER).min(until);
                        held.safe_until = Some(safe);
                    }
                    Failure::Held(_) => held.safe_until = Some(Instant::ZERO),
                    _ => {}
                }
                self.ledger.record_failed = true;
                self.ledger.next = Some(Next::Leave);
            }
        }
    }

    fn hear_of_a_release(&mut self, state: State, reply: &Result<(), Failure>) {
        let now = self.now;
        let sent = self.ledger.sent;
        let Some((began, _)) = self.ledger.leaving.filter(|_| state == State::Releasing) else {
            return;
        };
        if let Err(Failure::Transient { retry_after, .. }) = reply {
            let latest = self.release_limit(began);
            let due = again(RETRY, sent, now, *retry_after, latest);
            self.ledger.leaving = Some((began, due));
        } else {
            self.ledger.released = matches!(reply, Ok(()) | Err(Failure::Held(_)));
            self.ledger.refused =
                matches!(reply, Err(Failure::Fatal { .. } | Failure::AlreadyDone(_)));
            self.ledger.ambiguous = false;
        }
    }

    fn is_over_by(&self, event: &Event) -> bool {
        let Some(run) = &self.ledger.run else {
            return false;
        };
        match event {
            Event::Workload(WorkloadEvent::TreeEmpty { at }) => *at >= run.since,
            Event::Workload(WorkloadEvent::HookFailed { at, .. }) => {
                !run.started && *at >= run.since
            }
            Event::Workload(WorkloadEvent::NotStarted { .. }) => !run.started,
            _ => false,
        }
    }

    fn hear_of_the_tree(&mut self, event: WorkloadEvent, over: bool) {
        let now = self.now;
        match event {
            WorkloadEvent::Started { .. } => {
                if let Some(run) = &mut self.ledger.run {
                    run.started = true;
                }
            }
            WorkloadEvent::Exited(exit) => {
                if let Some(run) = &mut self.ledger.run {
                    run.started = true;
                    run.exit = Some((now, exit));
                    self.is_to_end(Reason::Exited, now);
                }
            }
            WorkloadEvent::Lost => {
                self.ledger.guardian_lost = true;
                self.is_to_end(Reason::Guardian, now);
            }
            WorkloadEvent::Acting => {
                self.ledger.acting = true;
                if let Some(run) = &mut self.ledger.run
                    && run.reason.is_none()
                {
                    run.reason = Some((Reason::Doubt, run.since));
                    if let Some(held) = &mut self.ledger.held {
                        held.doubted = true;
                        run.drained = Some((now, held.kill(&self.plan.rules)));
                    }
                }
            }
            WorkloadEvent::TreeStuck => self.ledger.stuck = self.ledger.run.is_some(),
            WorkloadEvent::TreeEmpty { at } if over => self.is_empty(at),
            WorkloadEvent::HookFailed { at, .. } if over => {
                self.ends_at(at);
                let run = self.ledger.run.take();
                let reason = run.and_then(|run| run.reason).map(|(reason, _)| reason);
                self.ledger.hook_failed = reason.is_none();
                self.ledger.expected = Some(reason.map_or(Why::GivenUp, Reason::why));
                self.leaves(None);
            }
            WorkloadEvent::NotStarted { errno } if over => {
                self.ledger.run = None;
                self.ledger.not_started = Some(errno);
                self.leaves(None);
            }
            _ => {}
        }
    }

    fn leaves(&mut self, exit: Option<Exit>) {
        self.ledger.exit = exit;
        self.ledger.next = Some(Next::Leave);
    }

    fn ends_at(&mut self, at: Instant) {
        let lease = self
            .rules()
            .budget
            .map(|budget| budget.lease - budget.lease / 50);
        let end = lease
            .zip(self.ledger.held.as_ref())
            .map(|(lease, held)| held.confirmed + lease);
        self.ledger.outlived = end.is_some_and(|end| at > end);
        self.ledger.empty_at = Some(at);
    }

    /// Nothing of the command lives since `at`: what follows?
    fn is_empty(&mut self, at: Instant) {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let (Some(run), Some(held)) = (self.ledger.run.take(), self.ledger.held.clone()) else {
            return;
        };
        let exit = run.exit.map(|(_, exit)| exit);
        self.ends_at(at);
        let mut natural = match run.reason {
            None => at < held.term(&rules),
            Some((Reason::Exited, _)) => true,
            Some((Reason::Guardian, _)) => false,
            Some((_, due)) => at < due,
        };
        if run.reason.is_none()
            && !natural
            && let Some(held) = &mut self.ledger.held
        {
            held.doubted = true;
        }
        natural &= !self.ledger.stuck;
        let policy = &rules.hold_policy;
        self.ledger.natural = natural;
        let stopped = self.ledger.stop.is_some();
        self.ledger.expected = Some(match run.reason {
            _ if natural => Why::Ended,
            None | Some((Reason::Doubt | Reason::Exited, _)) => Why::Doubt,
            Some((reason, _)) => reason.why(),
        });
        let ran = run.exit.map_or(now, |(at, _)| at).since(run.since);
        self.leaves(exit);
        if rules.once.is_some() {
            if natural && exit.is_some() {
                self.ledger.next = Some(Next::Record);
                self.ledger.record = Some((now, Window::at(now)));
                self.ledger.tired_at = now + secs(300);
                self.ledger.expected = None;
            } else if natural {
                self.ledger.expected = Some(Why::NotRecorded);
            }
            return;
        }
        let Some(exit) = exit.filter(|_| natural && !stopped) else {
            return;
        };
        let again = policy
            .restart
            .filter(|rule| rule.after == After::Any || exit != Exit::Code(0));
        if let Some(rule) = again {
            self.ledger.exit = None;
            let gone = now >= held.term(&rules) || held.safe_until.is_some();
            if self.ledger.guardian_lost || self.ledger.cordon.is_some() || gone {
                self.ledger.expected = Some(if self.ledger.guardian_lost {
                    Why::Guardian
                } else if held.safe_until.is_some() {
                    Why::Lost
                } else if gone {
                    Why::Doubt
                } else {
                    Why::Cordoned
                });
                return;
            }
            let Some(held) = &mut self.ledger.held else {
                return;
            };
            held.restarts.retain(|at| now.since(*at) < rule.window);
            if held.restarts.len() >= rule.limit as usize {
                self.ledger.spent = true;
                self.ledger.expected = Some(Why::GivenUp);
                return;
            }
            held.restarts.push(now);
            if ran >= secs(60) {
                held.in_a_row = 0;
            }
            let until = now + backoff(held.in_a_row);
            held.in_a_row += 1;
            held.hurry(now);
            self.ledger.next = Some(Next::Restart { until });
            self.ledger.expected = None;
        } else if let Some(span) = policy.min_hold
            && now < held.began + span
            && now < held.kill(&rules)
        {
            if let Some(held) = &mut self.ledger.held {
                held.hurry(now);
            }
            self.ledger.next = Some(Next::Keep {
                until: held.began + span,
            });
            self.ledger.expected = Some(Why::Ended);
        }
    }

    /// Until when it makes sense to renew.
    fn limit(&self, state: State) -> Instant {
        let Some(held) = &self.ledger.held else {
            return Instant::ZERO;
        };
        let rules = self.rules();
        match state {
            State::Confirming | State::Holding => held.term(rules),
            State::Draining | State::Killing | State::Recording => held.kill(rules),
            State::Resting if matches!(self.ledger.next, Some(Next::Keep { .. })) => {
                held.kill(rules)
            }
            State::Resting => held.term(rules),
            State::Standby | State::Acquiring | State::Releasing | State::Done => Instant::ZERO,
        }
    }

    fn release_limit(&self, began: Instant) -> Instant {
        let lease = self.rules().budget.map(|budget| budget.lease);
        let asked = self.ledger.held.as_ref().map(|held| held.asked);
        let lasts = asked
            .zip(lease)
            .map_or(Instant::FOREVER, |(asked, lease)| asked + lease);
        lasts.min(began + secs(10))
    }

    // --- what it does ---

    pub(crate) fn judge(&mut self, at: usize, action: &Action, actions: &[Action]) {
        let wrong = match action {
            Action::Acquire { give_up_at } => self.judge_attempt(*give_up_at),
            Action::Withdraw { give_up_at } => self.judge_withdrawal(*give_up_at),
            Action::Renew { give_up_at } => self.judge_renewal(*give_up_at),
            Action::Start(start) => {
                self.judge_start(*start, at.checked_sub(1).map(|at| &actions[at]))
            }
            Action::Extend(deadlines) => self.judge_extension(at, *deadlines),
            Action::Drain {
                signal,
                end_of_grace,
            } => self.judge_drain(*signal, *end_of_grace),
            Action::Kill => self.judge_kill(),
            Action::Announce => self.judge_announcement(),
            Action::Record {
                outcome,
                give_up_at,
            } => self.judge_record(*outcome, *give_up_at),
            Action::Release { give_up_at } => self.judge_release(*give_up_at),
            Action::Abandon => self.judge_abandonment(actions),
            Action::StandBy => {
                let twice = std::mem::replace(&mut self.ledger.standing, true);
                twice.then_some("it is told to stand by twice")
            }
            Action::TenureOver { cause } => self.judge_end_of_tenure(cause),
            Action::Notify(notice) => self.judge_notice(notice),
            Action::Attend { bell } => self.judge_listening(*bell),
            Action::Ask { .. } | Action::Look { .. } => Some("nobody here has a condition"),
        };
        if let Some(wrong) = wrong {
            self.violate(format!("{wrong}: {action:?}"));
        }
    }

    fn judge_attempt(&mut self, give_up_at: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        // What is over is over before the next attempt, also where it rang meanwhile.
        if self.ledger.leaving.is_some() && !self.ledger.tenure {
            self.ledger
                .follow(now, State::Releasing, State::Standby, &rules);
        }
        let ledger = &mut self.ledger;
        if ledger.held.is_some() || ledger.run.is_some() || ledger.tenure || self.call.is_some() {
            return Some("it competes for what it has");
        }
        if ledger.cordon.is_some() || ledger.stop.is_some() || ledger.guardian_lost {
            return Some("it competes although it must not");
        }
        if ledger.is_out_of_time(&rules, now) {
            return Some("it competes although the wait is over");
        }
        let Some(look) = ledger.due() else {
            return Some("it looks unasked");
        };
        ledger.look = None;
        if let Some((since, span, kept)) =
            ledger.waits.take().filter(|_| ledger.bell.look.is_none())
        {
            let hundredths = now.since(since).as_secs_f64() / span.as_secs_f64() * 100.0;
            self.waited.push((kept, hundredths));
        }
        let ledger = &mut self.ledger;
        ledger.first_sent.get_or_insert(now);
        (ledger.bell.looked, ledger.bell.look) = (Some(now), None);
        let mut end = now + rules.budget.map_or(ATTEMPT, |b| ATTEMPT.min(b.lease / 2));
        if !ledger.contacted {
            end = end.min(ledger.patience_ends(&rules).max(now + secs(1)));
        }
        ledger.sent = now;
        if now < look.0 {
            return Some("it looks too soon");
        }
        if self.is_late(look.1.max(self.ledger.free_since)) {
            return Some("it looks too late");
        }
        (give_up_at != end).then_some("an attempt has another limit")
    }

    fn judge_withdrawal(&mut self, give_up_at: Instant) -> Option<&'static str> {
        let now = self.now;
        let asked = self.ledger.stop.is_some() || self.ledger.guardian_lost;
        if !asked || !self.call.is_some_and(|call| call.kind == Kind::Acquire) {
            return Some("an attempt is withdrawn for nothing");
        }
        self.ledger.leaving = Some((now, Window(now, Instant::FOREVER)));
        self.ledger.sent = now;
        self.ledger.ambiguous = false;
        (give_up_at != now + ATTEMPT).then_some("a withdrawal has another limit")
    }

    fn judge_renewal(&mut self, give_up_at: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        // The state that follows: its limit holds.
        let limit = self.limit(*self.tenure.state());
        let Some(held) = &mut self.ledger.held else {
            return Some("it renews what it has not");
        };
        if held.renewing.is_some() || self.ledger.leaving.is_some() {
            return Some("a renewal overtakes what is in flight");
        }
        if now >= limit {
            return Some("it renews what is over");
        }
        let attempt = rules.budget.map_or(ATTEMPT, |b| b.attempt);
        let due = held.renewal;
        (held.renewing, held.asked) = (Some((now, give_up_at)), now);
        if now < due.0 {
            return Some("it renews too soon");
        }
        if self.is_late(due.1) {
            return Some("it renews too late");
        }
        (give_up_at != limit.min(now + attempt)).then_some("a renewal has another limit")
    }

    fn judge_start(&mut self, start: Start, before: Option<&Action>) -> Option<&'static str> {
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
            None => Notice::InControl { token: held.token },
        };
        if before != Some(&Action::Notify(said)) {
            return Some("nobody is told of the start");
        }
        ledger.tenure = true;
        ledger.controlled = true;
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
        ledger.run = Some(Run {
            since: now,
            started: false,
            exit: None,
            reason: None,
            drained: None,
            killed: false,
            announced: false,
        });
        None
    }

    fn judge_extension(&mut self, at: usize, deadlines: Deadlines) -> Option<&'static str> {
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

    fn judge_drain(&mut self, signal: i32, end: Instant) -> Option<&'static str> {
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
            Reason::Doubt => held.kill(&rules),
            Reason::Lost => {
                let grace = rules.budget.map_or(rules.grace, |b| b.grace_on_loss);
                held.kill(&rules).min(now + grace)
            }
            Reason::Cordon => {
                // Three seconds before it, but five at least.
                let before = cordon.map_or(now, |cordon| cordon.before);
                (now + rules.grace).min((before - secs(3)).max(now + rules.grace.min(secs(5))))
            }
            Reason::Exited | Reason::Asked | Reason::HandOver => now + rules.grace,
            // What time it was went before that.
            Reason::Guardian if now >= held.term(&rules) => held.kill(&rules),
            Reason::Guardian if is_long(held, &rules, now) => now + rules.grace,
            Reason::Guardian => return Some("who is dead is asked"),
        };
        (end != expected).then_some("the grace has another end")
    }

    fn judge_kill(&mut self) -> Option<&'static str> {
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

    fn judge_announcement(&mut self) -> Option<&'static str> {
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
            Some(_) if run.killed || kept => Some("nobody is to come, or it is too late"),
            Some((since, _)) => (now < since + ms(200)).then_some("each short drain is announced"),
        }
    }

    /// The command has ended by itself, and the lease is kept after that.
    fn will_be_kept(&self) -> bool {
        let Some(run) = &self.ledger.run else {
            return false;
        };
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

    fn judge_record(&mut self, is: Outcome, give_up_at: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let limit = self.limit(State::Recording);
        let (Some(held), Some((_, due))) = (&self.ledger.held, self.ledger.record) else {
            return Some("nothing is to be recorded");
        };
        if self.ledger.next != Some(Next::Record)
            || self.tree.is_some()
            || self.ledger.run.is_some()
        {
            return Some("it is not over");
        }
        let exit = self.ledger.exit?;
        if is != outcome(&rules, exit, held.failed) {
            return Some("another outcome");
        }
        if now < due.0 || self.is_late(due.1) {
            return Some("it is recorded too soon or too late");
        }
        self.ledger.record = Some((now, Window::at(Instant::FOREVER)));
        (now >= limit || give_up_at != limit.min(now + ATTEMPT))
            .then_some("a record has another limit")
    }

    fn judge_release(&mut self, give_up_at: Instant) -> Option<&'static str> {
        let now = self.now;
        if self.tree.is_some() || self.ledger.run.is_some() {
            return Some("the lease is given back beside a command");
        }
        let began = self.ledger.leaving.map_or(now, |(began, _)| began);
        let limit = self.release_limit(began);
        let may_leave = self.may_leave();
        let ledger = &mut self.ledger;
        if let Some(held) = &ledger.held {
            if held.renewing.is_some_and(|(_, until)| now < until) {
                return Some("a release overtakes a renewal");
            }
            if held.safe_until.is_some() {
                return Some("it gives back what was lost");
            }
            if !may_leave {
                return Some("it gives back what is kept");
            }
        } else if !ledger.ambiguous && ledger.leaving.is_none() {
            return Some("there is nothing to give back");
        }
        ledger.next = Some(Next::Leave);
        let due = ledger.leaving.map_or(Window::at(now), |(_, due)| due);
        ledger.leaving = Some((began, Window::at(Instant::FOREVER)));
        ledger.sent = now;
        if now < due.0 || self.is_late(due.1) && due.1 < Instant::FOREVER {
            return Some("it gives back too soon or too late");
        }
        (now >= limit || give_up_at != limit.min(now + ATTEMPT))
            .then_some("a release has another limit")
    }

    /// What is kept may be given back now.
    fn may_leave(&self) -> bool {
        let (now, rules, ledger) = (self.now, self.rules(), &self.ledger);
        let Some(held) = &ledger.held else {
            return true;
        };
        let stopped = ledger.stop.is_some() || held.safe_until.is_some();
        match ledger.next {
            Some(Next::Restart { .. }) => {
                let long = rules
                    .hold_policy
                    .max_hold
                    .is_some_and(|span| now >= held.began + span);
                let lost = ledger.cordon.is_some() || ledger.guardian_lost;
                stopped || lost || long || now >= held.term(rules)
            }
            Some(Next::Keep { until } | Next::Pause { until }) => {
                stopped || now >= until || now >= held.kill(rules)
            }
            Some(Next::Record) => {
                self.ledger.urgent || now >= held.kill(rules) || now >= ledger.tired_at
            }
            Some(Next::Leave) | None => true,
        }
    }

    fn judge_abandonment(&mut self, actions: &[Action]) -> Option<&'static str> {
        let now = self.now;
        let lost = self
            .ledger
            .held
            .as_ref()
            .is_some_and(|held| held.safe_until.is_some());
        let said = actions
            .iter()
            .any(|action| matches!(action, Action::Notify(Notice::LeftToRunOut { .. })));
        if self.tree.is_some() && !self.ledger.stuck {
            return Some("it is forgotten beside a command");
        }
        let tired = match self.ledger.leaving {
            Some((began, due)) => now.max(due.1) >= self.release_limit(began),
            None => now >= self.release_limit(now),
        };
        let may = lost || tired || self.ledger.stuck || self.ledger.urgent || self.ledger.refused;
        if !may {
            return Some("it is left to run out for nothing");
        }
        self.ledger.run_out = true;
        self.ledger.ambiguous = false;
        (!lost && !said).then_some("it is left to run out, and nobody is told")
    }

    fn judge_end_of_tenure(&mut self, cause: &Cause) -> Option<&'static str> {
        if !std::mem::take(&mut self.ledger.tenure) {
            return Some("no tenure ends");
        }
        if self.ledger.run.is_some() && !self.ledger.stuck {
            return Some("the tenure ends beside its command");
        }
        self.ledger.last = Some(why(cause));
        if !self.ledger.stuck
            && self
                .ledger
                .expected
                .is_some_and(|expected| expected != why(cause))
        {
            return Some("the tenure ends for another reason");
        }
        self.judge_cause(cause)
    }

    fn judge_cause(&self, cause: &Cause) -> Option<&'static str> {
        if self.ledger.stuck {
            return None;
        }
        let (now, rules, ledger) = (self.now, self.rules(), &self.ledger);
        let long = rules.hold_policy.max_hold.is_some();
        let lost = |held: &Held| held.safe_until.is_some();
        let paused = ledger.paused;
        let holds = match why(cause) {
            Why::Ended => ledger.natural,
            Why::NotStarted => ledger.not_started.is_some(),
            Why::Stopped => {
                let first = ledger.stop.map(|(_, signal)| signal);
                matches!(cause, Cause::Stopped(signal) if first == Some(*signal))
            }
            Why::Doubt => ledger.held.as_ref().is_some_and(|held| held.doubted),
            Why::Lost => ledger.held.as_ref().is_some_and(lost),
            Why::Guardian => ledger.guardian_lost || ledger.stuck,
            Why::HandOver => long || paused,
            Why::Cordoned if ledger.last.is_some() => ledger.cordoned,
            Why::Cordoned => ledger.cordon.is_some() && ledger.is_out_of_time(rules, now),
            Why::GivenUp => ledger.spent || ledger.hook_failed,
            Why::NotRecorded => rules.once.is_some() && ledger.natural,
            Why::AlreadyDone => ledger.done_told,
            Why::NotObtained if ledger.cordon.is_some() && ledger.leaving.is_none() => false,
            Why::NotObtained => ledger.contacted && ledger.is_out_of_time(rules, now),
            Why::Store => {
                let tired = now >= ledger.patience_ends(rules) || ledger.is_out_of_time(rules, now);
                !ledger.contacted && (ledger.fatal || tired)
            }
        };
        (!holds).then_some("it ends for no such reason")
    }

    fn judge_notice(&mut self, notice: &Notice) -> Option<&'static str> {
        let now = self.now;
        match notice {
            Notice::Doubt { .. } => {
                let last = self.ledger.doubt.replace(now);
                last.is_some_and(|last| now < last + secs(60))
                    .then_some("it is said again and again")
            }
            Notice::Recovered => {
                self.ledger.doubt_is = None;
                let none = self.ledger.doubt.take().is_none();
                none.then_some("there was no doubt")
            }
            Notice::Overlapped => {
                self.ledger.said = true;
                (!self.may_have_overlapped()).then_some("there was no overlap")
            }
            Notice::Cordoned { .. } => {
                let twice = std::mem::replace(&mut self.ledger.told_cordoned, true);
                (twice || self.ledger.cordon.is_none())
                    .then_some("it says again that it is cordoned")
            }
            Notice::Uncordoned => {
                let told = std::mem::take(&mut self.ledger.told_cordoned);
                (!told).then_some("nobody knows of a cordon")
            }
            Notice::Draining(Cause::Doubt { why }) => {
                let before = self.ledger.doubt_was.as_ref().is_none_or(|was| was == why);
                let last = self.ledger.doubt_is.as_ref().filter(|_| !before);
                last.is_some_and(|last| last != why && !self.ledger.acting)
                    .then_some("it is stopped for another doubt")
            }
            Notice::InControl { token } => {
                let ours = self.ledger.held.as_ref().map(|held| held.token);
                (ours != Some(*token)).then_some("another token")
            }
            Notice::CommandEnded(exit) => {
                let number = match exit {
                    Exit::Code(status) => i32::from(*status),
                    Exit::Signal(signal) => 128 + signal,
                };
                (exit.as_status() != number).then_some("no shell shows that status")
            }
            Notice::BackingOff { until, number } => {
                let held = self.ledger.held.as_ref();
                let restarts = held.map_or(0, |held| held.restarts.len());
                let next = Next::Restart { until: *until };
                let is = self.ledger.next == Some(next) && restarts == *number as usize;
                (!is).then_some("it is not started again then")
            }
            Notice::Keeping { until } => {
                let next = Next::Keep { until: *until };
                (self.ledger.next != Some(next)).then_some("it is not kept until then")
            }
            Notice::Pausing { until } => {
                let next = Next::Pause { until: *until };
                (self.ledger.next != Some(next)).then_some("it does not pause until then")
            }
            Notice::Recorded {
                outcome: is,
                attempt,
            } => {
                let failed = self.ledger.held.as_ref().map_or(0, |held| held.failed);
                let exit = self.ledger.exit.unwrap_or(Exit::Code(0));
                let wrong = *is != outcome(self.rules(), exit, failed) || *attempt != failed + 1;
                wrong.then_some("that is not what was recorded")
            }
            Notice::FoundLost { .. } => {
                let (held, empty) = (self.ledger.held.as_ref(), self.ledger.empty_at);
                let lease = self
                    .rules()
                    .budget
                    .map(|budget| budget.lease - budget.lease / 50);
                let since = held.is_some_and(|held| empty.is_some_and(|at| at > held.confirmed));
                let ran_out = held
                    .zip(lease)
                    .is_some_and(|(held, lease)| now >= held.confirmed + lease);
                self.ledger.found_lost = since && !ran_out;
                None
            }
            _ => None,
        }
    }

    // --- what it must have done ---

    pub(crate) fn judge_step(&mut self, event: &Event, before: State, actions: &[Action]) {
        let wrong = self.judge_duties(event, before, actions);
        if let Some(wrong) = wrong {
            self.violate(wrong);
        }
    }

    fn judge_duties(&mut self, event: &Event, before: State, actions: &[Action]) -> Option<String> {
        let (now, rules) = (self.now, self.plan.rules.clone());
        let state = *self.tenure.state();
        let said = |text: &str| Some(format!("{text} ({before:?} to {state:?} at {event:?})"));
        if before == State::Confirming
            && !matches!(state, State::Confirming | State::Holding)
            && let Some(held) = &self.ledger.held
        {
            let must = self.ledger.stop.is_some() || self.ledger.cordon.is_some();
            let lost = held.safe_until.is_some() || self.ledger.guardian_lost;
            if !must && !lost && now < held.term(&rules) {
                return said("it gives back what it could have confirmed");
            }
        }
        if state == State::Releasing && before != state {
            if !self.may_leave() {
                return said("it gives back what is kept");
            }
            self.ledger.next = Some(Next::Leave);
        }
        self.ledger.follow(now, before, state, &rules);
        if std::mem::take(&mut self.ledger.owes_a_word) {
            return said("it ran beside another, and does not say so");
        }
        if let Some(ending) = self.tenure.ending().cloned() {
            return self.judge_ending(&ending).and_then(said);
        }
        let runs = self.ledger.run.is_some();
        if let Some(run) = &self.ledger.run {
            let killed = run.killed || self.ledger.guardian_lost;
            if killed != (state == State::Killing) {
                return said("it does not know whether its command is killed");
            }
        }
        if runs != matches!(state, State::Holding | State::Draining | State::Killing) {
            return said("it does not know whether its command runs");
        }
        let limit = self.limit(state);
        let held = self.ledger.held.as_ref();
        if let Some(run) = &self.ledger.run
            && let Some(held) = held
        {
            let asked = run.drained.is_some() || run.killed;
            match run.reason {
                None if asked => return said("a command is stopped without need"),
                Some((Reason::Guardian, _)) | None => {}
                Some(_) if !asked && !self.ledger.guardian_lost => {
                    return said("a command is not asked to end");
                }
                Some(_) => {
                    let end = run.drained.map_or(Instant::FOREVER, |(_, end)| end);
                    let due = now >= end.min(held.kill(&rules)) || self.ledger.at_once;
                    if due && before == State::Draining && !run.killed && !self.ledger.guardian_lost
                    {
                        return said("a command is not killed");
                    }
                    let kept = self.will_be_kept();
                    let announces = run.drained.is_some_and(|(since, _)| now >= since + ms(200));
                    if announces
                        && !run.announced
                        && !run.killed
                        && !kept
                        && !self.ledger.guardian_lost
                    {
                        return said("nobody is told that it drains");
                    }
                }
            }
        }
        if let Some(held) = held
            && held.renewing.is_none()
            && now >= held.renewal.1
            && before == state
            && now < limit
        {
            return said("it does not renew");
        }
        let breaking = matches!(
            event,
            Event::Renewed {
                reply: Err(Failure::Lost { until: Some(_), .. }),
                ..
            }
        );
        if breaking
            && before == State::Draining
            && state == before
            && !matches!(actions.first(), Some(Action::Extend(_)))
        {
            return said("the guardian is not told of what is left");
        }
        if matches!(event, Event::Renewed { reply: Ok(()), .. })
            && before == state
            && matches!(state, State::Holding | State::Draining)
            && held.is_some_and(|held| held.safe_until.is_none() && now < held.kill(&rules))
            && !matches!(actions.first(), Some(Action::Extend(_)))
        {
            return said("the guardian is not told");
        }
        if self.ledger.bell.attend.is_some() {
            return said("it does not listen to the bell");
        }
        let failed = matches!(
            event,
            Event::Renewed {
                reply: Err(Failure::Transient { .. } | Failure::Fatal { .. }),
                ..
            }
        );
        if failed && before == state && state == State::Holding && self.ledger.doubt.is_none() {
            return said("nobody is told of a doubt");
        }
        let wrong = match state {
            State::Standby => {
                let due = self.ledger.due().is_some_and(|look| now >= look.1);
                let may = self.ledger.cordon.is_none();
                if self.ledger.stop.is_some() || self.ledger.guardian_lost {
                    Some("it waits although it is to end")
                } else if self.ledger.is_out_of_time(&rules, now) {
                    Some("it waits although the wait is over")
                } else if due && may {
                    Some("it does not look")
                } else if !may && !self.ledger.told_cordoned {
                    Some("nobody is told that it is cordoned")
                } else if !self.ledger.standing {
                    Some("nothing stands by")
                } else if self.tenure.listens() != (may && self.ledger.look.is_none()) {
                    Some("it listens, or does not")
                } else {
                    None
                }
            }
            State::Acquiring => {
                let waits = self.call.is_some_and(|call| call.kind == Kind::Acquire);
                (!waits && !self.has_news).then_some("it waits for nothing")
            }
            State::Confirming => {
                let held = held?;
                let stale = held.is_half_gone(&rules, now) && now < held.term(&rules);
                let free = self.ledger.stop.is_none()
                    && self.ledger.cordon.is_none()
                    && !self.ledger.guardian_lost;
                (!stale || !free || held.safe_until.is_some()).then_some("it confirms what it has")
            }
            State::Resting => self.judge_rest(limit),
            State::Recording => self.judge_recording(limit),
            State::Releasing => {
                let due = self.ledger.leaving.is_none_or(|(_, due)| now >= due.1);
                let renews = held.is_some_and(|held| held.renewing.is_some());
                let is_said = self.tenure.leaving().is_some_and(|(cause, exit)| {
                    let of_a_tenure = self.ledger.tenure == cause.is_some() || held.is_none();
                    let expected = self.ledger.expected.filter(|_| self.ledger.tenure);
                    let right = expected.is_none_or(|expected| cause.map(why) == Some(expected));
                    let stops = cause.is_some_and(|cause| why(cause) == Why::Stopped);
                    (of_a_tenure || !self.ledger.tenure && cause.is_some())
                        && (right || stops)
                        && exit == self.ledger.exit
                });
                if !is_said {
                    Some("it does not say why it leaves")
                } else if due && !renews {
                    Some("it does not give back")
                } else if self.ledger.urgent && before == state {
                    Some("it gives back although it is to end at once")
                } else {
                    None
                }
            }
            State::Holding | State::Draining | State::Killing | State::Done => None,
        };
        if wrong.is_some() {
            return said(wrong.unwrap_or_default());
        }
        let wakes = self.tenure.wake_at();
        let busy = self.has_news || self.call.is_some() || self.recording.is_some() || runs;
        if wakes == Instant::FOREVER
            && !busy
            && !self.tenure.listens()
            && self.ledger.cordon.is_none()
            && state != State::Killing
        {
            return said("it never wakes");
        }
        None
    }

    fn judge_rest(&self, limit: Instant) -> Option<&'static str> {
        let (now, rules) = (self.now, self.rules());
        let held = self.ledger.held.as_ref()?;
        if self.tree.is_some() {
            return Some("it rests beside its command");
        }
        if now >= limit || held.safe_until.is_some() || self.ledger.stop.is_some() {
            return Some("it keeps what it has to leave");
        }
        let long = rules
            .hold_policy
            .max_hold
            .is_some_and(|span| now >= held.began + span);
        match self.ledger.next {
            Some(Next::Restart { until }) => {
                let over = self.ledger.cordon.is_some() || self.ledger.guardian_lost || long;
                let due = now >= until && !held.is_half_gone(rules, now);
                (over || due).then_some("it rests for too long")
            }
            Some(Next::Keep { until }) => (now >= until).then_some("it keeps for too long"),
            _ => Some("it rests for nothing"),
        }
    }

    fn judge_recording(&self, limit: Instant) -> Option<&'static str> {
        let now = self.now;
        if self.tree.is_some() {
            return Some("it records beside its command");
        }
        match self.ledger.next {
            Some(Next::Record) => {
                let waits = self.recording.is_some() || self.has_news;
                let due = self.ledger.record.is_none_or(|(_, due)| now >= due.1);
                let tired = now >= limit || now >= self.ledger.tired_at;
                (!waits && (due || tired) || self.ledger.urgent).then_some("it does not record")
            }
            Some(Next::Pause { until }) => {
                let over = now >= until || now >= limit || self.ledger.stop.is_some();
                over.then_some("it pauses for too long")
            }
            _ => Some("it records nothing"),
        }
    }

    fn judge_ending(&mut self, ending: &Ending) -> Option<&'static str> {
        let rules = self.rules().clone();
        if self.tree.is_some() && !self.ledger.stuck {
            return Some("it ends while its command lives");
        }
        if self.ledger.tenure {
            return Some("a tenure does not end");
        }
        if self.ledger.ambiguous {
            return Some("it leaves what it may have");
        }
        let ended = why(&ending.cause);
        let look = self.ledger.due();
        let left = self.ledger.leaving.map_or(self.now, |(began, _)| began);
        let lately = self.resumed.max(self.ledger.free_since);
        let missed = look.is_some_and(|look| look.1 < left && look.1 >= lately);
        if missed && ended == Why::NotObtained {
            return Some("it gives up before its last look");
        }
        let competes = match self.ledger.last {
            Some(Why::HandOver | Why::GivenUp | Why::Cordoned) => true,
            Some(Why::Doubt | Why::Lost) => rules.if_lost == IfLost::Compete,
            _ => false,
        };
        if !self.ledger.stuck {
            let asked = matches!(ended, Why::Stopped | Why::Guardian);
            if self
                .ledger
                .last
                .is_some_and(|last| !competes && last != ended || competes && !asked)
            {
                return Some("it ends for another reason than its tenure");
            }
            // Of what an attempt may have obtained nobody needs to know.
            let released = self.ledger.released && (self.ledger.last.is_some() || ending.released);
            if released != ending.released {
                return Some("it does not know whether the lease was given back");
            }
            let unfinished = rules.once.is_some() && ended == Why::Stopped;
            let exit = self
                .ledger
                .exit
                .filter(|exit| !unfinished || *exit != Exit::Code(0));
            if exit != ending.exit {
                return Some("it ends with another status");
            }
            // By an operator it can be without our knowledge.
            let known = self.ledger.overlapped && self.ledger.broken.is_none();
            let known = known || self.ledger.found_lost;
            if known && !ending.overlap && !self.ledger.said {
                return Some("it ran beside another, and does not say so");
            }
            if ending.overlap && !self.may_have_overlapped() {
                return Some("there was no overlap");
            }
            let told = self
                .ledger
                .held
                .as_ref()
                .is_some_and(|held| held.safe_until.is_some());
            if told && self.ledger.overlapped && !ending.overlap {
                return Some("it ran beside another, and does not say so");
            }
        } else if !ending.overlap || ending.released {
            return Some("what cannot be killed may run beside another");
        }
        self.judge_cause(&ending.cause)
    }

    /// It ran unprotected, or was told that it may have.
    fn may_have_overlapped(&self) -> bool {
        let held = self.ledger.held.as_ref();
        let lost = held.is_some_and(|held| held.safe_until.is_some());
        // What the store confirmed since the end of the tree was not lost before it.
        let since = held
            .zip(self.ledger.empty_at)
            .is_some_and(|(held, at)| held.confirmed >= at);
        self.ledger.overlapped || self.ledger.outlived || lost && !since || self.ledger.found_lost
    }

    // --- what it goes by ---

    /// Divisions of a lease are sound, and those that are not are refused; a limit of restarts that is
    /// out of reach is known.
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
        // As late as it may be, and as gracious.
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
        if wrong {
            self.violate("settings that are not sound");
        }
    }

    // --- what is true ---

    /// A command lives: is nobody else let in?
    pub(crate) fn judge_protection(&mut self) {
        let Some(tree) = &self.tree else { return };
        let ours = self.lock.holder == tree.id && self.lock.keeps_out(self.now);
        if ours {
            return;
        }
        self.ledger.overlapped = true;
        if self.stuck {
            return;
        }
        let told = self
            .ledger
            .held
            .as_ref()
            .is_some_and(|held| held.safe_until.is_some());
        // An operator has broken it, and we were not told, or a moment ago.
        let told_since = |broken| told && broken <= self.ledger.told_at;
        let knew = self.ledger.broken.is_none_or(told_since);
        let lately = self.now <= self.ledger.told_at.max(self.resumed) + ms(500);
        if knew && (self.ledger.broken.is_none() || !lately && !self.paused) {
            self.violate("a command lives, and nobody else is kept out");
        }
    }

    pub(crate) fn judge_birth(&mut self) {
        self.judge_protection();
    }

    /// It has been quiet for long: somebody is in control, or has a reason not to be.
    pub(crate) fn judge_liveness(&mut self) {
        if self.over || self.ledger.cordon.is_some() {
            return;
        }
        let lately = self.now - self.ledger.bound(&self.plan) - secs(60);
        if self.ledger.controlled_at < lately && self.ledger.run.is_none() {
            self.violate("nobody is in control although it is quiet");
        }
    }
}

/// The tenure has been long enough.
fn is_long(held: &Held, rules: &Rules, now: Instant) -> bool {
    let span = rules.hold_policy.max_hold;
    span.is_some_and(|span| now >= held.began + span)
}

/// It keeps the promise whatever two clocks do that are each off by 1 %, and one attempt that fails costs
/// nothing.
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

fn backoff(others: u32) -> Duration {
    secs(1 << others.min(5)).min(secs(30))
}

fn outcome(rules: &Rules, exit: Exit, failed: u32) -> Outcome {
    let last = rules.once.is_some_and(|once| match once.on_failure {
        OnFailure::Stop => true,
        OnFailure::Retry => once.attempts.is_some_and(|most| failed + 1 >= most),
    });
    Outcome {
        exit,
        over: last || exit == Exit::Code(0),
    }
}
