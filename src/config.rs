//! The validated configuration: what was typed, made sense of. A [`Config`] cannot be inconsistent;
//! what does not fit is a [`UsageError`] of one line that names the value, why, and what to do.
//!
//! Called by `main` before anything is forked, opened or connected. It only looks (at the paths it
//! was given); it must never create, print or exit.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod access;
mod elect;
mod files;
mod hold_policy;
mod hooks;
mod listen;
mod once;
mod quote;
mod scheduled_events;
mod source;
mod telling;
mod work;

pub use access::{of_blobs_alone, options};
pub use elect::Telling;
use files::{has_directory, locks, same_file, status_file};
pub use hooks::Roles;
pub use quote::quoted;
use quote::{cut, quoted_word};
pub use source::*;
pub use work::Work;

use crate::args;
use crate::azure::AuthOptions;
use crate::core::{Budget, IfLost, Rules};
use crate::exit;
pub use crate::exit::UsageError;
use crate::guardian::Contain;
use crate::host;
pub use crate::host::Host;
use crate::lease::record::{COMMAND_LIMIT, Candidate};
use crate::notify::Ready;
use crate::report::{Format, Volume};
use crate::units::{self, show};

/// What a blob's lease can be: the service's limits.
pub(crate) const BLOB_LEASE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(15)..=Duration::from_secs(60);
/// What a standby may sleep between two looks: less is a flood, more is a forgotten standby.
const POLL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
/// The most slots: a standby that looks at four with each poll must get round.
const SLOTS: u32 = 1000;

pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(60);
const DEFAULT_POLL: Duration = Duration::from_secs(2);
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);

/// The lock, as far as it can be checked without asking its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    /// A lease on an Azure blob.
    Blob {
        /// `CONTAINER/NAME` or a URL; Azure's rules for names are the store's to check.
        target: String,
        /// What was typed about its account.
        options: AuthOptions,
        /// Container and blob are created if they are missing.
        create: bool,
        /// Create a page blob of this many bytes (a multiple of 512) instead of a block blob.
        page_blob: Option<u64>,
    },
    /// A lock on a file.
    File {
        /// Its path.
        path: PathBuf,
        /// It is kept as on a drive that machines share, whatever it lies on.
        shared: bool,
    },
}

impl From<args::Log> for Format {
    fn from(typed: args::Log) -> Format {
        match typed {
            args::Log::Text => Format::Text,
            args::Log::Json => Format::Json,
        }
    }
}

impl From<args::Ready> for Ready {
    fn from(typed: args::Ready) -> Ready {
        match typed {
            args::Ready::Standby => Ready::Standby,
            args::Ready::Held => Ready::Held,
            args::Ready::Command => Ready::Command,
        }
    }
}

/// What is to be done, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// What is competed for.
    pub lock: Lock,
    /// How many may have control at the same time; with more than one, `lock` is the name of all.
    pub slots: u32,
    /// What the instance goes by. A budget is always there; on a file of a local disk
    /// it has no meaning, and whoever knows the store's terms takes it out.
    pub rules: Rules,
    /// What is to be done once, if the command is that.
    pub task: Option<crate::lease::once::Task>,
    /// How long a grant lasts; the same as in the rules' budget.
    pub lease: Duration,
    /// The command and its arguments; not empty, but for `elect`.
    pub command: Vec<OsString>,
    /// What runs besides the command.
    pub roles: Roles,
    /// What keeps the command's tree together.
    pub contain: Contain,
    /// The exit status when control was not obtained.
    pub conflict_status: u8,
    /// Who we are in the lock's record.
    pub candidate: Candidate,
    /// Where the present state is kept.
    pub status_file: Option<PathBuf>,
    /// Where questions are answered over HTTP.
    pub listen: Option<crate::serve::Address>,
    /// How the log is written.
    pub log: Format,
    /// How much is logged.
    pub volume: Volume,
    /// Where every change of state is appended.
    pub event_log: Option<PathBuf>,
    /// When a service manager is told that we are ready.
    pub ready: Ready,
    /// How what Azure announces for this machine is followed.
    pub scheduled_events: Option<crate::azure::scheduled_events::Config>,
    /// Variables of ours that nothing we run inherits.
    pub withheld: Vec<OsString>,
    /// The lock that another trafficcop holds for the command we are a part of.
    outer: Option<String>,
}

impl Config {
    /// Whether we give up where another has control (`-n`).
    #[must_use]
    pub fn looks_once(&self) -> bool {
        self.rules.wait == Some(Duration::ZERO)
    }

    /// Refuses the lock of this name if it is held for the command we are a part of: we would wait
    /// for it, and its holder for us. Of several slots another may be had.
    ///
    /// # Errors
    /// That it is.
    pub fn refuse_our_own(&self, name: &str) -> Result<(), UsageError> {
        let Some(outer) = self.outer.as_deref().filter(|_| self.slots == 1) else {
            return Ok(());
        };
        let is_it = match &self.lock {
            Lock::Blob { .. } => outer == name,
            Lock::File { path, .. } => same_file(Path::new(outer), path),
        };
        if is_it {
            return Err(UsageError::new(format!(
                "{name} is held for the command that we are a part of, and would never be free for us: leave the inner trafficcop out, or name another lock"
            )));
        }
        Ok(())
    }

