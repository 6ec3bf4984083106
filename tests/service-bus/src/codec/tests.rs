//! The codec with the standard's encodings, nonsense, and its own output.

use super::decode::Malformed;
use super::encode::encoded;
use super::frame::{self, Failure, Input};
use super::performative::{Attach, Flow, Performative, Transfer};
use super::state::{AmqpError, DeliveryState};
use super::{Guid, Message, Value, decode_value};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let pairs = digits.chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).expect("hex"))
        .collect()
}

fn decoded(hex: &str) -> Result<Value, Malformed> {
    let bytes = bytes(hex);
    let (value, used) = decode_value(&bytes)?;
    assert_eq!(used, bytes.len(), "all of {hex}");
    Ok(value)
}

/// Part 1.6 of the standard: every type in every encoding. The first encoding of each value is the
/// written one.
#[test]
fn every_encoding_of_every_type_is_read_and_the_shortest_is_written() {
    let text = "0123456789abcdef0123456789abcdef";
    let uuid: [u8; 16] = bytes(text).try_into().expect("16 bytes");
    let list = || Value::List(vec![Value::Uint(1), Value::Null]);
    let table: Vec<(Value, &[&str])> = vec![
        (Value::Null, &["40"]),
        (Value::Bool(true), &["41", "56 01"]),
        (Value::Bool(false), &["42", "56 00"]),
        (Value::Ubyte(0xfe), &["50 fe"]),
        (Value::Ushort(0x0102), &["60 0102"]),
        (Value::Uint(0), &["43", "52 00", "70 00000000"]),
        (Value::Uint(255), &["52 ff", "70 000000ff"]),
        (Value::Uint(256), &["70 00000100"]),
        (Value::Ulong(0), &["44", "53 00", "80 0000000000000000"]),
        (Value::Ulong(0x24), &["53 24", "80 0000000000000024"]),
        (Value::Ulong(1 << 40), &["80 0000010000000000"]),
        (Value::Byte(-2), &["51 fe"]),
        (Value::Short(-2), &["61 fffe"]),
        (Value::Int(-2), &["54 fe", "71 fffffffe"]),
        (Value::Int(128), &["71 00000080"]),
        (Value::Long(-129), &["81 ffffffffffffff7f"]),
        (Value::Long(127), &["55 7f", "81 000000000000007f"]),
        (Value::Float(1.5), &["72 3fc00000"]),
        (Value::Double(-1.5), &["82 bff8000000000000"]),
        (Value::Decimal(vec![1, 2, 3, 4]), &["74 01020304"]),
        (Value::Decimal(vec![1; 8]), &["84 0101010101010101"]),
        (
            Value::Decimal(vec![1; 16]),
            &["94 01010101010101010101010101010101"],
        ),
        (Value::Char('é'), &["73 000000e9"]),
        (Value::Timestamp(-1), &["83 ffffffffffffffff"]),
        (
            Value::Uuid(Guid(uuid)),
            &["98 0123456789abcdef0123456789abcdef"],
        ),
        (
            Value::Binary(vec![0, 255]),
            &["a0 02 00ff", "b0 00000002 00ff"],
        ),
        (Value::string("é"), &["a1 02 c3a9", "b1 00000002 c3a9"]),
        (Value::symbol("ab"), &["a3 02 6162", "b3 00000002 6162"]),
        (
            Value::List(vec![]),
            &["45", "c0 01 00", "d0 00000004 00000000"],
        ),
        (
            list(),
            &["c0 04 02 52 01 40", "d0 00000007 00000002 52 01 40"],
        ),
        (
            Value::Map(vec![(Value::symbol("a"), Value::Bool(true))]),
            &["c1 05 02 a3 01 61 41", "d1 00000008 00000002 a3 01 61 41"],
        ),
        (
            Value::Array(vec![Value::Ubyte(1), Value::Ubyte(2)]),
            &["e0 04 02 50 01 02", "f0 00000007 00000002 50 01 02"],
        ),
        (
            Value::Array(vec![Value::described(7, Value::Ubyte(1))]),
            &["e0 06 01 00 53 07 50 01"],
        ),
        (
            Value::Array(vec![Value::Array(vec![Value::Ubyte(9)])]),
            &["e0 0c 01 f0 00000006 00000001 50 09"],
        ),
        (
            Value::described(0x24, Value::List(vec![])),
            &["00 53 24 45"],
        ),
    ];
    for (value, encodings) in table {
        for encoding in encodings {
            assert_eq!(decoded(encoding).as_ref(), Ok(&value), "{encoding}");
        }
        assert_eq!(encoded(&value), bytes(encodings[0]), "{value:?}");
    }
}

