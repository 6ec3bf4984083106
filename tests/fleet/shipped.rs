//! A shipped instance beside one of the search's model: with the same events at the same ticks, it
//! reports its deeds in the model's words.
//!
//! It knows nothing of the model's state, except which request of a call has to wait.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::{Deadlines, Exit, Tenure, WorkloadEvent};
use trafficcop_guardian::wire::{Event, FRAME, Request as Frame};

use super::clock::{Time, nanos};
use super::handle::Did;
use super::kernel::Act;
use super::model::interned::{self, NEVER, News, TICK, at, rules};
use super::model::world::{self as model, Deed, Kind};
use super::pair::{Life, Lock, Pair, Tree};
use super::store::{Code, LeaseState, Record, Reply, Request};
use super::wire::Texts;

pub(crate) const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// Interval of looks while a handle waits; a longer one would look like a pause.
const LOOK: Duration = Duration::from_millis(140);
/// An attempt to acquire (two ticks, and five seconds) ends this long before the tick it is rounded
/// up to.
const ATTEMPT_ENDS_BEFORE: Duration = Duration::from_secs(1);
/// Longest rest between looks at a tree that is being killed.
const POLL_INTERVAL: Duration = Duration::from_millis(60);
/// Limit at one tick; more are a loop.
const ROUNDS: usize = 100;

/// Returns the tick of an instance that is behind its ticks by less than one.
fn tick_of(instant: Instant) -> u8 {
    if instant == Instant::FOREVER {
        return NEVER;
    }
    let ticks = instant.as_nanos() / nanos(TICK);
    u8::try_from(ticks.saturating_sub(1000)).unwrap_or(NEVER)
}

struct Service {
    token: u64,
    etag: u64,
    record: Option<Record>,
    /// The next release is answered at once.
    releases: bool,
}

impl Service {
    /// Shows the record of a tenure with this token, if that is newer.
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
                panic!("no instance creates or breaks here: {request:?}")
            }
        }
    }
}

pub(crate) struct Shipped {
    pub(crate) pair: Pair,
    texts: Arc<Mutex<Texts>>,
    service: Arc<Mutex<Service>>,
    /// Lag of its clock behind the tick.
    behind: Duration,
    slot: Option<u64>,
    is_ended: bool,
    /// Whether it does its dead guardian's work.
    is_lost: bool,
    /// Whether its whole command is to die: a process without SIGKILL dies of it.
    dies: bool,
    /// The shipped lease for each of the model's; all that were matched.
    leases: HashMap<model::Id, model::Id>,
    known: HashSet<model::Id>,
}

impl Shipped {
    pub(crate) fn new(tick: u8, attempt: Duration, contained: bool) -> Shipped {
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
            is_lost: false,
            dies: false,
            leases: HashMap::new(),
            known: HashSet::new(),
        }
    }

    /// Prepares the service, which has given out this token, for these requests.
    pub(crate) fn is_about_to_ask(&mut self, asked: &[Kind], token: u8) {
        let mut service = self.service.lock().expect("whole");
        if asked.last() == Some(&Kind::Acquire) {
            service.sees(&self.texts, u64::from(token));
        }
        // It releases once more before it looks.
        service.releases = asked.ends_with(&[Kind::Release, Kind::Acquire]);
    }

    pub(crate) fn supervise(&mut self, tick: u8, is_silent: bool) -> Result<Vec<Deed>, String> {
        let mut deeds = Vec::new();
        self.poll(tick, &mut deeds)?;
        for _ in 0..ROUNDS {
            if self.is_ended {
                return Ok(deeds);
            }
            let next = self.pair.clock.next().unwrap_or(Instant::FOREVER);
            let now = at(tick) + self.behind;
            // The next look finds an empty tree; silence reveals a stopped guardian.
            if self.is_lost && !self.tree_lives() && next <= now + POLL_INTERVAL {
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

    /// Delivers an answer in time for an attempt to acquire; this tick is the next after it.
    pub(crate) fn hears_in_time(&mut self, tick: u8) -> Result<Vec<Deed>, String> {
        let mut deeds = Vec::new();
        let now = at(tick) + self.behind;
        let before = ATTEMPT_ENDS_BEFORE + Duration::from_nanos(1);
        self.poll_at(
            Instant::from_nanos(now.as_nanos() - nanos(before)),
            &mut deeds,
        )?;
        Ok(deeds)
    }

    /// Waits until the next tick for a silent guardian.
    pub(crate) fn listens(&mut self, tick: u8) -> Result<Vec<Deed>, String> {
        let (mut deeds, behind) = (Vec::new(), self.behind);
        while !self.is_lost && self.behind + LOOK < behind + TICK {
            self.behind += LOOK;
            self.poll(tick, &mut deeds)?;
        }
        self.behind = behind;
        Ok(deeds)
    }

    fn poll(&mut self, tick: u8, deeds: &mut Vec<Deed>) -> Result<(), String> {
        self.poll_at(at(tick) + self.behind, deeds)
    }

    fn poll_at(&mut self, now: Instant, deeds: &mut Vec<Deed>) -> Result<(), String> {
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
            let mut context = Context::from_waker(Waker::noop());
            let clock = Rc::clone(&self.pair.clock);
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
            | Did::ReleasedLost { .. }
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

    /// Puts an answer into its socket.
    pub(crate) fn is_answered(&mut self, kind: Kind, reply: interned::Reply) {
        let mut service = self.service.lock().expect("whole");
        let reply = match (kind, reply) {
            (Kind::Acquire, interned::Reply::Done(token)) => {
                // Another instance may have had the lease since the look.
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

    fn tree_lives(&self) -> bool {
        let facts = self.pair.kernel.facts();
        facts.tree.as_ref().is_some_and(Tree::lives)
    }

    pub(crate) fn guardian_dies(&mut self) {
        self.pair.guardian = Life::Dead;
        self.pair.event_loop = None;
        self.pair.handle.link().child = true;
    }

    pub(crate) fn guard(&mut self, tick: u8) -> Result<Vec<Deed>, String> {
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
            let clock = Rc::clone(&pair.guardian_clock);
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
                // Each tree has a daemon, and executes the command at once.
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

    pub(crate) fn is_left(&mut self, main: bool, daemon: bool) {
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

    pub(crate) fn agrees(&mut self, with: &[Deed], deeds: &[Deed]) -> bool {
        // Reports and signals have no order between them.
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

    /// Returns the lease that the model means; its new id must be a new lease here, too.
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
