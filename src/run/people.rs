//! What people are told of this instance: the log and the status file.
//!
//! Made by `run`, told by `hold`. It must never hold anything up: the log drops lines that nobody
//! reads, and the status file has a thread of its own.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::core::{Cause, Ending, Notice, Unfit};
use crate::exit::Leave;
use crate::hold::Audience;
use crate::lease::Store;
use crate::plan::Plan;
use crate::report;
use crate::status::{Status, StatusFile};
use crate::supervise::{Guardian, News};

/// What people are told of this instance: the log and the status file.
pub(crate) struct People {
    status: Status,
    store: Arc<dyn Store>,
    file: Option<StatusFile>,
    /// Something comes between control and the command.
    prepares: bool,
    /// How the log words a notice.
    log: fn(&Notice, Instant),
}

impl People {
    /// Those of this plan. Not before the guardians were forked: a thread writes the status file.
    pub(crate) fn new(
        plan: &Plan,
        store: &Arc<dyn Store>,
        guardian: &Guardian,
        log: fn(&Notice, Instant),
    ) -> People {
        People {
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
            prepares: plan.roles.standby.is_some() || plan.roles.on_acquire.is_some(),
            log,
        }
    }

    pub(crate) fn write(&mut self, state: &str) {
        state.clone_into(&mut self.status.state);
        // With slots it is another one in every tenure.
        self.store.name().clone_into(&mut self.status.lock);
        if let Some(file) = &mut self.file {
            file.write(&self.status);
        }
    }

    pub(crate) fn finish(mut self, ending: &Ending, leave: Leave) {
        self.status.cause = Some(report::cause(&ending.cause));
        self.status.overlap = ending.overlap;
        self.status.exit = Some(leave.status());
        self.write("done");
        if let Some(file) = self.file {
            file.finish(STATUS_PATIENCE);
        }
    }
}

/// How long we wait at the end for a status file on a slow file system.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

impl Audience for People {
    fn notice(&mut self, now: Instant, notice: &Notice) {
        (self.log)(notice, now);
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
            Notice::BackingOff { .. } | Notice::Keeping { .. } => "resting",
            Notice::Restarting => "holding",
            Notice::StandingBack { .. } => "standing back",
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
                let cause = Cause::GivenUp(Unfit::RestartsSpent);
                self.status.cause = Some(report::cause(&cause));
                return;
            }
            Notice::Unprepared(how) => {
                let cause = Cause::GivenUp(Unfit::Unprepared(*how));
                self.status.cause = Some(report::cause(&cause));
                return;
            }
            Notice::Doubt { .. } | Notice::Recovered | Notice::LeftBehind => return,
        };
        self.write(state);
    }

    fn news(&mut self, now: Instant, news: &News) {
        match news {
            News::Started { pid } => {
                self.status.command_pid = Some(*pid);
                if self.status.state == "preparing" {
                    self.status.state = "holding".into();
                }
            }
            News::Standby(pid) => self.status.standby_pid = *pid,
            News::TreeEmpty { .. } => self.status.command_pid = None,
            News::LeftBehind => (self.log)(&Notice::LeftBehind, now),
            News::Lost => tracing::warn!("the guardian died or fell silent; killing the command"),
            _ => return,
        }
        let state = std::mem::take(&mut self.status.state);
        self.write(&state);
    }
}
