//! What people are told of a worker: the log, the event log, the status file, the service manager, and
//! who asks over HTTP.
//!
//! Made by the worker, told by its loop and by every processor, which all run on one thread. It must never
//! hold anything up.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::Instant;
use crate::config;
use crate::core::{Failure, Notice, WorkloadEvent};
use crate::driver::{Observation, Observer};
use crate::events::{EventKind, EventLog, Instance};
use crate::exit::ExitAction;
use crate::guardian::{Guardian, HealthCheck};
use crate::notify::{Ready, ServiceManager, Surroundings};
use crate::report::{self, MessageRow};
use crate::serve;
use crate::status::{Status, StatusFile};
use crate::util::lock;

/// The state of a worker that takes no more messages.
pub(super) const DRAINING: &str = "draining";
/// From one line to the next that says that the queue was deleted.
const REMINDER: Duration = Duration::from_secs(60);

/// See the module's text. Clones are the same one.
#[derive(Clone)]
pub(super) struct WorkerObserver(Arc<Mutex<State>>);

struct State {
    status: Status,
    /// Since when nothing can be taken, as it was last told, and whether the queue was deleted.
    failing: Option<(bool, Instant)>,
    file: Option<StatusFile>,
    event_log: Option<EventLog>,
    service_manager: Option<ServiceManager>,
    server: Option<serve::Server>,
}

impl WorkerObserver {
    /// Not before the guardians were forked: threads write the files.
    pub(super) fn new(config: &config::Work, queue: &str, guardian: &Guardian) -> WorkerObserver {
        let status = Status {
            state: "starting".into(),
            lock: queue.to_owned(),
            identity: config.identity.clone(),
            pid: config.pid,
            guardian_pid: Some(guardian.pid()),
            contain: Some(guardian.containment().to_string()),
            ..Status::default()
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
                "at most once: a message is deleted before its command starts, and is lost if that fails or this worker dies"
            );
        }
        WorkerObserver(Arc::new(Mutex::new(State {
            status,
            failing: None,
            file: config.status_file.clone().map(StatusFile::new),
            event_log: path.map(|path| EventLog::begin(path, who, EventKind::Working)),
            service_manager: ServiceManager::open(
                &Surroundings::ours(&|name| std::env::var_os(name)),
                // A worker has no control that it could wait for: it is ready once its queue has
                // answered.
                Ready::Standby,
                "looking at the queue",
                config.concurrency,
                false,
            ),
            server: None,
        })))
    }

    /// Nobody is told.
    #[cfg(test)]
    pub(super) fn of_nobody() -> WorkerObserver {
        WorkerObserver(Arc::new(Mutex::new(State {
            status: Status::default(),
            failing: None,
            file: None,
            event_log: None,
            service_manager: None,
            server: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Tells those who ask over HTTP, too.
    pub(super) fn serve(&self, server: serve::Server) {
        self.state().server = Some(server);
    }

    /// Begins to tell the service manager, if there is one, inside the runtime: a sign of life after
    /// each round to all guardians.
    pub(super) fn begin(&self, health_check: Vec<Arc<HealthCheck>>) {
        if let Some(service_manager) = &self.state().service_manager {
            service_manager.begin(health_check);
        }
    }

    /// What the command of this processor finds in its `NOTIFY_SOCKET`.
    pub(super) fn notify_socket(&self, processor: usize) -> Option<OsString> {
        self.state()
            .service_manager
            .as_ref()?
            .for_the_command(processor)
    }

    /// The queue does not do what we ask of it, for this reason; or does again.
    pub(super) fn doubts(&self, why: Option<String>) {
        let state = &mut *self.state();
        // Written with the state that it leads to.
        state.status.cause.clone_from(&why);
        if let Some(service_manager) = &state.service_manager {
            service_manager.doubts(why);
        }
    }

    /// Nothing can be taken from the queue, for this reason. It is said once, and of a queue that was deleted
    /// once a minute.
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

    /// The queue answers.
    pub(super) fn takes(&self) {
        if self.state().failing.take().is_some() {
            tracing::info!("the queue answers again");
            self.doubts(None);
        }
    }

    /// We were asked to stop, or are about to end.
    pub(super) fn stops(&self) {
        self.state()
            .service_manager
            .iter()
            .for_each(ServiceManager::stops);
    }

    /// The worker does this now.
    pub(super) fn enter(&self, name: &str, running: usize) {
        let state = &mut *self.state();
        // Each time, because the number changes with each message; it sends them at a pace of its own.
        if let Some(service_manager) = &state.service_manager {
            service_manager.works(doing(name, running));
            if name == DRAINING {
                service_manager.stops();
            }
        }
        if let Some(server) = &state.server {
            server.shared_status().works_on(running);
        }
        // The file is written anew as a whole: for each change of state, and not for each message.
        if state.status.state == name {
            return;
        }
        state.status.enter(name);
        state.write();
    }

    pub(super) fn message(&self, row: &MessageRow) {
        // The log first: who sees a counter grow finds the line.
        report::message_row(row);
        let state = &mut *self.state();
        if let Some(event_log) = &mut state.event_log {
            event_log.message(Instant::now(), row);
        }
        if let Some(server) = &state.server {
            server.shared_status().message(row.outcome, row.duration);
        }
    }

    /// The end.
    pub(super) fn finish(&self, cause: &str, leave: ExitAction) {
        let state = &mut *self.state();
        // First: nobody is to be told that we work by a server that has not heard of the end.
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
        if let Some(service_manager) = &mut state.service_manager {
            service_manager.observe(Instant::now(), &done);
        }
        // Taken out: dropped, it waits a moment until its thread has written the end.
        if let Some(mut event_log) = state.event_log.take() {
            event_log.observe(Instant::now(), &done);
        }
        // The same for the status file: who waits for our process reads it next.
        drop(state.file.take());
    }

    /// Who is told of one message, worked on in this processor.
    pub(super) fn message_observer(
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
            // Before its command can say anything by the socket of this processor.
            service_manager.name(processor, what);
        }
        MessageObserver {
            observer: self.clone(),
            id: id.to_owned(),
            processor,
        }
    }
}

/// What a worker in this state does, in words.
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

impl State {
    fn write(&self) {
        if let Some(file) = &self.file {
            file.write(&self.status);
        }
        if let Some(server) = &self.server {
            server.shared_status().write(&self.status);
        }
    }
}

pub(super) struct MessageObserver {
    observer: WorkerObserver,
    id: String,
    processor: usize,
}

impl Observer for MessageObserver {
    fn observe(&mut self, now: Instant, observation: &Observation<'_>) {
        let id = &self.id;
        match *observation {
            Observation::Notice { notice, .. } => report::message_notice(id, notice, now),
            // One that failed is told by the core as doubt, once, and not by each attempt.
            Observation::Renewed { reply: Ok(()), .. } => report::message_renewed(id),
            Observation::Workload(event) => {
                if let Some(service_manager) = &self.observer.state().service_manager {
                    service_manager.workload_event(self.processor, event);
                }
                match event {
                    WorkloadEvent::LeftBehind => {
                        report::message_notice(id, &Notice::LeftBehind, now)
                    }
                    WorkloadEvent::Lost => tracing::warn!(
                        "message {}: the guardian died or fell silent; killing the command",
                        report::plain(id)
                    ),
                    _ => {}
                }
            }
            // How a lock was obtained is told by whoever receives messages.
            Observation::Acquired(_) => return,
            _ => {}
        }
        if let Some(server) = &self.observer.state().server {
            server.shared_status().observe(now, observation);
        }
    }
}
