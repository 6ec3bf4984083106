//! Workload of `run`, in the order of [`HookSequencer`]. Nothing in it may block.

mod launch;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub(super) use self::launch::not_inherited;
use self::launch::{CAUSE, ROLE, env_of_a_standby};
use super::condition::ConditionCommand;
use super::health::HealthMonitor;
use super::on_lost::OnLostHook;
use crate::clock::{Instant, sleep};
use crate::core::stop::{Stop, StopRequests};
use crate::core::{Cause, Deadlines, WorkloadEvent};
use crate::driver::{Observation, Observer, Start, Workload};
use crate::guardian::{GuardianHandle, StopAsked, StopTo};
use crate::hooks::{Effect, HookConfig, HookNotice, HookSequencer, Role};
use crate::lease::LeaseStore;
use crate::report;
use crate::signals::{SignalEvent, Signals};
use crate::units;

// Time to stop after Ctrl-Z or `kill -TSTP`, before SIGSTOP.
const PAUSE: Duration = Duration::from_millis(500);

/// Number of no program.
pub(super) const NOBODY: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct HookPrograms {
    pub(super) standby: u8,
    pub(super) on_acquire: u8,
}

impl HookPrograms {
    pub(super) const NOBODY: HookPrograms = HookPrograms {
        standby: NOBODY,
        on_acquire: NOBODY,
    };
}

pub(super) struct Parts {
    pub(super) handle: GuardianHandle,
    pub(super) on_lost: Option<OnLostHook>,
    pub(super) condition: Option<ConditionCommand>,
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) identity: String,
    pub(super) stop_signal: i32,
    pub(super) stop_to: StopTo,
    /// Started in the foreground of a terminal.
    pub(super) on_terminal: bool,
    pub(super) hook_programs: HookPrograms,
    pub(super) config: HookConfig,
    pub(super) task: Option<String>,
}

/// Workload of `run`: the command and its hooks.
pub struct CommandWorkload {
    parts: Parts,
    hooks: HookSequencer,
    inbox: VecDeque<WorkloadEvent>,
    tenure: Vec<(OsString, OsString)>,
    /// Release info between tenures: a store may need it for a lease just acquired.
    standing_release: Vec<u8>,
    /// Origin and end of a pause.
    pausing: Option<(StopAsked, Instant)>,
    is_forced: bool,
    pub(crate) notify_socket: Option<OsString>,
    watchdog: Option<Duration>,
    health: Option<HealthMonitor>,
    /// Held back while a probe's process may live.
    emptied: Option<WorkloadEvent>,
}

impl CommandWorkload {
    pub(super) fn new(mut parts: Parts) -> CommandWorkload {
        CommandWorkload {
            standing_release: parts.tell_standing_release(),
            hooks: HookSequencer::new(parts.config),
            parts,
            inbox: VecDeque::new(),
            tenure: Vec::new(),
            pausing: None,
            is_forced: false,
            notify_socket: None,
            watchdog: None,
            health: None,
            emptied: None,
        }
    }

    pub(super) fn look_after(&mut self, health: HealthMonitor, watchdog: Option<Duration>) {
        (self.health, self.watchdog) = (Some(health), watchdog);
    }

    pub(super) fn is_on_terminal(&self) -> bool {
        self.parts.on_terminal
    }

    /// Creates a workload of one command, for the simulated fleet.
    #[doc(hidden)]
    #[must_use]
    pub fn of_a_command(
        handle: GuardianHandle,
        store: Arc<dyn LeaseStore>,
        stop_signal: i32,
    ) -> CommandWorkload {
        CommandWorkload::new(Parts {
            handle,
            on_lost: None,
            condition: None,
            store,
            identity: String::new(),
            stop_signal,
            stop_to: StopTo::Group,
            on_terminal: false,
            hook_programs: HookPrograms::NOBODY,
            config: HookConfig::default(),
            task: None,
        })
    }

