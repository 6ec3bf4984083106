//! `trafficcop work --service-bus` against a stand-in broker in this process, with real commands.

mod at_most_once;
mod exclusive;
mod failing;
mod keeping;
mod peer;
mod refused;
mod secrets;
mod sessions;
mod settling;
mod stopping;
mod tls;

use std::time::Duration;

use service_bus_stand_in::{
    Broker, Counts, Event, Message, QueueSettings, Settings, View, Waiting,
};

use crate::support::WAIT_LIMIT;
use crate::support::instance::{Finished, Instance, Run, assert_ended};
use crate::support::scene::Scene;
use crate::support::stopping::stopped_by;

const STRING: &str = "AZURE_SERVICEBUS_CONNECTION_STRING";
const JOBS: &str = "jobs";
const DEAD: &str = "jobs/$DeadLetterQueue";
const SHORT: Duration = Duration::from_secs(5);

struct Stage {
    broker: Broker,
    scene: Scene,
}

impl Stage {
    fn with(lock: Duration) -> Stage {
        Stage::of(
            Settings::default(),
            QueueSettings {
                lock,
                ..QueueSettings::default()
            },
        )
    }

    fn of(settings: Settings, queue: QueueSettings) -> Stage {
        let broker = Broker::start(settings).expect("a broker");
        broker.create(JOBS, queue);
        Stage {
            broker,
            scene: Scene::new(),
        }
    }

    /// Makes a stage with one message of this text and long locks.
    fn one(text: &str) -> Stage {
        let stage = Stage::with(Duration::from_secs(60));
        stage.put(text);
        stage
    }

    /// Makes a stage with one message of this text and the shortest locks.
    fn brief(text: &str) -> Stage {
        let stage = Stage::with(SHORT);
        stage.put(text);
        stage
    }

    fn put(&self, text: &str) {
        self.broker.put(JOBS, Message::data(text.as_bytes()));
    }

    fn worker(&self) -> Run<'_> {
        self.worker_on(JOBS)
    }

    fn worker_on(&self, queue: &str) -> Run<'_> {
        self.scene
            .verb("work")
            .args(["--service-bus", queue])
            .env(STRING, self.broker.connection_string())
    }

    fn once(&self, more: &[&str], script: &str) -> Finished {
        self.worker()
            .arg("--once")
            .args(more)
            .shell(script)
            .finish()
    }

    fn counts(&self, address: &'static str) -> Counts {
        self.broker.look(move |view| view.counts(address))
    }

    fn messages(&self, address: &'static str) -> Vec<Waiting> {
        self.broker.look(move |view| view.messages(address))
    }

    #[track_caller]
    fn wait<T: Send + 'static>(
        &self,
        what: &str,
        look: impl FnMut(View<'_>) -> Option<T> + Send + 'static,
    ) -> T {
        let seen = self.broker.wait(WAIT_LIMIT, look);
        seen.unwrap_or_else(|| panic!("waited in vain for {what}: {:?}", self.events()))
    }

    fn events(&self) -> Vec<Event> {
        self.broker.look(|view| {
            view.journal()
                .iter()
                .map(|entry| entry.event.clone())
                .collect()
        })
    }

    fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.events().iter().filter(|event| is(event)).count()
    }

    fn expired(&self) -> usize {
        self.count(|event| matches!(event, Event::LockExpired { .. }))
    }

    /// Counts settled messages, whatever their outcome.
    fn settled(&self) -> usize {
        self.count(|event| matches!(event, Event::Settled { .. }))
    }

    /// Waits for this many renewals; returns how many there were.
    fn await_renewals(&self, times: usize) -> usize {
        self.wait("renewals", move |view| {
            let journal = view.journal().iter();
            let renewed = journal.filter(|entry| matches!(entry.event, Event::Renewed { .. }));
            let count = renewed.count();
            (count >= times).then_some(count)
        })
    }

    /// Starts a worker with one message, whose command runs until it is killed.
    fn deaf(&self) -> Instance {
        let script = "trap '' TERM; echo runs >&2; while :; do sleep 1; done";
        let running = self.worker().arg("--once").shell(script).start();
        running.await_log("runs");
        running
    }

    /// Checks the queue: this many available messages, none locked, and this many dead letters.
    #[track_caller]
    fn assert_holds(&self, ready: usize, dead: usize) {
        let counts = self.counts(JOBS);
        assert_eq!(
            (counts.ready, counts.locked, self.counts(DEAD).ready),
            (ready, 0, dead),
            "{:?}",
            self.events()
        );
    }
}
