//! What was typed of an election, made sense of. Called by main.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{
    Candidate, Config, Host, IfLost, Lock, Roles, Rules, UsageError, budget, conflict_status,
    hold_policy, identity, lock, locks, poll, quoted, quoted_word, same_file, scheduled_events,
    slots, span, status_file, telling, wait,
};
use crate::args;
use crate::guardian::Contain;

/// A reader is told, and not killed: it is expected to be quick, or to say how long it takes.
const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// What the lock's record shows as the command.
const COMMAND: &str = "trafficcop elect";

/// How the reader is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telling {
    /// As JSON objects.
    pub json: bool,
    /// Where a link to the control file is kept.
    pub control_file: Option<PathBuf>,
}

impl Config {
    /// Makes sense of what was typed after `elect`. The plan's command is empty: the driver knows
    /// what tells the reader.
    ///
    /// # Errors
    /// The first thing found that cannot be.
    pub fn of_elect(typed: args::Elect, place: &Host) -> Result<(Config, Telling), UsageError> {
        if !typed.command.is_empty() {
            return Err(UsageError::new(format!(
                "elect takes no command, it tells who is in control on stdout: pipe it into what reads that, or run the command with 'trafficcop run ... -- {}'",
                quoted(&typed.command)
            )));
        }
        let common = &typed.common;
        let lock = lock(common)?;
        let slots = slots(common)?;
        let budget = budget(common, &lock)?;
        let poll = poll(common.poll.as_deref())?;
        let turns = args::HoldPolicy {
            restart: None,
            restart_limit: None,
            restart_window: None,
            max_hold: typed.max_hold,
            min_hold: None,
            cooldown: typed.cooldown,
        };
        let rules = Rules {
            budget: Some(budget),
            poll: Some(poll),
            wait: wait(common)?,
            patience: super::patience(common)?,
            grace: span("--grace", typed.grace.as_deref())?.unwrap_or(DEFAULT_GRACE),
            stop_signal: libc::SIGTERM,
            if_lost: match common.if_lost {
                args::IfLost::Compete => IfLost::Compete,
                args::IfLost::Exit => IfLost::Exit,
            },
            hold_policy: hold_policy::hold_policy(&turns, &lock, budget.lease, poll)?,
            once: None,
            seed: place.seed,
        };
        let status_file = status_file(common, &lock, slots)?;
        let (volume, event_log) = telling::telling(common, &lock, slots)?;
        let telling = Telling {
            json: typed.json,
            control_file: control_file(typed.control_file, status_file.as_deref(), &lock, slots)?,
        };
        let plan = Config {
            listen: None,
            status_file,
            conflict_status: conflict_status(common)?,
            candidate: Candidate {
                identity: identity(common, place)?,
                host: place.host.clone(),
                pid: place.pid,
                command: COMMAND.into(),
            },
            lock,
            slots,
            rules,
            task: None,
            lease: budget.lease,
            contain: Contain::None,
            log: common.log.into(),
            ready: crate::notify::Ready::Standby,
            scheduled_events: scheduled_events::scheduled_events(&typed.scheduled_events, place)?,
            roles: Roles::default(),
            event_log,
            volume,
            command: Vec::new(),
            withheld: Vec::new(),
            outer: place.outer.clone(),
        };
        Ok((plan, telling))
    }
}

/// The link is put in place by renaming: nothing that is no link of ours may be there.
fn control_file(
    typed: Option<PathBuf>,
    status_file: Option<&Path>,
    lock: &Lock,
    slots: u32,
) -> Result<Option<PathBuf>, UsageError> {
    let Some(path) = typed else {
        return Ok(None);
    };
    let refuse = |why: &str| {
        Err(UsageError::new(format!(
            "--control-file {}: {why}",
            quoted_word(path.as_os_str())
        )))
    };
    if path.as_os_str().is_empty() || path.file_name().is_none() {
        return refuse("name a file, not a directory");
    }
    if status_file.is_some_and(|other| same_file(other, &path)) {
        return refuse("it is the status file: name another one");
    }
    if let Lock::File { path: lock, .. } = lock
        && locks(lock, slots).any(|lock| same_file(&lock, &path))
    {
        return refuse("it is the lock's file: name another one");
    }
    match path.symlink_metadata() {
        Ok(there) if !there.is_symlink() => {
            refuse("something is there that is no symbolic link: remove it, or name another one")
        }
        Ok(_) | Err(_) => Ok(Some(path)),
    }
}
