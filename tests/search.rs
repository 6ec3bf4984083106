//! An exhaustive search, breadth first, of the lease on a blob: two instances with the real [`Tenure`]
//! and the real `GuardianState`, one service that counts leases, and every order of what can happen to
//! a bound of ticks and faults. Requests are carried out late or never, answers are late or lost,
//! supervisors, guardians and whole machines stop for any time, die, or are asked to end, and commands
//! end by themselves and leave something behind.
//!
//! What must hold: no command lives while the service keeps nobody else out for it; a command is not
//! stopped for one call that is not answered; somebody runs again a while after the last fault; tokens
//! grow. A process that runs does what is due before a tick is over, and all of the margin is used up by
//! the dying of a killed command: so clocks that part by less than that are covered, and how far they
//! may is the fleet's to show.
//!
//! A binary of its own for the same reason as the fleet. `SEARCH_FAULTS`, `SEARCH_LAST_FAULT` and
//! `SEARCH_TICKS` move the bound.

#[path = "search/alone.rs"]
mod alone;
#[path = "search/chain/mod.rs"]
mod chain;
#[path = "search/explore.rs"]
mod explore;
#[path = "search/instance.rs"]
mod instance;
#[path = "search/interned.rs"]
mod interned;
#[path = "search/mistakes.rs"]
mod mistakes;
#[path = "search/steps.rs"]
mod steps;
#[path = "search/world.rs"]
mod world;

use std::collections::HashMap;
use std::io::Write;

use explore::{Quickly, Space, explore};
use interned::Interned;
use mistakes::Mistake;
use world::{Broken, Process, World};

/// From t0 to SIGKILL, in ticks.
pub(crate) const KILLED_AFTER: u8 = interned::LEASE - interned::MARGIN;

/// How far the search goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// So many of them in one history, at this tick or before.
    pub(crate) faults: u8,
    pub(crate) last_fault: u8,
    pub(crate) ticks: u8,
    /// So long after the last fault somebody runs again.
    pub(crate) rest: u8,
}

impl Bound {
    pub(crate) fn of(faults: u8) -> Bound {
        Bound {
            faults,
            last_fault: 4,
            ticks: 14,
            rest: 10,
        }
    }
}

/// A state, in a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    ticks: [u8; 3],
    lease: [u8; 4],
    broken: Broken,
    processes: [u32; 2],
}

/// A search, with all that it met.
pub(crate) struct Search {
    bound: Bound,
    mistake: Option<Mistake>,
    interned: Interned,
    processes: Vec<Process>,
    by_process: HashMap<Process, u32, Quickly>,
    reached: Vec<State>,
    longest_rest: u8,
}

/// What it came to.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) broken: Broken,
    /// How the last of these came about.
    pub(crate) way: String,
    pub(crate) longest_rest: u8,
    /// Cores, guardians, and instances with all that is on their wires.
    pub(crate) met: [usize; 3],
}

impl Search {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn reach(&mut self, mut world: World) {
        world.judge_overlap();
        let state = self.pack(&world);
        self.reached.push(state);
    }

    fn pack(&mut self, world: &World) -> State {
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
        // Which of the two is which makes no difference.
        ids.sort_unstable();
        State {
            ticks: [world.tick, world.quiet, world.faults],
            lease: [world.lease, world.until, world.token, world.started],
            broken: world.broken,
            processes: ids,
        }
    }

    fn unpack(&self, state: &State) -> World {
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

/// Searches to the bound, or to the first that must not be.
pub(crate) fn search(bound: Bound, seed: u64, mistake: Option<Mistake>) -> Summary {
    let mut search = Search {
        bound,
        mistake,
        interned: Interned::new(seed),
        processes: Vec::new(),
        by_process: HashMap::default(),
        reached: Vec::new(),
        longest_rest: 0,
    };
    let core = search.interned.begin(0);
    // Elsewhere it would only keep apart what is the same.
    let ahead = 5 * u8::from(mistake == Some(Mistake::WallClocks));
    let first = World {
        tick: 0,
        quiet: 0,
        faults: 0,
        lease: 0,
        until: 0,
        token: 0,
        started: 0,
        broken: Broken::Nothing,
        processes: [Process::new(core, 0), Process::new(core, ahead)],
    };
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

/// Past the capture of the test harness: the numbers are worth something when all is well, too.
pub(crate) fn print(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn number(name: &str, otherwise: u8) -> u8 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

#[test]
fn the_promise_holds_in_every_order_of_events() {
    let faults = number("SEARCH_FAULTS", 1);
    let bound = Bound::of(faults);
    let last_fault = number("SEARCH_LAST_FAULT", bound.last_fault);
    let bound = Bound {
        last_fault,
        ticks: number("SEARCH_TICKS", bound.ticks),
        ..bound
    };
    let began = std::time::Instant::now();
    let found = search(bound, 1, None);
    let [cores, guardians, instances] = found.met;
    print(&format!(
        "search: {} states to {bound:?}, {} steps deep, in {:.1} s: {cores} tenures, {guardians} \
         guardians, {instances} instances with their wires; nobody ran for {} ticks at most after \
         the last fault\n",
        found.states,
        found.depth,
        began.elapsed().as_secs_f64(),
        found.longest_rest,
    ));
    if found.broken != Broken::Nothing {
        panic!("{}\n{:?}", found.way, found.broken);
    }
}

/// Polls and retries have a spread, and none of it matters on the grid of ticks.
#[test]
fn chance_makes_no_difference() {
    let bound = Bound::of(0);
    let [one, other] = [1, 2].map(|seed| search(bound, seed, None));
    assert_eq!((one.states, one.depth), (other.states, other.depth));
}
