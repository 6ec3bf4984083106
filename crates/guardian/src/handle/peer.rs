//! The guardian as its handle reaches it: bytes to it and from it, the kernel's word of it, and the killing
//! of what it leaves.
//!
//! Called by [`super`] alone, which decides. [`Process`] is one that was forked; the simulated fleet has
//! another. It must never call a tree empty that it has not seen empty.

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

/// A guardian, seen from its supervisor. Nothing here waits.
pub trait Peer: Send {
    /// Its process id, for people.
    fn pid(&self) -> i32;
    /// Where what it guards reads until when it is in control, if there is such a file.
    fn control_path(&self) -> Option<&Path>;
    /// Sends as many of these bytes as go, and the descriptor with the first of them.
    ///
    /// # Errors
    /// Those of sendmsg(2); EAGAIN where it does not read.
    fn send(&mut self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> nix::Result<usize>;
    /// Takes in what has arrived; nothing where it has closed its end.
    ///
    /// # Errors
    /// Those of recv(2); EAGAIN where nothing has.
    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<usize>;
    /// Whether something has arrived, or, where it is `full`, something could be sent.
    fn poll_socket(&mut self, context: &mut Context<'_>, full: bool) -> Poll<()>;
    /// Whether a child of ours was stopped, was continued or ended since.
    fn poll_children(&mut self, context: &mut Context<'_>) -> Poll<()>;
    /// Kills it.
    fn kill(&mut self);
    /// Kills it, and what it guards is ours and in control no more.
    fn take_over(&mut self);
    /// One round of killing what it left, and whether nothing of that is left; `long`: it should have been by
    /// now.
    fn sweep(&mut self, long: bool) -> bool;
    /// Whether it has ended; then it is reaped and forgotten.
    fn has_ended(&mut self) -> bool;
    /// Nothing of what it guarded is left: removes what others saw of it.
    fn retire(&mut self);
}

/// A guardian that was forked.
pub(super) struct Process {
    pid: i32,
    socket: UnixStream,
    containment: Containment,
    control: ControlFile,
    /// The kernel's word that a child of ours was stopped, was continued or ended.
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
            // Without it a guardian that is stopped is found out by the next ping.
            children: signal(SignalKind::child()).ok(),
        }
    }

    /// Straight to the kernel: the runtime's idea of readiness may be older than a pause. And the runtime is
    /// told, lest it wakes us for what is not so.
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
        // Both, so that both wake us.
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

    /// It and all orphans are children of ours.
    fn sweep(&mut self, long: bool) -> bool {
        self.containment.kill();
        if long && tree::is_child(self.pid) {
            // Killed and still not dead: it is stuck in the kernel, and its children have not come to
            // us. It can reap none of them any more, so their ids are theirs.
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
