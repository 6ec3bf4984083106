//! Reports what a worker does: to the logs, the status file, the service manager and HTTP clients.
//!
//! Called on one thread. It must never block.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::Instant;
use crate::config;
use crate::core::Failure;
use crate::driver::{Observation, Observer};
use crate::events::{EventKind, EventLog, Instance};
use crate::exit::ExitAction;
use crate::guardian::{Guardian, HealthCheck};
use crate::notify::{Ready, ServiceManager, Surroundings};
use crate::report::{self, Fold, Happened, MessageRow};
use crate::serve;
use crate::status::{Status, StatusFile};
use crate::util::lock;

pub(super) const DRAINING: &str = "draining";
const REMINDER: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct WorkerObserver(Arc<Mutex<ObserverState>>);

#[derive(Default)]
struct ObserverState {
    status: Status,
    /// Whether the queue was deleted, and when a failure was last logged.
    failing: Option<(bool, Instant)>,
    file: Option<StatusFile>,
    event_log: Option<EventLog>,
    service_manager: Option<ServiceManager>,
    server: Option<serve::Server>,
}

impl WorkerObserver {
    /// Creates it after the fork: threads write the files.
    pub(super) fn new(config: &config::Work, queue: &str, guardian: &Guardian) -> WorkerObserver {
        let contain = guardian.containment().to_string();
        let status = Status {
            lock: queue.to_owned(),
            ..Status::starting(&config.identity, config.pid, guardian.pid(), contain)
        };
        let who = Instance {
            identity: config.identity.clone(),
            host: config.host.clone(),
            pid: config.pid,
            lock: queue.to_owned(),
        };
        let path = config.event_log.clone();
        if config.at_most_once {
            tracing::info!(
                "at most once: a message is deleted before its command starts, and is lost if that fails or this \
                 worker dies"
            );
        }
        WorkerObserver(Arc::new(Mutex::new(ObserverState {
            status,
            file: config.status_file.clone().map(StatusFile::new),
            event_log: path.map(|path| EventLog::begin(path, who, EventKind::Working)),
            service_manager: ServiceManager::open(
                &Surroundings::ours(&|name| std::env::var_os(name)),
                // A worker is ready once its queue has answered.
                Ready::Standby,
                "looking at the queue",
                config.concurrency,
                false,
                config.source.lock_time(),
            ),
            ..ObserverState::default()
        })))
    }

    #[cfg(test)]
    pub(crate) fn of_nobody() -> WorkerObserver {
        WorkerObserver(Arc::default())
    }

