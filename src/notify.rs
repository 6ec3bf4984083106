//! Tells the service manager (`sd_notify`) whether this instance is ready, alive or stopping, and what it does;
//! passes on what the command reports.
//!
//! ```text
//! command ── its NOTIFY_SOCKET: Proxy ──▶ ServiceManager ──▶ own NOTIFY_SOCKET: Socket ── service manager
//!                      notices, events ────▲
//! ```
//! Opened by the drivers after the guardians were forked. A command with a watchdog has its socket even without a
//! service manager. A service manager that is gone costs one line in the log. It must never wait.

mod socket;
mod state;

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::clock::Instant;
use crate::core::{WatchdogWord, WorkloadEvent};
use crate::driver::Observation;
use crate::guardian::HealthCheck;
use crate::report::{self, EventKind, Fold, Happened, Place, Row};
use crate::util::lock;
pub(crate) use socket::{PRIVATE, Surroundings, VARIABLE};
use socket::{Proxy, Socket};

/// Moment at which this instance reports that it is ready, with the help of the flag's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Ready {
    /// Standing by, or in control
    #[default]
    Standby,
    /// In control, and the command was started (give the unit TimeoutStartSec=infinity)
    Held,
    /// The command itself sends READY=1 (the unit needs the same)
    Command,
}

// In characters.
const STATUS_LIMIT: usize = 200;
// `systemctl status` cuts a line at the terminal's width.
const SHOWN: usize = 4;
// Between statuses that are no change of state: each one wakes everything that watches the unit.
const PACE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct ServiceManager(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    state: Mutex<State>,
    /// Notified when this instance is about to end, or a message could not be sent.
    pub(super) stirred: Notify,
    /// Notified when a command's watchdog message cannot wait for the next look.
    urgent: Notify,
}

#[derive(Debug)]
pub(super) struct State {
    /// Without a service manager messages count as sent.
    socket: Option<Socket>,
    proxy: Option<Proxy>,
    heard: Heard,
    /// Longest pause between signs of life that the service manager accepts.
    watchdog: Option<Duration>,
    ready: Ready,
    is_ready: bool,
    is_stopping: bool,
    /// STOPPING was sent, or is about to be.
    knows_of_stop: bool,
    words: String,
    doubt: Option<String>,
    failing: Option<String>,
    commands: Vec<CommandStatus>,
    owes: Owes,
    told_at: Instant,
    told: bool,
    stopping: Option<UnboundedSender<()>>,
}

#[derive(Debug, Default)]
struct Heard {
    alive: bool,
    trigger: bool,
    period: Option<Duration>,
    extend: Option<Duration>,
}

#[derive(Clone, Debug)]
struct CommandStatus {
    name: String,
    said: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    #[default]
    Never,
    Soon,
    Now,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owes {
    ready: bool,
    stopping: bool,
    status: Due,
    /// There was no room: try again even if nothing else happens.
    again: bool,
}

impl ServiceManager {
    /// Opens the connection to the service manager, if there is one, and a socket for each command. Commands that are
    /// `watched` get one even without it. `lock`: how long the lock lasts without a renewal.
    #[must_use]
    pub(crate) fn open(
        here: &Surroundings<'_>,
        mut ready: Ready,
        words: &str,
        commands: usize,
        watched: bool,
        lock: Option<Duration>,
    ) -> Option<ServiceManager> {
        let socket = here.socket().and_then(|name| {
            let socket = Socket::open(&name).inspect_err(|why| {
                let name = report::plain(&name.to_string_lossy());
                tracing::warn!("NOTIFY_SOCKET={name} cannot be used: {why}; continuing without it");
            });
            socket.ok()
        });
        if socket.is_none() && !watched {
            return None;
        }
        // Never the service manager's own socket: the command could send MAINPID or STOPPING for this instance, or
        // feed the watchdog while this instance hangs.
        let proxy = Proxy::make(here, commands).inspect_err(|why| {
            tracing::warn!("the command gets no NOTIFY_SOCKET: {why}");
        });
        let proxy = proxy.ok();
        if proxy.is_none() && ready == Ready::Command {
            tracing::warn!("the command cannot report that it is ready: ready means started");
            ready = Ready::Held;
        }
        let watchdog = here.watchdog().filter(|_| socket.is_some());
        if let Some((span, lock)) = watchdog.zip(lock)
            && span * 2 >= lock
        {
            // While supervisor and guardian are both frozen, only the watchdog ends the command in time.
            tracing::warn!(
                "WatchdogSec={span:?} is not below half of the lock's {lock:?}: the command could outlive the \
                 lock if trafficcop and its guardian are both frozen; set WatchdogSec={:?}",
                lock * 4 / 10
            );
        }
        let state = State {
            proxy,
            watchdog,
            socket,
            heard: Heard::default(),
            ready,
            is_ready: false,
            is_stopping: false,
            knows_of_stop: false,
            words: words.to_owned(),
            doubt: None,
            failing: None,
            commands: vec![
                CommandStatus {
                    name: "the command".into(),
                    said: None
                };
                commands
            ],
            owes: Owes {
                status: Due::Now,
                ..Owes::default()
            },
            told_at: Instant::ZERO,
            told: false,
            stopping: None,
        };
        Some(ServiceManager(Arc::new(Inner {
            state: Mutex::new(state),
            stirred: Notify::new(),
            urgent: Notify::new(),
        })))
    }

