//! Every transition of the search's graph, played once with the shipped instances beside it
//! (`tied`).
//!
//! The graph is explored as the search does it, and covered with walks from the start; those with
//! the most transitions of their own come first.
//!
//! Every change plays the whole graph without a fault, and the first ticks of the graph with one.
//! `TOUR_FAULTS`, `TOUR_LAST_FAULT` and `TOUR_TICKS` move the bound as `SEARCH_FAULTS` etc. do;
//! `TOUR_PART=2/8` plays the second of eight parts of the walks, and `TOUR_FROM` starts after the
//! walk of that number.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::model::explore::{Quickly, Space};
use super::model::interned::{Interned, TICK};
use super::model::steps::Step;
use super::model::world::World;
use super::model::{Bound, Search, State};
use super::tied::{LeftOut, Owes, Plan, Walk, explain, left_out};
use super::{number, print};

/// Walks that part; more would show the same.
const PARTINGS: usize = 6;

/// A transition of the search, with the two instances in its state's order.
#[derive(Clone, Copy, Debug)]
struct Transition {
    step: Step,
    to: u32,
    /// The target state has the two instances in the other order.
    is_turned: bool,
    /// Debt of the step's supervisor, if it owed nothing before.
    owes: Option<Owes>,
    left_out: Option<LeftOut>,
}

struct Whole {
    by_key: HashMap<[u64; 2], u32, Quickly>,
    states: Vec<State>,
    transitions: Vec<Transition>,
    first: Vec<u32>,
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("fewer of them")
}

impl Whole {
    fn explore(search: &mut Search) -> Whole {
        let first = search.first();
        let first = search.place(&first).0;
        let mut whole = Whole {
            by_key: HashMap::default(),
            states: Vec::new(),
            transitions: Vec::new(),
            first: vec![0],
        };
        whole.number(search, first);
        let mut at = 0;
        while let Some(state) = whole.states.get(at).copied() {
            let world = search.unpack(&state);
            let begin = whole.transitions.len();
            for next in search.next(&world) {
                let step = next.step;
                // Either of two twins may do it: one is enough. A process with both SIGTERM and
                // SIGKILL ends in two ways that are one step.
                let is_known = |known: &Transition| known.step == step;
                if state.is_of_twins() && step.whose() == Some(1)
                    || whole.transitions[begin..].iter().any(is_known)
                {
                    continue;
                }
                let (to, is_turned) = search.place(&next.world);
                let owes = Owes::after([Owes::Nothing; 2], search, &next);
                whole.transitions.push(Transition {
                    step,
                    to: 0,
                    is_turned,
                    owes: owes.into_iter().find(|owes| *owes != Owes::Nothing),
                    left_out: left_out(&world, step),
                });
                let to = whole.number(search, to);
                whole.transitions.last_mut().expect("it is there").to = to;
            }
            whole.first.push(small(whole.transitions.len()));
            at += 1;
        }
        whole
    }

    fn number(&mut self, search: &Search, state: State) -> u32 {
        let next = small(self.states.len());
        let number = *self.by_key.entry(search.key(&state)).or_insert(next);
        if number == next {
            self.states.push(state);
        }
        number
    }
}

/// Place of the tour: a state, and the debts of its supervisors.
type Place = (u32, [Owes; 2]);

#[derive(Clone, Copy, Debug)]
struct Edge {
    from: u32,
    to: u32,
    /// The step, with the two instances in the place's order.
    step: Step,
    of: u32,
}

/// The part of the search's graph that can be played.
struct Graph {
    search: Search,
    bound: Bound,
    /// Edges, grouped by the place they leave.
    edges: Vec<Edge>,
    first: Vec<usize>,
    /// Number of the search's transitions; `states` counts the states they leave.
    transitions: usize,
    states: usize,
    /// Counts of the reasons for which transitions are not played.
    left_out: BTreeMap<Option<LeftOut>, usize>,
}

/// Number of times that each edge is still to be taken; whether it is a back edge.
struct Flows {
    flows: Vec<u32>,
    is_back: Vec<bool>,
}

/// Whether the world has the instances in the other order than the numbered state.
fn is_turned(search: &mut Search, world: &World, owes: [Owes; 2]) -> bool {
    let (state, is_turned) = search.place(world);
    is_turned || state.is_of_twins() && owes[0] > owes[1]
}

