//! One instance: a supervisor with the real tenure and the real memory of the chain, its threads,
//! a guardian with its deadlines, and the command.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use trafficcop::Instant;
use trafficcop::internals::core::{Budget, Event, Failure, Grant, Tenure};

use super::clock::Time;
use super::share::{Reply, Request};
use super::store::{Desk, Progress, Store};

/// Which thread has a request out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Worker,
    Writer,
    Guardian,
}

/// What a job came to.
#[derive(Debug)]
pub(crate) enum Answer {
    Acquired(Result<Grant, Failure>),
    Renewed(Result<(), Failure>),
    Released(Result<(), Failure>),
    Nothing,
}

type Job = Pin<Box<dyn Future<Output = Answer>>>;

/// A thread: its job, if it has one, and the number of the request that it waits for.
#[derive(Default)]
pub(crate) struct Thread {
    pub(crate) job: Option<Job>,
    pub(crate) desk: Rc<Desk>,
    pub(crate) sequence: u64,
}

impl Thread {
    /// Goes on with the job as far as it goes: a request to be sent, an answer, or neither.
    pub(crate) fn go_on(&mut self, now: Instant) -> (Option<Request>, Option<Answer>) {
        self.desk.now.set(now);
        let Some(job) = &mut self.job else {
            return (None, None);
        };
        let mut context = Context::from_waker(Waker::noop());
        match job.as_mut().poll(&mut context) {
            Poll::Ready(answer) => {
                self.job = None;
                (None, Some(answer))
            }
            Poll::Pending => (self.desk.out.borrow_mut().take(), None),
        }
    }

    pub(crate) fn answered(&self, reply: Reply) {
        *self.desk.reply.borrow_mut() = Some(reply);
    }
}

/// What the supervisor waits for, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Acquire,
    /// Its answer is of no use any more, but what it obtained is to be undone.
    Withdrawn,
    Renew {
        t0: Instant,
    },
    Release,
    Announce,
}

/// The user's command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub(crate) generation: u64,
    pub(crate) born: Time,
    pub(crate) deaf: bool,
    pub(crate) termed: bool,
    pub(crate) killed: bool,
}

/// See the module's text.
pub(crate) struct Instance {
    pub(crate) machine: usize,
    pub(crate) budget: Budget,
    // --- the supervisor ---
    pub(crate) lives: bool,
    pub(crate) stopped: bool,
    pub(crate) done: bool,
    pub(crate) tenure: Tenure,
    pub(crate) store: Store,
    pub(crate) worker: Thread,
    pub(crate) writer: Thread,
    pub(crate) wanted: Option<(Wanted, Instant)>,
    pub(crate) inbox: VecDeque<Event>,
    pub(crate) armed: Time,
    pub(crate) stop_asked: bool,
    pub(crate) steps: (Time, u32),
    // --- the guardian ---
    pub(crate) guardian: bool,
    pub(crate) orphaned: bool,
    pub(crate) last_job: Thread,
    pub(crate) last_job_ends: Instant,
    pub(crate) term_at: Instant,
    pub(crate) kill_at: Instant,
    pub(crate) end_of_grace: Instant,
    pub(crate) guardian_armed: Time,
    /// When it was told its deadlines last (true time).
    pub(crate) told_at: Time,
    pub(crate) command: Option<Command>,
}

/// What an instance needs to begin with.
pub(crate) struct Seat {
    pub(crate) machine: usize,
    pub(crate) budget: Budget,
    pub(crate) nonce: u128,
    pub(crate) nonces: Rc<Cell<u128>>,
    pub(crate) stamps: Rc<Cell<Option<(u64, Instant)>>>,
    pub(crate) protocol: super::protocol::Protocol,
}

impl Instance {
    pub(crate) fn new(seat: Seat, tenure: Tenure) -> Instance {
        let worker = Thread::default();
        let lease: Duration = seat.budget.lease;
        let store = Store {
            desk: Rc::clone(&worker.desk),
            state: Rc::new(RefCell::new(Progress::new(seat.nonce, lease))),
            records: Rc::default(),
            written: Rc::default(),
            memory: Rc::default(),
            stamps: seat.stamps,
            nonces: seat.nonces,
            lease,
            margin: seat.budget.margin,
            protocol: seat.protocol,
            removal: Rc::default(),
        };
        Instance {
            machine: seat.machine,
            budget: seat.budget,
            lives: true,
            stopped: false,
            done: false,
            tenure,
            store,
            worker,
            writer: Thread::default(),
            wanted: None,
            inbox: VecDeque::new(),
            armed: Time::MAX,
            stop_asked: false,
            steps: (0, 0),
            guardian: true,
            orphaned: false,
            last_job: Thread::default(),
            last_job_ends: Instant::FOREVER,
            term_at: Instant::FOREVER,
            kill_at: Instant::FOREVER,
            end_of_grace: Instant::FOREVER,
            guardian_armed: Time::MAX,
            told_at: 0,
            command: None,
        }
    }

    /// The supervisor lives and has not finished.
    pub(crate) fn competes(&self) -> bool {
        self.lives && !self.done
    }

    pub(crate) fn thread(&mut self, lane: Lane) -> &mut Thread {
        match lane {
            Lane::Worker => &mut self.worker,
            Lane::Writer => &mut self.writer,
            Lane::Guardian => &mut self.last_job,
        }
    }

    /// The store as another thread has it.
    pub(crate) fn store_at(&self, desk: &Rc<Desk>) -> Store {
        Store {
            desk: Rc::clone(desk),
            ..self.store.clone()
        }
    }
}
