//! Tests of a lock that the waiter was granted.

use tempfile::NamedTempFile;
use tokio::sync::oneshot;

use super::*;

/// Returns a file, a description that has it locked, and the one for attempts.
fn held() -> (NamedTempFile, LockedFile, Arc<fs::File>) {
    let file = NamedTempFile::new().expect("a file");
    let [holder, ours] = [0; 2].map(|_| Arc::new(file.reopen().expect("a description")));
    let held = LockedFile::of(&holder).expect("asked").expect("free");
    (file, held, ours)
}

/// Resolves when a description other than the waiter's has the lock.
async fn is_given_back(file: &Arc<fs::File>) {
    let other = open::reopen(file).expect("a description");
    let (sender, locked) = oneshot::channel();
    // Not the runtime's thread: a lock that is never given back must fail the test, not hang it.
    thread::spawn(move || sender.send(LockedFile::wait(other).is_ok()));
    let locked = tokio::time::timeout(UNCLAIMED_LIMIT * 12, locked).await;
    assert_eq!(locked.expect("in time"), Ok(true));
}

#[tokio::test]
async fn granted_lock_is_handed_over_even_if_the_file_is_unlinked() {
    let (file, held, ours) = held();
    file.close().expect("unlinked");
    let waiter = Arc::new(Waiter::default());
    tokio::join!(waiter.until_free(&ours), async { drop(held) });
    let granted = waiter.take().expect("granted");
    assert!(LockedFile::of(&ours).expect("asked").is_none());
    assert!(waiter.take().is_none(), "once");
    drop(granted);
    assert!(LockedFile::of(&ours).expect("asked").is_some());
}

#[tokio::test]
async fn lock_granted_to_a_dropped_listener_is_given_back_at_once() {
    let (_file, held, ours) = held();
    let waiter = Arc::new(Waiter::default());
    {
        let listens = waiter.until_free(&ours);
        tokio::pin!(listens);
        tokio::select! {
            biased;
            () = &mut listens => panic!("it is held"),
            () = std::future::ready(()) => {}
        }
        let granted = waiter.changed.notified();
        drop(held);
        granted.await;
        assert!(LockedFile::of(&ours).expect("asked").is_none());
    }
    assert!(LockedFile::of(&ours).expect("asked").is_some());
}

#[tokio::test]
async fn untaken_lock_is_given_back() {
    let (_file, held, ours) = held();
    let waiter = Arc::new(Waiter::default());
    tokio::join!(waiter.until_free(&ours), async { drop(held) });
    is_given_back(&ours).await;
    assert!(waiter.take().is_none());
}

#[tokio::test]
async fn lock_of_a_replaced_file_is_given_back() {
    let (_old, held_old, old) = held();
    let (_new, held_new, new) = held();
    let waiter = Arc::new(Waiter::default());
    tokio::select! {
        biased;
        () = waiter.until_free(&old) => panic!("it is held"),
        () = std::future::ready(()) => {}
    }
    let listens = waiter.until_free(&new);
    tokio::pin!(listens);
    tokio::select! {
        biased;
        () = &mut listens => panic!("it is held"),
        () = std::future::ready(()) => {}
    }
    drop(held_old);
    is_given_back(&old).await;
    assert!(waiter.take().is_none(), "nothing for the new one");
    drop(held_new);
    listens.await;
    assert!(waiter.take().is_some());
}
