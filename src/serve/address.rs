//! Where questions are answered: an address and a port, or a path. Made by the plan, which says
//! what may be named; opened by [`super::listener`].

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where questions are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP; port 0 lets the kernel choose one.
    Tcp(SocketAddr),
    /// A socket at this path.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "http://{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
