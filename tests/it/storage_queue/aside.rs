//! Dead-lettering: the copy first, then the delete.

use super::*;

#[tokio::test]
async fn dead_letter_is_kept_verbatim_and_for_ever() {
    let bytes: Vec<u8> = [0, 0xff].into_iter().cycle().take(48 * 1024).collect();
    for text in [
        azure_core::base64::encode(&bytes),
        "<&>\"'\u{20ac} ü ]]>&amp;".to_owned(),
        " one\r\ntwo\n".to_owned(),
        "aGVsbG8=".to_owned(),
    ] {
        let scene = Scene::with(&text);
        let message = scene.take().await;
        let settled = message.lock.settle(&dead_letter(), later()).await;
        settled.expect("dead-lettered");
        assert_eq!(scene.mailbox.count(), 0);
        let letters = scene.mailbox.poison().visible();
        assert_eq!(letters.len(), 1);
        assert!(letters[0].text == text, "{:.80?}", letters[0].text);
        assert!(
            letters[0].expires.contains("9999"),
            "{}",
            letters[0].expires
        );
        let settled = message.lock.settle(&dead_letter(), later()).await;
        settled.expect("settled already");
        assert_eq!(scene.mailbox.poison().count(), 1);
    }
}

#[tokio::test]
async fn the_poison_queue_can_have_a_name_of_its_own() {
    let mailbox = Mailbox::fresh();
    mailbox.put("x");
    let aside = Mailbox::named(&format!("aside-{}", mailbox.name));
    let queue = open(Config {
        poison: Some(aside.name.clone()),
        ..config(&mailbox, queues().port)
    });
    assert!(queue.poison_name().ends_with(&aside.name));
    let message = one(&queue).await;
    let settled = message.lock.settle(&dead_letter(), later()).await;
    settled.expect("dead-lettered");
    assert_eq!((mailbox.count(), aside.count()), (0, 1));
    assert!(!mailbox.poison().exists());
}

#[tokio::test]
async fn message_that_may_not_be_dead_lettered_stays_in_its_queue() {
    let refused = Fate::Refuse(403, "AuthorizationPermissionMismatch");
    for call in [Call::Put, Call::Create] {
        let scene = Scene::with("x");
        if call == Call::Put {
            scene.mailbox.poison().create();
        }
        let message = scene.take().await;
        scene.proxy.next(call, refused.clone());
        let said = is_fatal(message.lock.settle(&dead_letter(), later()).await, true);
        let poison = scene.mailbox.poison().name;
        assert!(
            said.contains(&poison) && said.contains("permissions"),
            "{said}"
        );
        assert_eq!(scene.asked(Call::DeleteMessage), 0);
        assert_eq!(scene.mailbox.count(), 1);
        // It still has its lock, and can be released.
        let settled = message.lock.settle(&Settlement::Release, later()).await;
        settled.expect("released");
        assert_eq!(scene.mailbox.visible().len(), 1);
    }
}

#[tokio::test]
async fn a_copy_that_is_known_to_be_there_is_not_put_again() {
    for fate in [
        Fate::LoseReply,
        Fate::Refuse(503, "ServerBusy"),
        Fate::Answer(502, "text/html", "<html>"),
    ] {
        let scene = Scene::with("x");
        let message = scene.take().await;
        scene.proxy.next(Call::DeleteMessage, fate.clone());
        is_transient(message.lock.settle(&dead_letter(), later()).await);
        let settled = message.lock.settle(&dead_letter(), later()).await;
        settled.expect("dead-lettered");
        assert_eq!(scene.mailbox.count(), 0, "{fate:?}");
        assert_eq!(scene.mailbox.poison().count(), 1, "{fate:?}");
    }
}

#[tokio::test]
async fn a_copy_in_doubt_is_put_again_rather_than_lost() {
    let scene = Scene::with("x");
    scene.mailbox.poison().create();
    let message = scene.take().await;
    scene.proxy.next(Call::Put, Fate::LoseReply);
    is_transient(message.lock.settle(&dead_letter(), later()).await);
    assert_eq!(scene.asked(Call::DeleteMessage), 0);
    assert_eq!(scene.mailbox.count(), 1);
    let settled = message.lock.settle(&dead_letter(), later()).await;
    settled.expect("dead-lettered");
    assert_eq!(scene.mailbox.count(), 0);
    assert_eq!(scene.mailbox.poison().count(), 2);
}

#[tokio::test]
async fn message_that_another_may_have_is_not_copied() {
    let scene = Scene::locking("x", 2);
    scene.mailbox.poison().create();
    let message = scene.take().await;
    scene.mailbox.await_take(60);
    assert_eq!(
        is_lost(message.lock.settle(&dead_letter(), later()).await),
        None
    );
    assert_eq!(scene.asked(Call::Put), 0);
    assert_eq!(scene.mailbox.poison().count(), 0);
}
