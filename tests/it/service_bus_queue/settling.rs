//! A message counts as settled only with the service's confirmation.

use super::*;

/// Settles so, and checks the next attempts.
async fn settled_so(link_settle: bool) {
    let scene = Scene::with(settings(30), |config| config.link_settle = link_settle);
    let way = if link_settle {
        Way::Link
    } else {
        Way::Management
    };
    scene.put(b"m");
    let message = scene.take().await;
    assert_eq!(message.attempt, 1);
    settle(&message, &abandon()).await.expect("abandoned");
    let message = scene.take().await;
    assert_eq!(message.attempt, 2);
    settle(&message, &Settlement::Release)
        .await
        .expect("released");
    let message = scene.take().await;
    assert_eq!(message.attempt, 2, "a release counted");
    let long = "é".repeat(4000);
    settle(&message, &dead_letter("CommandFailed", &long))
        .await
        .expect("dead-lettered");
    let letters = scene.waiting(DEAD);
    let (reason, text) = letters[0].dead_letter();
    assert_eq!(reason.as_deref(), Some("CommandFailed"));
    assert_eq!(text.as_deref(), Some("é".repeat(2048).as_str()));
    assert_eq!(letters[0].message.body(), b"m");

    scene.put(b"done");
    let message = scene.take().await;
    complete(&message).await.expect("completed");
    complete(&message).await.expect("once more");
    assert_lost(settle(&message, &abandon()).await);
    assert_lost(renew(&message).await);
    assert_eq!(scene.counts(), Counts::default());
    // Only a link can release.
    let on_link = if link_settle { 4 } else { 1 };
    assert_eq!(scene.count(settled_by(Way::Link)), on_link);
    assert_eq!(scene.count(settled_by(Way::Management)), 4 - on_link);
    assert!(scene.count(settled_by(way)) >= 3);
}

#[tokio::test]
async fn a_message_is_settled_by_its_token() {
    settled_so(false).await;
}

#[tokio::test]
async fn a_message_is_settled_on_the_link_where_that_is_asked_for() {
    settled_so(true).await;
}

#[tokio::test]
async fn refusal_on_the_link_is_reported() {
    for how in [
        Settlement::Complete,
        abandon(),
        dead_letter("r", "d"),
        Settlement::Release,
    ] {
        let scene = Scene::with(settings(30), |config| config.link_settle = true);
        scene.put(b"m");
        let message = scene.take().await;
        scene.broker.lose_locks(JOBS);
        assert_lost(settle(&message, &how).await);
    }
    let scene = Scene::with(settings(30), |config| config.link_settle = true);
    scene.put(b"m");
    let message = scene.take().await;
    scene.fault(On::Settle, Act::lock_lost());
    assert_lost(complete(&message).await);
}

#[tokio::test]
async fn missing_answer_on_the_link_is_doubt() {
    let scene = Scene::with(settings(30), |config| config.link_settle = true);
    scene.put(b"m");
    let message = scene.take().await;
    scene.fault(On::Settle, Act::Ignore);
    assert_doubt(message.lock.settle(&Settlement::Complete, later(500)).await);
    assert_eq!(scene.counts().locked, 1);
    complete(&message).await.expect("completed");
}

#[tokio::test]
async fn a_settlement_that_was_not_done_is_done_by_the_next() {
    let scene = Scene::locking(30);
    scene.put(b"m");
    let message = scene.take().await;
    scene.fault(On::UpdateDisposition, Act::Ignore);
    assert_doubt(message.lock.settle(&Settlement::Complete, later(500)).await);
    assert_eq!(scene.counts().locked, 1);
    complete(&message).await.expect("completed");
    assert_eq!(scene.counts(), Counts::default());
}

