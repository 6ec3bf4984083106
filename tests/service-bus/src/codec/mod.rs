//! The AMQP 1.0 wire format, written from the standard's text without any client's library: a
//! mistake common to a client and its test broker would never be found.
//!
//! Bytes from the network are decoded by functions that return [`Malformed`]; none panics, recurses
//! without bound or trusts a length without the bytes.

pub mod decode;
pub mod encode;
pub mod frame;
pub mod guid;
pub mod message;
pub mod performative;
pub mod state;
pub mod value;

#[cfg(test)]
mod tests;

pub use decode::{Malformed, decode_value};
pub use encode::encode_value;
pub use guid::Guid;
pub use message::Message;
pub use value::Value;
