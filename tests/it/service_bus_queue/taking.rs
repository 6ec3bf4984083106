//! Messages arrive as sent, as many as wanted, and none is lost.

use super::*;
use service_bus_stand_in::Value;
use service_bus_stand_in::codec::encode_value;

#[tokio::test]
async fn a_message_comes_with_every_byte_and_all_that_is_known_of_it() {
    let scene = Scene::locking(30);
    let bytes: Vec<u8> = (0..=255).cycle().take(3000).collect();
    let null = || Value::Null;
    let message = Sent::data(&bytes)
        .with_properties(vec![
            Value::string("id-1"),
            null(),
            null(),
            Value::string("the subject"),
            null(),
            Value::string("corr"),
            Value::symbol("application/json"),
        ])
        .with_application_properties(vec![
            (Value::string("tenant"), Value::string("blue")),
            (Value::string("tries"), Value::Int(-7)),
            (Value::string("SequenceNumber"), Value::string("forged")),
        ]);
    scene.broker.put(JOBS, message);
    scene
        .queue
        .prepare(patiently())
        .await
        .expect("the queue is there");
    let before = Instant::now();
    let message = scene.take().await;
    assert_eq!(message.id, "id-1");
    assert_eq!(message.attempt, 1);
    assert_eq!(body(&message), bytes);
    assert!(message.t0 >= before && message.t0 <= Instant::now());
    let about = &message.about;
    assert_eq!(about.content_type.as_deref(), Some("application/json"));
    assert!(about.enqueued.is_some() && about.locked_until.is_some());
    let known: Vec<(&str, &str)> = about
        .properties
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        known,
        [
            ("CorrelationId", "corr"),
            ("SequenceNumber", "1"),
            ("Subject", "the subject"),
            ("tenant", "blue"),
            ("tries", "-7"),
        ]
    );
    complete(&message).await.expect("completed");
    assert_eq!(scene.counts(), Counts::default());
}

#[tokio::test]
async fn a_message_in_many_pieces_is_whole() {
    let scene = Scene::locking(30);
    let big: Vec<u8> = (0..300 * 1024_u32).map(|at| (at / 7 + at) as u8).collect();
    scene.put(&big);
    scene.put(b"");
    // One body of two data sections.
    let two = [Sent::data(b"one,").encode(), Sent::data(b"two").encode()].concat();
    scene
        .broker
        .put(JOBS, Sent::decode(&two).expect("a message"));
    for expected in [&big[..], b"", b"one,two"] {
        let message = scene.take().await;
        assert!(body(&message) == expected, "{} bytes", body(&message).len());
        complete(&message).await.expect("completed");
    }
}

#[tokio::test]
async fn unsupported_or_oversized_body_is_reported() {
    let scene = Scene::with(settings(30), |config| config.max_body = 1000);
    let mut sequence = Vec::new();
    let list = Value::List(vec![Value::Int(1)]);
    encode_value(&Value::described(0x76, list.clone()), &mut sequence);
    for (sent, expected) in [
        (Sent::value(&Value::string("text")), Ok(&b"text"[..])),
        (
            Sent::value(&Value::Binary(b"\0\xff".to_vec())),
            Ok(b"\0\xff"),
        ),
        (Sent::value(&Value::Null), Ok(b"")),
        (Sent::default(), Ok(b"")),
        (Sent::value(&list), Err("UnsupportedBody")),
        (Sent::value(&Value::Int(3)), Err("UnsupportedBody")),
        (
            Sent::decode(&sequence).expect("a message"),
            Err("UnsupportedBody"),
        ),
        (Sent::data(&[7; 1000]), Ok(&[7; 1000])),
        (Sent::data(&[7; 1001]), Err("TooLarge")),
        (Sent::data(&[7; 300_000]), Err("TooLarge")),
    ] {
        scene.broker.put(JOBS, sent.clone());
        let message = scene.take().await;
        let got = message.body.as_deref().map_err(|why| why.reason);
        assert_eq!(got, expected, "{sent:?}");
        // It can still be settled.
        complete(&message).await.expect("completed");
    }
}

#[tokio::test]
async fn no_more_is_locked_than_is_wanted() {
    let scene = Scene::locking(30);
    for number in 0..20_u8 {
        scene.put(&[number]);
    }
    let mut held = Vec::new();
    for free in [3, 5] {
        let mut left = free;
        while left > 0 {
            let taken = scene.queue.take(left, patiently()).await.expect("taken");
            assert!((1..=left).contains(&taken.len()));
            left -= taken.len();
            held.extend(taken);
        }
        // With this answer, everything still on its way has come.
        renew(&held[0]).await.expect("renewed");
        let counts = scene.counts();
        assert_eq!((counts.locked, counts.ready), (held.len(), 20 - held.len()));
    }
    let order: Vec<u8> = held.iter().map(|message| body(message)[0]).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[tokio::test]
async fn a_take_that_is_dropped_loses_nothing() {
    let scene = Scene::locking(30);
    let mut got = Vec::new();
    let mut dropped = 0;
    for number in 0..60_u8 {
        scene.put(&[number]);
        // Just before or just after the message came.
        let pause = Duration::from_micros(u64::from(number % 7) * 300);
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => dropped += 1,
            taken = scene.queue.take(2, patiently()) => {
                got.extend(taken.expect("taken").iter().map(|message| body(message)[0]));
            }
        }
    }
    assert!(dropped > 0);
    while got.len() < 60 {
        let taken = scene.queue.take(60, patiently()).await.expect("taken");
        got.extend(taken.iter().map(|message| body(message)[0]));
    }
    got.sort_unstable();
    assert_eq!(got, (0..60).collect::<Vec<u8>>());
    assert_eq!(
        scene.count(|event| matches!(event, Event::LockExpired { .. })),
        0
    );
}

