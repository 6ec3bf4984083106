//! A helper's store in the world: its judge, its faults, and operators with the shipped `break`.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, Once};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use trafficcop_core::clock::SimulatedClock;
use trafficcop_core::observed::SHORTEST_LEASE;
use trafficcop_lease::NamedLock as _;
use trafficcop_lease::helper::{Calls, HelperLock};
use trafficcop_lease::inspect::{BreakResult, LockState};

use super::adversary::{Deed, Place, Schedule};
use super::caller::Caller;
use super::clock::{MILLI, SECOND};
use super::drive::{Making, OPERATOR};
use super::operator::{Operator, at};
use super::pair::Lock;
use super::shelf::Shelf;
use super::supervisor::competitor;
use super::world::World;

pub(crate) fn entry() -> HelperLock {
    // The program is never run.
    HelperLock::new("/bin/sh", "fleet", None).expect("a program")
}

/// Acquires an entry in a store without weather, once. In one process only the first instance checks
/// that its helper compares tags; here no schedule has it, so each is always played alike.
fn prove_once() {
    static PROVEN: Once = Once::new();
    PROVEN.call_once(|| {
        let mut calm = Schedule::of_store(0);
        (calm.acts, calm.staleness) = (Vec::new(), 0);
        let shelf = Arc::new(Mutex::new(Shelf::new(&calm, false)));
        let clock: Rc<SimulatedClock> = Rc::default();
        clock.carry(Arc::new(calls(caller(&shelf, &calm, 0, 0))));
        let store = entry().open(&competitor(0, SHORTEST_LEASE));
        let store = store.expect("an entry");
        let mut acquired = store.acquire(trafficcop::Instant::FOREVER);
        let mut context = Context::from_waker(Waker::noop());
        for now in (0..SECOND).step_by(usize::try_from(MILLI).expect("small")) {
            shelf.lock().expect("whole").go_on(now);
            let polled = clock.enter(at(now), Duration::ZERO, || {
                acquired.as_mut().poll(&mut context)
            });
            if let Poll::Ready(granted) = polled {
                granted.expect("control");
                return;
            }
        }
        panic!("no control within a second");
    });
}

pub(crate) fn make_shelf(schedule: &Schedule, tracing: bool) -> Option<Arc<Mutex<Shelf>>> {
    if schedule.place != Place::Store {
        return None;
    }
    prove_once();
    Some(Arc::new(Mutex::new(Shelf::new(schedule, tracing))))
}

fn caller(
    shelf: &Arc<Mutex<Shelf>>,
    schedule: &Schedule,
    machine: usize,
    process: usize,
) -> Caller {
    Caller {
        shelf: Arc::clone(shelf),
        acts: schedule.acts.clone(),
        machine,
        process,
        memory: Arc::default(),
    }
}

fn calls(caller: Caller) -> Box<dyn Calls> {
    Box::new(caller)
}

impl World {
    /// Asks about the versions made so far, if the lock is a chain of versions.
    pub(crate) fn makings<T>(&self, ask: impl FnOnce(&[Making]) -> T) -> Option<T> {
        match (&self.drive, &self.shelf) {
            (Some(drive), _) => Some(ask(&drive.lock().expect("whole").makings)),
            (_, Some(shelf)) => Some(ask(&shelf.lock().expect("whole").makings)),
            _ => None,
        }
    }

    /// Returns the maker of the last version in a chain, if the lock is one.
    pub(crate) fn last_maker(&self) -> Option<Option<usize>> {
        if let Some(drive) = &self.drive {
            let drive = drive.lock().expect("whole");
            return Some(drive.greatest().and_then(|last| drive.maker(last)));
        }
        self.makings(|makings| makings.last().map(|made| made.by))
    }

    pub(crate) fn entry_of(
        &self,
        shelf: &Arc<Mutex<Shelf>>,
        machine: usize,
        runtime: PathBuf,
    ) -> Lock {
        let _ = std::fs::create_dir(&runtime);
        let caller = caller(shelf, &self.schedule, machine, self.pairs.len());
        let memory = Arc::clone(&caller.memory);
        Lock::Store {
            runtime,
            calls: Arc::new(calls(caller)),
            memory,
        }
    }

