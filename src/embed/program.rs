//! The program as a workload: it asks whether it has control.
//!
//! A control that has ended must never be seen again under the same token.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::Guards;
use crate::clock::{self, Instant};
use crate::core::{
    AUTH_PATIENCE, Budget, Cordon, Deadlines, Ending, Health, HealthRules, HoldPolicy, IfLost,
    Look, Notice, Rules, Tenure, Unfit, WatchdogWord, WorkloadEvent,
};
use crate::doorbell::Doorbell;
use crate::driver::{Observation, Observer, Start, Workload, drive};
use crate::lease::LeaseStore;
use crate::signals::Signals;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// A lock without a deadline is kept so long for guards that have lost it.
const GRACE: Duration = Duration::from_secs(10);

/// State of this instance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// Another instance is in control, or none is yet.
    StandingBy {
        /// Name of the holder, if it is known.
        holder: Option<String>,
    },
    /// This instance is in control.
    InControl {
        /// Fencing token.
        token: u64,
    },
    /// Control was lost, is in doubt or is being given back: end the work now. The lease ends in due time, or
    /// with the work.
    Leaving,
    /// The competition is over.
    Ended,
}

pub(super) struct SharedProgram {
    pub(super) lock: String,
    // End of control, or 0. Not in `state`: a question before every step must only read memory and the clock.
    deadline: AtomicU64,
    state: watch::Sender<Control>,
    ended: AtomicBool,
    alive: AtomicBool,
    pub(super) guards: Mutex<Guards>,
    pub(super) work_ended: Notify,
    ending: OnceLock<Ending>,
}

impl SharedProgram {
    pub(super) fn new(
        lock: &str,
        state: Control,
        until: Instant,
        guards: Guards,
    ) -> Arc<SharedProgram> {
        Arc::new(SharedProgram {
            lock: lock.to_owned(),
            deadline: AtomicU64::new(until.as_nanos()),
            state: watch::Sender::new(state),
            ended: AtomicBool::new(false),
            alive: AtomicBool::new(false),
            guards: Mutex::new(guards),
            work_ended: Notify::new(),
            ending: OnceLock::new(),
        })
    }

    pub(super) fn is_in_time(&self) -> bool {
        Instant::now().as_nanos() < self.deadline.load(Ordering::Acquire)
    }

    pub(super) fn watch(&self) -> watch::Receiver<Control> {
        self.state.subscribe()
    }

    pub(super) fn token(&self) -> Option<u64> {
        match *self.state.borrow() {
            Control::InControl { token } => Some(token),
            _ => None,
        }
    }

    pub(super) fn leave(&self, token: u64) {
        // One lock: the next tenure may begin at this moment.
        self.state.send_if_modified(|state| {
            let is_it = *state == Control::InControl { token };
            if is_it {
                self.deadline.store(0, Ordering::Release);
                *state = Control::Leaving;
            }
            is_it
        });
    }

    pub(super) fn said_alive(&self) {
        self.alive.store(true, Ordering::Release);
    }

    pub(super) fn end_work(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(super) fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    pub(super) fn over(&self, ending: Option<&Ending>) {
        // First: no task may see the end and still have control.
        self.deadline.store(0, Ordering::Release);
        if let Some(ending) = ending {
            let _set = self.ending.set(ending.clone());
        }
        self.state.send_if_modified(|state| {
            let is_news = *state != Control::Ended;
            *state = Control::Ended;
            is_news
        });
    }
}

/// Reports the end of the task, however it ends: no waiter may wait for ever.
struct Task(Arc<SharedProgram>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.over(None);
    }
}

pub(super) fn rules(budget: Option<Budget>, poll: Option<Duration>, if_lost: IfLost) -> Rules {
    Rules {
        budget,
        poll,
        // A program that will not wait drops the future.
        wait: None,
        patience: CONNECT_TIMEOUT,
        auth_patience: AUTH_PATIENCE,
        grace: budget.map_or(GRACE, |budget| budget.grace_on_loss),
        stop_signal: libc::SIGTERM,
        if_lost,
        hold_policy: HoldPolicy::default(),
        once: None,
        on_terminal: false,
        seed: fastrand::u64(..),
    }
}

pub(super) type Spawned = (oneshot::Sender<()>, JoinHandle<Ending>);

pub(super) fn spawn(
    runtime: &Handle,
    shared: &Arc<SharedProgram>,
    tenure: Tenure,
    store: Arc<dyn LeaseStore>,
    mut workload: impl Workload + 'static,
    cordons: Option<mpsc::UnboundedReceiver<Option<Cordon>>>,
    doorbell: Option<Doorbell>,
) -> Spawned {
    let (stop, asked) = oneshot::channel();
    let mut signals = Signals::of_program(asked);
    if let Some(cordons) = cordons {
        signals.add_cordons(cordons);
    }
    let mut observer = Watchers(Arc::clone(shared));
    // A panic or the end of the runtime drops it, too.
    let competing = Task(Arc::clone(shared));
    let task = runtime.spawn(async move {
        let ending = drive(
            tenure,
            store,
            &mut workload,
            &mut signals,
            &mut observer,
            doorbell,
        )
        .await;
        competing.0.over(Some(&ending));
        ending
    });
    (stop, task)
}

