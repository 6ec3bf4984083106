//! What a service manager is told (`sd_notify`): that we are ready, what we do, that we are alive,
//! that we stop; and what the command tells it through us.
//!
//! ```text
//! command ── its NOTIFY_SOCKET: Proxy ──▶ ServiceManager ──▶ our NOTIFY_SOCKET: Socket ── service manager
//!                      notices, events ────▲
//! ```
//! Opened by the drivers after the guardians were forked; told by those who tell people. Where a command
//! has a watchdog it has its socket without a service manager, too. A service manager that is gone, or does not read, costs one line in the log. It must never wait.

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
use crate::core::{Notice, WatchdogWord, WorkloadEvent};
use crate::driver::{Observation, Observer};
use crate::guardian::HealthCheck;
use crate::report;
use crate::util::lock;
pub(crate) use socket::{PRIVATE, Surroundings, VARIABLE};
use socket::{Proxy, Socket};

/// When the service manager is told that we are ready; as it is typed, with its help.
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

// The longest status of a command's that is shown, in characters.
const STATUS_LIMIT: usize = 200;
// `systemctl status` cuts a line at the width of the terminal: what comes first is seen.
const SHOWN: usize = 4;
// From one status to the next where it is no change of state: everybody who watches the unit is
// woken by each.
const PACE: Duration = Duration::from_secs(1);

/// Speaks to the service manager; a handle, of which there can be many.
#[derive(Clone, Debug)]
pub(crate) struct ServiceManager(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    state: Mutex<State>,
    /// We are about to end, or something could not be sent.
    pub(super) stirred: Notify,
    /// A command has said something of its watchdog that cannot wait for the next look.
    urgent: Notify,
}

#[derive(Debug)]
pub(super) struct State {
    /// None: there is no service manager, and what it is owed is paid.
    socket: Option<Socket>,
    proxy: Option<Proxy>,
    /// What the command has said of its own watchdog since we asked.
    heard: Heard,
    /// How often it wants a sign of life at the least.
    watchdog: Option<Duration>,
    ready: Ready,
    is_ready: bool,
    is_stopping: bool,
    /// It was told of that, or is owed it.
    knows_of_stop: bool,
    /// What we do.
    words: String,
    /// What the store lets us wait for meanwhile.
    doubt: Option<String>,
    /// What is wrong with the command's health, while something is.
    failing: Option<String>,
    /// What each command says that it does.
    commands: Vec<CommandStatus>,
    owes: Owes,
    /// When a status was sent last, whether it arrived or not.
    told_at: Instant,
    /// The log knows that nothing can be sent.
    told: bool,
    /// Who wants to know when a command is about to end.
    stopping: Option<UnboundedSender<()>>,
}

/// Of a command's watchdog: each word once, however often it was said.
#[derive(Debug, Default)]
struct Heard {
    alive: bool,
    trigger: bool,
    period: Option<Duration>,
    extend: Option<Duration>,
}

/// A command that can say something.
#[derive(Clone, Debug)]
struct CommandStatus {
    name: String,
    /// What it says that it does.
    said: Option<String>,
}

/// When something has to be sent, if it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    #[default]
    Never,
    /// A moment after the last one.
    Soon,
    Now,
}

/// What is still to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owes {
    ready: bool,
    stopping: bool,
    status: Due,
    /// There was no room for it: it is worth another try, though nothing happens.
    again: bool,
}

