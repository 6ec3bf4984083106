//! `trafficcop elect`: competes, and tells a reader on stdout who is in control.
//!
//! Called by main with a validated plan, while the process has one thread. It is `run` with a
//! command of its own: the process that tells the reader ([`crate::announce`]), under a guardian as
//! any command. So `standby` is said at its time though this process is killed or stopped, and a
//! drain is the reader's grace. What is added here: the lines while we stand by, the reader that hangs up,
//! and a `standby` (and a grace) for a reader whose teller died before it could say so.
//!
//! Stdout has one speaker at a time: the teller while there is one, else this process.

use std::io::{self, Read as _};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::unistd::pipe2;

use crate::announce::{BELIEVED, TOLD};
use crate::clock::Instant;
use crate::core::{Cause, Ending, Exit, Notice, Tenure};
use crate::exit::{self, Leave};
use crate::guardian::{self, Program, Setup, StopAsked, WorkloadEvent};
use crate::hold::{Audience, Charge, Start, hold};
use crate::lease::{self, Store};
use crate::plan::{Plan, Refusal, Telling};
use crate::report;
use crate::report::roles::{self, Here, Role};
use crate::report::stdout::Voice;
use crate::run::{Company, Guardians, People, company, name_the_lock, no_guardian, open, rules};
use crate::runtime::runtime;
use crate::signals::Signals;

/// What tells the reader: ourselves, whatever has become of the file since.
const TELLER: &str = "/proc/self/exe";

/// What the teller writes about how far it came.
struct Ledger(std::fs::File);

impl Ledger {
    /// The ledger, and the descriptor that the teller inherits.
    fn open() -> io::Result<(Ledger, std::os::fd::OwnedFd)> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        fcntl(&writer, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok((Ledger(reader.into()), writer))
    }

    /// Whether the teller that is gone left a reader that believes that we are in control.
    fn believed(&mut self) -> bool {
        let mut last = None;
        let mut bytes = [0; 64];
        while let Ok(length @ 1..) = self.0.read(&mut bytes) {
            last = Some(bytes[length - 1]);
        }
        debug_assert!(matches!(last, None | Some(BELIEVED | TOLD)));
        last == Some(BELIEVED)
    }
}

/// What this process itself says to the reader.
struct Speaker {
    voice: Voice,
    json: bool,
    store: Arc<dyn Store>,
    identity: String,
    control: Option<String>,
    /// Whom we named last, with what token.
    named: Option<(Option<String>, Option<u64>)>,
}

impl Speaker {
    fn standby(&mut self, holder: Option<&str>, token: Option<u64>) {
        let now = Some((holder.map(str::to_owned), token));
        if self.named == now {
            return;
        }
        self.named = now;
        let here = Here {
            identity: self.identity.clone(),
            lock: self.store.name().to_owned(),
            slot: self.store.slot(),
            control: self.control.clone(),
        };
        self.voice
            .say(Role::standby(here, holder, token).line(self.json));
    }
}

/// Both the charge and the audience speak.
#[derive(Clone)]
struct Shared(Arc<Mutex<Speaker>>);

