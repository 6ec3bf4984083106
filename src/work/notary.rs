//! What people are told of a worker: the log, the event log, the status file, the service manager, and
//! who asks over HTTP.
//!
//! Made by the worker, told by its loop and by every slot, which all run on one thread. It must never
//! hold anything up.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Instant;
use crate::core::{Failure, Notice};
use crate::driver::Observer;
use crate::events::Events;
use crate::events::event_log::Instance;
use crate::exit::ExitAction;
use crate::guardian::{Guardian, HealthCheck, WorkloadEvent};
use crate::notify::{Ready, ServiceManager, Surroundings};
use crate::plan;
use crate::report::{self, messages};
#[cfg(feature = "http")]
use crate::serve;
use crate::status::{Status, StatusFile};

/// How long we wait at the end for a status file or an event log on a slow file system.
const PATIENCE: Duration = Duration::from_secs(2);

/// The state of a worker that takes no more messages.
pub(super) const DRAINING: &str = "draining";

/// See the module's text. Clones are the same one.
#[derive(Clone)]
pub(super) struct Notary(Arc<Mutex<Office>>);

struct Office {
    status: Status,
    file: Option<StatusFile>,
    events: Events,
    /// The service manager.
    service_manager: Option<ServiceManager>,
    #[cfg(feature = "http")]
    server: Option<serve::Server>,
}

impl Notary {
    /// Not before the guardians were forked: threads write the files.
    pub(super) fn new(plan: &plan::Work, queue: &str, guardian: &Guardian) -> Notary {
        let status = Status {
            state: "starting".into(),
            lock: queue.to_owned(),
            identity: plan.identity.clone(),
            pid: plan.pid,
            guardian_pid: Some(guardian.pid()),
            contain: Some(guardian.containment().to_string()),
            ..Status::default()
        };
        Notary(Arc::new(Mutex::new(Office {
            status,
            file: plan.status_file.clone().map(StatusFile::new),
            events: Events::begin_work(
                plan.event_log.clone(),
                Instance {
                    identity: plan.identity.clone(),
                    host: plan.host.clone(),
                    pid: plan.pid,
                    lock: queue.to_owned(),
                },
            ),
            service_manager: ServiceManager::open(
                &Surroundings::ours(&|name| std::env::var_os(name)),
                Ready::Standby,
                "looking at the queue",
                plan.concurrency,
            ),
            #[cfg(feature = "http")]
            server: None,
        })))
    }

    fn office(&self) -> MutexGuard<'_, Office> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who ask over HTTP, too.
    #[cfg(feature = "http")]
    pub(super) fn serve(&self, server: serve::Server) {
        self.office().server = Some(server);
    }

    /// Begins to tell the service manager, if there is one, inside the runtime: a sign of life after
    /// each round to all guardians.
    pub(super) fn begin(&self, health_check: Vec<Arc<HealthCheck>>) {
        if let Some(service_manager) = &self.office().service_manager {
            service_manager.begin(
                &Surroundings::ours(&|name| std::env::var_os(name)),
                health_check,
            );
        }
    }

    /// What the command of this slot finds in its `NOTIFY_SOCKET`.
    pub(super) fn notify_socket(&self, slot: usize) -> Option<OsString> {
        self.office()
            .service_manager
            .as_ref()?
            .for_the_command(slot)
    }

    /// The queue does not do what we ask of it, for this reason; or does again.
    pub(super) fn doubts(&self, why: Option<String>) {
        if let Some(service_manager) = &self.office().service_manager {
            service_manager.doubts(why);
        }
    }

    /// We were asked to stop, or are about to end.
    pub(super) fn stops(&self) {
        self.office()
            .service_manager
            .iter()
            .for_each(ServiceManager::stops);
    }

    /// The worker does this now.
    pub(super) fn enter(&self, state: &str, running: usize) {
        let office = &mut *self.office();
        if let Some(service_manager) = &office.service_manager {
            service_manager.works(doing(state, running));
            if state == DRAINING {
                service_manager.stops();
            }
        }
        #[cfg(feature = "http")]
        if let Some(server) = &office.server {
            server.shared_status().works_on(running);
        }
        if office.status.state == state {
            return;
        }
        #[cfg(not(feature = "http"))]
        let _ = running;
        office.status.enter(state);
        office.write();
    }

    /// A message was done with.
    pub(super) fn message(&self, row: &messages::Row) {
        messages::row(row);
        let office = self.office();
        office.events.message(Instant::now(), row);
        #[cfg(feature = "http")]
        if let Some(server) = &office.server {
            server.shared_status().message(row.outcome, row.duration);
        }
    }

    /// The end.
    pub(super) fn finish(&self, cause: &str, leave: ExitAction) {
        let office = &mut *self.office();
        #[cfg(feature = "http")]
        drop(office.server.take());
        office.status.cause = Some(cause.to_owned());
        office.status.exit = Some(leave.status());
        office.status.enter("done");
        office.write();
        let events = std::mem::take(&mut office.events);
        if let Some(service_manager) = &office.service_manager {
            service_manager.finish(cause.to_owned());
        }
        events.finish_work(cause.to_owned(), leave.status(), PATIENCE);
        if let Some(file) = office.file.take() {
            file.finish(PATIENCE);
        }
    }

    /// Who is told of one message, worked on in this slot.
    pub(super) fn clerk(&self, id: &str, slot: usize) -> Clerk {
        if let Some(service_manager) = &self.office().service_manager {
            service_manager.name(slot, format!("message {id}"));
        }
        Clerk {
            notary: self.clone(),
            id: id.to_owned(),
            slot,
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

impl Office {
    fn write(&self) {
        if let Some(file) = &self.file {
            file.write(&self.status);
        }
        #[cfg(feature = "http")]
        if let Some(server) = &self.server {
            server.shared_status().write(&self.status);
        }
    }
}

/// The observer of one message.
pub(super) struct Clerk {
    notary: Notary,
    id: String,
    slot: usize,
}

impl Observer for Clerk {
    fn notice(&mut self, now: Instant, notice: &Notice) {
        messages::notice(&self.id, notice, now);
        #[cfg(feature = "http")]
        if let Some(server) = &self.notary.office().server {
            server.shared_status().notice(notice);
        }
    }

    fn workload_event(&mut self, now: Instant, event: &WorkloadEvent) {
        if let Some(service_manager) = &self.notary.office().service_manager {
            service_manager.workload_event(self.slot, event);
        }
        #[cfg(feature = "http")]
        if let Some(server) = &self.notary.office().server {
            server.shared_status().workload_event(event);
        }
        match event {
            WorkloadEvent::LeftBehind => messages::notice(&self.id, &Notice::LeftBehind, now),
            WorkloadEvent::Lost => tracing::warn!(
                "message {}: the guardian died or fell silent; killing the command",
                report::plain(&self.id)
            ),
            _ => {}
        }
    }

    fn renewed(&mut self, now: Instant, t0: Instant, reply: &Result<(), Failure>) {
        if reply.is_ok() {
            messages::renewed(&self.id);
        }
        #[cfg(feature = "http")]
        if let Some(server) = &self.notary.office().server {
            server.shared_status().renewed(now, t0, reply);
        }
        #[cfg(not(feature = "http"))]
        let _ = (now, t0, &self.notary);
    }
}
