//! Instances on a shared drive whose system calls wait for permission to continue: the shipped
//! store, a guardian's release and an operator's `break`, each in a process; and the rules they
//! must keep.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use trafficcop::Instant;
use trafficcop_core::clock::{SimulatedClock, pause, sleep, start_thread};
use trafficcop_core::{Failure, Grant};
use trafficcop_lease::record::Candidate;
use trafficcop_lease::shared_file::{
    Answer, Call, Drive, SharedFile, break_lock, look, release_orphaned_by,
};
use trafficcop_lease::{Competitor, LeaseStore, SharedMemory};

use super::clock::{SECOND, Time};
use super::drive::{self, Server};
use super::operator::Memory;
use super::supervisor::simulated;

pub(crate) const LEASE: Duration = Duration::from_secs(15);
/// Longer than any wait that a version causes.
const LONG: Duration = Duration::from_secs(61);
/// Limit of an attempt or a renewal.
const LIMIT: Duration = Duration::from_secs(5);
/// Longest wait of a standby before its next look.
const POLL: Duration = Duration::from_secs(10);
const BASE: u64 = 1_000_000_000_000;

pub(crate) type Actor = usize;
pub(crate) const HOLDER: Actor = 0;
pub(crate) const CONTENDER: Actor = 1;
pub(crate) const GUARDIAN: Actor = 2;
pub(crate) const OPERATOR: Actor = 3;
/// Competes after all others are done.
const HEIR: Actor = 4;
const ACTORS: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Compete,
    Renew,
    Release,
    /// Waits until the lock may be free, or for a poll.
    Wait,
    GiveBack,
    Break,
    /// All but the last, by an operator.
    RemoveOld,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Done,
    /// The answer is lost, and the call repeated.
    Again,
    /// The answer is lost, and the mount gives up.
    Denied,
    /// The answer is a second late.
    Slow,
}

#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) number: usize,
    pub(crate) call: Call,
    /// The process that sent it is dead.
    pub(crate) abandoned: bool,
}

#[derive(Default)]
struct Calls {
    count: usize,
    pending: Vec<Pending>,
    answers: Vec<(usize, io::Result<Answer>)>,
}

struct Gate(Arc<Mutex<Calls>>);

fn whole<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("whole")
}

impl Drive for Gate {
    fn ask(&self, call: Call) -> io::Result<Answer> {
        // The process was killed.
        if std::thread::panicking() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let number = {
            let mut calls = whole(&self.0);
            calls.count += 1;
            let number = calls.count;
            calls.pending.push(Pending {
                number,
                call,
                abandoned: false,
            });
            number
        };
        loop {
            pause(Duration::MAX);
            let mut calls = whole(&self.0);
            let at = calls.answers.iter().position(|(of, _)| *of == number);
            if let Some(at) = at {
                return calls.answers.swap_remove(at).1;
            }
        }
    }
}

/// Answers that processes got, and what follows.
#[derive(Default)]
struct Journal {
    /// Token, and until when others are kept out.
    control: [Option<(u64, Instant)>; ACTORS],
    doing: [Option<Op>; ACTORS],
    /// Time from which the lock may be free, as a standby was told.
    due: [Option<Instant>; ACTORS],
    broken: bool,
    /// Something went or may go wrong, so doubts have a reason.
    excused: bool,
    last_token: u64,
    told: usize,
    violation: Option<String>,
    trace: Vec<String>,
}

impl Journal {
    fn violate(&mut self, text: String) {
        self.violation.get_or_insert(text);
    }

    fn says(&mut self, text: String) {
        self.told += 1;
        self.trace.push(text);
    }

    fn others(&self, actor: Actor, now: Instant) -> Option<Actor> {
        (0..ACTORS).find(|other| {
            let control = self.control[*other];
            *other != actor && control.is_some_and(|(_, until)| now < until)
        })
    }

    fn has_control(&self, actor: Actor) -> bool {
        self.control[actor].is_some_and(|(_, until)| Instant::now() < until)
    }

    fn begins(&mut self, actor: Actor, op: Op) -> bool {
        self.says(format!("{actor} begins: {op:?}"));
        self.doing[actor] = Some(op);
        let had = self.has_control(actor);
        match op {
            // The tree is empty before a release.
            Op::Release => self.control[actor] = None,
            Op::GiveBack => self.control[HOLDER] = None,
            Op::Break => self.broken = true,
            Op::Compete | Op::Renew | Op::Wait | Op::RemoveOld => {}
        }
        had
    }

