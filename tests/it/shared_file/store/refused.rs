//! Files that are no locks, and disks and users that cannot have one.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;

use trafficcop_lease::file;

use super::*;
use crate::support::programs::{ourselves, trafficcop};

const NOBODY: u32 = 65534;

#[tokio::test]
async fn non_lock_is_refused_and_left_alone() {
    let (directory, path) = temporary();
    for bytes in [&b"#!/bin/sh\n"[..], b"{\"token\":7}", &[0xff; 9000]] {
        fs::write(&path, bytes).expect("a file");
        assert_fatal(
            &refusal(&open(&path, "a")).await,
            "no lock of a shared drive",
        );
        assert_eq!(fs::read(&path).expect("the file"), bytes);
    }
    assert!(!versions_of(&path).exists());
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    for (path, words) in [
        (directory.path(), "is a directory"),
        (&path.join("x"), "not a directory"),
        (
            &directory.path().join("no/lock"),
            "directory does not exist",
        ),
        (Path::new("/dev/null"), "not a regular file"),
        (&fifo, "not a regular file"),
    ] {
        assert_fatal(&refusal(&open(path, "a")).await, words);
    }
}

#[tokio::test]
async fn a_file_that_is_empty_or_was_begun_is_a_lock() {
    let (_directory, path) = temporary();
    for (count, bytes) in [&b""[..], b"trafficcop sh", &[0; 8192]].iter().enumerate() {
        fs::write(&path, bytes).expect("a file");
        let store = open(&path, "a");
        assert_eq!(acquire(&store).await.token, 2 * count as u64 + 1);
        release(&store).await;
    }
}

#[tokio::test]
async fn a_second_name_of_a_lock_s_file_is_refused() {
    // The versions are next to the name: under another name there would be two chains, and two
    // holders.
    let (directory, path) = temporary();
    let target = directory.path().join("target");
    fs::write(&target, "").expect("a file");
    symlink(&target, &path).expect("a link");
    assert_fatal(&refusal(&open(&path, "a")).await, "symbolic link");
    fs::remove_file(&path).expect("to remove it");
    fs::hard_link(&target, &path).expect("a second name");
    for name in [&target, &path] {
        assert_fatal(&refusal(&open(name, "a")).await, "second name");
    }
    fs::remove_file(&target).expect("to remove it");
    assert_eq!(acquire(&open(&path, "a")).await.token, 1);
}

#[tokio::test]
async fn versions_that_are_no_directory_are_refused() {
    let (directory, path) = temporary();
    let elsewhere = directory.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    symlink(&elsewhere, versions_of(&path)).expect("a link");
    assert_fatal(&refusal(&open(&path, "a")).await, "it is no directory");
    fs::remove_file(versions_of(&path)).expect("to remove it");
    fs::write(versions_of(&path), "").expect("a file");
    assert_fatal(&refusal(&open(&path, "a")).await, "it is no directory");
    assert_eq!(fs::read_dir(&elsewhere).expect("it").count(), 0);
}

#[tokio::test]
async fn two_protocols_at_one_path_refuse_each_other() {
    let (_directory, path) = temporary();
    let competitor = Competitor::new(candidate("local"), LEASE);
    let local = file::File::open(&path, &competitor).expect("a file");
    in_time(local.acquire(late())).await.expect("control");
    assert_fatal(&refusal(&open(&path, "a")).await, "lock of the kernel's");
    in_time(local.release(late())).await.expect("to release");
    assert_fatal(&refusal(&open(&path, "a")).await, "lock of the kernel's");
    fs::remove_file(&path).expect("to remove it");
    acquire(&open(&path, "a")).await;
    let refused = match file::File::open(&path, &competitor) {
        Err(refused) => refused.why,
        Ok(local) => {
            let refused = in_time(local.acquire(late())).await;
            refused.expect_err("no control").to_string()
        }
    };
    assert!(refused.contains("shared"), "{refused}");
}

