//! The guardian as its handle reaches it.
//!
//! [`Process`] is a forked guardian; the simulated fleet has another. A tree must never count as empty before it
//! was seen empty.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::task::{Context, Poll};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::super::containment::Containment;
use super::super::control::ControlFile;
use super::super::state::ControlState;
use super::super::{fork, tree};

/// Guardian, seen from its supervisor. Nothing here waits.
pub trait Peer: Send {
    /// Returns its process id.
    fn pid(&self) -> i32;
    /// Returns the path of the control file.
    fn control_path(&self) -> Option<&Path>;
    /// Sends what fits of these bytes, the descriptor with the first. EAGAIN: it does not read.
    fn send(&mut self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> nix::Result<usize>;
    /// Receives what has arrived. 0 bytes: it has closed its end. EAGAIN: nothing.
    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<usize>;
    /// Waits for bytes, or, if `full`, for room to send.
    fn poll_socket(&mut self, context: &mut Context<'_>, full: bool) -> Poll<()>;
    /// Waits until a child stopped, continued or ended.
    fn poll_children(&mut self, context: &mut Context<'_>) -> Poll<()>;
    /// Kills the guardian.
    fn kill(&mut self);
    /// Kills the guardian and takes over its tree, without control.
    fn take_over(&mut self);
    /// Kills once what it left; returns whether nothing is left. `long`: this takes too long.
    fn sweep(&mut self, long: bool) -> bool;
    /// Whether it has ended and is now reaped.
    fn has_ended(&mut self) -> bool;
    /// Removes what others saw of it, at the end.
    fn retire(&mut self);
}

pub(super) struct Process {
    pid: i32,
    socket: UnixStream,
    containment: Containment,
    control: ControlFile,
    children: Option<Signal>,
}

impl Process {
    pub(super) fn new(
        pid: i32,
        socket: UnixStream,
        containment: Containment,
        control: ControlFile,
    ) -> Process {
        Process {
            pid,
            socket,
            containment,
            control,
            // Without it, the next ping finds a stopped guardian.
            children: signal(SignalKind::child()).ok(),
        }
    }

    /// Asks the kernel: the runtime's readiness may be older than a pause. Clears that, or it would wake this
    /// task for nothing.
    fn ask(
        &self,
        interest: Interest,
        mut ask: impl FnMut(i32) -> nix::Result<usize>,
    ) -> nix::Result<usize> {
        let socket = self.socket.as_raw_fd();
        match ask(socket) {
            Err(Errno::EAGAIN) => self
                .socket
                .try_io(interest, || ask(socket).map_err(io::Error::from))
                .map_err(|_| Errno::EAGAIN),
            asked => asked,
        }
    }
}

impl Peer for Process {
    fn pid(&self) -> i32 {
        self.pid
    }

    fn control_path(&self) -> Option<&Path> {
        self.control.path()
    }

    fn send(&mut self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> nix::Result<usize> {
        let parts = [IoSlice::new(bytes)];
        let descriptor = descriptor.map(|descriptor| descriptor.as_raw_fd());
        let rights = [ControlMessage::ScmRights(descriptor.as_slice())];
        let rights = if descriptor.is_some() {
            &rights[..]
        } else {
            &[]
        };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        self.ask(Interest::WRITABLE, |socket| {
            sendmsg::<()>(socket, &parts, rights, flags, None)
        })
    }

    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<usize> {
        self.ask(Interest::READABLE, |socket| {
            recv(socket, buffer, MsgFlags::MSG_DONTWAIT)
        })
    }

    fn poll_socket(&mut self, context: &mut Context<'_>, full: bool) -> Poll<()> {
        let readable = self.socket.poll_read_ready(context).is_ready();
        let writable = full && self.socket.poll_write_ready(context).is_ready();
        if readable || writable {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn poll_children(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let children = self.children.as_mut();
        match children.map(|children| children.poll_recv(context)) {
            Some(Poll::Ready(Some(()))) => {
                fork::reap_adopted();
                Poll::Ready(())
            }
            Some(_) | None => Poll::Pending,
        }
    }

    fn kill(&mut self) {
        tree::signal(self.pid, libc::SIGKILL);
    }

    fn take_over(&mut self) {
        self.kill();
        fork::forget_unrelated(self.pid);
        self.control.set(ControlState::NONE);
    }

    /// Guardian and orphans are children of this process.
    fn sweep(&mut self, long: bool) -> bool {
        self.containment.kill();
        if long && tree::is_child(self.pid) {
            // Stuck in the kernel, it keeps its children. It cannot reap them any more, so no other process can
            // get their ids.
            for child in tree::children_of(self.pid) {
                tree::signal(child, libc::SIGKILL);
            }
        }
        let mut unrelated_children = fork::unrelated_children();
        let me = i32::try_from(std::process::id()).unwrap_or(0);
        unrelated_children.extend(self.containment.lock_holders(&tree::children_of(me)));
        tree::sweep(&unrelated_children) && self.containment.is_empty()
    }

    fn has_ended(&mut self) -> bool {
        let ended = tree::reap(self.pid);
        if ended {
            fork::forget_unrelated(self.pid);
        }
        ended
    }

    fn retire(&mut self) {
        self.control.retire();
    }
}