    /// Ends what runs without control, and waits for it and the --on-lost hook. A second stop signal kills
    /// them.
    pub async fn finish(
        mut self,
        cause: &Cause,
        signals: &mut Signals,
        observer: &mut dyn Observer,
    ) {
        let began = Instant::now();
        let mut stop = StopRequests::default();
        if let Cause::Stopped(signal) = cause {
            // The signal that ended the tenure was the first.
            stop.asked(began, *signal);
        }
        self.parts
            .condition
            .iter_mut()
            .for_each(ConditionCommand::kill);
        let effects = self.hooks.finish(began + self.parts.config.grace);
        self.perform(effects);
        while !self.is_finished() {
            tokio::select! {
                biased;
                signal = signals.next() => match signal {
                    SignalEvent::Stop(signal) => {
                        if stop.asked(Instant::now(), signal) == Stop::AtOnce {
                            self.parts.handle.kill();
                            self.parts.on_lost.iter_mut().for_each(OnLostHook::kill);
                        }
                    }
                    SignalEvent::Pause => self.pause(),
                    SignalEvent::Pass(_)
                    | SignalEvent::Cordon(_)
                    | SignalEvent::CommandStopping => {}
                },
                () = self.step() => while let Some(event) = self.inbox.pop_front() {
                    observer.observe(Instant::now(), &Observation::Workload(&event));
                },
            }
        }
        self.dismiss().await;
    }

    pub(crate) async fn dismiss(self) {
        let Parts {
            handle,
            on_lost,
            condition,
            ..
        } = self.parts;
        handle.dismiss().await;
        if let Some(health) = self.health {
            health.dismiss().await;
        }
        if let Some(on_lost) = on_lost {
            on_lost.dismiss().await;
        }
        if let Some(condition) = condition {
            condition.dismiss().await;
        }
    }

    fn is_finished(&self) -> bool {
        let on_lost = self.parts.on_lost.as_ref();
        self.hooks.is_clear() && on_lost.is_none_or(OnLostHook::is_idle)
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Launch { role, deadlines } => {
                    if let Some(health) = &mut self.health {
                        health.extend(deadlines);
                        if role == Role::Command {
                            health.launched();
                        }
                    }
                    match self.spawn_request(role, deadlines) {
                        Ok(request) => self.parts.handle.start(request),
                        Err(errno) => self.parts.handle.refuse(errno),
                    }
                }
                Effect::Extend(deadlines) => {
                    self.parts.handle.extend(deadlines);
                    if let Some(health) = &mut self.health {
                        health.extend(deadlines);
                    }
                }
                Effect::Drain {
                    signal,
                    end_of_grace,
                } => {
                    self.parts.handle.drain(signal, end_of_grace);
                    self.health.iter_mut().for_each(HealthMonitor::stops);
                }
                Effect::Kill => {
                    self.parts.handle.kill();
                    self.health.iter_mut().for_each(HealthMonitor::stops);
                }
                // Now: the release info belongs to this tenure.
                Effect::SetReleaseInfo => {
                    let orphan_release = self.parts.store.orphan_release().unwrap_or_default();
                    let release_info = orphan_release.release_info.unwrap_or_default();
                    self.parts.handle.set_release_info(&release_info);
                }
                Effect::Tell(event) => self.tell(event),
                Effect::Say(notice) => say(notice),
            }
        }
    }

    /// Passes an event to the core; an empty tree waits for the probes.
    fn tell(&mut self, event: WorkloadEvent) {
        if let Some(health) = &mut self.health {
            match event {
                // A command that was to end during a hanging start reports the start at its end.
                WorkloadEvent::Started { .. } if health.is_expected() => health.started(),
                WorkloadEvent::Started { .. } => {}
                WorkloadEvent::TreeEmpty { .. } | WorkloadEvent::NotStarted { .. } => {
                    health.stops();
                    self.emptied = Some(event);
                    return self.tell_emptied();
                }
                WorkloadEvent::Exited(_)
                | WorkloadEvent::LeftBehind
                | WorkloadEvent::Acting
                | WorkloadEvent::Lost
                | WorkloadEvent::TreeStuck
                | WorkloadEvent::HookFailed { .. } => health.stops(),
                WorkloadEvent::Stopped
                | WorkloadEvent::ClockJumped
                | WorkloadEvent::Standby(_)
                | WorkloadEvent::Condition(_)
                | WorkloadEvent::Health(_) => {}
            }
        }
        self.inbox.push_back(event);
    }

    fn tell_emptied(&mut self) {
        let (Some(event), Some(health)) = (self.emptied, &self.health) else {
            return;
        };
        let event = match (health.empty_at(), event) {
            (Some(of_probes), WorkloadEvent::TreeEmpty { at }) => WorkloadEvent::TreeEmpty {
                at: at.max(of_probes),
            },
            (Some(_), event) => event,
            (None, _) if health.is_stuck() => WorkloadEvent::TreeStuck,
            (None, _) => return,
        };
        self.emptied = None;
        self.inbox.push_back(event);
    }

    fn look_after_health(&mut self) {
        let Some(health) = &mut self.health else {
            return;
        };
        let (events, is_to_probe) = health.look();
        let events = events.into_iter().map(WorkloadEvent::Health);
        self.inbox.extend(events);
        if is_to_probe {
            let request = self.under_the_lease(0, libc::SIGTERM, Deadlines::NONE);
            if let Some(health) = &mut self.health {
                health.launch(request);
            }
        }
        self.tell_emptied();
    }

    /// Waits for the next event. Cancel-safe.
    async fn step(&mut self) {
        let now = Instant::now();
        let paused = self.pausing.map(|(_, until)| until.since(now));
        let due = self.hooks.wake_at().since(now);
        let Parts {
            handle,
            on_lost,
            condition,
            ..
        } = &mut self.parts;
        let condition = async {
            match condition {
                Some(condition) => condition.step().await,
                None => pending().await,
            }
        };
        let on_lost = async {
            match on_lost {
                Some(on_lost) => on_lost.step().await,
                None => pending().await,
            }
        };
        let health = async {
            match &mut self.health {
                Some(health) => health.wait().await,
                None => pending().await,
            }
        };
        tokio::select! {
            // A simulation repeats this order.
            biased;
            event = handle.next_event() => self.on_event(event),
            () = sleep(paused.unwrap_or_default()), if paused.is_some() => {
                self.pause_is_over();
            }
            () = sleep(due) => {
                let effects = self.hooks.woke(Instant::now());
                self.perform(effects);
            }
            () = health => {}
            () = on_lost => {}
            answer = condition => self.inbox.extend(answer.map(WorkloadEvent::Condition)),
        }
        self.look_after_health();
    }

    fn on_event(&mut self, event: WorkloadEvent) {
        let is_command = self.hooks.on() == Some(Role::Command);
        // Only the command is in the foreground: no key stops a hook.
        let typed = (self.parts.on_terminal && is_command).then_some(StopAsked::OfTheCommand);
        let asked = self.pausing.map(|(asked, _)| asked).or(typed);
        if event == WorkloadEvent::Stopped
            && let Some(asked) = asked
        {
            self.stop_ourselves(asked);
            return self.inbox.push_back(event);
        }
        let effects = self.hooks.on_event(Instant::now(), event);
        self.perform(effects);
    }
}

