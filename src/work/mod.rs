//! `trafficcop work`: takes messages, runs a command for each while its lock is ours, and settles
//! it by how that ended.
//!
//! ```text
//! desk (pure: take, wait, leave) ─▶ worker ─▶ take ─▶ slot: hold(held, handler) ─▶ settle
//!                                                          │        │
//!                                             the message's lock    the command, under a guardian
//! ```
//! [`settle`] is the table of what becomes of a message, [`desk`] what the worker does next: both
//! are pure. [`held`] makes a lease of a message's lock, so that [`crate::driver`] and the core keep
//! it as they keep every lease. Nothing here knows which kind of queue it is, but for `open`
//! and `bus`.

pub mod desk;
pub mod handover;
pub mod held;
pub mod settle;

mod away;
#[cfg(feature = "service-bus")]
mod bus;
mod ending;
mod handler;
mod notary;
mod open;
mod preparing;
#[cfg(test)]
pub(crate) mod scripted;
mod slot;
mod worker;

pub use worker::work;
