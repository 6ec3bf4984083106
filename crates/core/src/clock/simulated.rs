//! Clock that a test sets, and the threads of a simulated process.
//!
//! The threads are real ones, for work that blocks. One of them runs at a time, and none while the process
//! is polled. Each gives control back where it would wait in the kernel.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Instant;

thread_local! {
    // Apart from the clock: reading the time between fork and exec must not allocate.
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    static CLOCK: RefCell<Option<Rc<SimulatedClock>>> = const { RefCell::new(None) };
}

// More sleeps than this at one moment are a loop that would never return to its poller.
const SPINS: u32 = 1000;

/// Clock and timers of one simulated process.
#[derive(Default)]
pub struct SimulatedClock {
    // Timers stop while the machine sleeps, as tokio's do.
    awake: Cell<Instant>,
    suspended: Cell<Duration>,
    timers: RefCell<BTreeMap<(Instant, u64), Waker>>,
    numbers: Cell<u64>,
    sleeps: Cell<u32>,
    threads: RefCell<Vec<Thread>>,
    travel: Cell<(Duration, Duration)>,
    rarely: Cell<bool>,
    seed: Cell<u64>,
    carried: RefCell<Option<Carried>>,
    ended: Cell<bool>,
}

struct Thread {
    due: Instant,
    body: Body,
}

impl SimulatedClock {
    /// Does `work` at `now`, on a machine that was suspended for `suspended` in total.
    pub fn enter<T>(
        self: &Rc<Self>,
        now: Instant,
        suspended: Duration,
        work: impl FnOnce() -> T,
    ) -> T {
        self.awake.set(now - suspended);
        self.suspended.set(suspended);
        self.sleeps.set(0);
        let later = (Instant(self.awake.get().0 + 1), 0);
        let timers = self.timers.take();
        let mut due = timers;
        self.timers.replace(due.split_off(&later));
        for waker in due.into_values() {
            waker.wake();
        }
        NOW.set(Some(now));
        CLOCK.set(Some(Rc::clone(self)));
        // The thread's next test has another clock.
        let _leave = Leave;
        self.run_threads(now);
        work()
    }

    fn run_threads(&self, now: Instant) {
        let mut later = Vec::new();
        let resumed = Resumed {
            now,
            travel: self.travel.get(),
            rarely: self.rarely.get(),
        };
        for mut thread in self.threads.take() {
            if thread.due <= self.awake.get() {
                let Some(due) = (thread.body)(resumed) else {
                    self.ended.set(true);
                    continue;
                };
                thread.due = due - self.suspended.get();
                if due == Instant::FOREVER {
                    thread.due = due;
                }
            }
            later.push(thread);
        }
        let begun = self.threads.replace(later);
        self.threads.borrow_mut().extend(begun);
    }

    /// Sets the least and the most time of a request. If `rarely`, few take longer than the least.
    pub fn travel(&self, least: Duration, most: Duration, rarely: bool) {
        self.travel.set((least, most));
        self.rarely.set(rarely);
    }

    /// Sets the seed of chance.
    pub fn seed(&self, seed: u64) {
        self.seed.set(seed);
    }

    /// Sets what new threads find with [`carried`].
    pub fn carry(&self, what: Carried) {
        self.carried.replace(Some(what));
    }

    /// Ends the threads.
    pub fn end_threads(&self) {
        self.threads.borrow_mut().clear();
    }

    /// Tells whether a thread has ended since the last call.
    pub fn has_done_something(&self) -> bool {
        self.ended.take()
    }

    /// Makes all threads look again that wait without a limit.
    pub fn wake_threads(&self) {
        for thread in self.threads.borrow_mut().iter_mut() {
            if thread.due == Instant::FOREVER {
                thread.due = Instant::ZERO;
            }
        }
    }

    /// Returns when the next timer is due if the machine is not suspended before.
    pub fn next(&self) -> Option<Instant> {
        let timers = self.timers.borrow();
        let threads = self.threads.borrow();
        let threads = threads.iter().map(|thread| thread.due);
        let timers = timers.keys().next().map(|(until, _)| *until);
        let next = threads
            .filter(|due| *due != Instant::FOREVER)
            .chain(timers)
            .min()?;
        Some(next + self.suspended.get())
    }

    /// Returns the number of sleeps begun at this moment; after a thousand, no sleep ends.
    pub fn sleeps(&self) -> u32 {
        self.sleeps.get()
    }

    fn begin_thread(self: &Rc<Self>, job: Box<dyn FnOnce() + Send>) {
        self.numbers.set(self.numbers.get() + 1);
        let seed = self.seed.get() ^ self.numbers.get() << 20;
        let clock = Rc::downgrade(self);
        let begin = move |job| {
            if let Some(clock) = clock.upgrade() {
                clock.begin_thread(job);
            }
        };
        let due = self.awake.get();
        let body = play(job, seed, self.carried.borrow().clone(), begin);
        self.threads.borrow_mut().push(Thread { due, body });
    }

    fn begin(&self, span: Duration) -> Sleep {
        self.sleeps.set(self.sleeps.get() + 1);
        self.numbers.set(self.numbers.get() + 1);
        Sleep {
            until: self.awake.get() + span,
            number: self.numbers.get(),
        }
    }
}

struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        NOW.set(None);
        CLOCK.set(None);
    }
}

pub(super) fn now() -> Option<Instant> {
    NOW.get()
}

/// Returns the job if no process is played here.
pub(super) fn start_thread<J: FnOnce() + Send + 'static>(job: J) -> Option<J> {
    if NOW.get().is_none() {
        return Some(job);
    }
    let Err(job) = begin_beside(Box::new(job)) else {
        return None;
    };
    CLOCK.with_borrow(|clock| {
        let clock = clock.as_ref().expect("a process is played");
        clock.begin_thread(job);
    });
    None
}

