//! Messages and requests in AMQP's types, and back. Knows the AMQP library, but no connection.

use std::collections::BTreeMap;
use std::fmt;

use fe2o3_amqp::link::receiver::TerminalDeliveryState;
use fe2o3_amqp::types::definitions::{Error, ErrorCondition, Fields};
use fe2o3_amqp::types::messaging::{
    Accepted, Annotations, ApplicationProperties, Body, Header, Message, MessageId, Modified,
    Properties, Rejected, Released,
};
use fe2o3_amqp::types::primitives::{
    Array, OrderedMap, SimpleValue, Symbol, Timestamp, Uuid, Value,
};
use time::OffsetDateTime;

use super::error::{BusError, one_line};
use trafficcop_azure::queue::{About, Settlement, Unreadable, date};

// Microsoft's clients refuse a longer text, which would fail the settlement.
const LONGEST_TEXT: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) connection: u64,
    pub(super) delivery: u32,
}

#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) ticket: Ticket,
    pub(super) lock: Option<LockToken>,
    pub(super) id: String,
    pub(super) attempt: u32,
    pub(super) body: Result<Vec<u8>, Unreadable>,
    pub(super) about: About,
    /// End of the lock by the service's clock, in milliseconds since 1970.
    pub(super) locked_until: Option<i64>,
}

/// Token of a message's lock: a GUID, its bytes in written order.
///
/// `$management` expects a `uuid`, whose bytes are in that order (RFC 9562). A delivery's tag has the same GUID
/// in .NET's memory layout, with the first three groups reversed. Unchanged it would name another lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LockToken([u8; 16]);

impl LockToken {
    pub(super) fn from_uuid(bytes: [u8; 16]) -> LockToken {
        LockToken(bytes)
    }

