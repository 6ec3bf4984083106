//! The process that tells the reader of `trafficcop elect`: it is what the guardian runs as the
//! command of a tenure, so that the reader is told in time though the supervisor is killed, stopped or starved.
//!
//! Called by main alone. It says `holder`, waits for SIGTERM (a drain), says `standby`, and waits
//! for its SIGKILL, which is the end of the reader's grace. It ends by itself only when nobody reads
//! (by SIGPIPE, or with status 74), or was told anything (0): then nobody needs a grace. It must never
//! say `holder` after the deadline, and knows nothing of leases.

use std::io::Write as _;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::lines::{Here, Role};
use crate::args;
use crate::deadline::{Deadline, VARIABLE};
use crate::exit::{self, ExitAction};
use crate::host;
use crate::report::stdio::{LineWriter, WriteProgress};

/// Written to the progress pipe before the first byte of `holder`: from now on the reader may believe it.
pub(super) const BELIEVED: u8 = b'h';
/// Written to the progress pipe after the last byte of `standby`.
pub(super) const TOLD: u8 = b's';

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// `holder` waits to be written; the reader does not know.
    Before,
    /// Control was gone before `holder` could be written: the reader knows nothing.
    Silent,
    /// The reader may believe that we are in control.
    Believed,
    /// `standby` waits to be written.
    Leaving,
    /// The reader was told; it has its grace.
    Told,
}

/// Tells the reader.
///
/// # Errors
/// What the kernel refuses, before a word was said.
pub(crate) fn announce(typed: &args::Announce) -> anyhow::Result<ExitAction> {
    // As `ps` and `top` show it; else it would be "exe".
    let _ = nix::sys::prctl::set_name(c"trafficcop-tell");
    let variable = |name: &str| host::variable(name).unwrap_or_default();
    // Blocked, and read as a descriptor: waited for together with the pipe, and lost at no moment.
    let stop = SigSet::from_iter([Signal::SIGTERM]);
    stop.thread_block()?;
    let asked = SignalFd::with_flags(&stop, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    // Where nobody reads it the supervisor is dead, and the guardian gives the grace.
    let mut progress = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{}", typed.progress))?;
    let deadline = Deadline::from_env().ok();
    let here = Here {
        identity: variable("TRAFFICCOP_HOLDER"),
        lock: variable("TRAFFICCOP_LOCK"),
        slot: variable("TRAFFICCOP_SLOT").parse().unwrap_or(0),
        control: host::variable(VARIABLE),
    };
    let token = variable("TRAFFICCOP_TOKEN").parse()?;
    let mut out = LineWriter::of_stdout();
    out.say(Role::holder(here.clone(), token).line(typed.json));
    let mut reached = Progress::Before;
    loop {
        if reached == Progress::Before && out.is_about_to_begin() {
            // What waited for room, or was stopped, may have become untrue.
            if deadline.as_ref().is_none_or(Deadline::in_control) {
                let _ = progress.write(&[BELIEVED]);
            } else {
                out.retract();
                reached = Progress::Silent;
            }
        }
        let said = out.push();
        let waits = match said {
            WriteProgress::All => false,
            WriteProgress::Waits => true,
            WriteProgress::Never(errno) => return Ok(leave(errno)),
        };
        reached = match reached {
            Progress::Before if !out.is_about_to_begin() => Progress::Believed,
            Progress::Leaving if !waits => {
                let _ = progress.write(&[TOLD]);
                Progress::Told
            }
            reached => reached,
        };
        match out.wait(waits, asked.as_fd()) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(errno) => return Ok(leave(errno)),
        }
        while let Ok(Some(_)) = asked.read_signal() {}
        match reached {
            // It waited for room all the time: the reader knows nothing that must be taken back.
            Progress::Before | Progress::Silent => return Ok(ExitAction::Status(0)),
            Progress::Believed => {
                out.say(Role::standby(here.clone(), None, None).line(typed.json));
                reached = Progress::Leaving;
            }
            Progress::Leaving | Progress::Told => {}
        }
    }
}

/// Nobody reads any more.
fn leave(errno: Errno) -> ExitAction {
    match errno {
        Errno::EPIPE => ExitAction::Signal(libc::SIGPIPE),
        _ => ExitAction::Status(exit::CANNOT_WRITE),
    }
}
