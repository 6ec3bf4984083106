//! What was typed after `run`, made sense of, and what of it everybody has who competes. Called by
//! main.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use super::azure::scheduled_events;
use super::command::{refuse_a_lock_behind, refuse_no_command};
use super::health::{Health, health};
use super::lock::{Lock, refuse_lease};
use super::look;
use super::outputs::{Beside, Outputs};
use super::policy::{
    HandOvers, hold_policy, longest_poll, of_leases, once, refuse_short_cooldown, wait,
};
use super::quote::cut;
use super::{Host, Roles, UsageError, quoted};
use crate::args::{self, Checked};
use crate::core::{AUTH_PATIENCE, Budget, Rules};
use crate::doorbell::DoorbellAddress;
use crate::exit;
use crate::guardian::{Contain, StopTo};
use crate::lease::record::{COMMAND_LIMIT, Candidate};
use crate::notify::Ready;

// The service's limits. -1, without an end, is refused where it is typed: a machine that died would
// never give it back.
pub(crate) const BLOB_LEASE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(15)..=Duration::from_secs(60);

const DEFAULT_LEASE: Duration = Duration::from_secs(60);
pub(crate) const DEFAULT_POLL: Duration = Duration::from_secs(2);
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
// A store may come up later than we do, where both are started together; one that is silent for
// longer has another address.
pub(super) const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);

/// What is to be done, and how.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// What is competed for.
    pub lock: Lock,
    /// How many may have control at the same time; with more than one, `lock` is the name of all.
    pub slots: u32,
    /// Where it rings for its standbys, if it does.
    pub doorbell: Option<DoorbellAddress>,
    /// What the instance goes by. A budget is always there; on a file of a local disk
    /// it has no meaning, and whoever knows the store's terms takes it out.
    pub rules: Rules,
    /// What says whether this machine may take control, asked with each poll.
    pub only_if: Option<OsString>,
    /// What is to be done once, if the command is that.
    pub task: Option<crate::lease::once::Task>,
    /// How long a grant lasts; the same as in the rules' budget.
    pub lease: Duration,
    /// The command and its arguments; not empty, but for `elect`.
    pub command: Vec<OsString>,
    /// Whether the command works.
    pub health: Health,
    /// What runs besides the command.
    pub roles: Roles,
    /// What keeps the command's tree together.
    pub contain: Contain,
    /// Processes that get the stop signal.
    pub stop_to: StopTo,
    /// The exit status when control was not obtained.
    pub conflict_status: u8,
    /// Who we are in the lock's record.
    pub candidate: Candidate,
    /// Where the present state is kept.
    pub status_file: Option<PathBuf>,
    /// Where questions are answered over HTTP.
    pub listen: Option<crate::serve::Address>,
    /// Where every change of state is appended.
    pub event_log: Option<PathBuf>,
    /// When a service manager is told that we are ready.
    pub ready: Ready,
    /// How what Azure announces for this machine is followed.
    pub scheduled_events: Option<crate::azure::scheduled_events::Config>,
    /// Variables of ours that nothing we run inherits.
    pub withheld: Vec<OsString>,
    /// Flags that were set and do nothing for a lock without a lease.
    pub(super) of_leases: Vec<&'static str>,
    /// The lock that another trafficcop holds for the command we are a part of.
    outer: Vec<String>,
}

impl Config {
    /// Whether we give up where another has control (`-n`).
    #[must_use]
    pub(crate) fn looks_once(&self) -> bool {
        self.rules.wait == Some(Duration::ZERO)
    }

    /// How often it is asked whether this machine may take control.
    #[must_use]
    pub(crate) fn asks_every(&self) -> Option<Duration> {
        self.only_if.as_ref().and(self.rules.poll)
    }

    /// Refuses a cooldown in which no standby looks at a lock that standbys have to look at.
    ///
    /// # Errors
    /// That it is too short.
    pub(crate) fn refuse_short_cooldown(&self) -> Result<(), UsageError> {
        let cooldown = self.rules.hold_policy.cooldown;
        let poll = self.rules.poll.unwrap_or(DEFAULT_POLL);
        refuse_short_cooldown(cooldown, longest_poll(poll))
    }

    /// Refuses the lock of this name if it is held for the command we are a part of: we would wait
    /// for it, and its holder for us. Of several slots another may be had.
    ///
    /// # Errors
    /// That it is.
    pub(crate) fn refuse_our_own(&self, name: &str) -> Result<(), UsageError> {
        if self.outer.is_empty() || self.slots != 1 {
            return Ok(());
        }
        // As we write it: of a path that is no text that is all a command is told.
        let is_named = self.outer.iter().any(|outer| outer == name);
        let patience = patience(self.rules.patience, self.rules.wait);
        let is_it = is_named || self.lock.is_one_of(&self.outer, patience)?;
        if is_it {
            return Err(UsageError::new(format!(
                "{name} is held for the command that this trafficcop is a part of, so it would wait for ever: leave the inner trafficcop out, or name another lock"
            )));
        }
        Ok(())
    }

