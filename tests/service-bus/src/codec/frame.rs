//! Frames and protocol headers.

use std::io::{self, Read};

use super::encode::{encode_value, u32_len};
use super::performative::Performative;
use super::{Malformed, decode_value};

/// Protocol header of AMQP.
pub const AMQP_HEADER: [u8; 8] = *b"AMQP\x00\x01\x00\x00";
/// Protocol header of the SASL layer.
pub const SASL_HEADER: [u8; 8] = *b"AMQP\x03\x01\x00\x00";
/// Smallest limit of a frame's size, which applies before the negotiation.
pub const MIN_MAX_FRAME: u32 = 512;

/// An input from the stream.
#[derive(Debug)]
pub enum Input {
    /// The eight bytes that start a protocol.
    Header([u8; 8]),
    /// A frame without a body.
    Heartbeat,
    /// A frame with a body, and a transfer's payload.
    Frame {
        /// Channel of the session; unused in SASL.
        channel: u16,
        /// Whether it is a frame of SASL.
        sasl: bool,
        /// Body of the frame.
        performative: Box<Performative>,
        /// Bytes after the body.
        payload: Vec<u8>,
    },
}

/// Reason why there is no further input.
#[derive(Debug)]
pub enum Failure {
    /// The stream ended or failed.
    Gone(io::Error),
    /// The peer sent no AMQP.
    Malformed(Malformed),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// Reads the next frame or header.
///
/// # Errors
/// If the stream ended, or is not AMQP, or a frame is larger than `max_frame` bytes.
pub fn read(stream: &mut impl Read, max_frame: u32) -> Result<Input, Failure> {
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    if head.starts_with(b"AMQP") {
        return Ok(Input::Header(head));
    }
    let size = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    if size < 8 || size > max_frame {
        return Err(Malformed::framing(format!(
            "a frame of {size} bytes, where 8 to {max_frame} are allowed"
        ))
        .into());
    }
    let mut rest = vec![0; size as usize - 8];
    stream.read_exact(&mut rest)?;
    Ok(decode(head, &rest)?)
}

/// Decodes a frame from its first eight bytes and the rest.
///
/// # Errors
/// If it is invalid.
pub fn decode(head: [u8; 8], rest: &[u8]) -> Result<Input, Malformed> {
    let skip = usize::from(head[4]) * 4;
    let Some(body) = skip
        .checked_sub(8)
        .and_then(|extended| rest.get(extended..))
    else {
        return Err(Malformed::framing(format!(
            "the body starts at byte {skip} of a frame of {}",
            rest.len() + 8
        )));
    };
    let sasl = match head[5] {
        0 => false,
        1 => true,
        other => return Err(Malformed::framing(format!("a frame of type {other}"))),
    };
    if body.is_empty() {
        return Ok(Input::Heartbeat);
    }
    let (value, used) = decode_value(body)?;
    Ok(Input::Frame {
        channel: u16::from_be_bytes([head[6], head[7]]),
        sasl,
        performative: Box::new(Performative::from_value(&value)?),
        payload: body[used..].to_vec(),
    })
}

/// Encodes a frame.
#[must_use]
pub fn encode(sasl: bool, channel: u16, performative: &Performative, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0, 0, 0, 2, sasl.into()];
    out.extend(channel.to_be_bytes());
    encode_value(&performative.to_value(), &mut out);
    out.extend(payload);
    let size = u32_len(out.len());
    out[..4].copy_from_slice(&size);
    out
}

/// Encodes a frame without a body.
#[must_use]
pub fn heartbeat() -> Vec<u8> {
    vec![0, 0, 0, 8, 2, 0, 0, 0]
}
