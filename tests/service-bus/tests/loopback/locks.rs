//! Locks, counts, outcomes.

use std::time::Duration;

use service_bus_stand_in::codec::state::{AmqpError, DeliveryState};
use service_bus_stand_in::{
    Counts, Event, Guid, LOCK_LOST, MessageState, Outcome, QueueSettings, Settings, Value, Way,
};

use crate::client::{Client, LIMIT, receiver};
use crate::{broker, broker_with};

const fn counts(ready: usize, locked: usize, deferred: usize) -> Counts {
    Counts {
        ready,
        locked,
        deferred,
    }
}

fn short() -> QueueSettings {
    QueueSettings {
        lock: Duration::from_millis(200),
        ..QueueSettings::default()
    }
}

fn modified(undeliverable_here: bool) -> DeliveryState {
    DeliveryState::Modified {
        delivery_failed: true,
        undeliverable_here,
        annotations: Value::Null,
    }
}

#[test]
fn each_outcome_does_what_it_says_and_is_echoed() {
    let dead_letter = DeliveryState::Rejected(Some(AmqpError {
        condition: "com.microsoft:dead-letter".into(),
        description: None,
        info: Value::string_map([
            ("DeadLetterReason", Value::string("Rejected")),
            ("DeadLetterErrorDescription", Value::string("exit 65")),
        ]),
    }));
    for (state, echo, left, failed) in [
        (DeliveryState::Accepted, None, counts(0, 0, 0), None),
        (DeliveryState::Released, None, counts(1, 0, 0), Some(0)),
        (modified(false), None, counts(1, 0, 0), Some(1)),
        (modified(true), None, counts(0, 0, 1), Some(1)),
        (
            dead_letter,
            Some(DeliveryState::Rejected(None)),
            counts(0, 0, 0),
            None,
        ),
    ] {
        let broker = broker(1);
        let mut client = Client::new(&broker);
        assert_eq!(client.receiver(0, "jobs"), None);
        client.credit(0, 0, 1, false);
        let delivery = client.message();
        assert_eq!(delivery.message.delivery_count(), Some(0));
        assert_eq!(broker.look(|view| view.counts("jobs")), counts(0, 1, 0));
        let expected = echo.unwrap_or_else(|| state.clone());
        assert_eq!(client.settle(delivery.id, state.clone()), expected);
        assert_eq!(broker.look(|view| view.counts("jobs")), left, "{state:?}");
        let waiting = broker.look(|view| view.messages("jobs"));
        assert_eq!(waiting.first().map(|it| it.failed), failed, "{state:?}");
        let dead = broker.look(|view| view.messages("jobs/$DeadLetterQueue"));
        let reasons: Vec<_> = dead.iter().map(|it| it.dead_letter()).collect();
        match state {
            DeliveryState::Rejected(_) => {
                assert_eq!(reasons, [(Some("Rejected".into()), Some("exit 65".into()))]);
            }
            _ => assert_eq!(reasons, []),
        }
    }
}

#[test]
fn a_lock_that_ends_gives_the_message_back_and_refuses_what_comes_later() {
    let broker = broker_with(Settings::default(), short(), 1);
    let mut client = Client::new(&broker);
    client.receiver(0, "jobs");
    client.credit(0, 0, 1, false);
    let first = client.message();
    let expired = broker.wait(LIMIT, |view| (view.counts("jobs").ready == 1).then_some(()));
    assert!(expired.is_some());
    match client.settle(first.id, DeliveryState::Accepted) {
        DeliveryState::Rejected(Some(error)) => assert_eq!(error.condition, LOCK_LOST),
        other => panic!("{other:?}"),
    }
    client.credit(0, 1, 1, false);
    let again = client.message();
    assert_eq!(again.message.delivery_count(), Some(1));
    assert_ne!(again.token, first.token);
}