    fn competed(&mut self, actor: Actor, answer: Result<Grant, Failure>) {
        self.says(format!("{actor} competed: {answer:?}"));
        self.doing[actor] = None;
        if let Err(why @ Failure::Fatal { .. }) = &answer
            && !self.excused
        {
            self.violate(format!("{actor} gives up: {why:?}"));
        }
        if let Err(Failure::Held(holder)) = &answer {
            self.due[actor] = holder.expires;
        }
        let Ok(grant) = answer else { return };
        let until = grant.t0 + LEASE;
        // An instance whose lease was broken at once continues until its next renewal.
        if let Some(other) = self.others(actor, Instant::now()).filter(|_| !self.broken) {
            self.violate(format!("{actor} has control beside {other}"));
        }
        if grant.token <= self.last_token {
            let last = self.last_token;
            self.violate(format!("token {} after {last}", grant.token));
        }
        self.last_token = grant.token;
        self.control[actor] = Some((grant.token, until));
    }

    fn renewed(&mut self, actor: Actor, began: Instant, answer: Result<(), Failure>) {
        self.says(format!("{actor} renewed: {answer:?}"));
        self.doing[actor] = None;
        let Some((token, until)) = self.control[actor] else {
            return;
        };
        let now = Instant::now();
        match answer {
            // A success after the end of the lease renews nothing.
            Ok(()) if now >= until => {}
            Ok(()) => {
                if let Some(other) = self.others(actor, now) {
                    self.violate(format!("{actor} goes on beside {other}"));
                }
                self.control[actor] = Some((token, began + LEASE));
            }
            Err(why) if !self.excused && !self.broken && now < until => {
                self.violate(format!("{actor} is in doubt without need: {why:?}"));
            }
            Err(_) => {}
        }
    }

    fn released(&mut self, actor: Actor, had: bool, answer: Result<(), Failure>) {
        self.says(format!("{actor} released: {answer:?}"));
        self.doing[actor] = None;
        if let Err(why) = answer
            && had
            && !self.excused
            && !self.broken
        {
            self.violate(format!("{actor} could not release: {why:?}"));
        }
    }

    fn ended(&mut self, actor: Actor) {
        self.says(format!("{actor} is done"));
        self.doing[actor] = None;
    }
}

type Told = Rc<RefCell<Journal>>;

struct Process {
    clock: Rc<SimulatedClock>,
    calls: Arc<Mutex<Calls>>,
    store: Arc<dyn LeaseStore>,
    doing: Option<Pin<Box<dyn Future<Output = ()>>>>,
    coming: Vec<(Time, usize, io::Result<Answer>)>,
}

/// The simulated world.
pub(crate) struct World {
    now: Time,
    server: Server,
    processes: Vec<Process>,
    memory: Arc<Memory>,
    lock: std::path::PathBuf,
    told: Told,
}

impl World {
    pub(crate) fn new() -> World {
        let lock = std::env::temp_dir().join("interleaved-lock");
        let memory: Arc<Memory> = Arc::default();
        let process = |actor: usize| {
            let clock: Rc<SimulatedClock> = Rc::default();
            let calls: Arc<Mutex<Calls>> = Arc::default();
            let gate: Box<dyn Drive> = Box::new(Gate(Arc::clone(&calls)));
            clock.carry(Arc::new(gate));
            let candidate = Candidate {
                identity: actor.to_string(),
                host: String::new(),
                pid: 1,
                command: String::new(),
                bell: None,
            };
            let competitor = simulated(Competitor::new(candidate, LEASE));
            let memory = (actor == HOLDER).then(|| Arc::clone(&memory) as Arc<dyn SharedMemory>);
            let store = SharedFile::with_memory(&lock, &competitor, memory).expect("a path");
            Process {
                clock,
                calls,
                store: Arc::new(store),
                doing: None,
                coming: Vec::new(),
            }
        };
        let mut server = Server::new(lock.clone(), ACTORS, Vec::new(), 1);
        server.tears = false;
        World {
            now: 0,
            server,
            processes: (0..ACTORS).map(process).collect(),
            memory,
            lock,
            told: Rc::default(),
        }
    }

    pub(crate) fn told(&self) -> usize {
        self.told.borrow().told
    }

    pub(crate) fn violation(&self) -> Option<String> {
        self.told.borrow().violation.clone()
    }

    pub(crate) fn violate(&self, text: String) {
        self.told.borrow_mut().violate(text);
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.told.borrow().trace.clone()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.processes.iter().all(|process| process.doing.is_none())
    }

    pub(crate) fn pending(&self) -> Vec<(Actor, Pending)> {
        let of = |(actor, process): (Actor, &Process)| {
            let pending = whole(&process.calls).pending.clone();
            pending.into_iter().map(move |pending| (actor, pending))
        };
        self.processes.iter().enumerate().flat_map(of).collect()
    }