#[tokio::test]
async fn a_read_only_file_system_is_refused_in_words() {
    let Some(small) = Tmpfs::mount("size=64k") else {
        return;
    };
    let path = small.path("lock");
    let a = open(&path, "a");
    acquire(&a).await;
    renew(&a).await;
    release(&a).await;
    small.make_read_only();
    for name in ["lock", "new"] {
        let refused = refusal(&open(&small.path(name), "a")).await;
        assert_fatal(&refused, "read-only");
    }
}

#[tokio::test]
async fn a_disk_that_becomes_read_only_is_a_doubt_to_its_holder() {
    let Some(small) = Tmpfs::mount("size=64k") else {
        return;
    };
    let path = small.path("lock");
    let a = open(&path, "a");
    acquire(&a).await;
    await_record(&path, 1);
    // The writer may have the hint open for another moment.
    await_hint(&path, 1);
    small.make_read_only();
    let failure = in_time(a.renew(late())).await.expect_err("no renewal");
    assert_doubt(&failure, "making its next version");
}

#[tokio::test]
async fn a_drive_that_is_not_mounted_any_more_is_no_removed_lock() {
    let Some(small) = Tmpfs::mount("size=64k") else {
        return;
    };
    let path = small.path("lock");
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    acquire(&a).await;
    await_record(&path, 1);
    assert_eq!(held(&b).await.token, Some(1));
    small.unmount();
    let refused = loop {
        match refusal(&b).await {
            Failure::Held(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            refused => break refused,
        }
    };
    assert_doubt(&refused, "is the drive mounted?");
    assert!(!refused.to_string().contains("remove"), "{refused}");
}

fn await_hint(path: &Path, version: u64) {
    let text = format!("{{\"version\":{version},");
    let said = || fs::read_to_string(path).unwrap_or_default().contains(&text);
    await_for("a hint", || said().then_some(()), || text.clone());
}

#[tokio::test]
async fn a_full_disk_in_the_middle_of_a_beginning_is_refused_and_forgotten_when_there_is_room() {
    let Some(small) = Tmpfs::mount("size=16k") else {
        return;
    };
    let path = small.path("lock");
    let ballast = small.path("ballast");
    fs::write(&ballast, [1; 20_000]).expect_err("a full disk");
    assert_fatal(&refusal(&open(&path, "a")).await, "make room");
    fs::remove_file(&ballast).expect("to make room");
    assert_eq!(acquire(&open(&path, "b")).await.token, 1);
}

#[tokio::test]
async fn a_full_disk_in_the_middle_of_a_renewal_leaves_the_old_record_and_control_as_they_are() {
    let Some(small) = Tmpfs::mount("size=32k,nr_inodes=64") else {
        return;
    };
    let path = small.path("lock");
    let a = open(&path, "a");
    acquire(&a).await;
    await_record(&path, 1);
    await_hint(&path, 1);
    let ballast = small.path("ballast");
    fs::write(&ballast, [1; 40_000]).expect_err("a full disk");
    // There is room for a directory, but not for the record.
    renew(&a).await;
    let old = await_record(&path, 1);
    assert_eq!(old["holder"], "a");
    assert_eq!(list(&path), [0, 1, 2]);
    let names = (0..).map(|name| small.path(&format!("dir-{name}")));
    let made: Vec<PathBuf> = names
        .take_while(|name| fs::create_dir(name).is_ok())
        .collect();
    let failure = in_time(a.renew(late())).await.expect_err("no room");
    assert_doubt(&failure, "make room");
    assert!(matches!(refusal(&open(&path, "b")).await, Failure::Held(_)));
    for name in made {
        fs::remove_dir(name).expect("to remove it");
    }
    fs::remove_file(&ballast).expect("to make room");
    renew(&a).await;
    await_record(&path, 3);
    release(&a).await;
    assert_eq!(acquire(&open(&path, "b")).await.token, 5);
}

/// The user seems to own the directory, but may not make anything there, as at an SMB client with
/// another account.
#[test]
fn a_user_who_could_never_take_over_is_refused_at_the_first_look_and_by_doctor() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("cannot run here: needs root to be another user");
        return;
    }
    let (place, program) = temporary();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).expect("open to all");
    // In another process: tests' children would inherit a descriptor that is open for writing here.
    let copied = Command::new("cp").arg(trafficcop()).arg(&program).status();
    assert!(copied.expect("to run cp").success());
    for (of_all, state) in [(true, "held"), (false, "held"), (false, "released")] {
        let (directory, path) = temporary();
        let written = Written::new(1, state);
        written.put(&path);
        written.put_hint(&path);
        let shut = match of_all {
            true => versions_of(&path),
            false => version_of(&path, 1),
        };
        let give = |path: &Path| chown(path, Some(NOBODY), Some(NOBODY)).expect("to give it away");
        for path in [directory.path(), &path, &versions_of(&path)] {
            give(path);
        }
        for version in 0..=1 {
            give(&version_of(&path, version));
        }
        let mode =
            |mode| fs::set_permissions(&shut, fs::Permissions::from_mode(mode)).expect("a mode");
        let before = list(&path);
        let ask = |words: &[&str], command: &[&str]| {
            let mut child = Command::new(&program);
            let child = child
                .args(words)
                .arg("--file")
                .arg(&path)
                .args(command)
                .current_dir("/");
            child
                .env_clear()
                .uid(NOBODY)
                .gid(NOBODY)
                .output()
                .expect("to run it")
        };
        let doctor = |verdict: &str| {
            let said = ask(&["doctor"], &[]);
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            let take_over = said.lines().find(|line| line.contains("take-over"));
            assert!(
                take_over.is_some_and(|line| line.starts_with(verdict)),
                "{said}"
            );
        };
        mode(0o555);
        for wait in ["-n", "--wait=1h"] {
            let refused = ask(&["run", "--shared", wait], &["--", "true"]);
            let why = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(77), "{why}");
            assert!(why.contains("could take it over: no permission"), "{why}");
        }
        doctor("fail");
        mode(0o755);
        doctor("ok");
        assert_eq!(list(&path), before, "nothing is made");
        for place in [versions_of(&path), version_of(&path, 1)] {
            let trials = fs::read_dir(place).expect("to list it").filter(|entry| {
                let name = entry.as_ref().expect("a name").file_name();
                name.to_string_lossy().starts_with("time.")
            });
            assert_eq!(trials.count(), 0, "nothing is left");
        }
    }
}

