//! A renewed lock is held, and an answer counts only for its own renewal.

use super::*;

#[tokio::test]
async fn a_lock_is_kept_for_many_times_its_length() {
    let scene = Scene::with(settings(2), |config| {
        config.lock_time = Some(Duration::from_secs(2));
    });
    scene.put(b"long");
    let message = scene.take().await;
    let begin = Instant::now();
    while Instant::now().since(begin) < Duration::from_secs(6) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        renew(&message).await.expect("renewed");
    }
    complete(&message).await.expect("completed");
    assert_eq!(
        scene.count(|event| matches!(event, Event::LockExpired { .. })),
        0
    );
}

#[tokio::test]
async fn a_lock_that_ran_out_is_lost_and_nothing_is_settled() {
    let scene = Scene::locking(30);
    scene.put(b"late");
    let message = scene.take().await;
    assert_eq!(scene.broker.lose_locks(JOBS), 1);
    assert_lost(complete(&message).await);
    let refused = |event: &Event| {
        matches!(
            event,
            Event::SettleRefused {
                way: Way::Management,
                ..
            }
        )
    };
    assert_eq!(scene.count(refused), 1);
    assert_lost(renew(&message).await);
    assert_lost(settle(&message, &Settlement::Release).await);
    assert_eq!(scene.count(refused), 1);
    let again = scene.take().await;
    assert_eq!((body(&again), again.attempt), (&b"late"[..], 2));
    assert_eq!(scene.broker.lose_locks(JOBS), 1);
    assert_lost(renew(&again).await);
}

/// The bug that rules out existing clients: an answer comes after its renewal's time, and the next
/// renewal, which is refused, takes it for its own.
#[tokio::test]
async fn an_answer_that_comes_late_is_not_taken_for_the_next() {
    let scene = Scene::locking(30);
    scene.put(b"shifted");
    let message = scene.take().await;
    scene.fault(On::RenewLock, Act::Delay(Duration::from_millis(1500)));
    scene.fault(On::RenewLock, Act::Delay(Duration::from_millis(2500)));
    assert_doubt(message.lock.renew(later(400)).await);
    scene.broker.lose_locks(JOBS);
    // Refused at once, but answered after the first's answer.
    assert_lost(renew(&message).await);
    let connections = scene.count(|event| matches!(event, Event::Connected { .. }));
    assert_eq!(connections, 1, "the answers came by different connections");
}

#[tokio::test]
async fn an_answer_that_is_overtaken_is_not_taken_for_the_other() {
    let scene = Scene::locking(30);
    scene.put(b"kept");
    scene.put(b"lost");
    let (kept, lost) = (scene.take().await, scene.take().await);
    scene.fault(On::RenewLock, Act::Shift);
    scene.fault(On::RenewLock, Act::lock_lost());
    let (first, second) = tokio::join!(renew(&kept), renew(&lost));
    first.expect("the answer came behind the other");
    assert_lost(second);
    complete(&kept).await.expect("completed");
}

#[tokio::test]
async fn an_answer_that_comes_twice_counts_once() {
    let scene = Scene::locking(30);
    scene.put(b"twice");
    let message = scene.take().await;
    scene.fault(On::RenewLock, Act::Duplicate);
    renew(&message).await.expect("renewed");
    scene.broker.lose_locks(JOBS);
    assert_lost(renew(&message).await);
}

#[tokio::test]
async fn an_answer_that_names_no_request_counts_for_none() {
    let scene = Scene::locking(30);
    scene.put(b"nameless");
    let message = scene.take().await;
    scene.fault(On::RenewLock, Act::Uncorrelated);
    assert_doubt(message.lock.renew(later(500)).await);
    renew(&message).await.expect("renewed");
}

#[tokio::test]
async fn an_answer_that_is_lost_is_doubt_and_the_next_renewal_counts() {
    let scene = Scene::locking(30);
    scene.put(b"lost");
    let message = scene.take().await;
    for act in [Act::Lose, Act::Ignore] {
        scene.fault(On::RenewLock, act);
        let began = Instant::now();
        assert_doubt(message.lock.renew(later(500)).await);
        assert!(Instant::now().since(began) >= Duration::from_millis(500));
        renew(&message).await.expect("renewed");
    }
    complete(&message).await.expect("completed");
}

#[tokio::test]
async fn a_busy_service_is_left_alone_for_as_long_as_it_wishes() {
    let scene = Scene::locking(30);
    scene.put(b"busy");
    let message = scene.take().await;
    scene.fault(On::RenewLock, Act::server_busy());
    let Err(Failure::Transient { retry_after, .. }) = renew(&message).await else {
        panic!("busy is doubt");
    };
    assert_eq!(retry_after, Some(Duration::from_secs(4)));
    scene.fault(On::RenewLock, Act::unauthorized());
    assert_doubt(renew(&message).await);
    renew(&message).await.expect("renewed");
}