    /// Begins a process's operations, concurrently with other processes.
    pub(crate) fn begin(&mut self, actor: Actor, ops: &[Op]) {
        let (told, ops) = (Rc::clone(&self.told), ops.to_vec());
        let process = &mut self.processes[actor];
        let store = Arc::clone(&process.store);
        let calls = Arc::clone(&process.calls);
        let (memory, lock) = (Arc::clone(&self.memory), self.lock.clone());
        process.doing = Some(Box::pin(async move {
            for op in ops {
                let began = Instant::now();
                let had = told.borrow_mut().begins(actor, op);
                match op {
                    Op::Compete => {
                        let answer = store.acquire(began + LIMIT).await;
                        told.borrow_mut().competed(actor, answer);
                    }
                    Op::Renew => {
                        let answer = store.renew(began + LIMIT).await;
                        told.borrow_mut().renewed(actor, began, answer);
                    }
                    Op::Release => {
                        let answer = store.release(began + LIMIT).await;
                        told.borrow_mut().released(actor, had, answer);
                    }
                    Op::Wait => {
                        let due = told.borrow().due[actor];
                        let rest = due.map(|due| due.since(Instant::now()));
                        sleep(rest.unwrap_or_default().min(POLL)).await;
                        told.borrow_mut().ended(actor);
                    }
                    Op::GiveBack => {
                        let memory = Arc::clone(&memory);
                        in_a_thread(move || release_orphaned_by(&*memory)).await;
                        told.borrow_mut().ended(actor);
                    }
                    Op::Break => {
                        let lock = lock.clone();
                        in_a_thread(move || {
                            if let Ok(seen) = look(&lock)
                                && let Some(record) = seen.record
                            {
                                let now = Some(Duration::ZERO);
                                let _ = break_lock(&lock, &record, now, "an operator");
                            }
                        })
                        .await;
                        told.borrow_mut().ended(actor);
                    }
                    Op::RemoveOld => {
                        let gate = Gate(Arc::clone(&calls));
                        let versions = lock.with_extension("versions");
                        in_a_thread(move || remove_old(&gate, &versions)).await;
                        told.borrow_mut().ended(actor);
                    }
                }
            }
        }));
        self.enter(actor);
    }

    /// Runs these operations to their end first.
    pub(crate) fn plays(&mut self, actor: Actor, ops: &[Op]) {
        self.begin(actor, ops);
        self.all_go_on();
    }

    /// Continues until nothing is left to do; abandoned calls are carried out, too.
    fn all_go_on(&mut self) {
        loop {
            self.settle();
            let next = self.pending().into_iter().find(|(_, it)| !it.abandoned);
            match next {
                Some((actor, pending)) => self.carry_out(actor, pending.number, Kind::Done),
                None if self.is_over() => return,
                None if self.waits() => {}
                None => return self.violate("a process waits for nothing".to_owned()),
            }
        }
    }

    pub(crate) fn excuses(&mut self) {
        self.told.borrow_mut().excused = true;
    }

    /// Shows this process the state before there was a lock.
    pub(crate) fn sees_nothing(&mut self, actor: Actor) {
        self.server.views[actor] = (0, self.now + 10 * SECOND);
    }

    /// Freezes this process's view at the present state.
    pub(crate) fn sees_nothing_new(&mut self, actor: Actor) {
        self.server.views[actor] = (self.now, Time::MAX);
        self.pass(Duration::from_secs(1));
    }

    /// Lets the holder acquire, and the contender see that.
    pub(crate) fn is_held(&mut self) {
        self.plays(HOLDER, &[Op::Compete]);
        self.plays(CONTENDER, &[Op::Compete]);
    }

    pub(crate) fn kill(&mut self, actor: Actor) {
        let process = &mut self.processes[actor];
        process.doing = None;
        process.coming.clear();
        process.clock.end_threads();
        for pending in &mut whole(&process.calls).pending {
            pending.abandoned = true;
        }
    }

    fn enter(&mut self, actor: Actor) {
        let now = Instant::from_nanos(BASE + self.now);
        let Process { clock, doing, .. } = &mut self.processes[actor];
        let poll = || {
            let doing = doing.as_mut()?;
            let mut context = Context::from_waker(Waker::noop());
            Some(doing.as_mut().poll(&mut context))
        };
        if clock.enter(now, Duration::ZERO, poll) == Some(Poll::Ready(())) {
            *doing = None;
        }
    }

    fn next(&self, actor: Actor) -> Option<Time> {
        let process = &self.processes[actor];
        let next = process.clock.next();
        let next = next.map(|next| next.as_nanos().saturating_sub(BASE));
        let coming = process.coming.iter().map(|(at, ..)| *at);
        next.into_iter().chain(coming).min()
    }

    fn answer(&mut self, actor: Actor) {
        let now = self.now;
        let process = &mut self.processes[actor];
        for (_, number, answer) in process.coming.extract_if(.., |(at, ..)| *at <= now) {
            whole(&process.calls).answers.push((number, answer));
            process.clock.wake_threads();
        }
    }

