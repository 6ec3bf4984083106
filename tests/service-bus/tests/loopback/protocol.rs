//! Credit and drain, windows and parts, admission, and nonsense.

use std::time::Duration;

use service_bus_stand_in::codec::frame::{self, AMQP_HEADER, SASL_HEADER};
use service_bus_stand_in::codec::performative::{Flow, Open, Performative, Transfer};
use service_bus_stand_in::codec::state::DeliveryState;
use service_bus_stand_in::{Access, Event, Message, QueueSettings, Settings, Value};

use crate::client::{Client, LIMIT, open, receiver};
use crate::{broker, broker_with};

fn flow(client: &mut Client, of: u32) -> Flow {
    client.until(|it| match it {
        Performative::Flow(flow) if flow.handle == Some(of) => Some(flow.clone()),
        _ => None,
    })
}

#[test]
fn no_more_is_delivered_than_there_is_credit_for() {
    let broker = broker(3);
    let mut client = Client::new(&broker);
    client.receiver(0, "jobs");
    client.credit(0, 0, 2, false);
    assert_eq!(client.message().message.body(), b"0");
    assert_eq!(client.message().message.body(), b"1");
    assert_eq!(broker.look(|view| view.counts("jobs").ready), 1);
    assert_eq!(broker.look(|view| view.credit("jobs")), 0);
    // Credit counts from the client's last known delivery count: nothing new.
    client.credit(0, 0, 2, false);
    client.credit(0, 2, 0, true);
    assert_eq!(flow(&mut client, 0).link_credit, Some(0));
    assert_eq!(broker.look(|view| view.counts("jobs").ready), 1);
    client.credit(0, 2, 3, false);
    assert_eq!(client.message().message.body(), b"2");
    assert_eq!(broker.look(|view| view.credit("jobs")), 2);
    assert_eq!(broker.look(|view| view.credit("other")), 0);
}

#[test]
fn a_drain_uses_up_the_credit_and_is_answered() {
    let broker = broker(1);
    let mut client = Client::new(&broker);
    client.receiver(0, "jobs");
    client.credit(0, 0, 5, true);
    assert_eq!(client.message().message.body(), b"0");
    let drained = flow(&mut client, 0);
    assert_eq!(
        (drained.drain, drained.link_credit, drained.delivery_count),
        (true, Some(0), Some(5))
    );
    broker.put("jobs", Message::data(b"later"));
    assert_eq!(
        broker.look(|view| view.counts("jobs").ready),
        1,
        "no credit is left"
    );
}

#[test]
fn large_messages_go_through_in_pieces_both_ways_and_within_the_window() {
    let broker = broker(0);
    let small = Open {
        max_frame_size: Some(512),
        ..open()
    };
    let mut client = Client::opened(&broker, small);
    client.begin(3);
    client.put_token("sb://localhost/", 202);
    client.sender(0, "jobs");
    let body: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(
        client.put(0, &Message::data(&body), 1000),
        DeliveryState::Accepted
    );
    client.receiver(1, "jobs");
    // The token's answer took one transfer; two more pass.
    client.send(&Performative::Flow(Flow {
        next_incoming_id: Some(2),
        incoming_window: 2,
        handle: Some(1),
        delivery_count: Some(0),
        link_credit: Some(1),
        echo: true,
        ..Flow::default()
    }));
    let echoed = flow(&mut client, 1);
    assert_eq!(echoed.next_outgoing_id, 2);
    client.send(&Performative::Flow(Flow {
        next_incoming_id: Some(2),
        incoming_window: 2,
        echo: true,
        ..Flow::default()
    }));
    let two = client.until(|it| match it {
        Performative::Flow(flow) if flow.handle.is_none() => Some(flow.next_outgoing_id),
        _ => None,
    });
    assert_eq!(two, 4);
    client.send(&Performative::Flow(Flow {
        next_incoming_id: Some(4),
        incoming_window: 50_000,
        ..Flow::default()
    }));
    assert!(client.message().message.body() == body, "byte for byte");
}

