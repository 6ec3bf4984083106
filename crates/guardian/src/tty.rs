//! The terminal: who is in its foreground, and stopping ourselves when the user stopped the command.
//!
//! Called by the supervisor (which asks once whether the terminal is ours, and takes it back when
//! the command stopped or ended) and by the guardian (which gives it to the command's group). It
//! must never take the terminal from a group that is not ours.

use std::io::{self, stderr, stdin, stdout};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::fcntl::{OFlag, open};
use nix::sys::signal::{SigSet, Signal, killpg, raise};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Pid, getpgid, getpgrp, getpid, getppid, getsid, tcgetpgrp, tcsetpgrp};

use super::witness::Witness;
use super::{raw, tree};

/// Our controlling terminal, in the foreground of which we were started.
#[derive(Debug)]
pub struct Terminal {
    fd: OwnedFd,
    ours: Pid,
}

impl Terminal {
    /// The terminal, if there is one and our process group was in its foreground.
    ///
    /// As part of a pipeline we have none: the other processes of the job are of our group, and
    /// would find themselves in the background (`trafficcop … | less`). Ctrl-C then reaches us with
    /// them, and the command through its drain.
    ///
    /// Nor has what a script starts by `&`: it is of the script's group, and the script goes on in the
    /// foreground. POSIX has a shell without job control start it with SIGINT ignored, and with nothing on
    /// stdin: with a terminal on stdin it was meant for the foreground after all.
    #[must_use]
    pub fn ours(sigint_is_ignored: bool) -> Option<Terminal> {
        if is_pipe(stdin().as_fd()) || is_pipe(stdout().as_fd()) {
            return None;
        }
        let ours = getpgrp();
        // Of any terminal but our controlling one this is an error (ENOTTY): so it is the right one
        // as well.
        let foreground = |fd: &OwnedFd| tcgetpgrp(fd) == Ok(ours);
        let standard = [
            stdin().as_fd().try_clone_to_owned(),
            stdout().as_fd().try_clone_to_owned(),
            stderr().as_fd().try_clone_to_owned(),
        ];
        let tty = || {
            let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
            open("/dev/tty", flags, Mode::empty()).ok()
        };
        let [input, ..] = &standard;
        if sigint_is_ignored && !input.as_ref().is_ok_and(foreground) {
            return None;
        }
        standard
            .into_iter()
            .filter_map(Result::ok)
            .find(foreground)
            // Standard descriptors first: with all three redirected we may still have a terminal
            // that Ctrl-C comes from.
            .or_else(|| tty().filter(foreground))
            .map(|fd| Terminal { fd, ours })
    }

    /// Puts a process group of our session into the foreground.
    ///
    /// # Errors
    /// Those of tcsetpgrp(3): the group is gone, or the terminal is.
    pub fn give(&self, group: i32) -> io::Result<()> {
        set_foreground(self.fd.as_fd(), Pid::from_raw(group))
    }

    /// Puts our own group (that of the process that called [`Terminal::ours`]) into the foreground.
    ///
    /// # Errors
    /// Those of tcsetpgrp(3).
    pub fn take_back(&self) -> io::Result<()> {
        set_foreground(self.fd.as_fd(), self.ours)
    }

    /// Whether our own group is in the foreground at this moment.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        tcgetpgrp(&self.fd) == Ok(self.ours)
    }

    /// Whether this group is in the foreground at this moment.
    #[must_use]
    pub fn is_with(&self, group: i32) -> bool {
        tcgetpgrp(&self.fd) == Ok(Pid::from_raw(group))
    }
}

/// The guardian's hand on the terminal: lent to the command while that runs in the foreground,
/// and with the supervisor's group otherwise.
#[derive(Debug)]
pub(super) struct Foreground {
    terminal: Option<Terminal>,
    /// The command has it, or takes it as soon as it lives.
    lent: bool,
    /// Sees what is typed to end the command.
    pub(super) witness: Witness,
}

impl Foreground {
    /// Of the process that calls it; none where it is not in the foreground of a terminal ([`Terminal::ours`]).
    pub(super) fn ours(sigint_is_ignored: bool) -> Foreground {
        Foreground {
            terminal: Terminal::ours(sigint_is_ignored),
            lent: false,
            witness: Witness::default(),
        }
    }

    /// None, wherever we were started.
    pub(super) fn nobody_s() -> Foreground {
        Foreground {
            terminal: None,
            lent: false,
            witness: Witness::default(),
        }
    }

    /// There is a terminal, and we were started in its foreground.
    pub(super) fn is_there(&self) -> bool {
        self.terminal.is_some()
    }

