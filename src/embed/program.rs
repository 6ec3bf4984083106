//! The program as a workload: its command is whoever asks whether it has control.
//!
//! Driven by the driver on a task of the program's runtime; [`Shared`] is what that task and those
//! who ask have in common. A control that has ended must never be seen again under the same token.

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

// For how long a store that has never answered is asked; as the command line does it.
const PATIENCE: Duration = Duration::from_secs(30);
/// For how long a lock without a deadline is kept for guards that have lost it; the command line's `--grace`.
const GRACE: Duration = Duration::from_secs(10);

/// Where this instance stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Control {
    /// Another instance is in control, or nobody is yet.
    StandingBy {
        /// The holder, as far as it is known.
        holder: Option<String>,
    },
    /// We are in control.
    InControl {
        /// The fencing token: give it to every resource that can refuse an older one.
        token: u64,
    },
    /// Control was lost, is in doubt or is being given back: end what needs it now. The lease is not
    /// given back before its time, unless it is said that the work has ended: by the end of the
    /// [`Guard`](super::Guard), or by [`TrafficCop::stop`](super::TrafficCop::stop).
    Leaving,
    /// The competition is over.
    Ended,
}

/// What the task that competes and those who ask it have in common.
pub(super) struct Shared {
    pub(super) lock: String,
    // Until when we are in control; 0: we are not. Beside the state, because a lock that is asked for
    // before every step of a program must cost no more than a read of memory and of the clock.
    deadline: AtomicU64,
    state: watch::Sender<Control>,
    // The program has said that its work has ended, whatever it was.
    ended: AtomicBool,
    // It has said that its work goes on, since that was looked at last.
    alive: AtomicBool,
    pub(super) guards: Mutex<Guards>,
    // A guard has ended.
    pub(super) work_ended: Notify,
    ending: OnceLock<Ending>,
}

