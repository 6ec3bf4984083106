//! `trafficcop run`: opens the store, forks the guardians, and runs the driver. It decides nothing that the
//! core could decide.

mod condition;
mod health;
mod observers;
mod on_lost;
mod open;
mod script;
mod workload;

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use nix::errno::Errno;

use crate::azure;
use crate::clock::Instant;
use crate::config::{Ask, Config, UsageError};
use crate::core::{Cause, Ending, Exit, Rules, Tenure};
use crate::doorbell::Doorbell;
use crate::driver::{Observation, drive};
use crate::exit::ExitAction;
use crate::guardian::{self, Guardian, Partner, Program, Setup};
use crate::hooks::HookConfig;
use crate::lease::{self, LeaseStore, StoreInfo};
use crate::report;
use crate::runtime::runtime;
use crate::serve;
use crate::signals::Signals;
use condition::ConditionCommand;
use health::{HealthMonitor, Prober};
pub(crate) use observers::Observers;
use on_lost::OnLostHook;
pub(crate) use open::{Opened, open};
pub(crate) use script::refuse_unusable_script;
pub use workload::CommandWorkload;
use workload::{HookPrograms, NOBODY, Parts};

/// Call it while the process has one thread: it forks the guardians.
pub(crate) fn run(config: Config) -> anyhow::Result<ExitAction> {
    // An instance whose status cannot be requested must not compete.
    let listener = config
        .listen
        .as_ref()
        .map(serve::Listener::bind)
        .transpose()?;
    // Before the fork: the guardian needs what releases the lease.
    let Opened { store, doorbell } = match open(&config)? {
        Ok(opened) => opened,
        Err(ending) => return Ok(report::ending(&ending, config.conflict_status)),
    };
    let lock = store.info().name;
    config.refuse_our_own(&lock)?;
    report::context(report::Context {
        lock: lock.clone(),
        identity: config.candidate.identity.clone(),
        command: config.candidate.command.clone(),
    });
    config.warn_of_idle_flags(store.info().lease);
    if let Some(ending) = cannot_work(&config) {
        return Ok(report::ending(&ending, config.conflict_status));
    }
    if config.roles.on_acquire.is_none() {
        script::refuse_unusable_script(&config.command)?;
    }
    // A fork from a process with threads inherits locks that are never released.
    let guardians = Guardians::fork(&config, &rules(&config, &*store))?;
    let guardian = &guardians.first;
    let contain = guardian.containment().to_string();
    tracing::debug!(contain, "competes for {lock}, containment {contain}");
    let server = listener.map(|listener| server(listener, &*store, guardian));
    let server = server.transpose()?;
    let shared_status = server.as_ref().map(serve::Server::shared_status);
    let log = report::LogObserver::new(config.looks_once(), config.slots);
    let observers = Observers::new(&config, &store, guardian, log, shared_status);
    runtime()?.block_on(compete(
        &config, store, doorbell, guardians, observers, server,
    ))
}

pub(crate) fn not_runnable(command: &[OsString]) -> Option<Errno> {
    let path = std::env::var_os("PATH");
    guardian::which(command.first()?, path.as_deref()).err()
}

/// Returns the ending if the command cannot run: better now than at the fail-over. A hook may still provide
/// it.
fn cannot_work(config: &Config) -> Option<Ending> {
    let errno = not_runnable(&config.command)?;
    if config.roles.on_acquire.is_some() {
        let why = errno.desc();
        tracing::warn!(
            "cannot run {}: {why}: --on-acquire must provide it",
            config.candidate.command
        );
        return None;
    }
    Some(Ending {
        cause: Cause::NotStarted {
            errno: errno as i32,
        },
        exit: None,
        overlap: false,
        released: true,
    })
}

/// Guardians, one for each tree at the same time.
pub(crate) struct Guardians {
    first: Guardian,
    hook_programs: HookPrograms,
    second: Option<Guardian>,
    condition: Option<Guardian>,
    health: Option<Guardian>,
}

impl Guardians {
    pub(crate) fn of_one(first: Guardian, condition: Option<Guardian>) -> Guardians {
        Guardians {
            first,
            hook_programs: HookPrograms::NOBODY,
            second: None,
            condition,
            health: None,
        }
    }

