//! The driver: the one place where a lease and a process meet.
//!
//! It passes each input to the pure state machine, and carries out its actions in order. It has no policy.

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

// Tokio's timers stop while the machine sleeps, and only a guardian reports the jump.
const CLOCK_INTERVAL: Duration = Duration::from_secs(3600);
// Nothing waits for this announcement.
const ANNOUNCE: Duration = Duration::from_secs(5);
// Later writes wait for this one.
const TELL_HEALTH: Duration = Duration::from_secs(2);
// The last message only makes standbys faster.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(300);
// A stop request waits until an acquire is undone.
const UNDO: Duration = Duration::from_secs(2);

/// Work under control: a command under a guardian, or a library user's program. Nothing here may block.
#[async_trait]
pub trait Workload: Send {
    /// Starts it, with its deadlines.
    fn start(&mut self, start: Start);
    /// Moves its deadlines.
    fn extend(&mut self, deadlines: Deadlines);
    /// Tells it to end, and kills it at the earlier of `end_of_grace` and its `kill_at`.
    fn drain(&mut self, signal: i32, end_of_grace: Instant);
    /// Kills it.
    fn kill(&mut self);
    /// Passes a signal to it (`SIGUSR1`, ...).
    fn pass(&mut self, signal: i32);
    /// Stops it as from the terminal, and this process, until both are continued.
    fn pause(&mut self);
    /// Forgets the release info: this instance must not release the lease any more.
    fn forget_release_info(&mut self);
    /// Takes why the tenure ended (`None`: nothing was started) and the main process's exit, before the
    /// release, with no process left.
    fn gives_back(&mut self, _cause: Option<&Cause>, _exit: Option<Exit>) {}
    /// Runs the standby command until the next [`Workload::start`].
    fn stand_by(&mut self) {}
    /// Checks the machine's fitness for control: [`WorkloadEvent::Condition`] follows.
    fn ask(&mut self, _give_up_at: Instant) {}
    /// Handles the end of a tenure.
    fn tenure_over(&mut self, _cause: &Cause) {}
    /// Resolves when the --on-lost hook has ended, or after its grace: the next acquire waits for it.
    fn settled(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        None
    }
    /// Waits for its next event. Cancel-safe.
    async fn next_event(&mut self) -> WorkloadEvent;
}

type Reply = Pin<Box<dyn Future<Output = CallAnswer> + Send>>;

enum CallAnswer {
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

/// Competes for the lock of `store`, and runs `workload` while it has control.
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
            driver.store.leave(Instant::now() + LEAVE_TIMEOUT).await;
            return ending;
        }
        driver.tell_health();
        // An instance that is handed a lock too early keeps all others out.
        let listening = wakes && driver.tenure.listens() && !driver.acquiring;
        let until_free = {
            let store = Arc::clone(&driver.store);
            async move { store.until_free().await }
        };
        let wake_at = driver.wake_at();
        // Signals first: a person waits. Then the tree, whose end must be known before a reply of the store
        // is judged.
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

struct Driver<'a> {
    tenure: Tenure,
    store: Arc<dyn LeaseStore>,
    workload: &'a mut dyn Workload,
    observer: &'a mut dyn Observer,
    doorbell: Option<Doorbell>,
    calls: FuturesUnordered<Reply>,
    acquiring: bool,
    telling: bool,
    withdrawn: Option<Instant>,
    // By the store's last grant, not the core's deadlines: observers compare the two.
    expires: Instant,
}

