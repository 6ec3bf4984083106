//! `trafficcop` as a service of systemd's, and as a guest on one of Azure's machines: what the
//! service manager is told, what the command gets of it, and what becomes of what the platform
//! announces.
//!
//! Read as a specification: each test is one sentence of it. The service manager is played by the
//! test: a socket, and variables in the environment.

mod announced;
mod manager;
mod notify;
mod sockets;
mod units;
mod worker;