fn turned(owes: [Owes; 2], is_turned: bool) -> [Owes; 2] {
    let [one, other] = owes;
    if is_turned { [other, one] } else { owes }
}

impl Graph {
    fn explore(bound: Bound) -> Graph {
        let mut search = Search::new(bound, Interned::new(1, TICK), None);
        let whole = Whole::explore(&mut search);
        let mut numbers: HashMap<Place, u32> = HashMap::new();
        let mut places: Vec<Place> = vec![(0, [Owes::Nothing; 2])];
        numbers.insert(places[0], 0);
        let (mut edges, mut first) = (Vec::new(), vec![0]);
        // Whether each transition is played; else why not (`None`: unreachable).
        let mut is_played = vec![false; whole.transitions.len()];
        let mut why = vec![None; whole.transitions.len()];
        let mut at = 0;
        while let Some((state, owes)) = places.get(at).copied() {
            let of_state = &whole.states[state as usize];
            let (from, to) = (whole.first[state as usize], whole.first[state as usize + 1]);
            for of in from..to {
                let transition = whole.transitions[of as usize];
                // One of two twins can do what the other can, unless they owe different things.
                let both = of_state.is_of_twins() && owes[0] != owes[1];
                let is_one_s = transition.step.whose().is_some();
                for is_other in [false, true] {
                    if is_other && !(both && is_one_s) {
                        continue;
                    }
                    let mut step = transition.step;
                    if is_other {
                        step = step.of_the_other();
                    }
                    let left_out = transition.left_out.or_else(|| {
                        let whose = step.whose();
                        let lets = whose.is_none_or(|p| owes[p].lets(step));
                        (!lets).then_some(LeftOut::Between)
                    });
                    if left_out.is_some() {
                        why[of as usize] = why[of as usize].max(left_out);
                        continue;
                    }
                    is_played[of as usize] = true;
                    let mut owes = owes;
                    if let Some(p) = step.whose() {
                        match (transition.owes, step) {
                            (Some(now), _) => owes[p] = now,
                            (None, Step::Supervises(_)) => owes[p] = Owes::Nothing,
                            _ => {}
                        }
                    }
                    let owes = turned(owes, transition.is_turned != is_other);
                    let is_twins = whole.states[transition.to as usize].is_of_twins();
                    let owes = turned(owes, is_twins && owes[0] > owes[1]);
                    let place = (transition.to, owes);
                    let next = small(places.len());
                    let to = *numbers.entry(place).or_insert(next);
                    if to == next {
                        places.push(place);
                    }
                    edges.push(Edge {
                        from: small(at),
                        to,
                        step,
                        of,
                    });
                }
            }
            first.push(edges.len());
            at += 1;
        }
        let mut left_out = BTreeMap::new();
        for (why, _) in why
            .iter()
            .zip(is_played)
            .filter(|(_, is_played)| !is_played)
        {
            *left_out.entry(*why).or_insert(0) += 1;
        }
        Graph {
            search,
            bound,
            edges,
            first,
            transitions: whole.transitions.len(),
            states: whole.states.len(),
            left_out,
        }
    }

    fn of(&self, at: usize) -> std::ops::Range<usize> {
        self.first[at]..self.first[at + 1]
    }

    /// Returns the places in postorder, and the back edges: those to a place from which their own
    /// can be reached.
    fn depth_first(&self) -> (Vec<usize>, Vec<bool>) {
        let count = self.first.len() - 1;
        let mut order = Vec::with_capacity(count);
        let mut is_back = vec![false; self.edges.len()];
        let mut is_met = vec![false; count];
        let mut is_done = vec![false; count];
        let mut way = vec![(0, self.of(0))];
        is_met[0] = true;
        while let Some((at, rest)) = way.last_mut() {
            let Some(edge) = rest.next() else {
                is_done[*at] = true;
                order.push(*at);
                way.pop();
                continue;
            };
            let to = self.edges[edge].to as usize;
            is_back[edge] = is_met[to] && !is_done[to];
            if !std::mem::replace(&mut is_met[to], true) {
                way.push((to, self.of(to)));
            }
        }
        (order, is_back)
    }

