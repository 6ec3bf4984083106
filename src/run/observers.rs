//! What people are told of this instance: the log, the status file, and who asks over HTTP.
//!
//! Made by `run`, told by the driver. It must never hold anything up: the log drops lines that nobody
//! reads, and the status file has a thread of its own.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::azure::scheduled_events::Watch;
use crate::clock::Instant;
use crate::config::Config;
use crate::core::{Cause, Cordon, Ending, HandOverReason, Notice};
#[cfg(feature = "http")]
use crate::core::{Failure, Grant};
use crate::driver::Observer;
use crate::events::Events;
use crate::events::event_log::Instance;
use crate::exit::ExitAction;
use crate::guardian::{Guardian, HealthCheck, WorkloadEvent};
use crate::lease::LeaseStore;
use crate::notify::{ServiceManager, Surroundings};
use crate::report;
#[cfg(feature = "http")]
use crate::serve;
use crate::signals::Signals;
use crate::status::{Status, StatusFile};

/// What people are told of this instance: the log, the status file, and who asks over HTTP.
pub(crate) struct Observers {
    status: Status,
    store: Arc<dyn LeaseStore>,
    file: Option<StatusFile>,
    #[cfg(feature = "http")]
    server: Option<serve::Server>,
    /// Something comes between control and the command.
    prepares: bool,
    /// How the log words a notice.
    log: fn(&Notice, Instant),
    /// The service manager.
    service_manager: Option<ServiceManager>,
    /// Who follows what is announced for this machine is told whether we are out of its way.
    aside: Option<watch::Sender<bool>>,
    pub(crate) events: Events,
}

impl Observers {
    /// Those of this plan. Not before the guardians were forked: a thread writes the status file.
    pub(crate) fn new(
        plan: &Config,
        store: &Arc<dyn LeaseStore>,
        guardian: &Guardian,
        log: fn(&Notice, Instant),
    ) -> Observers {
        Observers {
            status: Status {
                state: "starting".into(),
                identity: plan.candidate.identity.clone(),
                pid: plan.candidate.pid,
                guardian_pid: Some(guardian.pid()),
                contain: Some(guardian.containment().to_string()),
                ..Status::default()
            },
            store: Arc::clone(store),
            file: plan.status_file.clone().map(StatusFile::new),
            #[cfg(feature = "http")]
            server: None,
            prepares: plan.roles.standby.is_some() || plan.roles.on_acquire.is_some(),
            log,
            service_manager: ServiceManager::open(
                &Surroundings::ours(&|name| std::env::var_os(name)),
                plan.ready,
                "competing",
                1,
            ),
            aside: None,
            events: Events::begin(
                plan.event_log.clone(),
                Instance {
                    identity: plan.candidate.identity.clone(),
                    host: plan.candidate.host.clone(),
                    pid: plan.candidate.pid,
                    lock: store.info().name,
                },
            ),
        }
    }

    pub(crate) fn write(&mut self, state: &str) {
        self.status.enter(state);
        // With slots it is another one in every tenure.
        self.status.lock = self.store.info().name;
        if let Some(file) = &self.file {
            file.write(&self.status);
        }
        #[cfg(feature = "http")]
        if let Some(server) = &self.server {
            server.shared_status().write(&self.status);
        }
    }

    /// Tells those who ask over HTTP, too.
    #[cfg(feature = "http")]
    pub(crate) fn serve(&mut self, server: serve::Server) {
        self.server = Some(server);
    }

    /// Begins to tell the service manager, if there is one, inside the runtime.
    pub(crate) fn begin(&self, health_check: Arc<HealthCheck>) {
        if let Some(one) = &self.service_manager {
            one.begin(
                &Surroundings::ours(&|name| std::env::var_os(name)),
                vec![health_check],
            );
        }
    }

    /// What the command finds in its `NOTIFY_SOCKET`.
    pub(crate) fn notify_socket(&self) -> Option<OsString> {
        self.service_manager.as_ref()?.for_the_command(0)
    }

    /// We are about to end: whatever comes now comes after the last tenure.
    pub(crate) fn stops(&self) {
        self.service_manager.iter().for_each(ServiceManager::stops);
    }

    /// Begins to follow what the platform announces for this machine, if the plan says so; what was
    /// announced already, as far as that is known in a moment. What comes later comes with the
    /// signals.
    pub(crate) async fn follow_events(
        &mut self,
        plan: &Config,
        signals: &mut Signals,
    ) -> Option<Cordon> {
        let mut watch = Watch::begin(plan.scheduled_events.clone()?);
        let cordon = tokio::select! {
            biased;
            asked = signals.next() => {
                signals.keep(asked);
                None
            }
            cordon = watch.first(FIRST_LOOK) => cordon,
        };
        signals.add_cordons(watch.words);
        self.aside = Some(watch.aside);
        cordon
    }

    /// Ends the server: what comes now is not worth a question.
    #[cfg(feature = "http")]
    pub(crate) fn serve_no_more(&mut self) {
        drop(self.server.take());
    }

