//! `trafficcop` as a systemd service, and on an Azure machine.
//!
//! The tests play the service manager: a socket, and variables in the environment.

mod announced;
mod manager;
mod notify;
mod sockets;
mod units;
mod worker;
