//! An exhaustive breadth-first search: two instances, one share, and every order of events up to a
//! bound of time and versions. Steps take any time. A request arrives at any time, or never; its
//! answer comes late, is lost, or says that an own version exists. Records are written late or
//! never; supervisors die, and their guardians release. Clocks run at one pace: the fleet shows how
//! much they may drift.
//!
//! A command lives to the very end of its lease: its death uses the whole margin.

use trafficcop_core::observed::Exists;

use super::memories::{LEASES, MARGIN, Memories, Told, ticks_of};
use super::mistakes::Mistake;
use super::states::{
    Break, Call, ChainState, Kind, Made, Process, Record, Run, Stage, claim, make, make_broken,
};
use crate::model::explore::{Space, explore};
use crate::{number, print};

/// Number of times that one process can begin anew, each time with another number.
const LAST_NUMBER: u8 = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) ticks: u8,
    pub(crate) versions: u8,
    /// Largest number of lost answers, abandoned calls and killed supervisors together.
    pub(crate) faults: u8,
    /// Whether an operator breaks a lease at once, at any time.
    pub(crate) breaks: bool,
}

#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) overlap: Option<Vec<String>>,
}

struct Search {
    bound: Bound,
    memories: Memories,
    reached: Vec<ChainState>,
}

pub(crate) fn search(bound: Bound, mistake: Option<Mistake>) -> Found {
    let mut search = Search {
        bound,
        memories: Memories::new(mistake),
        reached: Vec::new(),
    };
    let fresh = |search: &mut Search, p: u8| Process {
        memory: search.memories.tell(p, 0, Told::New(p, 0)).0,
        ..Process::default()
    };
    let first = ChainState {
        tick: 0,
        latest: 0,
        faults: 0,
        made: [Made::default(); 6],
        processes: [fresh(&mut search, 0), fresh(&mut search, 1)],
        operator: Break::NotYet,
        strayed: false,
    };
    let found = explore(&mut search, first);
    let as_text = |way: Vec<ChainState>| way.iter().map(|state| format!("{state:?}")).collect();
    Found {
        states: found.states,
        depth: found.depth,
        overlap: found.way.map(as_text),
    }
}

impl Space for Search {
    type State = ChainState;
    type Key = [u64; 3];

    fn key(&self, state: &ChainState) -> [u64; 3] {
        state.key()
    }

    /// Whether two commands with unbroken leases overlap, or a holder continued from another's
    /// version.
    fn is_bad(&self, state: &ChainState) -> bool {
        let lives = |process: &Process| process.run != Run::Idle && !process.broken;
        state.processes.iter().all(lives) || state.strayed
    }

    fn successors(&mut self, state: ChainState, reached: &mut Vec<ChainState>) {
        self.goes_on(state);
        reached.extend(self.reached.drain(..).map(ChainState::tidied));
    }
}

impl Search {
    fn is(&self, mistake: Mistake) -> bool {
        self.memories.mistake == Some(mistake)
    }

    fn tell(&mut self, p: usize, state: &mut ChainState, told: Told) -> Option<Exists> {
        let process = &mut state.processes[p];
        let whose = u8::try_from(p).expect("two");
        let (memory, answer) = self.memories.tell(whose, process.memory, told);
        process.memory = memory;
        answer
    }

    fn goes_on(&mut self, state: ChainState) {
        for p in 0..2 {
            self.looks(state, p);
            self.begins(state, p);
            self.travels(state, p);
            self.is_answered(state, p);
            self.ends(state, p);
        }
        self.breaks(state);
        if state.tick < self.bound.ticks {
            let mut state = state;
            state.tick += 1;
            for (p, process) in state.processes.iter_mut().enumerate() {
                let end = process.t0 + LEASES[p];
                if process.run != Run::Idle && state.tick >= end {
                    process.run = Run::Idle;
                } else if process.run == Run::Runs && state.tick >= end - MARGIN {
                    process.run = Run::Dies;
                }
            }
            self.reached.push(state);
        }
    }

    /// Plays an operator, who announces the break, makes the next version, and writes that the lock
    /// is free; each at any time, or never.
    fn breaks(&mut self, mut state: ChainState) {
        match state.operator {
            Break::NotYet if self.bound.breaks => {
                for version in 1..=state.latest.min(self.bound.versions - 1) {
                    let mut state = state;
                    if state.made[usize::from(version)].record != Record::Held {
                        continue;
                    }
                    state.made[usize::from(version)].said = true;
                    state.operator = Break::Said(version);
                    self.reached.push(state);
                }
                return;
            }
            Break::NotYet | Break::Over => return,
            Break::Said(version) => {
                state.operator = match make_broken(&mut state, version + 1) {
                    Stage::Made => Break::Made(version + 1),
                    _ => Break::Over,
                };
            }
            Break::Made(version) => {
                state.made[usize::from(version)].record = Record::Released;
                state.operator = Break::Over;
            }
        }
        self.reached.push(state);
    }

