//! `trafficcop run`: opens the store, forks the guardians, and drives the driver until it is done.
//!
//! Called by main with a validated plan, while the process has one thread; returns the ending that
//! the exit status is made of. It decides nothing that the core could decide.

mod observers;
mod on_lost;
#[cfg(feature = "entra")]
mod shared_token;
mod workload;

use std::ffi::OsStr;
use std::sync::Arc;

#[cfg(feature = "http")]
use anyhow::Context as _;

use crate::azure::Account;
use crate::clock::Instant;
use crate::config::{Config, Lock, UsageError};
use crate::core::{Cause, Ending, Rules, Tenure};
use crate::driver::drive;
use crate::exit::ExitAction;
use crate::guardian::{self, Guardian, Program, Setup, SharedBytes};
use crate::hooks::HookConfig;
use crate::host;
use crate::lease::slots::Slots;
use crate::lease::{self, Competitor, LeaseStore, NamedLock, OpenError, SharedMemory, blob};
use crate::report;
use crate::runtime::runtime;
#[cfg(feature = "http")]
use crate::serve;
use crate::signals::Signals;
use crate::units::show;
pub(crate) use observers::Observers;
use on_lost::OnLostHook;
pub(crate) use workload::CommandWorkload;
use workload::{HookPrograms, NOBODY, Parts};

/// Runs `plan` to its end.
///
/// To be called while the process has one thread: the guardians are forked in here.
///
/// # Errors
/// What kept us from starting at all: a [`crate::config::UsageError`], or what the machine refused.
pub fn run(plan: Config) -> anyhow::Result<ExitAction> {
    #[cfg(feature = "http")]
    let listener = plan
        .listen
        .as_ref()
        .map(serve::Listener::bind)
        .transpose()?;
    let store = match open(&plan)? {
        Ok(store) => store,
        Err(ending) => {
            let leave = ExitAction::of(&ending, plan.conflict_status);
            report::ending(&ending, leave);
            return Ok(leave);
        }
    };
    let lock = store.info().name;
    plan.refuse_our_own(&lock)?;
    report::context(report::Context {
        lock: lock.clone(),
        identity: plan.candidate.identity.clone(),
        command: plan.candidate.command.clone(),
    });
    if let Some(ending) = cannot_work(&plan) {
        let leave = ExitAction::of(&ending, plan.conflict_status);
        report::ending(&ending, leave);
        return Ok(leave);
    }
    let guardians = Guardians::fork(&plan, &rules(&plan, &*store))?;
    let guardian = &guardians.first;
    let contain = guardian.containment().to_string();
    if plan.looks_once() {
        report::look_once();
        tracing::debug!(contain, "competes for {lock}, containment {contain}");
    } else {
        tracing::info!(contain, "competes for {lock}, containment {contain}");
    }
    #[cfg_attr(not(feature = "http"), expect(unused_mut, reason = "nobody is added"))]
    let mut observers = Observers::new(&plan, &store, guardian, report::notice);
    #[cfg(feature = "http")]
    if let Some(listener) = listener {
        observers.serve(server(listener, &*store, guardian)?);
    }
    let runtime = runtime()?;
    let leave = runtime.block_on(campaign(&plan, store, guardians, observers))?;
    // A call that hangs (a name that does not resolve, a dead mount) must not keep us here.
    runtime.shutdown_background();
    Ok(leave)
}