#[test]
fn a_renewed_lock_outlives_its_first_time_and_says_until_when() {
    let queue = QueueSettings {
        lock: Duration::from_secs(60),
        ..QueueSettings::default()
    };
    let broker = broker_with(Settings::default(), queue, 1);
    let mut client = Client::new(&broker);
    client.receiver(0, "jobs");
    client.management("jobs");
    client.credit(0, 0, 1, false);
    let delivery = client.message();
    let until = |broker: &service_bus_stand_in::Broker| {
        let state = broker.look(|view| view.messages("jobs")[0].state);
        match state {
            MessageState::Locked { until, .. } => until,
            other => panic!("{other:?}"),
        }
    };
    let (before, told) = (
        until(&broker),
        told(delivery.message.annotation("x-opt-locked-until")),
    );
    broker.skew(3_600_000);
    client.renew("r", delivery.token);
    let (to, status, body) = client.answer();
    assert_eq!((to.as_deref(), status), (Some("r"), 200));
    assert!(until(&broker) > before);
    let renewed = told_of(&body);
    assert!(
        renewed - told >= 3_600_000,
        "the skew is in what is told only"
    );
    // The byte order of a delivery tag is not that of a uuid.
    client.renew("s", Guid(delivery.token.to_dotnet()));
    assert_eq!(client.answer().1, 410);
}

fn told(value: Option<&Value>) -> i64 {
    value.and_then(Value::signed).expect("a time")
}

fn told_of(body: &Value) -> i64 {
    let all = body.get("expirations").and_then(Value::elements);
    told(all.and_then(<[Value]>::first))
}

#[test]
fn a_lock_is_settled_by_its_token_from_another_connection() {
    let broker = broker(2);
    let tokens: Vec<Guid> = {
        let mut client = Client::new(&broker);
        client.receiver(0, "jobs");
        client.credit(0, 0, 2, false);
        (0..2).map(|_| client.message().token).collect()
    };
    broker.cut();
    assert_eq!(broker.look(|view| view.counts("jobs")), counts(0, 2, 0));
    let mut client = Client::new(&broker);
    client.management("jobs");
    let settle = |tokens: Vec<Guid>, status: &str| {
        Value::string_map([
            ("disposition-status", Value::string(status)),
            (
                "lock-tokens",
                Value::Array(tokens.into_iter().map(Value::Uuid).collect()),
            ),
            ("deadletter-reason", Value::string("why")),
        ])
    };
    let operation = "com.microsoft:update-disposition";
    client.ask(
        "1",
        operation,
        &settle(vec![tokens[0], Guid::new()], "completed"),
        "",
    );
    assert_eq!(client.answer().1, 410, "one of two is not locked");
    assert_eq!(
        broker.look(|view| view.counts("jobs")),
        counts(0, 2, 0),
        "so none is settled"
    );
    client.ask("2", operation, &settle(vec![tokens[0]], "completed"), "");
    assert_eq!(client.answer().1, 200);
    client.ask("3", operation, &settle(vec![tokens[0]], "completed"), "");
    assert_eq!(client.answer().1, 410);
    client.ask("4", operation, &settle(vec![tokens[1]], "suspended"), "");
    assert_eq!(client.answer().1, 200);
    client.ask("5", operation, &settle(vec![tokens[1]], "whatever"), "");
    assert_eq!(client.answer().1, 400);
    assert_eq!(broker.look(|view| view.counts("jobs")), counts(0, 0, 0));
    let dead = broker.look(|view| view.messages("jobs/$DeadLetterQueue"));
    assert_eq!(dead[0].dead_letter().0.as_deref(), Some("why"));
    let settled = broker.look(|view| {
        let all = view.journal().iter();
        all.filter(|it| {
            matches!(
                it.event,
                Event::Settled {
                    way: Way::Management,
                    ..
                }
            )
        })
        .count()
    });
    assert_eq!(settled, 2);
}

