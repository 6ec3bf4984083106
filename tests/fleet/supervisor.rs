//! The supervisor of a pair: the shipped driver over a shipped store, polled on every event.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use trafficcop::internals::driver::{Start, drive};
use trafficcop::internals::run::CommandWorkload;
use trafficcop::internals::signals::{SignalEvent, Signals};
use trafficcop_core::{Exit, Notice, Tenure};
use trafficcop_guardian::GuardianHandle;
use trafficcop_lease::blob::{Blob, BlobLock, Target};
use trafficcop_lease::file::File;
use trafficcop_lease::record::Candidate;
use trafficcop_lease::shared_file::{KeptVersions, SharedFile};
use trafficcop_lease::{Competitor, LeaseStore, NamedLock as _, SharedMemory};

use super::clock::{MILLI, SECOND, Time};
use super::handle::{Did, Handle, Watched, Watching};
use super::pair::{Drive, Life, Lock, Told};
use super::shelved::entry;
use super::wire::Network;
use super::world::{From, Happening, World};

/// Rounds in one second of true time; more are a busy loop.
const ROUNDS: u32 = 150;

pub(crate) fn competitor(p: usize, lease: Duration) -> Competitor {
    let candidate = Candidate {
        identity: p.to_string(),
        host: String::new(),
        pid: u32::try_from(p).expect("few"),
        command: String::new(),
        bell: None,
    };
    simulated(Competitor::new(candidate, lease))
}

/// Leaves no notes on this machine, and keeps fewer versions, so that older views come up.
pub(crate) fn simulated(competitor: Competitor) -> Competitor {
    Competitor {
        runtime_directories: Vec::new(),
        kept_versions: KeptVersions {
            kept_for: Duration::from_secs(60),
            kept: 6,
            removed: 12,
            pace: 3,
        },
        ..competitor
    }
}

pub(crate) fn driver(
    p: usize,
    tenure: Tenure,
    lease: Duration,
    network: &Arc<Network>,
    lock: &Lock,
    handle: &Handle,
    mut signals: Signals,
) -> Drive {
    let mut competitor = competitor(p, lease);
    let shipped: Arc<dyn LeaseStore> = match lock {
        Lock::File(path) => Arc::new(File::open(path, &competitor).expect("a file of ours")),
        Lock::Shared {
            path,
            runtime,
            memory,
            ..
        } => {
            competitor.runtime_directories = vec![runtime.join("trafficcop")];
            let memory: Arc<dyn SharedMemory> = Arc::clone(memory) as _;
            let shared = SharedFile::with_memory(path, &competitor, Some(memory));
            Arc::new(shared.expect("a path"))
        }
        Lock::Store { runtime, .. } => {
            competitor.runtime_directories = vec![runtime.join("trafficcop")];
            entry().open(&competitor).expect("an entry")
        }
        Lock::Blob => {
            let lock = BlobLock {
                target: Target::parse("locks/fleet").expect("a name"),
                account: network.account(),
                create: true,
                page_blob: None,
            };
            Arc::new(Blob::open(&lock, &competitor).expect("a lease of the service"))
        }
    };
    let store = Arc::new(Watched {
        handle: handle.clone(),
        store: shipped,
    });
    let guardian = GuardianHandle::of(Box::new(handle.clone()), Arc::default());
    let mut workload = Watching {
        handle: handle.clone(),
        workload: CommandWorkload::of_a_command(guardian, Arc::clone(&store) as _, 15),
        answers_at: None,
    };
    let mut observer = handle.clone();
    Box::pin(async move {
        let ending = drive(
            tenure,
            store,
            &mut workload,
            &mut signals,
            &mut observer,
            None,
        )
        .await;
        let cause = ending.cause.clone();
        observer.link().did.push(Did::Ended(ending));
        let workload = workload.workload;
        workload.finish(&cause, &mut signals, &mut observer).await;
    })
}

