//! The file store against real files, real descriptions and real processes. Two stores in one
//! process exclude each other like two machines would: their lock belongs to the description.

use std::fs;
use std::future::Future;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;
use trafficcop::clock::Instant;
use trafficcop::core::{Failure, Grant, Sight};
use trafficcop::lease::Store;
use trafficcop::lease::file::{Config, File, Heartbeat, OpenError};
use trafficcop::lease::record::Candidate;

const NOBODY: u32 = 65534;

fn config(path: &Path, identity: &str) -> Config {
    Config {
        path: path.to_owned(),
        candidate: Candidate {
            identity: identity.to_owned(),
            host: "here".into(),
            pid: std::process::id(),
            command: "./job --all".into(),
        },
        heartbeat: Heartbeat::Auto,
        lease: Duration::from_secs(60),
        create: true,
    }
}

fn open(path: &Path, identity: &str) -> File {
    File::open(config(path, identity)).expect("a lock file")
}

fn late() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// Far beyond what a loaded machine needs; a test that gets there has hung.
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

async fn held(store: &File) -> Sight {
    match in_time(store.acquire(late())).await {
        Err(Failure::Held(sight)) => sight,
        other => panic!("not held: {other:?}"),
    }
}

/// Waits until `store` can have the lock, as a standby does, and acquires it.
async fn stand_by(store: &File) -> Grant {
    in_time(async {
        loop {
            match store.acquire(late()).await {
                Ok(grant) => return grant,
                Err(Failure::Held(_)) => store.freed().await,
                Err(other) => panic!("{other}"),
            }
        }
    })
    .await
}

/// Starts what a future starts, and drops it. Tells whether it had ended by then.
async fn poll_once(future: impl Future) -> bool {
    tokio::pin!(future);
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_ready()))
        .await
}

/// A process that has `store`'s descriptor open until its standard input ends.
fn heir(store: &File) -> Child {
    let descriptor = store.descriptor().expect("a descriptor");
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

#[tokio::test]
async fn one_holds_and_the_other_is_told_by_whom() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    assert_eq!(a.terms().lease, None, "no deadline on a local file");
    assert!(a.terms().wakes);
    assert_eq!(a.name(), path.display().to_string());
    assert_eq!(acquire(&a).await.token, 1);
    let sight = held(&b).await;
    assert_eq!(sight.holder.as_deref(), Some("a"));
    assert_eq!((sight.token, sight.draining), (Some(1), false));
    in_time(a.announce(late())).await.expect("to announce");
    assert!(held(&b).await.draining);
    release(&a).await;
    assert!(
        !fs::read_to_string(&path)
            .expect("a record")
            .contains("true")
    );
    assert_eq!(acquire(&b).await.token, 2);
    assert!(!held(&a).await.draining);
}

#[tokio::test]
async fn an_inherited_descriptor_keeps_the_lock_and_its_end_wakes_the_standby() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), Arc::new(open(&path, "b")));
    acquire(&a).await;
    let child = heir(&a);
    let standby = tokio::spawn({
        let b = Arc::clone(&b);
        async move { b.freed().await }
    });
    drop(a);
    // The supervisor's descriptor is closed; that of the tree is not.
    assert_eq!(held(&b).await.holder.as_deref(), Some("a"));
    assert!(!standby.is_finished());
    bury(child);
    in_time(standby).await.expect("to be woken");
    assert_eq!(acquire(&b).await.token, 2);
}

#[tokio::test]
async fn a_release_frees_the_lock_though_others_have_its_descriptor_open() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    acquire(&a).await;
    let child = heir(&a);
    release(&a).await;
    assert_eq!(acquire(&b).await.token, 2);
    bury(child);
}

#[tokio::test]
async fn tokens_grow_over_a_hundred_tenures_whatever_happens_to_the_record() {
    let (_directory, path) = temporary();
    let mut last = 0;
    for round in 0..100 {
        // A store of its own each time: nothing is remembered but in the file.
        let store = open(&path, "a");
        // The one before is dropped, not released: a child that a neighbouring test is forking at
        // this moment has its descriptor, and the lock, until it execs.
        let token = stand_by(&store).await.token;
        assert!(token > last, "round {round}: {token} after {last}");
        last = token;
        drop(store);
        let mut bytes = fs::read(&path).expect("a record");
        assert_eq!(bytes.len(), 2048);
        match round % 5 {
            1 => bytes.truncate(60),
            2 => bytes[40..].fill(0),
            3 => bytes.extend_from_slice(&[0; 100]),
            _ => {}
        }
        match round {
            70 => bytes.fill(0),
            80 => bytes.truncate(11),
            _ => {}
        }
        fs::write(&path, bytes).expect("to damage it");
    }
    assert!(last > 1_700_000_000_000_000, "the wall clock took over");
}

