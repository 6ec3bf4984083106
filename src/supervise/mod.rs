//! Processes: the guardian, the command's tree, its containment and its terminal.
//!
//! ```text
//! supervisor (Attendant) ══ stream socketpair, frames ══ guardian ── command ── its tree
//! ```
//! [`fork`] makes the guardian while the process has one thread and no runtime; [`Attendant`] is
//! the supervisor's side of it inside the runtime. Only this room sends signals, forks or reads
//! /proc. It knows nothing of leases: it is given absolute deadlines and obeys them.

// The hidden ones are open for the simulated fleet (tests/fleet.rs); they are no interface.
mod attendant;
mod begin;
mod cage;
pub mod contain;
mod control;
mod estate;
mod guardian;
mod panic;
mod parcel;
#[doc(hidden)]
pub mod pulse;
mod rescue;
mod resolve;
mod sockets;
mod spawn;
mod tree;
pub mod tty;
mod vigil;
mod vitals;
#[doc(hidden)]
pub mod watch;
#[doc(hidden)]
pub mod wire;
mod words;

pub use attendant::Attendant;
pub use begin::begin;
pub use control::View;
pub use estate::Estate;
pub use guardian::{Guardian, fork, fork_for_a_teller};
pub use panic::leave_by_the_guardians;
pub use resolve::resolve;
pub use tty::{StopAsked, stop_ourselves};
pub use vitals::{Vitals, all_answer};
pub use words::{Contain, News, Order, Program, Refusal, Setup};
