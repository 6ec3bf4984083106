//! The storage queue against a real (emulated) service, driven as by `work`, with a network that
//! fails on command.

mod aside;
mod holding;
mod settling;
mod taking;

use std::time::Duration;

use trafficcop::Instant;
use trafficcop::queue::storage::{Config, Encoding, StorageQueue, Target};
use trafficcop::queue::{Message, Queue, Settlement};
use trafficcop::{Account, AuthOptions};
use trafficcop_core::Failure;

use crate::support::azurite::{KEY, queue_string, queues};
use crate::support::proxy::{Call, Fate, Proxy};
use crate::support::queue::Mailbox;

fn account(port: u16, key: &str) -> Account {
    let string = queue_string(port, key);
    let get = |name: &str| (name == "AZURE_STORAGE_CONNECTION_STRING").then(|| string.clone());
    Account::find_queue(&get, &AuthOptions::default(), None).expect("an account")
}

fn config(mailbox: &Mailbox, port: u16) -> Config {
    Config {
        target: Target::parse(&mailbox.name).expect("a target"),
        account: account(port, KEY),
        lock_time: Duration::from_secs(60),
        encoding: None,
        max_body: 1 << 20,
        poison: None,
        create: false,
    }
}

fn open(config: Config) -> StorageQueue {
    StorageQueue::open(config).expect("a queue")
}

struct Scene {
    mailbox: Mailbox,
    proxy: Proxy,
    queue: StorageQueue,
}

impl Scene {
    fn with(text: &str) -> Scene {
        Scene::locking(text, 60)
    }

    fn locking(text: &str, seconds: u64) -> Scene {
        let mailbox = Mailbox::fresh();
        mailbox.put(text);
        Scene::on(mailbox, seconds)
    }

    /// Makes a scene whose message expires after `life` seconds, with locks of `seconds`.
    fn expiring(life: u32, seconds: u64) -> Scene {
        let mailbox = Mailbox::fresh();
        mailbox.put_for(life, "x");
        Scene::on(mailbox, seconds)
    }

    fn on(mailbox: Mailbox, seconds: u64) -> Scene {
        let proxy = Proxy::before(queues().port);
        let queue = open(Config {
            lock_time: Duration::from_secs(seconds),
            ..config(&mailbox, proxy.port)
        });
        Scene {
            mailbox,
            proxy,
            queue,
        }
    }

    async fn take(&self) -> Message {
        one(&self.queue).await
    }

    /// Drops a call once it is carried out, before its answer.
    async fn give_up_half_way(&self, call: Call, work: impl Future<Output = Result<(), Failure>>) {
        let late = Fate::DelayReply(Duration::from_secs(4));
        self.proxy.next(call, late);
        let carried_out = async {
            let done = || {
                let log = self.proxy.log();
                log.iter()
                    .any(|seen| seen.call == call && seen.status.is_some())
            };
            while !done() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            said = work => panic!("it was answered: {said:?}"),
            () = carried_out => {}
        }
    }

    fn asked(&self, call: Call) -> usize {
        let log = self.proxy.log();
        log.iter().filter(|seen| seen.call == call).count()
    }
}

async fn one(queue: &StorageQueue) -> Message {
    let mut messages = queue.take(1, later()).await.expect("taken");
    assert_eq!(messages.len(), 1);
    messages.remove(0)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(1500)
}

fn dead_letter() -> Settlement {
    Settlement::DeadLetter {
        reason: "CommandFailed".into(),
        detail: "exit 3".into(),
    }
}

#[track_caller]
fn is_transient<T: std::fmt::Debug>(said: Result<T, Failure>) -> String {
    match said {
        Err(Failure::Transient { why, .. }) => why,
        other => panic!("not in doubt: {other:?}"),
    }
}

/// Returns until when no other worker can have the message.
#[track_caller]
fn is_lost<T: std::fmt::Debug>(said: Result<T, Failure>) -> Option<Instant> {
    match said {
        Err(Failure::Lost { until, .. }) => until,
        other => panic!("not lost: {other:?}"),
    }
}

#[track_caller]
fn is_fatal<T: std::fmt::Debug>(said: Result<T, Failure>, is_denied: bool) -> String {
    match said {
        Err(Failure::Fatal { why, denied }) if denied == is_denied => why,
        other => panic!("not fatal (denied: {is_denied}): {other:?}"),
    }
}