    fn fork(config: &Config, rules: &Rules) -> anyhow::Result<Guardians> {
        let mut programs = vec![Program::command(config.command.clone())];
        let mut add = |script: Option<&OsStr>| {
            script.map_or(NOBODY, |script| {
                programs.push(Program::script(script));
                u8::try_from(programs.len() - 1).unwrap_or(NOBODY)
            })
        };
        let hook_programs = HookPrograms {
            standby: add(config.roles.standby.as_deref()),
            on_acquire: add(config.roles.on_acquire.as_deref()),
        };
        // Without a deadline the supervisor's death counts as a stop.
        let grace = rules
            .budget
            .map_or(rules.grace, |budget| budget.grace_on_loss);
        let fork = |programs, partner| {
            let setup = Setup {
                on_orphaned: lease::release_orphaned,
                withheld: config.withheld.clone(),
                // The leftovers of a check get no grace.
                left_behind: match partner {
                    Some(Partner::Ends(_)) => None,
                    Some(Partner::Awaits(_)) | None => Some(rules.grace),
                },
                partner,
                ..Setup::new(programs, config.contain, grace)
            };
            guardian::fork(setup).map_err(no_guardian)
        };
        let on_lost = config.roles.on_lost.as_deref().map(Program::script);
        // Forked first, as it ends first: no other process may have its end of the pipe.
        let (health, partner) = match &config.health.ask {
            Some(Ask::Command(script)) => {
                let (ends, awaits) = Partner::pair().context("--health")?;
                let health = fork(vec![Program::silent(script)], Some(ends))?;
                (Some(health), Some(awaits))
            }
            Some(Ask::Url(_)) | None => (None, None),
        };
        Ok(Guardians {
            first: fork(programs, partner)?,
            health,
            hook_programs,
            // It may still run in the next tenure.
            second: on_lost.map(|script| fork(vec![script], None)).transpose()?,
            condition: fork_for_the_condition(config)?,
        })
    }
}

pub(crate) fn fork_for_the_condition(config: &Config) -> anyhow::Result<Option<Guardian>> {
    let Some(script) = &config.only_if else {
        return Ok(None);
    };
    let programs = vec![condition::program(script)];
    let setup = Setup {
        withheld: config.withheld.clone(),
        // Nothing needs an answer after the supervisor's death.
        orphan_grace: Some(Duration::ZERO),
        // It has no part in control.
        ..Setup::new(programs, config.contain, Duration::ZERO)
    };
    guardian::fork(setup).map(Some).map_err(no_guardian)
}

pub(crate) fn no_guardian(refusal: guardian::SetupError) -> anyhow::Error {
    if refusal.is_of_the_settings() {
        return UsageError::new(refusal.to_string()).into();
    }
    UsageError::of_the_machine(format!(
        "{refusal}: nothing was started: check the limits of this machine (ulimit -a, pids.max, \
         /proc), and try again"
    ))
    .into()
}

fn server(
    listener: serve::Listener,
    store: &dyn LeaseStore,
    guardian: &guardian::Guardian,
) -> anyhow::Result<serve::Server> {
    let control = guardian
        .view()
        .context("--listen: /leader could never answer 200")?;
    let StoreInfo { name, lease, .. } = store.info();
    let health_check = vec![guardian.health_check()];
    let shared_status = serve::SharedStatus::new(&name, false, lease, control, health_check);
    serve::Server::start(listener, shared_status).context("--listen: cannot start the server")
}

async fn compete(
    config: &Config,
    store: Arc<dyn LeaseStore>,
    doorbell: Option<Doorbell>,
    mut guardians: Guardians,
    mut observers: Observers,
    server: Option<serve::Server>,
) -> anyhow::Result<ExitAction> {
    // Before anything that waits: no stop may be missed.
    let mut signals = Signals::listen()?;
    observers.begin(guardians.first.health_check());
    observers.pass_on_stopping(&mut signals);
    let health = guardians.health.take();
    let mut workload = workload(config, &store, guardians)?;
    workload.notify_socket = observers.notify_socket();
    look_after(&mut workload, config, health, &observers)?;
    observers.tell(Observation::Begins);
    let cordon = observers.follow_events(config, &mut signals).await;
    let rules = Rules {
        on_terminal: workload.is_on_terminal(),
        ..rules(config, &*store)
    };
    let tenure = Tenure::new(rules, Instant::now())
        .cordoned_by(cordon)
        .only_if(config.asks_every())
        .telling_health(config.health.rules.is_told_every(), report::recorded_health);
    let lock = store.info().name;
    let on_terminal = workload.is_on_terminal();
    let mut ending = drive(
        tenure,
        store,
        &mut workload,
        &mut signals,
        &mut observers,
        doorbell,
    )
    .await;
    observers.tell(Observation::Stops);
    drop(server);
    // With slots the store has a slot's name by now.
    name_the_lock(&mut ending, &lock);
    workload
        .finish(&ending.cause, &mut signals, &mut observers)
        .await;
    let leave = report::ending(&ending, config.conflict_status);
    observers.finish(&ending, leave);
    Ok(typed_stop(&ending, leave, on_terminal))
}

