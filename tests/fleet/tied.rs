//! The search's model held against what ships: walks of its graph at random, and beside each instance of the
//! model one of the fleet's, which is the shipped driver, workload, handle, blob store and guardian's loop. It is
//! given the same at the same ticks, and must do the same in the same order: ask the service, under which
//! lease; order, signal, kill and give up; tell, give back, end.
//!
//! `TIED_SEED` (default 1) is the first seed, `TIED_COUNT` the number of walks. One that parts is shrunk to the
//! steps it needs, and printed.
//!
//! What the search abstracts, and is left out here (tests/README.md says it, too):
//! - Within a tick no time passes, but where a handle waits for a guardian's answer, or looks after what a dead
//!   one left: by so much all later moments of the instance are behind their ticks.
//! - What a call to the service is made of beside its one request, looks, records and announcements, is
//!   answered at once.
//! - An attempt to acquire that is granted at the very tick of its end, and so has no time left to write its
//!   record. In the model that tick stands for a moment before it.
//! - A guardian that is silent before a start was heard of is given up when its deadline comes, and not after
//!   the ten seconds that a start may take, which are more than a tick.
//! - Whoever is asked to stop, or loses its guardian, does at once what is due.
//! - The dismissal of a guardian, and how it gives a lease back once it has begun to: the fleet plays both.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use trafficcop::Instant;
use trafficcop::internals::core::{Deadlines, Exit, Tenure, WorkloadEvent};
use trafficcop::internals::guardian::wire::{Event, FRAME, Request as Frame};
use trafficcop::internals::signals::SignalEvent;

use super::clock::Time;
use super::handle::Did;
use super::kernel::Act;
use super::model::interned::{self, Interned, NEVER, News, TICK, at, rules};
use super::model::steps::Step;
use super::model::world::{self as model, Deed, Kind, Process, Stage};
use super::model::{Bound, Next, Search};
use super::pair::{Life, Lock, Pair, Tree};
use super::store::{Code, LeaseState, Record, Reply, Request};
use super::wire::Texts;
use super::{number, print};

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// A handle that waits for an answer looks more often than this, or takes it for a pause.
const LOOK: Duration = Duration::from_millis(140);
/// So long at most does it rest between two looks at what is being killed.
const NAP: Duration = Duration::from_millis(60);
/// More rounds than this at one tick are a loop.
const ROUNDS: usize = 100;

/// The tick of a moment of an instance that is behind its ticks by less than one.
fn tick_of(instant: Instant) -> u8 {
    if instant == Instant::FOREVER {
        return NEVER;
    }
    let ticks = instant.as_nanos() / at(1).since(at(0)).as_nanos() as u64;
    u8::try_from(ticks.saturating_sub(1000)).unwrap_or(NEVER)
}

/// The blob as one instance sees it.
struct Service {
    token: u64,
    etag: u64,
    record: Option<Record>,
    /// A release that is asked for now is answered at once.
    releases: bool,
}

impl Service {
    /// Somebody has had the lease with this token since.
    fn sees(&mut self, texts: &Mutex<Texts>, token: u64) {
        if token <= self.token {
            return;
        }
        let metadata = [("token", token.to_string()), ("holder", "9".to_owned())];
        let metadata = metadata.map(|(name, value)| (format!("trafficcop_{name}"), value));
        self.record = Some(texts.lock().expect("whole").record(metadata.into()));
        self.token = token;
        self.etag += 1;
    }

    fn answer(&mut self, request: Request) -> Option<Reply> {
        match request {
            Request::Look { lease } => Some(Reply::View {
                lease: lease.map_or(LeaseState::Free, |_| LeaseState::Leased),
                etag: self.etag,
                record: self.record,
            }),
            Request::Set { record, .. } => {
                self.etag += 1;
                (self.token, self.record) = (record.token, Some(record));
                Some(Reply::Etag(self.etag))
            }
            Request::Release { .. } if std::mem::take(&mut self.releases) => {
                Some(Reply::Refused(Code::NotPresent))
            }
            Request::Acquire { .. } | Request::Renew { .. } | Request::Release { .. } => None,
            Request::Create | Request::RestOfBreaking { .. } => {
                panic!("nobody creates or breaks here: {request:?}")
            }
        }
    }
}

