//! The library's face: compete for control inside a program, instead of wrapping a command.
//!
//! Used by programs; `trafficcop run` does not need it. It drives the same [`drive`] with a workload
//! that is the calling program itself: what a guardian would do by signals is done here by
//! [`TrafficCop::has_control`] turning false. Nothing here can stop the program's own code, so the
//! promise is only as good as its asking.

mod message;

pub use message::MessageLock;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::clock::Instant;
use crate::core::{Budget, BudgetError, Ending, HoldPolicy, IfLost, Notice, Rules, Tenure};
use crate::driver::{Observer, Start, Workload, drive};
use crate::guardian::WorkloadEvent;
use crate::lease::LeaseStore;
use crate::signals::Signals;

/// Where this instance stands.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Control was lost or is in doubt: end what needs it now. The lease is not given back before
    /// its time, unless [`TrafficCop::stop`] says that the work has ended.
    Leaving,
    /// The competition is over.
    Ended,
}

/// How to compete: see [`TrafficCop::with_store`].
pub struct Builder {
    store: Arc<dyn LeaseStore>,
    budget: Option<Budget>,
    poll: Duration,
}

impl Builder {
    /// Changes how the lease's time is divided; only for stores whose lock has a deadline.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Builder {
        self.budget = self.budget.map(|_| budget);
        self
    }

    /// Time between two looks at a lock that somebody else holds (default 2 s, spread by ±20 %);
    /// an eighth of it while that one drains, but between 250 ms and 2 s.
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Builder {
        self.poll = poll;
        self
    }

    /// Begins to compete, on a task of the current tokio runtime.
    ///
    /// # Errors
    /// The inequality that the budget breaks.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(self) -> Result<TrafficCop, BudgetError> {
        if let Some(budget) = &self.budget {
            budget.validate()?;
        }
        let terms = self.store.info();
        let rules = Rules {
            budget: self.budget,
            poll: (!terms.wakes).then_some(self.poll),
            wait: None,
            patience: Duration::from_secs(30),
            grace: self
                .budget
                .map_or(Duration::ZERO, |budget| budget.grace_on_loss),
            stop_signal: libc::SIGTERM,
            if_lost: IfLost::Compete,
            hold_policy: HoldPolicy::default(),
            once: None,
            seed: fastrand::u64(..),
        };
        let deadline = Arc::new(AtomicU64::new(0));
        let (state, watched) = watch::channel(Control::StandingBy { holder: None });
        let state = Arc::new(state);
        let (stop, asked) = oneshot::channel();
        let ended = Arc::new(AtomicBool::new(false));
        let mut workload = Program::new(
            Arc::clone(&deadline),
            Arc::clone(&state),
            Arc::clone(&ended),
        );
        let mut signals = Signals::of_program(asked);
        let mut observer = Watchers {
            state: Arc::clone(&state),
        };
        let tenure = Tenure::new(rules, Instant::now());
        let store = self.store;
        let task = tokio::spawn(async move {
            let ending = drive(tenure, store, &mut workload, &mut signals, &mut observer).await;
            workload.deadline.store(0, Ordering::Release);
            state.send_replace(Control::Ended);
            ending
        });
        Ok(TrafficCop {
            deadline,
            watched,
            ended,
            stop,
            task,
        })
    }
}

/// One instance that competes for control inside a program.
///
/// Dropping it ends the competition as well, but as nobody then says that the work has ended, the
/// lease is kept for the grace of its budget before it is given back.
pub struct TrafficCop {
    deadline: Arc<AtomicU64>,
    watched: watch::Receiver<Control>,
    ended: Arc<AtomicBool>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Ending>,
}

impl TrafficCop {
    /// Prepares to compete for the lock of `store` ([`crate::lease::file::File`],
    /// [`crate::lease::blob::Blob`], or one of your own).
    #[must_use]
    pub fn with_store(store: impl LeaseStore + 'static) -> Builder {
        let budget = store.info().lease.map(Budget::for_lease);
        Builder {
            store: Arc::new(store),
            budget,
            poll: Duration::from_secs(2),
        }
    }

