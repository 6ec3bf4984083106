//! The one place where a lease and a process meet.
//!
//! The driver waits for whatever comes first (a signal, an event of the tree, a reply of the store, the
//! kernel's word that a lock is free, the time), tells the pure state machine, and carries out
//! what that says, in its order. It owns no policy: whoever looks for the reason of something
//! finds it in [`crate::core`].

mod observation;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{FuturesUnordered, StreamExt};

pub use self::observation::{Observation, Observer};
use crate::clock::{self, Instant};
pub use crate::core::Start;
use crate::core::{
    Action, Cause, Deadlines, Ending, Event, Exit, Failure, Grant, HealthRecord, Ring, Tenure,
    WorkloadEvent,
};
use crate::doorbell::Doorbell;
use crate::lasting;
use crate::lease::{LeaseStore, RecordUpdate};
use crate::signals::{SignalEvent, Signals};

// The longest sleep between two looks at the clock. Tokio's timers stand still while the machine
// sleeps; the guardian's do not, and it tells of a jump of the clock. This bounds what is left
// where there is no guardian.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
// How long the announcement of a drain may take; nothing waits for it.
const ANNOUNCE: Duration = Duration::from_secs(5);
// How long a word of the command's health may take: what is to be written after it waits for it.
const TELL_HEALTH: Duration = Duration::from_secs(2);
// How long a farewell to those who wait may keep us: it only makes them faster.
const FAREWELL: Duration = Duration::from_millis(300);
// How long an acquire that was given up may take to be undone: whoever asked for our end waits.
const UNDO: Duration = Duration::from_secs(2);

/// What runs while we have control: a command under a guardian, or a program of the library's
/// user. Nothing here may block.
#[async_trait]
pub trait Workload: Send {
    /// Start it, under its deadlines.
    fn start(&mut self, start: Start);
    /// Move its deadlines.
    fn extend(&mut self, deadlines: Deadlines);
    /// Ask it to end, and end it at the earlier of `end_of_grace` and its `kill_at`.
    fn drain(&mut self, signal: i32, end_of_grace: Instant);
    /// End it now.
    fn kill(&mut self);
    /// Hand it a signal of its own (`SIGUSR1`, ...).
    fn pass(&mut self, signal: i32);
    /// Stop it from the terminal, then ourselves, until both are continued.
    fn pause(&mut self);
    /// Forget the last release info: the lease is not ours to give back any more.
    fn forget_release_info(&mut self);
    /// Nothing of it lives, and what we have is about to be given back: why the tenure ended
    /// (`None`: nothing was started in it), and how the command's main process ended, if it ran.
    fn gives_back(&mut self, _cause: Option<&Cause>, _exit: Option<Exit>) {}
    /// We wait for control: run what runs without it, until the next [`Workload::start`].
    fn stand_by(&mut self) {}
    /// Find out whether this machine is fit to take control: [`WorkloadEvent::Condition`] follows.
    fn ask(&mut self, _give_up_at: Instant) {}
    /// A tenure is over, for this reason.
    fn tenure_over(&mut self, _cause: &Cause) {}
    /// Resolves when what runs after the last tenure has ended, or after its grace: the next attempt waits for
    /// that. `None`: nothing runs.
    fn settled(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        None
    }
    /// What happened to it. Cancel-safe.
    async fn next_event(&mut self) -> WorkloadEvent;
}

type Reply = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// What a call to the store came to.
enum Answer {
    Acquired(Result<Grant, Failure>),
    Renewed {
        t0: Instant,
        reply: Result<(), Failure>,
    },
    Released(Result<(), Failure>),
    Recorded(Result<(), Failure>),
    Looked(Result<(), Failure>),
    Announced(Result<(), Failure>),
    HealthTold(Result<(), Failure>),
}