    fn state(&self) -> MutexGuard<'_, ObserverState> {
        lock(&self.0)
    }

    pub(super) fn serve(&self, server: serve::Server) {
        self.state().server = Some(server);
    }

    pub(super) fn begin(&self, health_check: Vec<Arc<HealthCheck>>) {
        if let Some(service_manager) = &self.state().service_manager {
            service_manager.begin(health_check);
        }
    }

    pub(super) fn notify_socket(&self, processor: usize) -> Option<OsString> {
        self.state()
            .service_manager
            .as_ref()?
            .for_the_command(processor)
    }

    /// Reports why the queue fails; `None`: it works again.
    pub(super) fn doubts(&self, why: Option<String>) {
        let state = &mut *self.state();
        state.status.cause.clone_from(&why);
        if let Some(service_manager) = &state.service_manager {
            service_manager.doubts(why);
        }
    }

    /// Reports a failure once, but a deleted queue every minute.
    pub(super) fn takes_nothing(&self, failure: &Failure, is_deleted: bool, is_leaving: bool) {
        let why = match is_deleted {
            true => format!("the queue was deleted: {failure}"),
            false => format!("cannot take messages: {failure}"),
        };
        let now = Instant::now();
        let is_told = self.state().failing.is_some_and(|(deleted, at)| {
            deleted == is_deleted && (!deleted || now.since(at) < REMINDER)
        });
        if !is_told && !is_leaving {
            self.state().failing = Some((is_deleted, now));
            tracing::warn!("{why}; retrying");
        }
        self.doubts(Some(why));
    }

    pub(super) fn takes(&self) {
        if self.state().failing.take().is_some() {
            tracing::info!("the queue answers again");
            self.doubts(None);
        }
    }

    pub(super) fn stops(&self) {
        self.state()
            .service_manager
            .iter()
            .for_each(ServiceManager::stops);
    }

    pub(super) fn enter(&self, name: &str, running: usize) {
        let state = &mut *self.state();
        // The service manager's side limits the rate.
        if let Some(service_manager) = &state.service_manager {
            service_manager.works(doing(name, running));
            if name == DRAINING {
                service_manager.stops();
            }
        }
        if let Some(server) = &state.server {
            server.shared_status().works_on(running);
        }
        // The whole file is rewritten: only for a change of state.
        if state.status.state == name {
            return;
        }
        state.status.enter(name);
        state.write();
    }

    pub(super) fn message(&self, row: &MessageRow) {
        // The log first: a counter never grows before its log line.
        report::message_row(row);
        let state = &mut *self.state();
        if let Some(event_log) = &mut state.event_log {
            event_log.message(Instant::now(), row);
        }
        if let Some(server) = &state.server {
            server.shared_status().message(row.outcome, row.duration);
        }
    }

    pub(super) fn finish(&self, cause: &str, leave: ExitAction) {
        let state = &mut *self.state();
        // First: the server must not report a working worker any more.
        drop(state.server.take());
        state.status.cause = Some(cause.to_owned());
        state.status.exit = Some(leave.status());
        state.status.enter("done");
        state.write();
        let done = Observation::Done {
            cause,
            overlap: false,
            exit: leave.status(),
        };
        let done = Happened::new(Instant::now(), &done);
        if let Some(service_manager) = &mut state.service_manager {
            service_manager.take(&done);
        }
        if let Some(mut event_log) = state.event_log.take() {
            event_log.take(&done);
        }
        // Dropping waits: a script that waits for this process reads the file next.
        drop(state.file.take());
    }

    pub(crate) fn message_observer(
        &self,
        id: &str,
        session: Option<&str>,
        processor: usize,
    ) -> MessageObserver {
        let what = match session {
            Some(session) => format!("message {id} of session {session}"),
            None => format!("message {id}"),
        };
        if let Some(service_manager) = &self.state().service_manager {
            // Before the message's command can write to this processor's socket.
            service_manager.name(processor, what);
        }
        MessageObserver {
            observer: self.clone(),
            id: id.to_owned(),
            processor,
        }
    }
}

fn doing(state: &str, running: usize) -> String {
    let messages = match running {
        1 => "1 message".to_owned(),
        more => format!("{more} messages"),
    };
    match (state, running) {
        (DRAINING, 0) => "about to end".into(),
        (DRAINING, _) => format!("taking no more messages, finishing {messages}"),
        (_, 0) => "waiting for messages".into(),
        _ => format!("working on {messages}"),
    }
}

impl ObserverState {
    fn write(&self) {
        if let Some(file) = &self.file {
            file.write(&self.status);
        }
        if let Some(server) = &self.server {
            server.shared_status().write(&self.status);
        }
    }
}

pub(crate) struct MessageObserver {
    observer: WorkerObserver,
    id: String,
    processor: usize,
}

impl Observer for MessageObserver {
    fn observe(&mut self, now: Instant, observation: &Observation<'_>) {
        // Receiving a message is no acquiring of a lock.
        if let Observation::Acquired(_) = observation {
            return;
        }
        if let Observation::Workload(event) = observation
            && let Some(service_manager) = &self.observer.state().service_manager
        {
            service_manager.workload_event(self.processor, event);
        }
        let happened = Happened::new(now, observation);
        report::message_news(&self.id, &happened);
        if let Some(server) = &self.observer.state().server {
            server.shared_status().take(&happened);
        }
    }
}