/// Tells the second process of `a_user_without_permission_is_denied` what to lock.
const LOCK_THIS: &str = "SHARED_FILE_LOCK_THIS";

#[tokio::test]
async fn a_user_without_permission_is_denied() {
    if let Some(path) = std::env::var_os(LOCK_THIS) {
        let refused = refusal(&open(Path::new(&path), "x")).await;
        let Failure::Fatal { why, denied: true } = refused else {
            panic!("not denied: {refused:?}");
        };
        assert!(why.contains("no permission"), "{why}");
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("cannot run here: needs root to be another user");
        return;
    }
    let (directory, path) = temporary();
    let a = open(&path, "a");
    acquire(&a).await;
    release(&a).await;
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("open to all");
    let secret = directory.path().join("secret");
    fs::write(&secret, "").expect("a file");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("closed to all");
    // As a user who may only read, from a place that every user can reach.
    let program = ourselves();
    for path in [path, directory.path().join("new"), secret] {
        let name = "shared_file::store::refused::a_user_without_permission_is_denied";
        let mut child = Command::new(&program.path);
        let child = child.args(["--exact", name]).env(LOCK_THIS, &path);
        let output = child.current_dir("/").uid(NOBODY).gid(NOBODY).output();
        let output = output.expect("to run it");
        assert!(output.status.success(), "{}: {output:?}", path.display());
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    }
}