    /// Number of times that each edge is taken, so that every transition is taken and all walks
    /// begin at the start. A back edge ends its walk, unless it is a loop.
    fn flows(&self) -> Flows {
        let (order, is_back) = self.depth_first();
        let mut flows = vec![0_u32; self.edges.len()];
        let mut is_known = vec![false; self.transitions];
        for (edge, flow) in self.edges.iter().zip(&mut flows) {
            if !std::mem::replace(&mut is_known[edge.of as usize], true) {
                *flow = 1;
            }
        }
        let mut first = vec![0; self.first.len() + 1];
        let forward = || (0..self.edges.len()).filter(|edge| !is_back[*edge]);
        for edge in forward() {
            first[self.edges[edge].to as usize + 2] += 1;
        }
        for at in 2..first.len() {
            first[at] += first[at - 1];
        }
        let mut into = vec![0; first[first.len() - 1]];
        let mut come = vec![0_i64; self.first.len()];
        for edge in forward() {
            let to = self.edges[edge].to as usize;
            into[first[to + 1]] = edge;
            first[to + 1] += 1;
            come[to] += i64::from(flows[edge]);
        }
        let needed = |flows: &[u32], at: usize| -> i64 {
            let leaves = |edge: &usize| self.edges[*edge].to as usize != at;
            let stays = self.of(at).any(|edge| !leaves(&edge) && flows[edge] > 0);
            let leave = self
                .of(at)
                .filter(leaves)
                .map(|edge| i64::from(flows[edge]));
            leave.sum::<i64>().max(stays.into())
        };
        for at in order {
            let into = &into[first[at]..first[at + 1]];
            let mut more = needed(&flows, at) - come[at];
            // Where more walks come in than go out, some continue here.
            for edge in into {
                let from = self.edges[*edge].from as usize;
                let spare = (come[from] - needed(&flows, from)).clamp(0, more.max(0));
                flows[*edge] += u32::try_from(spare).expect("few walks");
                more -= spare;
            }
            if let (Some(edge), 1..) = (into.first(), more) {
                flows[*edge] += u32::try_from(more).expect("few walks");
            }
        }
        Flows { flows, is_back }
    }

    fn walk(&self, Flows { flows, is_back }: &mut Flows) -> Vec<u32> {
        let mut way = Vec::new();
        let mut at = 0;
        loop {
            let stays = |edge: &usize| self.edges[*edge].to as usize == at;
            for edge in self.of(at).filter(stays) {
                if std::mem::take(&mut flows[edge]) > 0 {
                    way.push(small(edge));
                }
            }
            let open = self.of(at).filter(|edge| flows[*edge] > 0);
            let Some(edge) = open.max_by_key(|edge| flows[*edge]) else {
                return way;
            };
            flows[edge] -= 1;
            way.push(small(edge));
            if is_back[edge] {
                return way;
            }
            at = self.edges[edge].to as usize;
        }
    }

    /// Returns all walks, first those with the most transitions of their own.
    fn walks(&self, flows: &mut Flows) -> Vec<Vec<u32>> {
        let whole = flows.flows.clone();
        let mut walks = Vec::new();
        loop {
            let way = self.walk(flows);
            if way.is_empty() {
                break;
            }
            let new = way.iter().filter(|edge| whole[**edge as usize] == 1);
            walks.push((new.count() * 1000 / way.len(), way));
        }
        walks.sort_by_key(|(new, _)| std::cmp::Reverse(*new));
        walks.into_iter().map(|(_, way)| way).collect()
    }

    fn play(
        &mut self,
        way: &[u32],
        contained: bool,
        is_played: &mut [bool],
    ) -> Result<(), (Plan, Vec<Step>, String)> {
        let nothing = Search::new(self.bound, Interned::new(1, TICK), None);
        let search = std::mem::replace(&mut self.search, nothing);
        let plan = Plan {
            bound: self.bound,
            attempt: TICK,
            contained,
            faults: 0,
            stops: 1,
        };
        let mut walk = Walk::of(plan, search);
        let mut parts = Ok(());
        for edge in way {
            let edge = self.edges[*edge as usize];
            let step = match is_turned(&mut walk.search, &walk.world, walk.owes) {
                true => edge.step.of_the_other(),
                false => edge.step,
            };
            let next = walk.search.after(&walk.world, step);
            parts = walk.take(next.expect("a transition of the search"));
            if parts.is_err() {
                break;
            }
            is_played[edge.of as usize] = true;
        }
        self.search = walk.search;
        parts.map_err(|why| (plan, walk.way, why))
    }
}