/// An instance of what ships.
struct Shipped {
    pair: Pair,
    texts: Arc<Mutex<Texts>>,
    service: Arc<Mutex<Service>>,
    /// By so much its clock is behind the tick.
    behind: Duration,
    /// What it waits for is answered here.
    slot: Option<u64>,
    is_ended: bool,
    /// When its guardian kills, as it was told last.
    kill: u8,
    /// It does its dead guardian's work.
    is_lost: bool,
    /// All of its command is to die, and what of it has not had SIGKILL yet dies when it has.
    dies: bool,
    /// Which lease the model means by an id, and all that it has meant.
    leases: HashMap<model::Id, model::Id>,
    known: HashSet<model::Id>,
}

impl Shipped {
    fn new(tick: u8, attempt: Duration, contained: bool) -> Shipped {
        let texts: Arc<Mutex<Texts>> = Arc::default();
        let rules = rules(1, attempt);
        let lease = rules.budget.as_ref().expect("a lease").lease;
        let tenure = Tenure::new(rules, at(tick));
        let pair = Pair::new(0, 0, tenure, lease, contained, &Lock::Blob, &texts);
        let service = Arc::new(Mutex::new(Service {
            token: 0,
            etag: 1,
            record: None,
            releases: false,
        }));
        let (handle, answers) = (pair.handle.clone(), Arc::clone(&service));
        pair.network.answer_at_once(move |request| {
            if !matches!(request, Request::Look { .. } | Request::Set { .. }) {
                handle.link().did.push(Did::Asked(request));
            }
            answers.lock().expect("whole").answer(request)
        });
        Shipped {
            pair,
            texts,
            service,
            behind: Duration::ZERO,
            slot: None,
            is_ended: false,
            kill: NEVER,
            is_lost: false,
            dies: false,
            leases: HashMap::new(),
            known: HashSet::new(),
        }
    }

    // --- the supervisor ---

    /// It does what is due, as long as something is.
    fn supervise(&mut self, tick: u8, is_silent: bool) -> Result<Vec<Deed>, String> {
        let mut deeds = Vec::new();
        self.poll(tick, &mut deeds)?;
        for _ in 0..ROUNDS {
            if self.is_ended {
                return Ok(deeds);
            }
            let next = self.pair.clock.next().unwrap_or(Instant::FOREVER);
            let now = at(tick) + self.behind;
            // What is gone is found by the next look, and a guardian that is stopped by its silence.
            if self.is_lost && !self.tree_lives() && next <= now + NAP {
                self.behind += next.since(now);
            } else if is_silent && !self.is_lost {
                self.behind += LOOK;
            } else {
                return Ok(deeds);
            }
            self.poll(tick, &mut deeds)?;
        }
        Err("it loops, or finds no silence".to_owned())
    }

    fn poll(&mut self, tick: u8, deeds: &mut Vec<Deed>) -> Result<(), String> {
        for _ in 0..ROUNDS {
            let Some(drive) = &mut self.pair.drive else {
                return Ok(());
            };
            {
                let tree = self.pair.kernel.facts().tree.clone();
                let mut link = self.pair.handle.link();
                link.guardian = self.pair.guardian;
                link.tree_lives = tree.as_ref().is_some_and(Tree::lives);
            }
            let now = at(tick) + self.behind;
            let mut context = Context::from_waker(Waker::noop());
            let clock = std::rc::Rc::clone(&self.pair.clock);
            let polled = clock.enter(now, Duration::ZERO, || drive.as_mut().poll(&mut context));
            if let Some((slot, _)) = self.pair.network.sent().pop() {
                self.slot = Some(slot);
            }
            let did = std::mem::take(&mut self.pair.handle.link().did);
            let is_idle = did.is_empty();
            for did in did {
                self.did(did, deeds)?;
            }
            if polled == Poll::Ready(()) {
                self.pair.drive = None;
            }
            if is_idle || self.is_ended {
                return Ok(());
            }
        }
        Err("it never comes to rest".to_owned())
    }

