//! Outcomes of a message: completed, retried, released; and after doubt.

use super::*;

#[tokio::test]
async fn completed_message_is_deleted_and_stays_settled() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    for _ in 0..2 {
        let settled = message.lock.settle(&Settlement::Complete, later()).await;
        settled.expect("completed");
    }
    assert_eq!(scene.asked(Call::DeleteMessage), 1);
    assert_eq!(scene.mailbox.count(), 0);
    is_lost(message.lock.renew(later()).await);
    is_lost(message.lock.settle(&Settlement::Release, later()).await);
}

#[tokio::test]
async fn released_message_returns_at_once_and_retried_one_after_its_delay() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    let settled = message.lock.settle(&Settlement::Release, later()).await;
    settled.expect("released");
    assert_eq!(scene.mailbox.visible().len(), 1);
    let message = scene.take().await;
    assert_eq!(message.attempt, 2);
    let begin = Instant::now();
    let delay = Duration::from_millis(1100);
    let settled = message
        .lock
        .settle(&Settlement::Retry(delay), later())
        .await;
    settled.expect("put back");
    assert_eq!(scene.mailbox.await_take(60).count, 3);
    // Never sooner than requested: in whole seconds, that is two.
    assert!(Instant::now().since(begin) >= Duration::from_millis(1900));
}

#[tokio::test]
async fn the_longest_delay_is_that_of_the_service() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    let year = Duration::from_secs(365 * 24 * 3600);
    let settled = message.lock.settle(&Settlement::Retry(year), later()).await;
    settled.expect("put back");
    assert_eq!(scene.mailbox.visible(), []);
}

#[tokio::test]
async fn a_settlement_whose_answer_was_lost_is_done_when_it_is_asked_again() {
    for (settlement, call, left) in [
        (Settlement::Complete, Call::DeleteMessage, 0),
        (Settlement::Release, Call::Update, 1),
        (Settlement::Retry(Duration::from_secs(60)), Call::Update, 1),
    ] {
        let scene = Scene::with("x");
        let message = scene.take().await;
        scene.proxy.next(call, Fate::LoseReply);
        is_transient(message.lock.settle(&settlement, later()).await);
        let settled = message.lock.settle(&settlement, later()).await;
        settled.expect("it was done");
        assert_eq!(scene.mailbox.count(), left, "{settlement:?}");
    }
}

#[tokio::test]
async fn a_settlement_that_never_arrived_is_done_when_it_is_asked_again() {
    for (settlement, call, left) in [
        (Settlement::Complete, Call::DeleteMessage, 0),
        (Settlement::Release, Call::Update, 1),
    ] {
        let scene = Scene::with("x");
        let message = scene.take().await;
        scene.proxy.next(call, Fate::Swallow);
        is_transient(message.lock.settle(&settlement, soon()).await);
        scene.proxy.next(call, Fate::Refuse(429, "TooManyRequests"));
        is_transient(message.lock.settle(&settlement, later()).await);
        let settled = message.lock.settle(&settlement, later()).await;
        settled.expect("settled");
        assert_eq!(scene.mailbox.count(), left);
        assert_eq!(scene.mailbox.visible().len(), left as usize);
    }
}

#[tokio::test]
async fn a_settlement_that_was_given_up_half_way_is_remembered() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    let settlement = message.lock.settle(&Settlement::Complete, later());
    scene
        .give_up_half_way(Call::DeleteMessage, settlement)
        .await;
    let settled = message.lock.settle(&Settlement::Complete, later()).await;
    settled.expect("it was done");
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_is_done_even_if_another_has_the_message_now() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    scene.proxy.next(Call::Update, Fate::LoseReply);
    let release = Settlement::Release;
    is_transient(message.lock.settle(&release, later()).await);
    assert_eq!(scene.mailbox.await_take(60).count, 2);
    let settled = message.lock.settle(&release, later()).await;
    settled.expect("only the release can have let them");
}

