//! The configuration of `run`, and the part of it that `elect` shares.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use super::azure::scheduled_events;
use super::command::{refuse_a_lock_behind, refuse_no_command};
use super::health::{Health, health};
use super::lock::{Lock, refuse_lease};
use super::look;
use super::outputs::Outputs;
use super::policy::{hold_policy, longest_poll, of_leases, once, refuse_short_cooldown};
use super::quote::cut;
use super::{Host, Roles, UsageError, quoted};
use crate::args::{self, Checked};
use crate::core::{AUTH_PATIENCE, Budget, Rules};
use crate::doorbell::DoorbellAddress;
use crate::exit;
use crate::guardian::{Contain, StopTo};
use crate::lease::record::{COMMAND_LIMIT, Candidate};
use crate::notify::Ready;

// The service's limits. The parser refuses -1, no end: a dead machine would never give the lock back.
pub(crate) const BLOB_LEASE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(15)..=Duration::from_secs(60);

const DEFAULT_LEASE: Duration = Duration::from_secs(60);
pub(crate) const DEFAULT_POLL: Duration = Duration::from_secs(2);
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
// The store may start later than trafficcop. If it is silent for longer, it has another address.
pub(super) const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);

/// Validated configuration of an instance that competes for a lock.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub lock: Lock,
    /// Number of holders at once. With more than one, `lock` is the common name.
    pub slots: u32,
    pub doorbell: Option<DoorbellAddress>,
    /// Rules with a budget, which the code that knows the store's terms removes for a local disk.
    pub rules: Rules,
    /// Condition for control, checked with each poll.
    pub only_if: Option<OsString>,
    pub task: Option<crate::lease::once::Task>,
    /// Length of a lease, as in the budget.
    pub lease: Duration,
    /// Command and arguments; empty for `elect` only.
    pub command: Vec<OsString>,
    pub health: Health,
    pub roles: Roles,
    pub contain: Contain,
    pub stop_to: StopTo,
    /// Exit status if control was not obtained.
    pub conflict_status: u8,
    pub candidate: Candidate,
    pub status_file: Option<PathBuf>,
    pub listen: Option<crate::serve::Address>,
    pub event_log: Option<PathBuf>,
    pub ready: Ready,
    pub scheduled_events: Option<crate::azure::scheduled_events::Config>,
    pub withheld: Vec<OsString>,
    /// Flags that do nothing without a lease.
    pub(super) of_leases: Vec<&'static str>,
    /// Locks held for the command that this process belongs to.
    outer: Vec<String>,
}

impl Config {
    /// Returns whether the instance gives up if another has control (`-n`).
    #[must_use]
    pub(crate) fn looks_once(&self) -> bool {
        self.rules.wait == Some(Duration::ZERO)
    }

    /// Returns how often the condition is checked.
    #[must_use]
    pub(crate) fn asks_every(&self) -> Option<Duration> {
        self.only_if.as_ref().and(self.rules.poll)
    }

    /// Refuses a cooldown that ends before a polling standby looks.
    pub(crate) fn refuse_short_cooldown(&self) -> Result<(), UsageError> {
        let cooldown = self.rules.hold_policy.cooldown;
        let poll = self.rules.poll.unwrap_or(DEFAULT_POLL);
        refuse_short_cooldown(cooldown, longest_poll(poll))
    }

    /// Refuses a lock held for the command that this process belongs to: each would wait for the other. Of several
    /// slots another may be free.
    pub(crate) fn refuse_our_own(&self, name: &str) -> Result<(), UsageError> {
        if self.outer.is_empty() || self.slots != 1 {
            return Ok(());
        }
        // A command gets a path that is no UTF-8 in this form only.
        let is_named = self.outer.iter().any(|outer| outer == name);
        let patience = patience(self.rules.patience, self.rules.wait);
        let is_it = is_named || self.lock.is_one_of(&self.outer, patience)?;
        if is_it {
            refuse!(
                "{name} is held for the command that this trafficcop is a part of, so it would wait for ever: \
                 leave the inner trafficcop out, or name another lock"
            );
        }
        Ok(())
    }

    /// Validates the settings of `run`.
    pub(crate) fn new(typed: args::Run, host: &Host) -> Result<Config, UsageError> {
        refuse_no_command(
            &typed.command,
            "no command: write it after --, as in 'trafficcop run --file PATH -- ./job'",
        )?;
        let common = &typed.common;
        refuse_a_lock_behind(common, &typed.command)?;
        // First: the other settings depend on the lock, and of two mistakes it is the one to report.
        let basis = Basis::new(common)?;
        let (once, task) = once(&typed.once)?.unzip();
        let grace = typed.grace.unwrap_or(Ok(DEFAULT_GRACE));
        let signal = typed.stop_signal.unwrap_or(Ok(libc::SIGTERM));
        let rules = Rules {
            once,
            ..basis.rules(common, grace, signal, &typed.hold_policy, host)?
        };
        // A blob's metadata has 8 KiB in total.
        let shown = cut(&quoted(&typed.command), COMMAND_LIMIT).to_owned();
        let config = basis.config(common, Some(&typed.listen), None, rules, shown, host)?;
        let withheld = match typed.no_credentials {
            true => config.lock.withheld(),
            false => Vec::new(),
        };
        Ok(Config {
            health: health(&typed.health, &common.access)?,
            roles: roles(typed.roles)?,
            scheduled_events: scheduled_events(&typed.scheduled_events, host)?,
            task,
            contain: typed.contain,
            stop_to: typed.stop_to,
            ready: typed.ready,
            withheld,
            command: typed.command,
            ..config
        })
    }
}

