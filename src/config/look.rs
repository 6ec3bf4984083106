//! Looks with a time limit at paths on drives that may not answer.
//!
//! Guardians are still to be forked, so the process must have one thread again: no other may be left behind.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use super::UsageError;
use crate::guardian;
use crate::lease::mount;
use crate::units::show;

/// Limit for an instance that does not wait for control.
pub(super) const STEP: Duration = Duration::from_secs(5);

/// Looks at `paths` only; `what` is their flag. Without a result within `limit` nothing can be started: a file
/// that may be the lock must not be written.
pub(super) fn in_time<T: Send + 'static>(
    what: &str,
    paths: &[&Path],
    limit: Duration,
    look: impl FnOnce() -> Result<T, UsageError> + Send + 'static,
) -> Result<T, UsageError> {
    let mut drives = mount::shared_among(paths.iter().copied());
    // A local disk answers, or nothing here works.
    let Some(first) = drives.pop() else {
        return look();
    };
    let (tell, told) = mpsc::channel();
    let looking = move || {
        let _ = tell.send(look());
    };
    // The C library keeps the stack for the next thread, and a guardian locks its memory.
    let thread = std::thread::Builder::new().stack_size(128 * 1024);
    let thread = thread.name("look".into()).spawn(looking).map_err(|why| {
        UsageError::of_the_machine(format!(
            "{what}: no thread can be started to look at {}: {why}",
            first.display()
        ))
    })?;
    match told.recv_timeout(limit) {
        Ok(found) => {
            let _ = thread.join();
            await_its_end();
            found
        }
        Err(_) => {
            let which = drives
                .iter()
                .fold(first.display().to_string(), |named, at| {
                    format!("{named} or {}", at.display())
                });
            Err(UsageError::of_the_machine(format!(
                "{what}: no answer from {which} within {}, so the file there is not known, \
                 and nothing was started: try again when the drive answers",
                show(limit)
            )))
        }
    }
}

/// Waits until the kernel has removed the joined thread: a process with two cannot fork a guardian.
fn await_its_end() {
    const RETRY_INTERVAL: Duration = Duration::from_millis(1);
    const NAPS: u32 = 1000;
    for _ in 0..NAPS {
        // The fork of a guardian counts in the same way.
        if guardian::threads().is_ok_and(|count| count > 1) {
            std::thread::sleep(RETRY_INTERVAL);
        } else {
            return;
        }
    }
}
