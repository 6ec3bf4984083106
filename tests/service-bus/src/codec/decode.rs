//! Decoding of values. No length, count or nesting is trusted without the bytes.

use std::fmt;

use super::{Guid, Value};

/// Nested lists, maps, arrays and descriptors. Clients need four or five.
const DEEPEST: usize = 32;

/// A decoding error, with the condition for closing the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Condition of the AMQP error, such as `amqp:decode-error`.
    pub condition: &'static str,
    /// Description for people.
    pub what: String,
}

impl Malformed {
    /// Bytes are no value.
    pub(crate) fn decode(what: impl Into<String>) -> Self {
        Self {
            condition: "amqp:decode-error",
            what: what.into(),
        }
    }

    /// Makes the error for a value that is not allowed in its place.
    pub(crate) fn field(what: impl Into<String>) -> Self {
        Self {
            condition: "amqp:invalid-field",
            what: what.into(),
        }
    }

    /// Makes the error for an invalid frame.
    pub(crate) fn framing(what: impl Into<String>) -> Self {
        Self {
            condition: "amqp:connection:framing-error",
            what: what.into(),
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.condition, self.what)
    }
}

impl std::error::Error for Malformed {}

/// Decodes the first value; also returns its length.
///
/// # Errors
/// If the bytes do not begin with one whole value.
pub fn decode_value(bytes: &[u8]) -> Result<(Value, usize), Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    let value = reader.value(0)?;
    Ok((value, reader.at))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(length);
        let Some(slice) = end.and_then(|end| self.bytes.get(self.at..end)) else {
            return Err(Malformed::decode(format!(
                "{length} bytes are announced at {} and {} are there",
                self.at,
                self.bytes.len() - self.at
            )));
        };
        self.at += length;
        Ok(slice)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.fixed::<1>()?[0])
    }

    fn length(&mut self, wide: bool) -> Result<usize, Malformed> {
        Ok(if wide {
            u32::from_be_bytes(self.fixed()?) as usize
        } else {
            self.byte()?.into()
        })
    }

    fn value(&mut self, depth: usize) -> Result<Value, Malformed> {
        let constructor = self.byte()?;
        if constructor == 0x00 {
            let depth = deeper(depth)?;
            let descriptor = self.value(depth)?;
            let described = self.value(depth)?;
            return Ok(Value::Described(Box::new(descriptor), Box::new(described)));
        }
        self.payload(constructor, depth)
    }

    fn payload(&mut self, constructor: u8, depth: usize) -> Result<Value, Malformed> {
        Ok(match constructor {
            0x40 => Value::Null,
            0x41 => Value::Bool(true),
            0x42 => Value::Bool(false),
            0x43 => Value::Uint(0),
            0x44 => Value::Ulong(0),
            0x45 => Value::List(Vec::new()),
            0x50 => Value::Ubyte(self.byte()?),
            0x51 => Value::Byte(i8::from_be_bytes(self.fixed()?)),
            0x52 => Value::Uint(self.byte()?.into()),
            0x53 => Value::Ulong(self.byte()?.into()),
            0x54 => Value::Int(i8::from_be_bytes(self.fixed()?).into()),
            0x55 => Value::Long(i8::from_be_bytes(self.fixed()?).into()),
            0x56 => match self.byte()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => return Err(Malformed::decode(format!("a boolean of {other}"))),
            },
            0x60 => Value::Ushort(u16::from_be_bytes(self.fixed()?)),
            0x61 => Value::Short(i16::from_be_bytes(self.fixed()?)),
            0x70 => Value::Uint(u32::from_be_bytes(self.fixed()?)),
            0x71 => Value::Int(i32::from_be_bytes(self.fixed()?)),
            0x72 => Value::Float(f32::from_be_bytes(self.fixed()?)),
            0x73 => {
                let code = u32::from_be_bytes(self.fixed()?);
                Value::Char(
                    char::from_u32(code)
                        .ok_or_else(|| Malformed::decode(format!("{code:#x} is no character")))?,
                )
            }
            0x74 => Value::Decimal(self.take(4)?.to_vec()),
            0x80 => Value::Ulong(u64::from_be_bytes(self.fixed()?)),
            0x81 => Value::Long(i64::from_be_bytes(self.fixed()?)),
            0x82 => Value::Double(f64::from_be_bytes(self.fixed()?)),
            0x83 => Value::Timestamp(i64::from_be_bytes(self.fixed()?)),
            0x84 => Value::Decimal(self.take(8)?.to_vec()),
            0x94 => Value::Decimal(self.take(16)?.to_vec()),
            0x98 => Value::Uuid(Guid(self.fixed()?)),
            0xa0 | 0xb0 => Value::Binary(self.variable(constructor)?.to_vec()),
            0xa1 | 0xb1 => Value::String(
                std::str::from_utf8(self.variable(constructor)?)
                    .map_err(|_| Malformed::decode("a string that is not UTF-8"))?
                    .to_owned(),
            ),
            0xa3 | 0xb3 => {
                let bytes = self.variable(constructor)?;
                if !bytes.is_ascii() {
                    return Err(Malformed::decode("a symbol that is not ASCII"));
                }
                Value::Symbol(String::from_utf8_lossy(bytes).into_owned())
            }
            0xc0 | 0xd0 => Value::List(self.compound(constructor == 0xd0, depth)?),
            0xc1 | 0xd1 => Value::Map(pairs(self.compound(constructor == 0xd1, depth)?)?),
            0xe0 | 0xf0 => Value::Array(self.array(constructor == 0xf0, depth)?),
            other => {
                return Err(Malformed::decode(format!(
                    "no type has the code {other:#04x}"
                )));
            }
        })
    }

    fn variable(&mut self, constructor: u8) -> Result<&'a [u8], Malformed> {
        let length = self.length(constructor >= 0xb0)?;
        self.take(length)
    }

    /// Reads the elements of a list or a map, which must fill exactly the announced size.
    fn compound(&mut self, wide: bool, depth: usize) -> Result<Vec<Value>, Malformed> {
        let (mut inner, count) = self.inside(wide)?;
        let depth = deeper(depth)?;
        let mut elements = Vec::with_capacity(count.min(64));
        for _ in 0..count {
            elements.push(inner.value(depth)?);
        }
        inner.exhausted()?;
        Ok(elements)
    }

    fn array(&mut self, wide: bool, depth: usize) -> Result<Vec<Value>, Malformed> {
        let (mut inner, count) = self.inside(wide)?;
        let depth = deeper(depth)?;
        let constructor = inner.byte()?;
        let (descriptor, constructor) = if constructor == 0x00 {
            (Some(inner.value(depth)?), inner.byte()?)
        } else {
            (None, constructor)
        };
        let mut elements = Vec::with_capacity(count.min(64));
        for _ in 0..count {
            let element = inner.payload(constructor, depth)?;
            elements.push(match &descriptor {
                Some(descriptor) => {
                    Value::Described(Box::new(descriptor.clone()), Box::new(element))
                }
                None => element,
            });
        }
        inner.exhausted()?;
        Ok(elements)
    }

    /// Returns a reader of the announced bytes, and the announced number of elements. An array's
    /// element may take no bytes, so the number needs a limit of its own.
    fn inside(&mut self, wide: bool) -> Result<(Reader<'a>, usize), Malformed> {
        let size = self.length(wide)?;
        let mut inner = Reader {
            bytes: self.take(size)?,
            at: 0,
        };
        let count = inner.length(wide)?;
        if count > size {
            return Err(Malformed::decode(format!(
                "{count} elements in {size} bytes"
            )));
        }
        Ok((inner, count))
    }

    fn exhausted(&self) -> Result<(), Malformed> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        Err(Malformed::decode(format!(
            "{} bytes are left over behind the last element",
            self.bytes.len() - self.at
        )))
    }
}

fn deeper(depth: usize) -> Result<usize, Malformed> {
    if depth >= DEEPEST {
        return Err(Malformed::decode(format!(
            "values are nested deeper than {DEEPEST}"
        )));
    }
    Ok(depth + 1)
}

fn pairs(elements: Vec<Value>) -> Result<Vec<(Value, Value)>, Malformed> {
    if !elements.len().is_multiple_of(2) {
        return Err(Malformed::decode("a map with a key and no value"));
    }
    let mut pairs = Vec::with_capacity(elements.len() / 2);
    let mut elements = elements.into_iter();
    while let (Some(key), Some(value)) = (elements.next(), elements.next()) {
        pairs.push((key, value));
    }
    Ok(pairs)
}