#[tokio::test]
async fn a_file_with_other_content_is_refused_and_left_alone() {
    let (_directory, path) = temporary();
    let early = open(&path, "a");
    fs::write(&path, "#!/bin/sh\n").expect("a script");
    let error = File::open(config(&path, "b")).err().expect("a refusal");
    assert!(error.why.contains("not a lock record"), "{error}");
    // And if it came to be between opening and locking:
    let failure = early.acquire(late()).await.expect_err("a refusal");
    assert!(matches!(failure, Failure::Fatal { denied: false, .. }));
    assert_eq!(fs::read(&path).expect("the script"), b"#!/bin/sh\n");
    fs::write(&path, "").expect("to empty it");
    assert_eq!(acquire(&open(&path, "b")).await.token, 1);
}

#[tokio::test]
async fn a_waiter_that_nobody_wants_any_more_leaves_no_lock() {
    let (_directory, path) = temporary();
    let (a, b, c) = (open(&path, "a"), open(&path, "b"), open(&path, "c"));
    for _ in 0..50 {
        // A waiter left behind may have the lock for a moment: it gives it up at once.
        stand_by(&a).await;
        poll_once(b.freed()).await;
        release(&a).await;
        stand_by(&c).await;
        release(&c).await;
        stand_by(&a).await;
        release(&a).await;
    }
}

#[tokio::test]
async fn a_lock_the_waiter_got_is_given_up_by_release_and_by_drop() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    acquire(&a).await;
    release(&a).await;
    in_time(b.freed()).await;
    held(&a).await;
    release(&b).await;
    acquire(&a).await;
    release(&a).await;
    in_time(b.freed()).await;
    // Somebody else has the description open, so closing it would not unlock.
    let child = heir(&b);
    held(&a).await;
    drop(b);
    acquire(&a).await;
    bury(child);
}

#[tokio::test]
async fn an_acquire_that_was_dropped_leaves_no_lock() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    for _ in 0..50 {
        if poll_once(a.acquire(late())).await {
            // Its thread was faster than the one look at it: it was not dropped.
            release(&a).await;
        }
        stand_by(&b).await;
        release(&b).await;
    }
    let too_late = a.acquire(Instant::ZERO).await;
    assert!(matches!(too_late, Ok(_) | Err(Failure::Transient { .. })));
    release(&a).await;
    acquire(&b).await;
}

#[tokio::test]
async fn contenders_that_change_their_minds_never_hold_together() {
    let (_directory, path) = temporary();
    let inside = Arc::new(AtomicBool::new(false));
    let last = Arc::new(AtomicU64::new(0));
    let contenders: Vec<_> = (0..4)
        .map(|number| {
            let store = open(&path, &format!("c{number}"));
            let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
            tokio::spawn(async move {
                for round in 0..30 {
                    if round % 3 == number % 3 {
                        poll_once(store.freed()).await;
                    }
                    if round % 5 == number {
                        poll_once(store.acquire(late())).await;
                    }
                    let grant = stand_by(&store).await;
                    assert!(!inside.swap(true, Ordering::SeqCst), "two hold it");
                    let before = last.swap(grant.token, Ordering::SeqCst);
                    assert!(before < grant.token, "{before}, then {}", grant.token);
                    // A listener of its own, which must not disturb the tenure.
                    poll_once(store.freed()).await;
                    in_time(store.renew(late())).await.expect("still ours");
                    inside.store(false, Ordering::SeqCst);
                    release(&store).await;
                }
            })
        })
        .collect();
    for contender in contenders {
        in_time(contender).await.expect("no overlap");
    }
}

