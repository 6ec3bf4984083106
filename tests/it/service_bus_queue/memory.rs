//! Memory stays constant, however many messages pass.

use super::*;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("our own memory");
    let pages = status.split(' ').nth(1).expect("resident pages");
    pages.parse::<u64>().expect("a number") * 4
}

/// Takes and completes messages, eight at a time; the broker keeps no record.
async fn pass(scene: &Scene, messages: usize) {
    for round in 0..messages / 8 {
        for number in 0..8_u8 {
            scene.put(&[number; 100]);
        }
        let mut held = Vec::new();
        while held.len() < 8 {
            let taken = scene.queue.take(8 - held.len(), patiently()).await;
            held.extend(taken.expect("taken"));
        }
        for result in futures::future::join_all(held.iter().map(complete)).await {
            result.expect("completed");
        }
        if round % 50 == 0 {
            scene.broker.forget();
        }
    }
    scene.broker.forget();
}

/// Run by hand: `cargo test --release --test it -- --ignored --nocapture
/// service_bus_queue::memory`.
#[tokio::test]
#[ignore = "a measurement of a minute, alone"]
async fn memory_stays_as_it_is_over_twenty_thousand_messages() {
    let scene = Scene::locking(300);
    pass(&scene, 2000).await;
    let (before, began) = (resident(), Instant::now());
    for thousand in 1..=20 {
        pass(&scene, 1000).await;
        println!("{} messages: {} KiB", thousand * 1000, resident());
    }
    let rate = 20_000.0 / Instant::now().since(began).as_secs_f64();
    println!("{rate:.0} messages/s");
    let more = resident().saturating_sub(before);
    // The library's map alone would have grown by 5 MB.
    assert!(more < 1024, "{more} KiB more");
}
