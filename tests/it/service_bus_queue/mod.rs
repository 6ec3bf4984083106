//! The Service Bus queue against a stand-in broker in this process, driven as by `work`, with every
//! fault of the broker.

mod access;
mod clocks;
mod holding;
mod memory;
mod network;
mod settling;
mod stopping;
mod taking;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::credentials::Secret;
use service_bus_stand_in::{
    Access, Act, Broker, Counts, Event, Fault, On, Outcome, QueueSettings, Settings, View, Waiting,
    Way,
};
use trafficcop::Instant;
use trafficcop::queue::service_bus::{
    CbsToken, CbsTokens, Config, SasTokens, ServiceBusQueue, Target,
};
use trafficcop::queue::{Message, Missing, Queue, Settlement};
use trafficcop_core::Failure;

type Sent = service_bus_stand_in::Message;

const JOBS: &str = "jobs";
const DEAD: &str = "jobs/$DeadLetterQueue";

/// Generous: a slow machine is no failure.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

fn later(millis: u64) -> Instant {
    Instant::now() + Duration::from_millis(millis)
}

fn patiently() -> Instant {
    Instant::now() + WAIT_LIMIT
}

struct Scene {
    broker: Arc<Broker>,
    queue: ServiceBusQueue,
}

fn settings(lock: u64) -> QueueSettings {
    QueueSettings {
        lock: Duration::from_secs(lock),
        ..QueueSettings::default()
    }
}

fn broker(settings: Settings, queue: QueueSettings) -> Arc<Broker> {
    let broker = Broker::start(settings).expect("a port on loopback");
    broker.create(JOBS, queue);
    Arc::new(broker)
}

fn tokens(access: &Access) -> SasTokens {
    SasTokens::Key {
        name: access.key_name.clone(),
        key: Secret::new(access.key.clone()),
    }
}

fn config(port: u16) -> Config {
    Config {
        target: Target {
            host: "127.0.0.1".into(),
            port,
            tls: None,
            entity: JOBS.into(),
        },
        name: format!("sb://127.0.0.1:{port}/{JOBS}"),
        tokens: Arc::new(tokens(&Access::default())),
        lock_time: None,
        max_body: 1 << 20,
        link_settle: false,
        sessions: false,
    }
}

impl Scene {
    /// Makes a scene with locks of this many seconds.
    fn locking(lock: u64) -> Scene {
        Scene::with(settings(lock), |_| {})
    }

    fn with(queue: QueueSettings, change: impl FnOnce(&mut Config)) -> Scene {
        let broker = broker(Settings::default(), queue);
        let mut config = config(broker.address().port());
        change(&mut config);
        Scene {
            queue: ServiceBusQueue::open(config),
            broker,
        }
    }

    fn put(&self, body: &[u8]) {
        self.broker.put(JOBS, Sent::data(body));
    }

    fn fault(&self, on: On, act: Act) {
        self.broker.fault(Fault::new(on, act));
    }

    async fn take(&self) -> Message {
        one(&self.queue).await
    }

    /// Waits for messages in an empty queue for this long.
    async fn wait_in_vain(&self, most: usize, millis: u64) {
        let there = self.queue.prepare(patiently()).await;
        there.expect("the queue is there");
        let none = self.queue.take(most, later(millis)).await;
        assert!(none.expect("nothing came").is_empty());
    }

    fn counts(&self) -> Counts {
        self.broker.look(|view| view.counts(JOBS))
    }

    fn waiting(&self, address: &'static str) -> Vec<Waiting> {
        self.broker.look(move |view| view.messages(address))
    }

    fn count(&self, what: impl Fn(&Event) -> bool + Send + 'static) -> usize {
        self.broker.look(move |view| count(view, &what))
    }

    async fn until<T: Send + 'static>(
        &self,
        look: impl Fn(View<'_>) -> Option<T> + Clone + Send + 'static,
    ) -> T {
        until(&self.broker, look).await
    }
}

fn count(view: View<'_>, what: &impl Fn(&Event) -> bool) -> usize {
    let all = view.journal().iter();
    all.filter(|entry| what(&entry.event)).count()
}

async fn until<T: Send + 'static>(
    broker: &Broker,
    look: impl Fn(View<'_>) -> Option<T> + Clone + Send + 'static,
) -> T {
    let give_up_at = patiently();
    loop {
        if let Some(seen) = broker.look(look.clone()) {
            return seen;
        }
        assert!(Instant::now() < give_up_at, "it was never seen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn one(queue: &ServiceBusQueue) -> Message {
    let give_up_at = patiently();
    loop {
        match queue.take(1, give_up_at).await {
            Ok(mut messages) => {
                assert!(messages.len() <= 1, "more than was asked for");
                if let Some(message) = messages.pop() {
                    return message;
                }
            }
            Err(failure @ Failure::Transient { .. }) => {
                assert!(Instant::now() < give_up_at, "{failure}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(failure) => panic!("{failure}"),
        }
        assert!(Instant::now() < give_up_at, "no message came");
    }
}

async fn renew(message: &Message) -> Result<(), Failure> {
    message.lock.renew(patiently()).await
}

async fn settle(message: &Message, how: &Settlement) -> Result<(), Failure> {
    message.lock.settle(how, patiently()).await
}

async fn complete(message: &Message) -> Result<(), Failure> {
    settle(message, &Settlement::Complete).await
}

async fn complete_in_the_end(message: &Message) -> Result<(), Failure> {
    let give_up_at = patiently();
    loop {
        match message
            .lock
            .settle(&Settlement::Complete, later(2000))
            .await
        {
            Err(Failure::Transient { .. }) if Instant::now() < give_up_at => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            result => return result,
        }
    }
}

async fn renew_in_the_end(message: &Message) -> Result<(), Failure> {
    let give_up_at = patiently();
    loop {
        match message.lock.renew(later(2000)).await {
            Err(Failure::Transient { .. }) if Instant::now() < give_up_at => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            result => return result,
        }
    }
}

fn body(message: &Message) -> &[u8] {
    message.body.as_deref().expect("a body that can be read")
}

fn abandon() -> Settlement {
    Settlement::Retry(Duration::ZERO)
}

fn dead_letter(reason: &str, detail: &str) -> Settlement {
    Settlement::DeadLetter {
        reason: reason.into(),
        detail: detail.into(),
    }
}

#[track_caller]
fn assert_lost(result: Result<(), Failure>) {
    assert!(matches!(result, Err(Failure::Lost { .. })), "{result:?}");
}

#[track_caller]
fn assert_doubt(result: Result<(), Failure>) -> String {
    match result {
        Err(Failure::Transient { why, .. }) => why,
        other => panic!("{other:?} instead of doubt"),
    }
}

fn settled_by(way: Way) -> impl Fn(&Event) -> bool + Send + Clone + 'static {
    move |event| matches!(event, Event::Settled { way: by, .. } if *by == way)
}
