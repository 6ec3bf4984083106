//! Tests of attempts in the caller's thread, and of a release that no caller waits for.

use std::time::Duration;

use super::*;
use trafficcop_core::machine::lasting::{is_old, make_old};

fn competitor(in_place: bool) -> Competitor {
    let candidate = Candidate {
        identity: "a".into(),
        host: "h".into(),
        pid: 1,
        command: String::new(),
        bell: None,
    };
    Competitor {
        in_place,
        ..Competitor::new(candidate, Duration::ZERO)
    }
}

#[test]
fn only_the_first_attempt_runs_in_the_caller_s_thread() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name| directory.path().join(name);
    let usual = File::open(&path("usual"), &competitor(false)).expect("opened");
    assert!(!usual.begins_in_place());
    let file = File::open(&path("lock"), &competitor(true)).expect("opened");
    assert!(file.begins_in_place());
    assert!(!file.begins_in_place());
}

#[tokio::test]
async fn release_behind_a_hanging_disk_is_made_when_the_disk_answers() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("lock");
    let soon = || Instant::now() + Duration::from_millis(50);
    let file = Arc::new(File::open(&path, &competitor(false)).expect("opened"));
    let granted = file.acquire(Instant::now() + Duration::from_secs(60)).await;
    granted.expect("it is free");

    let (go_on, hang) = std::sync::mpsc::channel::<()>();
    let (hanging, hangs) = std::sync::mpsc::channel();
    let announce = file.blocking("announcing", soon(), move |_| {
        hanging.send(()).expect("the test waits");
        hang.recv().expect("the test ends the wait");
        Ok(())
    });
    announce.await.expect_err("it hangs");
    hangs.recv().expect("it was begun");
    file.release(soon()).await.expect_err("it is behind that");

    let other = File::open(&path, &competitor(false)).expect("opened");
    let busy = other
        .acquire(Instant::now() + Duration::from_secs(60))
        .await;
    assert!(matches!(busy, Err(Failure::Held(_))));
    go_on.send(()).expect("it still hangs");
    let freed = tokio::time::timeout(Duration::from_secs(30), other.until_free());
    freed.await.expect("it is unlocked");
    let granted = other
        .acquire(Instant::now() + Duration::from_secs(60))
        .await;
    granted.expect("it was given back");
}

#[tokio::test]
async fn a_lock_in_use_never_looks_old() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("lock");
    let file = File::open(&path, &competitor(false)).expect("opened");
    let granted = file.acquire(Instant::now() + Duration::from_secs(60)).await;
    granted.expect("it is free");
    make_old(&path);
    lasting::refresh();
    assert!(!is_old(&path));
}