    /// Whether we are in control now. Costs a read of the clock; ask before every step that must
    /// not run twice. It turns false at the moment at which a command would be sent SIGTERM, so
    /// what was begun before it has the grace and the margin of the budget to end.
    #[must_use]
    pub fn has_control(&self) -> bool {
        Instant::now().as_nanos() < self.deadline.load(Ordering::Acquire)
    }

    /// A channel that holds where we stand, and tells each change.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Control> {
        self.watched.clone()
    }

    /// Stops competing: says that the work under control has ended, gives the lease back and
    /// returns how it all ended.
    ///
    /// # Panics
    /// If the task that competes panicked, or its runtime was shut down.
    pub async fn stop(self) -> Ending {
        self.ended.store(true, Ordering::Release);
        // It fails only if the competition has ended already.
        let _over = self.stop.send(());
        match self.task.await {
            Ok(ending) => ending,
            Err(error) => panic!("the task that competes for control ended early: {error}"),
        }
    }
}

/// The program as a workload: its command is whoever asks [`TrafficCop::has_control`].
struct Program {
    deadline: Arc<AtomicU64>,
    state: Arc<watch::Sender<Control>>,
    /// The program has said that its work has ended.
    ended: Arc<AtomicBool>,
    runs: bool,
    event: (
        mpsc::UnboundedSender<WorkloadEvent>,
        mpsc::UnboundedReceiver<WorkloadEvent>,
    ),
}

impl Program {
    fn new(
        deadline: Arc<AtomicU64>,
        state: Arc<watch::Sender<Control>>,
        ended: Arc<AtomicBool>,
    ) -> Program {
        Program {
            deadline,
            state,
            ended,
            runs: false,
            event: mpsc::unbounded_channel(),
        }
    }

    fn tell(&self, event: WorkloadEvent) {
        // We hold the receiver ourselves.
        let _open = self.event.0.send(event);
    }

    fn leave(&mut self) {
        self.deadline.store(0, Ordering::Release);
        if self.runs {
            self.state.send_replace(Control::Leaving);
        }
    }

    fn finish(&mut self) {
        self.leave();
        if std::mem::take(&mut self.runs) {
            self.tell(WorkloadEvent::TreeEmpty { at: Instant::now() });
        }
    }
}

#[async_trait]
impl Workload for Program {
    fn start(&mut self, start: Start) {
        self.runs = true;
        self.deadline
            .store(start.term_at.as_nanos(), Ordering::Release);
        self.state
            .send_replace(Control::InControl { token: start.token });
        self.tell(WorkloadEvent::Started {
            pid: i32::try_from(std::process::id()).unwrap_or(0),
        });
    }

    fn extend(&mut self, term_at: Instant, _kill_at: Instant) {
        if self.runs && self.deadline.load(Ordering::Acquire) != 0 {
            self.deadline.store(term_at.as_nanos(), Ordering::Release);
        }
    }

    fn drain(&mut self, _signal: i32, _end_of_grace: Instant) {
        self.leave();
        if self.ended.load(Ordering::Acquire) {
            self.finish();
        }
    }

    fn kill(&mut self) {
        self.finish();
    }

    fn pass(&mut self, _signal: i32) {}

    fn pause(&mut self) {}

    fn forget_release_info(&mut self) {}

    async fn next_event(&mut self) -> WorkloadEvent {
        self.event
            .1
            .recv()
            .await
            .expect("we hold the sender ourselves")
    }
}

/// Those who watch the state.
struct Watchers {
    state: Arc<watch::Sender<Control>>,
}

impl Observer for Watchers {
    fn notice(&mut self, _now: Instant, notice: &Notice) {
        if let Notice::StandingBy(sight) = notice {
            self.state.send_replace(Control::StandingBy {
                holder: sight.holder.clone(),
            });
        }
    }

    fn workload_event(&mut self, _now: Instant, _news: &WorkloadEvent) {}
}
