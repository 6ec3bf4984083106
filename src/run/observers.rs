//! Observers of an instance of `run` or `elect`.
//!
//! None may delay anything: the log drops lines that no reader takes, and threads write the files.

mod status;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::azure::scheduled_events::EventFollower;
use crate::clock::{self, Instant};
use crate::config::Config;
use crate::core::{Cordon, Ending, Notice, WorkloadEvent};
use crate::driver::{Observation, Observer};
use crate::events::{EventKind, EventLog, Instance};
use crate::exit::ExitAction;
use crate::guardian::{Guardian, HealthCheck};
use crate::lease::{LeaseStore, StoreInfo, mount};
use crate::notify::{ServiceManager, Surroundings};
use crate::report::{self, Fold, Happened};
use crate::serve::SharedStatus;
use crate::signals::Signals;
use crate::status::{Status, StatusFile};
use status::StatusObserver;

// A machine about to freeze must not take over, and one without a metadata service must not wait long.
const FIRST_LOOK: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct Observers {
    list: Vec<Box<dyn Fold>>,
    service_manager: Option<ServiceManager>,
}

impl Observers {
    /// Creates them after the fork: threads write the files.
    pub(crate) fn new(
        config: &Config,
        store: &Arc<dyn LeaseStore>,
        guardian: &Guardian,
        log: impl Fold + 'static,
        shared_status: Option<Arc<SharedStatus>>,
    ) -> Observers {
        let candidate = &config.candidate;
        let contain = guardian.containment().to_string();
        let status = StatusObserver {
            status: Status::starting(&candidate.identity, candidate.pid, guardian.pid(), contain),
            store: Arc::clone(store),
            file: config.status_file.clone().map(StatusFile::new),
            shared_status: shared_status.clone(),
            prepares: config.roles.standby.is_some() || config.roles.on_acquire.is_some(),
        };
        let terms = store.info();
        let service_manager = ServiceManager::open(
            &Surroundings::ours(&|name| std::env::var_os(name)),
            config.ready,
            "competing",
            1,
            config.health.rules.watchdog.is_some(),
            terms.lease,
        );
        let who = Instance {
            identity: candidate.identity.clone(),
            host: candidate.host.clone(),
            pid: candidate.pid,
            lock: terms.name.clone(),
        };
        let path = config.event_log.clone();
        let event_log = path.map(|path| EventLog::begin(path, who, EventKind::Competing));
        let mut observers = Observers {
            list: Vec::new(),
            service_manager: service_manager.clone(),
        };
        // First: an HTTP client must get the news no later than the others.
        observers.add(shared_status);
        observers.add(Some(log));
        observers.add(Some(status));
        observers.add(service_manager);
        observers.add(event_log);
        observers.add(CleanedLockWarning::of(config, &terms));
        observers
    }

    fn add(&mut self, observer: Option<impl Fold + 'static>) {
        self.list.extend(observer.map(|one| Box::new(one) as _));
    }

    pub(crate) fn tell(&mut self, observation: Observation<'_>) {
        self.observe(Instant::now(), &observation);
    }

    pub(crate) fn begin(&self, health_check: Arc<HealthCheck>) {
        if let Some(service_manager) = &self.service_manager {
            service_manager.begin(vec![health_check]);
        }
    }

    pub(crate) fn notify_socket(&self) -> Option<OsString> {
        self.service_manager.as_ref()?.for_the_command(0)
    }

    pub(super) fn service_manager(&self) -> Option<ServiceManager> {
        self.service_manager.clone()
    }

    pub(crate) fn pass_on_stopping(&self, signals: &mut Signals) {
        if let Some(one) = &self.service_manager {
            signals.add_stopping(one.stopping());
        }
    }

    /// Follows the platform's announcements. Returns one that is known within a moment; later ones come with
    /// the signals.
    pub(crate) async fn follow_events(
        &mut self,
        config: &Config,
        signals: &mut Signals,
    ) -> Option<Cordon> {
        let mut watch = EventFollower::begin(config.scheduled_events.clone()?);
        let cordon = tokio::select! {
        // A stop counts more than an announcement.
                    biased;
                    asked = signals.next() => {
                        signals.keep(asked);
                        None
                    }
                    cordon = watch.first(FIRST_LOOK) => cordon,
                };
        signals.add_cordons(watch.words);
        self.add(Some(CordonObserver(watch.idle)));
        cordon
    }

