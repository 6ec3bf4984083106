//! Looks at paths that may lie on a drive that does not answer, with a time limit.
//!
//! Called where settings name files, while the process has one thread and guardians are still to be forked
//! from it: where an answer came in time the process has one thread again, and where none came nothing may be
//! started. It must never leave a thread behind for anything else.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use super::UsageError;
use crate::guardian;
use crate::lease::mount;
use crate::units::show;

/// How long whoever does not wait for control waits for the drive: as long as for one step of a lock.
pub(super) const STEP: Duration = Duration::from_secs(5);

/// What `look` finds, which asks about `paths` and nothing else.
///
/// # Errors
/// What it refuses. And that it came to no end within `limit`: what is not known to be no lock must not be
/// written to, so nothing can be started. `what` says in one word what named the paths.
pub(super) fn in_time<T: Send + 'static>(
    what: &str,
    paths: &[&Path],
    limit: Duration,
    look: impl FnOnce() -> Result<T, UsageError> + Send + 'static,
) -> Result<T, UsageError> {
    let mut drives = mount::shared_among(paths.iter().copied());
    // A disk of this machine answers, or nothing here works.
    let Some(first) = drives.pop() else {
        return look();
    };
    let (tell, told) = mpsc::channel();
    let looking = move || {
        // Whoever asked may have ended.
        let _ = tell.send(look());
    };
    // Small: the C library keeps the stack for the next thread, and a guardian that is forked from us has
    // its memory locked.
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
                "{what}: no answer from {which} within {}, so the file there is not known, and nothing was started: try again when the drive answers",
                show(limit)
            )))
        }
    }
}

/// A thread that was joined is counted until the kernel has taken it down, and a process that counts two
/// forks no guardian.
fn await_its_end() {
    const NAP: Duration = Duration::from_millis(1);
    const NAPS: u32 = 1000;
    for _ in 0..NAPS {
        // Counted as they are counted where a guardian is forked.
        if guardian::threads().is_ok_and(|count| count > 1) {
            std::thread::sleep(NAP);
        } else {
            return;
        }
    }
}