impl Shared {
    pub(super) fn new(lock: &str, state: Control, until: Instant, guards: Guards) -> Arc<Shared> {
        Arc::new(Shared {
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

    /// Whether the deadline is ahead of us.
    pub(super) fn is_in_time(&self) -> bool {
        Instant::now().as_nanos() < self.deadline.load(Ordering::Acquire)
    }

    pub(super) fn watch(&self) -> watch::Receiver<Control> {
        self.state.subscribe()
    }

    /// The token of the present tenure.
    pub(super) fn token(&self) -> Option<u64> {
        match *self.state.borrow() {
            Control::InControl { token } => Some(token),
            _ => None,
        }
    }

    /// The tenure of this token ends here, if it is the present one.
    pub(super) fn leave(&self, token: u64) {
        // Judged and changed under one lock: a guard that was kept beyond its tenure must not end the
        // next one, which may begin at this very moment.
        self.state.send_if_modified(|state| {
            let is_it = *state == Control::InControl { token };
            if is_it {
                self.deadline.store(0, Ordering::Release);
                *state = Control::Leaving;
            }
            is_it
        });
    }

    /// The program says that its work goes on.
    pub(super) fn said_alive(&self) {
        self.alive.store(true, Ordering::Release);
    }

    /// The program says that its work has ended.
    pub(super) fn end_work(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(super) fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    /// It is all over, and this is how; without a word only that it is.
    pub(super) fn over(&self, ending: Option<&Ending>) {
        // First: nobody may hear of the end and still be told that it is in control.
        self.deadline.store(0, Ordering::Release);
        if let Some(ending) = ending {
            // There is one task, which ends once.
            let _set = self.ending.set(ending.clone());
        }
        self.state.send_if_modified(|state| {
            let is_news = *state != Control::Ended;
            *state = Control::Ended;
            is_news
        });
    }
}

/// Sees to it that nobody waits for a task that is gone, however it went.
struct Task(Arc<Shared>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.over(None);
    }
}

/// How a program competes: there is no stop but by itself, and it knows when its work has ended.
pub(super) fn rules(budget: Option<Budget>, poll: Option<Duration>, if_lost: IfLost) -> Rules {
    Rules {
        budget,
        poll,
        // Whoever does not want to wait any more drops the future.
        wait: None,
        patience: PATIENCE,
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

/// What stops a competition, and the task that competes.
pub(super) type Spawned = (oneshot::Sender<()>, JoinHandle<Ending>);

/// Begins to compete, on a task of this runtime.
pub(super) fn spawn(
    runtime: &Handle,
    shared: &Arc<Shared>,
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
    // Moved into the task, so that its end is seen however it ends: by a panic, or with the runtime.
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

/// What says whether control may be taken.
pub(super) type Condition = Box<dyn Fn() -> bool + Send>;

/// The program as a workload.
pub(super) struct Program {
    shared: Arc<Shared>,
    token: u64,
    runs: bool,
    // It was asked to end. Only then is the word that its work has ended an empty tree: before, the
    // core would take it for a command that ended by itself.
    drains: bool,
    condition: Option<Condition>,
    // Whether it goes on, where it is to say so.
    health: Health,
    event: (
        mpsc::UnboundedSender<WorkloadEvent>,
        mpsc::UnboundedReceiver<WorkloadEvent>,
    ),
}

impl Program {
    pub(super) fn new(shared: &Arc<Shared>, watchdog: Option<Duration>) -> Program {
        Program {
            shared: Arc::clone(shared),
            token: 0,
            runs: false,
            drains: false,
            condition: None,
            health: Health::new(HealthRules {
                watchdog,
                // What competes has started: it is counted from when control was obtained.
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
        // We hold the receiver ourselves.
        let _open = self.event.0.send(event);
    }

    fn leave(&mut self) {
        // Also where nothing runs: whoever asks is told no.
        self.shared.deadline.store(0, Ordering::Release);
        self.health.ended();
        if self.runs {
            self.shared.leave(self.token);
        }
    }

    fn finish(&mut self) {
        self.leave();
        // Once for each start: a second word would be that of a tree of the next tenure.
        if std::mem::take(&mut self.runs) {
            self.tell(WorkloadEvent::TreeEmpty { at: Instant::now() });
        }
    }

    /// Gives control up where the program has not said for too long that its work goes on.
    fn look(&mut self) {
        let now = Instant::now();
        if self.shared.alive.swap(false, Ordering::AcqRel) {
            let _answered = self.health.hears(now, WatchdogWord::Alive);
        }
        if let Look::Hung(_) = self.health.look(now) {
            // As where its last guard has ended: whoever asks for the next one has work that goes on.
            let why = "it has not said that its work goes on";
            self.shared.guards().resign(why);
        }
    }

    /// Says that nothing runs any more, once that was asked for and the program has said so.
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
        // The deadline first: who sees the token must not see an earlier tenure's.
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
        // A guard that ends meanwhile has set it to 0, and that stays.
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

    // Nothing can end the program's own code. The tree counts as empty, because the lease is about to
    // end whatever is said here; that is the part of the promise which the program has to keep.
    fn kill(&mut self) {
        self.finish();
    }

    fn pass(&mut self, _signal: i32) {}

    fn pause(&mut self) {}

    fn forget_release_info(&mut self) {}

    fn ask(&mut self, _give_up_at: Instant) {
        let is_fit = self.condition.as_ref().is_none_or(|holds| holds());
        self.tell(WorkloadEvent::Condition(
            is_fit.then_some(()).ok_or(Unfit::Said),
        ));
    }

    async fn next_event(&mut self) -> WorkloadEvent {
        loop {
            tokio::select! {
                // It never ends: we hold the sender ourselves.
                Some(event) = self.event.1.recv() => return event,
                () = self.shared.work_ended.notified() => {}
                () = clock::sleep(self.health.wake_at().since(Instant::now())) => self.look(),
            }
            self.finish_if_over();
        }
    }
}

/// The observer that tells those who watch [`Control`].
struct Watchers(Arc<Shared>);

impl Observer for Watchers {
    fn observe(&mut self, _now: Instant, observation: &Observation<'_>) {
        let holder = match observation {
            Observation::Notice {
                notice: Notice::StandingBy(info),
                ..
            } => info.holder.clone(),
            // As which the end of a guard is known to the core.
            Observation::Notice {
                notice: Notice::Cordoned { .. } | Notice::Unfit(_),
                ..
            } => None,
            _ => return,
        };
        self.0.state.send_replace(Control::StandingBy { holder });
    }
}
