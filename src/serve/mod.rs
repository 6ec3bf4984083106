//! `--listen`: what other programs may ask this instance over HTTP, and what they are told.
//!
//! ```text
//! hold ── notices, news, replies ─▶ Board ◀── pages ◀── server (a thread and a runtime of its own)
//! guardian ── the control file's word ─▲
//! ```
//! The supervisor's loop writes to the [`Board`] and never waits for anybody who reads it. Whether
//! we lead is no state of the board: it is worked out of the deadline and the clock at the moment
//! of the question. Nothing of this room exists without `--listen`, and nothing in it may end or
//! hold up what runs under control.

mod address;
mod board;
mod listener;
mod metrics;
mod pages;
mod server;

pub use address::Address;
pub use board::Board;
pub use listener::{BindError, Listener};
pub use server::Server;
