//! The disk between a message and its command: what is written before it, and removed after it, on threads of
//! their own.
//!
//! Called by the processor. A disk can hang: it must never keep us from leaving.

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

/// The message, on its way to the command.
pub(super) async fn hand_over(
    message: Message,
    state: Option<&SessionState>,
    context: &ProcessorContext,
) -> io::Result<MessageIo> {
    let json = message_io::json(&context.queue, &message, context.rules.max_attempts);
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
                let made = unless_leaving(made, context.leaving.clone()).await?;
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

/// What is made on a disk, until we leave: what comes later is dropped, and removed with that. What comes when the
/// message is not locked any more is known by that, and given back.
async fn unless_leaving<T>(
    made: impl Future<Output = T>,
    mut leaving: watch::Receiver<bool>,
) -> io::Result<T> {
    let left = async {
        // An error: whoever could tell us is gone.
        if leaving.wait_for(|leaving| *leaving).await.is_err() {
            pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        made = made => Ok(made),
        () = left => Err(io::Error::other("the disk had not answered when the worker was to end")),
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

    /// Nobody waits for a disk that hangs when we are to end; before, nothing else is to be done.
    #[tokio::test]
    async fn a_disk_that_hangs_is_waited_for_until_a_stop() {
        let (leave, leaving) = watch::channel(false);
        let mut hangs = Box::pin(unless_leaving(pending::<()>(), leaving.clone()));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut hangs).await;
        assert!(early.is_err());
        leave.send_replace(true);
        assert!(hangs.await.is_err());
        // What is there counts, however late it is looked at.
        let said = unless_leaving(std::future::ready(7), leaving).await;
        assert_eq!(said.ok(), Some(7));
    }
}
