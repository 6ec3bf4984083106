//! What the service manager is told, and when.
//!
//! Opened by a driver, told by those who tell people of an instance, and by the tasks beside it. It
//! keeps what could not be sent yet, and must never wait for anybody.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::proxy::{Proxy, Said};
use super::socket::{Socket, Surroundings};
use super::tasks;
use crate::clock::Instant;
use crate::core::Notice;
use crate::guardian::{HealthCheck, WorkloadEvent};
use crate::report;
use crate::util::lock;

/// When the service manager is told that we are ready; as it is typed, with its help.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Ready {
    /// Standing by, or in control: an instance that waits is a sound one
    #[default]
    Standby,
    /// In control, and the command was started (give the unit TimeoutStartSec=infinity)
    Held,
    /// The command itself says READY=1 (the same)
    Command,
}

/// The longest status of a command's that is shown, in characters.
const STATUS_LIMIT: usize = 200;
/// So many commands' are shown at most.
const SHOWN: usize = 4;
/// From one status to the next where it is no change of state: everybody who watches the unit is
/// woken by each.
const PACE: Duration = Duration::from_secs(1);

/// Speaks to the service manager; a handle, of which there can be many.
#[derive(Clone, Debug)]
pub struct ServiceManager(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    state: Mutex<State>,
    /// We are about to end, or something could not be sent.
    pub(super) stirred: Notify,
}

#[derive(Debug)]
pub(super) struct State {
    socket: Socket,
    proxy: Option<Proxy>,
    ready: Ready,
    is_ready: bool,
    is_stopping: bool,
    /// What we do.
    words: String,
    /// What the store lets us wait for meanwhile.
    doubt: Option<String>,
    /// What each command says that it does.
    voices: Vec<CommandStatus>,
    owes: Owes,
    /// When a status was sent last, whether it arrived or not.
    told_at: Instant,
    /// The log knows that nothing can be sent.
    told: bool,
}

/// A command that can say something.
#[derive(Clone, Debug)]
struct CommandStatus {
    /// What it is called.
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
    /// commands; these words are what we do at first.
    #[must_use]
    pub fn open(
        here: &Surroundings<'_>,
        mut ready: Ready,
        words: &str,
        commands: usize,
    ) -> Option<ServiceManager> {
        let name = here.socket()?;
        let socket = Socket::open(&name)
            .inspect_err(|why| {
                let name = report::plain(&name.to_string_lossy());
                tracing::warn!("NOTIFY_SOCKET={name} cannot be used: {why}; going on without it");
            })
            .ok()?;
        let proxy = Proxy::make(here, commands).inspect_err(|why| {
            tracing::warn!("the command gets no NOTIFY_SOCKET: {why}");
        });
        let proxy = proxy.ok();
        if proxy.is_none() && ready == Ready::Command {
            tracing::warn!("the command cannot say that it is ready: ready means started");
            ready = Ready::Held;
        }
        let state = State {
            socket,
            proxy,
            ready,
            is_ready: false,
            is_stopping: false,
            words: words.to_owned(),
            doubt: None,
            voices: vec![
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
        };
        Some(ServiceManager(Arc::new(Inner {
            state: Mutex::new(state),
            stirred: Notify::new(),
        })))
    }

    /// What the command with this number finds in its `NOTIFY_SOCKET`.
    #[must_use]
    pub fn for_the_command(&self, number: usize) -> Option<OsString> {
        let state = self.0.state();
        state.proxy.as_ref().map(|proxy| proxy.path(number).into())
    }

    /// Begins to feed the watchdog (after each proof that supervisor and guardians are alive), and to
    /// listen to the commands.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn begin(&self, here: &Surroundings<'_>, health_check: Vec<Arc<HealthCheck>>) {
        if let Some(span) = here.watchdog() {
            tokio::spawn(tasks::feed(Arc::clone(&self.0), health_check, span));
        }
        let sockets = self.0.state().proxy.as_ref().map(Proxy::sockets);
        match sockets.unwrap_or_else(|| Ok(Vec::new())) {
            Ok(sockets) => sockets
                .into_iter()
                .enumerate()
                .for_each(|(number, socket)| self.listen(number, socket)),
            Err(why) => unheard(&why),
        }
        tokio::spawn(tasks::attend(Arc::clone(&self.0)));
        self.0.with(|_| {});
    }

