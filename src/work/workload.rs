//! The command of one message, as the driver sees it.
//!
//! It also ends a command at --timeout or at a second stop signal; to the core, that one ended by itself.
//! Nothing here may block.

use std::ffi::OsString;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use nix::errno::Errno;
use tokio::sync::watch;

use super::lease::MessageLease;
use super::message_io::{FOREIGN, MessageIo};
use super::processor::ProcessorContext;
use super::settle::{Decision, Run};
use crate::clock::Instant;
use crate::core::{Cause, Deadlines, Exit, WorkloadEvent};
use crate::driver::{Start, Workload};
use crate::guardian::{GuardianHandle, SpawnRequest};
use crate::notify::{PRIVATE, VARIABLE};
use crate::queue::Settlement;

const CLOCK_INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct MessageWorkload<'a> {
    pub(super) handle: &'a mut GuardianHandle,
    pub(super) hurry: watch::Receiver<bool>,
    pub(super) context: &'a ProcessorContext,
    pub(super) held: Arc<MessageLease>,
    pub(super) attempt: u32,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) message_io: MessageIo,
    pub(super) notify_socket: Option<OsString>,
    pub(super) progress: Progress,
}

#[derive(Default)]
pub(super) struct Progress {
    began: Option<Instant>,
    ended: Option<Instant>,
    pub(super) exit: Option<Exit>,
    pub(super) timed_out: bool,
    hurried: bool,
    pub(super) lost: bool,
    pub(super) stuck: bool,
    pub(super) errno: Option<i32>,
    pub(super) decision: Option<Decision>,
}

impl Progress {
    pub(super) fn ran(&self) -> bool {
        self.began.is_some() && self.errno.is_none()
    }

    pub(super) fn duration(&self) -> Option<Duration> {
        self.began
            .filter(|_| self.errno.is_none())
            .map(|began| self.ended.unwrap_or_else(Instant::now).since(began))
    }
}

impl MessageWorkload<'_> {
    fn times_out_at(&self) -> Instant {
        let progress = &self.progress;
        // The guardian drains the rest: that is no timeout.
        if progress.timed_out || progress.ended.is_some() {
            return Instant::FOREVER;
        }
        match (progress.began, self.context.rules.timeout) {
            (Some(began), Some(limit)) => began + limit,
            _ => Instant::FOREVER,
        }
    }

    fn on_event(&mut self, event: &WorkloadEvent) {
        let now = Instant::now();
        match event {
            WorkloadEvent::Exited(exit) => {
                self.progress.exit = Some(*exit);
                self.progress.ended = Some(now);
            }
            WorkloadEvent::NotStarted { errno } => self.progress.errno = Some(*errno),
            WorkloadEvent::TreeStuck => self.progress.stuck = true,
            // Its duration would grow until the report.
            WorkloadEvent::TreeEmpty { at } => drop(self.progress.ended.get_or_insert(*at)),
            _ => {}
        }
    }
}