impl Graph {
    /// Describes the deeds of a walk that parts, using the search that all walks share.
    fn replay(&mut self, plan: Plan, way: &[Step]) -> String {
        let nothing = Search::new(self.bound, Interned::new(1, TICK), None);
        let mut walk = Walk::of(plan, std::mem::replace(&mut self.search, nothing));
        walk.trace = Some(Vec::new());
        for step in way {
            let next = walk.search.after(&walk.world, *step);
            if walk.take(next.expect("the same again")).is_err() {
                break;
            }
        }
        self.search = walk.search;
        walk.trace.unwrap_or_default().join("\n")
    }
}

fn part() -> (usize, usize) {
    let part = std::env::var("TOUR_PART").unwrap_or_default();
    let numbers = part.split_once('/').and_then(|(part, of)| {
        let of: usize = of.parse().ok()?;
        let part: usize = part.parse().ok()?;
        (1..=of).contains(&part).then_some((part - 1, of))
    });
    assert!(part.is_empty() || numbers.is_some(), "TOUR_PART={part}");
    numbers.unwrap_or((0, 1))
}

/// Bounds of what every change plays: all histories without a fault, and the first ticks of those
/// with one.
const FOR_EVERY_CHANGE: [(u8, u8, u8); 2] = [(0, 4, 14), (1, 0, 3)];

#[test]
fn every_transition_is_what_ships_does() {
    let of = |name: &str, otherwise: u8| {
        u8::try_from(number(name, u64::from(otherwise))).expect("a small number")
    };
    let bound = |faults, last_fault, ticks| Bound {
        last_fault,
        ticks,
        ..Bound::of(faults)
    };
    if std::env::var_os("TOUR_FAULTS").is_none() {
        for (faults, last_fault, ticks) in FOR_EVERY_CHANGE {
            tour(bound(faults, last_fault, ticks), (0, 1));
        }
        return;
    }
    let usual = Bound::of(of("TOUR_FAULTS", 0));
    let last_fault = of("TOUR_LAST_FAULT", usual.last_fault);
    let ticks = of("TOUR_TICKS", usual.ticks);
    tour(bound(usual.faults, last_fault, ticks), part());
}

fn tour(bound: Bound, (part, parts): (usize, usize)) {
    let began = Instant::now();
    let mut graph = Graph::explore(bound);
    let played = graph.transitions - graph.left_out.values().sum::<usize>();
    print(&format!(
        "tour: {} transitions of {} states to {bound:?}; {played} can be played (not: {:?}), from {} places; after \
         {:.1} s\n",
        graph.transitions,
        graph.states,
        graph.left_out,
        graph.first.len() - 1,
        began.elapsed().as_secs_f64()
    ));
    let mut rest = graph.flows();
    let sum = |flows: &[u32]| flows.iter().map(|flow| u64::from(*flow)).sum::<u64>();
    print(&format!(
        "tour: {} walks of {} steps; {} transitions lead back; after {:.1} s\n",
        sum(&rest.flows[graph.of(0)]),
        sum(&rest.flows),
        rest.is_back.iter().filter(|is| **is).count(),
        began.elapsed().as_secs_f64()
    ));
    let walks = graph.walks(&mut rest);
    let from = usize::try_from(number("TOUR_FROM", 0)).expect("a number of a walk");
    let mut is_played = vec![false; graph.transitions];
    let (mut number_of, mut taken, mut partings) = (0, 0, 0);
    let mut said = Instant::now();
    for way in &walks {
        if partings == PARTINGS {
            break;
        }
        number_of += 1;
        if number_of <= from || number_of % parts != part {
            continue;
        }
        taken += way.len();
        let contained = number_of / parts % 2 == 1;
        if let Err((plan, way, why)) = graph.play(way, contained, &mut is_played) {
            let why = explain(plan, &way, why);
            print(&format!("{}\n{why}\n", graph.replay(plan, &way)));
            partings += 1;
        }
        if said.elapsed().as_secs() >= 60 {
            said = Instant::now();
            let of = is_played.iter().filter(|is| **is).count();
            print(&format!(
                "tour: walk {number_of}, {taken} steps, {of} transitions\n"
            ));
        }
    }
    let of = is_played.iter().filter(|is| **is).count();
    print(&format!(
        "tour: part {} of {parts}: {of} transitions played in {taken} steps of {number_of} walks, in {:.1} s\n",
        part + 1,
        began.elapsed().as_secs_f64()
    ));
    assert_eq!(partings, 0, "the model parts from what ships");
    let is_whole = parts == 1 && from == 0;
    assert!(!is_whole || of == played, "{of} of {played} were played");
}
