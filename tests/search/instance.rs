//! Turns of a supervisor and of a guardian, until nothing is left to do at this tick. They do what
//! `src/driver.rs`, `src/run/workload.rs`, `crates/guardian/src/handle.rs` and
//! `crates/guardian/src/event_loop.rs` do around the two deciders, in the same order. The store is
//! `crates/lease/src/blob` with one request for each call, and one more for an uncertain release.
//!
//! It is a copy, because a future can be neither copied nor compared. `tests/fleet/tied.rs`
//! compares it with the shipped code.

use super::Search;
use super::interned::{Act, Effect, Fed, NEVER, News, Reply, Told};
use super::mistakes::Mistake;
use super::world::{
    Attendance, Broken, Call, Deed, Kind, Life, Process, Request, Stage, Stray, Tree, World,
};

enum Work {
    End,
    Hear(News),
    Lose,
    FindEmpty,
    Send(Call),
    Answer(Call, Reply),
    Undo,
    Tick,
}

/// Limit of steps at one moment; more are a loop without a pause.
const STEPS: usize = 100;

/// Ticks for an abandoned release (`UNDO` of the driver).
const UNDO: u8 = 1;

/// Ticks that a silent guardian gets to start a command (`PATIENCE_AT_THE_START` of its liveness).
/// They end a second after this one, when everything due at it is done.
pub(super) const START: u8 = 3;

impl Search {
    fn next_work(&self, world: &World, p: usize) -> Option<Work> {
        let process = &world.processes[p];
        if process.supervisor != Life::Runs {
            return None;
        }
        if self.interned.has_ended(process.core) {
            return Some(Work::End);
        }
        // The driver's order: tree, store, clock. A socket is read to its end before any of it is
        // passed on.
        if process.attendance == Attendance::Well && process.guardian == Life::Dead {
            return Some(Work::Lose);
        }
        if let Some(news) = process.inbox.first() {
            return Some(Work::Hear(*news));
        }
        if process.attendance == Attendance::Lost && process.tree.is_none() {
            return Some(Work::FindEmpty);
        }
        if let Some(call) = process.call {
            if call.stage == Stage::Ordered {
                return Some(Work::Send(call));
            }
            if let Stage::Answered(reply) = call.stage {
                return Some(Work::Answer(call, reply));
            }
            if world.tick >= call.give_up && !self.is(Mistake::NeverTimesOut) {
                return Some(Work::Answer(call, Reply::Silence));
            }
        }
        if world.tick >= process.withdrawn {
            return Some(Work::Undo);
        }
        (world.tick >= self.interned.wake(process.core)).then_some(Work::Tick)
    }

    pub(crate) fn is_due(&self, world: &World, p: usize) -> bool {
        self.next_work(world, p).is_some()
    }

    pub(crate) fn supervise(&mut self, world: &mut World, p: usize) {
        for _ in 0..STEPS {
            let Some(work) = self.next_work(world, p) else {
                return;
            };
            match work {
                Work::End => return self.ends(world, p),
                Work::Hear(news) => {
                    let process = &mut world.processes[p];
                    process.inbox.remove(0);
                    // A start without enough time is doubt, not a command that cannot run.
                    let told = match news {
                        News::TooLate => News::TreeEmpty(process.term),
                        news => news,
                    };
                    match news {
                        News::TreeEmpty(_) | News::NotStarted | News::TooLate => process.is_rid(),
                        News::Started => process.starting = 0,
                        _ => {}
                    }
                    self.tell(world, p, Told::Workload(told));
                }
                Work::Lose => self.lose(world, p),
                Work::FindEmpty => {
                    let empty = News::TreeEmpty(world.tick);
                    let process = &mut world.processes[p];
                    process.attendance = Attendance::Over;
                    // Only if the core knows of the command.
                    if process.busy {
                        process.is_rid();
                        self.tell(world, p, Told::Workload(empty));
                    }
                }
                Work::Send(call) => self.send(world, p, call),
                Work::Answer(call, reply) => self.answered(world, p, call, reply),
                Work::Undo => {
                    let process = &mut world.processes[p];
                    process.withdrawn = NEVER;
                    process.drop_call();
                    let give_up = world.tick + UNDO;
                    order(world, p, Kind::Release, give_up);
                    self.tell(world, p, Told::Ticked);
                }
                Work::Tick => self.tell(world, p, Told::Ticked),
            }
        }
        world.breaks(Broken::Loops);
    }