#[test]
fn values_beyond_one_byte_of_length_are_written_and_read() {
    for length in [253, 254, 255, 256, 300, 70_000] {
        let many = Value::List(vec![Value::Bool(true); length]);
        let long = Value::string("x".repeat(length));
        let array = Value::Array(vec![Value::Ubyte(1); length]);
        for value in [many, long, array] {
            let bytes = encoded(&value);
            assert_eq!(decode_value(&bytes), Ok((value, bytes.len())), "{length}");
        }
    }
}

#[test]
fn nonsense_is_refused_and_nothing_panics() {
    let deep = "c0 ff 01".repeat(200);
    let nested = "00".repeat(500);
    for nonsense in [
        "",
        "00",
        "00 53",
        "3f",
        "52",
        "70 0000",
        "56 02",
        "98 00",
        "73 00110000",
        "a0 05 00",
        "b0 ffffffff 00",
        "a1 01 ff",
        "a3 01 ff",
        "c0 00",
        "c0 01",
        "c0 02 01",
        "c0 03 01 40 40",
        "c0 01 09",
        "d0 ffffffff ffffffff",
        "d0 00000004 ffffffff",
        "c1 02 01 40",
        "e0 02 ff 40",
        "f0 00000005 ffffffff 40",
        "e0 01 00",
        &deep,
        &nested,
    ] {
        let refused = decode_value(&bytes(nonsense)).expect_err(nonsense);
        assert_eq!(refused.condition, "amqp:decode-error", "{nonsense}");
    }
}

#[test]
fn values_nest_so_deep_and_no_deeper() {
    let nested = |depth| format!("{}40", "00 53 01".repeat(depth));
    assert!(decoded(&nested(32)).is_ok());
    let refused = decoded(&nested(33)).expect_err("too deep");
    assert!(refused.what.contains("nested"), "{refused}");
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    fn value(&mut self, depth: usize) -> Value {
        let number = self.roll(usize::MAX) as u64 >> self.roll(64);
        match self.roll(if depth > 3 { 10 } else { 14 }) {
            0 => Value::Null,
            1 => Value::Bool(number.is_multiple_of(2)),
            2 => Value::Uint(number as u32),
            3 => Value::Ulong(number),
            4 => Value::Int(number as i32),
            5 => Value::Long(-(number as i64 >> 1)),
            6 => Value::Binary(number.to_be_bytes()[..self.roll(9)].to_vec()),
            7 => Value::string("ä".repeat(self.roll(200))),
            8 => Value::Uuid(Guid([number as u8; 16])),
            9 => Value::Timestamp(number as i64),
            10 => Value::List(self.values(depth)),
            11 => {
                let keys = self.values(depth);
                let pairs = keys.into_iter().map(|key| (key, self.value(depth + 1)));
                Value::Map(pairs.collect())
            }
            12 => Value::Array((0..self.roll(300)).map(|n| Value::Int(n as i32)).collect()),
            _ => Value::described(number, self.value(depth + 1)),
        }
    }

    fn values(&mut self, depth: usize) -> Vec<Value> {
        (0..self.roll(6)).map(|_| self.value(depth + 1)).collect()
    }
}

#[test]
fn whatever_is_written_is_read_back_and_never_panics_when_it_is_damaged() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for _ in 0..3000 {
        let value = dice.value(0);
        let mut bytes = encoded(&value);
        assert_eq!(decode_value(&bytes), Ok((value, bytes.len())));
        let at = dice.roll(bytes.len());
        bytes[at] ^= 1 << dice.roll(8);
        // Either it is another value, or it is refused.
        let _either = decode_value(&bytes);
        let _either = Message::decode(&bytes);
        let _either = decode_value(&bytes[..at]);
    }
}

