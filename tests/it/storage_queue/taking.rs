//! Taking a message, and the checks before.

use trafficcop::queue::Missing;

use super::*;
use crate::support::blob::account_sas;
use crate::support::proxy::Mode;

#[tokio::test]
async fn a_message_comes_with_its_attempt_its_times_and_its_body() {
    let scene = Scene::with("{\"id\": 42}");
    scene.queue.prepare(later()).await.expect("prepared");
    let begin = Instant::now();
    let message = scene.take().await;
    assert!(begin <= message.t0 && message.t0 <= Instant::now());
    assert_eq!(message.attempt, 1);
    assert_eq!(message.body.as_deref(), Ok(b"{\"id\": 42}".as_slice()));
    for date in [
        &message.about.enqueued,
        &message.about.locked_until,
        &message.about.expires,
    ] {
        let date = date.as_deref().expect("a date");
        assert!(date.starts_with("20") && date.ends_with('Z'), "{date}");
    }
    assert!(message.about.locked_until > message.about.enqueued);
    assert_eq!(scene.mailbox.visible(), []);
    let again = scene.queue.take(32, later()).await.expect("an answer");
    assert!(again.is_empty(), "none is an answer, too");
    message
        .lock
        .settle(&Settlement::Release, later())
        .await
        .expect("released");
    let second = scene.take().await;
    assert_eq!((second.attempt, &second.id), (2, &message.id));
}

#[tokio::test]
async fn no_more_are_taken_than_asked_for_and_each_has_its_own_lock() {
    let scene = Scene::with("0");
    for number in 1..40 {
        scene.mailbox.put(&number.to_string());
    }
    let few = scene.queue.take(3, later()).await.expect("taken");
    assert_eq!(few.len(), 3);
    let many = scene.queue.take(100, later()).await.expect("taken");
    assert_eq!(many.len(), 32, "no more come with one answer");
    // Azurite gives all messages of one answer the same receipt; they are different messages.
    let settled = many[7].lock.settle(&Settlement::Complete, later()).await;
    settled.expect("completed");
    assert_eq!(scene.mailbox.count(), 39);
    for message in many.iter().filter(|message| message.id != many[7].id) {
        message.lock.renew(later()).await.expect("renewed");
        let settled = message.lock.settle(&Settlement::Complete, later()).await;
        settled.expect("completed");
    }
    assert_eq!(scene.mailbox.count(), 8);
}

#[tokio::test]
async fn bodies_are_handed_over_byte_for_byte() {
    let mailbox = Mailbox::fresh();
    let queue = open(config(&mailbox, queues().port));
    let bytes: Vec<u8> = [0, 0xff].into_iter().cycle().take(48 * 1024).collect();
    let large = "<&> ".repeat(16 * 1024);
    let encoded = azure_core::base64::encode(&bytes);
    let cases: [(String, &[u8]); 8] = [
        (encoded.clone(), encoded.as_bytes()),
        (large.clone(), large.as_bytes()),
        ("aGVsbG8=".into(), b"aGVsbG8="),
        ("<&>\"'\u{20ac} ü".into(), "<&>\"'\u{20ac} ü".as_bytes()),
        ("  indented\n\n".into(), b"  indented\n\n"),
        ("one\r\ntwo\r\n".into(), b"one\r\ntwo\r\n"),
        ("]]>&amp;&#13;".into(), b"]]>&amp;&#13;"),
        ("1500".into(), b"1500"),
    ];
    for (text, body) in cases {
        mailbox.put(&text);
        let message = one(&queue).await;
        let got = message.body.as_deref().expect("readable");
        assert!(
            got == body,
            "{text:.60?}: {:.60?}",
            String::from_utf8_lossy(got)
        );
        let settled = message.lock.settle(&Settlement::Complete, later()).await;
        settled.expect("completed");
    }
}