    fn did(&mut self, did: Did, deeds: &mut Vec<Deed>) -> Result<(), String> {
        match did {
            Did::Sent(bytes, _) => {
                let order = self.order(&bytes)?;
                if let Some(Deed::Orders(
                    model::Request::Start { kill, .. } | model::Request::Extend { kill, .. },
                )) = order
                {
                    self.kill = kill;
                }
                deeds.extend(order);
                self.pair
                    .kernel
                    .facts()
                    .to_guardian
                    .push_back((bytes, None));
            }
            Did::Asked(request) => {
                let (kind, id) = match request {
                    Request::Acquire { id } => (Kind::Acquire, id),
                    Request::Renew { id } => (Kind::Renew, id),
                    Request::Release { id } => (Kind::Release, id),
                    _ => return Err(format!("it asks for {request:?}")),
                };
                deeds.push(Deed::Asks(kind, id as model::Id));
            }
            Did::KilledGuardian => {
                if !std::mem::replace(&mut self.is_lost, true) {
                    deeds.push(Deed::GivesUp);
                }
                self.guardian_dies();
            }
            Did::Swept => {
                if let Some(tree) = &mut self.pair.kernel.facts().tree {
                    (tree.killed, tree.daemon_killed) = (true, true);
                }
            }
            Did::Ended(_) => {
                self.is_ended = true;
                deeds.push(Deed::Ends);
            }
            Did::Wrong(what) => return Err(what.to_owned()),
            Did::Started(_)
            | Did::Extended(_)
            | Did::Competed
            | Did::HeardOfFitness(_)
            | Did::HeardLost { .. }
            | Did::ReleasedLost
            | Did::Released
            | Did::Said(_) => {}
        }
        Ok(())
    }

    fn order(&mut self, bytes: &[u8]) -> Result<Option<Deed>, String> {
        let (frame, payload) = bytes.split_first_chunk::<FRAME>().ok_or("half a frame")?;
        let frame = Frame::decode(frame).map_err(|bad| format!("{bad:?}"))?;
        let ticks = |of: Deadlines| (tick_of(of.term_at), tick_of(of.kill_at));
        Ok(Some(Deed::Orders(match frame {
            Frame::Start { deadlines, env, .. } => {
                let (env, release_info) = payload.split_at(env as usize);
                let token = env.split(|byte| *byte == 0).find_map(|set| {
                    let set = str::from_utf8(set).ok()?;
                    set.strip_prefix("TRAFFICCOP_TOKEN=")?.parse().ok()
                });
                let (term, kill) = ticks(deadlines);
                model::Request::Start {
                    term,
                    kill,
                    id: self.lease_in(release_info),
                    token: token.ok_or("a start without a token")?,
                }
            }
            Frame::Extend(deadlines) => {
                let (term, kill) = ticks(deadlines);
                model::Request::Extend { term, kill }
            }
            Frame::Drain { end_of_grace, .. } => model::Request::Drain {
                end: tick_of(end_of_grace),
            },
            Frame::Kill => model::Request::Kill,
            Frame::SetReleaseInfo { release_info: 0 } => model::Request::ForgetRelease,
            Frame::Ping(_) => return Ok(None),
            Frame::Dismiss if self.is_ended => return Ok(None),
            _ => return Err(format!("it orders {frame:?}")),
        })))
    }

    fn lease_in(&self, release_info: &[u8]) -> model::Id {
        let text: Option<serde_json::Value> = serde_json::from_slice(release_info).ok();
        let lease = text.as_ref().and_then(|text| text["lease"].as_str());
        let mut texts = self.texts.lock().expect("whole");
        lease.map_or(0, |lease| texts.lease(lease) as model::Id)
    }

    /// An answer lies in its socket.
    fn is_answered(&mut self, kind: Kind, reply: interned::Reply) {
        let mut service = self.service.lock().expect("whole");
        let reply = match (kind, reply) {
            (Kind::Acquire, interned::Reply::Done(token)) => {
                // Somebody may have had it since it was looked at.
                service.sees(&self.texts, u64::from(token) - 1);
                Reply::Etag(service.etag)
            }
            (Kind::Acquire, _) => Reply::Refused(Code::LeaseAlreadyPresent),
            (Kind::Renew, interned::Reply::Done(_)) => Reply::Etag(service.etag),
            (Kind::Release, interned::Reply::Done(_)) => Reply::Done,
            (Kind::Renew | Kind::Release, _) => Reply::Refused(Code::Mismatch),
        };
        drop(service);
        if let Some(slot) = self.slot.take() {
            self.pair.network.answered(slot, reply);
        }
    }

    // --- the guardian ---

    fn tree_lives(&self) -> bool {
        let facts = self.pair.kernel.facts();
        facts.tree.as_ref().is_some_and(Tree::lives)
    }

    fn guardian_dies(&mut self) {
        self.pair.guardian = Life::Dead;
        self.pair.event_loop = None;
        self.pair.handle.link().child = true;
    }

