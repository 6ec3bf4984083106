//! `trafficcop run`: opens the store, forks the guardian, and drives `hold` until it is done.
//!
//! Called by main with a validated plan, while the process has one thread; returns the ending that
//! the exit status is made of. It decides nothing that the core could decide.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::azure::Account;
use crate::clock::Instant;
use crate::core::{Cause, Ending, Notice, Rules, Tenure};
use crate::events::Events;
use crate::events::teller::Who;
use crate::exit::Leave;
use crate::hold::{Audience, Charge, Start, hold};
use crate::lease::slots::Slots;
use crate::lease::{self, Store, blob, file};
use crate::plan::{Lock, Plan, Refusal};
use crate::report;
use crate::signals::Signals;
use crate::status::{Status, StatusFile};
use crate::supervise::{self, Attendant, News, Order, Setup};

/// How long the command has to stop after Ctrl-Z or `kill -TSTP` before we stop ourselves
/// (research on supervision, section 8).
const PAUSE: Duration = Duration::from_millis(100);

/// A command under a guardian, as the charge of a tenure.
pub(crate) struct Command {
    pub(crate) attendant: Attendant,
    store: Arc<dyn Store>,
    identity: String,
    stop_signal: i32,
    /// We were started in the foreground of a terminal: when the command stops, so do we.
    on_terminal: bool,
    /// Something of the command may live.
    runs: bool,
    /// We were asked to pause and wait for the command to stop until then.
    pausing: Option<Instant>,
    /// How many can have control at the same time.
    slots: u32,
    /// Told of the deadlines; nobody is, unless the driver says so.
    pub(crate) events: Events,
}

impl Command {
    /// The command of this plan; nothing runs yet.
    ///
    /// # Errors
    /// Where the guardian's socket cannot be registered with the runtime.
    pub(crate) fn new(
        plan: &Plan,
        store: &Arc<dyn Store>,
        guardian: supervise::Guardian,
    ) -> std::io::Result<Command> {
        Ok(Command {
            on_terminal: guardian.has_terminal(),
            attendant: guardian.attend()?,
            store: Arc::clone(store),
            identity: plan.candidate.identity.clone(),
            stop_signal: plan.rules.stop_signal,
            runs: false,
            pausing: None,
            slots: plan.slots,
            events: Events::default(),
        })
    }

    fn environment(&self, token: u64) -> Vec<(OsString, OsString)> {
        vec![
            ("TRAFFICCOP_TOKEN".into(), token.to_string().into()),
            ("TRAFFICCOP_LOCK".into(), self.store.name().into()),
            ("TRAFFICCOP_HOLDER".into(), self.identity.clone().into()),
            (
                "TRAFFICCOP_SLOT".into(),
                self.store.slot().to_string().into(),
            ),
        ]
    }

    /// Stops this process until it is continued; the guardian and the time go on.
    fn stop_ourselves(&mut self) {
        self.pausing = None;
        if let Err(why) = supervise::stop_ourselves() {
            tracing::warn!("cannot stop: {why}");
        }
        if self.runs {
            self.attendant.resume();
        }
    }
}

#[async_trait]
impl Charge for Command {
    fn start(&mut self, start: Start) {
        self.runs = true;
        if self.slots > 1 {
            let (slot, slots) = (self.store.slot(), self.slots);
            tracing::info!(slot, "slot {slot} of {slots}: {}", self.store.name());
        }
        let now = Instant::now();
        report::starts(now, start.kill_at, self.store.name());
        self.events.starts(now, start.kill_at);
        self.attendant.start(Order {
            env: self.environment(start.token),
            term_at: start.term_at,
            kill_at: start.kill_at,
            stop_signal: self.stop_signal,
            lock: self.store.descriptor(),
            will: self.store.will().unwrap_or_default(),
        });
    }

    fn extend(&mut self, term_at: Instant, kill_at: Instant) {
        // The guardian first: it is what keeps time.
        self.attendant.extend(term_at, kill_at);
        let now = Instant::now();
        report::renewed(now, kill_at);
        self.events.renewed(now, kill_at);
    }

    fn drain(&mut self, signal: i32, end_of_grace: Instant) {
        self.attendant.drain(signal, end_of_grace);
        report::drains_until(end_of_grace);
    }

    fn kill(&mut self) {
        self.attendant.kill();
        report::drains_until(Instant::now());
    }

    fn pass(&mut self, signal: i32) {
        if self.runs {
            self.attendant.signal(signal);
        }
    }

    fn pause(&mut self) {
        if self.runs {
            self.attendant.signal(libc::SIGTSTP);
            self.pausing = Some(Instant::now() + PAUSE);
        } else {
            self.stop_ourselves();
        }
    }