fn roles(typed: Roles) -> Result<Roles, UsageError> {
    for (flag, script) in [
        ("--standby", &typed.standby),
        ("--on-acquire", &typed.on_acquire),
        ("--on-lost", &typed.on_lost),
    ] {
        refuse_no_script(flag, script.as_deref())?;
    }
    Ok(typed)
}

/// Refuses an empty script: `sh -c ''` succeeds, so an unset variable would go unnoticed.
fn refuse_no_script(flag: &str, script: Option<&OsStr>) -> Result<(), UsageError> {
    let script = script.map(OsStr::as_encoded_bytes);
    if script.is_some_and(|text| text.trim_ascii().is_empty()) {
        refuse!("{flag} is empty: name a command for sh, or leave it out");
    }
    Ok(())
}

/// Lock and timing, on which all other settings depend.
pub(super) struct Basis {
    lock: Lock,
    slots: u32,
    budget: Budget,
    poll: Duration,
}

impl Basis {
    pub(super) fn new(typed: &args::Common) -> Result<Basis, UsageError> {
        let lock = Lock::new(typed)?;
        let slots = typed.slots.clone().unwrap_or(Ok(1))?;
        Ok(Basis {
            budget: budget(
                &typed.lease,
                matches!(lock, Lock::Blob { .. }),
                &typed.grace_on_loss,
                &typed.margin,
            )?,
            poll: typed.poll.clone().unwrap_or(Ok(DEFAULT_POLL))?,
            lock,
            slots,
        })
    }

    /// Returns the rules without a task to run once.
    pub(super) fn rules(
        &self,
        typed: &args::Common,
        grace: Checked<Duration>,
        stop_signal: Checked<i32>,
        turns: &args::HoldPolicy,
        host: &Host,
    ) -> Result<Rules, UsageError> {
        let patience = typed.connect_timeout.clone();
        Ok(Rules {
            budget: Some(self.budget),
            poll: Some(self.poll),
            wait: match typed.no_wait {
                true => Some(Duration::ZERO),
                false => typed.wait.clone().transpose()?,
            },
            patience: patience.unwrap_or(Ok(DEFAULT_PATIENCE))?,
            auth_patience: typed.auth_patience.clone().unwrap_or(Ok(AUTH_PATIENCE))?,
            grace: grace?,
            stop_signal: stop_signal?,
            if_lost: typed.if_lost,
            hold_policy: hold_policy(
                turns,
                &self.lock,
                self.budget.lease,
                self.lock.shortest_cooldown(self.slots, self.poll),
            )?,
            once: None,
            on_terminal: false,
            seed: host.seed,
        })
    }

    /// Returns the configuration without a command; `shown` stands for it in the lock's record.
    pub(super) fn config(
        self,
        typed: &args::Common,
        listen: Option<&args::Listen>,
        control_file: Option<&PathBuf>,
        rules: Rules,
        shown: String,
        host: &Host,
    ) -> Result<Config, UsageError> {
        let files = self.lock.files(self.slots);
        let patience = patience(rules.patience, rules.wait);
        let outputs = Outputs::new(&typed.operations, listen, control_file, files, patience)?;
        let conflict_status = typed.conflict_exit_code.clone();
        refuse_no_script("--if", typed.only_if.as_deref())?;
        Ok(Config {
            only_if: typed.only_if.clone(),
            conflict_status: conflict_status.unwrap_or(Ok(exit::CONFLICT))?,
            candidate: Candidate {
                identity: identity(&typed.operations, host)?,
                host: host.host.clone(),
                pid: host.pid,
                command: shown,
                bell: None,
            },
            lock: self.lock,
            slots: self.slots,
            doorbell: typed.doorbell.clone().transpose()?,
            rules,
            task: None,
            lease: self.budget.lease,
            command: Vec::new(),
            health: Health::default(),
            roles: Roles::default(),
            contain: Contain::None,
            stop_to: StopTo::Group,
            status_file: outputs.status_file,
            listen: outputs.listen,
            event_log: outputs.event_log,
            ready: Ready::Standby,
            scheduled_events: None,
            withheld: Vec::new(),
            of_leases: of_leases(typed),
            outer: host.outer.clone(),
        })
    }
}

/// Returns how long to wait for a drive: as for a store, or one step if the instance does not wait for control.
fn patience(patience: Duration, wait: Option<Duration>) -> Duration {
    wait.map_or(patience, |wait| patience.min(wait.max(look::STEP)))
}

pub(crate) fn budget(
    lease: &Option<Checked<Duration>>,
    on_blob: bool,
    grace_on_loss: &Option<Checked<Duration>>,
    margin: &Option<Checked<Duration>>,
) -> Result<Budget, UsageError> {
    let lease = lease.clone().unwrap_or(Ok(DEFAULT_LEASE))?;
    refuse_lease(on_blob, lease)?;
    // Grace and margin grow with the lease, unless they were set.
    let mut budget = Budget::for_lease(lease);
    if let Some(grace) = grace_on_loss.clone() {
        budget.grace_on_loss = grace?;
    }
    if let Some(margin) = margin.clone() {
        budget.margin = margin?;
    }
    budget
        .validate()
        .map_err(|why| UsageError::new(why.to_string()))?;
    Ok(budget)
}

pub(super) fn identity(typed: &args::Operations, host: &Host) -> Result<String, UsageError> {
    typed
        .identity
        .clone()
        .unwrap_or_else(|| Ok(host.identity()))
}