fn say(notice: HookNotice) {
    match notice {
        HookNotice::StandbyDone => {
            tracing::info!(
                "the standby command ended; it starts again after this instance has been in control"
            );
        }
        HookNotice::StandbyFailed(how, again) => {
            let (how, again) = (report::failed(how), units::show(again));
            tracing::warn!("the standby command {how}: it is started again in {again}");
        }
        HookNotice::StandbyDrained => tracing::info!("stopping the standby command"),
        HookNotice::LeftBehind(role) => {
            let which = match role {
                Role::Standby => "standby",
                Role::OnAcquire => "--on-acquire",
                Role::Command => "",
            };
            tracing::warn!("the {which} command left processes behind: stopping them");
        }
        HookNotice::StandbyStuck => tracing::error!(
            "a process of the standby command cannot be killed: no command can start here: restart this machine"
        ),
    }
}

#[async_trait]
impl Workload for CommandWorkload {
    fn start(&mut self, start: Start) {
        self.tenure = self.environment(start.token);
        let effects = self.hooks.start(Instant::now(), start);
        self.perform(effects);
    }

    fn extend(&mut self, deadlines: Deadlines) {
        let effects = self.hooks.extend(Instant::now(), deadlines);
        self.perform(effects);
    }

    fn drain(&mut self, signal: i32, end_of_grace: Instant) {
        // A command that is to end must not stop first.
        self.pausing = None;
        let effects = self.hooks.drain(Instant::now(), signal, end_of_grace);
        self.perform(effects);
    }

