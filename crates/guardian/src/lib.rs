//! Processes: the guardian, the command's tree, its containment and its terminal.
//!
//! ```text
//! supervisor (GuardianHandle) ══ stream socketpair, frames ══ guardian ── command ── its tree
//! ```
//! [`fork`] makes the guardian while the process has one thread. [`GuardianHandle`] is the supervisor's side of it
//! inside the runtime. Only this crate signals, forks or reads /proc. It obeys absolute deadlines and knows no
//! leases.

// Hidden items are public for the simulated fleet (tests/fleet.rs).
pub mod containment;
mod control;
mod event_loop;
mod fork;
mod handle;
#[doc(hidden)]
pub mod liveness;
mod process;
mod raw;
mod shared_memory;
mod socket_activation;
mod spawn;
#[doc(hidden)]
pub mod state;
mod tree;
pub mod tty;
mod types;
#[doc(hidden)]
pub mod wire;
mod witness;

pub use control::View;
pub use control::{is_control_file, is_control_file_in_use};
#[doc(hidden)]
pub use event_loop::{EventLoop, Ready, System, Wait};
pub use fork::threads;
pub use fork::{Guardian, fork};
pub use handle::GuardianHandle;
#[doc(hidden)]
pub use handle::Peer;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use handle::scripted;
pub use liveness::{HealthCheck, all_answer};
pub use process::{begin, leave_by_the_guardians, stdout_was_closed};
pub use shared_memory::SharedBytes;
pub use spawn::which;
pub use state::{ControlState, StopTo};
#[doc(hidden)]
pub use tree::Change;
pub use tty::{StopAsked, is_in_foreground, pass_to_own_group, stop_ourselves};
pub use types::{Contain, Partner, Program, Setup, SetupError, SpawnRequest};