#[tokio::test]
async fn a_delete_that_did_not_happen_before_another_took_the_message_is_lost() {
    let scene = Scene::locking("x", 2);
    let message = scene.take().await;
    scene.proxy.next(Call::DeleteMessage, Fate::Swallow);
    is_transient(message.lock.settle(&Settlement::Complete, soon()).await);
    scene.mailbox.await_take(60);
    let said = message.lock.settle(&Settlement::Complete, later()).await;
    assert_eq!(is_lost(said), None);
    assert_eq!(scene.mailbox.count(), 1, "it is theirs");
}

#[tokio::test]
async fn a_delete_in_doubt_whose_message_is_gone_after_the_lock_cannot_be_told() {
    let scene = Scene::locking("x", 2);
    let message = scene.take().await;
    scene.proxy.next(Call::DeleteMessage, Fate::Swallow);
    is_transient(message.lock.settle(&Settlement::Complete, soon()).await);
    // Another worker, after this one's lock.
    scene.mailbox.await_take(60);
    scene.mailbox.clear();
    let why = is_transient(message.lock.settle(&Settlement::Complete, later()).await);
    assert!(why.contains("it is not known whether"), "{why}");
}

/// The request may be late: meanwhile another worker may have taken and deleted the message.
#[tokio::test]
async fn delete_in_doubt_is_not_confirmed_by_an_answer_that_comes_after_the_lock() {
    let scene = Scene::locking("x", 2);
    let message = scene.take().await;
    scene.proxy.next(Call::DeleteMessage, Fate::LoseReply);
    is_transient(message.lock.settle(&Settlement::Complete, later()).await);
    let late = Fate::DelayReply(Duration::from_secs(3));
    scene.proxy.next(Call::DeleteMessage, late);
    let why = is_transient(message.lock.settle(&Settlement::Complete, later()).await);
    assert!(why.contains("it is not known whether"), "{why}");
}

#[tokio::test]
async fn a_settlement_in_doubt_says_nothing_of_another_one() {
    for (first, call, second) in [
        (
            Settlement::Complete,
            Call::DeleteMessage,
            Settlement::Release,
        ),
        (Settlement::Release, Call::Update, Settlement::Complete),
    ] {
        let scene = Scene::with("x");
        let message = scene.take().await;
        scene.proxy.next(call, Fate::LoseReply);
        is_transient(message.lock.settle(&first, later()).await);
        let why = is_transient(message.lock.settle(&second, later()).await);
        assert!(why.contains("it is not known whether"), "{second:?}: {why}");
    }
}

#[tokio::test]
async fn a_refusal_that_an_unanswered_renewal_explains_does_not_confirm_a_settlement() {
    for (settlement, call) in [
        (Settlement::Release, Call::Update),
        (Settlement::Retry(Duration::ZERO), Call::Update),
        (Settlement::Complete, Call::DeleteMessage),
    ] {
        let scene = Scene::with("x");
        let message = scene.take().await;
        // Done: the receipt is invalid, unknown to the worker.
        scene.proxy.next(Call::Update, Fate::LoseReply);
        is_transient(message.lock.renew(later()).await);
        // Refused, but that answer is lost, too.
        scene.proxy.next(call, Fate::LoseReply);
        is_transient(message.lock.settle(&settlement, later()).await);
        let said = message.lock.settle(&settlement, later()).await;
        assert!(said.is_err(), "{settlement:?} was not done");
        assert_eq!(scene.mailbox.count(), 1);
        assert_eq!(scene.mailbox.visible(), []);
    }
}

#[tokio::test]
async fn a_renewal_that_was_answered_ends_the_doubt_about_a_settlement_before_it() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    scene.proxy.next(Call::DeleteMessage, Fate::Swallow);
    is_transient(message.lock.settle(&Settlement::Complete, soon()).await);
    // So it was not deleted, and requests on their way have an invalid receipt.
    message.lock.renew(later()).await.expect("renewed");
    // Deleted by another worker, not completed by this one.
    scene.mailbox.clear();
    let said = message.lock.settle(&Settlement::Complete, later()).await;
    assert_eq!(is_lost(said), None);
}
