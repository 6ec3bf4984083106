//! A program with its own credentials on an emulated account, without environment variables.

use std::time::Duration;

use trafficcop::{Connection, MessageLock, TrafficCop, Worker};

use crate::support::azurite::{KEY, azurite, connection_string, queue_string, queues};
use crate::support::proxy::{Call, Fate, Proxy};
use crate::support::queue::Mailbox;

const LONG: Duration = Duration::from_secs(60);

fn queue_at(port: u16) -> Connection {
    Worker::builder().connection_string(queue_string(port, KEY))
}

/// Returns the next message, or `None` if none comes for a while.
async fn next(worker: &Worker) -> Option<MessageLock> {
    let waited = tokio::time::timeout(Duration::from_secs(3), worker.next()).await;
    waited.ok().map(|said| said.expect("the queue answers"))
}

#[tokio::test]
async fn program_competes_for_a_blob_by_its_own_connection_string() {
    let name = format!("programs/{}", std::process::id());
    let builder = || {
        let own = TrafficCop::builder().connection_string(connection_string(azurite().port));
        own.blob(&name).expect("a blob")
    };
    let one = builder()
        .identity("one")
        .start()
        .await
        .expect("it competes");
    let guard = one
        .try_acquire(LONG)
        .await
        .expect("no error")
        .expect("it is free");
    let two = builder()
        .identity("two")
        .start()
        .await
        .expect("it competes");
    let none = two
        .try_acquire(Duration::from_secs(2))
        .await
        .expect("no error");
    assert!(none.is_none(), "two have it");
    let first = guard.token();
    drop(guard);
    let guard = two
        .try_acquire(LONG)
        .await
        .expect("no error")
        .expect("it is free");
    assert!(guard.token() > first);
    assert_eq!(two.stop().await, Ok(()));
    assert_eq!(one.stop().await, Ok(()));
}

#[tokio::test]
async fn worker_hands_out_each_message_until_it_is_completed() {
    let mailbox = Mailbox::fresh();
    mailbox.put("a");
    let worker = queue_at(queues().port)
        .queue(&mailbox.name)
        .expect("a queue");
    let worker = worker.start().await.expect("it is there");
    for attempt in [1, 2] {
        let message = next(&worker).await.expect("a message");
        assert_eq!((message.body(), message.attempt()), (&b"a"[..], attempt));
        assert!(message.has_control());
        match attempt {
            1 => message.abandon().await.expect("given back"),
            _ => message.complete().await.expect("completed"),
        }
    }
    assert!(next(&worker).await.is_none());
    assert_eq!(mailbox.count(), 0);
}

#[tokio::test]
async fn exhausted_message_is_dead_lettered_and_not_handed_out() {
    let mailbox = Mailbox::fresh();
    mailbox.put("bad");
    let worker = queue_at(queues().port)
        .queue(&mailbox.name)
        .expect("a queue");
    let worker = worker.max_attempts(1).start().await.expect("it is there");
    let message = next(&worker).await.expect("a message");
    message.retry(Duration::ZERO).await.expect("given back");
    assert!(next(&worker).await.is_none());
    assert_eq!(mailbox.count(), 0);
    assert_eq!(mailbox.poison().visible()[0].text, "bad");
}

#[tokio::test]
async fn errors_of_a_queue_name_no_flag() {
    let proxy = Proxy::before(queues().port);
    let missing = queue_at(proxy.port).queue("there-is-none").expect("a name");
    let said = missing.start().await.expect_err("no queue").to_string();
    assert!(
        said.contains("call create()") && !said.contains("--"),
        "{said}"
    );
    let mailbox = Mailbox::fresh();
    let worker = queue_at(proxy.port).queue(&mailbox.name).expect("a queue");
    let worker = worker.start().await.expect("it is there");
    proxy.next(
        Call::Take,
        Fate::Refuse(403, "KeyBasedAuthenticationNotPermitted"),
    );
    let said = worker.next().await.expect_err("refused").to_string();
    assert!(!said.contains("--"), "{said}");
}