#[async_trait]
impl Workload for MessageWorkload<'_> {
    fn start(&mut self, start: Start) {
        // A loss was not noticed yet: the message may be another worker's.
        if let Some(why) = self.held.lost().now_or_never() {
            self.progress.lost = true;
            tracing::warn!("{why}: not starting the command");
            return self.handle.refuse(Errno::ETIME as i32);
        }
        // Before the order: --timeout includes the exec.
        self.progress.began = Some(Instant::now());
        let mut env = std::mem::take(&mut self.env);
        env.append(&mut self.message_io.env);
        // A worker may itself be the command of another trafficcop.
        let mut unset: Vec<OsString> = FOREIGN.iter().chain(&PRIVATE).map(OsString::from).collect();
        if let Some(socket) = self.notify_socket.take() {
            unset.retain(|name| name != VARIABLE);
            env.push((VARIABLE.into(), socket));
        }
        self.handle.start(SpawnRequest {
            program: 0,
            in_control: true,
            env,
            unset,
            deadlines: start.deadlines,
            stop_signal: self.context.stop_signal,
            stop_to: self.context.stop_to,
            lock: self.message_io.lock.take(),
            input: self.message_io.input.take(),
            // A guardian cannot settle messages: the lock expires by itself.
            release_info: Vec::new(),
        });
    }

    fn extend(&mut self, deadlines: Deadlines) {
        self.handle.extend(deadlines);
    }

    fn drain(&mut self, signal: i32, end_of_grace: Instant) {
        // The second signal may have come before this command.
        if self.progress.hurried || *self.hurry.borrow() {
            self.handle.kill();
        } else {
            self.handle.drain(signal, end_of_grace);
        }
    }

    fn kill(&mut self) {
        self.handle.kill();
    }

    fn pass(&mut self, signal: i32) {
        self.handle.signal(signal);
    }

    /// Messages do not come from a terminal.
    fn pause(&mut self) {}

    fn forget_release_info(&mut self) {}

    fn gives_back(&mut self, cause: Option<&Cause>, exit: Option<Exit>) {
        let lost = Decision::nothing("LockLost");
        let decision = if self.progress.lost {
            lost
        } else {
            self.context.rules.decide(&Run {
                attempt: self.attempt,
                cause,
                exit,
                timed_out: self.progress.timed_out,
            })
        };
        // A message that its lock keeps away is settled after the delay.
        let at_once = |settlement: &Settlement| {
            let delay = self.context.keeps_away(Some(settlement));
            delay.is_none_or(|delay| delay.is_zero())
        };
        // Before the core gives the lease back: until now that means "unchanged".
        self.held
            .decide(decision.settlement.clone().filter(at_once));
        self.progress.decision = Some(decision);
    }

    async fn next_event(&mut self) -> WorkloadEvent {
        loop {
            let due = self.times_out_at();
            let now = Instant::now();
            if now >= due {
                // The command may have ended in time while this process was stopped, with its event unread.
                if let Some(event) = self.handle.next_event().now_or_never() {
                    self.on_event(&event);
                    return event;
                }
                self.progress.timed_out = true;
                // The core takes this for an end by itself.
                let (signal, grace) = (self.context.stop_signal, self.context.kill_after);
                self.handle.drain(signal, now + grace);
                continue;
            }
            let hurried = async {
                // Once: the flag stays true, and each round would send a SIGKILL.
                if self.progress.hurried || self.hurry.wait_for(|hurry| *hurry).await.is_err() {
                    pending::<()>().await;
                }
            };
            let gone = async {
                if self.progress.lost || self.progress.began.is_none() {
                    pending::<()>().await;
                }
                self.held.lost().await
            };
            tokio::select! {
                biased;
                // First: another worker may have the message, so even a normal exit does not count.
                why = gone => {
                    self.progress.lost = true;
                    tracing::warn!("{why}: killing the command");
                    self.handle.kill();
                }
                // Before hurry and timeout: a command that has just ended is neither killed nor late.
                event = self.handle.next_event() => {
                    self.on_event(&event);
                    return event;
                }
                () = hurried => {
                    self.progress.hurried = true;
                    self.handle.kill();
                }
                () = tokio::time::sleep(due.since(now).min(CLOCK_INTERVAL)) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guardian::scripted::{Plays, guardian};
    use crate::work::scripted;

    #[tokio::test]
    async fn unread_exit_counts_before_the_timeout() {
        let (_leave, leaving) = watch::channel(false);
        let (_hurry, hurry) = watch::channel(false);
        let mut context = scripted::context(leaving, hurry.clone());
        context.rules.timeout = Some(Duration::from_millis(20));
        let mut handle = guardian(|_| Plays::Exits(0));
        let mut workload = MessageWorkload {
            handle: &mut handle,
            hurry,
            context: &context,
            held: context.lease(&scripted::message("id-1", 1, b"body")),
            attempt: 1,
            env: Vec::new(),
            message_io: MessageIo::on_stdin(b"body").unwrap(),
            notify_socket: None,
            progress: Progress::default(),
        };
        workload.start(Start {
            deadlines: Deadlines {
                term_at: Instant::FOREVER,
                kill_at: Instant::FOREVER,
            },
            fresh_until: Instant::FOREVER,
            token: 1,
        });
        std::thread::sleep(Duration::from_millis(30));
        let mut events = Vec::new();
        while events.len() < 3 {
            events.push(workload.next_event().await);
        }
        let ended = WorkloadEvent::Exited(Exit::Code(0));
        assert!(events.contains(&ended), "{events:?}");
        assert!(!workload.progress.timed_out);
    }
}