    pub(crate) fn finish(mut self, ending: &Ending, leave: ExitAction) {
        self.status.cause = Some(report::cause(&ending.cause));
        self.status.overlap = ending.overlap;
        self.status.exit = Some(leave.status());
        self.write("done");
        if let Some(service_manager) = &self.service_manager {
            service_manager.finish(report::cause(&ending.cause));
        }
        self.events.finish(ending, leave.status(), STATUS_PATIENCE);
        if let Some(file) = self.file {
            file.finish(STATUS_PATIENCE);
        }
    }
}

/// How long we wait at the end for a status file or an event log on a slow file system.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

/// How long we wait for the platform's first word before we compete.
const FIRST_LOOK: Duration = Duration::from_secs(1);

impl Observer for Observers {
    fn notice(&mut self, now: Instant, notice: &Notice) {
        if let Some(aside) = &self.aside {
            match notice {
                Notice::Cordoned { .. } => drop(aside.send_replace(true)),
                Notice::Uncordoned => drop(aside.send_replace(false)),
                _ => {}
            }
        }
        #[cfg(feature = "http")]
        if let Some(server) = &self.server {
            server.shared_status().notice(notice);
        }
        (self.log)(notice, now);
        if let Some(service_manager) = &self.service_manager {
            service_manager.notice(now, notice);
        }
        self.events.notice(now, notice, &self.store.info().name);
        let state = match notice {
            Notice::StandingBy(sight) => {
                self.status.holder.clone_from(&sight.holder);
                "standby"
            }
            Notice::InControl { token } => {
                self.status.holder = None;
                self.status.token = Some(*token);
                self.status.cause = None;
                if self.prepares {
                    "preparing"
                } else {
                    "holding"
                }
            }
            Notice::Draining(cause) => {
                self.status.cause = Some(report::cause(cause));
                "draining"
            }
            Notice::CommandEnded(exit) => {
                self.status.command_exit = Some(exit.as_status());
                self.status.command_pid = None;
                "draining"
            }
            Notice::BackingOff { .. } | Notice::Keeping { .. } | Notice::Pausing { .. } => {
                "resting"
            }
            Notice::Unrecorded { .. } => "recording",
            Notice::Restarting => "holding",
            Notice::CoolingDown { .. } => "cooling down",
            Notice::Cordoned { why } => {
                self.status.holder = None;
                self.status.cause = Some(why.clone());
                "cordoned"
            }
            Notice::Uncordoned => {
                self.status.cause = None;
                "standby"
            }
            Notice::Released | Notice::FoundLost { .. } | Notice::LeftToRunOut { .. } => "released",
            Notice::Overlapped => {
                self.status.overlap = true;
                "released"
            }
            Notice::HoldOver => {
                self.status.cause = Some(report::cause(&Cause::HandOver));
                return;
            }
            Notice::RestartsSpent => {
                let cause = Cause::GivenUp(HandOverReason::RestartsSpent);
                self.status.cause = Some(report::cause(&cause));
                return;
            }
            Notice::HookFailed(how) => {
                let cause = Cause::GivenUp(HandOverReason::HookFailed(*how));
                self.status.cause = Some(report::cause(&cause));
                return;
            }
            Notice::Doubt { .. }
            | Notice::Recovered
            | Notice::Recorded { .. }
            | Notice::NotDone
            | Notice::LeftBehind => return,
        };
        self.write(state);
    }

    fn stop_asked(&mut self) {
        self.stops();
    }

    fn waits(&mut self, next_look: Instant) {
        report::next_look(next_look);
    }

    fn workload_event(&mut self, now: Instant, event: &WorkloadEvent) {
        self.events.workload_event(now, event);
        if let Some(service_manager) = &self.service_manager {
            service_manager.workload_event(0, event);
        }
        #[cfg(feature = "http")]
        if let Some(server) = &self.server {
            server.shared_status().workload_event(event);
        }
        match event {
            WorkloadEvent::Started { pid } => {
                self.status.command_pid = Some(*pid);
                if self.status.state == "preparing" {
                    self.status.enter("holding");
                }
            }
            WorkloadEvent::Standby(pid) => self.status.standby_pid = *pid,
            WorkloadEvent::TreeEmpty { .. } => self.status.command_pid = None,
            WorkloadEvent::LeftBehind => (self.log)(&Notice::LeftBehind, now),
            WorkloadEvent::Lost => {
                tracing::warn!("the guardian died or fell silent; killing the command")
            }
            _ => return,
        }
        let state = self.status.state.clone();
        self.write(&state);
    }

    #[cfg(feature = "http")]
    fn acquired(&mut self, _now: Instant, reply: &Result<Grant, Failure>) {
        if let Some(server) = &self.server {
            server.shared_status().acquired(reply);
        }
    }

    #[cfg(feature = "http")]
    fn renewed(&mut self, now: Instant, t0: Instant, reply: &Result<(), Failure>) {
        if let Some(server) = &self.server {
            server.shared_status().renewed(now, t0, reply);
        }
    }
}
