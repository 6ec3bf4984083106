//! The process that tells the reader of `trafficcop elect`: it is what the guardian runs as the
//! command of a tenure, so that the reader is told in time though the supervisor is killed, stopped or starved.
//!
//! Called by main alone. It says `holder`, waits for SIGTERM (a drain), says `standby`, and waits
//! for its SIGKILL, which is the end of the reader's grace. It ends by itself only when nobody reads
//! (by SIGPIPE, or with status 74), or was told anything (0): then nobody needs a grace. It must never say `holder` after the deadline, and knows
//! nothing of leases.

use std::io::Write as _;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::cli;
use crate::deadline::{Deadline, VARIABLE};
use crate::exit::{self, Leave};
use crate::report::roles::{Here, Role};
use crate::report::stdout::{Mouth, Said};

/// Written to the ledger before the first byte of `holder`: from now on the reader may believe it.
pub const BELIEVED: u8 = b'h';
/// Written to the ledger after the last byte of `standby`.
pub const TOLD: u8 = b's';

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
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
pub fn announce(typed: &cli::Announce) -> anyhow::Result<Leave> {
    // As `ps` and `top` show it; else it would be "exe".
    let _ = nix::sys::prctl::set_name(c"trafficcop-tell");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let stop = SigSet::from_iter([Signal::SIGTERM]);
    stop.thread_block()?;
    let asked = SignalFd::with_flags(&stop, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    // Where nobody reads it the supervisor is dead, and the guardian gives the grace.
    let mut ledger = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/self/fd/{}", typed.ledger))?;
    let deadline = Deadline::from_env().ok();
    let here = Here {
        identity: variable("TRAFFICCOP_HOLDER"),
        lock: variable("TRAFFICCOP_LOCK"),
        slot: variable("TRAFFICCOP_SLOT").parse().unwrap_or(0),
        control: Some(variable(VARIABLE)).filter(|path| !path.is_empty()),
    };
    let token = variable("TRAFFICCOP_TOKEN").parse()?;
    let mut mouth = Mouth::of_stdout();
    mouth.say(Role::holder(here.clone(), token).line(typed.json));
    let mut stage = Stage::Before;
    loop {
        if stage == Stage::Before && mouth.is_about_to_begin() {
            // What waited for room, or was stopped, may have become untrue.
            if deadline.as_ref().is_none_or(Deadline::in_control) {
                let _ = ledger.write(&[BELIEVED]);
            } else {
                mouth.retract();
                stage = Stage::Silent;
            }
        }
        let said = mouth.push();
        let waits = match said {
            Said::All => false,
            Said::Waits => true,
            Said::Never(errno) => return Ok(leave(errno)),
        };
        stage = match stage {
            Stage::Before if !mouth.is_about_to_begin() => Stage::Believed,
            Stage::Leaving if !waits => {
                let _ = ledger.write(&[TOLD]);
                Stage::Told
            }
            stage => stage,
        };
        match mouth.wait(waits, asked.as_fd()) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(errno) => return Ok(leave(errno)),
        }
        while let Ok(Some(_)) = asked.read_signal() {}
        match stage {
            // It waited for room all the time: the reader knows nothing that must be taken back.
            Stage::Before | Stage::Silent => return Ok(Leave::Status(0)),
            Stage::Believed => {
                mouth.say(Role::standby(here.clone(), None, None).line(typed.json));
                stage = Stage::Leaving;
            }
            Stage::Leaving | Stage::Told => {}
        }
    }
}

/// Nobody reads any more.
fn leave(errno: Errno) -> Leave {
    match errno {
        Errno::EPIPE => Leave::Signal(libc::SIGPIPE),
        _ => Leave::Status(exit::CANNOT_WRITE),
    }
}