impl Driver<'_> {
    fn tell(&mut self, event: Event) {
        let now = Instant::now();
        // The time first: after a pause of the process or machine, the core must judge the reply by it.
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

    fn answered(&mut self, answer: CallAnswer) {
        match answer {
            CallAnswer::Acquired(reply) => {
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
                        // After the start, which must not wait.
                        if granted {
                            self.open_doorbell();
                        }
                    }
                }
            }
            CallAnswer::Renewed { t0, reply } => {
                let (now, answer) = (Instant::now(), reply.clone());
                if reply.is_ok() {
                    // Answers can overtake each other.
                    self.expires = self.expires.max(self.expiry(t0));
                }
                // First: no observer may delay the guardian's deadline.
                self.tell(Event::Renewed { t0, reply });
                let reply = &answer;
                self.observer
                    .observe(now, &Observation::Renewed { t0, reply });
            }
            CallAnswer::Released(reply) => {
                // First: a standby waits for it, and this process may end next.
                if let Some(doorbell) = &mut self.doorbell {
                    match &reply {
                        Ok(()) => doorbell.released(),
                        Err(_) => doorbell.close(),
                    }
                }
                self.tell(Event::Released(reply));
            }
            CallAnswer::Recorded(reply) => self.tell(Event::Recorded(reply)),
            CallAnswer::Looked(reply) => self.tell(Event::Looked(reply)),
            CallAnswer::Announced(reply) => {
                // Standbys only notice the drain later.
                if let Err(failure) = reply {
                    tracing::debug!("the drain was not announced: {failure}");
                    self.doubted(&failure);
                }
            }
            CallAnswer::HealthTold(reply) => {
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

    fn open_doorbell(&mut self) {
        if let Some(doorbell) = &mut self.doorbell {
            doorbell.open_or_warn();
        }
    }

    fn woke(&mut self) {
        let now = Instant::now();
        if self.withdrawn.is_some_and(|give_up_at| now >= give_up_at) {
            // A late grant is undone with the same lease id, or expires.
            self.withdrawn = None;
            self.acquiring = false;
            self.telling = false;
            self.calls.clear();
            self.undo(now + UNDO);
        }
        self.tell(Event::Ticked);
    }

    fn expiry(&self, t0: Instant) -> Instant {
        let lease = self.store.info().lease;
        lease.map_or(Instant::FOREVER, |lease| t0 + lease)
    }

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
                CallAnswer::HealthTold(store.update_record(update, give_up_at).await)
            }));
        }
    }

    fn undo(&mut self, give_up_at: Instant) {
        let store = Arc::clone(&self.store);
        self.calls.push(Box::pin(async move {
            CallAnswer::Released(store.release(give_up_at).await)
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
                        CallAnswer::Acquired(store.acquire(give_up_at).await)
                    }));
                }
                Action::Ask { give_up_at } => self.workload.ask(give_up_at),
                Action::Look { give_up_at } => {
                    let store = Arc::clone(&self.store);
                    self.calls.push(Box::pin(async move {
                        CallAnswer::Looked(store.look_for_result(give_up_at).await)
                    }));
                }
                Action::Withdraw { give_up_at } => self.withdrawn = Some(give_up_at),
                Action::Renew { give_up_at } => {
                    let store = Arc::clone(&self.store);
                    self.calls.push(Box::pin(async move {
                        // The request may be sent much later than the order.
                        let t0 = Instant::now();
                        CallAnswer::Renewed {
                            t0,
                            reply: store.renew(give_up_at).await,
                        }
                    }));
                }
                Action::Start(start) => {
                    // News of the start comes after it.
                    self.observe(Observation::Starts {
                        kill_at: start.deadlines.kill_at,
                        expires: self.expires,
                        slot: self.store.info().slot,
                    });
                    self.workload.start(start);
                }
                // The guardian first, here and below: it keeps the time.
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
                    // Not with the drain itself: most trees end at once.
                    if let Some(doorbell) = &self.doorbell {
                        doorbell.draining();
                    }
                    let store = Arc::clone(&self.store);
                    let give_up_at = now + ANNOUNCE;
                    let record = self.tenure.health_record();
                    let health = record.map(HealthRecord::announce).unwrap_or_default();
                    self.calls.push(Box::pin(async move {
                        let update = RecordUpdate::Draining { health };
                        CallAnswer::Announced(store.update_record(update, give_up_at).await)
                    }));
                }
                Action::Record {
                    outcome,
                    give_up_at,
                } => {
                    let store = Arc::clone(&self.store);
                    self.calls.push(Box::pin(async move {
                        let update = RecordUpdate::Outcome(outcome);
                        CallAnswer::Recorded(store.update_record(update, give_up_at).await)
                    }));
                }
                Action::Release { give_up_at } => {
                    // Pending calls are about a lease that is about to end.
                    self.calls.clear();
                    self.telling = false;
                    self.workload.forget_release_info();
                    if let Some((cause, exit)) = self.tenure.leaving() {
                        self.workload.gives_back(cause, exit);
                    }
                    self.undo(give_up_at);
                }
                Action::Abandon => {
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

async fn heard(doorbell: &mut Option<Doorbell>) -> Ring {
    match doorbell {
        Some(doorbell) => doorbell.next().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Instant) {
    let span = at.since(Instant::now()).min(CLOCK_INTERVAL);
    clock::sleep(span).await;
}