/// Competes by `tenure`'s rules for the lock of `store`, runs `workload` while it has control, and
/// returns when the state machine is done.
pub async fn drive(
    tenure: Tenure,
    store: Arc<dyn LeaseStore>,
    workload: &mut dyn Workload,
    signals: &mut Signals,
    observer: &mut dyn Observer,
    doorbell: Option<Doorbell>,
) -> Ending {
    let wakes = store.info().wakes;
    let _lasting = lasting::keep();
    let mut driver = Driver {
        tenure,
        store,
        workload,
        observer,
        doorbell,
        calls: FuturesUnordered::new(),
        acquiring: false,
        telling: false,
        withdrawn: None,
        expires: Instant::FOREVER,
    };
    driver.tell(Event::Ticked);
    loop {
        if let Some(ending) = driver.tenure.ending().cloned() {
            driver.store.leave(Instant::now() + FAREWELL).await;
            return ending;
        }
        driver.tell_health();
        // A lock that wakes its waiters is only waited for while the core would take it: who is
        // handed a lock and does not want it yet keeps everybody else out.
        let listening = wakes && driver.tenure.listens() && !driver.acquiring;
        let until_free = {
            let store = Arc::clone(&driver.store);
            async move { store.until_free().await }
        };
        let wake_at = driver.wake_at();
        // A signal goes first, because a person waits for it. Then the tree, whose end must be known
        // before a reply of the store is judged. The clock may come last: it is looked at with each of
        // the others (see `tell`).
        tokio::select! {
            biased;
            asked = signals.next() => driver.asked(asked),
            event = driver.workload.next_event() => driver.on_event(event),
            Some(answer) = driver.calls.next(), if !driver.calls.is_empty() => driver.answered(answer),
            () = until_free, if listening => driver.tell(Event::Freed),
            ring = heard(&mut driver.doorbell) => driver.rang(ring),
            () = sleep_until(wake_at) => driver.woke(),
        }
    }
}

/// The competition of one instance: its state machine, store and workload, and the calls under way.
struct Driver<'a> {
    tenure: Tenure,
    store: Arc<dyn LeaseStore>,
    workload: &'a mut dyn Workload,
    observer: &'a mut dyn Observer,
    // Rings for others while we have control, and listens to the holder's while we have not.
    doorbell: Option<Doorbell>,
    calls: FuturesUnordered<Reply>,
    // A call to acquire is under way.
    acquiring: bool,
    // A word of the command's health is under way to the record.
    telling: bool,
    // What it obtains is to be undone; not waited for past this moment.
    withdrawn: Option<Instant>,
    // When the lease runs out by what the store granted last. Counted here and not taken from the core's
    // deadlines: who is told both can hold the one against the other.
    expires: Instant,
}

