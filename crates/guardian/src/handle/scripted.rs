//! A guardian without processes, for tests: a script decides about each command.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

use nix::errno::Errno;

use super::super::wire::{Event, FRAME, Request, variables};
use super::{GuardianHandle, Peer};
use crate::HealthCheck;
use trafficcop_core::clock::Instant;
use trafficcop_core::{Exit, WorkloadEvent};

/// Fate of a command.
pub enum Plays {
    /// Exits at once, and leaves nothing behind.
    Exits(u8),
    /// Runs until it is drained or killed.
    Lasts,
    /// Runs, and cannot be killed.
    Sticks,
    /// Runs, with a silent guardian.
    Mutes,
}

/// Variables that were set for a command.
pub struct Started(HashMap<OsString, OsString>);

impl Started {
    /// Returns the value of this variable, or an empty one.
    pub fn variable(&self, name: &str) -> &OsStr {
        let value = self.0.get(OsStr::new(name));
        value.map_or(OsStr::new(""), OsString::as_os_str)
    }
}

type Script = Box<dyn FnMut(&Started) -> Plays + Send>;

/// Makes the handle of a guardian that follows this script.
pub fn guardian(script: impl FnMut(&Started) -> Plays + Send + 'static) -> GuardianHandle {
    let peer = Scripted {
        script: Box::new(script),
        heard: Vec::new(),
        says: Vec::new(),
        plays: None,
    };
    GuardianHandle::of(Box::new(peer), Arc::<HealthCheck>::default())
}

struct Scripted {
    script: Script,
    /// No whole frame yet.
    heard: Vec<u8>,
    says: Vec<u8>,
    plays: Option<Plays>,
}

impl Scripted {
    fn say(&mut self, event: WorkloadEvent) {
        self.says.extend(Event::Workload(event).encode());
    }

    fn ends(&mut self, exit: Exit) {
        self.say(WorkloadEvent::Exited(exit));
        self.say(WorkloadEvent::TreeEmpty { at: Instant::now() });
    }

    fn does(&mut self, request: Request, payload: &[u8]) {
        match request {
            Request::Start { env, .. } => {
                let env = &payload[..env as usize];
                let set = variables(env).into_iter();
                let set = set.filter_map(|(name, value)| Some((name, value?)));
                self.say(WorkloadEvent::Started { pid: 1 });
                match (self.script)(&Started(set.collect())) {
                    Plays::Exits(status) => self.ends(Exit::Code(status)),
                    lasts => self.plays = Some(lasts),
                }
            }
            _ if matches!(self.plays, Some(Plays::Mutes)) => {}
            Request::Drain { .. } | Request::Kill => match self.plays.take() {
                Some(Plays::Sticks) => self.say(WorkloadEvent::TreeStuck),
                Some(_) => self.ends(Exit::Signal(libc::SIGKILL)),
                None => {}
            },
            Request::Ping(number) => self.says.extend(Event::Pong(number).encode()),
            Request::Extend(_)
            | Request::Signal(_)
            | Request::Resume
            | Request::SetReleaseInfo { .. }
            | Request::Dismiss => {}
        }
    }
}

/// All that it sends follows from what it receives: no waker is needed.
impl Peer for Scripted {
    fn pid(&self) -> i32 {
        1
    }

    fn control_path(&self) -> Option<&Path> {
        None
    }

    fn send(&mut self, bytes: &[u8], _: Option<BorrowedFd<'_>>) -> nix::Result<usize> {
        self.heard.extend_from_slice(bytes);
        while let Some(frame) = self.heard.first_chunk::<FRAME>() {
            let request = Request::decode(frame).expect("a request");
            let whole = FRAME + request.payload();
            if self.heard.len() < whole {
                break;
            }
            let rest = self.heard.split_off(whole);
            let frame = std::mem::replace(&mut self.heard, rest);
            self.does(request, &frame[FRAME..]);
        }
        Ok(bytes.len())
    }

    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<usize> {
        if self.says.is_empty() {
            return Err(Errno::EAGAIN);
        }
        let length = buffer.len().min(self.says.len());
        buffer[..length].copy_from_slice(&self.says[..length]);
        self.says.drain(..length);
        Ok(length)
    }

    fn poll_socket(&mut self, _: &mut Context<'_>, _: bool) -> Poll<()> {
        match self.says.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    fn poll_children(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn kill(&mut self) {}

    fn take_over(&mut self) {}

    fn sweep(&mut self, _: bool) -> bool {
        true
    }

    fn has_ended(&mut self) -> bool {
        true
    }

    fn retire(&mut self) {}
}
