//! Health checks of the command: its messages on the notification socket, and probes. A probe command has a
//! separate guardian.
//!
//! A probe has the lease's deadline, and is killed when the command is to end. No tree counts as empty while
//! a probe's process lives.

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

// A command counts as running after this time without a report of its start: a guardian may be slow.
const START: Duration = Duration::from_secs(10);
// Bytes of an answer: whether a longer one ends does not matter.
const BODY: usize = 16 << 10;

pub(super) enum Prober {
    Command(GuardianHandle),
    Url(reqwest::Client, Url),
}

enum Probe {
    None,
    Command {
        timeout_at: Instant,
        exit: Option<Exit>,
        timed_out: bool,
    },
    Url(Pin<Box<dyn Future<Output = Result<(), ProbeFailure>> + Send>>),
}

pub(super) struct HealthMonitor {
    health: Health,
    words: Option<ServiceManager>,
    prober: Option<Prober>,
    probe: Probe,
    ended: Option<Result<(), ProbeFailure>>,
    kill_at: Instant,
    empty_at: Instant,
    stuck: bool,
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

    /// Records a start, which counts as hung if the file system does not answer.
    pub(super) fn launched(&mut self) {
        self.health.started(Instant::now() + START);
    }

    pub(super) fn is_expected(&self) -> bool {
        self.health.is_running()
    }

    pub(super) fn started(&mut self) {
        self.health.started(Instant::now());
    }

    pub(super) fn stops(&mut self) {
        self.health.ended();
        match (&self.probe, &mut self.prober) {
            (Probe::Command { .. }, Some(Prober::Command(handle))) if !self.lost => handle.kill(),
            (Probe::Url(_), _) => self.probe = Probe::None,
            _ => {}
        }
    }

    pub(super) fn extend(&mut self, deadlines: Deadlines) {
        self.kill_at = deadlines.kill_at;
        if let (Probe::Command { timeout_at, .. }, Some(Prober::Command(handle))) =
            (&self.probe, &mut self.prober)
        {
            handle.extend(at_once(self.kill_at.min(*timeout_at)));
            handle.hurry_at(self.kill_at);
        }
    }

    /// Returns when the last probe was gone; `None` while one may live.
    pub(super) fn empty_at(&self) -> Option<Instant> {
        matches!(self.probe, Probe::None).then_some(self.empty_at)
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Waits until [`HealthMonitor::look`] may have news. Cancel-safe.
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

    pub(super) fn look(&mut self) -> (Vec<HealthEvent>, bool) {
        let mut events = Vec::new();
        let now = Instant::now();
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
            // No probe can start next to one that cannot be killed: it gets no answer.
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

    pub(super) fn launch(&mut self, request: Result<SpawnRequest, i32>) {
        let (Probe::Command { timeout_at, .. }, Some(Prober::Command(handle))) =
            (&self.probe, &mut self.prober)
        else {
            return;
        };
        match request {
            Ok(request) => {
                handle.start(SpawnRequest {
                    // A probe has nothing to clean up.
                    deadlines: at_once(self.kill_at.min(*timeout_at)),
                    // Only the command's guardian releases the lease.
                    release_info: Vec::new(),
                    ..request
                });
                handle.hurry_at(self.kill_at);
            }
            Err(errno) => handle.refuse(errno),
        }
    }

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
                    "a process of the --health command cannot be killed: the lock will not be given back: \
                     restart this machine"
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

fn not_started(errno: i32) -> ProbeFailure {
    match is_for_want_of_room(errno) {
        true => ProbeFailure::NoRoom(errno),
        false => ProbeFailure::NotStarted(errno),
    }
}

fn at_once(at: Instant) -> Deadlines {
    Deadlines {
        term_at: at,
        kill_at: at,
    }
}

async fn ask(client: reqwest::Client, url: Url, give_up_at: Instant) -> Result<(), ProbeFailure> {
    let failed = |error: reqwest::Error| {
        let error = error.without_url();
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
    fn lack_of_room_is_no_result_but_a_missing_program_is() {
        for errno in [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE] {
            assert_eq!(not_started(errno), ProbeFailure::NoRoom(errno));
        }
        for errno in [libc::ENOENT, libc::EACCES] {
            assert_eq!(not_started(errno), ProbeFailure::NotStarted(errno));
        }
    }

    /// Busy machines delay guardians beyond a probe's limit.
    #[tokio::test]
    async fn late_guardian_of_a_probe_is_not_taken_for_dead() {
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
    async fn no_second_probe_begins_while_one_from_before_the_start_runs() {
        let minute = Duration::from_secs(60);
        let rules = asked(minute, minute, 1);
        let prober = Prober::Command(guardian(|_| Plays::Lasts));
        let mut monitor = HealthMonitor::new(rules, None, Some(prober));
        // As if the start had hung.
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
    async fn stuck_probe_blocks_further_probes_and_an_empty_tree() {
        let span = Duration::from_millis(50);
        let rules = asked(span, span, 2);
        let prober = Prober::Command(guardian(|_| Plays::Sticks));
        let mut monitor = HealthMonitor::new(rules, None, Some(prober));
        monitor.started();
        assert!(monitor.look().1, "the first is begun");
        monitor.launch(Ok(check()));
        assert!(monitor.empty_at().is_none() && !monitor.is_stuck());
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