    /// It does what is due, as long as something is.
    fn guard(&mut self, tick: u8) -> Result<Vec<Deed>, String> {
        let mut deeds = Vec::new();
        let now = at(tick) + self.behind;
        self.pair.kernel.facts().hung_up = self.pair.drive.is_none();
        for _ in 0..ROUNDS {
            let pair = &mut self.pair;
            let Some(event_loop) = &mut pair.event_loop else {
                return Ok(deeds);
            };
            let Some(ready) = pair.kernel.poll(pair.wait, now, 0, Time::MAX) else {
                return Ok(deeds);
            };
            let clock = std::rc::Rc::clone(&pair.guardian_clock);
            clock.enter(now, Duration::ZERO, || event_loop.turn(ready));
            let is_over = event_loop.is_over();
            if !is_over {
                pair.wait = clock.enter(now, Duration::ZERO, || event_loop.next_wait());
            }
            let (acts, words) = {
                let mut facts = pair.kernel.facts();
                (
                    std::mem::take(&mut facts.acts),
                    std::mem::take(&mut facts.to_supervisor),
                )
            };
            for act in acts {
                deeds.extend(self.acted(act));
            }
            for word in words.chunks_exact(FRAME) {
                deeds.extend(said(word)?);
            }
            let mut link = self.pair.handle.link();
            link.to_supervisor.extend_from_slice(&words);
            drop(link);
            if is_over {
                self.guardian_dies();
            }
        }
        Err("its guardian never comes to rest".to_owned())
    }

    fn acted(&mut self, act: Act) -> Option<Deed> {
        if let Act::Released(release_info) = &act {
            return Some(Deed::GivesBack(self.lease_in(release_info)));
        }
        let mut facts = self.pair.kernel.facts();
        let contained = facts.contained;
        let tree = facts.tree.as_mut()?;
        let is_main = matches!(act, Act::One(pid, _) if pid == tree.pid);
        match act {
            Act::Forked { .. } => {
                // Each has a daemon, and becomes the command at once.
                (tree.has_daemon, tree.daemon, tree.executed) = (true, true, true);
                self.dies = false;
                None
            }
            Act::Group(SIGTERM) => Some(Deed::Signals),
            Act::One(_, SIGTERM) if !is_main => {
                let is_first = !std::mem::replace(&mut tree.daemon_termed, true);
                is_first.then_some(Deed::SignalsTheRest)
            }
            Act::Group(SIGKILL) | Act::One(_, SIGKILL) | Act::KilledContained => {
                let is_first = !std::mem::replace(&mut tree.killed, true);
                tree.daemon_killed |= contained || matches!(act, Act::One(..)) && !is_main;
                if self.dies && tree.daemon_killed {
                    tree.daemon = false;
                    facts.child_signal = true;
                }
                is_first.then_some(Deed::Kills)
            }
            _ => None,
        }
    }

    // --- the command ---

    /// Of its tree this is left.
    fn is_left(&mut self, main: bool, daemon: bool) {
        let is_orphaned = self.pair.guardian == Life::Dead;
        let mut facts = self.pair.kernel.facts();
        facts.child_signal = true;
        let Some(tree) = &mut facts.tree else { return };
        (tree.main, tree.exit) = (main, Exit::Signal(SIGTERM));
        self.dies = !main && !daemon;
        if is_orphaned || tree.daemon_killed || tree.daemon_termed {
            tree.daemon = daemon;
        }
    }

    // --- the comparison ---

    /// Whether this is what the model did.
    fn agrees(&mut self, with: &[Deed], deeds: &[Deed]) -> bool {
        // What a guardian says and whom it signals are told apart, and so one after the other.
        let says = |deed: &&Deed| matches!(deed, Deed::Says(_));
        let in_order = |deeds: &[Deed]| -> Vec<Deed> {
            let (says, does): (Vec<_>, Vec<_>) = deeds.iter().partition(says);
            does.into_iter().chain(says).copied().collect()
        };
        let (with, deeds) = (in_order(with), in_order(deeds));
        let mut shown = deeds.iter();
        for deed in with {
            if let Deed::Proposes(id) = deed {
                self.leases.remove(&id);
                continue;
            }
            let Some(theirs) = shown.next() else {
                return false;
            };
            let (ours, of_theirs) = (lease_of(&deed), lease_of(theirs));
            let ours = ours.map(|ours| self.meant(ours, of_theirs));
            if of_theirs != ours || with_lease(deed, 0) != with_lease(*theirs, 0) {
                return false;
            }
        }
        shown.next().is_none()
    }