#[tokio::test]
async fn a_settlement_whose_answer_was_lost_is_not_confirmed_and_never_failed() {
    let scene = Scene::locking(30);
    scene.put(b"m");
    let message = scene.take().await;
    scene.fault(On::UpdateDisposition, Act::Lose);
    assert_doubt(message.lock.settle(&Settlement::Complete, later(500)).await);
    assert_eq!(scene.counts(), Counts::default(), "it was done");
    let asked = |event: &Event| {
        matches!(
            event,
            Event::SettleRefused {
                way: Way::Management,
                ..
            }
        )
    };
    for _ in 0..3 {
        let Err(Failure::Transient { why, retry_after }) = complete(&message).await else {
            panic!("it cannot be known");
        };
        assert!(why.contains("it is not known whether"), "{why}");
        assert!(
            retry_after > Some(Duration::from_secs(3600)),
            "{retry_after:?}"
        );
    }
    assert_eq!(
        scene.count(asked),
        1,
        "asked again for what will never be known"
    );
}

#[tokio::test]
async fn answers_to_settlements_count_for_those_they_name() {
    let scene = Scene::locking(30);
    scene.put(b"done");
    scene.put(b"lost");
    let (done, lost) = (scene.take().await, scene.take().await);
    scene.fault(On::UpdateDisposition, Act::Shift);
    scene.fault(On::UpdateDisposition, Act::lock_lost());
    let (first, second) = tokio::join!(complete(&done), complete(&lost));
    first.expect("completed");
    assert_lost(second);

    scene.put(b"twice");
    let message = scene.take().await;
    scene.fault(On::UpdateDisposition, Act::Duplicate);
    complete(&message).await.expect("completed");
    // A late answer for another request.
    scene.put(b"late");
    scene.put(b"next");
    let (late, next) = (scene.take().await, scene.take().await);
    scene.fault(
        On::UpdateDisposition,
        Act::Delay(Duration::from_millis(1200)),
    );
    scene.fault(
        On::UpdateDisposition,
        Act::Delay(Duration::from_millis(2000)),
    );
    assert_doubt(late.lock.settle(&Settlement::Complete, later(300)).await);
    scene.broker.lose_locks(JOBS);
    assert_lost(complete(&next).await);
}

#[tokio::test]
async fn a_cut_in_a_settlement_costs_nothing_but_time() {
    let scene = Scene::locking(30);
    scene.put(b"before");
    let message = scene.take().await;
    scene.fault(On::UpdateDisposition, Act::Cut);
    complete_in_the_end(&message).await.expect("completed");
    assert_eq!(scene.counts(), Counts::default());

    scene.put(b"after");
    let message = scene.take().await;
    scene.fault(On::UpdateDisposition, Act::CutAfter);
    assert_doubt(complete(&message).await);
    // It was done, but the worker does not know.
    assert_doubt(complete(&message).await);
    assert_eq!(scene.counts(), Counts::default());
}

#[tokio::test]
async fn a_busy_service_says_when_to_ask_again() {
    let scene = Scene::locking(30);
    scene.put(b"m");
    let message = scene.take().await;
    scene.fault(On::UpdateDisposition, Act::server_busy());
    let Err(Failure::Transient { retry_after, .. }) = complete(&message).await else {
        panic!("busy is doubt");
    };
    assert_eq!(retry_after, Some(Duration::from_secs(4)));
    // It was not done, so this is not taken for a repetition: the refusal counts.
    scene.broker.lose_locks(JOBS);
    assert_lost(complete(&message).await);
}

#[tokio::test]
async fn every_delivery_that_was_settled_is_forgotten_on_the_link() {
    let scene = Scene::locking(30);
    for how in [Settlement::Complete, abandon(), dead_letter("r", "d")] {
        scene.put(b"m");
        let message = scene.take().await;
        settle(&message, &how).await.expect("settled");
    }
    // The dispositions complete, abandon and dead-letter find no message to settle.
    scene
        .until(|view| {
            let refused =
                |event: &Event| matches!(event, Event::SettleRefused { way: Way::Link, .. });
            (count(view, &refused) == 3).then_some(())
        })
        .await;
    let only_release = |event: &Event| {
        matches!(
            event,
            Event::SettleRefused {
                way: Way::Link,
                outcome: Outcome::Release,
                ..
            }
        )
    };
    assert_eq!(scene.count(only_release), 2);
}
