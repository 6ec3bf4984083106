//! The AMQP 1.0 wire format, written from the standard's text and sharing nothing with any client's
//! library: a mistake that a client and its test broker have in common would be found by nobody.
//!
//! Everything that comes from the network is decoded by functions that return [`Malformed`]; none
//! of them panics, recurses without bound or believes a length that the bytes do not back.

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