    pub(super) fn from_tag(tag: &[u8]) -> Option<LockToken> {
        let mut bytes: [u8; 16] = tag.try_into().ok()?;
        bytes[0..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        Some(LockToken(bytes))
    }

    pub(super) fn as_uuid(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(super) fn delivery(
    ticket: Ticket,
    tag: &[u8],
    message: Message<Body<Value>>,
    max_body: usize,
) -> Delivery {
    let notes = message.message_annotations.map(|notes| notes.0);
    let note = |key: &str| annotation(notes.as_ref(), key);
    // Every service sends the tag, and Microsoft's clients read it.
    let lock = LockToken::from_tag(tag).or_else(|| {
        let notes = message.delivery_annotations.as_ref().map(|notes| &notes.0);
        match annotation(notes, "x-opt-lock-token")? {
            Value::Uuid(token) => Some(LockToken::from_uuid(*token.as_inner())),
            _ => None,
        }
    });
    let header = message.header.unwrap_or_default();
    let known = message.properties.unwrap_or_default();
    let sequence = note("x-opt-sequence-number").and_then(number);
    let enqueued = note("x-opt-enqueued-time").and_then(millis);
    let locked_until = note("x-opt-locked-until").and_then(millis);
    let id = known.message_id.as_ref().map(identifier);
    let id = id.filter(|id| !id.is_empty());
    // Senders need not give one.
    let id = id.or_else(|| sequence.map(|number| number.to_string()));
    let about = About {
        encoding: None,
        enqueued: enqueued.and_then(moment),
        locked_until: locked_until.and_then(moment),
        expires: expires(&header, &known, enqueued),
        content_type: known.content_type.as_ref().map(|kind| kind.0.clone()),
        properties: properties(
            &known,
            sequence,
            notes.as_ref(),
            message.application_properties,
        ),
    };
    Delivery {
        ticket,
        lock,
        id: id.unwrap_or_default(),
        // The header counts the deliveries before this one.
        attempt: header.delivery_count.saturating_add(1),
        body: bytes(message.body, max_body),
        about,
        locked_until,
    }
}

pub(super) fn unreadable(ticket: Ticket, tag: &[u8], why: &str) -> Delivery {
    let lock = LockToken::from_tag(tag);
    Delivery {
        ticket,
        lock,
        id: lock.map(|lock| lock.to_string()).unwrap_or_default(),
        // Unknown, and irrelevant: the message is dead-lettered.
        attempt: 1,
        body: Err(Unreadable {
            reason: "UnsupportedBody",
            detail: format!("the message cannot be read: {}", one_line(why)),
        }),
        about: About::default(),
        locked_until: None,
    }
}

fn bytes(body: Body<Value>, most: usize) -> Result<Vec<u8>, Unreadable> {
    let unsupported = |what: &str| {
        Err(Unreadable {
            reason: "UnsupportedBody",
            detail: format!("the body is {what}, which is not bytes"),
        })
    };
    // Before copying: a body can be 100 MiB.
    let size = match &body {
        Body::Data(parts) => parts.iter().map(|part| part.0.len()).sum(),
        Body::Value(value) => match &value.0 {
            Value::Binary(bytes) => bytes.len(),
            Value::String(text) => text.len(),
            _ => 0,
        },
        Body::Sequence(_) | Body::Empty => 0,
    };
    if size > most {
        return Err(Unreadable {
            reason: "TooLarge",
            detail: format!("the body of {size} bytes is larger than the {most} allowed"),
        });
    }
    match body {
        Body::Data(parts) => {
            let mut parts = parts.into_iter().map(|part| part.0.into_vec());
            let mut bytes = parts.next().unwrap_or_default();
            parts.for_each(|part| bytes.extend(part));
            Ok(bytes)
        }
        Body::Value(value) => match value.0 {
            Value::Binary(bytes) => Ok(bytes.into_vec()),
            Value::String(text) => Ok(text.into_bytes()),
            Value::Null => Ok(Vec::new()),
            _ => unsupported("an AMQP value other than a string or binary"),
        },
        Body::Sequence(_) => unsupported("an AMQP sequence"),
        Body::Empty => Ok(Vec::new()),
    }
}

fn annotation<'a>(notes: Option<&'a Annotations>, key: &str) -> Option<&'a Value> {
    let mut notes = notes?.iter();
    let found = notes.find(|(name, _)| match name {
        fe2o3_amqp::types::messaging::annotations::OwnedKey::Symbol(name) => name.as_str() == key,
        _ => false,
    });
    found.map(|(_, value)| value)
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Long(number) => Some(*number),
        Value::Int(number) => Some(i64::from(*number)),
        Value::Ulong(number) => i64::try_from(*number).ok(),
        Value::Uint(number) => Some(i64::from(*number)),
        _ => None,
    }
}

pub(super) fn millis(value: &Value) -> Option<i64> {
    match value {
        Value::Timestamp(at) => Some(at.milliseconds()),
        _ => None,
    }
}

fn moment(millis: i64) -> Option<String> {
    let nanos = i128::from(millis) * 1_000_000;
    date(OffsetDateTime::from_unix_timestamp_nanos(nanos).ok()?)
}

fn expires(header: &Header, known: &Properties, enqueued: Option<i64>) -> Option<String> {
    let by_life = || Some(enqueued?.saturating_add(i64::from(header.ttl?)));
    let expiry = known.absolute_expiry_time.as_ref();
    let expiry = expiry.map(Timestamp::milliseconds);
    moment(expiry.or_else(by_life)?)
}

