//! `--listen`: what other programs may ask this instance over HTTP, and what they are told.
//!
//! ```text
//! driver ── notices, events, replies ─▶ SharedStatus ◀── server (a thread and a runtime of its own)
//! guardian ── the control file's word ────▲
//! ```
//! The supervisor's loop writes to the [`SharedStatus`] and never waits for anybody who reads it. Whether
//! we lead is no part of the shared status: it is worked out of the deadline and the clock at the moment
//! of the question. Nothing of this room exists without `--listen`, and nothing in it may end or
//! hold up what runs under control.

mod listener;
mod metrics;
mod server;
mod shared_status;

pub(crate) use listener::{Address, Listener};
pub(crate) use server::Server;
pub(crate) use shared_status::SharedStatus;
