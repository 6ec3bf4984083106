//! What the service manager is told, and when.
//!
//! Opened by a driver, told by those who tell people of an instance, and by the tasks beside it. It
//! keeps what could not be sent yet, and must never wait for anybody.

use std::ffi::OsString;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::proxy::{Proxy, Said};
use super::socket::{Socket, Surroundings};
use super::tasks;
use crate::clock::Instant;
use crate::core::{Ending, Notice};
use crate::report;
use crate::supervise::{News, Vitals};

/// When the service manager is told that we are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ready {
    /// Standing by, or in control.
    #[default]
    Standby,
    /// In control, and the command was started.
    Held,
    /// The command says so.
    Command,
}

/// The longest status of a command's that is shown, in characters.
const STATUS_LIMIT: usize = 200;

/// Speaks to the service manager; a handle, of which there can be many.
#[derive(Clone, Debug)]
pub struct Herald(Arc<Desk>);

#[derive(Debug)]
pub(super) struct Desk {
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
    /// What the command says that it does.
    command: Option<String>,
    owes: Owes,
    /// The log knows that nothing can be sent.
    told: bool,
}

/// What is still to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Owes {
    ready: bool,
    stopping: bool,
    status: bool,
    /// There was no room for it: it is worth another try, though nothing happens.
    again: bool,
}

impl Herald {
    /// Opens the way to the service manager, if there is one, and a way for the command.
    #[must_use]
    pub fn open(here: &Surroundings<'_>, mut ready: Ready) -> Option<Herald> {
        let name = here.socket()?;
        let socket = Socket::open(&name)
            .inspect_err(|why| {
                let name = report::plain(&name.to_string_lossy());
                tracing::warn!("NOTIFY_SOCKET={name} cannot be used: {why}; going on without it");
            })
            .ok()?;
        let proxy = Proxy::make(here).inspect_err(|why| {
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
            words: "competing".into(),
            doubt: None,
            command: None,
            owes: Owes {
                status: true,
                ..Owes::default()
            },
            told: false,
        };
        Some(Herald(Arc::new(Desk {
            state: Mutex::new(state),
            stirred: Notify::new(),
        })))
    }

    /// What the command finds in its `NOTIFY_SOCKET`.
    #[must_use]
    pub fn for_the_command(&self) -> Option<OsString> {
        let state = self.0.state();
        state.proxy.as_ref().map(|proxy| proxy.path().into())
    }

    /// Begins to feed the watchdog (after each proof that supervisor and guardian are alive), and to
    /// listen to the command.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn begin(&self, here: &Surroundings<'_>, vitals: Arc<Vitals>) {
        if let Some(span) = here.watchdog() {
            tokio::spawn(tasks::feed(Arc::clone(&self.0), vitals, span));
        }
        let socket = self.0.state().proxy.as_mut().and_then(Proxy::take);
        match socket.map(tokio::net::UnixDatagram::from_std) {
            Some(Ok(socket)) => drop(tokio::spawn(tasks::listen(Arc::clone(&self.0), socket))),
            Some(Err(why)) => tracing::warn!("what the command says of itself is not heard: {why}"),
            None => {}
        }
        tokio::spawn(tasks::attend(Arc::clone(&self.0)));
        self.0.with(|_| {});
    }

    /// A change of state, as people are told of it.
    pub fn notice(&self, now: Instant, notice: &Notice) {
        self.0.with(|state| {
            let arrived = matches!(
                notice,
                Notice::StandingBy(_) | Notice::InControl { .. } | Notice::StandingAside { .. }
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
            state.owes.status = true;
        });
    }

    /// Something of the tree.
    pub fn news(&self, news: &News) {
        match news {
            News::Started { .. } => self.0.with(|state| {
                if state.ready == Ready::Held {
                    state.is_ready();
                }
            }),
            News::TreeEmpty { .. } => self.0.with(|state| {
                state.owes.status |= state.command.take().is_some();
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

    /// The end; nothing is said after it.
    pub fn finish(&self, ending: &Ending) {
        self.0.with(|state| {
            state.words = report::cause(&ending.cause);
            (state.doubt, state.command) = (None, None);
            state.owes.status = true;
            state.owes.stopping |= !std::mem::replace(&mut state.is_stopping, true);
            drop(state.proxy.take());
        });
    }
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something, and says what there is to be said.
    fn with(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        state.settle();
        if state.owes.again {
            self.stirred.notify_one();
        }
    }

    /// The command has said something.
    pub(super) fn hears(&self, message: &[u8]) {
        let said = Said::read(message);
        self.with(|state| {
            if said.ready && state.ready == Ready::Command {
                state.is_ready();
            }
            if let Some(status) = said.status {
                let status: String = report::plain(&status).chars().take(STATUS_LIMIT).collect();
                state.command = Some(status).filter(|status| !status.is_empty());
                state.owes.status = true;
            }
        });
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

    /// Whether something waits for room.
    pub(super) fn owes(&self) -> bool {
        self.state().owes.again
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

    fn status(&self) -> String {
        let words = self.doubt.as_ref().unwrap_or(&self.words);
        match &self.command {
            Some(command) => format!("{words}; the command: {command}"),
            None => words.clone(),
        }
    }

    /// Sends what is owed, all of it in one message.
    fn settle(&mut self) {
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
        if status {
            message.push_str(&format!("STATUS={}\n", report::plain(&self.status())));
        }
        if message.is_empty() {
            return;
        }
        let sent = self.socket.send(&message);
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