    fn forget_will(&mut self) {
        self.attendant.entrust(&[]);
    }

    async fn news(&mut self) -> News {
        let patience = self
            .pausing
            .map_or(Duration::MAX, |until| until.since(Instant::now()));
        let news = tokio::select! {
            news = self.attendant.news() => news,
            () = tokio::time::sleep(patience), if self.pausing.is_some() => News::Stopped,
        };
        match news {
            News::Stopped if self.on_terminal || self.pausing.is_some() => self.stop_ourselves(),
            News::NotStarted { .. } | News::TreeEmpty { .. } => self.runs = false,
            _ => {}
        }
        news
    }
}

/// What people are told of this instance: the log and the status file.
pub(crate) struct People {
    status: Status,
    store: Arc<dyn Store>,
    file: Option<StatusFile>,
    /// How the log words a notice.
    log: fn(&Notice, Instant),
    pub(crate) events: Events,
}

impl People {
    /// Those of this plan. Not before the guardian was forked: a thread writes the status file.
    pub(crate) fn new(
        plan: &Plan,
        store: &Arc<dyn Store>,
        guardian: &supervise::Guardian,
        log: fn(&Notice, Instant),
    ) -> People {
        People {
            status: Status {
                state: "starting".into(),
                identity: plan.candidate.identity.clone(),
                pid: plan.candidate.pid,
                guardian_pid: Some(guardian.pid()),
                contain: Some(guardian.containment().to_string()),
                ..Status::default()
            },
            store: Arc::clone(store),
            file: plan.status_file.clone().map(StatusFile::new),
            log,
            events: Events::begin(
                plan.event_log.clone(),
                Who {
                    identity: plan.candidate.identity.clone(),
                    host: plan.candidate.host.clone(),
                    pid: plan.candidate.pid,
                    lock: store.name().to_owned(),
                },
            ),
        }
    }

    pub(crate) fn write(&mut self, state: &str) {
        state.clone_into(&mut self.status.state);
        // With slots it is another one in every tenure.
        self.store.name().clone_into(&mut self.status.lock);
        if let Some(file) = &mut self.file {
            file.write(&self.status);
        }
    }

    pub(crate) fn finish(mut self, ending: &Ending, leave: Leave) {
        self.status.cause = Some(report::cause(&ending.cause));
        self.status.overlap = ending.overlap;
        self.status.exit = Some(leave.status());
        self.write("done");
        self.events.finish(ending, leave.status(), STATUS_PATIENCE);
        if let Some(file) = self.file {
            file.finish(STATUS_PATIENCE);
        }
    }
}

/// How long we wait at the end for a status file or an event log on a slow file system.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

impl Audience for People {
    fn notice(&mut self, now: Instant, notice: &Notice) {
        (self.log)(notice, now);
        self.events.notice(now, notice, self.store.name());
        let state = match notice {
            Notice::StandingBy(sight) => {
                self.status.holder.clone_from(&sight.holder);
                "standby"
            }
            Notice::InControl { token } => {
                self.status.holder = None;
                self.status.token = Some(*token);
                self.status.cause = None;
                "holding"
            }
            Notice::Draining(cause) => {
                self.status.cause = Some(report::cause(cause));
                "draining"
            }
            Notice::CommandEnded(exit) => {
                self.status.command_exit = Some(exit.as_status());
                self.status.command_pid = None;
                "draining"
            }
            Notice::BackingOff { .. } | Notice::Keeping { .. } => "resting",
            Notice::Restarting => "holding",
            Notice::StandingBack { .. } => "standing back",
            Notice::Released | Notice::FoundLost { .. } | Notice::LeftToRunOut { .. } => "released",
            Notice::Overlapped => {
                self.status.overlap = true;
                "released"
            }
            Notice::HoldOver => {
                self.status.cause = Some(report::cause(&Cause::HandOver));
                return;
            }
            Notice::RestartsSpent => {
                self.status.cause = Some(report::RESTARTS_SPENT.into());
                return;
            }
            Notice::Doubt { .. } | Notice::Recovered | Notice::LeftBehind => return,
        };
        self.write(state);
    }

    fn waits(&mut self, next_look: Instant) {
        report::next_look(next_look);
    }

    fn news(&mut self, now: Instant, news: &News) {
        self.events.news(now, news);
        match news {
            News::Started { pid } => self.status.command_pid = Some(*pid),
            News::TreeEmpty { .. } => self.status.command_pid = None,
            News::LeftBehind => (self.log)(&Notice::LeftBehind, now),
            News::Lost => tracing::warn!("the guardian died or fell silent; killing the command"),
            _ => return,
        }
        let state = std::mem::take(&mut self.status.state);
        self.write(&state);
    }
}

