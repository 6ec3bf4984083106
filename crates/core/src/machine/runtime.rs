//! The runtime that everything that waits runs on, made where it can be made.
//!
//! Called by whoever drives something to its end, after the guardians were forked: what a guardian
//! gives to its command is the limit that we were given. The library behind it panics where it gets
//! no descriptors for itself, so they are asked for before.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd as _, OwnedFd};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

/// A runtime of one thread, which is the caller's. Dropped, it waits for nobody: a call that hangs (a name that
/// does not resolve, a dead mount) must not keep us here.
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

// What the runtime and its signals are made of, and what opens the first file.
const NEEDED: usize = 8;

/// Makes one.
///
/// # Errors
/// Where there are too few descriptors for it, in words, or what the kernel says.
pub fn runtime() -> io::Result<OwnRuntime> {
    make_room();
    look_for_room()?;
    // One thread: a process that forks guardians and is watched for its size has no use for more, and
    // what could block it has a thread of its own.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    Ok(OwnRuntime(Some(runtime)))
}

fn make_room() {
    // Each slot of a file that was looked at stays open, and so do the connections of those who ask.
    // Where it cannot be, what cannot be opened is told of, one by one.
    const WANTED: u64 = 4096;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(WANTED)), hard);
    }
}

/// Checks that the main thread's stack may grow as far as parsing the arguments needs: beyond the limit the
/// kernel ends the process by SIGSEGV, without a word.
///
/// # Errors
/// Where the limit (RLIMIT_STACK) is lower, in words.
pub fn check_stack_limit() -> io::Result<()> {
    // Measured: 176 KiB in a release build, 384 KiB in a debug build. Arguments and environment lie there, too.
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

/// Opens as many as are needed, and closes them: tokio panics where it gets none.
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
