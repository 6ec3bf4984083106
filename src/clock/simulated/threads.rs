//! Threads of a simulated process: real ones, of which one goes on at a time, and none while the process is
//! polled.
//!
//! Called by [`super`], for work that blocks. Each waits until it is resumed, and gives control back where it
//! would wait in the kernel: for a request's way to a drive, in a nap, at its end. So a simulation says when.

use std::any::Any;
use std::cell::RefCell;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::super::Instant;
use super::NOW;

/// What a thread does from one wait in the kernel to the next, and with what it is resumed: until when the wait
/// lasts at most, or that it has ended.
pub(super) type Body = Box<dyn FnMut(Resumed) -> Option<Instant>>;
/// What stands for the surroundings of a process.
pub(crate) type Carried = Arc<dyn Any + Send + Sync>;
type Job = Box<dyn FnOnce() + Send>;

/// What a thread finds when it goes on.
#[derive(Clone, Copy)]
pub(super) struct Resumed {
    pub(super) now: Instant,
    /// How long each of its requests is on its way from now on, at least and at most.
    pub(super) travel: (Duration, Duration),
    /// One request in four, and not each, takes longer than the least.
    pub(super) rarely: bool,
}

enum Word {
    /// It has begun another thread.
    Began(Job),
    WaitsUntil(Instant),
    Ended,
}

/// What a thread has of whoever resumes it.
struct Baton {
    word: Sender<Word>,
    go: Receiver<Resumed>,
    resumed: Resumed,
    rng: fastrand::Rng,
    carried: Option<Carried>,
}

/// How much longer than the least a request takes that is not late, in ns.
const USUAL: u64 = 24_000_000;

thread_local! {
    static BATON: RefCell<Option<Baton>> = const { RefCell::new(None) };
}

/// The process has ended in the middle of it.
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

/// Gives control back for so long, where this is a thread of a simulated process; tells whether it is.
pub(in super::super) fn pause(span: Duration) -> bool {
    // Not while it ends in the middle of something.
    if thread::panicking() {
        return false;
    }
    BATON.with_borrow_mut(|baton| {
        let Some(baton) = baton else { return false };
        baton.wait_until(baton.resumed.now + span);
        true
    })
}

/// What stands for the surroundings of the simulated process whose thread this is.
pub(crate) fn carried() -> Option<Carried> {
    BATON.with_borrow(|baton| baton.as_ref()?.carried.clone())
}

/// A request or its answer is on its way, where this is a thread of a simulated process.
pub(in super::super) fn travel() {
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

/// Begins a thread beside this one, where this is one; else gives its job back.
pub(super) fn begin_beside(job: Job) -> Result<(), Job> {
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

/// A thread of its own, which is ended with the process.
struct Coroutine {
    go: Option<Sender<Resumed>>,
    word: Receiver<Word>,
    handle: Option<JoinHandle<()>>,
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        self.go = None;
        // Whatever it drops on its way is dropped before anything else happens.
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// The body that plays `job`; `begin` is called for each thread that this begins.
pub(super) fn play(
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