#[tokio::test]
async fn a_larger_wish_is_heard_while_the_credit_is_out() {
    let scene = Scene::locking(30);
    scene.wait_in_vain(1, 300).await;
    scene.wait_in_vain(4, 300).await;
    for number in 0..8_u8 {
        scene.put(&[number]);
    }
    let mut held = Vec::new();
    while held.len() < 4 {
        held.extend(
            scene
                .queue
                .take(4 - held.len(), patiently())
                .await
                .expect("taken"),
        );
    }
    renew(&held[0]).await.expect("renewed");
    assert_eq!(scene.counts().locked, 4);
}

#[tokio::test]
async fn less_is_wanted_than_was_before_and_what_came_too_much_goes_back() {
    let scene = Scene::locking(30);
    scene.wait_in_vain(5, 300).await;
    scene.wait_in_vain(1, 1).await;
    for number in 0..5_u8 {
        scene.put(&[number]);
    }
    let message = scene.take().await;
    scene
        .until(|view| (view.counts(JOBS).locked == 1).then_some(()))
        .await;
    complete(&message).await.expect("completed");
    let left = scene.waiting(JOBS);
    assert_eq!(left.len(), 4);
    assert!(left.iter().all(|message| message.failed == 0));
}

fn renewals(scene: &Scene) -> usize {
    scene.count(|event| matches!(event, Event::Renewed { .. }))
}

#[tokio::test]
async fn on_a_busy_queue_a_lock_counts_from_its_credit_and_costs_no_request() {
    let scene = Scene::locking(300);
    for number in 0..5_u8 {
        scene.put(&[number]);
    }
    scene
        .queue
        .prepare(patiently())
        .await
        .expect("the queue is there");
    for _ in 0..5 {
        let before = Instant::now();
        let message = scene.take().await;
        let took = Instant::now().since(before);
        assert!(message.t0 >= before);
        if took < Duration::from_millis(900) {
            assert_eq!(renewals(&scene), 0, "after {took:?}");
        }
        complete(&message).await.expect("completed");
    }
}

#[tokio::test]
async fn after_an_idle_wait_a_lock_is_renewed_before_it_counts() {
    let scene = Scene::locking(30);
    scene.wait_in_vain(1, 1200).await;
    let put = Instant::now();
    scene.put(b"at last");
    let message = scene.take().await;
    assert_eq!(renewals(&scene), 1);
    assert!(
        message.t0 >= put,
        "it counts from a moment when it was not even there"
    );
    complete(&message).await.expect("completed");
}

#[tokio::test]
async fn a_lock_that_is_lost_before_it_counts_is_not_handed_out() {
    let scene = Scene::locking(30);
    scene.wait_in_vain(1, 1200).await;
    scene.fault(On::RenewLock, Act::lock_lost());
    scene.put(b"lost");
    scene
        .until(|view| {
            (count(view, &|event| matches!(event, Event::Faulted { .. })) == 1).then_some(())
        })
        .await;
    scene.put(b"found");
    let message = scene.take().await;
    assert_eq!(body(&message), b"found");
    // A doubtful one goes back at once, its count unchanged.
    complete(&message).await.expect("completed");
    scene.wait_in_vain(1, 1200).await;
    scene.fault(On::RenewLock, Act::server_busy());
    scene.put(b"doubtful");
    let message = scene.take().await;
    assert_eq!((body(&message), message.attempt), (&b"doubtful"[..], 1));
}

#[tokio::test]
async fn dead_letters_and_subscriptions_are_queues_too() {
    let scene = Scene::with(settings(30), |config| config.target.entity = DEAD.into());
    let worker = ServiceBusQueue::open(config(scene.broker.address().port()));
    scene.put(b"poison");
    let message = one(&worker).await;
    let why = dead_letter("CommandRejected", "exit 65");
    settle(&message, &why).await.expect("dead-lettered");
    let letter = scene.take().await;
    assert_eq!(body(&letter), b"poison");
    let known = &letter.about.properties;
    assert_eq!(known["DeadLetterReason"], "CommandRejected");
    assert_eq!(known["DeadLetterErrorDescription"], "exit 65");
    complete(&letter).await.expect("completed");
    assert!(scene.waiting(DEAD).is_empty());

    let subscription = "News/Subscriptions/Mail";
    scene.broker.create(subscription, settings(30));
    let mut config = config(scene.broker.address().port());
    config.target.entity = subscription.into();
    let queue = ServiceBusQueue::open(config);
    scene.broker.put("news", Sent::data(b"new"));
    let message = one(&queue).await;
    assert_eq!(body(&message), b"new");
    renew(&message).await.expect("renewed");
    complete(&message).await.expect("completed");
}
