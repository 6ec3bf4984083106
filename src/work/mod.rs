//! `trafficcop work`: takes messages, runs a command for each under the message's lock, and settles it by how
//! the command ended.
//!
//! ```text
//! scheduler (pure: take, wait, leave) ─▶ worker ─▶ take ─▶ processor: drive(lease, workload) ─▶ settle
//!                                                          │        │
//!                                             the message's lock    the command, under a guardian
//! ```
//! [`settle`] decides about a message, [`scheduler`] what the worker does next: both are pure. [`lease`]
//! presents a message's lock as a lease. Only `open` knows the kinds of queues.

pub mod lease;
#[cfg(feature = "cli")]
pub mod message_io;

#[cfg(feature = "cli")]
mod hand_over;
#[cfg(feature = "cli")]
pub(crate) mod observer;
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
