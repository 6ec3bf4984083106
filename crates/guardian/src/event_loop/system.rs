//! The machine as the guardian's loop sees it: about one method for each system call.
//!
//! [`Kernel`](super::Kernel) is the machine; the simulated fleet has another. Nothing here waits or, while a
//! command runs, allocates.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;

use super::super::tree::Change;
use crate::state::ControlState;
use trafficcop_core::Deadlines;
use trafficcop_core::clock::Instant;

/// Events to wait for, besides timer, wall clock and children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Longest wait, in ms.
    pub millis: Option<u8>,
    /// Requests of the supervisor, and its death.
    pub socket: bool,
    /// Room for unsent frames.
    pub room: bool,
    /// Result of the command's exec.
    pub exec: bool,
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// No event came.
    pub nothing: bool,
    /// The wall clock was set.
    pub wall: bool,
    /// A child changed, or the exec is known.
    pub children: bool,
    /// Bytes can be read, or sent again.
    pub socket: bool,
}

/// Machine of a guardian. Methods with `&self` may be called while its children are listed.
pub trait System {
    // --- time ---

    /// Sets the timer; `FOREVER`: never.
    fn arm(&mut self, next: Instant);
    /// Whether the wall clock was set since the last call.
    fn wall_clock_jumped(&mut self) -> bool;

    // --- the supervisor ---

    /// Sends what fits of these bytes. EAGAIN: the supervisor does not read.
    fn send(&mut self, bytes: &[u8]) -> nix::Result<usize>;
    /// Receives what has arrived, and the descriptor if this process could take it. 0 bytes: the supervisor's
    /// end is closed. EAGAIN: nothing has arrived.
    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)>;

    // --- the children ---

    /// Consumes a SIGCHLD, so that the next one wakes the loop.
    fn take_child_signal(&mut self);
    /// Visits every direct child, ended ones included; it can miss one.
    fn each_child(&self, visit: impl FnMut(i32));
    /// Returns a child's change: an end until it is reaped, a stop once.
    fn look_at(&self, pid: i32) -> Option<Change>;
    /// Returns any child that has ended and is not reaped.
    fn any_ended(&self) -> Option<i32>;
    /// Reaps the child if it has ended; returns whether it is gone.
    fn reap(&self, pid: i32) -> bool;
    /// Whether it is a child, living or to be reaped.
    fn is_child(&self, pid: i32) -> bool;
    /// Whether there are no children at all; this is exact.
    fn is_childless(&self) -> bool;
    /// Whether `pid` is in the group of `leader`.
    fn is_in_group(&self, pid: i32, leader: i32) -> bool;
    /// Whether a process is stopped now.
    fn is_stopped(&self, pid: i32) -> bool;
    /// Signals one un-reaped process.
    fn signal(&self, pid: i32, signal: i32);
    /// Signals the group of an un-reaped leader.
    fn signal_group(&self, leader: i32, signal: i32);
    /// Continues the stopped processes of a group.
    fn resume_group(&self, leader: i32);

    /// Notes the death of the witness.
    fn look_at_witness(&mut self) {}
    /// Returns the signal that was typed to end the command.
    fn typed(&mut self) -> Option<i32> {
        None
    }

    // --- what contains them ---

    /// Ends what dead instances left. EBUSY: some of it cannot be killed.
    fn sweep(&mut self) -> Result<(), Errno>;
    /// Moves the deadline of the processes inside.
    fn extend(&mut self, kill_at: Instant);
    /// Signals orphans that the guardian does not adopt, once.
    fn term_hidden(&mut self);
    /// Kills everything inside, if possible.
    fn kill_contained(&mut self);
    /// Whether this child is outside the command's tree.
    fn is_helper(&self, pid: i32) -> bool;
    /// Whether a process inside never becomes the guardian's child.
    fn hides_some(&self) -> bool;
    /// Lets the helpers go when nothing else is left.
    fn close(&mut self);
    /// Whether nothing is inside, as far as that is known.
    fn is_empty(&self) -> bool;
    /// Cleans up when it is empty, or the start failed.
    fn abandon(&mut self);

    // --- starts ---

    /// Prepares a start with these encoded variables; may take its time.
    fn prepare(&mut self, program: u8, changes: &[u8]) -> Result<(), Errno>;
    /// Forks the prepared program; returns its id.
    fn fork(
        &mut self,
        deadlines: Deadlines,
        lock: Option<BorrowedFd<'_>>,
        input: Option<BorrowedFd<'_>>,
    ) -> Result<i32, Errno>;
    /// Returns whether the exec succeeded; `None`: unknown yet.
    fn exec_result(&mut self) -> Option<Result<(), i32>>;

    // --- the rest ---

    /// Whether every drain ends control.
    fn yields(&self) -> bool;
    /// Shows this in the control file.
    fn show_control(&self, control: ControlState);
    /// Gives the terminal to this group again, if it had it.
    fn lend_terminal_again(&mut self, group: i32);
    /// Takes the terminal back from this group.
    fn take_terminal_back(&mut self, group: i32);
    /// Takes every means to be on time.
    fn take_precedence(&mut self);
    /// Makes this process an ordinary one.
    fn give_up_precedence(&mut self);
    /// Gives a dead supervisor's lease back; may take its time.
    fn release(&mut self, release_info: &[u8]);
}