#[test]
fn a_message_that_is_too_large_or_none_is_rejected() {
    let settings = Settings {
        max_message_size: 1000,
        ..Settings::default()
    };
    let broker = broker_with(settings, QueueSettings::default(), 0);
    let mut client = Client::new(&broker);
    client.sender(0, "jobs");
    let condition = |state| match state {
        DeliveryState::Rejected(Some(error)) => error.condition,
        other => panic!("{other:?}"),
    };
    let large = client.put(0, &Message::data(&[0; 2000]), 100);
    assert_eq!(condition(large), "amqp:link:message-size-exceeded");
    let transfer = Performative::Transfer(Transfer {
        delivery_id: Some(77),
        delivery_tag: Some(vec![1]),
        ..Transfer::default()
    });
    client.write(&frame::encode(false, 0, &transfer, &[0x53]));
    let state = client.until(|it| match it {
        Performative::Disposition(it) if it.first == 77 => it.state.clone(),
        _ => None,
    });
    assert_eq!(condition(state), "amqp:decode-error");
    assert_eq!(
        client.put(0, &Message::data(b"fine"), 100),
        DeliveryState::Accepted
    );
}

#[test]
fn links_are_refused_with_the_condition_of_the_real_service() {
    let broker = broker(0);
    let with = |change: fn(&mut QueueSettings)| {
        let mut settings = QueueSettings::default();
        change(&mut settings);
        settings
    };
    broker.create("off", with(|it| it.disabled = true));
    broker.create("sessions", with(|it| it.sessions = true));
    broker.create("topic/subscriptions/a", QueueSettings::default());
    let mut client = Client::new(&broker);
    let mut session = receiver(9, "jobs");
    session.source = Value::composite(
        0x28,
        [
            vec![Value::string("jobs")],
            vec![Value::Null; 6],
            vec![Value::Map(vec![(
                Value::symbol("com.microsoft:session-filter"),
                Value::Null,
            )])],
        ]
        .concat(),
    );
    assert_eq!(client.attach(session).as_deref(), Some("amqp:not-allowed"));
    for (handle, (address, condition)) in (10..).zip([
        ("nowhere", "amqp:not-found"),
        ("nowhere/$management", "amqp:not-found"),
        ("off", "com.microsoft:entity-disabled"),
        ("sessions", "amqp:not-allowed"),
        ("topic", "amqp:not-allowed"),
        ("topic/subscriptions/b", "amqp:not-found"),
    ]) {
        assert_eq!(
            client.receiver(handle, address).as_deref(),
            Some(condition),
            "{address}"
        );
    }
    assert_eq!(
        client.sender(20, "jobs/$deadletterqueue").as_deref(),
        Some("amqp:not-allowed")
    );
    assert_eq!(client.sender(21, "sessions"), None);
    assert!(matches!(
        client.put(21, &Message::data(b"x"), 100),
        DeliveryState::Rejected(Some(error)) if error.condition == "amqp:not-allowed"
    ));
}

#[test]
fn a_token_leads_to_its_queue_and_no_other_and_not_for_ever() {
    let settings = Settings {
        access: Access {
            bearer: Some("another".into()),
            ..Access::default()
        },
        ..Settings::default()
    };
    let strict = broker_with(settings, QueueSettings::default(), 0);
    let mut client = Client::opened(&strict, open());
    client.begin(100);
    assert_eq!(
        client.receiver(0, "jobs").as_deref(),
        Some("amqp:unauthorized-access")
    );
    client.put_token("sb://localhost/jobs", 401);

    let broker = broker(0);
    broker.create("jobs2", QueueSettings::default());
    let mut client = Client::opened(&broker, open());
    client.begin(100);
    client.put_token("sb://localhost/jobs", 202);
    assert_eq!(client.receiver(0, "sb://localhost:5671/Jobs"), None);
    assert_eq!(
        client.receiver(1, "jobs2").as_deref(),
        Some("amqp:unauthorized-access")
    );
}

