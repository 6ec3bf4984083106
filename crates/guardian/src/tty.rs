//! The terminal: which group is in its foreground, and how this process stops when the user stopped the command.
//!
//! The guardian gives it to the command's group; the supervisor takes it back when the command stopped or ended.
//! Neither may take it from another job's group.

use std::io::{self, stderr, stdin, stdout};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::fcntl::{OFlag, open};
use nix::sys::signal::{SigSet, Signal, killpg, raise};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Pid, getpgid, getpgrp, getpid, getppid, getsid, tcgetpgrp, tcsetpgrp};

use super::witness::Witness;
use super::{raw, tree};

/// Controlling terminal in whose foreground this process was started.
#[derive(Debug)]
pub struct Terminal {
    fd: OwnedFd,
    ours: Pid,
}

impl Terminal {
    /// Returns the terminal, if this process group is in its foreground.
    ///
    /// In a pipeline (`trafficcop … | less`) there is none: the job's other processes are in this group, and
    /// would be in the background. Ctrl-C then reaches this process, and the command by its drain.
    ///
    /// What a script starts by `&` has none, either: it shares the group of the script. By POSIX, a shell
    /// without job control starts it with SIGINT ignored and nothing on stdin; a terminal there means the
    /// foreground after all.
    #[must_use]
    pub fn ours(sigint_is_ignored: bool) -> Option<Terminal> {
        if is_pipe(stdin().as_fd()) || is_pipe(stdout().as_fd()) {
            return None;
        }
        let ours = getpgrp();
        // ENOTTY if it is not the controlling terminal.
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
            // Ctrl-C may still come from a terminal.
            .or_else(|| tty().filter(foreground))
            .map(|fd| Terminal { fd, ours })
    }

    /// Puts a process group of this session into the foreground.
    ///
    /// # Errors
    /// Those of tcsetpgrp(3): group or terminal is gone.
    pub fn give(&self, group: i32) -> io::Result<()> {
        set_foreground(self.fd.as_fd(), Pid::from_raw(group))
    }

    /// Puts the group of the caller of [`Terminal::ours`] into the foreground.
    ///
    /// # Errors
    /// Those of tcsetpgrp(3).
    pub fn take_back(&self) -> io::Result<()> {
        set_foreground(self.fd.as_fd(), self.ours)
    }

    /// Whether the group of the caller of [`Terminal::ours`] is in the foreground.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        tcgetpgrp(&self.fd) == Ok(self.ours)
    }

    /// Whether this group is in the foreground now.
    #[must_use]
    pub fn is_with(&self, group: i32) -> bool {
        tcgetpgrp(&self.fd) == Ok(Pid::from_raw(group))
    }
}

/// Terminal as the guardian handles it.
#[derive(Debug)]
pub(super) struct Foreground {
    terminal: Option<Terminal>,
    /// Whether the command has it, or takes it at its start.
    lent: bool,
    pub(super) witness: Witness,
}

impl Foreground {
    pub(super) fn ours(sigint_is_ignored: bool) -> Foreground {
        Foreground {
            terminal: Terminal::ours(sigint_is_ignored),
            lent: false,
            witness: Witness::default(),
        }
    }

    pub(super) fn nobody_s() -> Foreground {
        Foreground {
            terminal: None,
            lent: false,
            witness: Witness::default(),
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.terminal.is_some()
    }

    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.terminal.as_ref().map(|t| t.as_fd().as_raw_fd())
    }

    /// Decides before the fork whether the command gets the terminal: not if a shell took it. In a PID
    /// namespace the child could not check, because this group has no number there.
    pub(super) fn lend(&mut self) {
        self.lent = self.terminal.as_ref().is_some_and(Terminal::is_ours);
    }

    pub(super) fn is_lent_to(&mut self, group: i32) {
        if self.lent {
            self.witness.begin(group);
        }
    }

