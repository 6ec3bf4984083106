//! Neither messages nor waiting workers notice a connection's end.

use super::*;

fn connected(view: View<'_>) -> usize {
    count(view, &|event| matches!(event, Event::Connected { .. }))
}

#[tokio::test]
async fn a_lock_outlives_its_connection() {
    let scene = Scene::locking(30);
    scene.put(b"m");
    let message = scene.take().await;
    for act in [Act::Cut, Act::CutAfter] {
        scene.fault(On::RenewLock, act);
        renew(&message)
            .await
            .expect("renewed over another connection");
    }
    assert_eq!(scene.broker.look(connected), 3);
    complete(&message)
        .await
        .expect("completed over another connection");
    assert_eq!(scene.counts(), Counts::default());
}

#[tokio::test]
async fn waiting_worker_gets_a_message_despite_a_cut_connection() {
    let scene = Scene::locking(30);
    scene.wait_in_vain(1, 200).await;
    scene.broker.cut();
    scene.put(b"m");
    assert_eq!(body(&scene.take().await), b"m");
}

#[tokio::test]
async fn a_link_that_is_detached_for_being_idle_is_attached_again() {
    let scene = Scene::locking(30);
    scene.wait_in_vain(2, 300).await;
    scene.put(b"held");
    let held = scene.take().await;
    scene
        .broker
        .detach(JOBS, "amqp:link:detach-forced", "The link is idle.");
    scene.put(b"next");
    assert_eq!(body(&scene.take().await), b"next");
    // An earlier link's message is settled by its token.
    renew(&held).await.expect("renewed");
    complete(&held).await.expect("completed");
    // And a returned one has to count.
    scene.put(b"back");
    let back = scene.take().await;
    scene
        .broker
        .detach(JOBS, "amqp:link:detach-forced", "The link is idle.");
    scene
        .until(|view| (connected(view) >= 3).then_some(()))
        .await;
    let released = async {
        while let Err(failure) = settle(&back, &Settlement::Release).await {
            assert!(matches!(failure, Failure::Transient { .. }), "{failure}");
        }
    };
    released.await;
    assert_eq!(scene.take().await.attempt, 2);
}

#[tokio::test]
async fn a_delivery_that_ends_its_link_is_not_lost() {
    for act in [
        Act::CutAfter,
        Act::Cut,
        Act::Detach {
            condition: "amqp:link:detach-forced".into(),
        },
    ] {
        let scene = Scene::with(settings(3), |config| {
            config.lock_time = Some(Duration::from_secs(3));
        });
        scene.fault(On::Deliver, act.clone());
        scene.put(b"m");
        // At the latest when the lock of a lost message ends.
        assert_eq!(body(&scene.take().await), b"m", "{act:?}");
    }
}

#[tokio::test]
async fn a_line_that_is_dead_is_given_up_long_before_its_heartbeats_are_missed() {
    let scene = Scene::locking(300);
    scene.put(b"m");
    let message = scene.take().await;
    scene.broker.freeze();
    assert_doubt(message.lock.renew(later(1500)).await);
    // Everything connected now is frozen, too.
    assert_doubt(message.lock.renew(later(500)).await);
    scene.broker.thaw();
    renew_in_the_end(&message).await.expect("renewed");
    complete_in_the_end(&message).await.expect("completed");
    assert!(
        scene.broker.look(connected) >= 2,
        "the dead line was waited for"
    );
}

#[tokio::test]
async fn unreachable_service_is_reported_and_found_again() {
    let scene = Scene::locking(300);
    scene.put(b"held");
    let held = scene.take().await;
    scene.broker.refuse_connections(true);
    scene.broker.cut();
    let failed = async {
        loop {
            match scene.queue.take(1, later(5000)).await {
                Ok(none) => assert!(none.is_empty()),
                Err(failure) => return failure,
            }
        }
    };
    let failure = failed.await;
    assert!(matches!(failure, Failure::Transient { .. }), "{failure:?}");
    assert!(failure.to_string().contains("127.0.0.1"), "{failure}");
    assert_doubt(held.lock.renew(later(300)).await);
    let attempts = scene.broker.look(connected);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let more = scene.broker.look(connected) - attempts;
    assert!(more <= 3, "{more} attempts to connect in 1.5 s");
    scene.broker.refuse_connections(false);
    renew_in_the_end(&held).await.expect("renewed");
    scene.put(b"next");
    assert_eq!(body(&scene.take().await), b"next");
    complete(&held).await.expect("completed");
}

#[tokio::test]
async fn a_busy_service_is_not_stormed() {
    let scene = Scene::locking(30);
    scene
        .broker
        .fault(Fault::new(On::Attach, Act::server_busy()).times(2));
    let began = Instant::now();
    let missing = scene.queue.prepare(patiently()).await.expect_err("busy");
    let Missing::Failed(Failure::Transient { retry_after, .. }) = missing else {
        panic!("{missing}");
    };
    assert_eq!(retry_after, Some(Duration::from_secs(4)));
    scene.put(b"m");
    assert_eq!(body(&scene.take().await), b"m");
    let took = Instant::now().since(began);
    assert!(
        took >= Duration::from_secs(8),
        "{took:?} for two pauses of 4 s"
    );
}

/// A message sent while a worker waits after an error would lie here while its lock runs out.
#[tokio::test]
async fn worker_gets_no_message_between_an_error_and_its_next_take() {
    let scene = Scene::locking(30);
    scene.wait_in_vain(4, 200).await;
    scene.fault(On::Attach, Act::server_busy());
    scene.broker.cut();
    let failed = scene.queue.take(4, patiently()).await;
    assert!(matches!(failed, Err(Failure::Transient { .. })));
    scene.put(b"m");
    // The first, the refused one, and the next.
    scene
        .until(|view| (connected(view) >= 3).then_some(()))
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(scene.counts().locked, 0);
    assert_eq!(body(&scene.take().await), b"m");
}