    /// Makes sense of what was typed.
    ///
    /// # Errors
    /// The first thing found that cannot be.
    pub fn new(typed: args::Run, place: &Host) -> Result<Config, UsageError> {
        let Some(program) = typed.command.first() else {
            return Err(UsageError::new(
                "no command: name what is to run after --, as in 'trafficcop run --file PATH -- ./job'",
            ));
        };
        if program.is_empty() {
            return Err(UsageError::new(
                "the command's name is empty: is a variable unset in what was typed after --?",
            ));
        }
        let common = &typed.common;
        let lock = lock(common)?;
        let slots = slots(common)?;
        let budget = budget(common, &lock)?;
        let poll = poll(common.poll.as_deref())?;
        let (once, task) = once::once(&typed, slots)?.unzip();
        let rules = Rules {
            budget: Some(budget),
            poll: Some(poll),
            wait: wait(common)?,
            patience: patience(common)?,
            grace: span("--grace", typed.grace.as_deref())?.unwrap_or(DEFAULT_GRACE),
            stop_signal: match typed.stop_signal.as_deref() {
                Some(text) => units::signal(text).map_err(|why| about("--stop-signal", &why))?,
                None => libc::SIGTERM,
            },
            if_lost: match common.if_lost {
                args::IfLost::Compete => IfLost::Compete,
                args::IfLost::Exit => IfLost::Exit,
            },
            hold_policy: hold_policy::hold_policy(&typed.hold_policy, &lock, budget.lease, poll)?,
            once,
            seed: place.seed,
        };
        let status_file = status_file(common, &lock, slots)?;
        let (volume, event_log) = telling::telling(common, &lock, slots)?;
        let lock_is_file = matches!(lock, Lock::File { .. });
        Ok(Config {
            listen: listen::listen(&typed.listen, &lock, slots, status_file.as_deref())?,
            status_file,
            conflict_status: conflict_status(common)?,
            candidate: Candidate {
                identity: identity(common, place)?,
                host: place.host.clone(),
                pid: place.pid,
                command: cut(&quoted(&typed.command), COMMAND_LIMIT).to_owned(),
            },
            lock,
            slots,
            rules,
            task,
            lease: budget.lease,
            roles: hooks::roles(typed.roles)?,
            contain: match typed.contain {
                args::Contain::Auto => Contain::Auto,
                args::Contain::Cgroup => Contain::Cgroup,
                args::Contain::Pidns => Contain::Pidns,
                args::Contain::None => Contain::None,
            },
            log: common.log.into(),
            ready: typed.notify.ready.into(),
            scheduled_events: scheduled_events::scheduled_events(&typed.scheduled_events, place)?,
            event_log,
            volume,
            withheld: match lock_is_file {
                true => Vec::new(),
                false => access::withheld(typed.no_credentials, None),
            },
            command: typed.command,
            outer: place.outer.clone(),
        })
    }
}

fn about(flag: &str, why: &str) -> UsageError {
    UsageError::new(format!("{flag}: {why}"))
}

fn span(flag: &str, text: Option<&str>) -> Result<Option<Duration>, UsageError> {
    text.map(|text| units::duration(text).map_err(|why| about(flag, &why)))
        .transpose()
}

fn lock(typed: &args::Common) -> Result<Lock, UsageError> {
    // A flag that cannot do anything is a misunderstanding, and those are cheaper now.
    let strangers = |with: &str, flags: &[(&str, bool)]| match flags.iter().find(|flag| flag.1) {
        Some((flag, _)) => Err(UsageError::new(format!(
            "{flag} has no meaning for a lock {with}: leave it out (or unset its variable)"
        ))),
        None => Ok(()),
    };
    if typed.heartbeat.is_some() {
        return Err(UsageError::new(
            "--heartbeat is gone: a lock on a shared drive is a lease now, renewed in any case, and one on a local disk needs no proof: leave it out (or unset TRAFFICCOP_HEARTBEAT)",
        ));
    }
    match (&typed.blob, &typed.file) {
        (None, None) => Err(UsageError::new(
            "no lock: name one with --blob CONTAINER/NAME or --file PATH",
        )),
        (Some(blob), Some(file)) => Err(UsageError::new(format!(
            "two locks, --blob {} and --file {}: exactly one can be held (is TRAFFICCOP_BLOB or TRAFFICCOP_FILE set?)",
            blob.split('?').next().unwrap_or_default(), // A URL's query is a secret.
            file.display()
        ))),
        (Some(target), None) => {
            strangers("on a blob", &[("--shared", typed.shared)])?;
            if target.is_empty() {
                return Err(UsageError::new(
                    "--blob is empty: name a CONTAINER/NAME or a URL",
                ));
            }
            if typed.no_create && typed.page_blob.is_some() {
                return Err(UsageError::new(
                    "--page-blob says what to create, and --no-create to create nothing: choose one",
                ));
            }
            let page_blob = typed.page_blob.as_deref().map(units::page_blob_size);
            Ok(Lock::Blob {
                target: target.clone(),
                options: options(typed.emulator, &typed.access),
                create: !typed.no_create,
                page_blob: page_blob
                    .transpose()
                    .map_err(|why| about("--page-blob", &why))?,
            })
        }
        (None, Some(path)) => {
            strangers("on a file", &of_blobs_alone(&typed.access))?;
            strangers(
                "on a file",
                &[
                    ("--emulator", typed.emulator),
                    ("--no-create", typed.no_create),
                    ("--page-blob", typed.page_blob.is_some()),
                ],
            )?;
            if path.as_os_str().is_empty() {
                return Err(UsageError::new("--file is empty: name a path"));
            }
            Ok(Lock::File {
                path: path.clone(),
                shared: typed.shared,
            })
        }
    }
}