/// A standby that can never work is better found out now than by the fail-over. What a hook brings
/// about (a mount, a download) need not be there yet.
fn cannot_work(plan: &Config) -> Option<Ending> {
    let program = plan.command.first()?;
    let path = std::env::var_os("PATH");
    let errno = guardian::which(program, path.as_deref()).err()?;
    if plan.roles.on_acquire.is_some() {
        let why = errno.desc();
        tracing::warn!(
            "cannot run {}: {why}: --on-acquire has to see to it",
            plan.candidate.command
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

/// One for each thing that can run at the same time. Standby command, hook and command come one
/// after another, and one guardian has one tree at a time.
pub(crate) struct Guardians {
    first: Guardian,
    hook_programs: HookPrograms,
    /// For what runs after a tenure, beside whatever runs then.
    second: Option<Guardian>,
}

impl Guardians {
    /// A guardian that knows one program.
    pub(crate) fn of_one(first: Guardian) -> Guardians {
        Guardians {
            first,
            hook_programs: HookPrograms::NOBODY,
            second: None,
        }
    }

    fn fork(plan: &Config, rules: &Rules) -> anyhow::Result<Guardians> {
        let mut programs = vec![Program::command(plan.command.clone())];
        let mut add = |script: Option<&OsStr>| {
            script.map_or(NOBODY, |script| {
                programs.push(Program::script(script));
                u8::try_from(programs.len() - 1).unwrap_or(NOBODY)
            })
        };
        let hook_programs = HookPrograms {
            standby: add(plan.roles.standby.as_deref()),
            on_acquire: add(plan.roles.on_acquire.as_deref()),
        };
        let fork = |programs| {
            let guardian = guardian::fork(Setup {
                programs,
                contain: plan.contain,
                // Of a lock that has no deadline the supervisor's death ends nothing: it is a stop.
                grace: rules
                    .budget
                    .map_or(rules.grace, |budget| budget.grace_on_loss),
                on_orphaned: lease::release_orphaned,
                withheld: plan.withheld.clone(),
            });
            guardian.map_err(no_guardian)
        };
        let on_lost = plan.roles.on_lost.as_deref().map(Program::script);
        Ok(Guardians {
            first: fork(programs)?,
            hook_programs,
            second: on_lost.map(|script| fork(vec![script])).transpose()?,
        })
    }
}

/// Why there is no guardian: what was asked for cannot be had, or the machine has no room for one.
pub(crate) fn no_guardian(refusal: guardian::SetupError) -> anyhow::Error {
    if refusal.is_of_the_settings() {
        return UsageError::new(refusal.to_string()).into();
    }
    UsageError::of_the_machine(format!(
        "{refusal}: nothing was started: look at the limits of this machine (ulimit -a, pids.max, \
         /proc), and try again"
    ))
    .into()
}

/// Begins to answer over HTTP.
#[cfg(feature = "http")]
fn server(
    listener: serve::Listener,
    store: &dyn LeaseStore,
    guardian: &guardian::Guardian,
) -> anyhow::Result<serve::Server> {
    let control = guardian
        .view()
        .context("--listen: /leader could never say yes")?;
    let info = store.info();
    let shared_status =
        serve::SharedStatus::new(&info.name, info.lease, control, guardian.health_check());
    serve::Server::start(listener, shared_status).context("--listen: cannot start the server")
}

async fn campaign(
    plan: &Config,
    store: Arc<dyn LeaseStore>,
    guardians: Guardians,
    mut observers: Observers,
) -> anyhow::Result<ExitAction> {
    let mut signals = Signals::listen()?;
    observers.begin(guardians.first.health_check());
    let mut workload = workload(plan, &store, guardians)?;
    workload.notify_socket = observers.notify_socket();
    workload.events = observers.events.clone();
    observers.write("standby");
    let cordon = observers.follow_events(plan, &mut signals).await;
    let tenure = Tenure::new(rules(plan, &*store), Instant::now()).cordoned_by(cordon);
    let lock = store.info().name;
    let mut ending = drive(tenure, store, &mut workload, &mut signals, &mut observers).await;
    observers.stops();
    #[cfg(feature = "http")]
    observers.serve_no_more();
    name_the_lock(&mut ending, &lock);
    let asked = matches!(ending.cause, Cause::Stopped(_));
    workload.finish(asked, &mut signals, &mut observers).await;
    let leave = ExitAction::of(&ending, plan.conflict_status);
    report::ending(&ending, leave);
    observers.finish(&ending, leave);
    Ok(leave)
}

/// The workload of the plan; nothing runs yet.
///
/// # Errors
/// Where a guardian could not get ready.
pub(crate) fn workload(
    plan: &Config,
    store: &Arc<dyn LeaseStore>,
    guardians: Guardians,
) -> anyhow::Result<CommandWorkload> {
    let attend = |guardian: Guardian| guardian.attend().map_err(no_guardian);
    let guardian = guardians.first;
    let on_lost = guardians
        .second
        .map(|guardian| anyhow::Ok(OnLostHook::new(attend(guardian)?, plan.rules.grace)));
    Ok(CommandWorkload::new(Parts {
        on_terminal: guardian.has_terminal(),
        handle: attend(guardian)?,
        on_lost: on_lost.transpose()?,
        store: Arc::clone(store),
        identity: plan.candidate.identity.clone(),
        stop_signal: plan.rules.stop_signal,
        slots: plan.slots,
        hook_programs: guardians.hook_programs,
        task: plan.task.as_ref().map(|task| task.key.clone()),
        config: HookConfig {
            standby: plan.roles.standby.is_some(),
            on_acquire: plan.roles.on_acquire.is_some(),
            grace: plan.rules.grace,
        },
    }))
}

/// The rules of the plan, as far as they have a meaning for this store.
pub(crate) fn rules(plan: &Config, store: &dyn LeaseStore) -> Rules {
    let terms = store.info();
    let mut rules = plan.rules.clone();
    rules.budget = terms.lease.and(rules.budget);
    rules.poll = rules.poll.filter(|_| !terms.wakes);
    rules
}

/// A store's refusal names its lock, and what to do.
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

/// Whoever looks once (`-n`) looks at all slots.
fn looking(slots: Slots, plan: &Config) -> Slots {
    if plan.looks_once() {
        slots.looking_at_all()
    } else {
        slots
    }
}

/// The store of the plan; what speaks against it before anything is started comes as an ending.
pub(crate) fn open(plan: &Config) -> anyhow::Result<Result<Arc<dyn LeaseStore>, Ending>> {
    let lock = named_lock(plan)?;
    let leases = lock.leases();
    if !leases.contains(&plan.lease) {
        let (shortest, longest) = leases.into_inner();
        return Err(UsageError::new(format!(
            "--lease {}: on a shared drive a lease lasts {}s to {}s: take {}",
            show(plan.lease),
            shortest.as_secs(),
            longest.as_secs(),
            show(plan.lease.clamp(shortest, longest)),
        ))
        .into());
    }
    lock.warn();
    let competitor = Competitor {
        candidate: plan.candidate.clone(),
        lease: plan.lease,
        task: plan.task.clone(),
        memory: Some(release_memory),
        runtime: host::runtime_directory(),
        in_place: plan.slots == 1,
    };
    let opened = match plan.slots {
        1 => lock.open(&competitor),
        count => Slots::open(lock, count, competitor)
            .map(|slots| -> Arc<dyn LeaseStore> { Arc::new(looking(slots, plan)) }),
    };
    match opened {
        Ok(store) => Ok(Ok(store)),
        // Only a local file is touched by its opening, so its refusal is about the store and not the settings.
        Err(OpenError::File(error)) => Ok(Err(Ending::of_store(error.why, error.denied))),
        Err(OpenError::Blob(error)) if plan.slots > 1 => {
            Err(UsageError::new(error.to_string()).into())
        }
        Err(error) => Err(error.into()),
    }
}

fn named_lock(plan: &Config) -> anyhow::Result<Arc<dyn NamedLock>> {
    let (target, options, create, page_blob) = match &plan.lock {
        Lock::Blob {
            target,
            options,
            create,
            page_blob,
        } => (target, options, *create, *page_blob),
        Lock::File { path, shared } => return Ok(lease::at_path(path, *shared, plan.slots)),
    };
    let target = blob::Target::parse(target).map_err(|why| UsageError::new(why.to_string()))?;
    let account = Account::find(&host::variable, options, target.url())
        .map_err(|why| UsageError::new(why.to_string()))?;
    #[cfg(feature = "entra")]
    let account = shared_token::handed_on(account);
    blob::prepare_orphan_release(account.clone());
    if plan.looks_once() {
        tracing::debug!("credential: {}", account.kind());
    } else {
        tracing::info!("credential: {}", account.kind());
    }
    Ok(Arc::new(blob::BlobLock {
        target,
        account,
        create,
        page_blob,
    }))
}

/// Memory that the guardian, which is forked later, has too.
fn release_memory() -> Option<Arc<dyn SharedMemory>> {
    match SharedBytes::new() {
        Ok(memory) => Some(Arc::new(memory)),
        Err(why) => {
            tracing::warn!(
                "the guardian cannot be told what to release ({why}): should we die, the lease runs out"
            );
            None
        }
    }
}
