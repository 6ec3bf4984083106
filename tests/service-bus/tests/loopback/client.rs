//! A client of the broker's own codec: it sends exactly what a test wants, even what no proper
//! client would, and sees every frame.

use std::collections::VecDeque;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use service_bus_stand_in::codec::frame::{self, AMQP_HEADER, Input, SASL_HEADER};
use service_bus_stand_in::codec::performative::{
    Attach, Begin, Disposition, Flow, Open, Performative, Transfer,
};
use service_bus_stand_in::codec::state::DeliveryState;
use service_bus_stand_in::{Broker, Guid, Message, Value};

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) id: u32,
    pub(crate) token: Guid,
    pub(crate) settled: bool,
    pub(crate) message: Message,
}

/// Connection with one session, on channel 0.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    seen: VecDeque<(Performative, Vec<u8>)>,
    pub(crate) heartbeats: u32,
    sent: u32,
}

pub(crate) fn open() -> Open {
    Open {
        container_id: "test".into(),
        ..Open::default()
    }
}

impl Client {
    /// Makes a client with a session and a token for everything.
    pub(crate) fn new(broker: &Broker) -> Self {
        let mut client = Self::opened(broker, open());
        client.begin(5000);
        client.put_token("sb://localhost/", 202);
        client
    }

    /// Makes a client that has finished SASL.
    pub(crate) fn connected(broker: &Broker) -> Self {
        let mut client = Self::raw(broker);
        client.write(&SASL_HEADER);
        client.header(SASL_HEADER);
        assert!(matches!(client.next().0, Performative::SaslMechanisms(all) if all.len() == 4));
        let init = Performative::SaslInit("ANONYMOUS".into(), Vec::new());
        client.write(&frame::encode(true, 0, &init, &[]));
        assert_eq!(client.next().0, Performative::SaslOutcome(0));
        client.write(&AMQP_HEADER);
        client.header(AMQP_HEADER);
        client
    }

    pub(crate) fn opened(broker: &Broker, open: Open) -> Self {
        let mut client = Self::connected(broker);
        client.send(&Performative::Open(open));
        assert!(matches!(client.next().0, Performative::Open(_)));
        client
    }

