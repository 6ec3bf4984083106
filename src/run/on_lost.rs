//! The --on-lost hook, under a separate guardian.
//!
//! It must not delay a kill or a release: only this instance's next attempt to acquire waits for it. One runs
//! and one waits; a later one replaces that.

use std::ffi::OsString;
use std::time::Duration;

use super::workload::not_inherited;
use tokio::sync::watch;

use crate::clock::{Instant, sleep};
use crate::core::{Deadlines, Exit, Failed, WorkloadEvent};
use crate::guardian::{GuardianHandle, SpawnRequest, StopTo};
use crate::report;

// A grace of zero is the command's.
const LEAST: Duration = Duration::from_secs(1);

pub(super) struct OnLostHook {
    handle: GuardianHandle,
    limit: Duration,
    runs: bool,
    waits: Option<Vec<(OsString, OsString)>>,
    /// The guardian is dead, or cannot kill.
    over: bool,
    idle: watch::Sender<bool>,
}

impl OnLostHook {
    pub(super) fn new(handle: GuardianHandle, grace: Duration) -> OnLostHook {
        OnLostHook {
            handle,
            limit: grace.max(LEAST),
            runs: false,
            waits: None,
            over: false,
            idle: watch::Sender::new(true),
        }
    }

    /// Resolves when it is idle, or after its limit.
    pub(super) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut idle, limit) = (self.idle.subscribe(), self.limit);
        async move {
            tokio::select! {
                biased;
                _ = idle.wait_for(|idle| *idle) => {}
                () = sleep(limit) => {}
            }
        }
    }

    pub(super) fn run(&mut self, env: Vec<(OsString, OsString)>) {
        if self.waits.replace(env).is_some() {
            tracing::warn!(
                "the --on-lost command is skipped for a tenure: it still runs for an earlier one"
            );
        }
        self.next();
        self.idle.send_replace(self.is_idle());
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.runs && self.waits.is_none()
    }

    pub(super) fn kill(&mut self) {
        self.waits = None;
        if self.runs {
            self.handle.kill();
        }
    }

    pub(super) async fn dismiss(self) {
        self.handle.dismiss().await;
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn step(&mut self) {
        let event = self.handle.next_event().await;
        self.on_event(&event);
        self.idle.send_replace(self.is_idle());
    }

    fn next(&mut self) {
        if self.runs {
            return;
        }
        let Some(env) = self.waits.take() else {
            return;
        };
        if self.over {
            tracing::warn!("the --on-lost command is not run: its guardian is gone");
            return;
        }
        let kill_at = Instant::now() + self.limit;
        // An event follows even if the start fails.
        self.runs = true;
        self.handle.start(SpawnRequest {
            program: 0,
            // Another instance may have control by now.
            in_control: false,
            env,
            unset: not_inherited(),
            // Time for an orderly end.
            deadlines: Deadlines {
                term_at: kill_at - self.limit / 10,
                kill_at,
            },
            stop_signal: libc::SIGTERM,
            stop_to: StopTo::Group,
            lock: None,
            input: None,
            release_info: Vec::new(),
        });
        // No lease.
        self.handle.hurry_at(Instant::FOREVER);
    }

    fn on_event(&mut self, event: &WorkloadEvent) {
        let fails = |how| tracing::warn!("the --on-lost command {}", report::failed(how));
        match event {
            WorkloadEvent::Exited(Exit::Code(0)) => {}
            WorkloadEvent::Exited(exit) => fails(Failed::Exited(*exit)),
            WorkloadEvent::NotStarted { errno } => {
                fails(Failed::NotStarted(*errno));
                self.runs = false;
                self.next();
            }
            WorkloadEvent::LeftBehind => {
                tracing::warn!("the --on-lost command left processes behind: stopping them");
            }
            WorkloadEvent::Acting => {
                tracing::warn!("the --on-lost command takes too long: stopping it")
            }
            WorkloadEvent::TreeEmpty { .. } => {
                self.runs = false;
                self.next();
            }
            WorkloadEvent::Lost => {
                tracing::warn!("the guardian of the --on-lost command died: killing that");
                self.over = true;
            }
            WorkloadEvent::TreeStuck => {
                tracing::warn!("the --on-lost command cannot be killed");
                // trafficcop would never end.
                self.over = true;
                self.runs = false;
                self.waits = None;
            }
            WorkloadEvent::Started { .. }
            | WorkloadEvent::Stopped
            | WorkloadEvent::ClockJumped
            | WorkloadEvent::HookFailed { .. }
            | WorkloadEvent::Standby(_)
            | WorkloadEvent::Condition(_)
            | WorkloadEvent::Health(_) => {}
        }
    }
}