    #[must_use]
    pub(crate) fn for_the_command(&self, number: usize) -> Option<OsString> {
        let state = self.0.state();
        state.proxy.as_ref().map(|proxy| proxy.path(number).into())
    }

    /// Returns a channel with a message each time a command is about to end.
    pub(crate) fn stopping(&self) -> UnboundedReceiver<()> {
        let (told, words) = unbounded_channel();
        self.0.state().stopping = Some(told);
        words
    }

    /// Returns all watchdog messages of a command since the last call, also unread ones.
    pub(crate) fn watchdog_words(&self, number: usize) -> Vec<WatchdogWord> {
        let mut heard = Heard::default();
        self.0.with(|state| {
            state.hears_what_waits(number);
            heard = std::mem::take(&mut state.heard);
        });
        let period = heard.period.map(WatchdogWord::Period);
        let more = heard.extend.map(WatchdogWord::Extend);
        let alive = heard.alive.then_some(WatchdogWord::Alive);
        let trigger = heard.trigger.then_some(WatchdogWord::Trigger);
        [alive, period, more, trigger]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Waits for an urgent watchdog message. Cancel-safe.
    pub(crate) async fn is_urgent(&self) {
        self.0.urgent.notified().await;
    }

    /// Begins to feed the watchdog, and to listen to the commands.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) fn begin(&self, health_check: Vec<Arc<HealthCheck>>) {
        let watchdog = self.0.state().watchdog;
        if let Some(span) = watchdog {
            tokio::spawn(state::feed(Arc::clone(&self.0), health_check, span));
        }
        let sockets = self.0.state().proxy.as_ref().map(Proxy::sockets);
        match sockets.unwrap_or_else(|| Ok(Vec::new())) {
            Ok(sockets) => sockets
                .into_iter()
                .enumerate()
                .for_each(|(number, socket)| self.listen(number, socket)),
            Err(why) => unheard(&why),
        }
        tokio::spawn(state::attend(Arc::clone(&self.0)));
        // Nothing retried earlier messages before this point.
        self.0.with(|_| {});
    }

    fn listen(&self, number: usize, socket: UnixDatagram) {
        match tokio::net::UnixDatagram::from_std(socket) {
            Ok(socket) => {
                tokio::spawn(state::listen(Arc::clone(&self.0), number, socket));
            }
            Err(why) => unheard(&why),
        }
    }

    /// Reports a worker's state, at a limited rate; the first call makes it ready.
    pub(crate) fn works(&self, words: String) {
        self.0.with(|state| {
            if state.words != words {
                state.words = words;
                state.owe(Due::Soon);
            }
            if !state.is_ready {
                state.is_ready();
                state.owe(Due::Now);
            }
        });
    }

    pub(crate) fn doubts(&self, doubt: Option<String>) {
        self.0.with(|state| {
            if state.doubt != doubt {
                state.doubt = doubt;
                state.owe(Due::Now);
            }
        });
    }

