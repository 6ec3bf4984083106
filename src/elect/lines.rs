//! Lines for the reader of `trafficcop elect`, the process that writes them, and the log's wording.
//!
//! That process writes `holder`, waits for SIGTERM, writes `standby`, and waits for SIGKILL, the end of the
//! reader's grace. It ends by itself only if no reader needs a grace: the reader is gone (SIGPIPE, or status
//! 74) or was told nothing (status 0). It must never write `holder` after the deadline.

use std::io::Write as _;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde::Serialize;
use tracing::Level;

use crate::args;
use crate::clock::Instant;
use crate::core::{Cause, Notice, WorkloadEvent};
use crate::deadline::{Deadline, VARIABLE};
use crate::driver::Observation;
use crate::exit::{self, ExitAction};
use crate::host;
use crate::report::stdio::{LineWriter, WriteProgress};
use crate::report::{Fold, Happened, LogObserver, last, plain, text as wording};
use crate::util::wall_clock;

const UNKNOWN: &str = "unknown";

// In characters: a line must fit into a pipe as a whole.
const NAME_LIMIT: usize = 256;

const LOCK_LIMIT: usize = 2000;

/// Fields of `--json` (`args::FIELDS`), in this order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Role {
    role: &'static str,
    token: Option<u64>,
    holder: Option<String>,
    identity: String,
    lock: String,
    slot: u32,
    control: Option<String>,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    #[serde(flatten)]
    role: &'a Role,
    time: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Here {
    pub identity: String,
    pub lock: String,
    pub slot: u32,
    pub control: Option<String>,
}

impl Role {
    #[must_use]
    pub(crate) fn holder(here: Here, token: u64) -> Role {
        let holder = Some(name(&here.identity));
        Role::new("holder", here, Some(token), holder)
    }

    #[must_use]
    pub(crate) fn standby(here: Here, holder: Option<&str>, token: Option<u64>) -> Role {
        Role::new("standby", here, token, holder.map(name))
    }

    fn new(role: &'static str, here: Here, token: Option<u64>, holder: Option<String>) -> Role {
        Role {
            role,
            token,
            holder,
            identity: here.identity,
            lock: here.lock,
            slot: here.slot,
            control: here.control,
        }
    }

    #[must_use]
    pub(crate) fn line(&self, json: bool) -> String {
        if json {
            let line = JsonLine {
                role: self,
                time: wall_clock(),
            };
            // Cannot fail: strings and numbers only.
            return serde_json::to_string(&line).unwrap_or_default() + "\n";
        }
        match (self.role, self.token) {
            ("holder", Some(token)) => format!("holder {token}\n"),
            _ => format!("standby {}\n", self.holder.as_deref().unwrap_or(UNKNOWN)),
        }
    }
}

fn name(text: &str) -> String {
    // A pipe takes PIPE_BUF (4096 bytes) as a whole; no reader joins halves.
    plain(text).chars().take(NAME_LIMIT).collect()
}

#[must_use]
pub(crate) fn fits(lock: &str) -> bool {
    serde_json::to_string(lock).is_ok_and(|text| text.len() <= LOCK_LIMIT)
}

pub(crate) struct ReaderLog(pub(crate) LogObserver);

impl Fold for ReaderLog {
    fn take(&mut self, happened: &Happened<'_>) {
        match happened.observation {
            Observation::Workload(WorkloadEvent::LeftBehind) => return,
            Observation::Workload(WorkloadEvent::Lost) => {
                return tracing::warn!(
                    "the guardian died or fell silent; telling the reader to stop"
                );
            }
            Observation::Notice { notice, .. } => {
                if let Some(text) = worded(notice, happened.now) {
                    return self.0.reworded(happened, text);
                }
            }
            _ => {}
        }
        self.0.take(happened);
    }
}

/// Returns the holder and its token, as far as known, if the reader is told to stand by.
#[must_use]
pub(crate) fn standby_behind(notice: &Notice) -> Option<(Option<&str>, Option<u64>)> {
    match notice {
        Notice::StandingBy(info) => Some((info.holder.as_deref(), info.token)),
        // The holder is unknown, but not this instance.
        Notice::Unfit(_) | Notice::Refused { .. } => Some((None, None)),
        _ => None,
    }
}

#[must_use]
pub(crate) fn is_of_the_child(notice: &Notice) -> bool {
    matches!(
        notice,
        Notice::CommandEnded(_) | Notice::LeftBehind | Notice::Draining(Cause::CommandEnded)
    )
}

/// Returns a notice in the words for a reader, where they differ.
fn worded(notice: &Notice, now: Instant) -> Option<String> {
    match notice {
        Notice::Doubt {
            why,
            term_at: Some(at),
        } => Some(format!(
            "cannot renew the lease: {why}; retrying, the reader is told to stop in {} if nothing changes",
            wording::left(at.since(now))
        )),
        Notice::Draining(Cause::CommandEnded) => None,
        Notice::Draining(Cause::Stopped(libc::SIGPIPE)) => {
            Some("telling the reader to stop: it closed the pipe".to_owned())
        }
        Notice::Draining(cause) => {
            let why = wording::reason(cause, "");
            Some(format!("telling the reader to stop: {why}"))
        }
        Notice::Overlapped => Some(
            "the reader may have acted at the same time as another holder's: check what both have written"
                .to_owned(),
        ),
        _ => None,
    }
}

