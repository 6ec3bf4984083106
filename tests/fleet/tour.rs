//! Every transition of the search's graph, played once with what ships beside it (`tied`).
//!
//! The graph is explored as the search does it, with all that can be played of it. Then the walks are laid
//! through it: each begins at the start, and each transition is on one of them; where several ways lead to
//! one that has many behind it, the walks come by the shortest.
//!
//! Without a fault it is the whole graph in a few seconds. `TOUR_FAULTS`, `TOUR_LAST_FAULT` and
//! `TOUR_TICKS` move the bound as `SEARCH_FAULTS` and its like do for the search; `TOUR_PART=2/8` plays the second of eight
//! parts of the walks; `TOUR_SLOW=1` gives an attempt more than a tick. Built for the long run as
//! tests/README.md says.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::model::explore::{Quickly, Space};
use super::model::interned::{Interned, TICK};
use super::model::steps::Step;
use super::model::world::World;
use super::model::{Bound, Search, State};
use super::tied::{LeftOut, Owes, Plan, Walk, left_out, shrink};
use super::{number, print};

/// After so many walks that part the rest would say the same.
const PARTINGS: usize = 6;

/// A transition of the search, as its state has its two instances.
#[derive(Clone, Copy, Debug)]
struct Transition {
    step: Step,
    to: u32,
    /// There they are the other way round.
    is_turned: bool,
    /// What its supervisor owes then, if this is what it comes by.
    owes: Option<Owes>,
    left_out: Option<LeftOut>,
}

/// All of them, each state's together.
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
                // Of twins it is all the same which of them does it; and what is both asked to end and killed
                // ends in two ways that are one.
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
                    left_out: left_out(search, &world, step),
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

/// What the tour can be at: a state, and what its supervisors still owe.
type Place = (u32, [Owes; 2]);

/// A transition from one of them.
#[derive(Clone, Copy, Debug)]
struct Edge {
    from: u32,
    to: u32,
    /// As the place has its two instances.
    step: Step,
    /// Which transition of the search it is.
    of: u32,
}

/// The search's graph, as far as it can be played.
struct Graph {
    search: Search,
    bound: Bound,
    /// Those from one place lie together.
    edges: Vec<Edge>,
    first: Vec<usize>,
    /// How many transitions the search has, from how many states.
    transitions: usize,
    states: usize,
    /// Why those that are not played anywhere are not.
    left_out: BTreeMap<Option<LeftOut>, usize>,
}

/// Whether the instances of a world are the other way round where they are numbered.
fn is_turned(search: &mut Search, world: &World, owes: [Owes; 2]) -> bool {
    let (state, is_turned) = search.place(world);
    is_turned || state.is_of_twins() && owes[0] > owes[1]
}

fn turned(owes: [Owes; 2], is_turned: bool) -> [Owes; 2] {
    let [one, other] = owes;
    if is_turned { [other, one] } else { owes }
}