/// Runs `plan` to its end.
///
/// To be called while the process has one thread: the guardian is forked in here.
///
/// # Errors
/// What kept us from starting at all: a [`crate::plan::Refusal`], or what the machine refused.
pub fn run(plan: Plan) -> anyhow::Result<Leave> {
    let store = match open(&plan)? {
        Ok(store) => store,
        Err(ending) => {
            let leave = Leave::of(&ending, plan.conflict_status);
            report::ending(&ending, leave);
            return Ok(leave);
        }
    };
    let guardian = supervise::fork(Setup {
        command: plan.command.clone(),
        contain: plan.contain,
        grace: plan
            .rules
            .budget
            .map_or(plan.rules.grace, |budget| budget.grace_on_loss),
        afterlife: lease::execute_will,
    })
    .map_err(|refusal| Refusal::new(refusal.to_string()))?;
    if plan.slots > 1 {
        make_room();
    }
    report::context(report::Context {
        lock: store.name().to_owned(),
        identity: plan.candidate.identity.clone(),
        command: plan.candidate.command.clone(),
    });
    let contain = guardian.containment().to_string();
    tracing::info!(
        contain,
        "{} competes for {}, containment {contain}",
        plan.candidate.identity,
        store.name()
    );
    let people = People::new(&plan, &store, &guardian, report::notice);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let leave = runtime.block_on(campaign(&plan, store, guardian, people))?;
    // A call that hangs (a name that does not resolve, a dead mount) must not keep us here.
    runtime.shutdown_background();
    Ok(leave)
}

/// Each slot of a file that was looked at stays open. The guardian was forked before, so the command
/// gets the limit that we were given.
pub(crate) fn make_room() {
    const WANTED: u64 = 4096;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Where it cannot be, slots that cannot be opened are told of, one by one.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(WANTED)), hard);
    }
}

async fn campaign(
    plan: &Plan,
    store: Arc<dyn Store>,
    guardian: supervise::Guardian,
    mut people: People,
) -> anyhow::Result<Leave> {
    let mut signals = Signals::listen()?;
    let mut command = Command::new(plan, &store, guardian)?;
    command.events = people.events.clone();
    people.write("standby");
    let tenure = Tenure::new(rules(plan, &*store), Instant::now());
    let lock = store.name().to_owned();
    let mut ending = hold(tenure, store, &mut command, &mut signals, &mut people).await;
    name_the_lock(&mut ending, &lock);
    command.attendant.dismiss().await;
    let leave = Leave::of(&ending, plan.conflict_status);
    report::ending(&ending, leave);
    people.finish(&ending, leave);
    Ok(leave)
}

/// The rules of the plan, as far as they have a meaning for this store.
pub(crate) fn rules(plan: &Plan, store: &dyn Store) -> Rules {
    let terms = store.terms();
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
fn looking(slots: Slots, plan: &Plan) -> Slots {
    if plan.rules.wait == Some(Duration::ZERO) {
        slots.looking_at_all()
    } else {
        slots
    }
}

/// The store of the plan; what speaks against it before anything is started comes as an ending.
pub(crate) fn open(plan: &Plan) -> anyhow::Result<Result<Arc<dyn Store>, Ending>> {
    match &plan.lock {
        Lock::Blob {
            target,
            emulator,
            create,
            page_blob,
        } => {
            let refuse = |why: String| Refusal::new(why);
            let target = blob::Target::parse(target).map_err(|why| refuse(why.to_string()))?;
            let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
            let account = Account::resolve(&variable, *emulator, target.url())
                .map_err(|why| refuse(why.to_string()))?;
            blob::prepare_will(account.clone());
            tracing::info!("credential: {}", account.kind());
            let config = blob::Config {
                target,
                account,
                lease: plan.lease,
                candidate: plan.candidate.clone(),
                create: *create,
                page_blob: *page_blob,
            };
            Ok(Ok(if plan.slots > 1 {
                let slots = Slots::of_blobs(config, plan.slots);
                let slots = slots.map_err(|why| refuse(why.to_string()))?;
                Arc::new(looking(slots, plan))
            } else {
                Arc::new(blob::Blob::open(config)?)
            }))
        }
        Lock::File { path, heartbeat } => {
            let config = file::Config {
                path: path.clone(),
                candidate: plan.candidate.clone(),
                heartbeat: *heartbeat,
                lease: plan.lease,
                create: true,
            };
            let opened: Result<Arc<dyn Store>, _> = if plan.slots > 1 {
                Slots::of_files(config, plan.slots).map(|slots| Arc::new(looking(slots, plan)) as _)
            } else {
                file::File::open(config).map(|store| Arc::new(store) as _)
            };
            Ok(opened.map_err(|why| Ending::of_store(why.to_string(), why.denied)))
        }
    }
}