    /// The lease that the model means; one that it has not spoken of before is not known here, either.
    fn meant(&mut self, id: model::Id, shown: Option<model::Id>) -> model::Id {
        if let Some(meant) = self.leases.get(&id) {
            return *meant;
        }
        let Some(shown) = shown.filter(|shown| self.known.insert(*shown)) else {
            return 0;
        };
        self.leases.insert(id, shown);
        shown
    }
}

fn said(word: &[u8]) -> Result<Option<Deed>, String> {
    let word = word.first_chunk().ok_or("half a frame")?;
    let event = Event::decode(word).map_err(|bad| format!("{bad:?}"))?;
    Ok(Some(Deed::Says(match event {
        Event::Workload(WorkloadEvent::Started { .. }) => News::Started,
        Event::Workload(WorkloadEvent::NotStarted { .. }) => News::TooLate,
        Event::Workload(WorkloadEvent::Exited(_)) => News::Exited,
        Event::Workload(WorkloadEvent::LeftBehind) => News::LeftBehind,
        Event::Workload(WorkloadEvent::TreeEmpty { at }) => News::TreeEmpty(tick_of(at)),
        Event::Workload(WorkloadEvent::Acting) => News::Acting,
        Event::Workload(WorkloadEvent::TreeStuck) => News::Stuck,
        Event::Pong(_) => return Ok(None),
        other => return Err(format!("its guardian says {other:?}")),
    })))
}

fn lease_of(deed: &Deed) -> Option<model::Id> {
    match deed {
        Deed::Asks(_, id)
        | Deed::GivesBack(id)
        | Deed::Orders(model::Request::Start { id, .. }) => Some(*id),
        _ => None,
    }
}

fn with_lease(deed: Deed, lease: model::Id) -> Deed {
    match deed {
        Deed::Asks(kind, _) => Deed::Asks(kind, lease),
        Deed::GivesBack(_) => Deed::GivesBack(lease),
        Deed::Orders(model::Request::Start {
            term, kill, token, ..
        }) => Deed::Orders(model::Request::Start {
            term,
            kill,
            id: lease,
            token,
        }),
        other => other,
    }
}

// --- walks ---

/// What a walk may do.
#[derive(Clone, Copy, Debug)]
struct Plan {
    bound: Bound,
    attempt: Duration,
    contained: bool,
    /// Of a hundred steps so many are faults, where both are possible.
    faults: u8,
}

/// One walk, and what ships beside it.
struct Walk {
    plan: Plan,
    search: Search,
    world: model::World,
    shipped: [Shipped; 2],
    /// What was asked of it and is still to be compared, as it is done with what is due.
    owed: Option<(usize, Vec<Deed>, bool)>,
    way: Vec<Step>,
    trace: Vec<String>,
}

impl Walk {
    fn new(plan: Plan) -> Walk {
        let mut search = Search::new(plan.bound, Interned::new(1, plan.attempt), None);
        let world = search.first();
        let shipped = [(); 2].map(|()| Shipped::new(0, plan.attempt, plan.contained));
        Walk {
            plan,
            search,
            world,
            shipped,
            owed: None,
            way: Vec::new(),
            trace: Vec::new(),
        }
    }

    /// What can come next, and is played here.
    fn next(&mut self) -> Vec<Next> {
        let mut next = self.search.next(&self.world);
        if let Some((p, ..)) = self.owed {
            next.retain(|next| next.step == Step::Supervises(p));
        }
        next.retain(|next| self.is_played(next.step));
        next
    }

    fn is_played(&self, step: Step) -> bool {
        let of = |p: usize| &self.world.processes[p];
        let tick = self.world.tick;
        match step {
            Step::Answers(p) | Step::Supervises(p) => {
                let granted = of(p).call.filter(|call| {
                    let reply = match call.stage {
                        Stage::Ordered | Stage::Sent => None,
                        Stage::Done(reply) | Stage::Answered(reply) => Some(reply),
                    };
                    call.kind == Kind::Acquire && matches!(reply, Some(interned::Reply::Done(_)))
                });
                granted.is_none_or(|call| tick != call.give_up)
            }
            // Whoever listens for a second does meanwhile what is due; and a start is given more than a tick, but
            // for its deadline.
            Step::Loses(p) => {
                let is_heard = of(p).starting == 0 || tick >= self.shipped[p].kill;
                is_heard && !self.search.is_due(&self.world, p)
            }
            _ => true,
        }
    }

