//! The broker as a client sees it, over loopback. The client, [`client`], shares the broker's
//! codec; the codec's table and Microsoft's clients (`clients/run.sh`) show that that is right.

mod client;
mod faults;
mod locks;
mod protocol;
mod sessions;

use service_bus_stand_in::{Broker, Message, QueueSettings, Settings};

/// Fills a queue `jobs` with this many messages: `0`, `1`, …
fn broker(messages: usize) -> Broker {
    broker_with(Settings::default(), QueueSettings::default(), messages)
}

fn broker_with(settings: Settings, queue: QueueSettings, messages: usize) -> Broker {
    let broker = Broker::start(settings).expect("a free port");
    broker.create("jobs", queue);
    for number in 0..messages {
        broker.put("jobs", Message::data(number.to_string().as_bytes()));
    }
    broker
}