    fn kill(&mut self) {
        let effects = self.hooks.kill(Instant::now());
        self.perform(effects);
    }

    fn pass(&mut self, signal: i32) {
        // A hook's shell would die of a signal for a service.
        if matches!(self.hooks.on(), Some(Role::Command | Role::Standby)) {
            self.parts.handle.signal(signal);
        }
    }

    fn pause(&mut self) {
        let asked = StopAsked::of_a_signal();
        if self.hooks.on().is_some() {
            self.parts.handle.signal(libc::SIGTSTP);
            self.is_forced = false;
            self.pausing = Some((asked, Instant::now() + PAUSE));
        } else {
            self.stop_ourselves(asked);
        }
    }

    fn forget_release_info(&mut self) {
        self.parts.handle.set_release_info(&self.standing_release);
    }

    fn stand_by(&mut self) {
        let effects = self.hooks.stand_by(Instant::now());
        self.perform(effects);
    }

    fn ask(&mut self, give_up_at: Instant) {
        let Parts {
            condition, store, ..
        } = &mut self.parts;
        if let Some(condition) = condition {
            let env = env_of_a_standby(&**store);
            let answer = condition.ask(env, not_inherited(), give_up_at);
            self.inbox.extend(answer.map(WorkloadEvent::Condition));
        }
    }

    fn tenure_over(&mut self, cause: &Cause) {
        if let Some(on_lost) = &mut self.parts.on_lost {
            let mut env = self.tenure.clone();
            env.push((ROLE.into(), "standby".into()));
            env.push((CAUSE.into(), report::cause(cause).into()));
            on_lost.run(env);
        }
    }

    fn settled(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let on_lost = self.parts.on_lost.as_ref()?;
        (!on_lost.is_idle()).then(|| Box::pin(on_lost.settled()) as _)
    }

    async fn next_event(&mut self) -> WorkloadEvent {
        loop {
            if let Some(event) = self.inbox.pop_front() {
                return event;
            }
            self.step().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::health::Prober;
    use super::super::health::tests::asked;
    use super::*;
    use crate::core::{Failure, Grant};
    use crate::guardian::scripted::{Plays, guardian};
    use crate::lease::StoreInfo;

    struct Nowhere;

    #[async_trait]
    impl LeaseStore for Nowhere {
        fn info(&self) -> StoreInfo {
            StoreInfo::default()
        }

        async fn acquire(&self, _: Instant) -> Result<Grant, Failure> {
            pending().await
        }

        async fn renew(&self, _: Instant) -> Result<(), Failure> {
            Ok(())
        }

        async fn release(&self, _: Instant) -> Result<(), Failure> {
            Ok(())
        }
    }

    fn checked() -> CommandWorkload {
        let hour = Duration::from_secs(3600);
        let rules = asked(hour, hour, 1);
        let prober = Prober::Command(guardian(|_| Plays::Sticks));
        let mut health = HealthMonitor::new(rules, None, Some(prober));
        health.started();
        let (handle, store) = (guardian(|_| Plays::Lasts), Arc::new(Nowhere));
        let mut workload = CommandWorkload::of_a_command(handle, store, libc::SIGTERM);
        workload.look_after(health, None);
        workload.look_after_health();
        workload
    }

    #[tokio::test]
    async fn failed_start_is_not_reported_while_a_probe_lives() {
        let mut workload = checked();
        workload.tell(WorkloadEvent::NotStarted { errno: libc::EIO });
        assert_eq!(workload.inbox, []);
        while workload.inbox.is_empty() {
            workload.step().await;
        }
        assert_eq!(workload.inbox, [WorkloadEvent::TreeStuck]);
    }

    #[tokio::test]
    async fn no_probe_begins_for_a_command_that_is_to_end() {
        let mut workload = checked();
        let at = Instant::now();
        if let Some(health) = &mut workload.health {
            health.stops();
        }
        workload.tell(WorkloadEvent::Started { pid: 1 });
        workload.look_after_health();
        workload.tell(WorkloadEvent::TreeEmpty { at });
        while workload.inbox.len() < 2 {
            workload.step().await;
        }
        let started = WorkloadEvent::Started { pid: 1 };
        assert_eq!(workload.inbox, [started, WorkloadEvent::TreeStuck]);
    }
}