#[test]
fn the_last_failed_delivery_makes_a_dead_letter() {
    let queue = QueueSettings {
        max_delivery_count: 2,
        ..QueueSettings::default()
    };
    let broker = broker_with(Settings::default(), queue, 1);
    let mut client = Client::new(&broker);
    client.receiver(0, "jobs");
    client.credit(0, 0, 2, false);
    for failed in 0..2 {
        let delivery = client.message();
        assert_eq!(delivery.message.delivery_count(), Some(failed));
        client.settle(delivery.id, modified(false));
    }
    assert_eq!(broker.look(|view| view.counts("jobs")), counts(0, 0, 0));
    client.receiver(1, "jobs/$DeadLetterQueue");
    client.credit(1, 0, 1, false);
    let dead = client.message();
    let marks = dead.message.application_properties();
    let reason = marks.get("DeadLetterReason").and_then(Value::text);
    assert_eq!(reason, Some("MaxDeliveryCountExceeded"));
    // A dead letter has no other dead-letter queue.
    client.settle(dead.id, modified(false));
    client.credit(1, 1, 1, false);
    assert_eq!(client.message().message.body(), b"0");
}

#[test]
fn received_and_deleted_message_is_removed() {
    let broker = broker(1);
    let mut client = Client::new(&broker);
    client.attach(service_bus_stand_in::codec::performative::Attach {
        snd_settle_mode: 1,
        rcv_settle_mode: 0,
        ..receiver(0, "jobs")
    });
    client.credit(0, 0, 5, false);
    assert!(client.message().settled);
    assert_eq!(broker.look(|view| view.counts("jobs")), counts(0, 0, 0));
}

#[test]
fn a_deferred_message_comes_by_its_number_and_a_topic_gives_each_subscription_its_own() {
    let broker = broker(1);
    let mut client = Client::new(&broker);
    client.receiver(0, "jobs");
    client.management("jobs");
    client.credit(0, 0, 1, false);
    let delivery = client.message();
    client.settle(delivery.id, modified(true));
    let numbers = |n| Value::string_map([("sequence-numbers", Value::Array(vec![Value::Long(n)]))]);
    let operation = "com.microsoft:receive-by-sequence-number";
    client.ask("1", operation, &numbers(7), "");
    assert_eq!(client.answer().1, 404);
    client.ask("2", operation, &numbers(1), "");
    assert_eq!(client.answer().1, 200);
    assert_eq!(broker.look(|view| view.counts("jobs")), counts(0, 1, 0));

    broker.create("orders/Subscriptions/a", QueueSettings::default());
    broker.create("orders/Subscriptions/b", QueueSettings::default());
    assert_eq!(client.sender(1, "orders"), None);
    let sent = service_bus_stand_in::Message::data(b"x");
    assert_eq!(client.put(1, &sent, 1000), DeliveryState::Accepted);
    client.receiver(2, "Orders/subscriptions/A");
    client.credit(2, 0, 1, false);
    let delivery = client.message();
    assert_eq!(delivery.message.body(), b"x");
    client.settle(delivery.id, DeliveryState::Accepted);
    assert_eq!(
        broker.look(|view| view.counts("orders/subscriptions/a")),
        counts(0, 0, 0)
    );
    assert_eq!(
        broker.look(|view| view.counts("orders/subscriptions/b")),
        counts(1, 0, 0)
    );
}

#[test]
fn outcomes_are_in_the_journal() {
    let broker = broker(1);
    let mut client = Client::new(&broker);
    client.receiver(0, "jobs");
    client.credit(0, 0, 1, false);
    let delivery = client.message();
    client.settle(delivery.id, DeliveryState::Released);
    let seen = broker.wait(LIMIT, move |view| {
        let mut all = view.journal().iter();
        all.find_map(|entry| match &entry.event {
            Event::Settled {
                token,
                outcome,
                way,
                ..
            } if *token == delivery.token => Some((outcome.clone(), *way)),
            _ => None,
        })
    });
    assert_eq!(seen, Some((Outcome::Release, Way::Link)));
}
