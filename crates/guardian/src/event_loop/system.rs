//! The machine as the guardian's loop sees it, and what the loop does to it: about one method for each system
//! call, without a decision.
//!
//! [`Kernel`](super::Kernel) is the machine; the simulated fleet has another. Nothing here waits, and nothing
//! may allocate while a command runs.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;

use super::super::tree::Change;
use crate::state::ControlState;
use trafficcop_core::Deadlines;
use trafficcop_core::clock::Instant;

/// Events that the loop waits for, besides its timer, the setting of the wall clock and its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Longest wait, in ms.
    pub millis: Option<u8>,
    /// Whether to wait for requests of the supervisor, and its death.
    pub socket: bool,
    /// Whether to wait for room for unsent frames.
    pub room: bool,
    /// Whether to wait for the result of the command's exec.
    pub exec: bool,
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// No event came in the whole time.
    pub nothing: bool,
    /// The wall clock was set.
    pub wall: bool,
    /// A child changed its state, or the result of the exec is known.
    pub children: bool,
    /// There is something to read, or room again.
    pub socket: bool,
}

/// The machine of a guardian. Methods that borrow `self` immutably may be called while its children are listed.
pub trait System {
    // --- time ---

    /// Sets the timer that ends a wait to `next`; `FOREVER` means never.
    fn arm(&mut self, next: Instant);
    /// Whether the wall clock was set since the last call.
    fn wall_clock_jumped(&mut self) -> bool;

    // --- the supervisor ---

    /// Sends as many of these bytes as fit. EAGAIN: the supervisor does not read.
    fn send(&mut self, bytes: &[u8]) -> nix::Result<usize>;
    /// Receives what has arrived, and the descriptor that came along, if this process could take it. 0 bytes:
    /// the supervisor's end is closed. EAGAIN: nothing has arrived.
    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)>;

    // --- the children ---

    /// Consumes the signal that a child changed its state, so that the next one wakes the loop again.
    fn take_child_signal(&mut self);
    /// Calls `visit` with the id of every direct child, ended ones included; it can miss one.
    fn each_child(&self, visit: impl FnMut(i32));
    /// Returns what has become of this child: an end until it is reaped, a stop once.
    fn look_at(&self, pid: i32) -> Option<Change>;
    /// Returns any child that has ended and is not reaped.
    fn any_ended(&self) -> Option<i32>;
    /// Reaps the child if it has ended; returns whether it is gone (or was no child).
    fn reap(&self, pid: i32) -> bool;
    /// Whether it is a child of this process, living or to be reaped.
    fn is_child(&self, pid: i32) -> bool;
    /// Whether this process has no children at all; the kernel's answer is exact.
    fn is_childless(&self) -> bool;
    /// Whether `pid` is in the process group of `leader`.
    fn is_in_group(&self, pid: i32, leader: i32) -> bool;
    /// Whether a process is stopped at this moment.
    fn is_stopped(&self, pid: i32) -> bool;
    /// Sends a signal to one process, which has not been reaped.
    fn signal(&self, pid: i32, signal: i32);
    /// Sends a signal to the group, whose leader has not been reaped.
    fn signal_group(&self, leader: i32, signal: i32);
    /// Continues the stopped processes of a group, which could not receive their signals.
    fn resume_group(&self, leader: i32);

    /// Notes what the witness in the command's group died of.
    fn look_at_witness(&mut self) {}
    /// Returns the signal that was typed at the terminal to end the command, after its end.
    fn typed(&mut self) -> Option<i32> {
        None
    }

    // --- what contains them ---

    /// Ends what dead instances left beside this one. EBUSY: some of it cannot be killed.
    fn sweep(&mut self) -> Result<(), Errno>;
    /// Lets the processes inside live until this moment.
    fn extend(&mut self, kill_at: Instant);
    /// Sends SIGTERM, once, to processes that the guardian does not adopt when they lose their parent.
    fn term_hidden(&mut self);
    /// Kills everything inside at once, if that is possible.
    fn kill_contained(&mut self);
    /// Whether this child is a helper of the guardian, outside the command's tree.
    fn is_helper(&self, pid: i32) -> bool;
    /// Whether a process is inside that is no child of the guardian and will not become one.
    fn hides_some(&self) -> bool;
    /// Lets the helpers go, after the main process was reaped and nothing else is known.
    fn close(&mut self);
    /// Whether nothing is inside, as far as that is known.
    fn is_empty(&self) -> bool;
    /// Cleans up the containment when it is empty, or the command was never started.
    fn abandon(&mut self);

    // --- starts ---

    /// Prepares a start of this program, with these encoded changes to its environment; this may take its time.
    fn prepare(&mut self, program: u8, changes: &[u8]) -> Result<(), Errno>;
    /// Forks the process that becomes the program of [`System::prepare`]. Returns its id.
    fn fork(
        &mut self,
        deadlines: Deadlines,
        lock: Option<BorrowedFd<'_>>,
        input: Option<BorrowedFd<'_>>,
    ) -> Result<i32, Errno>;
    /// Returns whether the last forked process became the command, or why not; `None` while that is unknown.
    fn exec_result(&mut self) -> Option<Result<(), i32>>;

    // --- the rest ---

    /// Whether every drain ends control for the command.
    fn yields(&self) -> bool;
    /// Shows the command the end of its control, and whether it was asked to stop.
    fn show_control(&self, control: ControlState);
    /// Gives the terminal to the command's group again, if it had it.
    fn lend_terminal_again(&mut self, group: i32);
    /// Takes the terminal from the command's group back for the supervisor.
    fn take_terminal_back(&mut self, group: i32);
    /// Takes every means to be on time.
    fn take_precedence(&mut self);
    /// Makes this process an ordinary one again.
    fn give_up_precedence(&mut self);
    /// Gives back the lease that a dead supervisor has left. May take its time.
    fn release(&mut self, release_info: &[u8]);
}