pub(super) type Condition = Box<dyn Fn() -> bool + Send>;

pub(super) struct Program {
    shared: Arc<SharedProgram>,
    token: u64,
    runs: bool,
    // Earlier the core would take an empty tree for a command that ended by itself.
    drains: bool,
    condition: Option<Condition>,
    health: Health,
    event: (
        mpsc::UnboundedSender<WorkloadEvent>,
        mpsc::UnboundedReceiver<WorkloadEvent>,
    ),
}

impl Program {
    pub(super) fn new(shared: &Arc<SharedProgram>, watchdog: Option<Duration>) -> Program {
        Program {
            shared: Arc::clone(shared),
            token: 0,
            runs: false,
            drains: false,
            condition: None,
            health: Health::new(HealthRules {
                watchdog,
                // A competing program has started: the time counts from control on.
                start: watchdog.unwrap_or_default(),
                probe: None,
            }),
            event: mpsc::unbounded_channel(),
        }
    }

    pub(super) fn only_if(mut self, condition: Option<Condition>) -> Program {
        self.condition = condition;
        self
    }

    fn tell(&self, event: WorkloadEvent) {
        // Cannot fail: `self` has the receiver.
        let _open = self.event.0.send(event);
    }

    fn leave(&mut self) {
        // Even if nothing runs, the answer is now no.
        self.shared.deadline.store(0, Ordering::Release);
        self.health.ended();
        if self.runs {
            self.shared.leave(self.token);
        }
    }

    fn finish(&mut self) {
        self.leave();
        // A second event would count for the next tenure.
        if std::mem::take(&mut self.runs) {
            self.tell(WorkloadEvent::TreeEmpty { at: Instant::now() });
        }
    }

    fn look(&mut self) {
        let now = Instant::now();
        if self.shared.alive.swap(false, Ordering::AcqRel) {
            let _answered = self.health.hears(now, WatchdogWord::Alive);
        }
        if let Look::Hung(_) = self.health.look(now) {
            // As after the last guard: a program that asks for the next one works again.
            let why = "it has not said that its work goes on";
            self.shared.guards().resign(why);
        }
    }

    fn finish_if_over(&mut self) {
        let over = || {
            let guards = self.shared.guards();
            self.shared.ended.load(Ordering::Acquire) || guards.has_ended(self.token)
        };
        if self.drains && over() {
            self.finish();
        }
    }
}

#[async_trait]
impl Workload for Program {
    fn start(&mut self, start: Start) {
        self.runs = true;
        self.drains = false;
        self.token = start.token;
        self.shared.alive.store(false, Ordering::Release);
        self.health.started(Instant::now());
        // The deadline first: a reader that sees the token must not see an earlier deadline.
        self.shared
            .deadline
            .store(start.deadlines.term_at.as_nanos(), Ordering::Release);
        self.shared
            .state
            .send_replace(Control::InControl { token: start.token });
        self.tell(WorkloadEvent::Started {
            pid: i32::try_from(std::process::id()).unwrap_or(0),
        });
    }

    fn extend(&mut self, deadlines: Deadlines) {
        // A guard that ended meanwhile has set it to 0, and that stays.
        let moved = |until| (self.runs && until != 0).then_some(deadlines.term_at.as_nanos());
        let _ended = self
            .shared
            .deadline
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, moved);
    }

    fn drain(&mut self, _signal: i32, _end_of_grace: Instant) {
        self.leave();
        self.drains = true;
        self.finish_if_over();
    }

    // Nothing can end the program's own code: stopping in time is its part of the promise. The lease is about
    // to end, so the tree counts as empty.
    fn kill(&mut self) {
        self.finish();
    }

    fn pass(&mut self, _signal: i32) {}

    fn pause(&mut self) {}

    fn forget_release_info(&mut self) {}

    fn ask(&mut self, _give_up_at: Instant) {
        let is_fit = self.condition.as_ref().is_none_or(|holds| holds());
        self.tell(WorkloadEvent::Condition(
            is_fit.then_some(()).ok_or(Unfit::ProgramRefused),
        ));
    }

    async fn next_event(&mut self) -> WorkloadEvent {
        loop {
            tokio::select! {
                // Never `None`: `self` has the sender.
                Some(event) = self.event.1.recv() => return event,
                () = self.shared.work_ended.notified() => {}
                () = clock::sleep(self.health.wake_at().since(Instant::now())) => self.look(),
            }
            self.finish_if_over();
        }
    }
}

struct Watchers(Arc<SharedProgram>);

impl Observer for Watchers {
    fn observe(&mut self, _now: Instant, observation: &Observation<'_>) {
        let holder = match observation {
            Observation::Notice {
                notice: Notice::StandingBy(info),
                ..
            } => info.holder.clone(),
            // To the core, the end of the last guard is a cordon.
            Observation::Notice {
                notice: Notice::Cordoned { .. } | Notice::Unfit(_),
                ..
            } => None,
            _ => return,
        };
        self.0.state.send_replace(Control::StandingBy { holder });
    }
}
