//! A port of loopback at which nobody listens, nor can anybody else: a free one that was let go may be the next
//! test's in the same moment.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};

/// Closed for as long as this is kept.
pub(crate) struct ClosedPort {
    pub(crate) port: u16,
    _socket: OwnedFd,
}

impl ClosedPort {
    pub(crate) fn new() -> ClosedPort {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
        // Bound, and never made to listen: whoever connects is refused.
        bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("a port");
        let bound: SockaddrIn = getsockname(socket.as_raw_fd()).expect("its address");
        ClosedPort {
            port: bound.port(),
            _socket: socket,
        }
    }
}