    /// Makes a client that is only connected.
    pub(crate) fn raw(broker: &Broker) -> Self {
        let stream = TcpStream::connect(broker.address()).expect("the broker listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
        stream.set_nodelay(true).expect("no delay");
        Self {
            stream,
            seen: VecDeque::new(),
            heartbeats: 0,
            sent: 0,
        }
    }

    pub(crate) fn begin(&mut self, window: u32) {
        self.send(&Performative::Begin(Begin {
            incoming_window: window,
            outgoing_window: 5000,
            ..Begin::default()
        }));
        self.until(|it| matches!(it, Performative::Begin(_)).then_some(()));
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the broker reads");
    }

    pub(crate) fn send(&mut self, performative: &Performative) {
        self.write(&frame::encode(false, 0, performative, &[]));
    }

    pub(crate) fn header(&mut self, expected: [u8; 8]) {
        match self.read() {
            Some(Input::Header(header)) => assert_eq!(header, expected),
            other => panic!("{other:?} instead of a header"),
        }
    }

    fn read(&mut self) -> Option<Input> {
        match frame::read(&mut self.stream, u32::MAX) {
            Ok(input) => Some(input),
            Err(frame::Failure::Gone(error)) => {
                let timed_out = error.kind() == std::io::ErrorKind::WouldBlock;
                assert!(!timed_out, "nothing came for {LIMIT:?}");
                None
            }
            Err(frame::Failure::Malformed(malformed)) => panic!("{malformed}"),
        }
    }

    pub(crate) fn try_next(&mut self) -> Option<(Performative, Vec<u8>)> {
        if let Some(seen) = self.seen.pop_front() {
            return Some(seen);
        }
        loop {
            match self.read()? {
                Input::Heartbeat => self.heartbeats += 1,
                Input::Frame {
                    performative,
                    payload,
                    ..
                } => return Some((*performative, payload)),
                Input::Header(header) => panic!("{header:?} in the middle"),
            }
        }
    }

    pub(crate) fn next(&mut self) -> (Performative, Vec<u8>) {
        self.try_next().expect("the connection stays")
    }

    /// Waits for the first frame that `pick` accepts; the others are kept in order.
    pub(crate) fn until<T>(&mut self, mut pick: impl FnMut(&Performative) -> Option<T>) -> T {
        let mut others = VecDeque::new();
        loop {
            let (performative, payload) = self.next();
            if let Some(found) = pick(&performative) {
                others.append(&mut self.seen);
                self.seen = others;
                return found;
            }
            others.push_back((performative, payload));
        }
    }

    /// Waits for the close; returns its condition.
    pub(crate) fn closed(&mut self) -> Option<String> {
        let mut condition = None;
        while let Some((performative, _)) = self.try_next() {
            if let Performative::Close(error) = performative {
                condition = error.map(|error| error.condition);
            }
        }
        condition
    }

    /// Attaches a link; returns the condition if it was refused.
    pub(crate) fn attach(&mut self, attach: Attach) -> Option<String> {
        let (handle, receiver) = (attach.handle, attach.receiver);
        self.send(&Performative::Attach(attach));
        let reply = self.until(|it| match it {
            Performative::Attach(reply) if reply.handle == handle => Some(reply.clone()),
            _ => None,
        });
        assert_eq!(reply.receiver, !receiver);
        let refused = if receiver { reply.source } else { reply.target } == Value::Null;
        if refused {
            return Some(self.detached(handle));
        }
        if receiver {
            assert_eq!(reply.initial_delivery_count, Some(0), "receivers need it");
        }
        None
    }

    /// Waits for the broker's detach; returns its condition.
    pub(crate) fn detached(&mut self, of: u32) -> String {
        self.until(|it| match it {
            Performative::Detach(detach) if detach.handle == of => Some(detach.clone()),
            _ => None,
        })
        .error
        .map(|error| error.condition)
        .unwrap_or_default()
    }

    pub(crate) fn receiver(&mut self, handle: u32, address: &str) -> Option<String> {
        self.attach(receiver(handle, address))
    }

    pub(crate) fn sender(&mut self, handle: u32, address: &str) -> Option<String> {
        self.attach(Attach {
            receiver: false,
            initial_delivery_count: Some(0),
            ..receiver(handle, address)
        })
    }

    pub(crate) fn credit(&mut self, handle: u32, delivery_count: u32, credit: u32, drain: bool) {
        self.send(&Performative::Flow(Flow {
            next_incoming_id: Some(1),
            incoming_window: 50_000,
            outgoing_window: 5000,
            handle: Some(handle),
            delivery_count: Some(delivery_count),
            link_credit: Some(credit),
            drain,
            ..Flow::default()
        }));
    }

    /// Waits for a whole message; a request's reply is one, too.
    pub(crate) fn message(&mut self) -> Delivery {
        let mut whole: Option<(Transfer, Vec<u8>)> = None;
        let mut others = VecDeque::new();
        let (transfer, bytes) = loop {
            let (performative, payload) = self.next();
            let Performative::Transfer(transfer) = performative else {
                others.push_back((performative, payload));
                continue;
            };
            let more = transfer.more;
            let (_, bytes) = whole.get_or_insert((transfer, Vec::new()));
            bytes.extend(payload);
            if let (false, Some(whole)) = (more, whole.take_if(|_| !more)) {
                break whole;
            }
        };
        others.append(&mut self.seen);
        self.seen = others;
        let tag = transfer.delivery_tag.expect("the first piece has a tag");
        Delivery {
            id: transfer.delivery_id.expect("and a number"),
            token: Guid::from_dotnet(tag.try_into().expect("16 bytes")),
            settled: transfer.settled == Some(true),
            message: Message::decode(&bytes).expect("a message"),
        }
    }

    pub(crate) fn settle(&mut self, delivery: u32, state: DeliveryState) -> DeliveryState {
        self.send(&Performative::Disposition(Disposition {
            receiver: true,
            first: delivery,
            last: None,
            settled: false,
            state: Some(state),
        }));
        self.until(|it| match it {
            Performative::Disposition(it) if !it.receiver && it.first == delivery => {
                assert!(it.settled);
                it.state.clone()
            }
            _ => None,
        })
    }

    /// Sends parts of at most `piece` bytes; returns the answer.
    pub(crate) fn put(&mut self, handle: u32, message: &Message, piece: usize) -> DeliveryState {
        let delivery = self.transfer(handle, message, piece);
        self.until(|it| match it {
            Performative::Disposition(it) if it.receiver && it.first == delivery => {
                it.state.clone()
            }
            _ => None,
        })
    }

    fn transfer(&mut self, handle: u32, message: &Message, piece: usize) -> u32 {
        let delivery = self.sent;
        self.sent += 1;
        let bytes = message.encode();
        let mut pieces = bytes.chunks(piece).peekable();
        while let Some(piece) = pieces.next() {
            let transfer = Performative::Transfer(Transfer {
                handle,
                delivery_id: Some(delivery),
                delivery_tag: Some(delivery.to_be_bytes().to_vec()),
                message_format: Some(0),
                settled: Some(false),
                more: pieces.peek().is_some(),
                aborted: false,
            });
            self.write(&frame::encode(false, 0, &transfer, piece));
        }
        delivery
    }

    pub(crate) fn put_token(&mut self, audience: &str, expected: i64) {
        let (sender, receiver) = (100, 101);
        assert_eq!(self.sender(sender, "$cbs"), None);
        assert_eq!(self.receiver(receiver, "$cbs"), None);
        self.credit(receiver, 0, 10, false);
        let request = Message::value(&Value::string("a.b.c"))
            .with_properties(vec![Value::Ulong(1), Value::Null, Value::Null, Value::Null])
            .with_application_properties(vec![
                (Value::string("operation"), Value::string("put-token")),
                (Value::string("type"), Value::string("jwt")),
                (Value::string("name"), Value::string(audience)),
            ]);
        self.transfer(sender, &request, 1000);
        let answer = self.message().message;
        assert_eq!(answer.property(5), Some(Value::Ulong(1)));
        let status = answer.application_properties();
        assert_eq!(
            status.get("status-code").and_then(Value::signed),
            Some(expected)
        );
    }

    /// Attaches to `$management`, with the handles 50 and 51.
    pub(crate) fn management(&mut self, queue: &str) {
        let address = format!("{queue}/$management");
        assert_eq!(self.sender(50, &address), None);
        assert_eq!(self.receiver(51, &address), None);
        self.credit(51, 0, 100, false);
    }

    pub(crate) fn ask(&mut self, id: &str, operation: &str, body: &Value, link: &str) {
        let request = Message::value(body)
            .with_properties(vec![
                Value::string(id),
                Value::Null,
                Value::Null,
                Value::Null,
                Value::string("reply"),
            ])
            .with_application_properties(vec![
                (Value::string("operation"), Value::string(operation)),
                (Value::string("associated-link-name"), Value::string(link)),
            ]);
        self.transfer(50, &request, 1000);
    }

    pub(crate) fn renew(&mut self, id: &str, token: Guid) {
        let body = Value::string_map([("lock-tokens", Value::Array(vec![Value::Uuid(token)]))]);
        self.ask(id, "com.microsoft:renew-lock", &body, "");
    }

    /// Waits for the next answer; returns its request, its status and its body.
    pub(crate) fn answer(&mut self) -> (Option<String>, i64, Value) {
        let message = self.message().message;
        let to = message
            .property(5)
            .and_then(|id| id.text().map(str::to_owned));
        let status = message.application_properties();
        let status = status.get("statusCode").and_then(Value::signed);
        (
            to,
            status.expect("a status"),
            message.body_value().unwrap_or(Value::Null),
        )
    }
}

/// Makes the attach of a link that peeks and locks.
pub(crate) fn receiver(handle: u32, address: &str) -> Attach {
    Attach {
        name: format!("link-{handle}"),
        handle,
        receiver: true,
        snd_settle_mode: 0,
        rcv_settle_mode: 1,
        source: Attach::source(address),
        target: Attach::target(address),
        initial_delivery_count: None,
        max_message_size: None,
        properties: Value::Null,
    }
}
