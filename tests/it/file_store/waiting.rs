//! Waiting: a dropped wait leaves no lock, and a replaced file is noticed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::fcntl::{Flock, FlockArg};

use super::*;

/// Returns whether the dropped future was ready.
async fn poll_once(future: impl Future) -> bool {
    tokio::pin!(future);
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_ready()))
        .await
}

#[tokio::test]
async fn abandoned_waiter_leaves_no_lock() {
    let (_directory, path) = temporary();
    let (a, b, c) = (open(&path, "a"), open(&path, "b"), open(&path, "c"));
    for _ in 0..50 {
        // It may get the lock for a moment, and releases it at once.
        stand_by(&a).await;
        poll_once(b.until_free()).await;
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
    in_time(b.until_free()).await;
    held(&a).await;
    release(&b).await;
    acquire(&a).await;
    release(&a).await;
    in_time(b.until_free()).await;
    // Closing would not unlock: another process has the description.
    let child = heir(&b);
    held(&a).await;
    drop(b);
    acquire(&a).await;
    bury(child);
}

#[tokio::test]
async fn lock_granted_to_a_waiter_passes_to_the_attempt_and_the_tree() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    for token in 1..4 {
        in_time(b.until_free()).await;
        held(&a).await;
        assert_eq!(acquire(&b).await.token, token);
        in_time(b.renew(late())).await.expect("ours");
        release(&b).await;
    }
    stand_by(&b).await;
    // It must not unlock, nor keep the tenure from ending with the tree.
    poll_once(b.until_free()).await;
    in_time(b.renew(late())).await.expect("ours");
    let child = heir(&b);
    drop(b);
    held(&a).await;
    bury(child);
    stand_by(&a).await;
}

#[tokio::test]
async fn an_acquire_that_was_dropped_leaves_no_lock() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    for _ in 0..50 {
        if poll_once(a.acquire(late())).await {
            // Its thread was faster than the one poll: the future was not dropped.
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
                        poll_once(store.until_free()).await;
                    }
                    if round % 5 == number {
                        poll_once(store.acquire(late())).await;
                    }
                    let grant = stand_by(&store).await;
                    assert!(!inside.swap(true, Ordering::SeqCst), "two hold it");
                    let before = last.swap(grant.token, Ordering::SeqCst);
                    assert!(before < grant.token, "{before}, then {}", grant.token);
                    // A second waiter, which must not disturb the tenure.
                    poll_once(store.until_free()).await;
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
    // The old holder's command may still run: b must wait.
    held(&b).await;
    let told = in_time(a.release(late())).await;
    assert!(matches!(told, Err(Failure::Lost { .. })), "{told:?}");
    in_time(b.until_free()).await;
    let c = open(&path, "c");
    assert_eq!(
        acquire(&c).await.token,
        1,
        "nothing is known of the old file"
    );
    assert_eq!(held(&b).await.holder.as_deref(), Some("c"));
    release(&c).await;
    in_time(b.until_free()).await;
    assert_eq!(acquire(&b).await.token, 3, "b has seen the old file");
    let descriptor = fs::File::from(descriptor(&b));
    let (ours, there) = (descriptor.metadata(), fs::metadata(&path));
    assert_eq!(ours.expect("ours").ino(), there.expect("there").ino());
    held(&c).await;
}

fn flock(path: &Path) -> Option<Flock<fs::File>> {
    let file = fs::File::open(path).expect("a lock file");
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}

#[tokio::test]
async fn flock_has_the_lock_when_the_tree_has_it_no_more() {
    let (_directory, path) = temporary();
    let a = open(&path, "a");
    let stranger = flock(&path).expect("free");
    assert_eq!(held(&a).await, HolderInfo::default());
    drop(stranger);
    acquire(&a).await;
    assert!(flock(&path).is_none());
    // Released at once, though another process has the description open.
    let child = heir(&a);
    release(&a).await;
    drop(flock(&path).expect("given back"));
    bury(child);
    // The tree keeps it after the supervisor.
    acquire(&a).await;
    let child = heir(&a);
    drop(a);
    assert!(flock(&path).is_none());
    bury(child);
    // A process that a concurrent test forks has the description until it execs.
    let file = fs::File::open(&path).expect("a lock file");
    let locked = tokio::task::spawn_blocking(|| Flock::lock(file, FlockArg::LockExclusive).is_ok());
    assert!(in_time(locked).await.expect("asked"));
}

#[tokio::test]
async fn a_waiter_for_flock_shuts_no_other_instance_out() {
    let (_directory, path) = temporary();
    let (a, b) = (open(&path, "a"), open(&path, "b"));
    let stranger = flock(&path).expect("free");
    held(&a).await;
    // The abandoned waiter unlocks when it is granted the lock.
    poll_once(a.until_free()).await;
    held(&b).await;
    drop(stranger);
    stand_by(&b).await;
    release(&b).await;
    stand_by(&a).await;
}
