//! From SIGKILL of the supervisor to the end of the command's tree, which ignores SIGTERM.
//!
//! The end is the kernel's word: each process of the tree holds the same FIFO open, and its
//! reader comes to its end when the last of them has lost its descriptors.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::stat::Mode;

use crate::instance::{Instance, Lock, now, trafficcop};
use crate::numbers::Samples;
use crate::table::Figure;

const RUNS: usize = 20;
/// A child, a grandchild and a daemon with a session of its own: see `probe.rs`.
const PROCESSES: usize = 3;
/// In milliseconds: a machine may be slow, but we must not hang.
const PATIENCE: u16 = 60_000;

/// The figures on a file and, where there is a service, on a blob.
///
/// # Errors
/// What failed to run.
pub(crate) fn figures(
    scene: &Path,
    probe: &Path,
    connection: Option<&str>,
) -> Result<Vec<Figure>, String> {
    let file = scene.join("crash.lock");
    let mut on_file = Samples::default();
    let mut on_blob = Samples::default();
    for round in 0..RUNS {
        on_file.push(crash(Lock::File(&file), scene, probe)?);
        if let Some(connection) = connection {
            let name = format!("figures/crash-{round}");
            on_blob.push(crash(Lock::Blob(&name, connection), scene, probe)?);
        }
    }
    let what = "supervisor SIGKILLed to a deaf tree of three gone";
    let mut figures =
        vec![Figure::new(format!("{what}: file with a lease"), "ms", on_file).at_most(50.0)];
    if connection.is_some() {
        figures.push(Figure::new(format!("{what}: blob"), "ms", on_blob).at_most(50.0));
    }
    Ok(figures)
}

fn crash(lock: Lock<'_>, scene: &Path, probe: &Path) -> Result<f64, String> {
    let fifo = scene.join("fifo");
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).map_err(|errno| errno.to_string())?;
    let mut command = trafficcop(lock);
    if let Lock::File(_) = lock {
        // Where a lock knows no deadline the guardian's grace is its own, of ten seconds.
        command.arg("--shared");
    }
    command
        .args(["--grace-on-loss", "0", "--"])
        .arg(probe)
        .arg("tree")
        .arg(&fifo);
    let failed = |error: std::io::Error| format!("the tree's FIFO: {error}");
    // Without waiting for a writer: a tree that never starts must not hold us up.
    let mut tree = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(&fifo)
        .map_err(failed)?;
    let mut supervisor = Instance::start(&mut command, &scene.join("log"));
    let mut ready = 0;
    while ready < PROCESSES {
        ready += await_word(&mut tree).map_err(|why| format!("{why}: {:?}", supervisor.ended()))?;
    }
    std::fs::remove_file(&fifo).map_err(failed)?;
    let begin = now();
    supervisor.kill();
    while await_word(&mut tree)? > 0 {}
    Ok(now() - begin)
}

/// Waits until something has been written to the FIFO, and tells how many bytes; none at its end.
fn await_word(tree: &mut File) -> Result<usize, String> {
    let mut asked = [PollFd::new(tree.as_fd(), PollFlags::POLLIN)];
    match poll(&mut asked, PATIENCE) {
        Ok(0) => return Err("no word of the tree for a minute".to_owned()),
        Ok(_) => {}
        Err(errno) => return Err(format!("poll: {errno}")),
    }
    let mut bytes = [0; 16];
    tree.read(&mut bytes)
        .map_err(|error| format!("the tree's FIFO: {error}"))
}
