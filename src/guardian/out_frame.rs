//! What the supervisor sends a guardian, on its way through a socket that may be full.
//!
//! Used by the handle. It must never wait.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// Bytes on their way, and the descriptor that goes with the first of them.
pub(super) struct OutFrame {
    bytes: Vec<u8>,
    sent: usize,
    lock: Option<OwnedFd>,
}

impl OutFrame {
    pub(super) fn new(bytes: Vec<u8>, lock: Option<OwnedFd>) -> OutFrame {
        OutFrame {
            bytes,
            sent: 0,
            lock,
        }
    }

    /// Whether all of it has gone.
    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Whether its descriptor is still to go, and so all of it.
    pub(super) fn has_descriptor(&self) -> bool {
        self.lock.is_some()
    }

    /// Sends as much as goes.
    pub(super) fn send(&mut self, socket: i32) -> nix::Result<()> {
        let parts = [IoSlice::new(&self.bytes[self.sent..])];
        let lock = self.lock.as_ref().map(AsRawFd::as_raw_fd);
        let rights = lock.as_slice();
        let rights = [ControlMessage::ScmRights(rights)];
        let rights = if lock.is_some() { &rights[..] } else { &[] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        self.sent += sendmsg::<()>(socket, &parts, rights, flags, None)?;
        // It went with the first byte.
        self.lock = None;
        Ok(())
    }
}
