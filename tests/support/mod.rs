//! Support for the integration tests.
//!
//! Nothing here may ask `trafficcop` whether `trafficcop` is right: the judges use the kernel's
//! process table, the command's journal, and the store. In addition, the program's own account, the
//! event log, must not contradict its promise (`event_logs`).

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

/// Limit of every wait of a test: long, because a test that fails on a slow machine shows nothing.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(90);

/// Polls `look` until it returns something; less often when it takes long, because a walk through
/// the process table or a request costs other tests time.
///
/// # Panics
///
/// After [`WAIT_LIMIT`], with what was waited for and what `diagnose` says.
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
            Instant::now().since(begin) < WAIT_LIMIT,
            "waited {WAIT_LIMIT:?} in vain for {what}\n{}",
            diagnose()
        );
        let waited = Instant::now().since(begin);
        std::thread::sleep(
            (waited / 100).clamp(Duration::from_millis(5), Duration::from_millis(25)),
        );
    }
}