    fn tell(&mut self, world: &mut World, p: usize, told: Told) {
        // The time counts before the event.
        if told != Told::Ticked {
            self.step(world, p, Told::Ticked);
        }
        self.step(world, p, told);
    }

    fn step(&mut self, world: &mut World, p: usize, told: Told) {
        let core = world.processes[p].core;
        let (next, effects) = self.interned.step(core, world.tick, told);
        world.processes[p].core = next;
        for effect in effects {
            self.does(world, p, effect);
        }
    }

    pub(crate) fn is_asked_to_stop(&mut self, world: &mut World, p: usize) {
        self.tell(world, p, Told::StopAsked);
    }

    fn does(&mut self, world: &mut World, p: usize, effect: Effect) {
        match effect {
            Effect::Acquire { give_up } => order(world, p, Kind::Acquire, give_up),
            Effect::Withdraw { give_up } => world.processes[p].withdrawn = give_up,
            Effect::Renew { give_up } => order(world, p, Kind::Renew, give_up),
            Effect::Release { give_up } => {
                let process = &mut world.processes[p];
                process.drop_call();
                if process.tree.is_some() {
                    world.breaks(Broken::ReleasedEarly);
                }
                self.demand(world, p, Request::ForgetRelease);
                order(world, p, Kind::Release, give_up);
            }
            Effect::Abandon => {
                world.processes[p].drop_call();
                self.demand(world, p, Request::ForgetRelease);
            }
            Effect::Start { term, kill, token } => {
                let process = &mut world.processes[p];
                if process.attendance != Attendance::Well {
                    return process.inbox.push(News::NotStarted);
                }
                if process.busy {
                    return world.breaks(Broken::StartsBeside);
                }
                process.starting = world.tick + START;
                (process.busy, process.term) = (true, term);
                process.is_judged = false;
                let id = process.held;
                let start = Request::Start {
                    term,
                    kill,
                    id,
                    token,
                };
                self.demand(world, p, start);
            }
            Effect::Extend { term, kill } => {
                let process = &mut world.processes[p];
                if process.busy {
                    process.term = term;
                }
                self.demand(world, p, Request::Extend { term, kill });
            }
            Effect::Drain { end } => {
                world.judge_need(p);
                self.demand(world, p, Request::Drain { end });
            }
            Effect::Kill => {
                world.judge_need(p);
                // An insistent stop does not wait for a start.
                world.processes[p].starting = 0;
                self.demand(world, p, Request::Kill);
            }
        }
    }

    fn demand(&mut self, world: &mut World, p: usize, request: Request) {
        let process = &mut world.processes[p];
        // The workload knows that the tree is empty, even if the core does not yet.
        let is_heard = process.busy || request == Request::ForgetRelease;
        if is_heard && process.attendance == Attendance::Well && process.guardian != Life::Dead {
            process.requests.push(request);
            self.does_visibly(p, Deed::Orders(request));
        }
    }

    fn send(&mut self, world: &mut World, p: usize, call: Call) {
        let fresh = world.fresh_id();
        let tick = world.tick;
        let process = &mut world.processes[p];
        let mut is_sure = false;
        let id = match call.kind {
            Kind::Acquire => {
                if std::mem::take(&mut process.held) != 0 {
                    (process.proposed, process.perhaps) = (0, false);
                }
                let is_fresh = process.proposed == 0;
                if is_fresh {
                    process.proposed = fresh;
                    self.does_visibly(p, Deed::Proposes(fresh));
                }
                let (kind, id) = (Kind::Release, std::mem::take(&mut process.spent));
                if id != 0 {
                    // Repeated, because that lease may be what keeps all others out.
                    let sent = tick;
                    process.strays.push(Stray { kind, id, sent });
                    self.does_visibly(p, Deed::Asks(kind, id));
                }
                process.proposed
            }
            Kind::Renew => process.held,
            Kind::Release => {
                let held = std::mem::take(&mut process.held);
                let perhaps = std::mem::take(&mut process.perhaps);
                is_sure = held != 0;
                let id = match held {
                    0 if perhaps => process.proposed,
                    0 => process.spent,
                    held => held,
                };
                if id != 0 {
                    (process.proposed, process.spent) = (0, id);
                }
                id
            }
        };
        let stage = match (call.kind, id) {
            // There is no own lease, so no request is sent.
            (Kind::Renew, 0) => Stage::Answered(Reply::Lost),
            (Kind::Release, 0) => Stage::Answered(Reply::Done(0)),
            // Nor if there is no time left for an answer.
            _ if tick >= call.give_up => Stage::Answered(Reply::Silence),
            _ => {
                self.does_visibly(p, Deed::Asks(call.kind, id));
                Stage::Sent
            }
        };
        process.call = Some(Call {
            id,
            stage,
            sent: tick,
            is_sure,
            ..call
        });
    }

