//! Decides what to tell the service manager, and runs the tasks for it.
//!
//! Nothing waits while the lock is held. The tasks run on the supervisor's own runtime: if its loop hangs, so do
//! they, and the watchdog notices.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::time::sleep;

use super::socket::{MESSAGE, Notification};
use super::{Due, Inner, Owes, PACE, Ready, SHOWN, STATUS_LIMIT, State};
use crate::clock::Instant;
use crate::core::WatchdogWord;
use crate::guardian::{HealthCheck, all_answer};
use crate::report;

impl State {
    pub(super) fn is_ready(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.owes.ready = true;
            if self.is_stopping {
                self.owe_stopping();
            }
        }
    }

    pub(super) fn owe_stopping(&mut self) {
        self.owes.stopping |= !std::mem::replace(&mut self.knows_of_stop, true);
    }

    pub(super) fn owe(&mut self, status: Due) {
        self.owes.status = self.owes.status.max(status);
    }

    pub(super) fn send(&self, message: &str) -> io::Result<()> {
        let socket = self.socket.as_ref();
        socket.map_or(Ok(()), |socket| socket.send(message))
    }

    pub(super) fn hears_what_waits(&mut self, number: usize) {
        let proxy = self.proxy.as_ref();
        for message in proxy.map(|proxy| proxy.unheard(number)).unwrap_or_default() {
            self.hears(number, &message);
        }
    }

    pub(super) fn hears(&mut self, number: usize, message: &[u8]) {
        let said = Notification::read(message);
        for word in said.watchdog {
            match word {
                WatchdogWord::Alive => self.heard.alive = true,
                WatchdogWord::Extend(more) => {
                    self.heard.extend = self.heard.extend.max(Some(more));
                }
                WatchdogWord::Trigger => self.heard.trigger = true,
                WatchdogWord::Period(period) => self.heard.period = Some(period),
            }
        }
        // A command may send READY=1 even without --ready command.
        if said.ready && self.ready == Ready::Command {
            self.is_ready();
        }
        // For standbys, not for the service manager, whose unit goes on to compete.
        if let Some(told) = self.stopping.as_ref().filter(|_| said.stopping) {
            // Fails only if this instance does not compete any more.
            let _ = told.send(());
        }
        // It goes into one line, which every `systemctl status` shows.
        if let (Some(status), Some(command)) = (said.status, self.commands.get_mut(number)) {
            let status: String = report::plain(&status).chars().take(STATUS_LIMIT).collect();
            command.said = Some(status).filter(|status| !status.is_empty());
            self.owe(Due::Soon);
        }
    }

    pub(super) fn status(&self) -> String {
        let mut text = self.doubt.as_ref().unwrap_or(&self.words).clone();
        if let Some(failing) = &self.failing {
            text.push_str(&format!("; {failing}"));
        }
        let mut commands = self.commands.iter();
        let mut speaking = commands
            .by_ref()
            .filter_map(|command| Some((&command.name, command.said.as_ref()?)));
        for (name, said) in speaking.by_ref().take(SHOWN) {
            text.push_str(&format!("; {name}: {said}"));
        }
        match speaking.count() {
            0 => {}
            more => text.push_str(&format!("; and {more} more")),
        }
        text
    }

    /// Sends everything that is due in one message, but READY before STOPPING: systemd takes only one of them from a
    /// message.
    pub(super) fn settle(&mut self) {
        if self.owes.ready && self.owes.stopping {
            let sent = self.send("READY=1\n");
            if sent.is_err() {
                return self.judge(sent);
            }
            self.owes.ready = false;
        }
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
        // With READY or STOPPING it goes at once.
        if status == Due::Soon && message.is_empty() && now < self.told_at + PACE {
            return;
        }
        if status != Due::Never {
            message.push_str(&format!("STATUS={}\n", report::plain(&self.status())));
        }
        if message.is_empty() {
            return;
        }
        let sent = self.send(&message);
        if status != Due::Never {
            // A dead socket must not be tried again without end.
            self.told_at = now;
        }
        // A READY without its STATUS would show the old state as the new one.
        if sent.is_ok() {
            self.owes = Owes::default();
        }
        self.judge(sent);
    }

    pub(super) fn judge(&mut self, sent: io::Result<()>) {
        let Err(why) = sent else {
            return;
        };
        let is_full = why.kind() == io::ErrorKind::WouldBlock;
        // A socket that is gone stays gone.
        self.owes.again = is_full && self.owes != Owes::default();
        if !is_full && !std::mem::replace(&mut self.told, true) {
            tracing::warn!("the service manager cannot be reached: {why}: continuing without it");
        }
    }
}

/// Pace of the requests for more time while this instance stops.
const MORE: Duration = Duration::from_secs(5);
/// Time that each request asks for: a supervisor that is later is stuck.
const EXTENSION: Duration = Duration::from_secs(20);
/// Pause when there is no room for a message.
const AGAIN: Duration = Duration::from_secs(1);

/// Feeds the watchdog twice in its period, after signs of life of supervisor and guardians.
pub(super) async fn feed(manager: Arc<Inner>, health_check: Vec<Arc<HealthCheck>>, span: Duration) {
    // As sd_watchdog_enabled(3) advises.
    let half = (span / 2).max(Duration::from_millis(1));
    loop {
        let began = Instant::now();
        all_answer(&health_check).await;
        manager.say("WATCHDOG=1\n");
        sleep(half.saturating_sub(Instant::now().since(began))).await;
    }
}

pub(super) async fn listen(manager: Arc<Inner>, number: usize, socket: UnixDatagram) {
    let mut buffer = vec![0; MESSAGE];
    loop {
        match socket.recv(&mut buffer).await {
            Ok(length) => manager.hears(number, &buffer[..length]),
            Err(why) => {
                tracing::debug!("the command's notification was not received: {why}");
                sleep(AGAIN).await;
            }
        }
        // A command that never stops sending must not starve other tasks.
        tokio::task::yield_now().await;
    }
}

pub(super) async fn attend(manager: Arc<Inner>) {
    loop {
        let more = if manager.is_stopping() {
            MORE
        } else {
            Duration::MAX
        };
        let wait = manager.owes(AGAIN).map_or(more, |wait| wait.min(more));
        tokio::select! {
            () = manager.stirred.notified() => {}
            () = sleep(wait) => {}
        }
        // First: if there is room for one message only, this one matters more.
        manager.try_again();
        if manager.is_stopping() {
            manager.say(&format!("EXTEND_TIMEOUT_USEC={}\n", EXTENSION.as_micros()));
        }
    }
}
