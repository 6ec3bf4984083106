//! The status file and `/status` as an observer: remembers the instance's present state.

use std::sync::Arc;

use crate::core::{HealthEvent, Notice, WorkloadEvent};
use crate::driver::Observation;
use crate::lease::LeaseStore;
use crate::report::{Fold, Happened, Row};
use crate::serve::SharedStatus;
use crate::status::{REFUSED, Status, StatusFile};

pub(super) struct StatusObserver {
    pub(super) status: Status,
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) file: Option<StatusFile>,
    pub(super) shared_status: Option<Arc<SharedStatus>>,
    pub(super) prepares: bool,
}

impl StatusObserver {
    fn write(&mut self) {
        // With slots each tenure has another one.
        self.status.lock = self.store.info().name;
        if let Some(file) = &self.file {
            file.write(&self.status);
        }
        if let Some(shared_status) = &self.shared_status {
            shared_status.write(&self.status);
        }
    }

    fn notice(&mut self, notice: &Notice, row: &Row) -> Option<&'static str> {
        let status = &mut self.status;
        match notice {
            Notice::StandingBy(info) => status.holder.clone_from(&info.holder),
            Notice::InControl { token } => {
                status.doorbell = None;
                // A script would take the last tenure's cause for this one's.
                (status.holder, status.token, status.cause) = (None, Some(*token), None);
                if self.prepares {
                    return Some("preparing");
                }
            }
            Notice::CommandEnded(exit) => {
                status.command_exit = Some(exit.as_status());
                status.command_pid = None;
            }
            Notice::Cordoned { .. } | Notice::Unfit(_) | Notice::Refused { .. } => {
                status.holder = None;
            }
            Notice::Recovered if status.state != REFUSED => return None,
            Notice::Uncordoned | Notice::Fit | Notice::Recovered => status.cause = None,
            Notice::Overlapped => status.overlap = true,
            _ => {}
        }
        row.state
    }
}

impl Fold for StatusObserver {
    fn take(&mut self, happened: &Happened<'_>) {
        let row = &happened.row;
        let mut state = row.state;
        if row.cause.is_some() {
            self.status.cause.clone_from(&row.cause);
        }
        match *happened.observation {
            Observation::Begins => {}
            Observation::Notice { notice, .. } => {
                state = self.notice(notice, row);
                if state.is_none() {
                    return;
                }
            }
            Observation::Rang(ring) => {
                let heard = if ring.is_alive() { "heard" } else { "silent" };
                // A silent doorbell is tried with each read of the lock.
                if self.status.doorbell.as_deref() == Some(heard) {
                    return;
                }
                self.status.doorbell = Some(heard.to_owned());
            }
            Observation::Workload(event) => match event {
                WorkloadEvent::Started { pid } => {
                    self.status.command_pid = Some(*pid);
                    if self.status.state == "preparing" {
                        state = Some("holding");
                    }
                }
                WorkloadEvent::Standby(pid) => self.status.standby_pid = *pid,
                // `/leader` says yes only with a pid.
                WorkloadEvent::TreeEmpty { .. } => {
                    (self.status.command_pid, self.status.health) = (None, None);
                }
                WorkloadEvent::Health(health) => {
                    let health = match health {
                        HealthEvent::Answered { .. } => "ok",
                        HealthEvent::Failed { .. } => "failing",
                        HealthEvent::Hung(_) => "hung",
                        HealthEvent::NotAsked { .. } | HealthEvent::GuardianLost => return,
                    };
                    if self.status.health.as_deref() == Some(health) {
                        return;
                    }
                    self.status.health = Some(health.to_owned());
                }
                WorkloadEvent::LeftBehind | WorkloadEvent::Lost => {}
                _ => return,
            },
            Observation::Done { overlap, exit, .. } => {
                (self.status.overlap, self.status.exit) = (overlap, Some(exit));
            }
            _ => return,
        }
        if let Some(state) = state {
            self.status.enter(state);
        }
        self.write();
    }
}