impl World {
    pub(crate) fn supervise(&mut self, p: usize) {
        let pair = &self.pairs[p];
        let machine = &self.machines[pair.machine];
        if pair.supervisor != Life::Runs || machine.suspended.is_some() {
            return;
        }
        let (now, suspended) = (machine.clock.at(self.now), machine.shown_suspended);
        self.hear(p);
        let (least, most, rarely) = self.way_to_the_drive(self.pairs[p].machine);
        let pair = &mut self.pairs[p];
        let (guardian, tree_lives) = (pair.guardian, pair.tree_lives());
        let is_fit = self.schedule.is_fit(pair.machine, self.now);
        {
            let mut link = pair.handle.link();
            (link.guardian, link.tree_lives) = (guardian, tree_lives);
            link.is_fit = is_fit;
        }
        let Some(drive) = &mut pair.drive else { return };
        let clock = Rc::clone(&pair.clock);
        if std::mem::take(&mut pair.lock_may_be_free) {
            clock.wake_threads();
        }
        clock.travel(least, most, rarely);
        let mut context = Context::from_waker(Waker::noop());
        let polled = clock.enter(now, suspended, || drive.as_mut().poll(&mut context));
        self.count_rounds(p, clock.sleeps());
        if clock.has_done_something() {
            self.lock_may_be_free();
        }
        let did = std::mem::take(&mut self.pairs[p].handle.link().did);
        for did in did {
            if self.violation.is_some() {
                return;
            }
            self.did(p, did);
        }
        self.send(p, From::Supervisor);
        match polled {
            Poll::Ready(()) => {
                self.pairs[p].drive = None;
                clock.end_threads();
                self.lock_may_be_free();
                self.plan(self.now, Happening::Guardian(p));
            }
            Poll::Pending => self.arm(p),
        }
    }

    fn hear(&mut self, p: usize) {
        while let Some(signal) = self.pairs[p].signals.pop_front() {
            match &signal {
                SignalEvent::Cordon(Some(_)) => self.hears_of_a_cordon(p),
                SignalEvent::Cordon(None) => self.pairs[p].cordoned = None,
                _ => {}
            }
            // An ended driver listens no more.
            let _ = self.pairs[p].to_signals.send(signal);
        }
    }

    fn count_rounds(&mut self, p: usize, rounds: u32) {
        let second = self.now / SECOND;
        let pair = &mut self.pairs[p];
        if pair.second != second {
            (pair.second, pair.rounds) = (second, 0);
        }
        pair.rounds += rounds;
        // While it dismisses its guardian, it looks every 2 ms.
        if pair.rounds > ROUNDS && pair.ending.is_none() {
            self.violate(format!("#{p} loops"));
        }
    }

    fn arm(&mut self, p: usize) {
        let pair = &self.pairs[p];
        let Some(next) = pair.clock.next() else {
            return;
        };
        let at = self.machines[pair.machine].clock.when(next);
        // It looks at the armed time, and arms again.
        if at == Time::MAX || at >= pair.armed {
            return;
        }
        self.pairs[p].armed = at;
        let lag = self.lag();
        self.plan(at + lag, Happening::Timer(p, at));
    }

    fn did(&mut self, p: usize, did: Did) {
        let now = self.now;
        let pair = &mut self.pairs[p];
        let machine = &self.machines[pair.machine];
        match did {
            Did::Sent(bytes, descriptor) => {
                if pair.guardian != Life::Dead {
                    pair.to_guardian.push_back((bytes, descriptor));
                    let at = now + self.lag();
                    self.plan(at, Happening::Guardian(p));
                }
            }
            Did::Started(start) => self.started(p, start),
            Did::Ended(ending) => {
                self.say(|| format!("#{p} is done: {ending:?}"));
                self.ended(p, ending);
            }
            Did::Extended(deadlines) => {
                pair.told_term_at = deadlines.term_at;
                pair.told_at = now;
                if let Some(lease) = self.lease_of(p) {
                    self.judge_deadline(p, lease, deadlines.kill_at);
                }
            }
            Did::KilledGuardian => {
                self.say(|| format!("#{p}: the guardian is given up"));
                self.judge_giving_up(p);
                self.guardian_dies(p);
            }
            Did::Swept if pair.tree_lives() => self.kill_tree(p),
            Did::Swept => pair.tree = None,
            Did::Competed => {
                let asks = self.schedule.asks_every().is_some();
                let unfit = asks && pair.is_fit != Some(true);
                // No violation if it was due before the cordon was known.
                if pair.cordoned.is_some_and(|told| told < now) {
                    self.violate(format!("#{p} competes on a cordoned machine"));
                }
                if unfit {
                    self.violate(format!("#{p} competes and was not found fit"));
                }
                self.competes_again(p);
            }
            Did::HeardOfFitness(is_fit) => {
                self.tally.unfit += u64::from(!is_fit);
                pair.is_fit = Some(is_fit);
            }
            Did::HeardLost { until } => {
                let until = until.map_or(0, |until| machine.clock.when(until));
                pair.told_lost.push(Told { at: now, until });
                self.judge_rest(p, until);
                self.judge_loss(p);
            }
            Did::ReleasedLost { until } => {
                let until = until.map_or(0, |until| machine.clock.when(until));
                // A later answer says nothing: the lease may have run out and been taken.
                let budget = &self.schedule.budgets[pair.machine];
                let term_after = budget.lease - budget.margin - budget.grace_on_loss;
                let left = budget.lease - budget.lease / 50;
                if machine.clock.at(now) < pair.told_term_at + (left - term_after) {
                    pair.told_lost.push(Told { at: now, until });
                }
            }
            Did::Released => self.lock_may_be_free(),
            Did::Said(notice) => {
                pair.said_overlap |= notice == Notice::Overlapped;
                self.say(|| format!("#{p} says {notice:?}"));
            }
            // The network records requests.
            Did::Asked(_) => {}
            Did::Wrong(what) => self.violate(format!("#{p} {what}")),
        }
    }

