//! A message's lock: renewed, lost, and in doubt.

use super::*;

#[tokio::test]
async fn renewals_keep_a_message_from_others_far_beyond_its_first_lock() {
    let scene = Scene::locking("x", 2);
    let message = scene.take().await;
    let end = message.t0 + Duration::from_secs(7);
    let mut renewals = 0;
    while Instant::now() < end {
        let t0 = Instant::now();
        message.lock.renew(later()).await.expect("renewed");
        renewals += 1;
        while Instant::now() < t0 + Duration::from_millis(1200) {
            // Only while the lock must hold: a slow machine proves nothing.
            let visible = scene.mailbox.visible();
            if Instant::now() < t0 + Duration::from_secs(2) {
                assert_eq!(visible, []);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(renewals >= 2, "{renewals}");
    // Only the newest receipt settles.
    let settled = message.lock.settle(&Settlement::Complete, later()).await;
    settled.expect("completed");
    assert_eq!(scene.mailbox.count(), 0);
}

#[tokio::test]
async fn each_renewal_replaces_the_receipt() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    for _ in 0..5 {
        message.lock.renew(later()).await.expect("renewed");
    }
    let settled = message.lock.settle(&Settlement::Complete, later()).await;
    settled.expect("completed");
    let receipts = scene.proxy.receipts();
    assert_eq!(receipts.len(), 6);
    let different: std::collections::BTreeSet<_> = receipts.iter().collect();
    assert_eq!(different.len(), 6, "{receipts:?}");
}

#[tokio::test]
async fn a_message_that_another_has_taken_is_lost_without_a_term() {
    let scene = Scene::locking("x", 2);
    let message = scene.take().await;
    let theirs = scene.mailbox.await_take(60);
    assert_eq!((theirs.count, &theirs.id), (2, &message.id));
    assert_eq!(is_lost(message.lock.renew(later()).await), None);
    for settlement in [
        Settlement::Complete,
        Settlement::Retry(Duration::ZERO),
        Settlement::Release,
        dead_letter(),
    ] {
        is_lost(message.lock.settle(&settlement, later()).await);
    }
    assert_eq!(scene.mailbox.count(), 1, "it is theirs");
    assert!(!scene.mailbox.poison().exists());
}

#[tokio::test]
async fn a_message_that_an_operator_deleted_is_lost() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    scene.mailbox.clear();
    assert_eq!(is_lost(message.lock.renew(later()).await), None);
    is_lost(message.lock.settle(&Settlement::Complete, later()).await);
    assert!(!message.lock.is_gone());
}

#[tokio::test]
async fn message_of_a_deleted_queue_is_gone_and_not_lost() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    scene.mailbox.delete();
    for _ in 0..2 {
        message.lock.renew(later()).await.expect("still locked");
    }
    assert!(message.lock.is_gone());
    let settled = message.lock.settle(&Settlement::Complete, later()).await;
    settled.expect("nothing is left to settle");
    is_transient(scene.queue.take(1, later()).await.map(drop));
    assert!(scene.queue.is_deleted());
    scene.mailbox.create();
    assert!(
        scene
            .queue
            .take(1, later())
            .await
            .expect("empty")
            .is_empty()
    );
    assert!(!scene.queue.is_deleted());
}