#[tokio::test]
async fn a_standby_goes_over_to_a_file_that_took_the_place_of_the_old_one() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    assert_eq!(acquire(&a).await.token, 1);
    release(&a).await;
    assert_eq!(acquire(&a).await.token, 2);
    fs::remove_file(&path).expect("to remove it");
    // The old holder may still run its command: b stays behind it.
    held(&b).await;
    // Unlocked all the same.
    let told = in_time(a.release(late())).await;
    assert!(matches!(told, Err(Failure::Lost { .. })), "{told:?}");
    in_time(b.freed()).await;
    let c = open(&path, "c");
    assert_eq!(
        acquire(&c).await.token,
        1,
        "nothing is known of the old file"
    );
    assert_eq!(held(&b).await.holder.as_deref(), Some("c"));
    release(&c).await;
    in_time(b.freed()).await;
    assert_eq!(acquire(&b).await.token, 3, "b has seen the old file");
    let descriptor = fs::File::from(b.descriptor().expect("a descriptor"));
    let (ours, there) = (descriptor.metadata(), fs::metadata(&path));
    assert_eq!(ours.expect("ours").ino(), there.expect("there").ino());
    held(&c).await;
}

#[tokio::test]
async fn a_file_that_is_gone_is_not_created_against_the_will() {
    let (_directory, path) = temporary();
    drop(open(&path, "a"));
    let mut config = config(&path, "b");
    config.create = false;
    let b = File::open(config.clone()).expect("the file is there");
    fs::remove_file(&path).expect("to remove it");
    let failure = b.acquire(late()).await.expect_err("no lock on an orphan");
    assert!(matches!(failure, Failure::Fatal { .. }), "{failure}");
    assert!(!path.exists());
}

#[tokio::test]
async fn the_heartbeat_tells_when_the_lock_is_not_ours_any_more() {
    let (_directory, path) = temporary();
    let beating = || {
        let mut config = config(&path, "a");
        config.heartbeat = Heartbeat::On;
        File::open(config).expect("a lock file")
    };
    let renew = async |store: &File| in_time(store.renew(late())).await;
    let is_lost = |reply| matches!(reply, Err(Failure::Lost { until: None, .. }));

    let a = beating();
    assert_eq!(a.terms().lease, Some(Duration::from_secs(60)));
    assert!(is_lost(renew(&a).await), "never acquired");
    acquire(&a).await;
    assert_eq!(renew(&a).await, Ok(()));

    fs::write(&path, "").expect("to empty it");
    assert_eq!(renew(&a).await, Ok(()), "emptied is not unlocked");
    let healed = fs::read_to_string(&path).expect("a record");
    assert!(healed.contains("\"holder\":\"a\"") && healed.len() == 2048);

    // Somebody with the same description unlocks it.
    let descriptor = a.descriptor().expect("a descriptor");
    let whole = libc::flock {
        l_type: libc::F_UNLCK as i16,
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&descriptor, FcntlArg::F_OFD_SETLK(&whole)).expect("to unlock");
    assert!(is_lost(renew(&a).await), "unlocked");
    release(&a).await;

    acquire(&a).await;
    let moved = path.with_extension("moved");
    fs::rename(&path, &moved).expect("to move it");
    assert!(is_lost(renew(&a).await), "removed");
    fs::write(&path, "").expect("another file");
    assert!(is_lost(renew(&a).await), "replaced");
    fs::rename(&moved, &path).expect("to move it back");
    assert_eq!(renew(&a).await, Ok(()));
    release(&a).await;
    assert!(is_lost(renew(&a).await), "given back");
}

#[tokio::test]
async fn a_lock_is_counted_from_before_it_was_asked_for() {
    let (_directory, path) = temporary();
    let store = open(&path, "a");
    let acquire = store.acquire(late());
    tokio::pin!(acquire);
    let mut done = None;
    std::future::poll_fn(|context| {
        if let std::task::Poll::Ready(grant) = acquire.as_mut().poll(context) {
            done = Some(grant);
        }
        std::task::Poll::Ready(())
    })
    .await;
    let asked = Instant::now();
    let grant = match done {
        Some(grant) => grant,
        None => in_time(acquire).await,
    };
    assert!(grant.expect("control").t0 <= asked);
}

