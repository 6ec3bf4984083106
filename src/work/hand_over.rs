//! Writes a message to disk, and removes it afterwards, on threads: a hanging disk must never keep the worker
//! from leaving.

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

const REMOVAL: Duration = Duration::from_secs(5);

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
        match background_writer::spawn_job("message", make) {
            Ok(made) => {
                let made = unless_leaving(made, context.leaving.clone()).await?;
                made.map_err(io::Error::other)?
            }
            // On this thread the disk may hang: the guardians act at their deadlines.
            Err((_no_thread, make)) => make(),
        };
    let (message_io, path) = made?;
    if let (Some(state), Some(path)) = (state, path) {
        state.lies_in(path);
    }
    Ok(message_io)
}

/// Waits until the worker leaves; a later result is dropped with its files.
///
/// The wait may outlast the lock: then the lease gives the message back.
async fn unless_leaving<T>(
    made: impl Future<Output = T>,
    mut leaving: watch::Receiver<bool>,
) -> io::Result<T> {
    let left = async {
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

pub(super) async fn removed(message_io: MessageIo) {
    match background_writer::spawn_job("message", move || message_io.remove()) {
        // The next worker sweeps what is left.
        Ok(removal) => {
            let _ = before(Instant::now() + REMOVAL, removal).await;
        }
        Err((_no_thread, remove)) => remove(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stop_ends_the_wait_for_a_hanging_disk() {
        let (leave, leaving) = watch::channel(false);
        let mut hangs = Box::pin(unless_leaving(pending::<()>(), leaving.clone()));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut hangs).await;
        assert!(early.is_err());
        leave.send_replace(true);
        assert!(hangs.await.is_err());
        let said = unless_leaving(std::future::ready(7), leaving).await;
        assert_eq!(said.ok(), Some(7));
    }
}
