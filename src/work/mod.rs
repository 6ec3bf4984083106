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
//! it as they keep every lease. Nothing here knows which kind of queue it is, but for `open`
//! and `connect`.

pub mod lease;
pub mod message_io;
pub mod scheduler;
pub mod settle;

#[cfg(feature = "service-bus")]
mod connect;
mod delay;
mod exit_status;
mod observer;
mod open;
mod preparing;
mod processor;
#[cfg(test)]
pub(crate) mod scripted;
mod worker;
mod workload;

pub use worker::work;