#[test]
fn nonsense_closes_its_own_connection_with_an_error_and_no_other() {
    let broker = broker(1);
    let mut bystander = Client::new(&broker);
    for (nonsense, condition) in [
        (
            &b"\x00\x00\x00\x04\x02\x00\x00\x00"[..],
            "amqp:connection:framing-error",
        ),
        (
            b"\xff\xff\xff\xff\x02\x00\x00\x00",
            "amqp:connection:framing-error",
        ),
        (b"\x00\x00\x00\x09\x02\x00\x00\x00\x3f", "amqp:decode-error"),
        (
            b"\x00\x00\x00\x0d\x02\x00\x00\x00\x00\x53\x10\xc0\x00",
            "amqp:decode-error",
        ),
        (
            b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x12\x45",
            "amqp:invalid-field",
        ),
        (
            b"\x00\x00\x00\x0c\x02\x01\x00\x00\x00\x53\x17\x45",
            "amqp:connection:framing-error",
        ),
        (
            b"\x00\x00\x00\x0c\x02\x00\x00\x09\x00\x53\x17\x45",
            "amqp:not-allowed",
        ),
        (&SASL_HEADER, "amqp:connection:framing-error"),
    ] {
        let mut client = Client::new(&broker);
        client.write(nonsense);
        assert_eq!(
            client.closed().as_deref(),
            Some(condition),
            "{nonsense:02x?}"
        );
    }
    // Before the opening, the right header is the answer to a wrong one.
    for header in [*b"GET / HT", *b"AMQP\x02\x01\x00\x00", AMQP_HEADER] {
        let mut client = Client::raw(&broker);
        client.write(&header);
        if header.starts_with(b"AMQP") {
            client.header(SASL_HEADER);
        }
        assert_eq!(client.closed(), None);
    }
    let mut client = Client::raw(&broker);
    client.write(&SASL_HEADER);
    client.header(SASL_HEADER);
    client.next();
    let plain = Performative::SaslInit("PLAIN".into(), b"\0a\0b".to_vec());
    client.write(&frame::encode(true, 0, &plain, &[]));
    assert_eq!(client.next().0, Performative::SaslOutcome(1));
    assert_eq!(client.closed(), None);
    bystander.receiver(0, "jobs");
    bystander.credit(0, 0, 1, false);
    assert_eq!(bystander.message().message.body(), b"0");
}

#[test]
fn signs_of_life_follow_the_clients_idle_time_and_silence_is_given_up() {
    let settings = Settings {
        idle_time_out: Duration::from_millis(300),
        ..Settings::default()
    };
    let broker = broker_with(settings, QueueSettings::default(), 0);
    let quick = Open {
        idle_time_out: Some(100),
        ..open()
    };
    let mut client = Client::opened(&broker, quick);
    assert_eq!(
        client.closed().as_deref(),
        Some("amqp:resource-limit-exceeded")
    );
    // Due every 50 ms, with an idle time-out of 600 ms.
    assert!(client.heartbeats >= 3, "{}", client.heartbeats);
    drop(client);
    let gone = broker.wait(LIMIT, |view| {
        let mut all = view.journal().iter();
        all.any(|it| matches!(it.event, Event::Disconnected { .. }))
            .then_some(())
    });
    assert!(gone.is_some());
}

#[test]
fn an_idle_link_is_detached_unless_requests_name_it() {
    let settings = Settings {
        idle_detach: Duration::from_millis(1500),
        ..Settings::default()
    };
    let broker = broker_with(settings, QueueSettings::default(), 1);
    let mut client = Client::new(&broker);
    client.management("jobs");
    client.receiver(0, "jobs");
    client.receiver(1, "jobs");
    let body = Value::string_map([
        ("from-sequence-number", Value::Long(0)),
        ("message-count", Value::Int(1)),
    ]);
    // Requests keep link 0 active; link 1 is detached meanwhile.
    let detached = loop {
        client.ask("1", "com.microsoft:peek-message", &body, "link-0");
        assert_eq!(client.answer().1, 200);
        let detached = broker.wait(Duration::from_millis(50), |view| {
            let mut all = view.journal().iter();
            all.find_map(|it| match &it.event {
                Event::Detached { address, condition } if address == "jobs" => condition.clone(),
                _ => None,
            })
        });
        if let Some(detached) = detached {
            break detached;
        }
    };
    assert_eq!(detached, "amqp:link:detach-forced");
    let first = client.until(|it| match it {
        Performative::Detach(detach) if detach.handle < 2 => Some(detach.handle),
        _ => None,
    });
    assert_eq!(first, 1, "the link 0 is the older one, and in use");
}