    /// Makes sense of what was typed.
    ///
    /// # Errors
    /// The first thing found that cannot be.
    pub(crate) fn new(typed: args::Run, host: &Host) -> Result<Config, UsageError> {
        refuse_no_command(
            &typed.command,
            "no command: write it after --, as in 'trafficcop run --file PATH -- ./job'",
        )?;
        let common = &typed.common;
        refuse_a_lock_behind(common, &typed.command)?;
        // The lock first: all other settings are measured by it, and of two mistakes it is the one
        // to be told.
        let basis = Basis::new(common, typed.health.checks.is_by_https())?;
        let (once, task) = once(&typed, basis.slots)?.unzip();
        let grace = typed.grace.unwrap_or(Ok(DEFAULT_GRACE));
        let signal = typed.stop_signal.unwrap_or(Ok(libc::SIGTERM));
        let watched = typed.health.watchdog.is_some() || typed.health.checks.health.is_some();
        let hand_overs = HandOvers {
            is_typed: watched || once.is_some() || typed.roles.on_acquire.is_some(),
            flags: "--max-hold, --restart, --watchdog, --health, --on-acquire or --once",
        };
        let rules = Rules {
            once,
            ..basis.rules(common, grace, signal, &typed.hold_policy, &hand_overs, host)?
        };
        let beside = basis.beside(&rules);
        let outputs = Outputs::new(&common.operations, beside)?;
        let listen = super::outputs::listen(&typed.listen, &outputs, beside)?;
        // It goes into a blob's metadata, which may measure 8 KiB in all.
        let shown = cut(&quoted(&typed.command), COMMAND_LIMIT).to_owned();
        let config = basis.config(common, rules, outputs, shown, host)?;
        let withheld = match typed.no_credentials {
            true => config.lock.withheld(),
            false => Vec::new(),
        };
        Ok(Config {
            listen,
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

/// A flag that cannot do anything is a misunderstanding, and those are cheaper now.
pub(super) fn refuse_first<const N: usize>(
    flags: [(&'static str, bool); N],
    say: impl Fn(&str) -> String,
) -> Result<(), UsageError> {
    match flags.iter().find(|flag| flag.1) {
        Some((flag, _)) => Err(UsageError::new(say(flag))),
        None => Ok(()),
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

/// `sh -c ''` succeeds: a script that is empty because a variable is unset would pass unseen.
fn refuse_no_script(flag: &str, script: Option<&OsStr>) -> Result<(), UsageError> {
    let script = script.map(OsStr::as_encoded_bytes);
    if script.is_some_and(|text| text.trim_ascii().is_empty()) {
        return Err(UsageError::new(format!(
            "{flag} is empty: name a command for sh, or leave it out"
        )));
    }
    Ok(())
}

/// What is competed for and how long it lasts: what all other settings are measured by.
pub(super) struct Basis {
    lock: Lock,
    slots: u32,
    /// The files that are locked.
    files: Vec<PathBuf>,
    budget: Budget,
    poll: Duration,
}

impl Basis {
    /// `by_https`: something else than the lock's store is asked by https.
    pub(super) fn new(typed: &args::Common, by_https: bool) -> Result<Basis, UsageError> {
        let lock = Lock::new(typed, by_https)?;
        let slots = typed.slots.clone().unwrap_or(Ok(1))?;
        Ok(Basis {
            files: lock.files(slots),
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

    /// The rules of whoever runs nothing that is to be done once.
    pub(super) fn rules(
        &self,
        typed: &args::Common,
        grace: Checked<Duration>,
        stop_signal: Checked<i32>,
        turns: &args::HoldPolicy,
        hand_overs: &HandOvers,
        host: &Host,
    ) -> Result<Rules, UsageError> {
        let patience = typed.connect_timeout.clone();
        Ok(Rules {
            budget: Some(self.budget),
            poll: Some(self.poll),
            wait: wait(typed)?,
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
                hand_overs,
            )?,
            once: None,
            on_terminal: false,
            seed: host.seed,
        })
    }

    /// What outputs may not be.
    pub(super) fn beside(&self, rules: &Rules) -> Beside<'_> {
        Beside {
            locks: &self.files,
            patience: patience(rules.patience, rules.wait),
        }
    }

    /// The configuration of whoever runs no command; `shown` stands for one in the lock's record.
    pub(super) fn config(
        self,
        typed: &args::Common,
        rules: Rules,
        outputs: Outputs,
        shown: String,
        host: &Host,
    ) -> Result<Config, UsageError> {
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
            listen: None,
            event_log: outputs.event_log,
            ready: Ready::Standby,
            scheduled_events: None,
            withheld: Vec::new(),
            of_leases: of_leases(typed),
            outer: host.outer.clone(),
        })
    }
}

/// How long a drive is waited for that has to be asked before anything starts: as long as a store, and
/// by whoever does not wait for control for one step.
fn patience(patience: Duration, wait: Option<Duration>) -> Duration {
    wait.map_or(patience, |wait| patience.min(wait.max(look::STEP)))
}

/// How a lease's time is divided, if that can be.
pub(crate) fn budget(
    lease: &Option<Checked<Duration>>,
    on_blob: bool,
    grace_on_loss: &Option<Checked<Duration>>,
    margin: &Option<Checked<Duration>>,
) -> Result<Budget, UsageError> {
    let lease = lease.clone().unwrap_or(Ok(DEFAULT_LEASE))?;
    refuse_lease(on_blob, lease)?;
    // Grace and margin grow with the lease where they were not typed; what was typed is checked
    // with the rest.
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
