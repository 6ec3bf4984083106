//! A leaving worker has no message locked, and what it did not begin does not count.

use super::*;

#[tokio::test]
async fn unused_messages_return_unchanged_at_a_stop() {
    let scene = Scene::locking(300);
    scene.wait_in_vain(4, 300).await;
    for number in 0..3_u8 {
        scene.put(&[number]);
    }
    scene
        .until(|view| (view.counts(JOBS).locked == 3).then_some(()))
        .await;
    scene.queue.stop(patiently()).await;
    let left = scene.waiting(JOBS);
    assert_eq!(scene.counts().locked, 0);
    assert!(left.len() == 3 && left.iter().all(|message| message.failed == 0));
    assert_eq!(
        scene.count(|event| matches!(event, Event::Drained { .. })),
        1
    );
    scene.put(b"later");
    scene.wait_in_vain(4, 300).await;
    assert_eq!(scene.counts().locked, 0);
    scene.queue.close(patiently()).await;
    scene
        .until(|view| (view.connections() == 0).then_some(()))
        .await;
}

/// Such a service never confirms a drain: messages in flight must be settled anyway, within the
/// limit.
#[tokio::test]
async fn a_service_that_does_not_answer_a_drain_leaves_nothing_locked() {
    // Fewer than may come: it waits for half of the time.
    let scene = Scene::locking(300);
    scene.fault(On::Drain, Act::Ignore);
    scene.wait_in_vain(4, 300).await;
    for number in 0..3_u8 {
        scene.put(&[number]);
    }
    scene
        .until(|view| (view.counts(JOBS).locked == 3).then_some(()))
        .await;
    let began = Instant::now();
    scene.queue.stop(later(4000)).await;
    let took = Instant::now().since(began);
    assert_eq!(scene.counts().locked, 0);
    let left = scene.waiting(JOBS);
    assert!(left.len() == 3 && left.iter().all(|message| message.failed == 0));
    assert!(took < Duration::from_millis(3500), "{took:?}");
}

/// A link without credit has nothing to drain, and the service need not confirm it.
#[tokio::test]
async fn a_drain_has_ended_when_all_has_come_that_was_asked_for() {
    let scene = Scene::locking(300);
    scene.fault(On::Drain, Act::Ignore);
    scene.wait_in_vain(4, 300).await;
    for number in 0..4_u8 {
        scene.put(&[number]);
    }
    scene
        .until(|view| (view.counts(JOBS).locked == 4).then_some(()))
        .await;
    let began = Instant::now();
    scene.queue.stop(patiently()).await;
    let took = Instant::now().since(began);
    assert_eq!(scene.counts().locked, 0);
    let left = scene.waiting(JOBS);
    assert!(left.len() == 4 && left.iter().all(|message| message.failed == 0));
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[tokio::test]
async fn message_in_progress_can_be_settled_after_a_stop() {
    let scene = Scene::locking(30);
    scene.put(b"held");
    let held = scene.take().await;
    scene.queue.stop(patiently()).await;
    renew(&held).await.expect("renewed");
    scene.fault(On::RenewLock, Act::Cut);
    renew(&held).await.expect("renewed over another connection");
    complete(&held).await.expect("completed");
    scene.queue.close(patiently()).await;
    assert_lost(renew(&held).await);
}

#[tokio::test]
async fn a_stop_that_races_with_deliveries_leaves_nothing_locked() {
    const ROUNDS: usize = 200;
    let broker = broker(Settings::default(), settings(300));
    let (mut taken, mut sent) = (0, 0);
    for round in 0..ROUNDS {
        let queue = ServiceBusQueue::open(config(broker.address().port()));
        queue
            .prepare(patiently())
            .await
            .expect("the queue is there");
        let mut held = Vec::new();
        {
            let mut take = std::pin::pin!(queue.take(8, patiently()));
            // Until the credit is sent.
            let pause = Duration::from_micros((round as u64 % 20) * 100);
            let _ = tokio::time::timeout(pause, &mut take).await.map(|taken| {
                held.extend(taken.expect("taken"));
            });
            for number in 0..round % 5 {
                broker.put(JOBS, Sent::data(&[number as u8]));
                sent += 1;
            }
            if held.is_empty() && round % 3 == 0 {
                let wait = Duration::from_micros((round as u64 % 7) * 200);
                let _ = tokio::time::timeout(wait, &mut take).await.map(|taken| {
                    held.extend(taken.expect("taken"));
                });
            }
        }
        queue.stop(patiently()).await;
        let locked = broker.look(|view| view.counts(JOBS).locked);
        assert_eq!(locked, held.len(), "round {round}");
        for message in &held {
            complete(message).await.expect("completed");
        }
        taken += held.len();
        queue.close(patiently()).await;
    }
    let left = broker.look(|view| view.messages(JOBS));
    assert_eq!(broker.look(|view| view.counts(JOBS).locked), 0);
    assert_eq!(left.len(), sent - taken);
    assert!(
        left.iter().all(|message| message.failed == 0),
        "one was counted"
    );
    let expired = |event: &Event| matches!(event, Event::LockExpired { .. });
    assert_eq!(broker.look(move |view| count(view, &expired)), 0);
}
