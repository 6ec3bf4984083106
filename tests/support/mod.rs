//! What the integration tests stand on: scenes with real instances, the journal and its judge,
//! Azurite, and a proxy that fails on command.
//!
//! Used by the binaries `it` and `faults` and by the figures, each of which needs a part of it. Nothing here may
//! decide whether `trafficcop` is right by asking `trafficcop`: what is judged is the kernel's
//! process table, the journal of the command, and the store. On top of that its own account, the event
//! log, must not contradict its promise (`event_logs`).

pub(crate) mod azurite;
pub(crate) mod bell;
pub(crate) mod blob;
pub(crate) mod closed_port;
pub(crate) mod event_logs;
pub(crate) mod exclusive;
pub(crate) mod instance;
pub(crate) mod journal;
pub(crate) mod metadata;
pub(crate) mod namespaces;
pub(crate) mod processes;
pub(crate) mod programs;
pub(crate) mod proxy;
pub(crate) mod pty;
pub(crate) mod queue;
pub(crate) mod scene;
pub(crate) mod standstill;
pub(crate) mod stopping;

use std::time::Duration;

use trafficcop::Instant;

/// For how long a test waits for anything before it fails: long, because the machine may be slow,
/// and nothing is learnt from a test that was merely slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Looks every few milliseconds until `look` returns something; less often when that takes seconds, as
/// looking costs what those beside need: a walk through the process table, or a request.
///
/// # Panics
/// After [`PATIENCE`], with what was waited for and what `diagnose` says.
pub(crate) fn await_for<T>(
    what: &str,
    mut look: impl FnMut() -> Option<T>,
    diagnose: impl FnOnce() -> String,
) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            Instant::now().since(begin) < PATIENCE,
            "waited {PATIENCE:?} in vain for {what}\n{}",
            diagnose()
        );
        let waited = Instant::now().since(begin);
        std::thread::sleep(
            (waited / 100).clamp(Duration::from_millis(5), Duration::from_millis(25)),
        );
    }
}
