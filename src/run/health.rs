//! The health of the command, as it is found out: what the command says on its notification socket, and
//! the probes, of which a command has a guardian of its own.
//!
//! Made by `run` and owned by its workload, which lets it work while it waits for events and does what it
//! says. What follows from what is decided by [`Health`]. A probe belongs to the command: it has the
//! lease's deadline, is killed when the command is to end, and until nothing of it lives nothing is called empty.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use url::Url;

use crate::azure;
use crate::clock::{Instant, sleep};
use crate::core::{
    Deadlines, Exit, Health, HealthEvent, HealthRules, Look, ProbeFailure, WorkloadEvent,
};
use crate::exit::is_for_want_of_room;
use crate::guardian::{GuardianHandle, SpawnRequest};
use crate::notify::ServiceManager;

// After so long a command is looked after as one that runs, though nobody has heard that it does: as long as a
// guardian that starts one is not expected to answer.
const START: Duration = Duration::from_secs(10);
// What is read of an answer: whether a longer one ends is not what was asked.
const BODY: usize = 16 << 10;

/// Whom a probe asks, or by whom it is made.
pub(super) enum Prober {
    /// A command, by a guardian that knows nothing else.
    Command(GuardianHandle),
    /// A server.
    Url(reqwest::Client, Url),
}

/// The probe that is under way.
enum Probe {
    None,
    /// It has a tree.
    Command {
        timeout_at: Instant,
        exit: Option<Exit>,
        /// Its guardian ended it, because its time was over.
        timed_out: bool,
    },
    Url(Pin<Box<dyn Future<Output = Result<(), ProbeFailure>> + Send>>),
}

/// See the module's text.
pub(super) struct HealthMonitor {
    health: Health,
    /// Where the command says what it says of its watchdog.
    words: Option<ServiceManager>,
    prober: Option<Prober>,
    probe: Probe,
    /// How the last probe ended, until it is judged.
    ended: Option<Result<(), ProbeFailure>>,
    /// When the lease's guardian kills, if it is not told otherwise.
    kill_at: Instant,
    /// When the last tree of a probe was seen to be empty.
    empty_at: Instant,
    /// Something of a probe cannot be killed.
    stuck: bool,
    /// The guardian of the probes is dead.
    lost: bool,
}

impl HealthMonitor {
    pub(super) fn new(
        rules: HealthRules,
        words: Option<ServiceManager>,
        prober: Option<Prober>,
    ) -> HealthMonitor {
        HealthMonitor {
            words: words.filter(|_| rules.watchdog.is_some()),
            health: Health::new(rules),
            prober,
            probe: Probe::None,
            ended: None,
            kill_at: Instant::FOREVER,
            empty_at: Instant::ZERO,
            stuck: false,
            lost: false,
        }
    }

    /// The command is being started. On a file system that does not answer it may never be, and hangs like one
    /// that runs.
    pub(super) fn launched(&mut self) {
        self.health.started(Instant::now() + START);
    }

    /// Whether a command runs or is being started that is not to end.
    pub(super) fn is_expected(&self) -> bool {
        self.health.is_running()
    }

    /// The command runs.
    pub(super) fn started(&mut self) {
        self.health.started(Instant::now());
    }

    /// The command has ended or is to end: nobody is asked any more.
    pub(super) fn stops(&mut self) {
        self.health.ended();
        match (&self.probe, &mut self.prober) {
            (Probe::Command { .. }, Some(Prober::Command(handle))) if !self.lost => handle.kill(),
            (Probe::Url(_), _) => self.probe = Probe::None,
            _ => {}
        }
    }

    /// The lease's deadlines are these.
    pub(super) fn extend(&mut self, deadlines: Deadlines) {
        self.kill_at = deadlines.kill_at;
        if let (Probe::Command { timeout_at, .. }, Some(Prober::Command(handle))) =
            (&self.probe, &mut self.prober)
        {
            handle.extend(at_once(self.kill_at.min(*timeout_at)));
            handle.hurry_at(self.kill_at);
        }
    }

    /// When the last of all probes was seen to be gone; `None` while something of one may live.
    pub(super) fn empty_at(&self) -> Option<Instant> {
        matches!(self.probe, Probe::None).then_some(self.empty_at)
    }