#[test]
fn frames_are_read_as_they_were_written() {
    let all = [
        Performative::Attach(Attach {
            name: "link".into(),
            handle: 3,
            receiver: true,
            snd_settle_mode: 0,
            rcv_settle_mode: 1,
            source: Attach::source("jobs"),
            target: Attach::target("here"),
            initial_delivery_count: Some(0),
            max_message_size: Some(1 << 20),
            properties: Value::string_map([("a", Value::Null)]),
        }),
        Performative::Flow(Flow {
            handle: Some(3),
            link_credit: Some(0),
            drain: true,
            ..Flow::default()
        }),
        Performative::Transfer(Transfer {
            delivery_tag: Some(vec![1; 16]),
            more: true,
            aborted: true,
            ..Transfer::default()
        }),
        Performative::Close(Some(AmqpError::new("amqp:not-found", "text"))),
        Performative::SaslMechanisms(vec!["ANONYMOUS".into()]),
        Performative::SaslInit("ANONYMOUS".into(), vec![]),
        Performative::SaslOutcome(1),
    ];
    for performative in all {
        let bytes = frame::encode(false, 7, &performative, b"behind");
        match frame::read(&mut bytes.as_slice(), 4096).expect("it is a frame") {
            Input::Frame {
                channel: 7,
                sasl: false,
                performative: read,
                payload,
            } => {
                assert_eq!(*read, performative);
                assert_eq!(payload, b"behind");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn frames_that_are_none_are_refused_with_the_condition_to_close_with() {
    for (hex, condition) in [
        ("00000007 02000000", "amqp:connection:framing-error"),
        ("00001001 02000000", "amqp:connection:framing-error"),
        ("00000008 03000000", "amqp:connection:framing-error"),
        ("00000008 01000000", "amqp:connection:framing-error"),
        ("00000009 02020000 40", "amqp:connection:framing-error"),
        ("00000009 02000000 40", "amqp:decode-error"),
        ("0000000c 02000000 00 53 99 45", "amqp:decode-error"),
        // An open without a container, a flow with a text for a window, a delivery state of 5.
        ("0000000c 02000000 00 53 10 45", "amqp:invalid-field"),
        (
            "00000012 02000000 00 53 13 c0 05 02 40 a1 01 78",
            "amqp:invalid-field",
        ),
        (
            "00000014 02000000 00 53 15 c0 07 05 41 43 40 42 52 05",
            "amqp:invalid-field",
        ),
    ] {
        match frame::read(&mut bytes(hex).as_slice(), 4096) {
            Err(Failure::Malformed(malformed)) => {
                assert_eq!(malformed.condition, condition, "{hex}")
            }
            other => panic!("{hex}: {other:?}"),
        }
    }
}

#[test]
fn an_error_is_written_with_all_three_fields() {
    let error = AmqpError::new("a", "b");
    let state = DeliveryState::Rejected(Some(error));
    assert_eq!(
        encoded(&state.to_field()),
        bytes("00 53 25 c0 0e 01 00 53 1d c0 08 03 a3 01 61 a1 01 62 40")
    );
}

#[test]
fn the_senders_sections_stay_byte_for_byte() {
    // Properties in a wide encoding that the encoder would not choose, a footer, two data sections.
    let bare = bytes(
        "00 53 73 d0 00000007 00000001 a1 01 61  00 53 75 b0 00000001 ff  00 53 75 a0 01 00 \
         00 53 78 c1 05 02 a3 01 66 41",
    );
    let mut message = Message::decode(&bare).expect("a message");
    message.set_delivery_count(0);
    message.annotate("x-opt-sequence-number", Value::Long(1));
    let sent = message.encode();
    assert!(sent.ends_with(&bare));
    let read = Message::decode(&sent).expect("still a message");
    assert_eq!(read.delivery_count(), Some(0), "written although it is 0");
    assert_eq!(read.body(), [0xff, 0]);
    assert_eq!(read.property(0), Some(Value::string("a")));
    message.set_application_properties(vec![(Value::string("k"), Value::Uint(1))]);
    assert_eq!(
        message.application_properties().get("k"),
        Some(&Value::Uint(1))
    );
    assert_eq!(message.data_sections(), [vec![0xff], vec![0]]);
}
