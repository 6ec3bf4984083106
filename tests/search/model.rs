//! The model: two instances, one service, and everything between the real core, the real guardian
//! and the world.
//!
//! `tests/search.rs` explores it completely; `tests/fleet/tied.rs` walks through it at random, and
//! compares it with the shipped code.

#[path = "explore.rs"]
pub(crate) mod explore;
#[path = "instance.rs"]
mod instance;
#[path = "interned.rs"]
pub(crate) mod interned;
#[path = "mistakes.rs"]
mod mistakes;
#[path = "steps.rs"]
pub(crate) mod steps;
#[path = "world.rs"]
pub(crate) mod world;

use std::collections::HashMap;

use explore::{Quickly, Space, explore};
use interned::Interned;
pub(crate) use mistakes::Mistake;
use steps::Step;
use world::{Broken, Deed, Process, World};

/// Ticks from t0 to SIGKILL.
pub(crate) const KILLED_AFTER: u8 = interned::LEASE - interned::MARGIN;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// Largest number in one history; `last_fault` is the tick of the last one.
    pub(crate) faults: u8,
    pub(crate) last_fault: u8,
    pub(crate) ticks: u8,
    /// Ticks after the last fault within which a command must run again.
    pub(crate) rest: u8,
}

impl Bound {
    pub(crate) fn of(faults: u8) -> Bound {
        Bound {
            faults,
            last_fault: 4,
            ticks: 14,
            // A lease, a look, and the wait for a start if a guardian is stopped.
            rest: 8 + 2 * faults.max(1),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    ticks: [u8; 3],
    lease: [u8; 4],
    broken: Broken,
    processes: [u32; 2],
}

pub(crate) struct Search {
    bound: Bound,
    mistake: Option<Mistake>,
    interned: Interned,
    processes: Vec<Process>,
    by_process: HashMap<Process, u32, Quickly>,
    reached: Vec<State>,
    longest_rest: u8,
    /// Collects steps, for a walk instead of a search.
    next: Option<Vec<Next>>,
    deeds: Vec<(usize, Deed)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Next {
    pub(crate) step: Step,
    pub(crate) world: World,
    pub(crate) deeds: Vec<(usize, Deed)>,
}

#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) broken: Broken,
    /// Way to the last state.
    pub(crate) way: String,
    pub(crate) longest_rest: u8,
    /// Cores, guardians, and instances with their wires.
    pub(crate) met: [usize; 3],
}

impl Search {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn does_visibly(&mut self, p: usize, deed: Deed) {
        if self.next.is_some() {
            self.deeds.push((p, deed));
        }
    }

    fn reach(&mut self, step: Step, mut world: World) {
        world.judge_overlap();
        if let Some(next) = &mut self.next {
            let deeds = std::mem::take(&mut self.deeds);
            return next.push(Next { step, world, deeds });
        }
        let state = self.pack(&world);
        self.reached.push(state);
    }

    fn pack(&mut self, world: &World) -> State {
        self.place(world).0
    }

    /// Returns the packed state, and whether its two instances are in the other order.
    pub(crate) fn place(&mut self, world: &World) -> (State, bool) {
        let mut ids = [0; 2];
        for (id, process) in ids.iter_mut().zip(&world.processes) {
            *id = match self.by_process.get(process) {
                Some(known) => *known,
                None => {
                    let new = u32::try_from(self.processes.len()).expect("fewer of them");
                    self.processes.push(process.clone());
                    self.by_process.insert(process.clone(), new);
                    new
                }
            };
        }
        // The order of the two does not matter.
        let is_turned = ids[0] > ids[1];
        ids.sort_unstable();
        let state = State {
            ticks: [world.tick, world.quiet, world.faults],
            lease: [world.lease, world.until, world.token, world.started],
            broken: world.broken,
            processes: ids,
        };
        (state, is_turned)
    }

    pub(crate) fn unpack(&self, state: &State) -> World {
        let [tick, quiet, faults] = state.ticks;
        let [lease, until, token, started] = state.lease;
        World {
            tick,
            quiet,
            faults,
            lease,
            until,
            token,
            started,
            broken: state.broken,
            processes: state
                .processes
                .map(|id| self.processes[id as usize].clone()),
        }
    }
}

impl State {
    pub(crate) fn is_of_twins(&self) -> bool {
        self.processes[0] == self.processes[1]
    }
}

impl Space for Search {
    type State = State;
    type Key = [u64; 2];

    fn key(&self, state: &State) -> [u64; 2] {
        let [a, b, c] = state.ticks.map(u64::from);
        let [d, e, f, g] = state.lease.map(u64::from);
        let word = [a, b, c, d, e, f, g, state.broken as u64]
            .into_iter()
            .fold(0, |word, byte| word << 8 | byte);
        let [one, other] = state.processes.map(u64::from);
        [word, one << 32 | other]
    }

    fn is_bad(&self, state: &State) -> bool {
        state.broken != Broken::Nothing
    }

    fn successors(&mut self, state: State, reached: &mut Vec<State>) {
        let world = self.unpack(&state);
        self.steps(&world);
        reached.append(&mut self.reached);
    }
}

impl Search {
    pub(crate) fn new(bound: Bound, interned: Interned, mistake: Option<Mistake>) -> Search {
        Search {
            bound,
            mistake,
            interned,
            processes: Vec::new(),
            by_process: HashMap::default(),
            reached: Vec::new(),
            longest_rest: 0,
            next: None,
            deeds: Vec::new(),
        }
    }

    pub(crate) fn first(&mut self) -> World {
        let core = self.interned.begin(0);
        // Without that mistake it would only separate equal states.
        let ahead = 5 * u8::from(self.is(Mistake::WallClocks));
        World {
            tick: 0,
            quiet: 0,
            faults: 0,
            lease: 0,
            until: 0,
            token: 0,
            started: 0,
            broken: Broken::Nothing,
            processes: [Process::new(core, 0), Process::new(core, ahead)],
        }
    }

    pub(crate) fn next(&mut self, world: &World) -> Vec<Next> {
        self.next = Some(Vec::new());
        self.steps(world);
        self.next.take().unwrap_or_default()
    }

    /// Returns the result of this step, if it is possible.
    pub(crate) fn after(&mut self, world: &World, step: Step) -> Option<Next> {
        self.next = Some(Vec::new());
        self.steps_like(world, step);
        let next = self.next.take().unwrap_or_default();
        next.into_iter().find(|next| next.step == step)
    }
}

pub(crate) fn search(bound: Bound, seed: u64, mistake: Option<Mistake>) -> Summary {
    let mut search = Search::new(bound, Interned::new(seed, interned::TICK), mistake);
    let first = search.first();
    let first = search.pack(&first);
    let found = explore(&mut search, first);
    let mut way = Vec::new();
    let mut before: &[u32] = &[];
    for state in found.way.iter().flatten() {
        let World {
            processes, tick, ..
        } = search.unpack(state);
        let (lease, until, broken) = (state.lease[0], state.lease[1], state.broken);
        way.push(format!(
            "tick {tick}: lease {lease} until {until}, {broken:?}"
        ));
        for (id, process) in state.processes.iter().zip(&processes) {
            if !before.contains(id) {
                way.push(format!("    {process:?}"));
            }
        }
        before = &state.processes;
    }
    let last = found.way.as_ref().and_then(|way| way.last());
    let (cores, guardians) = search.interned.count();
    Summary {
        states: found.states,
        depth: found.depth,
        broken: last.map_or(Broken::Nothing, |state| state.broken),
        way: way.join("\n"),
        longest_rest: search.longest_rest,
        met: [cores, guardians, search.processes.len()],
    }
}
