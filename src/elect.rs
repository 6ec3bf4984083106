//! `trafficcop elect`: competes for control, and tells a reader on stdout which instance has it.
//!
//! It is `run` with a fixed command under a guardian, the process that tells the reader
//! ([`crate::elect::announce`]). So the reader gets `standby` in time even if this process is killed or
//! stopped. This module adds a standby's lines, the reader that hangs up, and the child's death.
//!
//! Stdout has one writer at a time: the child if there is one, else this process.

use std::io::{self, Read as _};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::unistd::pipe2;

pub(crate) mod lines;

pub(crate) use self::lines::announce;
use self::lines::{BELIEVED, Here, ReaderLog, Role, TOLD};
use crate::clock::Instant;
use crate::config::{ANOTHER_S_LINK, Config, Telling, UsageError};
use crate::core::{Cause, Deadlines, Ending, Exit, Tenure, WorkloadEvent};
use crate::doorbell::Doorbell;
use crate::driver::{Observation, Observer, Start, Workload, drive};
use crate::exit::{self, ExitAction};
use crate::guardian::{self, Program, Setup, StopAsked};
use crate::lasting::{self, Lasting};
use crate::lease::{self, LeaseStore};
use crate::report;
use crate::report::stdio::LineSender;
use crate::run::{
    CommandWorkload, Guardians, Observers, Opened, fork_for_the_condition, look_after,
    name_the_lock, no_guardian, open, rules, workload,
};
use crate::runtime::runtime;
use crate::signals::Signals;
use crate::util::lock;

// The link, not the path: an upgrade may have replaced the file, and the versions must fit.
const CHILD: &str = "/proc/self/exe";

struct ProgressPipe(std::fs::File);

impl ProgressPipe {
    fn open() -> io::Result<(ProgressPipe, std::os::fd::OwnedFd)> {
        // Neither process may hang on the other.
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // It must survive guardian and exec.
        fcntl(&writer, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok((ProgressPipe(reader.into()), writer))
    }

    /// Returns whether the dead child left a reader that believes in control.
    fn believed(&mut self) -> bool {
        let mut last = None;
        let mut bytes = [0; 64];
        // The last byte takes back the earlier ones.
        while let Ok(length @ 1..) = self.0.read(&mut bytes) {
            last = Some(bytes[length - 1]);
        }
        debug_assert!(matches!(last, None | Some(BELIEVED | TOLD)));
        last == Some(BELIEVED)
    }
}

struct ReaderLines {
    sender: LineSender,
    json: bool,
    store: Arc<dyn LeaseStore>,
    identity: String,
    control: Option<String>,
    named: Option<(Option<String>, Option<u64>)>,
}

impl ReaderLines {
    fn standby(&mut self, holder: Option<&str>, token: Option<u64>) {
        let now = Some((holder.map(str::to_owned), token));
        // The reader gets changes only.
        if self.named == now {
            return;
        }
        self.named = now;
        let info = self.store.info();
        let here = Here {
            identity: self.identity.clone(),
            lock: info.name,
            slot: info.slot,
            control: self.control.clone(),
        };
        self.sender
            .say(Role::standby(here, holder, token).line(self.json));
    }
}

#[derive(Clone)]
struct SharedLines(Arc<Mutex<ReaderLines>>);

impl SharedLines {
    fn with<T>(&self, what: impl FnOnce(&mut ReaderLines) -> T) -> T {
        what(&mut lock(&self.0))
    }

