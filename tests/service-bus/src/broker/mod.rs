//! The broker: one engine thread that owns all state, and threads that only read and write sockets.
//!
//! In the direction of the data: [`wire`] cuts frames out of sockets, [`engine`] takes them one by
//! one, [`connection`] and [`session`] speak the protocol, [`attach`] admits links, [`settle`]
//! delivers messages and takes dispositions, [`sessions`] locks sessions, [`requests`] reads the
//! clients' messages ([`access`] judges tokens, [`management`] carries out requests), [`namespace`]
//! and [`store`] hold the messages. [`control`] is the test's interface.

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
pub use store::{Counts, MessageState};
#[cfg(feature = "tls")]
pub use tls::{Tls, TlsError};

/// Answer to what is too late for a session.
pub(crate) const SESSION_LOST: &str = "com.microsoft:session-lock-lost";
pub(crate) const SESSION_LOST_TEXT: &str = "The session lock has expired on the session. Accept a \
    new one.";
/// Condition of every other late request.
pub const LOCK_LOST: &str = "com.microsoft:message-lock-lost";
pub(crate) const LOCK_LOST_TEXT: &str = "The lock supplied is invalid. Either the lock expired, or \
    the message has already been removed from the queue.";