fn slots(typed: &args::Common) -> Result<u32, UsageError> {
    let Some(text) = typed.slots.as_deref() else {
        return Ok(1);
    };
    match text.parse() {
        Ok(0) => Err(UsageError::new(
            "--slots 0: nobody could ever have control: take 1 or more",
        )),
        Ok(count) if count <= SLOTS => Ok(count),
        _ => Err(UsageError::new(format!(
            "--slots {text}: take a number from 1 to {SLOTS}"
        ))),
    }
}

fn budget(typed: &args::Common, lock: &Lock) -> Result<Budget, UsageError> {
    let text = typed.lease.as_deref();
    if text.is_some_and(|text| {
        ["infinite", "infinity", "inf", "forever", "-1"].contains(&text.to_lowercase().as_str())
    }) {
        return Err(UsageError::new(
            "--lease: an infinite lease is never given back by a machine that died: take 15s to 60s, it is renewed for as long as we live",
        ));
    }
    let lease = span("--lease", text)?.unwrap_or(DEFAULT_LEASE);
    if let Lock::Blob { .. } = lock {
        if !BLOB_LEASE.contains(&lease) {
            return Err(UsageError::new(format!(
                "--lease {}: a blob can be leased for 15s to 60s only: take {}",
                show(lease),
                show(lease.clamp(*BLOB_LEASE.start(), *BLOB_LEASE.end())),
            )));
        }
        if lease.subsec_nanos() != 0 {
            return Err(UsageError::new(format!(
                "--lease {}: a blob is leased for whole seconds: take {}s",
                show(lease),
                lease.as_secs()
            )));
        }
    }
    let mut budget = Budget::for_lease(lease);
    if let Some(grace) = span("--grace-on-loss", typed.grace_on_loss.as_deref())? {
        budget.grace_on_loss = grace;
    }
    if let Some(margin) = span("--margin", typed.margin.as_deref())? {
        budget.margin = margin;
    }
    budget
        .validate()
        .map_err(|why| UsageError::new(why.to_string()))?;
    Ok(budget)
}

pub(crate) fn poll(typed: Option<&str>) -> Result<Duration, UsageError> {
    let poll = span("--poll", typed)?.unwrap_or(DEFAULT_POLL);
    if !POLL.contains(&poll) {
        return Err(UsageError::new(format!(
            "--poll {}: take 100ms to 1h",
            show(poll)
        )));
    }
    Ok(poll)
}

fn wait(typed: &args::Common) -> Result<Option<Duration>, UsageError> {
    match (typed.no_wait, typed.wait.as_deref()) {
        (true, Some(wait)) => Err(UsageError::new(format!(
            "--no-wait and --wait {wait} contradict each other: choose one (is TRAFFICCOP_NO_WAIT or TRAFFICCOP_WAIT set?)"
        ))),
        (true, None) => Ok(Some(Duration::ZERO)),
        (false, wait) => span("--wait", wait),
    }
}

fn patience(typed: &args::Common) -> Result<Duration, UsageError> {
    Ok(span("--connect-timeout", typed.connect_timeout.as_deref())?.unwrap_or(DEFAULT_PATIENCE))
}

fn conflict_status(typed: &args::Common) -> Result<u8, UsageError> {
    let Some(text) = typed.conflict_exit_code.as_deref() else {
        return Ok(exit::CONFLICT);
    };
    text.parse().map_err(|_| {
        // flock once took 600 for 88.
        UsageError::new(format!(
            "--conflict-exit-code {text}: an exit status is a number from 0 to 255"
        ))
    })
}

fn identity(typed: &args::Common, place: &Host) -> Result<String, UsageError> {
    let Some(identity) = typed.identity.clone() else {
        return Ok(place.identity());
    };
    if let Some(why) = host::unfit_identity(&identity) {
        return Err(about("--identity", &why));
    }
    Ok(identity)
}

#[cfg(test)]
mod tests;