    fn answered(&mut self, world: &mut World, p: usize, call: Call, reply: Reply) {
        let tick = world.tick;
        let process = &mut world.processes[p];
        if reply == Reply::Silence {
            process.drop_call();
        }
        process.call = None;
        let blip = reply == Reply::Silence && self.is(Mistake::FirstBlipIsLoss);
        let reply = if blip { Reply::Lost } else { reply };
        let t0 = if self.is(Mistake::T0OfTheAnswer) {
            tick
        } else {
            call.sent
        };
        match call.kind {
            Kind::Acquire => {
                let mut reply = reply;
                if matches!(reply, Reply::Done(_)) {
                    (process.proposed, process.perhaps) = (0, false);
                    if tick > call.give_up {
                        // No time to write the record: nothing was acquired.
                        process.spent = call.id;
                        reply = Reply::Silence;
                    } else {
                        process.held = call.id;
                    }
                }
                let withdrawn = std::mem::replace(&mut process.withdrawn, NEVER);
                if withdrawn != NEVER {
                    return order(world, p, Kind::Release, withdrawn);
                }
                self.tell(world, p, Told::Acquired(t0, reply));
            }
            Kind::Renew => {
                if reply == Reply::Lost {
                    process.held = 0;
                }
                let is_read = process.requests.is_empty();
                self.tell(world, p, Told::Renewed(t0, reply));
                // Not earlier: an answer is late because of earlier delays, and so is what the
                // guardian has not read for as long.
                if matches!(reply, Reply::Done(_)) {
                    let process = &mut world.processes[p];
                    process.slow = 0;
                    process.is_excused &= !(is_read && process.is_whole());
                }
            }
            Kind::Release => {
                if reply != Reply::Silence {
                    process.spent = 0;
                }
                // Not the own lease: an earlier request was carried out, if any.
                let reply = match reply {
                    Reply::Lost if !call.is_sure => Reply::Done(0),
                    reply => reply,
                };
                self.tell(world, p, Told::Released(reply));
            }
        }
    }

    pub(crate) fn is_guardian_due(&self, world: &World, p: usize) -> bool {
        let process = &world.processes[p];
        let children = process
            .tree
            .is_some_and(|tree| !tree.main && (!tree.told_exit || !tree.daemon));
        process.guardian == Life::Runs
            && (world.tick >= self.interned.timer(process.guardian_state)
                || children
                || !process.requests.is_empty()
                || process.supervisor == Life::Dead && !process.is_orphaned)
    }

    pub(crate) fn guard(&mut self, world: &mut World, p: usize) {
        // The timer comes before everything else, and children before the socket.
        self.feed(world, p, Fed::Ticked);
        if let Some(tree) = &mut world.processes[p].tree
            && !tree.main
        {
            let daemon = tree.daemon && !self.is(Mistake::EmptyListIsBelieved);
            if !std::mem::replace(&mut tree.told_exit, true) {
                self.feed(world, p, Fed::MainExited);
            }
            if daemon {
                self.feed(world, p, Fed::OthersLive);
            } else {
                if world.processes[p].tree.is_some_and(|tree| !tree.daemon) {
                    world.processes[p].tree = None;
                }
                self.feed(world, p, Fed::Emptied);
            }
        }
        while world.processes[p].guardian == Life::Runs && !world.processes[p].requests.is_empty() {
            let request = world.processes[p].requests.remove(0);
            self.obeys(world, p, request);
        }
        let process = &mut world.processes[p];
        if process.supervisor == Life::Dead
            && process.guardian == Life::Runs
            && !std::mem::replace(&mut process.is_orphaned, true)
        {
            self.feed(world, p, Fed::Orphaned);
        }
    }