impl ServiceManager {
    /// Opens the way to the service manager, if there is one, and a way for each of so many
    /// commands; these words are what we do at first. Commands that are `watched` have it in any case.
    #[must_use]
    pub(crate) fn open(
        here: &Surroundings<'_>,
        mut ready: Ready,
        words: &str,
        commands: usize,
        watched: bool,
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
        // Never the service manager's own socket: with it the command could say MAINPID or STOPPING in
        // our name, or feed the watchdog while we hang.
        let proxy = Proxy::make(here, commands).inspect_err(|why| {
            tracing::warn!("the command gets no NOTIFY_SOCKET: {why}");
        });
        let proxy = proxy.ok();
        if proxy.is_none() && ready == Ready::Command {
            tracing::warn!("the command cannot report that it is ready: ready means started");
            ready = Ready::Held;
        }
        let state = State {
            proxy,
            watchdog: here.watchdog().filter(|_| socket.is_some()),
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

    /// What the command with this number finds in its `NOTIFY_SOCKET`.
    #[must_use]
    pub(crate) fn for_the_command(&self, number: usize) -> Option<OsString> {
        let state = self.0.state();
        state.proxy.as_ref().map(|proxy| proxy.path(number).into())
    }

    /// Each time a command says that it is about to end.
    pub(crate) fn stopping(&self) -> UnboundedReceiver<()> {
        let (told, words) = unbounded_channel();
        self.0.state().stopping = Some(told);
        words
    }

    /// What the command with this number has said of its watchdog since this was asked last, all of it:
    /// also what nobody has received yet.
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

    /// Resolves when a command has said something of its watchdog that is not to wait for the next look.
    /// Cancel-safe.
    pub(crate) async fn is_urgent(&self) {
        self.0.urgent.notified().await;
    }

    /// Begins to feed the watchdog (after each proof that supervisor and guardians are alive), and to
    /// listen to the commands.
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
        // What was owed since it was opened: before this nobody would have tried again.
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

    /// A worker does this now; it is ready from the first time on. Said often, it is passed on now and
    /// then.
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

    /// What we cannot do at the moment, and why; nothing, when we can again.
    pub(crate) fn doubts(&self, doubt: Option<String>) {
        self.0.with(|state| {
            if state.doubt != doubt {
                state.doubt = doubt;
                state.owe(Due::Now);
            }
        });
    }

    /// What the command with this number is called from now on.
    pub(crate) fn name(&self, number: usize, name: String) {
        if let Some(command) = self.0.state().commands.get_mut(number) {
            command.name = name;
        }
    }

    /// A change of state, as people are told of it.
    fn notice(&self, now: Instant, notice: &Notice) {
        self.0.with(|state| {
            let arrived = matches!(
                notice,
                Notice::StandingBy(_)
                    | Notice::InControl { .. }
                    | Notice::Cordoned { .. }
                    | Notice::Unfit(_)
            );
            // Standing by, cordoned, or not fit, is as sound as in control: systemd is not to wait for a
            // fail-over.
            if arrived && state.ready == Ready::Standby {
                state.is_ready();
            }
            match notice {
                Notice::Doubt { .. } | Notice::Refused { .. } => {
                    state.doubt = Some(report::text(notice, now))
                }
                Notice::Recovered => state.doubt = None,
                _ => {
                    state.words = report::text(notice, now);
                    // What was doubtful is decided with it, or said again.
                    state.doubt = None;
                }
            }
            state.owe(Due::Now);
        });
    }

    /// Something of the tree of the command with this number.
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
                // Its last words first: they would be the next one's.
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

    /// We were asked to stop, or are about to end.
    pub(crate) fn stops(&self) {
        self.0.with(|state| {
            state.is_stopping = true;
            // To systemd one that was never ready has failed, unless it says so before: the end decides.
            if state.is_ready {
                state.owe_stopping();
            }
        });
        // The task has to ask for more time from now on, though there may be nothing to send.
        self.0.stirred.notify_one();
    }

    /// The end, in these words and with this exit status; nothing is said after it.
    fn finish(&self, words: &str, exit: i32) {
        self.0.with(|state| {
            // A task that is done, a machine that is not fit: whatever --ready waits for, this was no failure.
            if exit == 0 {
                state.is_ready();
            }
            words.clone_into(&mut state.words);
            state.doubt = None;
            state.commands.clear();
            state.owe(Due::Now);
            // Who ends without having been asked has to say so, too; else it would be a failure to systemd.
            state.is_stopping = true;
            state.owe_stopping();
            // The tasks keep us beyond the end of `run`: what is in the file system goes now.
            drop(state.proxy.take());
        });
    }
}

impl Observer for ServiceManager {
    fn observe(&mut self, now: Instant, observation: &Observation<'_>) {
        match *observation {
            Observation::Notice { notice, .. } => self.notice(now, notice),
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

    /// Changes something, and says what there is to be said.
    fn with(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        state.settle();
        if state.owes != Owes::default() {
            self.stirred.notify_one();
        }
    }

    /// The command with this number has said something.
    pub(super) fn hears(&self, number: usize, message: &[u8]) {
        self.with(|state| state.hears(number, message));
        if self.state().heard.is_urgent() {
            self.urgent.notify_one();
        }
    }

    /// Says something that is not worth keeping.
    pub(super) fn say(&self, message: &str) {
        let mut state = self.state();
        let sent = state.send(message);
        state.judge(sent);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.state().is_stopping
    }

    /// How long to wait for what is still to be sent, if something is; so long for room.
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
