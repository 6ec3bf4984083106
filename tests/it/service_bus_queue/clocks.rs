//! A wrong wall clock loses no lock, and is never a deadline.

use super::*;

/// Makes a queue whose broker's clock is ahead by this much, and takes its one message.
async fn skewed(lock: u64, millis: i64, lock_time: Option<u64>) -> (Scene, Message) {
    let scene = Scene::with(settings(lock), |config| {
        config.lock_time = lock_time.map(Duration::from_secs);
    });
    scene.broker.skew(millis);
    scene.put(b"m");
    let message = scene.take().await;
    (scene, message)
}

#[tokio::test]
async fn a_length_is_believed_if_a_queue_can_have_it() {
    for (lock, skew, told, least, most) in [
        (30, 0, None, 25, 30),
        (30, 10_000, None, 35, 40),
        (30, -10_000, None, 15, 20),
        (30, 3_600_000, None, 5, 5),
        (30, -3_600_000, None, 5, 5),
        (30, 3_600_000, Some(30), 30, 30),
        (30, 0, Some(12), 12, 12),
        (5, 0, None, 4, 5),
        (300, 0, None, 295, 300),
        (300, 10_000, None, 5, 5),
    ] {
        let (_scene, message) = skewed(lock, skew, told).await;
        let believed = message.lock_time;
        assert!(
            believed >= Duration::from_secs(least) && believed <= Duration::from_secs(most),
            "{believed:?} of {lock} s, {skew} ms ahead"
        );
        assert_eq!(message.first_renewal, Some(Duration::from_secs(20)));
        assert!(message.t0 <= Instant::now());
    }
}

/// Renews as the driver does, at 70 % of the believed length and within 20 s.
async fn keep(message: &Message, until: Instant) {
    let every = message.lock_time.mul_f64(0.7);
    let every = every.min(message.first_renewal.expect("a limit"));
    let mut t0 = message.t0;
    while Instant::now() < until {
        let next = t0 + every;
        tokio::time::sleep(next.min(until).since(Instant::now())).await;
        t0 = Instant::now();
        renew(message).await.expect("renewed in time");
    }
}

#[tokio::test]
async fn a_lock_of_thirty_seconds_is_kept_whatever_the_clock_says() {
    let mut held = Vec::new();
    for skew in [0, 10_000, -10_000, 3_600_000, -3_600_000] {
        held.push(skewed(30, skew, None).await);
    }
    let until = later(32_000);
    futures::future::join_all(held.iter().map(|(_, message)| keep(message, until))).await;
    for (scene, message) in &held {
        complete(message).await.expect("completed");
        assert_eq!(
            scene.count(|event| matches!(event, Event::LockExpired { .. })),
            0
        );
    }
}
