//! What a service manager is told (`sd_notify`): that we are ready, what we do, that we are alive,
//! that we stop; and what the command tells it through us.
//!
//! ```text
//! command ── its NOTIFY_SOCKET: Proxy ──▶ ServiceManager ──▶ our NOTIFY_SOCKET: Socket ── service manager
//!                      notices, news ──────▲
//! ```
//! Opened by the drivers after the guardians were forked; told by those who tell people. A service
//! manager that is gone, or does not read, costs one line in the log. It must never wait.

mod proxy;
mod service_manager;
mod socket;
mod tasks;

pub use service_manager::{Ready, ServiceManager};
pub use socket::{PRIVATE, Surroundings, VARIABLE};
