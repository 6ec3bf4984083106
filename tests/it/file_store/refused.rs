//! Files that are no locks, and disks and users that cannot have one.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::*;
use crate::support::await_for;
use crate::support::programs::ourselves;

const NOBODY: u32 = 65534;

#[tokio::test]
async fn a_file_with_other_content_is_refused_and_left_alone() {
    let (_directory, path) = temporary();
    let early = open(&path, "a");
    fs::write(&path, "#!/bin/sh\n").expect("a script");
    let error = try_to_open(&path, "b").err().expect("a refusal");
    assert!(error.why.contains("not a lock record"), "{error}");
    // Created between opening and locking:
    let failure = early.acquire(late()).await.expect_err("a refusal");
    assert!(matches!(failure, Failure::Fatal { denied: false, .. }));
    assert_eq!(fs::read(&path).expect("the script"), b"#!/bin/sh\n");
    fs::write(&path, "").expect("to empty it");
    assert_eq!(acquire(&open(&path, "b")).await.token, 1);
}

#[test]
fn a_link_is_followed_and_links_to_nowhere_are_created_through() {
    let (directory, path) = temporary();
    let target = directory.path().join("target");
    symlink(&target, &path).expect("a link");
    drop(open(&path, "a"));
    assert!(target.is_file());
    assert!(fs::symlink_metadata(&path).expect("the link").is_symlink());
}

#[test]
fn non_lock_file_is_refused_before_anything_starts() {
    let (directory, path) = temporary();
    let refuse = |path: &Path, word: &str| {
        let error = try_to_open(path, "a").err().expect(word);
        assert!(error.why.contains(word) && !error.denied, "{error}");
        assert!(!error.why.contains('\n'));
    };
    refuse(directory.path(), "is a directory");
    refuse(&path.join("x"), "directory does not exist");
    fs::write(&path, "").expect("a file");
    refuse(&path.join("x"), "not a directory");
    refuse(Path::new("/dev/null"), "not a regular file");
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    refuse(&fifo, "not a regular file");
}

/// A small one, or the reason why there is none.
struct Tmpfs(TempDir);

impl Tmpfs {
    fn mount(options: &str) -> Option<Tmpfs> {
        let point = tempfile::tempdir().expect("a directory");
        match mount(
            Some("tmpfs"),
            point.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options),
        ) {
            Ok(()) => Some(Tmpfs(point)),
            Err(errno) => {
                eprintln!("cannot run here: mounting a tmpfs: {errno}");
                None
            }
        }
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

#[tokio::test]
async fn a_full_disk_means_not_acquired_and_nothing_stays_locked() {
    let Some(small) = Tmpfs::mount("size=8k") else {
        return;
    };
    let path = small.0.path().join("lock");
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    let ballast = small.0.path().join("ballast");
    fs::write(&ballast, [1; 16384]).expect_err("a full disk");
    let failure = a.acquire(late()).await.expect_err("no room");
    assert!(
        matches!(&failure, Failure::Fatal { denied: false, why } if why.contains("make room")),
        "{failure:?}"
    );
    fs::remove_file(&ballast).expect("to make room");
    assert_eq!(acquire(&b).await.token, 1);
    // A holder on a full disk continues: it needs no space.
    fs::write(&ballast, [1; 16384]).expect_err("a full disk");
    in_time(b.renew(late())).await.expect("still ours");
}

#[tokio::test]
async fn a_read_only_file_system_is_refused() {
    let Some(small) = Tmpfs::mount("size=8k") else {
        return;
    };
    let path = small.0.path().join("lock");
    fs::write(&path, "").expect("a file");
    small.make_read_only();
    let error = try_to_open(&path, "a").err().expect("a refusal");
    assert!(error.why.contains("read-only") && !error.denied, "{error}");
    let new = small.0.path().join("new");
    let error = try_to_open(&new, "a").err().expect("a refusal");
    assert!(error.why.contains("read-only") && !error.denied, "{error}");
}

/// Tells the second process of `a_user_without_permission_is_denied` what to open.
const OPEN_THIS: &str = "FILE_STORE_OPEN_THIS";

#[test]
fn a_user_without_permission_is_denied() {
    if let Some(path) = std::env::var_os(OPEN_THIS) {
        let OpenError { denied, why, .. } =
            try_to_open(Path::new(&path), "x").err().expect("a refusal");
        assert!(denied && why.contains("no permission"), "{why}");
        return;
    }
    let (directory, path) = temporary();
    fs::write(&path, "").expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("read-only");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("open to all");
    // As a user who may only read, from a place that every user can reach.
    let program = ourselves();
    for path in [path.clone(), directory.path().join("new")] {
        let mut child = Command::new(&program.path);
        child
            .arg("file_store::refused::a_user_without_permission_is_denied")
            .arg("--exact")
            .env(OPEN_THIS, &path)
            .current_dir("/");
        if nix::unistd::geteuid().is_root() {
            child.uid(NOBODY).gid(NOBODY);
        } else if path.ends_with("new") {
            eprintln!("cannot run here: needs root to be another user");
            continue;
        }
        let output = child.output().expect("to run it");
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }
}