impl Shared {
    fn with<T>(&self, what: impl FnOnce(&mut Speaker) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn gone(&self) -> Option<Errno> {
        self.with(|speaker| speaker.voice.gone())
    }
}

/// The reader as the charge of a tenure: its teller is the command.
struct Reader {
    teller: Company,
    ledger: Ledger,
    speaker: Shared,
    grace: Duration,
    kill_at: Instant,
    exit: Option<Exit>,
    /// There is no time for a grace.
    hurried: bool,
    /// The teller died and the reader believed: the end of the tree is told at this moment.
    held_back: Option<Instant>,
}

impl Reader {
    /// The teller is gone: what the end of the tree means for the reader.
    fn teller_gone(&mut self) -> Option<WorkloadEvent> {
        let hung_up = self.speaker.gone().is_some()
            || self.exit == Some(Exit::Signal(libc::SIGPIPE))
            || self.exit == Some(Exit::Code(exit::CANNOT_WRITE));
        let nobody_told = self.exit == Some(Exit::Code(0));
        if self.ledger.believed() && !hung_up && !nobody_told {
            self.speaker.with(|speaker| speaker.standby(None, None));
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
impl Charge for Reader {
    fn start(&mut self, start: Start) {
        self.kill_at = start.kill_at;
        self.exit = None;
        self.hurried = false;
        // What a teller left that could not be started is not about this one.
        let _stale = self.ledger.believed();
        self.speaker.with(|speaker| {
            speaker.voice.yield_to_another();
            speaker.named = None;
        });
        self.teller.start(start);
    }

    fn extend(&mut self, term_at: Instant, kill_at: Instant) {
        self.kill_at = kill_at;
        self.teller.extend(term_at, kill_at);
    }

    fn drain(&mut self, signal: i32, end_of_grace: Instant) {
        self.teller.drain(signal, end_of_grace);
    }

    fn kill(&mut self) {
        self.hurried = true;
        self.teller.kill();
    }

    /// The teller does not know them.
    fn pass(&mut self, _signal: i32) {}

    /// The teller goes on: it has to speak at the deadline.
    fn pause(&mut self) {
        if let Err(why) = guardian::stop_ourselves(StopAsked::of_a_signal()) {
            tracing::warn!("cannot stop: {why}");
        }
    }

    fn forget_will(&mut self) {
        self.teller.forget_will();
    }

    fn stand_by(&mut self) {
        self.teller.stand_by();
    }

    fn tenure_over(&mut self, cause: &Cause) {
        self.teller.tenure_over(cause);
    }

    async fn news(&mut self) -> WorkloadEvent {
        loop {
            let patience = match self.held_back {
                Some(_) if self.hurried || self.speaker.gone().is_some() => Duration::ZERO,
                Some(until) => until.since(Instant::now()),
                None => Duration::MAX,
            };
            let news = tokio::select! {
                news = self.teller.news() => Some(news),
                () = tokio::time::sleep(patience), if self.held_back.is_some() => None,
            };
            match news {
                None => {
                    self.held_back = None;
                    return WorkloadEvent::TreeEmpty { at: Instant::now() };
                }
                Some(WorkloadEvent::TreeEmpty { .. }) => {
                    if let Some(news) = self.teller_gone() {
                        return news;
                    }
                }
                Some(WorkloadEvent::Exited(exit)) => {
                    self.exit = Some(exit);
                    return WorkloadEvent::Exited(exit);
                }
                // It has no terminal to be stopped from.
                Some(WorkloadEvent::Stopped) => {}
                Some(news) => return news,
            }
        }
    }
}

/// What people and the reader are told while nobody else speaks.
struct Told {
    people: People,
    speaker: Shared,
}

impl Audience for Told {
    fn notice(&mut self, now: Instant, notice: &Notice) {
        if let Notice::StandingBy(sight) = notice {
            self.speaker
                .with(|speaker| speaker.standby(sight.holder.as_deref(), sight.token));
        }
        // How the teller ended is not the status file's business either.
        if !roles::is_of_the_teller(notice) {
            self.people.notice(now, notice);
        }
    }

    fn stop_asked(&mut self) {
        self.people.stop_asked();
    }

    fn news(&mut self, now: Instant, news: &WorkloadEvent) {
        if let WorkloadEvent::Lost = news {
            tracing::warn!("the guardian died or fell silent; telling the reader to stop");
            return;
        }
        self.people.news(now, news);
    }
}

/// A link to the control file; goes away with us.
struct Link(PathBuf);

impl Link {
    fn make(path: &Path, target: &Path) -> io::Result<Link> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // A name that nobody can know, and take, before.
        let (pid, random) = (std::process::id(), fastrand::u64(..));
        let beside = path.with_file_name(format!(".{name}.{pid}.{random:016x}"));
        std::os::unix::fs::symlink(target, &beside)?;
        std::fs::rename(&beside, path).inspect_err(|_| {
            let _ = std::fs::remove_file(&beside);
        })?;
        Ok(Link(path.to_owned()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn link(telling: &Telling, control: Option<&Path>) -> anyhow::Result<Option<Link>> {
    let Some(path) = &telling.control_file else {
        return Ok(None);
    };
    let Some(target) = control else {
        anyhow::bail!("--control-file: no directory was found for a control file; see the log");
    };
    let made = Link::make(path, target).map_err(|why| {
        Refusal::new(format!(
            "--control-file {}: cannot make the link: {why}: name a place that can be written to",
            path.display()
        ))
    })?;
    Ok(Some(made))
}

/// Holds the election of `plan` to its end.
///
/// To be called while the process has one thread: the guardian is forked in here.
///
/// # Errors
/// What kept us from starting at all: a [`Refusal`], or what the machine refused.
pub fn elect(mut plan: Plan, telling: &Telling) -> anyhow::Result<Leave> {
    let store = match open(&plan)? {
        Ok(store) => store,
        Err(ending) => {
            let leave = Leave::of(&ending, plan.conflict_status);
            report::ending(&ending, leave);
            return Ok(leave);
        }
    };
    plan.refuse_our_own(store.name())?;
    if !roles::fits(store.name()) {
        let why = "the lock's name is too long for lines that go through a pipe as a whole: take a shorter one";
        return Err(Refusal::new(why).into());
    }
    let (ledger, theirs) = Ledger::open()?;
    plan.command = vec![TELLER.into(), "announce".into()];
    plan.command
        .extend(["--ledger".into(), theirs.as_raw_fd().to_string().into()]);
    plan.command
        .extend(telling.json.then(|| "--json".to_owned().into()));
    let guardian = guardian::fork_for_a_teller(Setup {
        programs: vec![Program {
            words: plan.command.clone(),
            in_front: false,
        }],
        contain: plan.contain,
        grace: plan.rules.grace,
        on_orphaned: lease::release_orphaned,
        withheld: Vec::new(),
    })
    .map_err(no_guardian)?;
    drop(theirs);
    report::context(report::Context {
        lock: store.name().to_owned(),
        identity: plan.candidate.identity.clone(),
        command: TELLER.into(),
    });
    tracing::info!("competes for {}", store.name());
    let control = guardian.control_file().map(Path::to_owned);
    let _link = link(telling, control.as_deref())?;
    let people = People::new(&plan, &store, &guardian, roles::notice);
    let (voice, gone) = Voice::begin()?;
    let speaker = Shared(Arc::new(Mutex::new(Speaker {
        voice,
        json: telling.json,
        store: Arc::clone(&store),
        identity: plan.candidate.identity.clone(),
        control: control.map(|path| path.to_string_lossy().into_owned()),
        named: None,
    })));
    let runtime = runtime()?;
    let leave = runtime.block_on(async {
        let signals = Signals::listen()?.and_hang_up(gone);
        people.begin(guardian.health_check());
        let mut teller = company(&plan, &store, Guardians::of_one(guardian))?;
        teller.events = people.events.clone();
        let reader = Reader {
            teller,
            ledger,
            speaker: speaker.clone(),
            grace: plan.rules.grace,
            kill_at: Instant::FOREVER,
            exit: None,
            hurried: false,
            held_back: None,
        };
        let told = Told { people, speaker };
        anyhow::Ok(campaign(&plan, store, reader, signals, told).await)
    })?;
    // A call that hangs (a name that does not resolve, a dead mount) must not keep us here.
    runtime.shutdown_background();
    Ok(leave)
}

async fn campaign(
    plan: &Plan,
    store: Arc<dyn Store>,
    mut reader: Reader,
    mut signals: Signals,
    mut told: Told,
) -> Leave {
    told.people.write("standby");
    let mut rules = rules(plan, &*store);
    // Where the kernel wakes us, it does so only when the lock is free: whoever is to name the
    // holder has to look.
    rules.poll = plan.rules.poll;
    let cordon = told.people.follow_events(plan, &mut signals).await;
    let tenure = Tenure::new(rules, Instant::now()).cordoned_by(cordon);
    let lock = store.name().to_owned();
    let mut ending = hold(tenure, store, &mut reader, &mut signals, &mut told).await;
    told.people.stops();
    name_the_lock(&mut ending, &lock);
    reader.teller.dismiss().await;
    let leave = leave(&ending, told.speaker.gone(), plan.conflict_status);
    told.people.finish(&ending, leave);
    leave
}

/// How we leave, said to people.
fn leave(ending: &Ending, gone: Option<Errno>, conflict_status: u8) -> Leave {
    let hung_up = |why: Option<&str>, leave: Leave| {
        roles::hung_up(why, leave.status());
        leave
    };
    let pipe = Leave::Signal(libc::SIGPIPE);
    let cannot_write = Leave::Status(exit::CANNOT_WRITE);
    match (&ending.cause, ending.exit, gone) {
        _ if ending.overlap => {}
        (Cause::Stopped(libc::SIGPIPE), _, None | Some(Errno::EPIPE))
        | (Cause::CommandEnded, Some(Exit::Signal(libc::SIGPIPE)), _) => {
            return hung_up(None, pipe);
        }
        (Cause::Stopped(libc::SIGPIPE), _, Some(errno)) => {
            return hung_up(Some(errno.desc()), cannot_write);
        }
        (Cause::CommandEnded, Some(Exit::Code(exit::CANNOT_WRITE)), gone) => {
            return hung_up(Some(gone.map_or("an error", Errno::desc)), cannot_write);
        }
        (Cause::CommandEnded, ..) => {
            let leave = Leave::Status(exit::LOST);
            roles::teller_died(leave.status());
            return leave;
        }
        _ => {}
    }
    // However the teller ended: the reader's fate is not ours to tell.
    let ending = Ending {
        exit: None,
        ..ending.clone()
    };
    let leave = Leave::of(&ending, conflict_status);
    report::ending(&ending, leave);
    leave
}
