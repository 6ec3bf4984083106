//! The broker: one engine thread that owns all state, and threads that only read and write sockets.
//!
//! As the data goes: [`wire`] cuts frames out of sockets, [`engine`] takes them one by one,
//! [`connection`] and [`session`] speak the protocol, [`attach`] lets links in, [`settle`] gives
//! messages out and takes dispositions, [`sessions`] says who has which session, [`requests`] reads what clients send ([`access`] judges
//! tokens, [`management`] does requests), [`namespace`] and [`store`] hold the messages, [`faults`]
//! says what goes wrong, [`journal`] what happened. [`control`] is what a test holds.

mod access;
mod attach;
mod connection;
mod control;
mod engine;
mod faults;
mod journal;
mod management;
mod namespace;
mod requests;
mod session;
mod sessions;
mod settings;
mod settle;
mod sha256;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod wire;

pub use access::Access;
pub use control::{Broker, View, Waiting};
pub use faults::{Act, Fault, On};
pub use journal::{Entry, Event, Outcome, Way};
pub use namespace::QueueSettings;
pub use settings::Settings;
pub use store::{Counts, State};
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsError};

/// The condition of what comes too late for a session.
pub(crate) const SESSION_LOST: &str = "com.microsoft:session-lock-lost";
/// Its text.
pub(crate) const SESSION_LOST_TEXT: &str = "The session lock has expired on the session. Accept a \
    new one.";
/// The condition of everything that comes too late.
pub const LOCK_LOST: &str = "com.microsoft:message-lock-lost";
/// Its text.
pub(crate) const LOCK_LOST_TEXT: &str = "The lock supplied is invalid. Either the lock expired, or \
    the message has already been removed from the queue.";