impl Driver<'_> {
    /// Tells the core what happened, but what time it is before that: after a pause (a stopped
    /// process, a sleeping machine) the first thing done is to look at the clock.
    fn tell(&mut self, event: Event) {
        let now = Instant::now();
        // A reply that waited while we were stopped is so judged by a core that knows the hour.
        if event != Event::Ticked {
            let actions = self.tenure.step(now, Event::Ticked);
            self.act(now, actions);
        }
        let actions = self.tenure.step(now, event);
        self.act(now, actions);
    }

    fn observe(&mut self, observation: Observation<'_>) {
        self.observer.observe(Instant::now(), &observation);
    }

    fn asked(&mut self, asked: SignalEvent) {
        match asked {
            SignalEvent::Stop(signal) => {
                self.observe(Observation::Stops);
                self.tell(Event::StopAsked(signal));
            }
            SignalEvent::Pass(signal) => self.workload.pass(signal),
            SignalEvent::Pause => self.workload.pause(),
            SignalEvent::Cordon(Some(cordon)) => self.tell(Event::Cordoned(cordon)),
            SignalEvent::Cordon(None) => self.tell(Event::Uncordoned),
            SignalEvent::CommandStopping => self.tell(Event::CommandStopping),
        }
    }

    fn on_event(&mut self, event: WorkloadEvent) {
        self.observe(Observation::Workload(&event));
        self.tell(Event::Workload(event));
    }

    fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Acquired(reply) => {
                self.acquiring = false;
                if let Ok(grant) = &reply {
                    self.expires = self.expiry(grant.t0);
                }
                self.observe(Observation::Acquired(&reply));
                match self.withdrawn.take() {
                    Some(give_up_at) => self.undo(give_up_at),
                    None => {
                        let granted = reply.is_ok();
                        self.tell(Event::Acquired(reply));
                        // After the start, which waits for nobody.
                        if granted {
                            self.open_doorbell();
                        }
                    }
                }
            }
            Answer::Renewed { t0, reply } => {
                let (now, answer) = (Instant::now(), reply.clone());
                if reply.is_ok() {
                    // Never back: answers can overtake each other.
                    self.expires = self.expires.max(self.expiry(t0));
                }
                // First: it moves the guardian's deadline, which no observer may hold up.
                self.tell(Event::Renewed { t0, reply });
                let reply = &answer;
                self.observer
                    .observe(now, &Observation::Renewed { t0, reply });
            }
            Answer::Released(reply) => {
                // First: somebody waits for it, and after the core has heard of it we may end.
                if let Some(doorbell) = &mut self.doorbell {
                    match &reply {
                        Ok(()) => doorbell.released(),
                        Err(_) => doorbell.close(),
                    }
                }
                self.tell(Event::Released(reply));
            }
            Answer::Recorded(reply) => self.tell(Event::Recorded(reply)),
            Answer::Looked(reply) => self.tell(Event::Looked(reply)),
            Answer::Announced(reply) => {
                // Standbys come a little later then, and nothing else.
                if let Err(failure) = reply {
                    tracing::debug!("the drain was not announced: {failure}");
                    self.doubted(&failure);
                }
            }
            Answer::HealthTold(reply) => {
                self.telling = false;
                if let Err(failure) = reply {
                    tracing::debug!("the command's health was not recorded: {failure}");
                    if let Some(record) = self.tenure.health_record() {
                        record.was_lost();
                    }
                    self.doubted(&failure);
                }
            }
        }
    }

    /// The store said this to what was no question about the lease.
    fn doubted(&mut self, failure: &Failure) {
        if let Failure::Lost { .. } = failure {
            let now = Instant::now();
            let actions = self.tenure.doubted(now);
            self.act(now, actions);
        }
    }

    fn rang(&mut self, ring: Ring) {
        self.observe(Observation::Rang(ring));
        let now = Instant::now();
        let actions = self.tenure.rang(now, ring);
        self.act(now, actions);
    }

    /// Begins to ring, as standbys find it in our record.
    fn open_doorbell(&mut self) {
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.open_or_warn();
        }
    }

    fn woke(&mut self) {
        let now = Instant::now();
        if self.withdrawn.is_some_and(|give_up_at| now >= give_up_at) {
            // The store did not answer in time. Whatever the attempt obtains now is undone by the
            // same lease id, as far as that can be done at all; else it runs out.
            self.withdrawn = None;
            self.acquiring = false;
            self.telling = false;
            self.calls.clear();
            self.undo(now + UNDO);
        }
        self.tell(Event::Ticked);
    }

    /// When a lease that was granted to a request of this moment runs out.
    fn expiry(&self, t0: Instant) -> Instant {
        let lease = self.store.info().lease;
        lease.map_or(Instant::FOREVER, |lease| t0 + lease)
    }

    /// When the loop has to come back though nothing happened.
    fn wake_at(&self) -> Instant {
        let health_due = match self.telling {
            true => Instant::FOREVER,
            false => self.tenure.health_due(),
        };
        self.tenure
            .wake_at()
            .min(self.withdrawn.unwrap_or(Instant::FOREVER))
            .min(health_due)
    }

    /// Has the record say how the command is, if that is another thing than it says.
    fn tell_health(&mut self) {
        let now = Instant::now();
        if self.telling || now < self.tenure.health_due() {
            return;
        }
        let health = self.tenure.health_record().map(|record| record.write(now));
        if let Some(Some(health)) = health {
            self.telling = true;
            let store = Arc::clone(&self.store);
            let give_up_at = now + TELL_HEALTH;
            self.calls.push(Box::pin(async move {
                let update = RecordUpdate::Health(health);
                Answer::HealthTold(store.update_record(update, give_up_at).await)
            }));
        }
    }

    fn undo(&mut self, give_up_at: Instant) {
        let store = Arc::clone(&self.store);
        self.calls.push(Box::pin(async move {
            Answer::Released(store.release(give_up_at).await)
        }));
    }

    fn act(&mut self, now: Instant, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Acquire { give_up_at } => {
                    self.acquiring = true;
                    let store = Arc::clone(&self.store);
                    let limit = give_up_at.since(now);
                    let settled = self.workload.settled();
                    self.calls.push(Box::pin(async move {
                        let give_up_at = match settled {
                            Some(settled) => {
                                settled.await;
                                Instant::now() + limit
                            }
                            None => give_up_at,
                        };
                        Answer::Acquired(store.acquire(give_up_at).await)
                    }));
                }
                Action::Ask { give_up_at } => self.workload.ask(give_up_at),
                Action::Look { give_up_at } => {
                    let store = Arc::clone(&self.store);
                    self.calls.push(Box::pin(async move {
                        Answer::Looked(store.look_for_result(give_up_at).await)
                    }));
                }
                Action::Withdraw { give_up_at } => self.withdrawn = Some(give_up_at),
                Action::Renew { give_up_at } => {
                    let store = Arc::clone(&self.store);
                    self.calls.push(Box::pin(async move {
                        // Read when the request is about to be sent, which is not when it was ordered.
                        let t0 = Instant::now();
                        Answer::Renewed {
                            t0,
                            reply: store.renew(give_up_at).await,
                        }
                    }));
                }
                Action::Start(start) => {
                    // Told first: what comes of the start is told after it.
                    self.observe(Observation::Starts {
                        kill_at: start.deadlines.kill_at,
                        expires: self.expires,
                        slot: self.store.info().slot,
                    });
                    self.workload.start(start);
                }
                // The guardian first, here and in what follows: it is what keeps time.
                Action::Extend(deadlines) => {
                    self.workload.extend(deadlines);
                    self.observe(Observation::Extended {
                        kill_at: deadlines.kill_at,
                        expires: self.expires,
                    });
                }
                Action::Drain {
                    signal,
                    end_of_grace: kill_at,
                } => {
                    self.workload.drain(signal, kill_at);
                    self.observe(Observation::Drains { kill_at });
                }
                Action::Kill => {
                    self.workload.kill();
                    let kill_at = Instant::now();
                    self.observe(Observation::Drains { kill_at });
                }
                Action::Announce => {
                    // Not with the drain itself: most end at once, and the release is what counts.
                    if let Some(doorbell) = &self.doorbell {
                        doorbell.draining();
                    }
                    let store = Arc::clone(&self.store);
                    let give_up_at = now + ANNOUNCE;
                    let record = self.tenure.health_record();
                    let health = record.map(HealthRecord::announce).unwrap_or_default();
                    self.calls.push(Box::pin(async move {
                        let update = RecordUpdate::Draining { health };
                        Answer::Announced(store.update_record(update, give_up_at).await)
                    }));
                }
                Action::Record {
                    outcome,
                    give_up_at,
                } => {
                    let store = Arc::clone(&self.store);
                    self.calls.push(Box::pin(async move {
                        let update = RecordUpdate::Outcome(outcome);
                        Answer::Recorded(store.update_record(update, give_up_at).await)
                    }));
                }
                Action::Release { give_up_at } => {
                    // What is still under way would ask for a lease that is about to be no more.
                    self.calls.clear();
                    self.telling = false;
                    self.workload.forget_release_info();
                    if let Some((cause, exit)) = self.tenure.leaving() {
                        self.workload.gives_back(cause, exit);
                    }
                    self.undo(give_up_at);
                }
                Action::Abandon => {
                    // What is still under way is about a lease that is ours no more.
                    self.calls.clear();
                    self.telling = false;
                    self.workload.forget_release_info();
                    if let Some(doorbell) = &mut self.doorbell {
                        doorbell.close();
                    }
                }
                Action::Attend { bell } => {
                    if let Some(doorbell) = &mut self.doorbell {
                        doorbell.attend(bell);
                    }
                }
                Action::StandBy => self.workload.stand_by(),
                Action::TenureOver { cause } => self.workload.tenure_over(&cause),
                Action::Notify(notice) => {
                    let lock = self.store.info().name;
                    let (notice, lock) = (&notice, lock.as_str());
                    self.observer
                        .observe(now, &Observation::Notice { notice, lock });
                }
            }
        }
    }
}

/// The next ring; without a doorbell there is none.
async fn heard(doorbell: &mut Option<Doorbell>) -> Ring {
    match doorbell {
        Some(doorbell) => doorbell.next().await,
        None => std::future::pending().await,
    }
}

/// Sleeps until `at`, or for [`LONGEST_SLEEP`], whichever is sooner.
async fn sleep_until(at: Instant) {
    let span = at.since(Instant::now()).min(LONGEST_SLEEP);
    clock::sleep(span).await;
}