    pub(crate) fn name(&self, number: usize, name: String) {
        if let Some(command) = self.0.state().commands.get_mut(number) {
            command.name = name;
        }
    }

    fn notice(&self, row: &Row) {
        let text = row.line.as_ref().map_or("", |(_, text)| text);
        self.0.with(|state| {
            // Standing by, cordoned or unfit is sound, too: systemd must not wait for a fail-over.
            let has_arrived = matches!(row.place, Place::First | Place::Outside);
            if has_arrived && state.ready == Ready::Standby {
                state.is_ready();
            }
            // Another notice resolves the doubt, or the next one repeats it.
            state.doubt = None;
            match row.event() {
                Some(EventKind::Doubt) => state.doubt = Some(text.to_owned()),
                Some(EventKind::Recovered) => {}
                _ => text.clone_into(&mut state.words),
            }
            state.owe(Due::Now);
        });
    }

    pub(crate) fn workload_event(&self, number: usize, event: &WorkloadEvent) {
        match event {
            WorkloadEvent::Started { .. } => self.0.with(|state| {
                if state.ready == Ready::Held {
                    state.is_ready();
                }
            }),
            WorkloadEvent::Health(health) => self.0.with(|state| {
                let failing = report::failing_health(health);
                if state.failing != failing {
                    state.failing = failing;
                    state.owe(Due::Soon);
                }
            }),
            WorkloadEvent::TreeEmpty { .. } => self.0.with(|state| {
                // Read its last messages first: they would count as the next command's.
                state.hears_what_waits(number);
                (state.heard, state.failing) = (Heard::default(), None);
                let command = state.commands.get_mut(number);
                if command.is_some_and(|command| command.said.take().is_some()) {
                    state.owe(Due::Soon);
                }
            }),
            _ => {}
        }
    }

    pub(crate) fn stops(&self) {
        self.0.with(|state| {
            state.is_stopping = true;
            // systemd counts a service that stops before it was ready as failed: `finish` decides that.
            if state.is_ready {
                state.owe_stopping();
            }
        });
        // The task must ask for more time, even if there is nothing to send.
        self.0.stirred.notify_one();
    }

    fn finish(&self, words: &str, exit: i32) {
        self.0.with(|state| {
            // Exit 0 is no failure, whatever --ready waits for.
            if exit == 0 {
                state.is_ready();
            }
            words.clone_into(&mut state.words);
            state.doubt = None;
            state.commands.clear();
            state.owe(Due::Now);
            // Even if no end was requested: otherwise systemd would count it as a failure.
            state.is_stopping = true;
            state.owe_stopping();
            // The tasks keep `self` alive beyond the end of `run`: remove the directory now.
            drop(state.proxy.take());
        });
    }
}

impl Fold for ServiceManager {
    fn take(&mut self, happened: &Happened<'_>) {
        match *happened.observation {
            Observation::Notice { .. } => self.notice(&happened.row),
            Observation::Workload(event) => self.workload_event(0, event),
            Observation::Stops => self.stops(),
            Observation::Done { cause, exit, .. } => self.finish(cause, exit),
            _ => {}
        }
    }
}

fn unheard(why: &io::Error) {
    tracing::warn!("the command's notifications are not received: {why}");
}

impl Heard {
    fn is_urgent(&self) -> bool {
        self.trigger || self.period.is_some()
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn with(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        state.settle();
        if state.owes != Owes::default() {
            self.stirred.notify_one();
        }
    }

    pub(super) fn hears(&self, number: usize, message: &[u8]) {
        self.with(|state| state.hears(number, message));
        if self.state().heard.is_urgent() {
            self.urgent.notify_one();
        }
    }

    pub(super) fn say(&self, message: &str) {
        let mut state = self.state();
        let sent = state.send(message);
        state.judge(sent);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    /// Returns the wait until the next message is due; `room` is the pause for a full socket.
    pub(super) fn owes(&self, room: Duration) -> Option<Duration> {
        let state = self.state();
        if state.owes.again {
            return Some(room);
        }
        (state.owes.status == Due::Soon).then(|| (state.told_at + PACE).since(Instant::now()))
    }

    pub(super) fn try_again(&self) {
        self.state().settle();
    }
}

#[cfg(test)]
mod tests;