#[tokio::test]
async fn a_heartbeat_that_cannot_be_written_is_in_doubt() {
    let memory =
        nix::sys::memfd::memfd_create(c"lock", nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING)
            .expect("a file in memory");
    let path = PathBuf::from(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&memory)
    ));
    let mut config = config(&path, "a");
    config.heartbeat = Heartbeat::On;
    let store = File::open(config).expect("a lock file");
    acquire(&store).await;
    assert_eq!(in_time(store.renew(late())).await, Ok(()));
    let seal = nix::fcntl::SealFlag::F_SEAL_WRITE;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seal)).expect("to seal it");
    let told = in_time(store.renew(late())).await;
    assert!(matches!(told, Err(Failure::Transient { .. })), "{told:?}");
}

#[tokio::test]
async fn the_release_tells_of_a_file_that_was_replaced_and_unlocks_it_all_the_same() {
    for unlinked in [true, false] {
        let (_directory, path) = temporary();
        let (a, b) = (open(&path, "a"), open(&path, "b"));
        acquire(&a).await;
        let kept = path.with_extension("kept");
        fs::hard_link(&path, &kept).expect("another name for it");
        fs::remove_file(&path).expect("to remove it");
        if !unlinked {
            fs::write(&path, "").expect("another file");
        }
        let told = in_time(a.release(late())).await;
        assert!(
            matches!(told, Err(Failure::Lost { until: None, .. })),
            "{told:?}"
        );
        // Said once.
        release(&a).await;
        // `b` has the old file open: it finds that free, and goes over to the new one.
        assert_eq!(acquire(&b).await.token, 2);
        assert_eq!(acquire(&open(&kept, "c")).await.token, 2, "unlocked");
        release(&b).await;
    }
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
fn what_is_no_lock_file_is_refused_before_anything_starts() {
    let (directory, path) = temporary();
    let refuse = |path: &Path, create: bool, word: &str| {
        let mut config = config(path, "a");
        config.create = create;
        let error = File::open(config).err().expect(word);
        assert!(error.why.contains(word) && !error.denied, "{error}");
        assert!(!error.why.contains('\n'));
    };
    refuse(directory.path(), true, "is a directory");
    refuse(&path, false, "no such file");
    assert!(!path.exists());
    refuse(&path.join("x"), true, "directory does not exist");
    fs::write(&path, "").expect("a file");
    refuse(&path.join("x"), true, "not a directory");
    refuse(Path::new("/dev/null"), true, "not a regular file");
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    refuse(&fifo, true, "not a regular file");
}

/// Mounts a small tmpfs, or says why this test cannot.
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
        mount(
            None::<&str>,
            self.0.path(),
            None::<&str>,
            MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY,
            None::<&str>,
        )
        .expect("to remount it");
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
    // It takes what there is, and then fails.
    fs::write(&ballast, [1; 16384]).expect_err("a full disk");
    let failure = a.acquire(late()).await.expect_err("no room");
    assert!(
        matches!(&failure, Failure::Fatal { denied: false, why } if why.contains("make room")),
        "{failure:?}"
    );
    fs::remove_file(&ballast).expect("to make room");
    assert_eq!(acquire(&b).await.token, 1);
    // A holder whose disk is full goes on: its heartbeat needs no room.
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
    let error = File::open(config(&path, "a")).err().expect("a refusal");
    assert!(error.why.contains("read-only") && !error.denied, "{error}");
    let new = small.0.path().join("new");
    let error = File::open(config(&new, "a")).err().expect("a refusal");
    assert!(error.why.contains("read-only") && !error.denied, "{error}");
}

/// Where `a_user_without_permission_is_denied` tells its second self what to open.
const OPEN_THIS: &str = "FILE_STORE_OPEN_THIS";

#[test]
fn a_user_without_permission_is_denied() {
    if let Some(path) = std::env::var_os(OPEN_THIS) {
        let OpenError { denied, why, .. } = File::open(config(Path::new(&path), "x"))
            .err()
            .expect("a refusal");
        assert!(denied && why.contains("no permission"), "{why}");
        return;
    }
    let (directory, path) = temporary();
    fs::write(&path, "").expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("read-only");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("open to all");
    // This very program, where everybody can reach it, as a user who may only read.
    let program = directory.path().join("program");
    fs::copy(std::env::current_exe().expect("this program"), &program).expect("a copy");
    for path in [path.clone(), directory.path().join("new")] {
        let mut child = Command::new(&program);
        child
            .args(["--exact", "a_user_without_permission_is_denied"])
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
