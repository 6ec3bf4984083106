//! Operators on a shared drive, with the shipped `break` or by hand; and what the world learns of
//! versions there.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use trafficcop::Instant;
use trafficcop::internals::signals::SignalEvent;
use trafficcop_core::clock::{SimulatedClock, start_thread};
use trafficcop_core::observed::SHORTEST_LEASE;
use trafficcop_lease::inspect::{BreakResult as Answer, LockState};
use trafficcop_lease::shared_file::{break_lock, look};

use super::clock::Time;
use super::drive::{Making, OPERATOR};
use super::mount::Mount;
use super::store::Id;
use super::world::{Broken, Happening, Others, World};

/// A command on a machine of its own.
pub(crate) struct Operator {
    pub(crate) clock: Rc<SimulatedClock>,
    /// Time until others may have control; `None`: when the lease ends.
    pub(crate) period: Option<Duration>,
    /// Work that no thread of its own does.
    pub(crate) work: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// Makes the range of lease ids of a tenure on a shared drive: from its first version, and how
/// often the lock had been removed before.
pub(crate) fn lease_id(era: u64, token: u64) -> Id {
    era << 32 | token
}

pub(crate) fn era_and_token(lease: Id) -> (u64, u64) {
    (lease >> 32, lease & 0xFFFF_FFFF)
}

impl World {
    pub(crate) fn drive_goes_on(&mut self) {
        if let Some(drive) = &self.drive {
            drive.lock().expect("whole").go_on(self.now);
        }
    }

    pub(crate) fn look_at_the_drive(&mut self) {
        let Some(drive) = self.drive.clone() else {
            return;
        };
        let drive = &mut *drive.lock().expect("whole");
        for (at, text) in drive.trace.iter_mut().flat_map(std::mem::take) {
            let seconds = at as f64 / 1e9;
            let trace = self.trace.as_mut().expect("it is kept");
            trace.push(format!("{seconds:>9.3} {text}"));
        }
        for (by, version) in std::mem::take(&mut drive.forged) {
            self.violate(format!(
                "#{by} writes of version {version}, which it did not make"
            ));
        }
        let new = self.makings..drive.makings.len();
        self.makings = drive.makings.len();
        for at in new {
            let made = drive.makings[at];
            if made.by >= OPERATOR {
                drive.count("broken by an operator");
                self.note_the_break(&drive.makings, made);
                continue;
            }
            if self.pairs[made.by].on_orphaned.is_some() {
                drive.count("given back by a guardian");
            }
            if made.goes_on_from_nothing && !made.by_nobody {
                self.violate(format!(
                    "#{} makes version {} after its own version, which has none before it",
                    made.by, made.version
                ));
            }
            // Made by an old view: no part of the chain. If it gave control, an overlap shows that.
            let is_behind = |it: &Making| it.era == made.era && it.version > made.version;
            if drive.makings[..at].iter().any(is_behind) {
                continue;
            }
            // Also made by an old view, of a lock that was removed and made again while in use,
            // which the rules for operators exclude.
            if made.era > 0 {
                continue;
            }
            if let Some(before) = drive.before(&made).filter(|_| !made.by_nobody) {
                self.judge_what_was_made(made, before);
            }
        }
    }

    pub(crate) fn note_the_break(&mut self, makings: &[Making], made: Making) {
        let period = self.operators[made.by - OPERATOR].period;
        let mut makings = makings.iter().rev();
        // A version after another operator's, who had broken the lease before, ends the same
        // tenure.
        let before = makings.find(|it| {
            it.version < made.version && it.era == made.era && it.by < OPERATOR && !it.by_nobody
        });
        if let Some(before) = before {
            self.broken.push(Broken {
                leases: lease_id(made.era, 0)..lease_id(made.era, made.version),
                of: Some(before.by),
                others: match period {
                    Some(Duration::ZERO) => Others::AtOnce,
                    Some(_) => Others::Sooner,
                    None => Others::AtTheEnd,
                },
                at: made.at,
            });
        }
    }

    pub(crate) fn break_on_the_drive(&mut self, period: Option<Duration>) {
        let (Some(drive), Some(directory)) = (&self.drive, &self.directory) else {
            return;
        };
        let path = directory.path().join("lock");
        // The command takes no other values.
        let period = period.map(|period| match period {
            Duration::ZERO => period,
            period => period.max(SHORTEST_LEASE),
        });
        let clock: Rc<SimulatedClock> = Rc::default();
        let process = OPERATOR + self.operators.len();
        clock.carry(Mount::carried(drive, self.machines.len(), process));
        clock.seed(self.schedule.seed ^ self.now);
        let work = move || {
            for _ in 0..3 {
                let seen = look(&path)
                    .ok()
                    .filter(|seen| seen.state == LockState::Held);
                let Some(record) = seen.and_then(|seen| seen.record) else {
                    return;
                };
                if break_lock(&path, &record, period, "an operator") != Ok(Answer::Overtaken) {
                    return;
                }
            }
        };
        clock.enter(at(self.now), Duration::ZERO, || {
            start_thread("break", work).expect("a thread of the simulation");
        });
        self.operators.push(Operator {
            clock,
            period,
            work: None,
        });
        self.operate(self.operators.len() - 1);
    }

    /// Ends all instances before the versions are removed: one that has seen these would take new
    /// ones with the same numbers for them (docs/files.md).
    pub(crate) fn end_all(&mut self) {
        for p in 0..self.pairs.len() {
            self.pairs[p].signals.push_back(SignalEvent::Stop(15));
            self.pairs[p].stop_asked = true;
            self.wake_supervisor(p);
        }
    }

    pub(crate) fn operate(&mut self, number: usize) {
        let clock = Rc::clone(&self.operators[number].clock);
        self.go_on_breaking(number);
        if let Some(next) = clock.next() {
            let next = next.since(at(0));
            let next = u64::try_from(next.as_nanos()).expect("short schedules");
            self.plan(next, Happening::Operator(number));
        }
    }

    pub(crate) fn delete_on_the_drive(&mut self) {
        let Some(drive) = self.drive.clone() else {
            return;
        };
        let mut drive = drive.lock().expect("whole");
        self.broken.push(Broken {
            // The next lock's leases, too: an instance that saw the old one, or has an old view,
            // goes by that.
            leases: lease_id(drive.era, 0)..Id::MAX,
            of: None,
            others: Others::AtOnce,
            at: self.now,
        });
        drive.remove_all();
        drop(drive);
        self.store.deletions += 1;
        self.end_all();
    }
}

pub(crate) fn at(time: Time) -> Instant {
    Instant::from_nanos(1_000_000_000_000 + time)
}

/// Memory where a guardian finds its dead supervisor's release information.
#[derive(Default)]
pub(crate) struct Memory(std::sync::Mutex<Option<Vec<u8>>>);

impl trafficcop_lease::SharedMemory for Memory {
    fn put(&self, bytes: &[u8]) {
        *self.0.lock().expect("whole") = Some(bytes.to_vec());
    }

    fn take(&self) -> Option<Vec<u8>> {
        self.0.lock().expect("whole").take()
    }
}