    fn gone(&self) -> Option<Errno> {
        self.with(|lines_out| lines_out.sender.gone())
    }
}

struct ElectWorkload {
    child: CommandWorkload,
    progress: ProgressPipe,
    lines_out: SharedLines,
    grace: Duration,
    kill_at: Instant,
    exit: Option<Exit>,
    /// No time for a grace.
    hurried: bool,
    /// End of a grace that this process gives in place of a dead child.
    held_back: Option<Instant>,
}

impl ElectWorkload {
    /// `None` while the reader has its grace.
    fn child_gone(&mut self, at: Instant) -> Option<WorkloadEvent> {
        // Without a reader, give the lock back at once.
        let hung_up = self.lines_out.gone().is_some()
            || self.exit == Some(Exit::Signal(libc::SIGPIPE))
            || self.exit == Some(Exit::Code(exit::CANNOT_WRITE));
        let nobody_told = self.exit == Some(Exit::Code(0));
        // The reader has not acted since the child's end, however late this process hears of it.
        if !self.progress.believed() {
            return Some(WorkloadEvent::TreeEmpty { at });
        }
        if !hung_up && !nobody_told {
            self.lines_out
                .with(|lines_out| lines_out.standby(None, None));
            let now = Instant::now();
            let until = self.kill_at.min(now + self.grace);
            if !self.hurried && now < until {
                self.held_back = Some(until);
                return None;
            }
        }
        Some(WorkloadEvent::TreeEmpty { at: Instant::now() })
    }
}

#[async_trait]
impl Workload for ElectWorkload {
    fn start(&mut self, start: Start) {
        self.kill_at = start.deadlines.kill_at;
        self.exit = None;
        self.hurried = false;
        // Discard what a child that did not start has left.
        let _stale = self.progress.believed();
        self.lines_out.with(|lines_out| {
            // From here on the child writes.
            lines_out.sender.yield_to_another();
            lines_out.named = None;
        });
        self.child.start(start);
    }

    fn extend(&mut self, deadlines: Deadlines) {
        self.kill_at = deadlines.kill_at;
        self.child.extend(deadlines);
    }

    fn drain(&mut self, signal: i32, end_of_grace: Instant) {
        self.child.drain(signal, end_of_grace);
    }

    fn kill(&mut self) {
        // Ends a grace that was held back, too.
        self.hurried = true;
        self.child.kill();
    }

    fn pass(&mut self, _signal: i32) {}

    /// The child must write at the deadline.
    fn pause(&mut self) {
        if let Err(why) = guardian::stop_ourselves(StopAsked::of_a_signal()) {
            tracing::warn!("cannot stop: {why}");
        }
    }

    fn forget_release_info(&mut self) {
        self.child.forget_release_info();
    }

    fn stand_by(&mut self) {
        self.child.stand_by();
    }

    fn ask(&mut self, give_up_at: Instant) {
        self.child.ask(give_up_at);
    }

    fn tenure_over(&mut self, cause: &Cause) {
        self.child.tenure_over(cause);
    }

    async fn next_event(&mut self) -> WorkloadEvent {
        loop {
            let patience = match self.held_back {
                Some(_) if self.hurried || self.lines_out.gone().is_some() => Duration::ZERO,
                Some(until) => until.since(Instant::now()),
                None => Duration::MAX,
            };
            let event = tokio::select! {
                event = self.child.next_event() => Some(event),
                () = tokio::time::sleep(patience), if self.held_back.is_some() => None,
            };
            match event {
                None => {
                    self.held_back = None;
                    return WorkloadEvent::TreeEmpty { at: Instant::now() };
                }
                Some(WorkloadEvent::TreeEmpty { at }) => {
                    if let Some(event) = self.child_gone(at) {
                        return event;
                    }
                }
                Some(WorkloadEvent::Exited(exit)) => {
                    self.exit = Some(exit);
                    return WorkloadEvent::Exited(exit);
                }
                // The child has no terminal that could stop it.
                Some(WorkloadEvent::Stopped) => {}
                Some(event) => return event,
            }
        }
    }
}

struct StdoutObserver {
    observers: Observers,
    lines_out: SharedLines,
}

impl Observer for StdoutObserver {
    fn observe(&mut self, now: Instant, observation: &Observation<'_>) {
        if let Observation::Notice { notice, .. } = observation {
            if let Some((holder, token)) = lines::standby_behind(notice) {
                self.lines_out
                    .with(|lines_out| lines_out.standby(holder, token));
            }
            // The status file does not show the child's end either.
            if lines::is_of_the_child(notice) {
                return;
            }
        }
        self.observers.observe(now, observation);
    }
}

struct ControlLink(PathBuf, PathBuf);

impl ControlLink {
    fn make(path: &Path, target: &Path) -> io::Result<ControlLink> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // No other user can guess this name.
        let (pid, random) = (std::process::id(), fastrand::u64(..));
        let beside = path.with_file_name(format!(".{name}.{pid}.{random:016x}"));
        std::os::unix::fs::symlink(target, &beside)?;
        std::fs::rename(&beside, path).inspect_err(|_| {
            let _ = std::fs::remove_file(&beside);
        })?;
        Ok(ControlLink(path.to_owned(), target.to_owned()))
    }
}

