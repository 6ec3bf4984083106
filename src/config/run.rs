//! The configuration of `run`, and the part of it that `elect` shares.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use super::azure::scheduled_events;
use super::command::{refuse_a_lock_behind, refuse_no_command};
use super::health::{Health, health};
use super::lock::Lock;
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
use crate::units::show;

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
        refuse_a_lock_behind(&typed.common, &typed.command)?;
        // A blob's metadata has 8 KiB in total.
        let shown = cut(&quoted(&typed.command), COMMAND_LIMIT).to_owned();
        Config::checked(typed, None, shown, host)
    }

    /// Validates the settings of `run`, and those of `elect` as of a `run` without a command. `shown` stands for the
    /// command in the lock's record.
    pub(super) fn checked(
        typed: args::Run,
        control_file: Option<&PathBuf>,
        shown: String,
        host: &Host,
    ) -> Result<Config, UsageError> {
        let common = &typed.common;
        // First: the other settings depend on the lock, and of two mistakes it is the one to report.
        let lock = Lock::new(common)?;
        let slots = common.slots.clone().unwrap_or(Ok(1))?;
        let on_blob = matches!(lock, Lock::Blob { .. });
        let budget = budget(
            &common.lease,
            on_blob,
            &common.grace_on_loss,
            &common.margin,
        )?;
        let poll = common.poll.clone().unwrap_or(Ok(DEFAULT_POLL))?;
        let (once, task) = once(&typed.once)?.unzip();
        let shortest_cooldown = lock.shortest_cooldown(slots, poll);
        let connect_timeout = common.connect_timeout.clone();
        let auth_patience = common.auth_patience.clone();
        let rules = Rules {
            budget: Some(budget),
            poll: Some(poll),
            wait: match common.no_wait {
                true => Some(Duration::ZERO),
                false => common.wait.clone().transpose()?,
            },
            patience: connect_timeout.unwrap_or(Ok(DEFAULT_PATIENCE))?,
            auth_patience: auth_patience.unwrap_or(Ok(AUTH_PATIENCE))?,
            grace: typed.grace.unwrap_or(Ok(DEFAULT_GRACE))?,
            stop_signal: typed.stopping.stop_signal.unwrap_or(Ok(libc::SIGTERM))?,
            if_lost: common.if_lost,
            hold_policy: hold_policy(&typed.hold_policy, &lock, budget.lease, shortest_cooldown)?,
            once,
            on_terminal: false,
            seed: host.seed,
        };
        let outputs = Outputs::new(
            &common.operations,
            &typed.listen,
            control_file,
            lock.files(slots),
            patience(rules.patience, rules.wait),
        )?;
        for (flag, script) in [
            ("--if", &common.only_if),
            ("--standby", &typed.roles.standby),
            ("--on-acquire", &typed.roles.on_acquire),
            ("--on-lost", &typed.roles.on_lost),
        ] {
            refuse_no_script(flag, script.as_deref())?;
        }
        let conflict_status = common.conflict_exit_code.clone();
        Ok(Config {
            doorbell: common.doorbell.clone().transpose()?,
            rules,
            only_if: common.only_if.clone(),
            task,
            lease: budget.lease,
            health: health(&typed.health, &common.access)?,
            roles: typed.roles,
            contain: typed.stopping.contain,
            stop_to: typed.stopping.stop_to,
            conflict_status: conflict_status.unwrap_or(Ok(exit::CONFLICT))?,
            candidate: Candidate {
                identity: identity(&common.operations, host)?,
                host: host.host.clone(),
                pid: host.pid,
                command: shown,
                bell: None,
            },
            status_file: outputs.status_file,
            listen: outputs.listen,
            event_log: outputs.event_log,
            ready: typed.ready,
            scheduled_events: scheduled_events(&typed.scheduled_events, host)?,
            withheld: match typed.no_credentials {
                true => lock.withheld(),
                false => Vec::new(),
            },
            of_leases: of_leases(common),
            outer: host.outer.clone(),
            command: typed.command,
            lock,
            slots,
        })
    }
}

/// Refuses an empty script: `sh -c ''` succeeds, so an unset variable would go unnoticed.
fn refuse_no_script(flag: &str, script: Option<&OsStr>) -> Result<(), UsageError> {
    let script = script.map(OsStr::as_encoded_bytes);
    if script.is_some_and(|text| text.trim_ascii().is_empty()) {
        refuse!("{flag} is empty: name a command for sh, or leave it out");
    }
    Ok(())
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
    if on_blob && !BLOB_LEASE.contains(&lease) {
        refuse!(
            "--lease {}: a blob can be leased for 15s to 60s only: take {}",
            show(lease),
            show(lease.clamp(*BLOB_LEASE.start(), *BLOB_LEASE.end()))
        );
    }
    if on_blob && lease.subsec_nanos() != 0 {
        refuse!(
            "--lease {}: a blob is leased for whole seconds: take {}s",
            show(lease),
            lease.as_secs()
        );
    }
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