impl Graph {
    fn explore(bound: Bound, attempt: Duration) -> Graph {
        let mut search = Search::new(bound, Interned::new(1, attempt), None);
        let whole = Whole::explore(&mut search);
        let mut numbers: HashMap<Place, u32> = HashMap::new();
        let mut places: Vec<Place> = vec![(0, [Owes::Nothing; 2])];
        numbers.insert(places[0], 0);
        let (mut edges, mut first) = (Vec::new(), vec![0]);
        // Played, or not to be reached, or why not.
        let mut is_played = vec![false; whole.transitions.len()];
        let mut why = vec![None; whole.transitions.len()];
        let mut at = 0;
        while let Some((state, owes)) = places.get(at).copied() {
            let of_state = &whole.states[state as usize];
            let (from, to) = (whole.first[state as usize], whole.first[state as usize + 1]);
            for of in from..to {
                let transition = whole.transitions[of as usize];
                // What one of twins can do the other can, too, and that is another thing if it owes another.
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

    /// How often each of them is taken, so that each transition of the search is taken at least once and
    /// all walks begin at the start.
    fn flows(&self) -> Vec<u32> {
        let count = self.first.len() - 1;
        let mut flows = vec![0_u32; self.edges.len()];
        let mut is_known = vec![false; self.transitions];
        // As many as there are, from the last to the first: what owes something comes late.
        for (edge, flow) in self.edges.iter().zip(&mut flows) {
            if !std::mem::replace(&mut is_known[edge.of as usize], true) {
                *flow = 1;
            }
        }
        let mut into: Vec<Vec<u32>> = vec![Vec::new(); count];
        let mut waits = vec![0_u32; count];
        let mut come = vec![0_i64; count];
        for (at, edge) in self.edges.iter().enumerate() {
            into[edge.to as usize].push(u32::try_from(at).expect("fewer of them"));
            waits[edge.from as usize] += 1;
            come[edge.to as usize] += i64::from(flows[at]);
        }
        let sum = |flows: &[u32], at: usize| -> i64 {
            let of = &flows[self.first[at]..self.first[at + 1]];
            of.iter().map(|flow| i64::from(*flow)).sum()
        };
        // Those first from which nothing leads on.
        let mut due: Vec<usize> = (0..count).filter(|at| waits[*at] == 0).collect();
        let mut done = 0;
        while let Some(at) = due.pop() {
            done += 1;
            let mut more = sum(&flows, at) - come[at];
            // Where more come than go on, some of them go on here.
            for edge in &into[at] {
                let from = self.edges[*edge as usize].from as usize;
                let spare = (come[from] - sum(&flows, from)).clamp(0, more.max(0));
                flows[*edge as usize] += u32::try_from(spare).expect("few walks");
                more -= spare;
            }
            if let (Some(edge), 1..) = (into[at].first(), more) {
                flows[*edge as usize] += u32::try_from(more).expect("few walks");
            }
            for edge in &into[at] {
                let from = self.edges[*edge as usize].from as usize;
                waits[from] -= 1;
                if waits[from] == 0 {
                    due.push(from);
                }
            }
        }
        assert_eq!(done, count, "time goes forward only");
        flows
    }

    /// The next walk, if there is one more.
    fn walk(&self, flows: &mut [u32]) -> Vec<u32> {
        let mut way = Vec::new();
        let mut at = 0;
        loop {
            let of = self.first[at]..self.first[at + 1];
            let Some(edge) = of
                .filter(|edge| flows[*edge] > 0)
                .max_by_key(|edge| flows[*edge])
            else {
                return way;
            };
            flows[edge] -= 1;
            way.push(u32::try_from(edge).expect("fewer of them"));
            at = self.edges[edge].to as usize;
        }
    }

    /// Plays a walk, to its end or to where what ships parts from it.
    fn play(
        &mut self,
        way: &[u32],
        contained: bool,
        is_played: &mut [bool],
    ) -> Result<(), (Walk, String)> {
        let nothing = Search::new(self.bound, Interned::new(1, TICK), None);
        let search = std::mem::replace(&mut self.search, nothing);
        let plan = Plan {
            bound: self.bound,
            attempt: search.attempt(),
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
            let next = walk.search.next(&walk.world);
            let next = next.into_iter().find(|next| next.step == step);
            parts = walk.take(next.expect("a transition of the search"));
            if parts.is_err() {
                break;
            }
            is_played[edge.of as usize] = true;
        }
        if let Err(why) = parts {
            // Another search is as good for what follows, and this one is the walk's.
            self.search = Search::new(self.bound, Interned::new(1, plan.attempt), None);
            return Err((walk, why));
        }
        self.search = walk.search;
        Ok(())
    }
}

/// Which of how many parts.
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

#[test]
fn every_transition_is_what_ships_does() {
    let of = |name: &str, otherwise: u8| {
        u8::try_from(number(name, u64::from(otherwise))).expect("a small number")
    };
    let bound = Bound::of(of("TOUR_FAULTS", 0));
    let bound = Bound {
        last_fault: of("TOUR_LAST_FAULT", bound.last_fault),
        ticks: of("TOUR_TICKS", bound.ticks),
        ..bound
    };
    let attempt = match number("TOUR_SLOW", 0) {
        0 => TICK,
        _ => TICK * 5 / 3,
    };
    let began = Instant::now();
    let mut graph = Graph::explore(bound, attempt);
    let flows = graph.flows();
    let steps: u64 = flows.iter().map(|flow| u64::from(*flow)).sum();
    let walks: u64 = (graph.first[0]..graph.first[1])
        .map(|at| u64::from(flows[at]))
        .sum();
    let played = graph.transitions - graph.left_out.values().sum::<usize>();
    print(&format!(
        "tour: {} transitions of {} states to {bound:?}; {played} can be played (not: {:?}), from {} places, by {walks} \
         walks of {steps} steps; after {:.1} s\n",
        graph.transitions,
        graph.states,
        graph.left_out,
        graph.first.len() - 1,
        began.elapsed().as_secs_f64()
    ));
    let (part, parts) = part();
    let mut rest = flows;
    let mut is_played = vec![false; graph.transitions];
    let (mut number_of, mut taken, mut partings) = (0, 0, 0);
    let mut said = Instant::now();
    loop {
        let way = graph.walk(&mut rest);
        if way.is_empty() || partings == PARTINGS {
            break;
        }
        number_of += 1;
        if number_of % parts != part {
            continue;
        }
        taken += way.len();
        let contained = number_of / parts % 2 == 1;
        if let Err((walk, why)) = graph.play(&way, contained, &mut is_played) {
            let of = walk.way.len();
            let (walk, why) = shrink(walk, why);
            print(&format!(
                "{}\n{why}\n{} of {of} steps are needed\n",
                walk.trace.unwrap_or_default().join("\n"),
                walk.way.len(),
            ));
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
    assert!(parts > 1 || of == played, "{of} of {played} were played");
}