    fn listen(&self, number: usize, socket: UnixDatagram) {
        match tokio::net::UnixDatagram::from_std(socket) {
            Ok(socket) => {
                tokio::spawn(tasks::listen(Arc::clone(&self.0), number, socket));
            }
            Err(why) => unheard(&why),
        }
    }

    /// A worker does this now; it is ready from the first time on. Said often, it is passed on now and
    /// then.
    pub fn works(&self, words: String) {
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
    pub fn doubts(&self, doubt: Option<String>) {
        self.0.with(|state| {
            if state.doubt != doubt {
                state.doubt = doubt;
                state.owe(Due::Now);
            }
        });
    }

    /// What the command with this number is called from now on.
    pub fn name(&self, number: usize, name: String) {
        if let Some(voice) = self.0.state().voices.get_mut(number) {
            voice.name = name;
        }
    }

    /// A change of state, as people are told of it.
    pub fn notice(&self, now: Instant, notice: &Notice) {
        self.0.with(|state| {
            let arrived = matches!(
                notice,
                Notice::StandingBy(_) | Notice::InControl { .. } | Notice::Cordoned { .. }
            );
            if arrived && state.ready == Ready::Standby {
                state.is_ready();
            }
            match notice {
                Notice::Doubt { .. } => state.doubt = Some(report::text(notice, now)),
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
    pub fn workload_event(&self, number: usize, event: &WorkloadEvent) {
        match event {
            WorkloadEvent::Started { .. } => self.0.with(|state| {
                if state.ready == Ready::Held {
                    state.is_ready();
                }
            }),
            WorkloadEvent::TreeEmpty { .. } => self.0.with(|state| {
                // Its last words first: they would be the next one's.
                let proxy = state.proxy.as_ref();
                let unheard = proxy.map(|proxy| proxy.unheard(number));
                for message in unheard.unwrap_or_default() {
                    state.hears(number, &message);
                }
                let voice = state.voices.get_mut(number);
                if voice.is_some_and(|voice| voice.said.take().is_some()) {
                    state.owe(Due::Soon);
                }
            }),
            _ => {}
        }
    }

    /// We were asked to stop, or are about to end.
    pub fn stops(&self) {
        self.0.with(|state| {
            if !std::mem::replace(&mut state.is_stopping, true) {
                state.owes.stopping = true;
            }
        });
        self.0.stirred.notify_one();
    }

    /// The end, in these words; nothing is said after it.
    pub fn finish(&self, words: String) {
        self.0.with(|state| {
            state.words = words;
            state.doubt = None;
            state.voices.clear();
            state.owe(Due::Now);
            state.owes.stopping |= !std::mem::replace(&mut state.is_stopping, true);
            drop(state.proxy.take());
        });
    }
}

fn unheard(why: &io::Error) {
    tracing::warn!("what the command says of itself is not heard: {why}");
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
    }

    /// Says something that is not worth keeping.
    pub(super) fn say(&self, message: &str) {
        let mut state = self.state();
        let sent = state.socket.send(message);
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

    /// Tries again what there was no room for.
    pub(super) fn try_again(&self) {
        self.state().settle();
    }
}

impl State {
    fn is_ready(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.owes.ready = true;
        }
    }

    fn owe(&mut self, status: Due) {
        self.owes.status = self.owes.status.max(status);
    }

    fn hears(&mut self, number: usize, message: &[u8]) {
        let said = Said::read(message);
        if said.ready && self.ready == Ready::Command {
            self.is_ready();
        }
        if let (Some(status), Some(voice)) = (said.status, self.voices.get_mut(number)) {
            let status: String = report::plain(&status).chars().take(STATUS_LIMIT).collect();
            voice.said = Some(status).filter(|status| !status.is_empty());
            self.owe(Due::Soon);
        }
    }

    fn status(&self) -> String {
        let mut text = self.doubt.as_ref().unwrap_or(&self.words).clone();
        let mut voices = self.voices.iter();
        let mut speaking = voices
            .by_ref()
            .filter_map(|voice| Some((&voice.name, voice.said.as_ref()?)));
        for (name, said) in speaking.by_ref().take(SHOWN) {
            text.push_str(&format!("; {name}: {said}"));
        }
        match speaking.count() {
            0 => {}
            more => text.push_str(&format!("; and {more} more")),
        }
        text
    }

    /// Sends what is owed, all of it in one message.
    fn settle(&mut self) {
        let now = Instant::now();
        let Owes {
            ready,
            stopping,
            status,
            ..
        } = self.owes;
        let mut message = String::new();
        for (owed, line) in [(ready, "READY=1\n"), (stopping, "STOPPING=1\n")] {
            if owed {
                message.push_str(line);
            }
        }
        if status == Due::Soon && message.is_empty() && now < self.told_at + PACE {
            return;
        }
        if status != Due::Never {
            message.push_str(&format!("STATUS={}\n", report::plain(&self.status())));
        }
        if message.is_empty() {
            return;
        }
        let sent = self.socket.send(&message);
        if status != Due::Never {
            // Where it failed, too: a socket that is gone is not tried again without end.
            self.told_at = now;
        }
        if sent.is_ok() {
            self.owes = Owes::default();
        }
        self.judge(sent);
    }

    fn judge(&mut self, sent: io::Result<()>) {
        let Err(why) = sent else {
            return;
        };
        let is_full = why.kind() == io::ErrorKind::WouldBlock;
        self.owes.again = is_full && self.owes != Owes::default();
        if !is_full && !std::mem::replace(&mut self.told, true) {
            tracing::warn!(
                "the service manager cannot be told anything: {why}: is NOTIFY_SOCKET still there? going on without it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A service manager's socket in this place, and what tells it.
    fn heard_in(place: &Path, ready: Ready, word: &str) -> (UnixDatagram, ServiceManager) {
        let path = place.join("manager");
        let manager = UnixDatagram::bind(&path).unwrap();
        let variable = |name: &str| match name {
            "NOTIFY_SOCKET" => Some(path.clone().into_os_string()),
            "RUNTIME_DIRECTORY" => Some(place.into()),
            _ => None,
        };
        let here = Surroundings {
            variable: &variable,
            pid: 7,
        };
        let service_manager = ServiceManager::open(&here, ready, word, 1).unwrap();
        (manager, service_manager)
    }

    #[test]
    fn a_socket_that_goes_away_is_tried_again_at_its_pace_and_no_faster() {
        let place = tempfile::tempdir().unwrap();
        let (manager, service_manager) = heard_in(place.path(), Ready::Standby, "looking");
        service_manager.works("waiting".into());
        assert_eq!(
            service_manager.0.owes(PACE),
            None,
            "READY and STATUS were sent"
        );
        drop(manager);
        service_manager.0.state().told_at = Instant::ZERO;
        service_manager.works("working".into());
        service_manager.0.try_again();
        let wait = service_manager.0.owes(Duration::MAX).unwrap();
        assert!(!wait.is_zero() && wait <= PACE, "{wait:?}");
    }

    #[test]
    fn the_last_words_of_a_command_are_not_the_next_one_s() {
        let place = tempfile::tempdir().unwrap();
        let (manager, service_manager) = heard_in(place.path(), Ready::Command, "competing");
        let socket = service_manager.for_the_command(0).unwrap();
        let command = UnixDatagram::unbound().unwrap();
        command.send_to(b"READY=1\nSTATUS=done", &socket).unwrap();
        service_manager.workload_event(0, &WorkloadEvent::TreeEmpty { at: Instant::ZERO });
        service_manager.notice(Instant::ZERO, &Notice::Released);
        let mut buffer = [0; 1024];
        manager.set_nonblocking(true).unwrap();
        let mut said = String::new();
        while let Ok(length) = manager.recv(&mut buffer) {
            said.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        }
        assert_eq!(said.matches("READY=1").count(), 1, "{said}");
        let last = said.lines().last().unwrap();
        assert!(!last.contains("done"), "{said}");
        let unheard = service_manager.0.state().proxy.as_ref().unwrap().unheard(0);
        assert_eq!(unheard, [b""; 0]);
    }
}