impl Drop for ControlLink {
    fn drop(&mut self) {
        // It may be another instance's link.
        if std::fs::read_link(&self.0).is_ok_and(|target| target == self.1) {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

fn link(
    telling: &Telling,
    control: Option<&Path>,
) -> anyhow::Result<Option<(ControlLink, Lasting)>> {
    let Some(path) = &telling.control_file else {
        return Ok(None);
    };
    let Some(target) = control else {
        anyhow::bail!("--control-file: no directory is writable for a control file; see the log");
    };
    let refused = |why: &str| UsageError::new(format!("--control-file {}: {why}", path.display()));
    // Checked again: another instance may have started.
    if guardian::is_control_file_in_use(path) {
        return Err(refused(ANOTHER_S_LINK).into());
    }
    let made = ControlLink::make(path, target).map_err(|why| {
        refused(&format!(
            "cannot make the link: {why}: name a writable directory"
        ))
    })?;
    Ok(Some((made, lasting::of_link(path)?)))
}

/// Forks: the process must have one thread.
pub(crate) fn elect(mut config: Config, telling: &Telling) -> anyhow::Result<ExitAction> {
    // Without a reader, control would only be kept from others.
    if let Some(leave) = nobody_reads() {
        return Ok(leave);
    }
    let Opened { store, doorbell } = match open(&config)? {
        Ok(opened) => opened,
        Err(ending) => return Ok(report::ending(&ending, config.conflict_status)),
    };
    let lock = store.info().name;
    config.refuse_our_own(&lock)?;
    // Half a line would count as a line.
    if !lines::fits(&lock) {
        let why = "the lock's name is too long for lines that go through a pipe as a whole: take a shorter one";
        return Err(UsageError::new(why).into());
    }
    let (progress, theirs) = ProgressPipe::open()?;
    config.command = vec![CHILD.into(), "announce".into()];
    config
        .command
        .extend(["--progress".into(), theirs.as_raw_fd().to_string().into()]);
    config
        .command
        .extend(telling.json.then(|| "--json".to_owned().into()));
    let programs = vec![Program::handler(config.command.clone())];
    let setup = Setup {
        on_orphaned: lease::release_orphaned,
        tells_others: true,
        ..Setup::new(programs, config.contain, config.rules.grace)
    };
    let guardian = guardian::fork(setup).map_err(no_guardian)?;
    drop(theirs);
    let condition = fork_for_the_condition(&config)?;
    report::context(report::Context {
        lock: lock.clone(),
        identity: config.candidate.identity.clone(),
        command: CHILD.into(),
    });
    config.warn_of_idle_flags(store.info().lease);
    tracing::debug!("competes for {lock}");
    let control = guardian.control_file().map(Path::to_owned);
    let _link = link(telling, control.as_deref())?;
    let log = ReaderLog(report::LogObserver::new(config.looks_once(), config.slots));
    let observers = Observers::new(&config, &store, &guardian, log, None);
    // After the fork: it starts a thread.
    let (sender, gone) = LineSender::begin()?;
    let lines_out = SharedLines(Arc::new(Mutex::new(ReaderLines {
        sender,
        json: telling.json,
        store: Arc::clone(&store),
        identity: config.candidate.identity.clone(),
        control: control.map(|path| path.to_string_lossy().into_owned()),
        named: None,
    })));
    runtime()?.block_on(async {
        let signals = Signals::listen()?.and_hang_up(gone);
        observers.begin(guardian.health_check());
        let mut child = workload(&config, &store, Guardians::of_one(guardian, condition))?;
        look_after(&mut child, &config, None, &observers)?;
        let reader = ElectWorkload {
            child,
            progress,
            lines_out: lines_out.clone(),
            grace: config.rules.grace,
            kill_at: Instant::FOREVER,
            exit: None,
            hurried: false,
            held_back: None,
        };
        let told = StdoutObserver {
            observers,
            lines_out,
        };
        Ok(compete(&config, store, doorbell, reader, signals, told).await)
    })
}

async fn compete(
    config: &Config,
    store: Arc<dyn LeaseStore>,
    doorbell: Option<Doorbell>,
    mut reader: ElectWorkload,
    mut signals: Signals,
    mut told: StdoutObserver,
) -> ExitAction {
    told.observers.tell(Observation::Begins);
    let mut rules = rules(config, &*store);
    // The kernel reports only a free lock, but the reader wants the holder's name.
    rules.poll = config.rules.poll;
    let cordon = told.observers.follow_events(config, &mut signals).await;
    let tenure = Tenure::new(rules, Instant::now())
        .cordoned_by(cordon)
        .only_if(config.asks_every())
        .telling_health(config.health.rules.is_told_every(), report::recorded_health);
    let lock = store.info().name;
    let mut ending = drive(
        tenure,
        store,
        &mut reader,
        &mut signals,
        &mut told,
        doorbell,
    )
    .await;
    told.observers.tell(Observation::Stops);
    name_the_lock(&mut ending, &lock);
    reader.child.dismiss().await;
    let leave = leave(&ending, told.lines_out.gone(), config.conflict_status);
    told.observers.finish(&ending, leave);
    leave
}

fn nobody_reads() -> Option<ExitAction> {
    if guardian::stdout_was_closed() {
        let why = "it is closed (add a reader, or >/dev/null)";
        lines::hung_up(Some(why), exit::CANNOT_WRITE.into());
        return Some(ExitAction::Status(exit::CANNOT_WRITE));
    }
    report::is_unread().then(|| {
        let leave = ExitAction::Signal(libc::SIGPIPE);
        lines::hung_up(None, leave.status());
        leave
    })
}

fn leave(ending: &Ending, gone: Option<Errno>, conflict_status: u8) -> ExitAction {
    let exit = match (&ending.cause, ending.exit) {
        _ if ending.overlap => None,
        (Cause::Stopped(libc::SIGPIPE), _) if gone.is_some_and(|errno| errno != Errno::EPIPE) => {
            Some(Exit::Code(exit::CANNOT_WRITE))
        }
        // The child writes for this process, which ends like it.
        (Cause::CommandEnded, exit) => exit.filter(|exit| {
            [Exit::Signal(libc::SIGPIPE), Exit::Code(exit::CANNOT_WRITE)].contains(exit)
        }),
        // The child's other ends say nothing about the reader.
        _ => None,
    };
    let ending = Ending {
        exit,
        ..ending.clone()
    };
    let leave = ExitAction::of(&ending, conflict_status);
    match (&ending.cause, exit) {
        _ if ending.overlap => return report::ending(&ending, conflict_status),
        (Cause::CommandEnded, None) => lines::reader_process_died(leave.status()),
        (_, Some(Exit::Code(_))) => {
            let why = gone.map_or("it refuses (is its disk full?)", Errno::desc);
            lines::hung_up(Some(why), leave.status());
        }
        (_, Some(Exit::Signal(_))) | (Cause::Stopped(libc::SIGPIPE), None) => {
            lines::hung_up(None, leave.status());
        }
        _ => return report::ending(&ending, conflict_status),
    }
    leave
}
