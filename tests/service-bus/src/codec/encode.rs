//! Encoding of values in each one's smallest form, as clients do it.

use super::Value;

/// Appends one value.
pub fn encode_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Described(descriptor, described) => {
            out.push(0x00);
            encode_value(descriptor, out);
            encode_value(described, out);
        }
        Value::List(elements) if elements.is_empty() => out.push(0x45),
        Value::List(_) | Value::Map(_) => encode_compound(value, out),
        Value::Array(elements) => encode_array(elements, out),
        Value::Binary(bytes) => encode_variable(0xa0, bytes, out),
        Value::String(text) => encode_variable(0xa1, text.as_bytes(), out),
        Value::Symbol(text) => encode_variable(0xa3, text.as_bytes(), out),
        _ => encode_fixed(value, out),
    }
}

/// Encodes a value into a new buffer.
#[must_use]
pub fn encoded(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    encode_value(value, &mut out);
    out
}

fn encode_fixed(value: &Value, out: &mut Vec<u8>) {
    match *value {
        Value::Bool(true) => out.push(0x41),
        Value::Bool(false) => out.push(0x42),
        Value::Uint(0) => out.push(0x43),
        Value::Ulong(0) => out.push(0x44),
        Value::Uint(n) if n < 256 => out.extend([0x52, n as u8]),
        Value::Ulong(n) if n < 256 => out.extend([0x53, n as u8]),
        Value::Int(n) if i8::try_from(n).is_ok() => out.extend([0x54, n as u8]),
        Value::Long(n) if i8::try_from(n).is_ok() => out.extend([0x55, n as u8]),
        _ => {
            out.push(constructor(value));
            encode_payload(value, out);
        }
    }
}

fn encode_compound(value: &Value, out: &mut Vec<u8>) {
    let (short, count, body) = compound_body(value);
    if body.len() < 255 && count < 256 {
        out.extend([short, body.len() as u8 + 1, count as u8]);
    } else {
        out.push(short + 0x10);
        out.extend(u32_len(body.len() + 4));
        out.extend(u32_len(count));
    }
    out.extend(body);
}

/// Returns the short constructor, the number of elements, and their encodings.
fn compound_body(value: &Value) -> (u8, usize, Vec<u8>) {
    let mut body = Vec::new();
    match value {
        Value::List(elements) => {
            for element in elements {
                encode_value(element, &mut body);
            }
            (0xc0, elements.len(), body)
        }
        Value::Map(entries) => {
            for (key, value) in entries {
                encode_value(key, &mut body);
                encode_value(value, &mut body);
            }
            (0xc1, entries.len() * 2, body)
        }
        _ => (0x45, 0, body),
    }
}

/// Encodes binary, string or symbol; `short` is the constructor with a length of one byte.
fn encode_variable(short: u8, bytes: &[u8], out: &mut Vec<u8>) {
    match u8::try_from(bytes.len()) {
        Ok(length) => out.extend([short, length]),
        Err(_) => {
            out.push(short + 0x10);
            out.extend(u32_len(bytes.len()));
        }
    }
    out.extend(bytes);
}

fn encode_array(elements: &[Value], out: &mut Vec<u8>) {
    let body = array_body(elements);
    if body.len() < 255 && elements.len() < 256 {
        out.extend([0xe0, body.len() as u8 + 1, elements.len() as u8]);
        out.extend(body);
    } else {
        out.push(0xf0);
        encode_payload(&Value::Array(elements.to_vec()), out);
    }
}

/// Encodes elements with one constructor in its widest form, which fits every element.
fn array_body(elements: &[Value]) -> Vec<u8> {
    let mut body = Vec::new();
    match elements.first() {
        None => body.push(0x40),
        Some(Value::Described(descriptor, inner)) => {
            body.push(0x00);
            encode_value(descriptor, &mut body);
            body.push(constructor(inner));
        }
        Some(first) => body.push(constructor(first)),
    }
    for element in elements {
        match element {
            Value::Described(_, inner) => encode_payload(inner, &mut body),
            plain => encode_payload(plain, &mut body),
        }
    }
    body
}

fn constructor(value: &Value) -> u8 {
    match value {
        Value::Null => 0x40,
        Value::Ubyte(_) => 0x50,
        Value::Byte(_) => 0x51,
        Value::Bool(_) => 0x56,
        Value::Ushort(_) => 0x60,
        Value::Short(_) => 0x61,
        Value::Uint(_) => 0x70,
        Value::Int(_) => 0x71,
        Value::Float(_) => 0x72,
        Value::Char(_) => 0x73,
        Value::Ulong(_) => 0x80,
        Value::Long(_) => 0x81,
        Value::Double(_) => 0x82,
        Value::Timestamp(_) => 0x83,
        Value::Uuid(_) => 0x98,
        Value::Decimal(bytes) => match bytes.len() {
            4 => 0x74,
            8 => 0x84,
            _ => 0x94,
        },
        Value::Binary(_) => 0xb0,
        Value::String(_) => 0xb1,
        Value::Symbol(_) => 0xb3,
        Value::List(_) => 0xd0,
        Value::Map(_) => 0xd1,
        Value::Array(_) => 0xf0,
        Value::Described(..) => 0x00,
    }
}

fn encode_payload(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => {}
        Value::Bool(b) => out.push((*b).into()),
        Value::Ubyte(n) => out.push(*n),
        Value::Byte(n) => out.push(*n as u8),
        Value::Ushort(n) => out.extend(n.to_be_bytes()),
        Value::Short(n) => out.extend(n.to_be_bytes()),
        Value::Uint(n) => out.extend(n.to_be_bytes()),
        Value::Int(n) => out.extend(n.to_be_bytes()),
        Value::Float(n) => out.extend(n.to_be_bytes()),
        Value::Char(c) => out.extend((*c as u32).to_be_bytes()),
        Value::Ulong(n) => out.extend(n.to_be_bytes()),
        Value::Long(n) | Value::Timestamp(n) => out.extend(n.to_be_bytes()),
        Value::Double(n) => out.extend(n.to_be_bytes()),
        Value::Uuid(id) => out.extend(id.0),
        Value::Decimal(bytes) => out.extend(bytes),
        Value::Binary(bytes) => {
            out.extend(u32_len(bytes.len()));
            out.extend(bytes);
        }
        Value::String(text) | Value::Symbol(text) => {
            out.extend(u32_len(text.len()));
            out.extend(text.as_bytes());
        }
        Value::List(_) | Value::Map(_) => {
            let (_, count, body) = compound_body(value);
            out.extend(u32_len(body.len() + 4));
            out.extend(u32_len(count));
            out.extend(body);
        }
        Value::Array(elements) => {
            let body = array_body(elements);
            out.extend(u32_len(body.len() + 4));
            out.extend(u32_len(elements.len()));
            out.extend(body);
        }
        Value::Described(..) => encode_value(value, out),
    }
}

/// Encodes a length in four bytes.
///
/// # Panics
/// At 4 GiB, which no frame can hold here.
pub(crate) fn u32_len(length: usize) -> [u8; 4] {
    u32::try_from(length)
        .expect("less than 4 GiB in one value")
        .to_be_bytes()
}
