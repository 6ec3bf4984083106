//! A clock that a test sets: what is polled at one of its moments takes that for the present and sleeps
//! by it.
//!
//! Called by the simulated fleet, which plays the shipped driver and stores in a time of its own. Holds
//! for the thread that entered it and while it is in it. Must never be in a release, which has one clock.

mod threads;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Instant;
pub(crate) use threads::carried;
use threads::{Body, Carried, Resumed, begin_beside, play};
pub(super) use threads::{pause, travel};

thread_local! {
    // Apart from the clock itself: whoever reads the time in a thread without one, a guardian between fork
    // and exec among them, pays a load and allocates nothing.
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    static CLOCK: RefCell<Option<Rc<SimulatedClock>>> = const { RefCell::new(None) };
}

// More sleeps than this at one moment are a loop that would never return to whoever polls it.
const SPINS: u32 = 1000;

/// The clock and the timers of one simulated process.
#[derive(Default)]
pub struct SimulatedClock {
    // What the timers go by: they stand still while the machine sleeps, as tokio's do.
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

/// A thread of a simulated process.
struct Thread {
    /// When it goes on, by the clock that stands still while the machine sleeps.
    due: Instant,
    body: Body,
}

impl SimulatedClock {
    /// Does `work` at the moment `now` of a machine that was suspended for so long altogether, and wakes
    /// before that whoever has slept until then.
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
        // Also where it panics: the thread's next test has another clock, or none.
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
        // Those that were begun meanwhile are the last.
        let begun = self.threads.replace(later);
        self.threads.borrow_mut().extend(begun);
    }

    /// What its threads ask of a drive is on its way for at least and at most so long from now on; `rarely` for
    /// longer than the least.
    pub fn travel(&self, least: Duration, most: Duration, rarely: bool) {
        self.travel.set((least, most));
        self.rarely.set(rarely);
    }

    /// By which chance is played again.
    pub fn seed(&self, seed: u64) {
        self.seed.set(seed);
    }

    /// What the threads that it begins find with [`carried`]: whatever stands for their surroundings.
    pub fn carry(&self, what: Carried) {
        self.carried.replace(Some(what));
    }

    /// The process has ended, and its threads with it.
    pub fn end_threads(&self) {
        self.threads.borrow_mut().clear();
    }

    /// Whether a thread has done what it was begun for since this was asked last.
    pub fn has_done_something(&self) -> bool {
        self.ended.take()
    }

    /// Has those threads look again that wait without an end.
    pub fn wake_threads(&self) {
        for thread in self.threads.borrow_mut().iter_mut() {
            if thread.due == Instant::FOREVER {
                thread.due = Instant::ZERO;
            }
        }
    }

    /// When the next timer is due if the machine is not suspended before.
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

    /// How many sleeps were begun at the present moment; past a thousand none of them ends.
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

/// The present moment of the simulation that this thread is in, if it is in one.
pub(super) fn now() -> Option<Instant> {
    NOW.get()
}

/// Begins a thread of the simulated process that is played here; where none is, gives the job back.
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

/// Begins a thread that waits in the kernel: `look` is what it does when there may be something. Tells whether a
/// process is played here.
pub(super) fn start_waiting(mut look: impl FnMut() -> Option<Instant> + 'static) -> bool {
    CLOCK.with_borrow(|clock| {
        let Some(clock) = clock else { return false };
        let due = clock.awake.get();
        let body = Box::new(move |_: Resumed| look());
        clock.threads.borrow_mut().push(Thread { due, body });
        true
    })
}

/// A sleep in the simulation that this thread is in, if it is in one.
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
        // With the process whose it was the timers are gone, too.
        CLOCK.with_borrow(|clock| {
            let timer = (self.until, self.number);
            clock
                .as_ref()
                .map(|clock| clock.timers.borrow_mut().remove(&timer))
        });
    }
}