    /// Takes a step, in the model and in what ships.
    fn take(&mut self, next: Next) -> Result<(), String> {
        let Next { step, world, deeds } = next;
        let before = std::mem::replace(&mut self.world, world);
        let tick = before.tick;
        self.way.push(step);
        self.trace.push(format!("tick {tick:>2}: {step:?}"));
        let of = |p: usize| {
            let deeds = deeds.iter().filter(move |(whose, _)| *whose == p);
            deeds.map(|(_, deed)| *deed).collect::<Vec<_>>()
        };
        match step {
            Step::Supervises(p) => {
                let (mut owed, mut is_silent) = (Vec::new(), false);
                if let Some((_, deeds, silent)) = self.owed.take() {
                    (owed, is_silent) = (deeds, silent);
                }
                owed.extend(of(p));
                self.supervise(p, tick, before.token, owed, is_silent)?;
            }
            Step::Loses(p) => self.owed = Some((p, of(p), true)),
            Step::Asks(p) => {
                let signals = &self.shipped[p].pair.to_signals;
                let _ = signals.send(SignalEvent::Stop(SIGTERM));
                if self.search.is_due(&self.world, p) {
                    self.owed = Some((p, of(p), false));
                } else {
                    self.supervise(p, tick, before.token, of(p), false)?;
                }
            }
            Step::Guards(p) => {
                let deeds = self.shipped[p].guard(tick)?;
                self.compare(p, &of(p), &deeds)?;
            }
            Step::Answers(p) => {
                if let Some(call) = self.world.processes[p].call
                    && let Stage::Answered(reply) = call.stage
                {
                    self.shipped[p].is_answered(call.kind, reply);
                }
            }
            Step::Dies(p, main, daemon) => self.shipped[p].is_left(main, daemon),
            Step::MainEnds(p) => self.shipped[p].is_left(false, true),
            Step::SupervisorDies(p) => self.shipped[p].pair.drive = None,
            Step::GuardianStops(p) | Step::MachineStops(p) => {
                self.shipped[p].pair.guardian = Life::Stopped(0);
                self.shipped[p].pair.handle.link().child = true;
            }
            Step::GuardianContinues(p) => {
                self.shipped[p].pair.guardian = Life::Runs;
                self.shipped[p].pair.handle.link().child = true;
            }
            Step::GuardianDies(p) => self.shipped[p].guardian_dies(),
            Step::Strays(..)
            | Step::Serves(_)
            | Step::SupervisorStops(_)
            | Step::SupervisorContinues(_) => {}
            Step::TimePasses => self.time_passes(&before)?,
        }
        Ok(())
    }

    fn supervise(
        &mut self,
        p: usize,
        tick: u8,
        token: u8,
        with: Vec<Deed>,
        is_silent: bool,
    ) -> Result<(), String> {
        let shipped = &mut self.shipped[p];
        {
            let mut service = shipped.service.lock().expect("whole");
            let of_kind = |deed: &Deed| match deed {
                Deed::Asks(kind, _) => Some(*kind),
                _ => None,
            };
            let asked: Vec<_> = with.iter().filter_map(of_kind).collect();
            if asked.last() == Some(&Kind::Acquire) {
                service.sees(&shipped.texts, u64::from(token));
            }
            // Once more, before it looks.
            service.releases = asked.ends_with(&[Kind::Release, Kind::Acquire]);
        }
        let deeds = shipped.supervise(tick, is_silent)?;
        self.compare(p, &with, &deeds)
    }

    fn compare(&mut self, p: usize, with: &[Deed], deeds: &[Deed]) -> Result<(), String> {
        for deed in deeds {
            self.trace.push(format!("         #{p}: {deed:?}"));
        }
        if self.shipped[p].agrees(with, deeds) {
            return Ok(());
        }
        Err(format!("#{p}: the model has {with:?}"))
    }