pub(super) fn hung_up(why: Option<&str>, status: i32) {
    let (level, text) = match why {
        None => (Level::INFO, "the reader of stdout has ended".to_owned()),
        Some(why) => {
            let text = format!("cannot write to stdout: {why}; exit status {status}");
            (Level::ERROR, text)
        }
    };
    last(level, text, status);
}

pub(super) fn reader_process_died(status: i32) {
    let text = format!("the process that tells the reader died; exit status {status}");
    last(Level::ERROR, text, status);
}

/// Sent before `holder`, which the reader may believe from now on.
pub(super) const BELIEVED: u8 = b'h';
/// Sent after `standby`.
pub(super) const TOLD: u8 = b's';

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReaderProgress {
    Before,
    Silent,
    Believed,
    Leaving,
    Told,
}

/// Tells the reader (`trafficcop announce`).
pub(crate) fn announce(typed: &args::Announce) -> anyhow::Result<ExitAction> {
    // `ps` and `top` would show "exe".
    let _ = nix::sys::prctl::set_name(c"trafficcop-tell");
    let variable = |name: &str| host::variable(name).unwrap_or_default();
    // As a descriptor: never lost, and waited for together with the pipe.
    let stop = SigSet::from_iter([Signal::SIGTERM]);
    stop.thread_block()?;
    let asked = SignalFd::with_flags(&stop, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    // Without a reader of the pipe the supervisor is dead: the guardian gives the grace.
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
    let mut reached = ReaderProgress::Before;
    loop {
        if reached == ReaderProgress::Before && out.is_about_to_begin() {
            // It may have become untrue during a wait or a SIGSTOP.
            if deadline.as_ref().is_none_or(Deadline::in_control) {
                let _ = progress.write(&[BELIEVED]);
            } else {
                out.retract();
                reached = ReaderProgress::Silent;
            }
        }
        let said = out.push();
        let waits = match said {
            WriteProgress::All => false,
            WriteProgress::Waits => true,
            WriteProgress::Never(errno) => return Ok(leave(errno)),
        };
        reached = match reached {
            ReaderProgress::Before if !out.is_about_to_begin() => ReaderProgress::Believed,
            ReaderProgress::Leaving if !waits => {
                let _ = progress.write(&[TOLD]);
                ReaderProgress::Told
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
            // There is nothing to take back.
            ReaderProgress::Before | ReaderProgress::Silent => return Ok(ExitAction::Status(0)),
            ReaderProgress::Believed => {
                out.say(Role::standby(here.clone(), None, None).line(typed.json));
                reached = ReaderProgress::Leaving;
            }
            ReaderProgress::Leaving | ReaderProgress::Told => {}
        }
    }
}

fn leave(errno: Errno) -> ExitAction {
    match errno {
        Errno::EPIPE => ExitAction::Signal(libc::SIGPIPE),
        _ => ExitAction::Status(exit::CANNOT_WRITE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Here {
        Here {
            identity: "web1".into(),
            lock: "file:/x".into(),
            slot: 0,
            control: Some("/run/c".into()),
        }
    }

    #[test]
    fn text_line_is_a_role_and_one_word() {
        assert_eq!(Role::holder(here(), 7).line(false), "holder 7\n");
        let standby = |holder| Role::standby(here(), holder, None).line(false);
        assert_eq!(standby(Some("web2-42")), "standby web2-42\n");
        assert_eq!(standby(None), "standby unknown\n");
    }

    #[test]
    fn name_in_a_record_cannot_forge_a_line() {
        let line = Role::standby(here(), Some("a\nholder 9"), None).line(false);
        assert_eq!(line, "standby a holder 9\n");
        let line = Role::standby(here(), Some(&"é".repeat(5000)), Some(3)).line(true);
        assert!(
            line.len() < 1000 && line.matches('\n').count() == 1,
            "{line}"
        );
    }

    #[test]
    fn json_line_has_all_fields_in_order() {
        let names = fields();
        for role in [Role::holder(here(), 7), Role::standby(here(), None, None)] {
            let line = role.line(true);
            let mut at = 0;
            for name in &names {
                let found = line[at..].find(&format!("\"{name}\":")).expect(name);
                at += found + 1;
            }
            let value: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(value.as_object().unwrap().len(), names.len());
        }
    }

    fn fields() -> Vec<&'static str> {
        vec![
            "role", "token", "holder", "identity", "lock", "slot", "control", "time",
        ]
    }

    #[test]
    fn log_names_the_reader() {
        let now = Instant::from_nanos(1);
        let (notice, lock) = (&Notice::Draining(Cause::Stopped(15)), "file:/x");
        let row = Happened::new(now, &Observation::Notice { notice, lock }).row;
        assert_eq!(row.line.unwrap().0, Level::INFO);
        let text = worded(notice, now).unwrap();
        assert!(
            text.contains("reader") && text.contains("SIGTERM"),
            "{text}"
        );
        let text = worded(&Notice::Draining(Cause::Stopped(13)), now).unwrap();
        assert!(text.contains("closed the pipe"), "{text}");
        assert!(worded(&Notice::Released, now).is_none());
    }
}
