//! What the guardian's loop sees of the machine, and what it does to it: one method for each system call
//! or so, without a decision.
//!
//! [`Kernel`](super::Kernel) is the machine; the simulated fleet has another. Nothing here waits, and
//! nothing may allocate while a command runs.

use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;

use super::super::tree::Change;
use crate::state::ControlState;
use trafficcop_core::Deadlines;
use trafficcop_core::clock::Instant;

/// What the loop waits for, beside its timer, the setting of the wall clock and its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// No longer than this, in ms.
    pub millis: Option<u8>,
    /// What the supervisor sends, and its death.
    pub socket: bool,
    /// Room for what it has not fetched.
    pub room: bool,
    /// Whether the exec of the command succeeded.
    pub exec: bool,
}

/// What a wait ended with, as far as anybody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// There was nothing for as long as it waited.
    pub nothing: bool,
    /// The wall clock was set.
    pub wall: bool,
    /// A child changed its state, or it is known of the exec.
    pub children: bool,
    /// Something is to be read, or there is room again.
    pub socket: bool,
}

/// The machine as a guardian has it. Those of `self` by reference are called while its children are listed.
pub trait System {
    // --- time ---

    /// Sets the timer that ends a wait to `next`; never, if that is for ever.
    fn arm(&mut self, next: Instant);
    /// Whether the wall clock was set since the last time.
    fn wall_clock_jumped(&mut self) -> bool;

    // --- the supervisor ---

    /// Sends as many of these bytes as go.
    ///
    /// # Errors
    /// Those of send(2); EAGAIN where it does not read.
    fn send(&mut self, bytes: &[u8]) -> nix::Result<usize>;
    /// Takes in what has arrived, and the descriptor that came along, if we could have it; nothing
    /// where its end is closed.
    ///
    /// # Errors
    /// Those of recvmsg(2); EAGAIN where nothing has.
    fn receive(&mut self, buffer: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)>;

    // --- the children ---

    /// Takes the word that a child changed its state: the next one is heard of again.
    fn take_child_signal(&mut self);
    /// Calls `visit` with the id of every direct child, ended ones included; one can be missed.
    fn each_child(&self, visit: impl FnMut(i32));
    /// What has become of this child: an end until it is reaped, a stop once.
    fn look_at(&self, pid: i32) -> Option<Change>;
    /// A child that ended and is still to be reaped, whichever.
    fn any_ended(&self) -> Option<i32>;
    /// Reaps the child if it has ended; tells whether it is gone (or was no child of ours).
    fn reap(&self, pid: i32) -> bool;
    /// Whether it is a child of ours, be it living or to be reaped.
    fn is_child(&self, pid: i32) -> bool;
    /// Whether we have no children at all, by the kernel's exact word.
    fn is_childless(&self) -> bool;
    /// Whether `pid` is in the process group of `leader`.
    fn is_in_group(&self, pid: i32, leader: i32) -> bool;
    /// Whether a process is stopped at this moment.
    fn is_stopped(&self, pid: i32) -> bool;
    /// Sends a signal to one process, which has not been reaped.
    fn signal(&self, pid: i32, signal: i32);
    /// Sends a signal to the group, whose leader has not been reaped.
    fn signal_group(&self, leader: i32, signal: i32);
    /// Lets those of a group act who are stopped and so could not hear what they were sent.
    fn resume_group(&self, leader: i32);

    /// Takes in what the witness in the command's group saw.
    fn look_at_witness(&mut self) {}
    /// The command has ended: the signal that was typed at its terminal to end it.
    fn typed(&mut self) -> Option<i32> {
        None
    }

    // --- what contains them ---

    /// Ends what instances that have died meanwhile left beside us.
    ///
    /// # Errors
    /// EBUSY while something of that cannot be killed.
    fn sweep(&mut self) -> Result<(), Errno>;
    /// What is inside may live until this moment.
    fn extend(&mut self, kill_at: Instant);
    /// Tells to end, once, what does not come to us when it loses its parent.
    fn term_hidden(&mut self);
    /// Kills everything inside at once, if that can be done.
    fn kill_contained(&mut self);
    /// Whether this child is a helper of ours, and no part of the command's tree.
    fn is_helper(&self, pid: i32) -> bool;
    /// Whether something is inside that is no child of ours and will not become one.
    fn hides_some(&self) -> bool;
    /// The main process was reaped and nothing else is known: lets the helpers go.
    fn close(&mut self);
    /// Whether nothing is inside, as far as can be told.
    fn is_empty(&self) -> bool;
    /// Nothing is in it any more, or was never started.
    fn abandon(&mut self);

    // --- starts ---

    /// Gets everything ready for a start of this program, with these changes to its environment as they
    /// travel: what may take its time.
    ///
    /// # Errors
    /// What keeps it from being started.
    fn prepare(&mut self, program: u8, changes: &[u8]) -> Result<(), Errno>;
    /// Forks the process that becomes what [`System::prepare`] was told. Its id.
    ///
    /// # Errors
    /// Those of fork(2) and of what contains it.
    fn fork(
        &mut self,
        deadlines: Deadlines,
        lock: Option<BorrowedFd<'_>>,
        input: Option<BorrowedFd<'_>>,
    ) -> Result<i32, Errno>;
    /// Whether the last one that was forked became the command, or why not; nothing while that is not known.
    fn exec_result(&mut self) -> Option<Result<(), i32>>;

    // --- the rest ---

    /// Whether the command is told of any drain as the end of control.
    fn yields(&self) -> bool;
    /// Shows the command until when it may believe in its control, and whether it was asked to stop.
    fn show_control(&self, control: ControlState);
    /// The command's group is to have the terminal again, if it had it.
    fn lend_terminal_again(&mut self, group: i32);
    /// The terminal that the command's group has is the supervisor's again.
    fn take_terminal_back(&mut self, group: i32);
    /// Takes whatever is granted for being on time.
    fn take_precedence(&mut self);
    /// Becomes an ordinary process again.
    fn give_up_precedence(&mut self);
    /// Gives the lease back that a dead supervisor has left. May take its time.
    fn release(&mut self, release_info: &[u8]);
}