/// Ends by the signal of a Ctrl-C, and passes it to trafficcop's group: a script that waits for trafficcop
/// ends, too.
pub(crate) fn typed_stop(ending: &Ending, leave: ExitAction, took_terminal: bool) -> ExitAction {
    let Cause::Stopped(signal @ (libc::SIGINT | libc::SIGQUIT)) = ending.cause else {
        return leave;
    };
    if ending.overlap || !guardian::is_in_foreground() {
        return leave;
    }
    // The terminal sent it to the command's group only.
    if took_terminal && ending.exit == Some(Exit::Signal(signal)) {
        guardian::pass_to_own_group(signal);
    }
    ExitAction::Signal(signal)
}

pub(crate) fn look_after(
    workload: &mut CommandWorkload,
    config: &Config,
    guardian: Option<Guardian>,
    observers: &Observers,
) -> anyhow::Result<()> {
    let rules = &config.health.rules;
    if rules.is_empty() {
        return Ok(());
    }
    // The command could not report, and would be stopped for that.
    if rules.watchdog.is_some() && workload.notify_socket.is_none() {
        return Err(UsageError::of_the_machine(
            "--watchdog: there is no directory for the command's NOTIFY_SOCKET: make /run or /tmp writable, or set \
             TMPDIR",
        )
        .into());
    }
    let prober = match (&config.health.ask, guardian) {
        (Some(Ask::Command(_)), Some(guardian)) => {
            Some(Prober::Command(guardian.attend().map_err(no_guardian)?))
        }
        (Some(Ask::Url(url)), _) => {
            let ca_file = config.health.ca_file.as_deref();
            let client = azure::for_probes(url, ca_file);
            let client =
                client.map_err(|why| UsageError::of_the_machine(format!("--health: {why}")))?;
            Some(Prober::Url(client, url.clone()))
        }
        _ => None,
    };
    let words = observers.service_manager();
    let monitor = HealthMonitor::new(rules.clone(), words, prober);
    workload.look_after(monitor, rules.watchdog);
    Ok(())
}

pub(crate) fn workload(
    config: &Config,
    store: &Arc<dyn LeaseStore>,
    guardians: Guardians,
) -> anyhow::Result<CommandWorkload> {
    let attend = |guardian: Guardian| guardian.attend().map_err(no_guardian);
    let guardian = guardians.first;
    let on_lost = guardians
        .second
        .map(|guardian| anyhow::Ok(OnLostHook::new(attend(guardian)?, config.rules.grace)));
    let condition = guardians
        .condition
        .map(|guardian| anyhow::Ok(ConditionCommand::new(attend(guardian)?)));
    Ok(CommandWorkload::new(Parts {
        on_terminal: guardian.has_terminal(),
        handle: attend(guardian)?,
        on_lost: on_lost.transpose()?,
        condition: condition.transpose()?,
        store: Arc::clone(store),
        identity: config.candidate.identity.clone(),
        stop_signal: config.rules.stop_signal,
        stop_to: config.stop_to,
        hook_programs: guardians.hook_programs,
        task: config.task.as_ref().map(|task| task.key.clone()),
        config: HookConfig {
            standby: config.roles.standby.is_some(),
            on_acquire: config.roles.on_acquire.is_some(),
            grace: config.rules.grace,
        },
    }))
}

pub(crate) fn rules(config: &Config, store: &dyn LeaseStore) -> Rules {
    let terms = store.info();
    let mut rules = config.rules.clone();
    // A local lock has no deadline: a budget would end commands for no reason.
    rules.budget = terms.lease.and(rules.budget);
    rules.poll = rules.poll.filter(|_| !terms.wakes);
    rules
}

pub(crate) fn name_the_lock(ending: &mut Ending, lock: &str) {
    if let Cause::Store { why, denied } = &mut ending.cause
        && !why.contains(lock)
    {
        let advice = if *denied {
            ""
        } else {
            "; check its address and the network, and try again"
        };
        *why = format!("{lock}: {why}{advice}");
    }
}
