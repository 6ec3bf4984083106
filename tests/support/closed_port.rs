//! A closed port of loopback that no other process can open. (A merely free port may be another
//! test's in the next moment.)

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};

/// Closed as long as this exists.
pub(crate) struct ClosedPort {
    pub(crate) port: u16,
    _socket: OwnedFd,
}

impl ClosedPort {
    pub(crate) fn new() -> ClosedPort {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
        // Bound, but never listening: connections are refused.
        bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("a port");
        let bound: SockaddrIn = getsockname(socket.as_raw_fd()).expect("its address");
        ClosedPort {
            port: bound.port(),
            _socket: socket,
        }
    }
}
