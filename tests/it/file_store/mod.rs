//! The file store against real files and processes. Two stores in one process exclude each other
//! like two machines: a lock belongs to its description.

mod confirm;
mod control;
mod refused;
mod waiting;

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use trafficcop::Instant;
use trafficcop_core::{Failure, Grant, HolderInfo};
use trafficcop_lease::file::{File, OpenError};
use trafficcop_lease::record::Candidate;
use trafficcop_lease::{Competitor, LeaseStore, RecordUpdate};

fn try_to_open(path: &Path, identity: &str) -> Result<File, OpenError> {
    let candidate = Candidate {
        identity: identity.to_owned(),
        host: "here".into(),
        pid: std::process::id(),
        command: "./job --all".into(),
        bell: None,
    };
    // The kernel's locks have no lease.
    File::open(path, &Competitor::new(candidate, Duration::ZERO))
}

fn open(path: &Path, identity: &str) -> File {
    try_to_open(path, identity).expect("a lock file")
}

fn late() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// Limits a wait far beyond the needs of a loaded machine; a test that gets there has hung.
async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), what)
        .await
        .expect("in time")
}

async fn acquire(store: &File) -> Grant {
    in_time(store.acquire(late())).await.expect("control")
}

async fn release(store: &File) {
    in_time(store.release(late())).await.expect("to unlock");
}

async fn held(store: &File) -> HolderInfo {
    match in_time(store.acquire(late())).await {
        Err(Failure::Held(sight)) => sight,
        other => panic!("not held: {other:?}"),
    }
}

async fn stand_by(store: &File) -> Grant {
    in_time(async {
        loop {
            match store.acquire(late()).await {
                Ok(grant) => return grant,
                Err(Failure::Held(_)) => store.until_free().await,
                Err(other) => panic!("{other}"),
            }
        }
    })
    .await
}

fn descriptor(store: &File) -> OwnedFd {
    let ours = store.orphan_release().expect("duplicated");
    ours.descriptor.expect("a lock")
}

/// Starts a process that has `store`'s descriptor open until its standard input ends.
fn heir(store: &File) -> Child {
    let descriptor = descriptor(store);
    Command::new("sh")
        .args(["-c", "read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::from(descriptor))
        .spawn()
        .expect("a shell")
}

fn bury(mut child: Child) {
    drop(child.stdin.take());
    child.wait().expect("the shell's end");
}

fn temporary() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("lock");
    (directory, path)
}
