//! Async runtime of this process.
//!
//! Made after the guardians were forked: it raises the limit of descriptors, and a guardian must give its
//! command the original one.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd as _, OwnedFd};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

/// Runtime on the caller's thread. Dropping it does not wait: a call that hangs (a name that does not
/// resolve, a dead mount) must not keep the process.
#[derive(Debug)]
pub struct OwnRuntime(Option<Runtime>);

impl Deref for OwnRuntime {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

const NEEDED: usize = 8;

/// Makes a runtime.
///
/// # Errors
/// If there are too few descriptors, or the kernel's.
pub fn runtime() -> io::Result<OwnRuntime> {
    make_room();
    look_for_room()?;
    // A process that forks guardians should stay small, and blocking work has its own threads.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(OwnRuntime(Some(runtime)))
}

fn make_room() {
    // Each slot's file and each client's connection stays open.
    const WANTED: u64 = 4096;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(WANTED)), hard);
    }
}

/// Checks the limit of the main thread's stack: beyond it the kernel ends the process by SIGSEGV, without a
/// message.
///
/// # Errors
/// If the limit (RLIMIT_STACK) is too low for parsing the arguments.
pub fn check_stack_limit() -> io::Result<()> {
    // Measured: 176 KiB in a release build, 384 KiB in a debug build, without arguments and environment.
    const NEEDED_BYTES: u64 = if cfg!(debug_assertions) { 512 } else { 256 } << 10;
    match getrlimit(Resource::RLIMIT_STACK) {
        Ok((soft, _)) if soft < NEEDED_BYTES => Err(io::Error::other(format!(
            "the stack limit is {} KiB and trafficcop needs {} KiB: raise the limit (ulimit -s unlimited)",
            soft >> 10,
            NEEDED_BYTES >> 10
        ))),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Tokio panics without these descriptors.
fn look_for_room() -> io::Result<()> {
    let stdin = io::stdin();
    let taken: io::Result<Vec<OwnedFd>> = (0..NEEDED)
        .map(|_| stdin.as_fd().try_clone_to_owned())
        .collect();
    taken.map(drop).map_err(|why| {
        let why = format!(
            "too few file descriptors for trafficcop itself: {why}: raise the limit (ulimit -n)"
        );
        io::Error::other(why)
    })
}