    /// Lets the store carry out the calls that have arrived, and judges the new versions. Late writes
    /// without a caller must keep the rules, too: only their tag protects the entry.
    pub(crate) fn shelf_goes_on(&mut self) {
        let Some(shelf) = self.shelf.clone() else {
            return;
        };
        let shelf = &mut *shelf.lock().expect("whole");
        shelf.go_on(self.now);
        for (at, text) in shelf.trace.iter_mut().flat_map(std::mem::take) {
            let seconds = at as f64 / 1e9;
            let trace = self.trace.as_mut().expect("it is kept");
            trace.push(format!("{seconds:>9.3} {text}"));
        }
        let new = self.makings..shelf.makings.len();
        self.makings = new.end;
        for at in new {
            let made = shelf.makings[at];
            if made.by >= OPERATOR {
                shelf.count("broken by an operator");
                self.note_the_break(&shelf.makings, made);
                continue;
            }
            let pair = &self.pairs[made.by];
            if pair.on_orphaned.is_some() {
                shelf.count("given back by a guardian");
            }
            if made.releases && pair.tree_lives() {
                self.violate(format!("#{} gives back while its tree lives", made.by));
            }
            let Some(before) = at.checked_sub(1).map(|before| shelf.makings[before]) else {
                continue;
            };
            if made.version <= before.version {
                let (version, last) = (made.version, before.version);
                self.violate(format!("version {version} follows version {last}"));
            }
            self.judge_what_was_made(made, before);
        }
    }

    pub(crate) fn act_on_the_store(&mut self, deed: Deed) {
        let Some(shelf) = &self.shelf else { return };
        let mut shelf = shelf.lock().expect("whole");
        match deed {
            Deed::Stale(machine, back, span) => {
                shelf.views[machine] = (self.now.saturating_sub(back), self.now + span);
            }
            Deed::Torn(span) => shelf.torn_until = self.now + span,
            _ => unreachable!("it is no store's"),
        }
    }

    pub(crate) fn break_in_the_store(&mut self, period: Option<Duration>) {
        let Some(shelf) = &self.shelf else { return };
        // The command takes no other values.
        let period = period.map(|period| match period {
            Duration::ZERO => period,
            period => period.max(SHORTEST_LEASE),
        });
        let clock: Rc<SimulatedClock> = Rc::default();
        let process = OPERATOR + self.operators.len();
        let caller = caller(shelf, &self.schedule, self.machines.len(), process);
        clock.carry(Arc::new(calls(caller)));
        clock.seed(self.schedule.seed ^ self.now);
        let seconds = period.map(|period| u8::try_from(period.as_secs()).expect("a minute"));
        let work = async move {
            let inspector = entry().inspector().expect("an inspector");
            for _ in 0..3 {
                let end = trafficcop::Instant::now() + Duration::from_secs(10);
                let Ok(seen) = inspector.look(end).await else {
                    return;
                };
                let held = seen.state == LockState::Held && seen.record.is_some();
                if !held
                    || inspector.break_lease(seen, seconds, "an operator").await
                        != Ok(BreakResult::Overtaken)
                {
                    return;
                }
            }
        };
        self.operators.push(Operator {
            clock,
            period,
            work: Some(Box::pin(work)),
        });
        self.operate(self.operators.len() - 1);
    }

    pub(crate) fn go_on_breaking(&mut self, number: usize) {
        let operator = &mut self.operators[number];
        let clock = Rc::clone(&operator.clock);
        let mut context = Context::from_waker(Waker::noop());
        clock.enter(at(self.now), Duration::ZERO, || {
            let work = operator.work.as_mut();
            if work.is_some_and(|work| work.as_mut().poll(&mut context).is_ready()) {
                operator.work = None;
            }
        });
    }
}
