//! Checks whether the locked file is still the file at the path.

use std::fs;

use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
use nix::libc;

use super::*;

#[tokio::test]
async fn renewal_notices_a_lost_lock() {
    let (_directory, path) = temporary();
    let renew = async |store: &File| in_time(store.renew(late())).await;
    let is_lost = |reply| matches!(reply, Err(Failure::Lost { until: None, .. }));

    let a = open(&path, "a");
    assert_eq!(a.info().lease, None);
    assert!(is_lost(renew(&a).await), "never acquired");
    acquire(&a).await;
    assert_eq!(renew(&a).await, Ok(()));

    // The same description unlocks both: first flock(2)'s lock, then the other.
    let file = fs::File::from(descriptor(&a));
    // nix's type unlocks when dropped.
    drop(Flock::lock(file, FlockArg::LockExclusiveNonblock).expect("ours"));
    assert!(is_lost(renew(&a).await), "without flock(2)'s");
    release(&a).await;
    acquire(&a).await;
    let descriptor = descriptor(&a);
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
