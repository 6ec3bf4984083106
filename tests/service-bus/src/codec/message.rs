//! Messages: the sender's sections, which do not change, and those that a broker may write.
//!
//! Properties, application properties, body and footer are kept as bytes. Only dead-lettering (and
//! a client that requests it) changes the application properties.

use super::encode::encode_value;
use super::{Malformed, Value, decode_value};

const HEADER: u64 = 0x70;
const DELIVERY_ANNOTATIONS: u64 = 0x71;
const MESSAGE_ANNOTATIONS: u64 = 0x72;
const PROPERTIES: u64 = 0x73;
const APPLICATION_PROPERTIES: u64 = 0x74;
const DATA: u64 = 0x75;
const AMQP_VALUE: u64 = 0x77;
const FOOTER: u64 = 0x78;

/// A message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// Fields of the header; the fifth is the delivery count.
    pub header: Vec<Value>,
    /// Annotations for the next hop only.
    pub delivery_annotations: Vec<(Value, Value)>,
    /// Annotations `x-opt-…`, written by the broker.
    pub annotations: Vec<(Value, Value)>,
    /// The sender's sections, each with its code, as encoded.
    sections: Vec<(u64, Vec<u8>)>,
}

impl Message {
    /// Decodes a message.
    ///
    /// # Errors
    /// If the bytes are not a sequence of known sections.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, Malformed> {
        let mut message = Self::default();
        while !bytes.is_empty() {
            let (value, used) = decode_value(bytes)?;
            let (raw, rest) = bytes.split_at(used);
            bytes = rest;
            match value.as_described() {
                Some((HEADER, Value::List(fields))) => message.header = fields.clone(),
                Some((DELIVERY_ANNOTATIONS, Value::Map(map))) => {
                    message.delivery_annotations = map.clone();
                }
                Some((MESSAGE_ANNOTATIONS, Value::Map(map))) => message.annotations = map.clone(),
                Some((code @ PROPERTIES..=FOOTER, _)) => {
                    message.sections.push((code, raw.to_vec()));
                }
                _ => return Err(Malformed::decode("a message with an unknown section")),
            }
        }
        Ok(message)
    }

    /// Makes a message with one data section.
    #[must_use]
    pub fn data(body: &[u8]) -> Self {
        Self::default().with(DATA, &Value::Binary(body.to_vec()))
    }

    /// Makes a message whose body is one value.
    #[must_use]
    pub fn value(body: &Value) -> Self {
        Self::default().with(AMQP_VALUE, body)
    }

    /// Adds properties; trailing nulls are left out.
    #[must_use]
    pub fn with_properties(self, mut fields: Vec<Value>) -> Self {
        while fields.last() == Some(&Value::Null) {
            fields.pop();
        }
        self.with(PROPERTIES, &Value::List(fields))
    }

    /// Sets the session and the id.
    #[must_use]
    pub fn in_session(self, session: &str, id: &str) -> Self {
        let mut fields = vec![Value::Null; 11];
        fields[0] = Value::string(id);
        fields[10] = Value::string(session);
        self.with_properties(fields)
    }

    /// Adds application properties.
    #[must_use]
    pub fn with_application_properties(self, entries: Vec<(Value, Value)>) -> Self {
        self.with(APPLICATION_PROPERTIES, &Value::Map(entries))
    }

    /// Replaces one of the same kind where only one is allowed.
    fn with(mut self, code: u64, value: &Value) -> Self {
        self.put(code, value);
        self
    }

    fn put(&mut self, code: u64, value: &Value) {
        let mut raw = Vec::new();
        encode_value(&Value::described(code, value.clone()), &mut raw);
        self.sections.retain(|(other, _)| *other != code);
        let at = self.sections.partition_point(|(other, _)| *other < code);
        self.sections.insert(at, (code, raw));
    }

    /// Encodes the whole message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.header.is_empty() {
            encode_value(&Value::composite(HEADER, self.header.clone()), &mut out);
        }
        for (code, map) in [
            (DELIVERY_ANNOTATIONS, &self.delivery_annotations),
            (MESSAGE_ANNOTATIONS, &self.annotations),
        ] {
            if !map.is_empty() {
                encode_value(&Value::described(code, Value::Map(map.clone())), &mut out);
            }
        }
        for (_, raw) in &self.sections {
            out.extend(raw);
        }
        out
    }

    /// Returns the header's number of earlier attempts.
    #[must_use]
    pub fn delivery_count(&self) -> Option<u64> {
        self.header.get(4).and_then(Value::unsigned)
    }

    /// Writes that number, also if it is 0.
    pub fn set_delivery_count(&mut self, count: u32) {
        self.header.resize(self.header.len().max(5), Value::Null);
        self.header[4] = Value::Uint(count);
    }

    /// Returns a message annotation.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<&Value> {
        self.annotations
            .iter()
            .find(|(key, _)| key.text() == Some(name))
            .map(|(_, value)| value)
    }

    /// Writes or replaces a message annotation.
    pub fn annotate(&mut self, name: &str, value: Value) {
        self.annotations.retain(|(key, _)| key.text() != Some(name));
        self.annotations.push((Value::symbol(name), value));
    }

    /// Returns a property: 0 message-id, 2 to, 3 subject, 4 reply-to, 5 correlation-id, 6
    /// content-type, 10 group-id.
    #[must_use]
    pub fn property(&self, at: usize) -> Option<Value> {
        let field = self.section(PROPERTIES)?.elements()?.get(at)?.clone();
        (field != Value::Null).then_some(field)
    }

    /// Returns the application properties, perhaps empty.
    #[must_use]
    pub fn application_properties(&self) -> Value {
        self.section(APPLICATION_PROPERTIES)
            .unwrap_or_else(|| Value::Map(Vec::new()))
    }

    /// Writes or replaces application properties.
    pub fn set_application_properties(&mut self, new: Vec<(Value, Value)>) {
        let Value::Map(mut all) = self.application_properties() else {
            return;
        };
        for (key, value) in new {
            all.retain(|(known, _)| known.text() != key.text());
            all.push((key, value));
        }
        self.put(APPLICATION_PROPERTIES, &Value::Map(all));
    }

    /// Returns the bytes of all data sections together.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        self.data_sections().concat()
    }

    /// Returns the bytes of each data section.
    #[must_use]
    pub fn data_sections(&self) -> Vec<Vec<u8>> {
        self.sections
            .iter()
            .filter(|(code, _)| *code == DATA)
            .filter_map(|(_, raw)| match described(raw)? {
                Value::Binary(bytes) => Some(bytes),
                _ => None,
            })
            .collect()
    }

    /// Returns the value of a body that is one.
    #[must_use]
    pub fn body_value(&self) -> Option<Value> {
        self.section(AMQP_VALUE)
    }

    fn section(&self, code: u64) -> Option<Value> {
        let (_, raw) = self.sections.iter().find(|(other, _)| *other == code)?;
        described(raw)
    }
}

fn described(raw: &[u8]) -> Option<Value> {
    match decode_value(raw) {
        Ok((Value::Described(_, value), _)) => Some(*value),
        _ => None,
    }
}
