//! `trafficcop work`: takes messages, runs a command for each while its lock is ours, and settles
//! it by how that ended.
//!
//! ```text
//! scheduler (pure: take, wait, leave) ─▶ worker ─▶ take ─▶ processor: drive(lease, workload) ─▶ settle
//!                                                          │        │
//!                                             the message's lock    the command, under a guardian
//! ```
//! [`settle`] is the table of what becomes of a message, [`scheduler`] what the worker does next: both
//! are pure. [`lease`] makes a lease of a message's lock, so that [`crate::driver`] and the core keep
//! it as they keep every lease. Where messages come in sessions, [`session`] has one after another
//! processed under the session's lock. Nothing here knows which kind of queue it is, but for `open`.

pub mod lease;
#[cfg(feature = "cli")]
pub mod message_io;

#[cfg(feature = "cli")]
mod hand_over;
#[cfg(feature = "cli")]
mod observer;
#[cfg(feature = "cli")]
mod open;
#[cfg(feature = "cli")]
mod processor;
#[cfg(feature = "cli")]
mod scheduler;
#[cfg(test)]
pub(crate) mod scripted;
#[cfg(feature = "cli")]
mod session;
#[cfg(feature = "cli")]
mod settle;
#[cfg(feature = "cli")]
mod worker;
#[cfg(feature = "cli")]
mod workload;

#[cfg(feature = "cli")]
pub use worker::work;
