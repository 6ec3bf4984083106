//! The disk between a message and its command: what is written before it, and removed after it, on threads of
//! their own.
//!
//! Called by the processor. A disk can hang: it must never be waited for longer than that is of any use.

use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;

use super::message_io::{self, MessageIo};
use super::processor::ProcessorContext;
use super::session::SessionState;
use crate::azure::before;
use crate::background_writer;
use crate::clock::Instant;
use crate::queue::Message;

// For how long the removal of a message's files is waited for.
const REMOVAL: Duration = Duration::from_secs(5);
// What a disk has beyond the end of a lock: where we stood still until then, it did nothing for us either.
const MOMENT: Duration = Duration::from_secs(1);

/// The message, on its way to the command.
pub(super) async fn hand_over(
    message: Message,
    state: Option<&SessionState>,
    context: &ProcessorContext,
) -> io::Result<MessageIo> {
    let json = message_io::json(&context.queue, &message, context.rules.max_attempts);
    let until = message.t0 + message.lock_time;
    let body = message.body.unwrap_or_default();
    let Some(base) = context.base.clone() else {
        return MessageIo::on_stdin(&body);
    };
    let (in_directory, content) = (context.in_directories, state.map(SessionState::content));
    let make = move || {
        let message_io = match in_directory {
            true => MessageIo::in_directory(&base, &body, &json)?,
            false => MessageIo::on_stdin(&body)?,
        };
        Ok(match content {
            Some(content) => {
                let (message_io, path) = message_io.and_state(&base, &content)?;
                (message_io, Some(path))
            }
            None => (message_io, None),
        })
    };
    let made: io::Result<(MessageIo, Option<PathBuf>)> =
        match background_writer::apart("message", make) {
            Ok(made) => {
                let made = in_time(made, until, context.hurry.clone()).await?;
                made.map_err(io::Error::other)?
            }
            // Here, then: a disk that hangs is seen to by the guardians, at their deadlines.
            Err((_no_thread, make)) => make(),
        };
    let (message_io, path) = made?;
    if let (Some(state), Some(path)) = (state, path) {
        state.lies_in(path);
    }
    Ok(message_io)
}

/// What is made on a disk, as long as that is of any use: while the message is locked, and not everything is to
/// end at once. What comes later is dropped, and removed with that.
async fn in_time<T>(
    made: impl Future<Output = T>,
    until: Instant,
    mut hurry: watch::Receiver<bool>,
) -> io::Result<T> {
    let hurried = async {
        // An error: whoever could tell us is gone.
        if hurry.wait_for(|hurry| *hurry).await.is_err() {
            pending::<()>().await;
        }
    };
    let over = async {
        before(until, pending::<()>()).await;
        tokio::time::sleep(MOMENT).await;
    };
    tokio::select! {
        biased;
        made = made => Ok(made),
        () = hurried => Err(io::Error::other("everything is to end at once")),
        () = over => {
            let why = "the disk has not answered while it was locked";
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        }
    }
}

/// Removes what is left of it on disk.
pub(super) async fn removed(message_io: MessageIo) {
    match background_writer::apart("message", move || message_io.remove()) {
        // Nobody can do anything about what is left; it is swept by the next worker.
        Ok(removal) => {
            let _ = before(Instant::now() + REMOVAL, removal).await;
        }
        Err((_no_thread, remove)) => remove(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody waits for a disk that hangs: not past the message's lock, and not after the second signal.
    #[tokio::test]
    async fn a_message_is_not_waited_for_longer_than_it_is_ours_or_after_a_stop_at_once() {
        let (hurry, hurried) = watch::channel(false);
        let (past, later) = (Instant::now(), Instant::FOREVER);
        let said = in_time(pending::<()>(), past, hurried.clone()).await;
        let why = said.expect_err("nothing was made");
        assert_eq!(why.kind(), io::ErrorKind::TimedOut);
        // What is there counts, however late it is looked at.
        let said = in_time(std::future::ready(7), past, hurried.clone()).await;
        assert_eq!(said.ok(), Some(7));
        hurry.send_replace(true);
        let said = in_time(pending::<()>(), later, hurried).await;
        assert!(said.is_err());
    }
}