    /// Whether something of a probe lives that cannot be killed.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Waits until there is something to look at. Cancel-safe.
    pub(super) async fn wait(&mut self) {
        let due = self.health.wake_at().since(Instant::now());
        let HealthMonitor {
            words,
            prober,
            probe,
            ..
        } = self;
        let of_guardian = async {
            match prober {
                Some(Prober::Command(handle)) => handle.next_event().await,
                _ => pending().await,
            }
        };
        let of_url = async {
            match probe {
                Probe::Url(asks) => asks.await,
                _ => pending().await,
            }
        };
        let urgent = async {
            match words {
                Some(words) => words.is_urgent().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            event = of_guardian => self.on_event(event),
            result = of_url => self.ends(result),
            () = urgent => {}
            () = sleep(due) => {}
        }
    }

    /// What is to be told of the command's health by now, and whether a probe is to begin.
    pub(super) fn look(&mut self) -> (Vec<HealthEvent>, bool) {
        let mut events = Vec::new();
        let now = Instant::now();
        // What it says before it counts as started is kept until then.
        let words = self.words.as_ref().filter(|_| self.health.is_running());
        for word in words
            .map(|words| words.watchdog_words(0))
            .unwrap_or_default()
        {
            events.extend(self.health.hears(now, word));
        }
        let look = self.health.look(now);
        if let Look::Hung(hung) = look {
            events.push(HealthEvent::Hung(hung));
        }
        if let Some(result) = self.ended.take() {
            events.extend(self.health.probed(now, result));
        }
        if self.lost && self.health.is_running() {
            events.push(HealthEvent::GuardianLost);
            self.health.ended();
        }
        if !self.health.is_running() {
            self.stops();
        }
        let Look::Probe { kill_at } = look else {
            return (events, false);
        };
        match &self.prober {
            _ if self.lost => (events, false),
            // Nothing can be started beside it: as if it went on to ask, and nobody answered.
            _ if self.stuck => {
                self.ended = Some(Err(ProbeFailure::TimedOut));
                (events, false)
            }
            Some(Prober::Command(_)) => {
                self.probe = Probe::Command {
                    timeout_at: kill_at,
                    exit: None,
                    timed_out: false,
                };
                (events, true)
            }
            Some(Prober::Url(client, url)) => {
                let asks = ask(client.clone(), url.clone(), kill_at);
                self.probe = Probe::Url(Box::pin(asks));
                (events, false)
            }
            None => (events, false),
        }
    }

    /// Starts the probe that is to begin, with this request but for its deadlines.
    pub(super) fn launch(&mut self, request: Result<SpawnRequest, i32>) {
        let (Probe::Command { timeout_at, .. }, Some(Prober::Command(handle))) =
            (&self.probe, &mut self.prober)
        else {
            return;
        };
        match request {
            Ok(request) => {
                handle.start(SpawnRequest {
                    // Without a grace: what asks has nothing to put in order, and what it leaves behind
                    // neither.
                    deadlines: at_once(self.kill_at.min(*timeout_at)),
                    // The lease is for the command's guardian to give back.
                    release_info: Vec::new(),
                    ..request
                });
                handle.hurry_at(self.kill_at);
            }
            Err(errno) => handle.refuse(errno),
        }
    }

    /// Ends its guardian.
    pub(super) async fn dismiss(self) {
        if let Some(Prober::Command(handle)) = self.prober {
            handle.dismiss().await;
        }
    }

    fn on_event(&mut self, event: WorkloadEvent) {
        if event == WorkloadEvent::Lost {
            tracing::warn!("the guardian of the --health command died: killing that");
            self.lost = true;
        }
        let Probe::Command {
            exit, timed_out, ..
        } = &mut self.probe
        else {
            return;
        };
        match event {
            WorkloadEvent::Exited(how) => *exit = Some(how),
            WorkloadEvent::Acting => *timed_out = true,
            WorkloadEvent::NotStarted { errno: libc::ETIME } => {
                self.ends(Err(ProbeFailure::TimedOut));
            }
            WorkloadEvent::NotStarted { errno } => self.ends(Err(not_started(errno))),
            WorkloadEvent::TreeEmpty { at } => {
                let result = match exit {
                    _ if *timed_out => Err(ProbeFailure::TimedOut),
                    Some(Exit::Code(0)) => Ok(()),
                    Some(how) => Err(ProbeFailure::Exited(*how)),
                    None => Err(ProbeFailure::TimedOut),
                };
                self.empty_at = at;
                self.ends(result);
            }
            WorkloadEvent::LeftBehind => {
                tracing::debug!("the --health command left processes behind: killing them");
            }
            WorkloadEvent::TreeStuck => {
                tracing::error!(
                    "a process of the --health command cannot be killed: the lock will not be given back: restart this machine"
                );
                self.stuck = true;
                self.ended = Some(Err(ProbeFailure::TimedOut));
            }
            _ => {}
        }
    }

    fn ends(&mut self, result: Result<(), ProbeFailure>) {
        self.probe = Probe::None;
        self.ended = Some(result);
    }
}

/// What it means that nobody could be asked for this error number of the kernel.
fn not_started(errno: i32) -> ProbeFailure {
    match is_for_want_of_room(errno) {
        true => ProbeFailure::NoRoom(errno),
        false => ProbeFailure::NotStarted(errno),
    }
}

/// Killed at this moment, without having been asked to end.
fn at_once(at: Instant) -> Deadlines {
    Deadlines {
        term_at: at,
        kill_at: at,
    }
}

/// Asks a server, until then.
async fn ask(client: reqwest::Client, url: Url, give_up_at: Instant) -> Result<(), ProbeFailure> {
    let failed = |error: reqwest::Error| {
        let error = error.without_url();
        // With -v: what is wrong with a certificate, say.
        tracing::debug!("--health: {}", azure::root_cause(&error));
        let errno = azure::kernel_errno(&error).filter(|errno| is_for_want_of_room(*errno));
        if let Some(errno) = errno {
            ProbeFailure::NoRoom(errno)
        } else if error.is_timeout() {
            ProbeFailure::TimedOut
        } else if let Some(why) = azure::tls_failure(&error) {
            ProbeFailure::NoTls(why)
        } else if error.is_connect() {
            ProbeFailure::NoConnection
        } else {
            ProbeFailure::BrokeOff
        }
    };
    let asked = async {
        let mut answer = client.get(url).send().await.map_err(failed)?;
        let status = answer.status();
        if !status.is_success() {
            return Err(ProbeFailure::Answered(status.as_u16()));
        }
        let mut length = 0;
        while length < BODY {
            match answer.chunk().await.map_err(failed)? {
                Some(chunk) => length += chunk.len(),
                None => break,
            }
        }
        Ok(())
    };
    let in_time = azure::before(give_up_at, asked).await;
    in_time.unwrap_or(Err(ProbeFailure::TimedOut))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::core::{Hung, ProbeRules};
    use crate::guardian::scripted::{Plays, guardian};

    /// A command is asked so often, from its start on.
    pub(in crate::run) fn asked(every: Duration, timeout: Duration, failures: u32) -> HealthRules {
        HealthRules {
            probe: Some(ProbeRules {
                every,
                timeout,
                failures,
                delay: Duration::ZERO,
            }),
            ..HealthRules::default()
        }
    }

    /// What it says next, and whether a check was begun meanwhile.
    async fn says(monitor: &mut HealthMonitor) -> (Vec<HealthEvent>, bool) {
        let mut begun = false;
        loop {
            let (events, begins) = monitor.look();
            begun |= begins;
            if !events.is_empty() {
                return (events, begun);
            }
            monitor.wait().await;
        }
    }

    #[test]
    fn want_of_room_is_no_answer_and_a_missing_program_is_one() {
        for errno in [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE] {
            assert_eq!(not_started(errno), ProbeFailure::NoRoom(errno));
        }
        for errno in [libc::ENOENT, libc::EACCES] {
            assert_eq!(not_started(errno), ProbeFailure::NotStarted(errno));
        }
    }

    /// What it is given for the end of a lease is no measure for its own: a busy machine is late by so much.
    #[tokio::test]
    async fn a_guardian_that_is_late_with_a_check_is_not_a_dead_one() {
        let rules = asked(Duration::from_secs(60), Duration::from_millis(20), 2);
        let prober = Prober::Command(guardian(|_| Plays::Mutes));
        let mut monitor = HealthMonitor::new(rules, None, Some(prober));
        monitor.started();
        assert!(monitor.look().1, "the first is begun");
        monitor.launch(Ok(check()));
        let begun = Instant::now();
        while Instant::now().since(begun) < Duration::from_millis(500) {
            let wait = monitor.wait();
            let _ = tokio::time::timeout(Duration::from_millis(20), wait).await;
            assert_eq!(monitor.look(), (Vec::new(), false));
        }
    }

    #[tokio::test]
    async fn beside_a_check_that_asked_before_the_command_ran_none_is_begun() {
        let minute = Duration::from_secs(60);
        let rules = asked(minute, minute, 1);
        let prober = Prober::Command(guardian(|_| Plays::Lasts));
        let mut monitor = HealthMonitor::new(rules, None, Some(prober));
        // As if the start had hung for so long.
        monitor.health.started(Instant::now());
        assert!(monitor.look().1, "the first is begun");
        monitor.launch(Ok(check()));
        monitor.started();
        assert_eq!(monitor.look(), (Vec::new(), false));
        assert!(monitor.empty_at().is_none(), "it lives");
        monitor.stops();
    }

    fn check() -> SpawnRequest {
        SpawnRequest {
            program: 0,
            in_control: true,
            env: Vec::new(),
            unset: Vec::new(),
            deadlines: Deadlines::NONE,
            stop_signal: libc::SIGTERM,
            stop_to: crate::guardian::StopTo::Group,
            lock: None,
            input: None,
            release_info: Vec::new(),
        }
    }

    #[tokio::test]
    async fn after_a_check_that_cannot_be_killed_none_is_begun_and_nothing_is_called_gone() {
        let span = Duration::from_millis(50);
        let rules = asked(span, span, 2);
        let prober = Prober::Command(guardian(|_| Plays::Sticks));
        let mut monitor = HealthMonitor::new(rules, None, Some(prober));
        monitor.started();
        assert!(monitor.look().1, "the first is begun");
        monitor.launch(Ok(check()));
        assert!(monitor.empty_at().is_none() && !monitor.is_stuck());
        // As its guardian does when its time is over.
        if let Some(Prober::Command(handle)) = &mut monitor.prober {
            handle.kill();
        }
        let how = ProbeFailure::TimedOut;
        let failed = HealthEvent::Failed {
            how,
            number: 1,
            of: 2,
        };
        assert_eq!(says(&mut monitor).await, (vec![failed], false));
        let hung = HealthEvent::Hung(Hung::Unhealthy(2, how));
        assert_eq!(says(&mut monitor).await, (vec![hung], false));
        monitor.stops();
        assert!(monitor.is_stuck() && monitor.empty_at().is_none());
    }
}