    /// Takes the terminal, in the command's process, which leads its group and blocks all signals.
    pub(super) fn occupy(&self) {
        if let Some(terminal) = &self.terminal
            && self.lent
        {
            // On failure it is in the background, as without trafficcop.
            let _ = tcsetpgrp(terminal.as_fd(), getpgrp());
        }
    }

    /// Takes the terminal back from the stopped or ended, unreaped command. A group that took it meanwhile
    /// keeps it: a shell that saw this process stopped reads from it.
    pub(super) fn take_back(&mut self, group: i32) {
        if std::mem::take(&mut self.lent)
            && let Some(terminal) = &self.terminal
            && (terminal.is_with(group) || tcgetpgrp(terminal).is_ok_and(is_ours_or_empty))
        {
            let _ = terminal.take_back();
        }
    }

    pub(super) fn lend_again(&mut self, group: i32) {
        if let Some(terminal) = &self.terminal
            && terminal.is_ours()
        {
            self.lent = terminal.give(group).is_ok();
        }
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The command may be a shell with a job in the foreground. A group without a number is another job's.
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

/// tcsetpgrp stops a caller in the background that does not block SIGTTOU.
fn set_foreground(fd: BorrowedFd<'_>, group: Pid) -> io::Result<()> {
    let old =
        SigSet::from(Signal::SIGTTOU).thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    let done = tcsetpgrp(fd, group);
    old.thread_set_mask()?;
    Ok(done?)
}

/// Whether this process group is in the foreground of the controlling terminal.
#[must_use]
pub fn is_in_foreground() -> bool {
    // With O_NONBLOCK the open does not wait for the carrier of a terminal whose line is down.
    let flags = OFlag::O_RDONLY | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
    let terminal = open("/dev/tty", flags, Mode::empty());
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

/// Sends a signal of the terminal, which only the command's group got, to this group.
pub fn pass_to_own_group(signal: i32) {
    raw::kill(0, signal);
}

/// Origin of a request to stop this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopAsked {
    /// A `kill -TSTP` of this process.
    BySomebody,
    /// Ctrl-Z, which the terminal sent to this group.
    ByTheTerminal,
    /// Ctrl-Z, which the terminal sent to the command's group.
    OfTheCommand,
}

impl StopAsked {
    /// Finds the origin of a new SIGTSTP: the terminal signals its foreground group.
    #[must_use]
    pub fn of_a_signal() -> StopAsked {
        if is_in_foreground() {
            StopAsked::ByTheTerminal
        } else {
            StopAsked::BySomebody
        }
    }
}

/// Stops this process. Returns when it was continued; at once if no process could continue it.
///
/// After a Ctrl-Z of the command's group, it stops the whole group: a script that waits for this process has to
/// stop, too, or the user's shell gets no prompt. The kernel never stops an orphaned group by SIGTSTP: there
/// Ctrl-Z has no effect, and `kill -TSTP` leads to a SIGSTOP.
///
/// # Errors
/// Those of sigaction(2) and kill(2).
pub fn stop_ourselves(asked: StopAsked) -> io::Result<()> {
    match asked {
        StopAsked::BySomebody if is_orphaned() => Ok(raise(Signal::SIGSTOP)?),
        // To this thread, so that it stops before the handler is back.
        StopAsked::BySomebody | StopAsked::ByTheTerminal => by_default(|| raise(Signal::SIGTSTP)),
        StopAsked::OfTheCommand => by_default(|| killpg(getpgrp(), Signal::SIGTSTP)),
    }
}

fn by_default(stop: impl FnOnce() -> nix::Result<()>) -> io::Result<()> {
    // The handler would only be called again.
    let handler = raw::take_default(Signal::SIGTSTP)?;
    let open = SigSet::from(Signal::SIGTSTP);
    let mask = open.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_UNBLOCK)?;
    let stopped = stop();
    mask.thread_set_mask()?;
    drop(handler);
    Ok(stopped?)
}

/// Whether no member's parent is in another group of this session and could continue the group. Also true if no
/// process is visible.
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
