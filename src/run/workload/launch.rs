//! Start requests of `run` with their environment.

use std::ffi::OsString;
use std::time::Duration;

use super::{CommandWorkload, Parts};
use crate::clock::Instant;
use crate::core::{Deadlines, WorkloadEvent};
use crate::guardian::{self, SpawnRequest, StopAsked, StopTo};
use crate::hooks::Role;
use crate::lease::{LeaseStore, StoreInfo};
use crate::notify::{PRIVATE, VARIABLE};

pub(super) const ROLE: &str = "TRAFFICCOP_ROLE";
const TOKEN: &str = "TRAFFICCOP_TOKEN";
const HOLDER: &str = "TRAFFICCOP_HOLDER";
const SLOT: &str = "TRAFFICCOP_SLOT";
pub(super) const CAUSE: &str = "TRAFFICCOP_CAUSE";
const TASK: &str = "TRAFFICCOP_TASK";
const PERIOD: &str = "TRAFFICCOP_PERIOD";

pub(super) fn env_of_a_standby(store: &dyn LeaseStore) -> Vec<(OsString, OsString)> {
    vec![
        ("TRAFFICCOP_LOCK".into(), store.info().name.into()),
        (ROLE.into(), "standby".into()),
    ]
}

/// Returns variables to remove: an outer trafficcop's, about another lock, and the service manager's, with
/// whose socket any process could act as trafficcop.
pub(in crate::run) fn not_inherited() -> Vec<OsString> {
    let of_a_tenure = [TOKEN, HOLDER, SLOT, CAUSE, TASK, PERIOD];
    PRIVATE
        .iter()
        .chain(&of_a_tenure)
        .map(OsString::from)
        .collect()
}

impl Parts {
    pub(super) fn tell_standing_release(&mut self) -> Vec<u8> {
        let orphan_release = self.store.orphan_release().unwrap_or_default();
        let release_info = orphan_release.release_info.unwrap_or_default();
        if !release_info.is_empty() {
            self.handle.set_release_info(&release_info);
        }
        release_info
    }
}

// After SIGSTOP the guardian only has to run once to report.
const FORCED_PAUSE: Duration = Duration::from_millis(100);

impl CommandWorkload {
    /// Sends SIGSTOP to a command that did not stop, then goes on as if it had.
    pub(super) fn pause_is_over(&mut self) {
        if let Some((_, until)) = &mut self.pausing
            && !std::mem::replace(&mut self.is_forced, true)
        {
            self.parts.handle.signal(libc::SIGSTOP);
            *until = Instant::now() + FORCED_PAUSE;
            return;
        }
        self.on_event(WorkloadEvent::Stopped);
    }

    pub(super) fn stop_ourselves(&mut self, asked: StopAsked) {
        self.pausing = None;
        if let Err(why) = guardian::stop_ourselves(asked) {
            tracing::warn!("cannot stop: {why}");
        }
        if self.hooks.on().is_some() {
            // The command stopped with this process: nothing else would continue it.
            self.parts.handle.resume();
        }
    }

    pub(super) fn environment(&self, token: u64) -> Vec<(OsString, OsString)> {
        let StoreInfo {
            name, slot, period, ..
        } = self.parts.store.info();
        let mut env: Vec<(OsString, OsString)> = vec![
            (TOKEN.into(), token.to_string().into()),
            ("TRAFFICCOP_LOCK".into(), name.clone().into()),
            (HOLDER.into(), self.parts.identity.clone().into()),
            (SLOT.into(), slot.to_string().into()),
        ];
        let task = self.parts.task.clone().map(|key| (TASK, key));
        let period = period.map(|begin| (PERIOD, begin));
        let more = task.into_iter().chain(period);
        env.extend(more.map(|(name, value)| (name.into(), value.into())));
        env
    }

    pub(super) fn under_the_lease(
        &self,
        program: u8,
        stop_signal: i32,
        deadlines: Deadlines,
    ) -> Result<SpawnRequest, i32> {
        // Without what keeps the lock, it would run on beside the next holder after the death of supervisor
        // and guardian.
        let orphan_release = self.parts.store.orphan_release();
        let orphan_release =
            orphan_release.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
        let mut env = self.tenure.clone();
        env.push((ROLE.into(), "holder".into()));
        Ok(SpawnRequest {
            program,
            in_control: true,
            env,
            unset: not_inherited(),
            deadlines,
            stop_signal,
            stop_to: StopTo::Group,
            lock: orphan_release.descriptor,
            input: None,
            release_info: orphan_release.release_info.unwrap_or_default(),
        })
    }

    pub(super) fn spawn_request(
        &self,
        role: Role,
        deadlines: Deadlines,
    ) -> Result<SpawnRequest, i32> {
        let parts = &self.parts;
        match role {
            Role::Standby => Ok(SpawnRequest {
                program: parts.hook_programs.standby,
                // A standby command that reads the control file must not take itself for the holder.
                in_control: false,
                env: env_of_a_standby(&*parts.store),
                unset: not_inherited(),
                deadlines,
                stop_signal: libc::SIGTERM,
                stop_to: StopTo::Group,
                lock: None,
                input: None,
                release_info: self.standing_release.clone(),
            }),
            Role::OnAcquire => {
                let program = parts.hook_programs.on_acquire;
                self.under_the_lease(program, libc::SIGTERM, deadlines)
            }
            Role::Command => self.command_under_the_lease(deadlines),
        }
    }

    fn command_under_the_lease(&self, deadlines: Deadlines) -> Result<SpawnRequest, i32> {
        let mut request = self.under_the_lease(0, self.parts.stop_signal, deadlines)?;
        request.stop_to = self.parts.stop_to;
        let mut set = |name: &str, value: OsString| {
            request.unset.retain(|unset| unset != name);
            request.env.push((name.into(), value));
        };
        if let Some(socket) = &self.notify_socket {
            set(VARIABLE, socket.clone());
        }
        if let Some(span) = self.watchdog {
            set("WATCHDOG_USEC", span.as_micros().to_string().into());
            // `guardian::spawn` fills it in.
            set("WATCHDOG_PID", OsString::new());
        }
        Ok(request)
    }
}
