//! What the supervisor does to its own process.
//!
//! Called by `run` when the terminal, or somebody, asks us to pause.

/// Stops this process, as Ctrl-Z does, until somebody continues it. The guardian goes on.
pub fn stop_ourselves() {
    // It cannot fail: the signal exists, and we may signal ourselves.
    let _sent = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
}