/// Tells whether a process is played here.
pub(super) fn start_waiting(mut look: impl FnMut() -> Option<Instant> + 'static) -> bool {
    CLOCK.with_borrow(|clock| {
        let Some(clock) = clock else { return false };
        let due = clock.awake.get();
        let body = Box::new(move |_: Resumed| look());
        clock.threads.borrow_mut().push(Thread { due, body });
        true
    })
}

pub(super) fn sleep(span: Duration) -> Option<Sleep> {
    NOW.get()?;
    CLOCK.with_borrow(|clock| clock.as_ref().map(|clock| clock.begin(span)))
}

pub(super) struct Sleep {
    until: Instant,
    number: u64,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        CLOCK.with_borrow(|clock| {
            let clock = clock.as_ref().expect("it is polled where it was begun");
            if clock.awake.get() >= self.until && clock.sleeps.get() <= SPINS {
                return Poll::Ready(());
            }
            let timer = (self.until, self.number);
            clock
                .timers
                .borrow_mut()
                .insert(timer, context.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        // The process may have ended, and its timers with it.
        CLOCK.with_borrow(|clock| {
            let timer = (self.until, self.number);
            clock
                .as_ref()
                .map(|clock| clock.timers.borrow_mut().remove(&timer))
        });
    }
}

/// Work of a thread up to its next wait; returns when that ends at the latest.
type Body = Box<dyn FnMut(Resumed) -> Option<Instant>>;
pub(super) type Carried = Arc<dyn Any + Send + Sync>;
type Job = Box<dyn FnOnce() + Send>;

#[derive(Clone, Copy)]
struct Resumed {
    now: Instant,
    travel: (Duration, Duration),
    rarely: bool,
}

enum Word {
    Began(Job),
    WaitsUntil(Instant),
    Ended,
}

struct Baton {
    word: Sender<Word>,
    go: Receiver<Resumed>,
    resumed: Resumed,
    rng: fastrand::Rng,
    carried: Option<Carried>,
}

/// In ns.
const USUAL: u64 = 24_000_000;

thread_local! {
    static BATON: RefCell<Option<Baton>> = const { RefCell::new(None) };
}

struct Killed;

impl Baton {
    fn wait_until(&mut self, until: Instant) {
        let told = self.word.send(Word::WaitsUntil(until));
        match told.ok().and_then(|()| self.go.recv().ok()) {
            Some(resumed) => {
                self.resumed = resumed;
                NOW.set(Some(resumed.now));
            }
            None => resume_unwind(Box::new(Killed)),
        }
    }
}

pub(super) fn pause(span: Duration) -> bool {
    // Not while the thread unwinds because its process has ended.
    if thread::panicking() {
        return false;
    }
    BATON.with_borrow_mut(|baton| {
        let Some(baton) = baton else { return false };
        baton.wait_until(baton.resumed.now + span);
        true
    })
}

/// Returns the surroundings of this simulated process.
pub fn carried() -> Option<Carried> {
    BATON.with_borrow(|baton| baton.as_ref()?.carried.clone())
}

pub(super) fn travel() {
    let span = BATON.with_borrow_mut(|baton| {
        let Baton { resumed, rng, .. } = baton.as_mut()?;
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let (least, most) = (nanos(resumed.travel.0), nanos(resumed.travel.1));
        let late = !resumed.rarely || rng.u8(0..4) == 0;
        let most = if late { most } else { least + USUAL };
        Some(rng.u64(least..=most.max(least)))
    });
    if let Some(span) = span {
        pause(Duration::from_nanos(span));
    }
}

fn begin_beside(job: Job) -> Result<(), Job> {
    BATON.with_borrow(|baton| match baton {
        Some(baton) => baton.word.send(Word::Began(job)).map_err(|unsent| {
            let Word::Began(job) = unsent.0 else {
                unreachable!("it was sent")
            };
            job
        }),
        None => Err(job),
    })
}

struct Coroutine {
    go: Option<Sender<Resumed>>,
    word: Receiver<Word>,
    handle: Option<JoinHandle<()>>,
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        self.go = None;
        // What the thread drops must be dropped before anything else happens.
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// Calls `begin` for each thread that `job` begins.
fn play(
    job: Job,
    seed: u64,
    carried: Option<Carried>,
    mut begin: impl FnMut(Job) + 'static,
) -> Body {
    let (go, resume) = channel::<Resumed>();
    let (say, word) = channel();
    let run = move || {
        let Ok(resumed) = resume.recv() else { return };
        NOW.set(Some(resumed.now));
        let rng = fastrand::Rng::with_seed(seed);
        BATON.set(Some(Baton {
            word: say.clone(),
            go: resume,
            resumed,
            rng,
            carried,
        }));
        job();
        let _ = say.send(Word::Ended);
    };
    let handle = thread::Builder::new().stack_size(512 << 10).spawn(run);
    let coroutine = Coroutine {
        go: Some(go),
        word,
        handle: Some(handle.expect("a thread for the simulation")),
    };
    Box::new(move |resumed| {
        let go = coroutine.go.as_ref().expect("it has not ended");
        go.send(resumed).expect("it waits to go on");
        loop {
            match coroutine
                .word
                .recv()
                .expect("a thread of the simulation panicked")
            {
                Word::Began(job) => begin(job),
                Word::WaitsUntil(until) => return Some(until),
                Word::Ended => return None,
            }
        }
    })
}