    pub(crate) fn settle(&mut self) {
        for actor in 0..ACTORS {
            while self.next(actor).is_some_and(|next| next <= self.now) {
                self.answer(actor);
                self.enter(actor);
            }
        }
    }

    /// Advances to the next event, if there is one.
    pub(crate) fn waits(&mut self) -> bool {
        let Some(next) = (0..ACTORS).filter_map(|actor| self.next(actor)).min() else {
            return false;
        };
        self.now = self.now.max(next);
        self.server.go_on(self.now);
        self.settle();
        true
    }

    /// Lets this much time pass; pending calls hang meanwhile.
    pub(crate) fn pass(&mut self, span: Duration) {
        let until = self.now + u64::try_from(span.as_nanos()).expect("short");
        self.settle();
        while (0..ACTORS)
            .filter_map(|actor| self.next(actor))
            .any(|next| next <= until)
        {
            self.waits();
        }
        self.now = until;
        self.server.go_on(until);
        let text = format!("{} s later", span.as_secs_f64());
        self.told.borrow_mut().says(text);
    }

    pub(crate) fn carry_out(&mut self, actor: Actor, number: usize, kind: Kind) {
        let by = match actor {
            GUARDIAN => HOLDER,
            OPERATOR => drive::OPERATOR,
            actor => actor,
        };
        let Process { calls, coming, .. } = &mut self.processes[actor];
        let mut calls = whole(calls);
        let at = calls.pending.iter().position(|it| it.number == number);
        let at = at.expect("it waits");
        let Pending {
            call, abandoned, ..
        } = calls.pending[at].clone();
        let known = self.server.makings.len();
        let answer = self.server.carry_out(actor, by, &call);
        {
            let mut told = self.told.borrow_mut();
            let text = format!("{actor} {kind:?}: {call:?} -> {answer:?}");
            told.trace.push(text);
        }
        let answer = match kind {
            Kind::Again => None,
            Kind::Denied => Some((self.now, Err(io::Error::from_raw_os_error(libc::EIO)))),
            Kind::Done => Some((self.now, answer)),
            Kind::Slow => Some((self.now + SECOND, answer)),
        };
        if let Some((when, answer)) = answer {
            calls.pending.remove(at);
            coming.extend((!abandoned).then_some((when, number, answer)));
        }
        drop(calls);
        self.answer(actor);
        self.judge_what_was_made(actor, known);
    }

    /// Checks that a renewal or release makes its version only after one of the same process.
    fn judge_what_was_made(&mut self, actor: Actor, known: usize) {
        if let Some((by, version)) = self.server.forged.pop() {
            self.violate(format!(
                "{by} writes of version {version}, which is not his"
            ));
        }
        let Some(made) = self.server.makings.get(known).copied() else {
            return;
        };
        if made.goes_on_from_nothing {
            let version = made.version;
            self.violate(format!(
                "{actor} makes {version} after its own version, which has none before it"
            ));
        }
        let doing = self.told.borrow().doing[actor];
        if matches!(doing, Some(Op::Renew | Op::Release | Op::GiveBack))
            && let Some(before) = self.server.before(&made)
            && before.by != made.by
        {
            let version = made.version;
            self.violate(format!("{actor} makes {version} after another's"));
        }
    }

    /// Checks that another instance gets the lock once all operations are done and all leases over.
    pub(crate) fn somebody_else_gets_it(&mut self) {
        self.all_go_on();
        for actor in [HOLDER, CONTENDER] {
            self.kill(actor);
        }
        self.told.borrow_mut().control = Default::default();
        for _ in 0..3 {
            self.plays(HEIR, &[Op::Compete]);
            if self.told.borrow().control[HEIR].is_some() {
                return;
            }
            self.pass(LONG);
        }
        self.violate("no instance can acquire any more".to_owned());
    }
}

/// Removes versions as `rm -r` does, oldest first.
fn remove_old(drive: &Gate, versions: &Path) {
    let Ok(Answer::Names(mut names)) = drive.ask(Call::List(versions.to_owned())) else {
        return;
    };
    names.sort();
    names.pop();
    for version in names.into_iter().map(|name| versions.join(name)) {
        let next = version.join("next");
        let _ = drive.ask(Call::RemoveFile(next.join("record")));
        let _ = drive.ask(Call::RemoveDirectory(next));
        let _ = drive.ask(Call::RemoveDirectory(version));
    }
}

async fn in_a_thread(job: impl FnOnce() + Send + 'static) {
    let done: Arc<AtomicBool> = Arc::default();
    let tell = Arc::clone(&done);
    let job = move || {
        job();
        tell.store(true, Ordering::Relaxed);
    };
    start_thread("beside", job).expect("a thread of the simulation");
    poll_fn(|_| match done.load(Ordering::Relaxed) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}