#[tokio::test]
async fn message_that_expires_between_renewals_is_gone_and_not_lost() {
    for settlement in [
        Settlement::Complete,
        Settlement::Release,
        Settlement::Retry(Duration::from_secs(1)),
        dead_letter(),
    ] {
        let scene = Scene::expiring(4, 2);
        let message = scene.take().await;
        while !message.lock.is_gone() {
            message.lock.renew(later()).await.expect("ours or gone");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let asked = scene.asked(Call::Update);
        message.lock.renew(later()).await.expect("still locked");
        let settled = message.lock.settle(&settlement, later()).await;
        settled.expect("nothing is left to settle");
        assert_eq!(scene.asked(Call::Update), asked);
        let copies = match settlement {
            Settlement::DeadLetter { .. } => scene.mailbox.poison().count(),
            _ => 0,
        };
        assert_eq!(copies, u32::from(settlement == dead_letter()));
    }
}

/// Azure can hide a message beyond its expiry when it is taken, but not later.
#[tokio::test]
async fn message_that_expires_before_its_lock_ends_is_not_renewed() {
    let scene = Scene::expiring(2, 60);
    let message = scene.take().await;
    message.lock.renew(later()).await.expect("still locked");
    assert_eq!(scene.asked(Call::Update), 0);
    assert!(!message.lock.is_gone(), "it can still be given back");
    scene.mailbox.await_none();
    let settled = message.lock.settle(&Settlement::Complete, later()).await;
    settled.expect("nothing is left to settle");
    assert!(message.lock.is_gone());
}

#[tokio::test]
async fn expired_message_that_another_has_taken_before_is_lost() {
    let scene = Scene::expiring(6, 2);
    let message = scene.take().await;
    scene.mailbox.await_take(60);
    scene.mailbox.await_none();
    assert_eq!(is_lost(message.lock.renew(later()).await), None);
    assert!(!message.lock.is_gone());
}

#[tokio::test]
async fn lock_that_would_outlast_its_message_is_refused_in_words_and_costs_no_settlement() {
    let refused = Fate::Refuse(400, "OutOfRangeQueryParameterValue");
    let scene = Scene::expiring(90, 60);
    let message = scene.take().await;
    scene.proxy.keeps_time(80);
    scene.proxy.next(Call::Update, refused.clone());
    let said = is_transient(message.lock.renew(later()).await);
    assert!(
        said.contains("expires") && said.contains("--lock-time"),
        "{said}"
    );
    scene.proxy.next(Call::Update, refused);
    let retry = Settlement::Retry(Duration::from_secs(30));
    let settled = message.lock.settle(&retry, later()).await;
    settled.expect("it comes again when its lock ends");
    assert!(!message.lock.is_gone());
}

#[tokio::test]
async fn expired_lock_of_an_untaken_message_is_renewed() {
    let scene = Scene::locking("x", 2);
    let message = scene.take().await;
    crate::support::await_for(
        "the message to be visible",
        || (!scene.mailbox.visible().is_empty()).then_some(()),
        String::new,
    );
    message.lock.renew(later()).await.expect("renewed");
    assert_eq!(scene.mailbox.take(60), None);
}

#[tokio::test]
async fn answer_to_an_earlier_renewal_or_take_is_doubt() {
    for nameless in [false, true] {
        let scene = Scene::with("x");
        if nameless {
            scene.proxy.strips_request_ids();
        }
        let message = scene.take().await;
        message.lock.renew(later()).await.expect("renewed");
        let renewed = Instant::now();
        // Dates are whole seconds.
        while Instant::now() < renewed + Duration::from_millis(2500) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for call in [Call::Update, Call::Take] {
            scene.proxy.next(call, Fate::Repeat);
        }
        let said = is_transient(message.lock.renew(later()).await);
        assert!(said.contains("an earlier request"), "{said}");
        let said = is_transient(scene.queue.take(1, later()).await.map(drop));
        assert!(said.contains("an earlier request"), "{said}");
        message.lock.renew(later()).await.expect("renewed");
    }
}

#[tokio::test]
async fn a_renewal_that_never_arrived_is_doubt_and_the_next_one_ends_it() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    for fate in [
        Fate::Swallow,
        Fate::Answer(502, "text/html", "<html>"),
        Fate::Refuse(503, "ServerBusy"),
        Fate::Refuse(403, "AuthorizationFailure"),
    ] {
        let limit = if fate == Fate::Swallow {
            soon()
        } else {
            later()
        };
        scene.proxy.next(Call::Update, fate);
        is_transient(message.lock.renew(limit).await);
        message.lock.renew(later()).await.expect("renewed");
    }
    let settled = message.lock.settle(&Settlement::Complete, later()).await;
    settled.expect("completed");
}

#[tokio::test]
async fn a_renewal_whose_answer_was_lost_loses_the_message_but_not_before_its_confirmed_end() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    let begin = Instant::now();
    message.lock.renew(later()).await.expect("renewed");
    let confirmed = Instant::now();
    scene.proxy.next(Call::Update, Fate::LoseReply);
    is_transient(message.lock.renew(later()).await);
    let until = is_lost(message.lock.renew(later()).await).expect("a term");
    let lock = scene.queue.lock_time();
    assert!(
        begin + lock <= until && until <= confirmed + lock,
        "from the last renewal that was answered: {begin:?} {until:?} {confirmed:?}"
    );
    // Repeated, it answers the same without a request.
    let asked = scene.asked(Call::Update);
    assert_eq!(is_lost(message.lock.renew(later()).await), Some(until));
    assert_eq!(scene.asked(Call::Update), asked);
    // Without the receipt it cannot be settled, and no other worker has it.
    is_lost(message.lock.settle(&Settlement::Complete, later()).await);
    assert_eq!(scene.asked(Call::DeleteMessage), 0);
    assert_eq!(scene.mailbox.visible(), []);
}

#[tokio::test]
async fn after_a_renewal_whose_answer_was_lost_nothing_is_settled_by_chance() {
    for settlement in [
        Settlement::Complete,
        Settlement::Release,
        Settlement::Retry(Duration::from_secs(1)),
        dead_letter(),
    ] {
        let scene = Scene::with("x");
        let message = scene.take().await;
        scene.proxy.next(Call::Update, Fate::LoseReply);
        is_transient(message.lock.renew(later()).await);
        let until = is_lost(message.lock.settle(&settlement, later()).await);
        assert!(until.is_some(), "{settlement:?}");
        assert_eq!(scene.mailbox.count(), 1);
        assert_eq!(scene.mailbox.visible(), []);
        assert!(!scene.mailbox.poison().exists(), "{settlement:?}");
    }
}

#[tokio::test]
async fn a_renewal_that_was_given_up_half_way_is_remembered() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    let renewal = message.lock.renew(later());
    scene.give_up_half_way(Call::Update, renewal).await;
    let until = is_lost(message.lock.renew(later()).await);
    assert!(until.is_some(), "no other worker is known to have it");
}

#[tokio::test]
async fn a_renewal_and_a_settlement_at_once_go_one_after_the_other() {
    let scene = Scene::with("x");
    let message = scene.take().await;
    scene
        .proxy
        .next(Call::Update, Fate::DelayReply(Duration::from_millis(400)));
    let complete = Settlement::Complete;
    let (renewed, settled) = tokio::join!(
        message.lock.renew(later()),
        message.lock.settle(&complete, later())
    );
    renewed.expect("renewed");
    settled.expect("completed");
    assert_eq!(scene.mailbox.count(), 0);
}