    /// Nothing is due any more, in what ships as little as in the model.
    fn time_passes(&mut self, before: &model::World) -> Result<(), String> {
        for p in 0..2 {
            let process = &before.processes[p];
            let is_new = |now: &Process| now.supervisor == model::Life::Runs;
            if process.supervisor == model::Life::Runs {
                self.supervise(p, before.tick, before.token, Vec::new(), false)?;
            }
            if process.guardian == model::Life::Runs {
                let deeds = self.shipped[p].guard(before.tick)?;
                self.compare(p, &[], &deeds)?;
            }
            if process.supervisor == model::Life::Dead && is_new(&self.world.processes[p]) {
                let Plan {
                    attempt, contained, ..
                } = self.plan;
                self.shipped[p] = Shipped::new(self.world.tick, attempt, contained);
                self.trace.push(format!("         #{p} begins anew"));
            }
        }
        Ok(())
    }
}

fn is_fault(step: Step) -> bool {
    match step {
        Step::MainEnds(_)
        | Step::SupervisorStops(_)
        | Step::SupervisorDies(_)
        | Step::GuardianStops(_)
        | Step::GuardianDies(_)
        | Step::MachineStops(_)
        | Step::Asks(_) => true,
        Step::Supervises(_)
        | Step::Loses(_)
        | Step::Guards(_)
        | Step::Strays(..)
        | Step::Serves(_)
        | Step::Answers(_)
        | Step::Dies(..)
        | Step::SupervisorContinues(_)
        | Step::GuardianContinues(_)
        | Step::TimePasses => false,
    }
}

/// The walk of a seed, to its end or to where what ships parts from it.
fn walk(seed: u64) -> (Walk, Result<(), String>) {
    let mut rng = Rng::with_seed(seed);
    let plan = Plan {
        bound: Bound {
            faults: rng.u8(0..6),
            last_fault: 20,
            ticks: 24,
            rest: u8::MAX,
        },
        attempt: *rng.choice(&[TICK, TICK * 4 / 3]).expect("two"),
        contained: rng.bool(),
        faults: rng.u8(1..30),
    };
    let mut walk = Walk::new(plan);
    loop {
        let next = walk.next();
        let wants_fault = rng.u8(0..100) < walk.plan.faults;
        let (faults, others): (Vec<_>, Vec<_>) =
            next.into_iter().partition(|next| is_fault(next.step));
        let of = match (wants_fault || others.is_empty()) && !faults.is_empty() {
            true => faults,
            false => others,
        };
        if of.is_empty() {
            return (walk, Ok(()));
        }
        let next = of[rng.usize(0..of.len())].clone();
        if let Err(why) = walk.take(next) {
            return (walk, Err(why));
        }
    }
}

/// The same steps again, without those that cannot be taken any more.
fn again(plan: Plan, way: &[Step]) -> (Walk, Result<(), String>) {
    let mut walk = Walk::new(plan);
    for step in way {
        let next = walk.next().into_iter().find(|next| next.step == *step);
        let Some(next) = next else { continue };
        if let Err(why) = walk.take(next) {
            return (walk, Err(why));
        }
    }
    (walk, Ok(()))
}

/// Leaves out what the parting does not need, step by step.
fn shrink(mut walk: Walk, mut why: String) -> (Walk, String) {
    let mut smaller = true;
    while smaller {
        smaller = false;
        for at in (0..walk.way.len()).rev() {
            let mut way = walk.way.clone();
            if at >= way.len() {
                continue;
            }
            way.remove(at);
            if let (shorter, Err(parts)) = again(walk.plan, &way)
                && shorter.way.len() < walk.way.len()
            {
                (walk, why, smaller) = (shorter, parts, true);
            }
        }
    }
    (walk, why)
}

#[test]
fn the_search_s_model_does_what_ships() {
    let first = number("TIED_SEED", 1);
    let count = number("TIED_COUNT", 300);
    let began = std::time::Instant::now();
    let (mut steps, mut ticks) = (0, 0);
    for seed in first..first + count {
        let (walk, parts) = walk(seed);
        (steps, ticks) = (steps + walk.way.len(), ticks + usize::from(walk.world.tick));
        if let Err(why) = parts {
            let of = walk.way.len();
            let (walk, why) = shrink(walk, why);
            print(&format!(
                "{}\n{why}\n{} of {of} steps are needed\nagain: TIED_SEED={seed} TIED_COUNT=1 cargo test --test fleet tied::\n",
                walk.trace.join("\n"),
                walk.way.len(),
            ));
            panic!("the model parts from what ships in the walk of seed {seed}: {why}");
        }
    }
    print(&format!(
        "tied: {count} walks (seeds {first}..), {steps} steps and {ticks} ticks of both, in {:.1} s\n",
        began.elapsed().as_secs_f64()
    ));
}