    /// The descriptor to keep.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.terminal.as_ref().map(|t| t.as_fd().as_raw_fd())
    }

    /// Before the command is forked: it is to have the terminal, unless a shell took that
    /// meanwhile. Looked at here, because in a PID namespace our group has no number.
    pub(super) fn lend(&mut self) {
        self.lent = self.terminal.as_ref().is_some_and(Terminal::is_ours);
    }

    /// The command was forked, and leads this group.
    pub(super) fn is_lent_to(&mut self, group: i32) {
        if self.lent {
            self.witness.begin(group);
        }
    }

    /// In the command's process, which leads its group and has all signals blocked. Makes one
    /// system call and allocates nothing.
    pub(super) fn occupy(&self) {
        if let Some(terminal) = &self.terminal
            && self.lent
        {
            // Where it fails the command is in the background, as it would be without us.
            let _ = tcsetpgrp(terminal.as_fd(), getpgrp());
        }
    }

    /// The command, which leads this group and is not reaped, has stopped or ended. The terminal is left with
    /// whoever took it meanwhile: a shell that saw us stopped reads from it.
    pub(super) fn take_back(&mut self, group: i32) {
        if std::mem::take(&mut self.lent)
            && let Some(terminal) = &self.terminal
            && (terminal.is_with(group) || tcgetpgrp(terminal).is_ok_and(is_ours_or_empty))
        {
            // It fails where the terminal is gone, and then nobody misses it.
            let _ = terminal.take_back();
        }
    }

    /// We were continued: the command gets it again, if we were continued in the foreground.
    pub(super) fn lend_again(&mut self, group: i32) {
        if let Some(terminal) = &self.terminal
            && terminal.is_ours()
        {
            // Only what was given is taken back: the group may have ended while we were stopped.
            self.lent = terminal.give(group).is_ok();
        }
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether nobody is in this group but what descends from us, the guardian: the command may be a shell, which
/// has put a job of its own into the foreground. One that has no number here is another's.
fn is_ours_or_empty(group: Pid) -> bool {
    let (group, me) = (group.as_raw(), getpid().as_raw());
    let mut others = false;
    let listed = tree::each_process(|pid| {
        others |= tree::is_in_group(pid, group) && !tree::descends_from(pid, me);
    });
    group > 0 && listed && !others
}

fn is_pipe(fd: BorrowedFd<'_>) -> bool {
    fstat(fd)
        .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFIFO)
}

/// tcsetpgrp from the background stops the caller with SIGTTOU, unless it is blocked.
fn set_foreground(fd: BorrowedFd<'_>, group: Pid) -> io::Result<()> {
    // In this thread alone: the kernel looks at the mask of whoever calls.
    let old =
        SigSet::from(Signal::SIGTTOU).thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    let done = tcsetpgrp(fd, group);
    old.thread_set_mask()?;
    Ok(done?)
}

/// Whether our group is in the foreground of the controlling terminal.
#[must_use]
pub fn is_in_foreground() -> bool {
    // A terminal whose line is down would let an open wait for its carrier.
    let flags = OFlag::O_RDONLY | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let terminal = open("/dev/tty", flags, Mode::empty());
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

/// Sends a signal to our own group, of which the terminal sent it only to the command's group.
pub fn pass_to_own_group(signal: i32) {
    raw::kill(0, signal);
}

/// Where a request to stop ourselves came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopAsked {
    /// Somebody's `kill -TSTP`: it was meant for us alone.
    BySomebody,
    /// Ctrl-Z, which the terminal told every process of our group.
    ByTheTerminal,
    /// Ctrl-Z, which the terminal told the command's group only.
    OfTheCommand,
}

impl StopAsked {
    /// How a SIGTSTP has come to us, at the moment when it came: the terminal sends one to whoever
    /// has its foreground.
    #[must_use]
    pub fn of_a_signal() -> StopAsked {
        if is_in_foreground() {
            StopAsked::ByTheTerminal
        } else {
            StopAsked::BySomebody
        }
    }
}

/// Stops ourselves. Returns when somebody continued us; at once if nobody could.
///
/// After a Ctrl-Z that only the command received our whole group is stopped with us, as the terminal
/// would have stopped it: a shell script that waits for us has to stop too, or the user's shell does
/// not get its prompt. The kernel stops no orphaned group by SIGTSTP, because no shell is there to
/// continue it: after a Ctrl-Z we go on, and whoever asked by `kill` gets a SIGSTOP.
///
/// # Errors
/// Those of sigaction(2) and kill(2).
pub fn stop_ourselves(asked: StopAsked) -> io::Result<()> {
    match asked {
        StopAsked::BySomebody if is_orphaned() => Ok(raise(Signal::SIGSTOP)?),
        // Of this thread, so that it is done with before the handler is back.
        StopAsked::BySomebody | StopAsked::ByTheTerminal => by_default(|| raise(Signal::SIGTSTP)),
        StopAsked::OfTheCommand => by_default(|| killpg(getpgrp(), Signal::SIGTSTP)),
    }
}

/// Does something while SIGTSTP does what it does to a program that knows nothing of it.
fn by_default(stop: impl FnOnce() -> nix::Result<()>) -> io::Result<()> {
    // The kernel stops us only by its own default action; our handler would only be called once
    // more.
    let handler = raw::take_default(Signal::SIGTSTP)?;
    let open = SigSet::from(Signal::SIGTSTP);
    let mask = open.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_UNBLOCK)?;
    let stopped = stop();
    mask.thread_set_mask()?;
    drop(handler);
    Ok(stopped?)
}

/// Whether nobody of our session, outside our group, is there to continue us: the kernel's rule (a
/// member's parent that is of another group of the same session). Where nothing can be seen, too.
fn is_orphaned() -> bool {
    let (group, session) = (getpgrp(), getsid(None).ok());
    let watches = |parent: i32| {
        let parent = Pid::from_raw(parent);
        parent.as_raw() > 1
            && getsid(Some(parent)).ok() == session
            && getpgid(Some(parent)).is_ok_and(|of| of != group)
    };
    if watches(getppid().as_raw()) {
        return false;
    }
    let mut watched = false;
    tree::each_process(|pid| {
        if !watched && tree::is_in_group(pid, group.as_raw()) {
            watched = tree::parent_of(pid).is_some_and(watches);
        }
    });
    !watched
}
