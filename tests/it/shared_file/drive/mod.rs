//! A drive that machines share: one tree on a server, and clients that each mount it. Each can be
//! cut off, made to fail, and left with old views.
//!
//! It needs `/dev/fuse` and the right to mount; without these, tests print that and pass. The
//! mounts are in a mount namespace of the test's thread, and end with it.

mod client;
mod switchboard;
mod tree;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption};
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::await_for;
use client::Client;
pub(crate) use switchboard::{ALWAYS, Fate, Op, Switchboard};
use tree::Tree;

/// Requests that an NFSv4 server delays in its grace period.
pub(crate) const OPENS: [Op; 4] = [Op::Open, Op::Create, Op::Rename, Op::Rmdir];

pub(crate) struct Drive {
    tree: Arc<Mutex<Tree>>,
}

/// One client's mount.
pub(crate) struct View {
    client: Client,
    session: Option<BackgroundSession>,
    point: TempDir,
}

/// Prints why no file system can be mounted.
fn or_said<T>(what: &str, done: Result<T, impl std::fmt::Display>) -> Option<T> {
    done.map_err(|why| eprintln!("cannot run here: {what}: {why}"))
        .ok()
}

impl Drive {
    /// Makes an empty drive in a mount namespace of the calling thread; prints why and returns
    /// `None` where that is not possible.
    pub(crate) fn new() -> Option<Drive> {
        let nothing = None::<&str>;
        or_said("opening /dev/fuse", std::fs::File::open("/dev/fuse"))?;
        or_said("a mount namespace", unshare(CloneFlags::CLONE_NEWNS))?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        let done = mount(nothing, "/", nothing, private, nothing);
        or_said("mounts of its own", done)?;
        Some(Drive {
            tree: Arc::new(Mutex::new(Tree::new())),
        })
    }

    /// Adds a client whose mount guarantees that exactly one of two machines makes a directory.
    pub(crate) fn mount(&self) -> View {
        self.mount_as("sshfs")
    }

    pub(crate) fn mount_as(&self, kind: &str) -> View {
        let point = tempfile::tempdir().expect("a directory");
        let client = Client::new(Arc::clone(&self.tree));
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("server:/share".into()),
            // fuser does not tell the kernel of `Subtype`.
            MountOption::CUSTOM(format!("subtype={kind}")),
        ];
        let session = fuser::spawn_mount(client.clone(), point.path(), &config);
        client.switchboard.spare_the_dying();
        View {
            client,
            session: Some(session.expect("to mount it")),
            point,
        }
    }

    /// Reports success to all that make one directory at the same time.
    pub(crate) fn exclude_nobody(&self) {
        self.tree().is_careless = true;
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn versions(&self, lock: &str) -> Vec<u64> {
        let tree = self.tree();
        let names = tree.find(&format!("{lock}.versions"));
        let names = names.and_then(|number| tree.names(number).ok());
        let names = names.into_iter().flatten();
        names
            .filter_map(|(name, _)| name.to_str()?.parse().ok())
            .collect()
    }

    pub(crate) fn greatest(&self, lock: &str) -> u64 {
        self.versions(lock).last().copied().unwrap_or(0)
    }

    pub(crate) fn record(&self, lock: &str, version: u64) -> Option<Value> {
        let tree = self.tree();
        let before = version.checked_sub(1)?;
        let file = tree.find(&format!("{lock}.versions/{before:020}/next/record"))?;
        let bytes = tree.read(file, 0, u32::MAX).ok()?;
        serde_json::from_slice(bytes.split(|byte| *byte == b'\n').nth(1)?).ok()
    }

    /// Waits for a greater version.
    pub(crate) fn await_version_after(&self, lock: &str, version: u64) -> u64 {
        await_for(
            &format!("a version after {version}"),
            || Some(self.greatest(lock)).filter(|greatest| *greatest > version),
            || format!("{:?}", self.versions(lock)),
        )
    }

    /// Waits for the next version and its record.
    pub(crate) fn await_renewal(&self, lock: &str) -> u64 {
        let before = self.greatest(lock);
        await_for(
            &format!("a record after version {before}"),
            || {
                let greatest = self.await_version_after(lock, before);
                self.record(lock, greatest).map(|_| greatest)
            },
            || format!("{:?}", self.versions(lock)),
        )
    }
}

impl View {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.point.path().join(name)
    }

    pub(crate) fn hang(&self) {
        self.set(&[], Fate::Hang);
    }

    pub(crate) fn entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.point.path()).expect("to list it");
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("a name").file_name();
        entries
            .map(|entry| name(entry).to_string_lossy().into_owned())
            .collect()
    }

    /// Applies this fate to requests of these kinds until the client is healed.
    pub(crate) fn set(&self, ops: &[Op], fate: Fate) {
        self.switchboard().set(ops, None, fate, ALWAYS);
    }

    pub(crate) fn switchboard(&self) -> &Switchboard {
        &self.client.switchboard
    }

    pub(crate) fn heal(&self) {
        self.switchboard().heal();
    }

    pub(crate) fn await_caught(&self, count: usize) {
        await_for(
            "a request",
            || (self.switchboard().caught() >= count).then_some(()),
            String::new,
        );
    }

    pub(crate) fn remember_for(&self, lasts: Duration) {
        self.client.remember_for(lasts);
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.switchboard()
            .set(&[], None, Fate::Fail(libc::EIO), ALWAYS);
        let _ = umount2(self.point.path(), MntFlags::MNT_DETACH);
        self.heal();
        drop(self.session.take());
    }
}