#[tokio::test]
async fn unusable_body_is_taken_with_its_reason() {
    let scene = Scene::with("{}");
    let queue = open(Config {
        encoding: Some(Encoding::Base64),
        max_body: 4,
        ..config(&scene.mailbox, queues().port)
    });
    let message = one(&queue).await;
    assert_eq!(message.body.expect_err("no base64").reason, "NotBase64");
    scene.mailbox.put("aGVsbG8=");
    let message = one(&queue).await;
    let said = message.body.expect_err("too large");
    assert_eq!(said.reason, "TooLarge");
    assert_eq!(
        said.detail,
        "the body of 5 bytes is larger than the 4 allowed"
    );
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_missing_or_made() {
    let mailbox = Mailbox::named(&format!("nowhere-{}", std::process::id()));
    let queue = open(config(&mailbox, queues().port));
    match queue.prepare(later()).await {
        Err(Missing::NoQueue(said)) => assert_eq!(
            said,
            format!("no such queue {}: create it, or add --create", queue.name())
        ),
        other => panic!("{other:?}"),
    }
    assert!(!mailbox.exists());
    let creating = open(Config {
        create: true,
        ..config(&mailbox, queues().port)
    });
    creating.prepare(later()).await.expect("created");
    assert!(mailbox.exists());
    creating.prepare(later()).await.expect("there");
    queue.prepare(later()).await.expect("there");
}

#[track_caller]
fn failed(said: Result<(), Missing>) -> Result<(), Failure> {
    match said {
        Err(Missing::Failed(failure)) => Err(failure),
        other => panic!("not failed: {other:?}"),
    }
}

#[tokio::test]
async fn a_wrong_key_is_denied_and_not_shown() {
    let mailbox = Mailbox::fresh();
    let key = "d3Jvbmcga2V5";
    let queue = open(Config {
        account: account(queues().port, key),
        ..config(&mailbox, queues().port)
    });
    let said = is_fatal(failed(queue.prepare(later()).await), true);
    assert!(said.contains("replace it"), "{said}");
    assert!(!said.contains(key) && !said.contains('\n'), "{said}");
    is_fatal(queue.take(1, later()).await.map(drop), true);
}

#[tokio::test]
async fn a_sas_is_enough_and_one_without_the_right_to_renew_is_refused_at_once() {
    let mailbox = Mailbox::fresh();
    let with = |permissions: &str| {
        let url = format!(
            "http://127.0.0.1:{}/devstoreaccount1/{}?{}",
            queues().port,
            mailbox.name,
            account_sas('q', permissions)
        );
        let target = Target::parse(&url).expect("a target");
        let account = Account::find_queue(&|_| None, &AuthOptions::default(), target.url())
            .expect("an account");
        open(Config {
            target,
            account,
            ..config(&mailbox, queues().port)
        })
    };
    let queue = with("rpuac");
    assert!(!queue.name().contains("sig"), "{}", queue.name());
    queue.prepare(later()).await.expect("prepared");
    mailbox.put("x");
    let message = one(&queue).await;
    message.lock.renew(later()).await.expect("renewed");
    let settled = message.lock.settle(&dead_letter(), later()).await;
    settled.expect("dead-lettered");
    assert_eq!(mailbox.poison().count(), 1);

    let said = is_fatal(failed(with("rpac").prepare(later()).await), true);
    assert!(said.contains("update a message of"), "{said}");
    assert!(
        said.contains("(here u)") && !said.contains("sig="),
        "{said}"
    );
}

#[tokio::test]
async fn a_service_that_is_out_of_reach_is_doubt() {
    for mode in [
        Mode::Cut,
        Mode::Answer(200, "text/html", "<html><body>log in</body></html>"),
        Mode::Answer(200, "application/xml", "<QueueMessagesList/>"),
        Mode::Answer(503, "text/plain", "busy"),
    ] {
        let proxy = Proxy::alone(mode.clone());
        let queue = open(config(&Mailbox::named("jobs"), proxy.port));
        is_transient(failed(queue.prepare(later()).await));
        is_transient(queue.take(1, later()).await.map(drop));
    }
    let proxy = Proxy::alone(Mode::Freeze);
    let queue = open(config(&Mailbox::named("jobs"), proxy.port));
    let why = is_transient(queue.take(1, soon()).await.map(drop));
    assert!(why.contains("no answer in time"), "{why}");
}

#[tokio::test]
async fn refused_credential_is_told_apart_from_doubt_after_it_has_worked() {
    let scene = Scene::with("x");
    scene
        .proxy
        .next(Call::Take, Fate::Refuse(403, "AuthorizationFailure"));
    is_fatal(scene.queue.take(1, later()).await.map(drop), true);
    scene.take().await;
    scene
        .proxy
        .next(Call::Take, Fate::Refuse(403, "AuthorizationFailure"));
    is_fatal(scene.queue.take(1, later()).await.map(drop), true);
    scene
        .proxy
        .next(Call::Take, Fate::Refuse(400, "InvalidInput"));
    is_transient(scene.queue.take(1, later()).await.map(drop));
}

#[tokio::test]
async fn message_taken_by_an_unanswered_request_comes_back() {
    let scene = Scene::locking("x", 2);
    scene.proxy.next(Call::Take, Fate::LoseReply);
    is_transient(scene.queue.take(1, later()).await.map(drop));
    assert_eq!(scene.mailbox.visible(), []);
    assert_eq!(scene.mailbox.await_take(60).count, 2);
}