    /// Whether no operator can have made the version after this one. The process tests it by making
    /// the operator's announcement itself. After an announcement or a lost answer it is unknown.
    fn is_unbroken(&self, state: &mut ChainState, version: u8) -> bool {
        if !self.bound.breaks || self.is(Mistake::BreakIsOverlooked) {
            return true;
        }
        !std::mem::replace(&mut state.made[usize::from(version)].said, true)
    }

    /// Sees any version from the last seen one on, with its record or without.
    fn looks(&mut self, state: ChainState, p: usize) {
        let process = state.processes[p];
        if process.call.kind != Kind::None || process.run != Run::Idle || process.orphaned {
            return;
        }
        let known = ticks_of(self.memories.all[usize::from(process.memory)].version());
        for version in known..=state.latest {
            for read in [false, true] {
                let mut state = state;
                let Some(claim) = claim(&state, version, read) else {
                    continue;
                };
                if state.processes[p].tenure && !self.renumber(&mut state, p, false) {
                    continue;
                }
                let early = u8::from(self.is(Mistake::StampBefore)) * 2;
                if version > 0 {
                    let stamp = state.tick.saturating_sub(early);
                    self.tell(p, &mut state, Told::Saw(version, claim, stamp));
                }
                let process = &mut state.processes[p];
                if let Some(version) = self.memories.next(process.memory, state.tick)
                    && version <= self.bound.versions
                {
                    process.call = Call {
                        kind: Kind::Take,
                        version,
                        sent: state.tick,
                        began: state.tick,
                        ..Call::default()
                    };
                }
                self.reached.push(state);
            }
        }
    }

    /// Ends a tenure: the next one has another number.
    fn renumber(&mut self, state: &mut ChainState, p: usize, released: bool) -> bool {
        let process = &mut state.processes[p];
        if process.number == LAST_NUMBER {
            return false;
        }
        process.number += 1;
        process.tenure = false;
        let (whose, number) = (u8::try_from(p).expect("two"), process.number);
        let told = if released {
            Told::Released(whose, number, state.tick)
        } else {
            Told::Renounced(whose, number, state.tick)
        };
        self.tell(p, state, told);
        true
    }

    fn begins(&mut self, state: ChainState, p: usize) {
        let mut state = state;
        let process = &mut state.processes[p];
        if process.call.kind != Kind::None || !process.tenure {
            return;
        }
        let kind = match process.run {
            Run::Runs => Kind::Renew,
            Run::Idle => Kind::Release,
            Run::Dies => return,
        };
        let Some(version) = self.memories.own(process.memory).map(|own| own + 1) else {
            return;
        };
        if version > self.bound.versions || process.orphaned && kind == Kind::Renew {
            return;
        }
        process.call = Call {
            kind,
            version,
            sent: state.tick,
            began: state.tick,
            ..Call::default()
        };
        self.reached.push(state);
    }

    /// Lets a request arrive, or not; an abandoned one, too.
    fn travels(&mut self, state: ChainState, p: usize) {
        let process = state.processes[p];
        if process.late > 0 {
            let mut state = state;
            make(&mut state, p, process.late);
            state.processes[p].late = 0;
            self.reached.push(state);
        }
        if process.call.kind == Kind::None || process.call.stage != Stage::Sent {
            return;
        }
        let mut arrived = state;
        let stage = make(&mut arrived, p, process.call.version);
        arrived.processes[p].call.stage = stage;
        self.reached.push(arrived);
        let Some(faults) = self.one_more(&state) else {
            return;
        };
        arrived.faults = faults;
        if stage == Stage::Made {
            // The answer is lost, and the call is repeated.
            arrived.processes[p].call.stage = Stage::Exists;
            self.reached.push(arrived);
            // Or the mount gives up.
            arrived.processes[p].call = Call::default();
            self.reached.push(arrived);
        }
        if process.late == 0 {
            let mut gone = state;
            gone.faults = faults;
            gone.processes[p].call = Call::default();
            gone.processes[p].late = process.call.version;
            self.reached.push(gone);
        }
    }

    fn one_more(&self, state: &ChainState) -> Option<u8> {
        (state.faults < self.bound.faults).then_some(state.faults + 1)
    }