    pub(crate) fn finish(mut self, ending: &Ending, leave: ExitAction) {
        self.tell(Observation::Done {
            cause: &report::cause(&ending.cause),
            overlap: ending.overlap,
            exit: leave.status(),
        });
    }
}

impl Observer for Observers {
    fn observe(&mut self, now: Instant, observation: &Observation<'_>) {
        let happened = Happened::new(now, observation);
        for one in &mut self.list {
            one.take(&happened);
        }
    }
}

/// Tells whether this instance is out of the way.
struct CordonObserver(watch::Sender<bool>);

impl Fold for CordonObserver {
    fn take(&mut self, happened: &Happened<'_>) {
        if let Observation::Notice { notice, .. } = happened.observation {
            match notice {
                Notice::Cordoned { .. } => drop(self.0.send_replace(true)),
                Notice::Uncordoned => drop(self.0.send_replace(false)),
                _ => {}
            }
        }
    }
}

/// Warns, after a day, of a lock where cleaners remove what looks old.
struct CleanedLockWarning {
    lock: String,
    task: Option<JoinHandle<()>>,
}

impl CleanedLockWarning {
    fn of(config: &Config, store: &StoreInfo) -> Option<CleanedLockWarning> {
        let path = config.lock.path()?;
        let lock = store.name.clone();
        // With -q only messages appear that need an answer today.
        let is_wanted = !config.looks_once() && tracing::enabled!(tracing::Level::INFO);
        let is_local = store.lease.is_none();
        let is_due = is_wanted && is_local && mount::is_cleaned(path);
        is_due.then_some(CleanedLockWarning { lock, task: None })
    }
}

async fn warn_in_a_day(lock: String) {
    clock::sleep(DAY).await;
    tracing::warn!(
        "{lock}: cleaners such as systemd-tmpfiles remove files here that look old; trafficcop refreshes the lock \
         while its command runs: name a file in /run/lock or /var/lib instead"
    );
}

impl Fold for CleanedLockWarning {
    fn take(&mut self, happened: &Happened<'_>) {
        match happened.observation {
            Observation::Workload(WorkloadEvent::Started { .. }) => {
                let lock = &self.lock;
                let begin = || tokio::spawn(warn_in_a_day(lock.clone()));
                self.task.get_or_insert_with(begin);
            }
            Observation::Workload(WorkloadEvent::TreeEmpty { .. }) => {
                if let Some(task) = self.task.take_if(|task| !task.is_finished()) {
                    task.abort();
                }
            }
            _ => {}
        }
    }
}

#[cfg(all(test, debug_assertions))]
#[path = "observers/scenes/tests.rs"]
mod scenes;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn warning_waits_only_while_the_command_runs() {
        let mut warning = CleanedLockWarning {
            lock: "/tmp/lock".into(),
            task: None,
        };
        let mut tell = |event| {
            warning.take(&Happened::new(
                Instant::ZERO,
                &Observation::Workload(&event),
            ));
            warning.task.is_some()
        };
        assert!(!tell(WorkloadEvent::Standby(None)), "it waits");
        assert!(tell(WorkloadEvent::Started { pid: 1 }));
        assert!(!tell(WorkloadEvent::TreeEmpty { at: Instant::ZERO }));
        warning.task = Some(tokio::spawn(std::future::ready(())));
        tokio::task::yield_now().await;
        let over = WorkloadEvent::TreeEmpty { at: Instant::ZERO };
        warning.take(&Happened::new(Instant::ZERO, &Observation::Workload(&over)));
        assert!(warning.task.is_some());
    }

    #[cfg(debug_assertions)]
    #[test]
    fn warning_comes_after_a_day() {
        use std::future::Future as _;
        use std::task::{Context, Poll, Waker};

        let clock = std::rc::Rc::new(clock::SimulatedClock::default());
        let mut warning = Box::pin(warn_in_a_day("/tmp/lock".into()));
        let mut look = |hours: u64| {
            let at = Instant::ZERO + Duration::from_secs(3600 * hours);
            clock.enter(at, Duration::ZERO, || {
                let mut context = Context::from_waker(Waker::noop());
                warning.as_mut().poll(&mut context) == Poll::Ready(())
            })
        };
        assert_eq!([1, 24, 25].map(&mut look), [false, false, true]);
    }
}
