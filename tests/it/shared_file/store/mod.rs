//! The store against real directories. Two stores in one process exclude each other like two
//! machines, since nothing of a lock belongs to a process.

pub(crate) mod control;
pub(crate) mod records;
pub(crate) mod refused;
pub(crate) mod versions;

use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;
use trafficcop::Instant;
use trafficcop_core::{Failure, Grant, HolderInfo};
use trafficcop_lease::once::Task;
use trafficcop_lease::record::Candidate;
use trafficcop_lease::shared_file::SharedFile;
use trafficcop_lease::{Competitor, LeaseStore, RecordUpdate};

use crate::support::await_for;

const LEASE: Duration = Duration::from_secs(10);

fn candidate(identity: &str) -> Candidate {
    Candidate {
        identity: identity.to_owned(),
        host: "here".into(),
        pid: std::process::id(),
        command: "./job --all".into(),
        bell: None,
    }
}

fn open_with(path: &Path, identity: &str, task: Option<Task>) -> SharedFile {
    let competitor = Competitor {
        task,
        ..Competitor::new(candidate(identity), LEASE)
    };
    SharedFile::open(path, &competitor).expect("a store")
}

fn open(path: &Path, identity: &str) -> SharedFile {
    open_with(path, identity, None)
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

async fn acquire(store: &SharedFile) -> Grant {
    in_time(store.acquire(late())).await.expect("control")
}

async fn refusal(store: &SharedFile) -> Failure {
    in_time(store.acquire(late()))
        .await
        .expect_err("no control")
}

async fn renew(store: &SharedFile) {
    in_time(store.renew(late())).await.expect("still ours");
}

async fn release(store: &SharedFile) {
    in_time(store.release(late())).await.expect("to release");
}

async fn held(store: &SharedFile) -> HolderInfo {
    match refusal(store).await {
        Failure::Held(sight) => sight,
        other => panic!("not held: {other:?}"),
    }
}

#[track_caller]
fn assert_fatal(failure: &Failure, words: &str) {
    let Failure::Fatal { why, denied: false } = failure else {
        panic!("not refused: {failure:?}");
    };
    assert!(why.contains(words) && !why.contains('\n'), "{why}");
}

#[track_caller]
fn assert_lost(failure: &Failure) {
    assert!(matches!(failure, Failure::Lost { .. }), "{failure:?}");
}

#[track_caller]
fn assert_doubt(failure: &Failure, words: &str) {
    let Failure::Transient { why, .. } = failure else {
        panic!("not a doubt: {failure:?}");
    };
    assert!(why.contains(words), "{why}");
}

fn temporary() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("lock");
    (directory, path)
}

fn versions_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".versions");
    name.into()
}

fn version_of(path: &Path, version: u64) -> PathBuf {
    versions_of(path).join(format!("{version:020}"))
}

fn list(path: &Path) -> Vec<u64> {
    let entries = fs::read_dir(versions_of(path)).expect("versions");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let numbers = names.filter_map(|name| name.to_str()?.parse().ok());
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

struct Written {
    version: u64,
    state: &'static str,
    lease_ms: u64,
    tenure: u64,
}

impl Written {
    fn new(version: u64, state: &'static str) -> Written {
        Written {
            version,
            state,
            lease_ms: 10_000,
            tenure: version,
        }
    }

    fn text(&self) -> String {
        let Written {
            version,
            state,
            lease_ms,
            tenure,
        } = self;
        let line = format!(
            "{{\"version\":{version},\"state\":\"{state}\",\"nonce\":\"{:032x}\",\
             \"lease_ms\":{lease_ms},\"tenure\":{tenure},\"holder\":\"hand\",\"host\":\"h\",\
             \"pid\":1,\"since\":\"2026-01-01T00:00:00Z\",\"command\":\"c\"}}",
            7
        );
        checked(&line)
    }

    fn put(&self, path: &Path) {
        put(path, self.version, self.text().as_bytes());
    }

    fn put_hint(&self, path: &Path) {
        let text = self.text();
        fs::write(path, format!("{text:<8191}\n")).expect("a hint");
    }
}

fn checked(line: &str) -> String {
    let hash = line.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("trafficcop shared lock 1\n{line}\n{hash:016x}\n")
}

fn put(path: &Path, version: u64, bytes: &[u8]) {
    fs::create_dir_all(version_of(path, version)).expect("a version");
    let record = record_of(path, version);
    fs::create_dir_all(record.parent().expect("a directory")).expect("its place");
    fs::write(record, bytes).expect("a record");
}

fn record_of(path: &Path, version: u64) -> PathBuf {
    version_of(path, version - 1).join("next/record")
}

fn await_record(path: &Path, version: u64) -> serde_json::Value {
    let file = record_of(path, version);
    let read = || {
        let text = fs::read_to_string(&file).ok()?;
        serde_json::from_str(text.lines().nth(1)?).ok()
    };
    await_for("a record", read, || format!("{}", file.display()))
}

/// A small one, or the reason why there is none.
struct Tmpfs(TempDir);

impl Tmpfs {
    fn mount(options: &str) -> Option<Tmpfs> {
        let point = tempfile::tempdir().expect("a directory");
        let (kind, flags) = (Some("tmpfs"), MsFlags::empty());
        match mount(kind, point.path(), kind, flags, Some(options)) {
            Ok(()) => Some(Tmpfs(point)),
            Err(errno) => {
                eprintln!("cannot run here: mounting a tmpfs: {errno}");
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Unmounts it; its empty directory stays.
    fn unmount(&self) {
        umount2(self.0.path(), MntFlags::MNT_DETACH).expect("to unmount it");
    }

    fn make_read_only(&self) {
        let (nothing, flags) = (None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
        // Until it execs, a concurrent test's fork has this process's files open for writing.
        let busy = Err(nix::errno::Errno::EBUSY);
        let remount = || mount(nothing, self.0.path(), nothing, flags, nothing);
        let done = || Some(remount()).filter(|done| *done != busy);
        await_for("no process to write there", done, String::new).expect("to remount it");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}