    fn is_answered(&mut self, state: ChainState, p: usize) {
        let call = state.processes[p].call;
        if call.kind == Kind::None {
            return;
        }
        let made = call.stage == Stage::Made
            || call.stage == Stage::Exists && self.is(Mistake::ExistsIsSuccess);
        if made {
            let mut state = state;
            let sent = if self.is(Mistake::T0After) {
                state.tick
            } else {
                call.sent
            };
            self.tell(p, &mut state, Told::Made(call.version, sent));
            if let Some(faults) = self.one_more(&state) {
                let mut state = ChainState { faults, ..state };
                let process = &mut state.processes[p];
                process.call = Call::default();
                if call.kind != Kind::Take {
                    process.writes = call.version;
                    process.writes_released = call.kind == Kind::Release;
                }
                self.reached.push(state);
            }
            return self.succeeds(state, p, call, call.version);
        }
        if call.stage != Stage::Exists {
            return;
        }
        for read in [false, true] {
            let mut state = state;
            let Some(claim) = claim(&state, call.version, read) else {
                continue;
            };
            if call.kind == Kind::Take {
                let told = Told::Saw(call.version, claim, state.tick);
                self.tell(p, &mut state, told);
                state.processes[p].call = Call::default();
                self.reached.push(state);
                continue;
            }
            let is_known = claim.is_some() || self.is_unbroken(&mut state, call.version - 1);
            let told = Told::Exists(call.version, claim, state.tick);
            match is_known.then(|| self.tell(p, &mut state, told)).flatten() {
                Some(Exists::Ours) if call.version < self.bound.versions => {
                    state.processes[p].call = Call {
                        version: call.version + 1,
                        sent: state.tick,
                        stage: Stage::Sent,
                        ..call
                    };
                    self.reached.push(state);
                }
                Some(Exists::Lost) => {
                    let process = &mut state.processes[p];
                    if process.run == Run::Runs {
                        process.run = Run::Dies;
                    }
                    process.call = Call::default();
                    self.reached.push(state);
                }
                _ => {
                    state.processes[p].call = Call::default();
                    self.reached.push(state);
                }
            }
        }
    }

    fn succeeds(&mut self, mut state: ChainState, p: usize, call: Call, version: u8) {
        let tick = state.tick;
        let process = &mut state.processes[p];
        process.call = Call::default();
        let began = if self.is(Mistake::T0After) {
            tick
        } else {
            call.began
        };
        match call.kind {
            Kind::None => return,
            Kind::Take => {
                process.tenure = true;
                process.t0 = began;
                if tick < began + LEASES[p] - MARGIN {
                    process.run = Run::Runs;
                }
            }
            Kind::Renew => {
                // A renewal after SIGKILL saves no process.
                if process.run == Run::Runs {
                    process.t0 = began;
                }
            }
            Kind::Release => {
                (process.writes, process.writes_released) = (version, true);
                if self.renumber(&mut state, p, true) {
                    self.reached.push(state);
                }
                return;
            }
        }
        let process = &mut state.processes[p];
        (process.writes, process.writes_released) = (version, false);
        self.reached.push(state);
    }

    fn ends(&mut self, state: ChainState, p: usize) {
        let process = state.processes[p];
        if process.writes > 0 {
            let mut state = state;
            let made = &mut state.made[usize::from(process.writes)];
            if made.record == Record::None {
                made.record = if process.writes_released {
                    Record::Released
                } else {
                    Record::Held
                };
            }
            state.processes[p].writes = 0;
            self.reached.push(state);
        }
        // A command that is being killed lives as long as it can.
        if process.run == Run::Runs {
            let mut state = state;
            state.processes[p].run = Run::Idle;
            self.reached.push(state);
        }
        if !process.orphaned
            && process.tenure
            && let Some(faults) = self.one_more(&state)
        {
            let mut state = ChainState { faults, ..state };
            let process = &mut state.processes[p];
            process.orphaned = true;
            if process.run == Run::Runs {
                process.run = Run::Dies;
            }
            if process.call.kind != Kind::None && process.call.stage == Stage::Sent {
                process.late = process.call.version;
            }
            process.call = Call::default();
            process.writes = 0;
            self.reached.push(state);
        }
        if process.orphaned && process.run == Run::Idle && process.number < LAST_NUMBER {
            let mut state = state;
            let number = process.number + 1;
            let whose = u8::try_from(p).expect("two");
            state.processes[p] = Process {
                number,
                late: process.late,
                writes: process.writes,
                writes_released: process.writes_released,
                ..Process::default()
            };
            self.tell(p, &mut state, Told::New(whose, number));
            self.reached.push(state);
        }
    }
}

fn searches(bound: Bound) {
    let began = std::time::Instant::now();
    let found = search(bound, None);
    print(&format!(
        "search: chain: {} states to {bound:?}, {} steps deep, in {:.1} s\n",
        found.states,
        found.depth,
        began.elapsed().as_secs_f64()
    ));
    if let Some(way) = found.overlap {
        panic!("two commands at once:\n{}", way.join("\n"));
    }
}

#[test]
fn no_order_of_events_lets_two_commands_live_at_once() {
    searches(Bound {
        ticks: number("SEARCH_DRIVE_TICKS", 3),
        versions: number("SEARCH_DRIVE_VERSIONS", 3),
        faults: number("SEARCH_DRIVE_FAULTS", 1),
        breaks: false,
    });
}

/// With an operator, and room for what follows its version.
pub(crate) const A_BREAK: Bound = Bound {
    ticks: 2,
    versions: 4,
    faults: 0,
    breaks: true,
};

#[test]
fn no_order_of_events_lets_a_broken_holder_go_on() {
    searches(A_BREAK);
}

/// Without a fault, but with room for a release by the loser of the lock, and for a successor.
#[test]
fn no_order_of_events_lets_a_loser_release_what_is_anothers() {
    searches(Bound {
        ticks: 2,
        versions: 4,
        faults: 0,
        breaks: false,
    });
}
