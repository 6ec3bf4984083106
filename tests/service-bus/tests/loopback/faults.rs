//! Each fault does what its text says.

use std::time::Duration;

use service_bus_stand_in::codec::state::DeliveryState;
use service_bus_stand_in::{Act, Broker, Counts, Event, Fault, Guid, LOCK_LOST, Message, On};

use crate::broker;
use crate::client::{Client, LIMIT};

fn locked() -> (Broker, Client, Guid, u32) {
    let broker = broker(1);
    let mut client = Client::new(&broker);
    client.receiver(0, "jobs");
    client.management("jobs");
    client.credit(0, 0, 1, false);
    let delivery = client.message();
    (broker, client, delivery.token, delivery.id)
}

fn renewals(broker: &Broker) -> usize {
    broker.look(|view| {
        let all = view.journal().iter();
        all.filter(|it| matches!(it.event, Event::Renewed { .. }))
            .count()
    })
}

#[test]
fn a_lost_answer_was_done_and_an_ignored_request_was_not() {
    for (act, done) in [(Act::Lose, 1), (Act::Ignore, 0)] {
        let (broker, mut client, token, _) = locked();
        broker.fault(Fault::new(On::RenewLock, act).at("jobs"));
        client.renew("1", token);
        client.renew("2", token);
        assert_eq!(client.answer().0.as_deref(), Some("2"));
        assert_eq!(renewals(&broker), done + 1);
    }
}

#[test]
fn a_late_answer_is_overtaken() {
    let late = Duration::from_millis(300);
    for (act, at_once) in [(Act::Delay(late), 2), (Act::Hold(late), 1), (Act::Shift, 2)] {
        let (broker, mut client, token, _) = locked();
        broker.fault(Fault::new(On::RenewLock, act.clone()));
        client.renew("1", token);
        client.renew("2", token);
        assert_eq!(client.answer().0.as_deref(), Some("2"), "{act:?}");
        if !matches!(act, Act::Hold(_)) {
            assert_eq!(renewals(&broker), at_once, "{act:?}");
        }
        assert_eq!(client.answer().0.as_deref(), Some("1"), "{act:?}");
        assert_eq!(renewals(&broker), 2, "{act:?}");
    }
}

#[test]
fn a_held_request_is_not_done_before_its_time() {
    let (broker, mut client, token, _) = locked();
    broker.fault(Fault::new(On::RenewLock, Act::Hold(LIMIT * 100)));
    client.renew("1", token);
    client.renew("2", token);
    assert_eq!(client.answer().0.as_deref(), Some("2"));
    assert_eq!(renewals(&broker), 1);
}

#[test]
fn answers_come_twice_or_name_no_request() {
    let (broker, mut client, token, _) = locked();
    broker.fault(Fault::new(On::RenewLock, Act::Duplicate));
    broker.fault(Fault::new(On::RenewLock, Act::Uncorrelated));
    client.renew("1", token);
    assert_eq!(client.answer().0.as_deref(), Some("1"));
    assert_eq!(client.answer().0.as_deref(), Some("1"));
    client.renew("2", token);
    assert_eq!(client.answer().0, None);
}

#[test]
fn a_refusal_changes_nothing() {
    let (broker, mut client, token, delivery) = locked();
    broker.fault(Fault::new(On::RenewLock, Act::lock_lost()));
    broker.fault(Fault::new(On::UpdateDisposition, Act::server_busy()));
    broker.fault(Fault::new(On::Settle, Act::lock_lost()));
    client.renew("1", token);
    assert_eq!(client.answer().1, 410);
    client.ask(
        "2",
        "com.microsoft:update-disposition",
        &service_bus_stand_in::Value::Null,
        "",
    );
    assert_eq!(client.answer().1, 503);
    match client.settle(delivery, DeliveryState::Accepted) {
        DeliveryState::Rejected(Some(error)) => assert_eq!(error.condition, LOCK_LOST),
        other => panic!("{other:?}"),
    }
    assert_eq!(renewals(&broker), 0);
    assert_eq!(broker.look(|view| view.counts("jobs").locked), 1);
}

