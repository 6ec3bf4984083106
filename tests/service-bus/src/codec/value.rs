//! An AMQP value of any type.

use super::Guid;

/// A value: the standard's primitive and compound types, and described values (a descriptor in
/// front of another value).
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Null, or a field that was left out.
    Null,
    /// `boolean`
    Bool(bool),
    /// `ubyte`
    Ubyte(u8),
    /// `ushort`
    Ushort(u16),
    /// `uint`
    Uint(u32),
    /// `ulong`
    Ulong(u64),
    /// `byte`
    Byte(i8),
    /// `short`
    Short(i16),
    /// `int`
    Int(i32),
    /// `long`
    Long(i64),
    /// `float`
    Float(f32),
    /// `double`
    Double(f64),
    /// `decimal32`, `decimal64` or `decimal128`, which are only passed on: 4, 8 or 16 bytes.
    Decimal(Vec<u8>),
    /// `char`
    Char(char),
    /// `timestamp`: milliseconds since 1970.
    Timestamp(i64),
    /// `uuid`
    Uuid(Guid),
    /// `binary`
    Binary(Vec<u8>),
    /// `string`
    String(String),
    /// `symbol`: ASCII
    Symbol(String),
    /// `list`
    List(Vec<Value>),
    /// `map`, in the order of the sender
    Map(Vec<(Value, Value)>),
    /// `array`: elements of one type
    Array(Vec<Value>),
    /// A descriptor and the described value.
    Described(Box<Value>, Box<Value>),
}

impl Value {
    /// Makes a list with a numeric descriptor, the form of everything in the standard, without its
    /// trailing nulls, which mean nothing.
    #[must_use]
    pub fn composite(code: u64, mut fields: Vec<Value>) -> Self {
        while fields.last() == Some(&Value::Null) {
            fields.pop();
        }
        Value::Described(Box::new(Value::Ulong(code)), Box::new(Value::List(fields)))
    }

    /// Makes a value with a numeric descriptor.
    #[must_use]
    pub fn described(code: u64, value: Value) -> Self {
        Value::Described(Box::new(Value::Ulong(code)), Box::new(value))
    }

    /// Makes a string.
    #[must_use]
    pub fn string(text: impl Into<String>) -> Self {
        Value::String(text.into())
    }

    /// Makes a symbol.
    #[must_use]
    pub fn symbol(text: impl Into<String>) -> Self {
        Value::Symbol(text.into())
    }

    /// Makes a map from strings, as in application properties and management bodies.
    #[must_use]
    pub fn string_map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Value)>) -> Self {
        Value::Map(
            entries
                .into_iter()
                .map(|(key, value)| (Value::string(key), value))
                .collect(),
        )
    }

    /// Returns the text of a string or a symbol.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Value::String(text) | Value::Symbol(text) => Some(text),
            _ => None,
        }
    }

    /// Returns any non-negative whole number.
    #[must_use]
    pub fn unsigned(&self) -> Option<u64> {
        match *self {
            Value::Ubyte(n) => Some(n.into()),
            Value::Ushort(n) => Some(n.into()),
            Value::Uint(n) => Some(n.into()),
            Value::Ulong(n) => Some(n),
            _ => self.signed().and_then(|n| n.try_into().ok()),
        }
    }

    /// Returns any whole number that fits.
    #[must_use]
    pub fn signed(&self) -> Option<i64> {
        match *self {
            Value::Byte(n) => Some(n.into()),
            Value::Short(n) => Some(n.into()),
            Value::Int(n) => Some(n.into()),
            Value::Long(n) | Value::Timestamp(n) => Some(n),
            Value::Ubyte(n) => Some(n.into()),
            Value::Ushort(n) => Some(n.into()),
            Value::Uint(n) => Some(n.into()),
            Value::Ulong(n) => n.try_into().ok(),
            _ => None,
        }
    }

    /// Returns a key's value in a map; strings and symbols are equal here.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Value::Map(entries) = self else {
            return None;
        };
        entries
            .iter()
            .find(|(k, _)| k.text() == Some(key))
            .map(|(_, value)| value)
    }

    /// Returns the elements of a list or an array.
    #[must_use]
    pub fn elements(&self) -> Option<&[Value]> {
        match self {
            Value::List(elements) | Value::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// Returns the numeric descriptor and the described value.
    #[must_use]
    pub fn as_described(&self) -> Option<(u64, &Value)> {
        match self {
            Value::Described(descriptor, value) => Some((code_of(descriptor)?, value)),
            _ => None,
        }
    }
}

/// Returns a descriptor's number; the standard's own types also have symbolic ones.
#[must_use]
pub fn code_of(descriptor: &Value) -> Option<u64> {
    match descriptor {
        Value::Ulong(code) => Some(*code),
        Value::Symbol(name) => NAMES
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, code)| *code),
        _ => None,
    }
}

/// Symbolic descriptors that a peer may send instead of numbers.
const NAMES: &[(&str, u64)] = &[
    ("amqp:open:list", 0x10),
    ("amqp:begin:list", 0x11),
    ("amqp:attach:list", 0x12),
    ("amqp:flow:list", 0x13),
    ("amqp:transfer:list", 0x14),
    ("amqp:disposition:list", 0x15),
    ("amqp:detach:list", 0x16),
    ("amqp:end:list", 0x17),
    ("amqp:close:list", 0x18),
    ("amqp:error:list", 0x1d),
    ("amqp:received:list", 0x23),
    ("amqp:accepted:list", 0x24),
    ("amqp:rejected:list", 0x25),
    ("amqp:released:list", 0x26),
    ("amqp:modified:list", 0x27),
    ("amqp:source:list", 0x28),
    ("amqp:target:list", 0x29),
    ("amqp:sasl-mechanisms:list", 0x40),
    ("amqp:sasl-init:list", 0x41),
    ("amqp:sasl-challenge:list", 0x42),
    ("amqp:sasl-response:list", 0x43),
    ("amqp:sasl-outcome:list", 0x44),
    ("amqp:header:list", 0x70),
    ("amqp:delivery-annotations:map", 0x71),
    ("amqp:message-annotations:map", 0x72),
    ("amqp:properties:list", 0x73),
    ("amqp:application-properties:map", 0x74),
    ("amqp:data:binary", 0x75),
    ("amqp:amqp-sequence:list", 0x76),
    ("amqp:amqp-value:*", 0x77),
    ("amqp:footer:map", 0x78),
];
