//! What is done for the service manager beside everything else: signs of life, more time while we
//! stop, and an ear for the command.
//!
//! Begun by the service manager's task, on the supervisor's own runtime: where its loop stands still, so do they,
//! which is what a watchdog is to notice.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixDatagram;
use tokio::time::sleep;

use super::Inner;
use super::socket::MESSAGE;
use crate::clock::Instant;
use crate::guardian::{HealthCheck, all_answer};

/// While we stop, more time is asked for as often as this,
const MORE: Duration = Duration::from_secs(5);
/// and so much of it: a supervisor that is late by more is stuck.
const EXTENSION: Duration = Duration::from_secs(20);
/// From one try to the next where there is no room for a message.
const AGAIN: Duration = Duration::from_secs(1);

/// Feeds the watchdog twice in its time, each time after supervisor and guardians have all proved
/// that they are alive. Where one does not, nothing is sent.
pub(super) async fn feed(manager: Arc<Inner>, health_check: Vec<Arc<HealthCheck>>, span: Duration) {
    // What sd_watchdog_enabled(3) advises: one that is late is not yet one too many.
    let half = (span / 2).max(Duration::from_millis(1));
    loop {
        let began = Instant::now();
        all_answer(&health_check).await;
        // Not kept where there is no room: a sign of life that comes late would be a lie.
        manager.say("WATCHDOG=1\n");
        sleep(half.saturating_sub(Instant::now().since(began))).await;
    }
}

/// Hears what the command with this number says of itself.
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
        // A command that never stops talking is not everything there is to do.
        tokio::task::yield_now().await;
    }
}

/// Asks for more time while we stop, and sends what there was no room for.
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
        // Before more time is asked for: what is owed counts more, should there be room for one only.
        manager.try_again();
        if manager.is_stopping() {
            manager.say(&format!("EXTEND_TIMEOUT_USEC={}\n", EXTENSION.as_micros()));
        }
    }
}