    fn started(&mut self, p: usize, start: Start) {
        let now = self.now;
        let pair = &mut self.pairs[p];
        if pair.tree_lives() {
            return self.violate(format!("#{p} starts a command beside another"));
        }
        if pair.cordoned.is_some_and(|told| told < now) {
            return self.violate(format!("#{p} starts on a cordoned machine"));
        }
        // Heard at the same instant: its drain begins at once.
        pair.cordon_heard = pair.cordon_heard_at == Some(now);
        pair.had_control = true;
        pair.told_lost.clear();
        pair.told_at = now;
        pair.told_term_at = start.deadlines.term_at;
        let budget = &self.schedule.budgets[pair.machine];
        let t0 = pair.told_term_at - (budget.lease - budget.margin - budget.grace_on_loss);
        if self.machines[pair.machine].clock.at(now).since(t0) > budget.lease / 2 {
            self.violate(format!("#{p} starts under a lease of which half is gone"));
        }
        if let Some(lease) = self.lease_of(p) {
            self.judge_deadline(p, lease, start.deadlines.kill_at);
        }
    }

    pub(crate) fn supervisor_dies(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        if pair.drive.is_none() {
            return;
        }
        pair.supervisor = Life::Dead;
        pair.drive = None;
        pair.clock.end_threads();
        let at = self.now + self.lag();
        self.plan(at, Happening::Guardian(p));
        self.lock_may_be_free();
        self.restart_later(self.pairs[p].machine);
    }

    /// Wakes the lock's waiters, as the kernel does when descriptors are closed or a lock is
    /// released.
    pub(crate) fn lock_may_be_free(&mut self) {
        if self.directory.is_none() {
            return;
        }
        for p in 0..self.pairs.len() {
            if self.pairs[p].drive.is_some() && !self.pairs[p].lock_may_be_free {
                self.pairs[p].lock_may_be_free = true;
                self.wake_supervisor(p);
            }
        }
    }

    /// Kills the guardian, and so the main process; the supervisor or init inherits the rest.
    pub(crate) fn guardian_dies(&mut self, p: usize) {
        let pair = &mut self.pairs[p];
        if pair.guardian == Life::Dead {
            return;
        }
        pair.guardian = Life::Dead;
        pair.handle.link().child = true;
        pair.on_orphaned = None;
        pair.to_guardian.clear();
        pair.kernel.facts().to_guardian.clear();
        pair.event_loop = None;
        if let Some(tree) = pair.tree.as_ref().filter(|tree| tree.main) {
            let generation = tree.generation;
            let at = self.now + self.lag();
            self.plan(at, Happening::MainDies(p, generation, Exit::Signal(9)));
        }
        self.wake_supervisor(p);
        self.lock_may_be_free();
    }

    /// Sends SIGKILL to the whole tree; on a busy machine that takes a moment.
    pub(crate) fn kill_tree(&mut self, p: usize) {
        let Some(tree) = &mut self.pairs[p].tree else {
            return;
        };
        let main = tree.main && !std::mem::replace(&mut tree.killed, true);
        let daemon = tree.daemon && !std::mem::replace(&mut tree.daemon_killed, true);
        let generation = tree.generation;
        if main {
            let at = self.now + self.rng.u64(1..100) * MILLI;
            self.plan(at, Happening::MainDies(p, generation, Exit::Signal(9)));
        }
        if daemon {
            let at = self.now + self.rng.u64(1..100) * MILLI;
            self.plan(at, Happening::DaemonDies(p, generation));
        }
    }
}
