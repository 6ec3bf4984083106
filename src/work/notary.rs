//! What people are told of a worker: the log, the event log, the status file, and who asks over HTTP.
//!
//! Made by the worker, told by its loop and by every slot, which all run on one thread. It must never
//! hold anything up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Instant;
use crate::core::{Failure, Notice};
use crate::events::Events;
use crate::events::teller::Who;
use crate::exit::Leave;
use crate::hold::Audience;
use crate::plan;
use crate::report::{self, messages};
#[cfg(feature = "http")]
use crate::serve;
use crate::status::{Status, StatusFile};
use crate::supervise::{Guardian, News};

/// How long we wait at the end for a status file or an event log on a slow file system.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the module's text. Clones are the same one.
#[derive(Clone)]
pub(super) struct Notary(Arc<Mutex<Office>>);

struct Office {
    status: Status,
    file: Option<StatusFile>,
    events: Events,
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
                Who {
                    identity: plan.identity.clone(),
                    host: plan.host.clone(),
                    pid: plan.pid,
                    lock: queue.to_owned(),
                },
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

    /// The worker does this now.
    pub(super) fn enter(&self, state: &str, running: usize) {
        let office = &mut *self.office();
        #[cfg(feature = "http")]
        if let Some(server) = &office.server {
            server.board().works_on(running);
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
            server.board().message(row.outcome, row.duration);
        }
    }

    /// The end.
    pub(super) fn finish(&self, cause: &str, leave: Leave) {
        let office = &mut *self.office();
        #[cfg(feature = "http")]
        drop(office.server.take());
        office.status.cause = Some(cause.to_owned());
        office.status.exit = Some(leave.status());
        office.status.enter("done");
        office.write();
        let events = std::mem::take(&mut office.events);
        events.finish_work(cause.to_owned(), leave.status(), PATIENCE);
        if let Some(file) = office.file.take() {
            file.finish(PATIENCE);
        }
    }

    /// Who is told of one message.
    pub(super) fn clerk(&self, id: &str) -> Clerk {
        Clerk {
            notary: self.clone(),
            id: id.to_owned(),
        }
    }
}

impl Office {
    fn write(&self) {
        if let Some(file) = &self.file {
            file.write(&self.status);
        }
        #[cfg(feature = "http")]
        if let Some(server) = &self.server {
            server.board().write(&self.status);
        }
    }
}

/// The audience of one message.
pub(super) struct Clerk {
    notary: Notary,
    id: String,
}

impl Audience for Clerk {
    fn notice(&mut self, now: Instant, notice: &Notice) {
        messages::notice(&self.id, notice, now);
        #[cfg(feature = "http")]
        if let Some(server) = &self.notary.office().server {
            server.board().notice(notice);
        }
    }

    fn news(&mut self, now: Instant, news: &News) {
        #[cfg(feature = "http")]
        if let Some(server) = &self.notary.office().server {
            server.board().news(news);
        }
        match news {
            News::LeftBehind => messages::notice(&self.id, &Notice::LeftBehind, now),
            News::Lost => tracing::warn!(
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
            server.board().renewed(now, t0, reply);
        }
        #[cfg(not(feature = "http"))]
        let _ = (now, t0, &self.notary);
    }
}