#[test]
fn a_settle_whose_answer_was_lost_is_answered_with_lock_lost_when_it_is_repeated() {
    let (broker, mut client, _, delivery) = locked();
    broker.fault(Fault::new(On::Settle, Act::Lose));
    client.send(
        &service_bus_stand_in::codec::performative::Performative::Disposition(
            service_bus_stand_in::codec::performative::Disposition {
                receiver: true,
                first: delivery,
                last: None,
                settled: false,
                state: Some(DeliveryState::Accepted),
            },
        ),
    );
    let gone = broker.wait(LIMIT, |view| {
        (view.counts("jobs").locked == 0).then_some(())
    });
    assert!(gone.is_some(), "it was done");
    match client.settle(delivery, DeliveryState::Accepted) {
        DeliveryState::Rejected(Some(error)) => assert_eq!(error.condition, LOCK_LOST),
        other => panic!("{other:?}"),
    }
}

#[test]
fn cuts_come_before_or_behind_what_was_asked_for() {
    for (act, done) in [(Act::Cut, 0), (Act::CutAfter, 1)] {
        let (broker, mut client, token, _) = locked();
        broker.fault(Fault::new(On::RenewLock, act));
        client.renew("1", token);
        assert_eq!(client.closed(), None, "without a word");
        assert_eq!(renewals(&broker), done);
    }
}

#[test]
fn links_are_detached_behind_a_delivery_and_by_hand_and_the_lock_stays() {
    let broker = broker(1);
    let forced = "amqp:link:detach-forced";
    broker.fault(Fault::new(
        On::Deliver,
        Act::Detach {
            condition: forced.into(),
        },
    ));
    let mut client = Client::new(&broker);
    client.receiver(0, "jobs");
    client.credit(0, 0, 1, false);
    client.message();
    assert_eq!(client.detached(0), forced);
    assert_eq!(broker.look(|view| view.counts("jobs").locked), 1);
    client.receiver(1, "jobs");
    broker.detach("jobs", "amqp:internal-error", "by hand");
    assert_eq!(client.detached(1), "amqp:internal-error");
    client.receiver(2, "jobs");
    broker.disable("jobs", true);
    assert_eq!(client.detached(2), "com.microsoft:entity-disabled");
    broker.disable("jobs", false);
    assert_eq!(client.receiver(3, "jobs"), None);
    broker.delete("jobs");
    assert_eq!(client.detached(3), "amqp:not-found");
}

#[test]
fn sends_and_tokens_and_links_and_connections_are_refused() {
    let broker = broker(0);
    let mut client = Client::new(&broker);
    broker.fault(Fault::new(On::Send, Act::server_busy()));
    client.sender(0, "jobs");
    match client.put(0, &Message::data(b"x"), 1000) {
        DeliveryState::Rejected(Some(error)) => {
            assert_eq!(error.condition, "com.microsoft:server-busy");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(broker.look(|view| view.counts("jobs")), Counts::default());
    broker.fault(Fault::new(On::Attach, Act::server_busy()));
    assert_eq!(
        client.receiver(1, "jobs").as_deref(),
        Some("com.microsoft:server-busy")
    );
    broker.fault(Fault::new(On::PutToken, Act::unauthorized()));
    let mut client = Client::opened(&broker, crate::client::open());
    client.begin(100);
    client.put_token("sb://localhost/jobs", 401);
    assert_eq!(
        client.receiver(1, "jobs").as_deref(),
        Some("amqp:unauthorized-access")
    );
    broker.fault(Fault::new(On::Open, Act::server_busy()));
    let mut client = Client::opened(&broker, crate::client::open());
    assert_eq!(
        client.closed().as_deref(),
        Some("com.microsoft:server-busy")
    );
    broker.refuse_connections(true);
    let mut client = Client::raw(&broker);
    assert_eq!(client.closed(), None);
}

#[test]
fn a_frozen_broker_says_nothing_and_goes_on_where_it_was() {
    let (broker, mut client, token, _) = locked();
    broker.freeze();
    client.renew("1", token);
    // Long enough for the request to arrive, if it were read.
    let renewed = broker.wait(Duration::from_millis(200), |view| {
        let mut all = view.journal().iter();
        all.any(|it| matches!(it.event, Event::Renewed { .. }))
            .then_some(())
    });
    assert_eq!(renewed, None);
    assert_eq!(broker.lose_locks("jobs"), 1, "time goes on in the meantime");
    broker.put("jobs", Message::data(b"1"));
    broker.thaw();
    assert_eq!(client.answer().1, 410);
    client.credit(0, 1, 1, false);
    assert_eq!(client.message().message.delivery_count(), Some(1));
}
