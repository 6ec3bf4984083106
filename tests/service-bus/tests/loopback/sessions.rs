//! Acceptance, locks, and returned messages of sessions.

use std::time::Duration;

use service_bus_stand_in::codec::performative::{Attach, Detach, Performative};
use service_bus_stand_in::codec::state::DeliveryState;
use service_bus_stand_in::{Broker, Event, Message, QueueSettings, Settings, Value};

use crate::client::{Client, LIMIT, receiver};

/// Starts a broker with a queue of sessions and these messages, each named by its session and its
/// number.
fn broker(lock: Duration, messages: &[&str]) -> Broker {
    let broker = Broker::start(Settings::default()).expect("a free port");
    broker.create(
        "jobs",
        QueueSettings {
            lock,
            sessions: true,
            ..QueueSettings::default()
        },
    );
    for name in messages {
        let message = Message::data(name.as_bytes());
        broker.put("jobs", message.in_session(&name[..1], name));
    }
    broker
}

const LONG: Duration = Duration::from_secs(60);

/// Receives from this session, or the next; `patience` in milliseconds.
fn of_session(handle: u32, session: Option<&str>, patience: u32) -> Attach {
    let source = Attach::with_session(&Attach::source("jobs"), session.unwrap_or_default());
    let filter = (session.is_none()).then(|| {
        let null = Value::described(0x137_0000_000c, Value::Null);
        Value::Map(vec![(Value::symbol("com.microsoft:session-filter"), null)])
    });
    let source = match (filter, source) {
        (Some(filter), Value::Described(descriptor, fields)) => {
            let mut fields = fields.elements().unwrap_or_default().to_vec();
            fields[7] = filter;
            Value::Described(descriptor, Box::new(Value::List(fields)))
        }
        (_, source) => source,
    };
    let timeout = Value::Uint(patience);
    Attach {
        source,
        properties: Value::Map(vec![(Value::symbol("com.microsoft:timeout"), timeout)]),
        ..receiver(handle, "jobs")
    }
}

/// Returns the session's name, or why there is none.
fn accept(client: &mut Client, attach: Attach) -> Result<String, String> {
    let handle = attach.handle;
    client.send(&Performative::Attach(attach));
    let reply = client.until(|it| match it {
        Performative::Attach(reply) if reply.handle == handle => Some(reply.clone()),
        _ => None,
    });
    if reply.source == Value::Null {
        return Err(client.detached(handle));
    }
    let until = reply.properties.get("com.microsoft:locked-until-utc");
    assert!(matches!(until, Some(Value::Long(ticks)) if *ticks > 0));
    let given = Attach::filter(&reply.source).and_then(|it| it.get("com.microsoft:session-filter"));
    Ok(given.and_then(Value::text).expect("its name").to_owned())
}

fn body(client: &mut Client) -> (u32, String, u64) {
    let delivery = client.message();
    let count = delivery.message.delivery_count().expect("a count");
    let body = String::from_utf8(delivery.message.body()).expect("text");
    (delivery.id, body, count)
}

#[test]
fn each_receiver_gets_the_session_that_waited_longest_and_its_messages_alone() {
    let broker = broker(LONG, &["b1", "a1", "b2", "a2"]);
    let (mut one, mut other) = (Client::new(&broker), Client::new(&broker));
    assert_eq!(
        accept(&mut one, of_session(1, None, 1000)).as_deref(),
        Ok("b")
    );
    assert_eq!(
        accept(&mut other, of_session(1, None, 1000)).as_deref(),
        Ok("a")
    );
    for (client, names) in [(&mut one, ["b1", "b2"]), (&mut other, ["a1", "a2"])] {
        for (count, name) in names.into_iter().enumerate() {
            client.credit(1, count as u32, 1, false);
            let (id, body, _) = body(client);
            assert_eq!(body, name);
            client.settle(id, DeliveryState::Accepted);
        }
    }
    assert_eq!(broker.look(|view| view.counts("jobs").ready), 0);
}

#[test]
fn locked_session_is_refused_by_name_and_waited_for() {
    let broker = broker(LONG, &["a1"]);
    let (mut one, mut other) = (Client::new(&broker), Client::new(&broker));
    assert_eq!(
        accept(&mut one, of_session(1, Some("a"), 1000)).as_deref(),
        Ok("a")
    );
    let refused = accept(&mut other, of_session(1, Some("a"), 1000));
    assert_eq!(
        refused,
        Err("com.microsoft:session-cannot-be-locked".into())
    );
    let none = accept(&mut other, of_session(2, None, 100));
    assert_eq!(none, Err("com.microsoft:timeout".into()));
    other.send(&Performative::Attach(of_session(3, None, 60_000)));
    one.credit(1, 0, 1, false);
    assert_eq!(body(&mut one).1, "a1");
    one.send(&Performative::Detach(Detach {
        handle: 1,
        closed: true,
        error: None,
    }));
    other.until(|it| matches!(it, Performative::Attach(it) if it.handle == 3).then_some(()));
    other.credit(3, 0, 1, false);
    let (_, name, count) = body(&mut other);
    assert_eq!(
        (name.as_str(), count),
        ("a1", 0),
        "a link that ends is no attempt"
    );
}

#[test]
fn a_connection_that_is_cut_frees_its_sessions_at_once() {
    let broker = broker(LONG, &["a1"]);
    let mut one = Client::new(&broker);
    assert_eq!(
        accept(&mut one, of_session(1, None, 1000)).as_deref(),
        Ok("a")
    );
    drop(one);
    let freed = broker.wait(LIMIT, |view| (!view.is_held("jobs", "a")).then_some(()));
    assert!(freed.is_some());
}

#[test]
fn a_lock_whose_time_is_over_counts_and_detaches_and_one_that_is_renewed_lasts() {
    let broker = broker(Duration::from_millis(600), &["a1"]);
    let mut client = Client::new(&broker);
    client.management("jobs");
    assert_eq!(
        accept(&mut client, of_session(1, None, 1000)).as_deref(),
        Ok("a")
    );
    client.credit(1, 0, 1, false);
    assert_eq!(body(&mut client).1, "a1");
    let ask = Value::string_map([("session-id", Value::string("a"))]);
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(200));
        client.ask("renew", "com.microsoft:renew-session-lock", &ask, "link-1");
        assert_eq!(client.answer().1, 200);
    }
    assert_eq!(client.detached(1), "com.microsoft:session-lock-lost");
    client.ask("late", "com.microsoft:renew-session-lock", &ask, "link-1");
    assert_eq!(client.answer().1, 410);
    client.ask("state", "com.microsoft:get-session-state", &ask, "link-1");
    assert_eq!(client.answer().1, 410);
    let failed = broker.look(|view| view.messages("jobs")[0].failed);
    assert_eq!(failed, 1);
    let over = |event: &Event| matches!(event, Event::SessionFreed { over: true, .. });
    assert!(broker.look(move |view| view.journal().iter().any(|entry| over(&entry.event))));
}