fn identifier(id: &MessageId) -> String {
    match id {
        MessageId::Ulong(number) => number.to_string(),
        MessageId::Uuid(uuid) => LockToken::from_uuid(*uuid.as_inner()).to_string(),
        MessageId::Binary(bytes) => hex(bytes),
        MessageId::String(text) => text.clone(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Collects the sender's properties, and the service's by Microsoft's names.
fn properties(
    known: &Properties,
    sequence: Option<i64>,
    notes: Option<&Annotations>,
    sender: Option<ApplicationProperties>,
) -> BTreeMap<String, String> {
    let note = |key: &str| match annotation(notes, key) {
        Some(Value::String(text)) => Some(text.clone()),
        _ => None,
    };
    let ours = [
        ("SequenceNumber", sequence.map(|number| number.to_string())),
        (
            "CorrelationId",
            known.correlation_id.as_ref().map(identifier),
        ),
        ("Subject", known.subject.clone()),
        ("To", known.to.clone()),
        ("ReplyTo", known.reply_to.clone()),
        ("SessionId", known.group_id.clone()),
        ("ReplyToSessionId", known.reply_to_group_id.clone()),
        ("PartitionKey", note("x-opt-partition-key")),
        ("DeadLetterSource", note("x-opt-deadletter-source")),
    ];
    let ours = ours
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let sender = sender.map(|sender| sender.0.into_inner());
    let sender = sender.into_iter().flatten();
    let mut all: BTreeMap<String, String> = sender
        .filter_map(|(name, value)| Some((name, simple(&value.into())?)))
        .collect();
    // Last: a sender must not pass off a property as one of the service's.
    all.extend(ours);
    all
}

fn simple(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(truth) => truth.to_string(),
        Value::Ubyte(number) => number.to_string(),
        Value::Ushort(number) => number.to_string(),
        Value::Uint(number) => number.to_string(),
        Value::Ulong(number) => number.to_string(),
        Value::Byte(number) => number.to_string(),
        Value::Short(number) => number.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Long(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Double(number) => number.to_string(),
        Value::Char(char) => char.to_string(),
        Value::Timestamp(at) => {
            let millis = at.milliseconds();
            moment(millis).unwrap_or_else(|| millis.to_string())
        }
        Value::Uuid(uuid) => LockToken::from_uuid(*uuid.as_inner()).to_string(),
        Value::Binary(bytes) => hex(bytes),
        Value::String(text) => text.clone(),
        Value::Symbol(symbol) => symbol.0.clone(),
        // Microsoft's clients describe types of their own, such as .NET's ticks.
        Value::Described(described) => return simple(&described.value),
        other => format!("{other:?}"),
    })
}

pub(super) fn renewal(lock: LockToken) -> (&'static str, Value) {
    (
        "com.microsoft:renew-lock",
        map([("lock-tokens", tokens(lock))]),
    )
}

/// Returns operation and body of a request to settle; a release has none.
pub(super) fn settlement(
    lock: LockToken,
    how: &Settlement,
    session: Option<&str>,
) -> Result<(&'static str, Value), BusError> {
    let status = match how {
        Settlement::Complete => "completed",
        Settlement::Retry(_) => "abandoned",
        // The service's own word for dead-lettered.
        Settlement::DeadLetter { .. } => "suspended",
        Settlement::Release => return Err(BusError::Unsent("a release has no request".into())),
    };
    let mut entries = vec![
        ("disposition-status", Value::String(status.to_owned())),
        ("lock-tokens", tokens(lock)),
    ];
    if let Some(session) = session {
        entries.push(("session-id", Value::String(session.to_owned())));
    }
    if let Settlement::DeadLetter { reason, detail } = how {
        entries.push(("deadletter-reason", Value::String(cut(reason))));
        entries.push(("deadletter-description", Value::String(cut(detail))));
    }
    Ok(("com.microsoft:update-disposition", map(entries)))
}

pub(super) fn outcome(how: &Settlement) -> TerminalDeliveryState {
    match how {
        Settlement::Complete => Accepted {}.into(),
        // This counts the attempt. `undeliverable_here` would defer the message: only receivers that know its
        // number could get it.
        Settlement::Retry(_) => Modified {
            delivery_failed: Some(true),
            undeliverable_here: None,
            message_annotations: None,
        }
        .into(),
        Settlement::Release => Released {}.into(),
        Settlement::DeadLetter { reason, detail } => {
            let entry = |key: &str, text: &str| (Symbol::from(key), Value::String(cut(text)));
            let info: Fields = [
                entry("DeadLetterReason", reason),
                entry("DeadLetterErrorDescription", detail),
            ]
            .into_iter()
            .collect();
            let condition = ErrorCondition::Custom(Symbol::from("com.microsoft:dead-letter"));
            let error = Error::new(condition, None, info);
            Rejected { error: Some(error) }.into()
        }
    }
}

fn tokens(lock: LockToken) -> Value {
    Value::Array(Array(vec![Value::Uuid(Uuid::from(lock.as_uuid()))]))
}

pub(super) fn map(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let entries = entries.into_iter();
    let entries = entries.map(|(key, value)| (Value::String(key.to_owned()), value));
    Value::Map(entries.collect::<OrderedMap<_, _>>())
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(LONGEST_TEXT);
    // Half a character would make the frame invalid.
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[derive(Debug)]
pub(super) struct LinkAnswer {
    pub(super) status: i64,
    pub(super) condition: String,
    pub(super) text: String,
    pub(super) body: Value,
}

/// Decodes an answer, and the identifier of its request.
pub(super) fn answer(message: Message<Body<Value>>) -> Option<(String, LinkAnswer)> {
    // By order alone a late answer would shift all that follow.
    let id = message.properties?.correlation_id?;
    let marks = message.application_properties?.0;
    // `$cbs` and `$management` spell the same words differently.
    let mark = |one: &str, other: &str| marks.get(one).or_else(|| marks.get(other));
    let text = |value: Option<&SimpleValue>| match value {
        Some(SimpleValue::String(text)) => text.clone(),
        Some(SimpleValue::Symbol(symbol)) => symbol.0.clone(),
        _ => String::new(),
    };
    let status = match mark("statusCode", "status-code")? {
        SimpleValue::Int(status) => i64::from(*status),
        SimpleValue::Long(status) => *status,
        SimpleValue::Uint(status) => i64::from(*status),
        _ => return None,
    };
    let body = match message.body {
        Body::Value(value) => value.0,
        _ => Value::Null,
    };
    let answer = LinkAnswer {
        status,
        condition: text(mark("errorCondition", "error-condition")),
        text: text(mark("statusDescription", "status-description")),
        body,
    };
    Some((identifier(&id), answer))
}

impl LinkAnswer {
    pub(super) fn result(self) -> Result<Value, BusError> {
        if (200..300).contains(&self.status) {
            return Ok(self.body);
        }
        Err(BusError::Refused {
            status: Some(self.status),
            condition: self.condition,
            text: one_line(&self.text),
        })
    }
}

pub(super) fn expiration(body: &Value) -> Option<i64> {
    let Value::Map(body) = body else {
        return None;
    };
    match body.get(&Value::String("expirations".to_owned()))? {
        Value::Array(all) => all.0.first().and_then(millis),
        Value::List(all) => all.first().and_then(millis),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_tag_is_read_in_dotnet_byte_order() {
        // new Guid("00112233-4455-6677-8899-aabbccddeeff").ToByteArray() of .NET's documentation.
        let tag = [
            0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
            0xee, 0xff,
        ];
        let lock_token = LockToken::from_tag(&tag).expect("sixteen bytes");
        assert_eq!(
            lock_token.to_string(),
            "00112233-4455-6677-8899-aabbccddeeff"
        );
        assert_eq!(LockToken::from_uuid(lock_token.as_uuid()), lock_token);
        assert_eq!(LockToken::from_tag(&tag[1..]), None);
        assert_eq!(LockToken::from_tag(&[]), None);
    }

    #[test]
    fn timestamp_beyond_dates_is_shown_as_a_number() {
        let said = |millis| simple(&Value::Timestamp(Timestamp::from_milliseconds(millis)));
        for (millis, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-62_167_219_200_000, "0000-01-01T00:00:00Z"),
            (-62_167_219_200_001, "-62167219200001"),
            (-70_000_000_000_000, "-70000000000000"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (253_402_300_800_000, "253402300800000"),
            (i64::MIN, "-9223372036854775808"),
            (i64::MAX, "9223372036854775807"),
        ] {
            assert_eq!(said(millis).as_deref(), Some(text));
            let mut known = Properties::new();
            known.absolute_expiry_time = Some(Timestamp::from_milliseconds(millis));
            let expires = expires(&Header::default(), &known, None);
            assert_eq!(expires.is_some(), text.ends_with('Z'), "{text}");
        }
    }
}