    fn obeys(&mut self, world: &mut World, p: usize, request: Request) {
        let tick = world.tick;
        match request {
            Request::Start {
                term,
                kill,
                id,
                token,
            } => {
                let process = &mut world.processes[p];
                process.release = id;
                if tick >= term.min(kill) {
                    return self.says(world, p, News::TooLate);
                }
                if process.tree.is_some() {
                    return world.breaks(Broken::StartsBeside);
                }
                process.tree = Some(Tree {
                    lease: id,
                    main: true,
                    daemon: true,
                    asked: false,
                    daemon_asked: false,
                    dies: false,
                    told_exit: false,
                });
                if token <= world.started {
                    world.breaks(Broken::TokenGoesBack);
                }
                world.started = token;
                self.feed(world, p, Fed::Forked { term, kill });
                self.feed(world, p, Fed::Executed);
            }
            Request::Extend { term, kill } => {
                // As if the guardian were told the rest of the lease instead of its end.
                let later = if self.is(Mistake::RelativeDeadline) {
                    let t0 = kill - super::KILLED_AFTER;
                    tick - t0
                } else {
                    0
                };
                self.feed(
                    world,
                    p,
                    Fed::Extended {
                        term: term + later,
                        kill: kill + later,
                    },
                );
            }
            Request::Drain { end } => self.feed(world, p, Fed::DrainAsked { end }),
            Request::Kill => self.feed(world, p, Fed::KillAsked),
            Request::ForgetRelease => world.processes[p].release = 0,
        }
    }

    fn says(&mut self, world: &mut World, p: usize, news: News) {
        let process = &mut world.processes[p];
        if process.supervisor != Life::Dead {
            process.inbox.push(news);
            self.does_visibly(p, Deed::Says(news));
        }
    }

    fn feed(&mut self, world: &mut World, p: usize, fed: Fed) {
        let (next, acts) = self
            .interned
            .turn(world.processes[p].guardian_state, world.tick, fed);
        world.processes[p].guardian_state = next;
        for act in acts {
            match act {
                Act::Tell(news) => self.says(world, p, news),
                Act::SignalGroup => {
                    self.does_visibly(p, Deed::Signals);
                    world.judge_need(p);
                    if let Some(tree) = &mut world.processes[p].tree {
                        tree.asked = true;
                    }
                }
                Act::TermRest => {
                    if let Some(tree) = &mut world.processes[p].tree
                        && !std::mem::replace(&mut tree.daemon_asked, true)
                    {
                        self.does_visibly(p, Deed::SignalsTheRest);
                    }
                }
                Act::Kill => {
                    world.judge_need(p);
                    kill(&mut world.processes[p]);
                    self.does_visibly(p, Deed::Kills);
                }
                Act::Depart => {
                    let tick = world.tick;
                    let process = &mut world.processes[p];
                    process.guardian = Life::Dead;
                    let id = std::mem::take(&mut process.release);
                    if id != 0 {
                        let kind = Kind::Release;
                        process.strays.push(Stray {
                            kind,
                            id,
                            sent: tick,
                        });
                        self.does_visibly(p, Deed::GivesBack(id));
                    }
                }
            }
        }
    }

    /// Gives up a dead or silent guardian: its death kills the main process, and the supervisor
    /// kills the rest.
    pub(crate) fn lose(&mut self, world: &mut World, p: usize) {
        let process = &mut world.processes[p];
        process.is_bereft();
        process.attendance = Attendance::Lost;
        process.starting = 0;
        process.inbox.push(News::Lost);
        kill(process);
        self.does_visibly(p, Deed::GivesUp);
    }

    fn ends(&mut self, world: &mut World, p: usize) {
        let process = &mut world.processes[p];
        process.supervisor = Life::Dead;
        process.drop_call();
        process.guardian = Life::Dead;
        process.requests.clear();
        process.inbox.clear();
        if process.tree.is_some() {
            world.breaks(Broken::EndsEarly);
        }
        self.does_visibly(p, Deed::Ends);
    }
}

fn order(world: &mut World, p: usize, kind: Kind, give_up: u8) {
    world.processes[p].call = Some(Call {
        kind,
        id: 0,
        stage: Stage::Ordered,
        sent: NEVER,
        give_up,
        is_slow: false,
        is_sure: false,
    });
}

fn kill(process: &mut Process) {
    if let Some(tree) = &mut process.tree {
        tree.dies = true;
    }
}
