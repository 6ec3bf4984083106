//! Everything that can happen to an instance, with all that its observers write of it: `expected.txt`, which
//! `BLESS=1` rewrites.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::rc::Rc;

use super::*;
use crate::core::Exit::{Code, Signal};
use crate::core::Notice::*;
use crate::core::{
    Cause, Failed, Failure, Grant, HandOverReason, HealthEvent, HolderInfo, Hung, Outcome,
    ProbeFailure, Ring, TaskResult, Unfit,
};
use crate::elect::lines::{ReaderLog, is_of_the_child, standby_behind};
use crate::guardian::View;
use crate::notify::Ready;
use crate::report::{Format as LogFormat, LogObserver};
use crate::work::observer::{MessageObserver, WorkerObserver};

const EXPECTED: &str = "src/run/observers/scenes/expected.txt";
const LOCK: &str = "file:/x";

struct Nowhere;

#[async_trait::async_trait]
impl LeaseStore for Nowhere {
    fn info(&self) -> StoreInfo {
        StoreInfo {
            name: LOCK.into(),
            ..StoreInfo::default()
        }
    }

    async fn acquire(&self, _: Instant) -> Result<Grant, Failure> {
        std::future::pending().await
    }

    async fn renew(&self, _: Instant) -> Result<(), Failure> {
        Ok(())
    }

    async fn release(&self, _: Instant) -> Result<(), Failure> {
        Ok(())
    }
}

struct Scene {
    place: tempfile::TempDir,
    clock: Rc<clock::SimulatedClock>,
    now: Instant,
    shared_status: Arc<SharedStatus>,
    log: LogObserver,
    status: StatusObserver,
    service_manager: ServiceManager,
    event_log: EventLog,
    reader_log: ReaderLog,
    message: MessageObserver,
    cordon: (CordonObserver, watch::Receiver<bool>),
    heard: UnixDatagram,
    seen: Seen,
    text: String,
}

#[derive(Default)]
struct Seen {
    status: Arc<Status>,
    page: String,
    metrics: String,
    events: String,
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn open(title: &str, looks_once: bool, slots: u32, ready: Ready, prepares: bool) -> Scene {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    std::fs::write(path("control"), [0; 16]).unwrap();
    let heard = UnixDatagram::bind(path("manager")).unwrap();
    heard.set_nonblocking(true).unwrap();
    let variable = |name: &str| match name {
        "NOTIFY_SOCKET" => Some(path("manager").into()),
        "RUNTIME_DIRECTORY" => Some(place.path().into()),
        _ => None,
    };
    let here = Surroundings {
        variable: &variable,
        pid: 7,
    };
    let shared_status = Arc::new(SharedStatus::new(
        LOCK,
        false,
        Some(Duration::from_secs(60)),
        View::open(&path("control")).unwrap(),
        Vec::new(),
    ));
    let status = StatusObserver {
        status: Status {
            state: "starting".into(),
            identity: "web1".into(),
            pid: 7,
            guardian_pid: Some(8),
            contain: Some("a cgroup".into()),
            ..Status::default()
        },
        store: Arc::new(Nowhere),
        file: None,
        shared_status: Some(Arc::clone(&shared_status)),
        prepares,
    };
    let who = Instance {
        identity: "web1".into(),
        host: "web".into(),
        pid: 7,
        lock: LOCK.into(),
    };
    let (idle, is_idle) = watch::channel(false);
    let clock = Rc::new(clock::SimulatedClock::default());
    let now = at(1000);
    let (service_manager, event_log) = clock.enter(now, Duration::ZERO, || {
        (
            ServiceManager::open(&here, ready, "competing", 1, false, None).unwrap(),
            EventLog::begin(path("events"), who, EventKind::Competing),
        )
    });
    let mut scene = Scene {
        clock,
        now,
        shared_status,
        log: LogObserver::new(looks_once, slots),
        status,
        service_manager,
        event_log,
        reader_log: ReaderLog(LogObserver::new(false, 1)),
        message: WorkerObserver::of_nobody().message_observer("7f", None, 0),
        cordon: (CordonObserver(idle), is_idle),
        heard,
        seen: Seen::default(),
        text: format!("# {title}\n"),
        place,
    };
    scene.quietly(|scene| scene.observe("begins", &Observation::Begins));
    scene
}

impl Scene {
    fn quietly(&mut self, play: impl FnOnce(&mut Scene)) {
        let length = self.text.len();
        play(self);
        self.text.truncate(length);
    }

    fn write(&mut self, who: &str, lines: &str) {
        for line in lines.lines() {
            self.text += &format!("{who:8} {}\n", plain(line));
        }
    }

    fn after(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
    }

    fn notice(&mut self, notice: Notice) {
        self.after(2);
        let name = match &notice {
            StandingBy(info) => format!("StandingBy({:?}, {:?})", info.holder, info.token),
            other => format!("{other:?}"),
        };
        let (notice, lock) = (&notice, LOCK);
        self.observe(&name, &Observation::Notice { notice, lock });
        let behind = standby_behind(notice).map(|behind| format!("{behind:?}"));
        self.write("reader", &behind.unwrap_or_default());
        if is_of_the_child(notice) {
            self.write("reader", "hidden from the other observers");
        }
    }

    fn notices(&mut self, notices: impl IntoIterator<Item = Notice>) {
        for notice in notices {
            self.notice(notice);
        }
    }

    fn workload(&mut self, event: WorkloadEvent) {
        self.after(2);
        self.observe(&format!("{event:?}"), &Observation::Workload(&event));
    }

    fn starts(&mut self, has_end: bool) {
        let end = |seconds| match has_end {
            true => self.now + Duration::from_secs(seconds),
            false => Instant::FOREVER,
        };
        let starts = Observation::Starts {
            kill_at: end(58),
            expires: end(60),
            slot: 1,
        };
        self.observe("starts", &starts);
    }

    fn observe(&mut self, name: &str, observation: &Observation<'_>) {
        self.text += &format!("\n{name}\n");
        let clock = Rc::clone(&self.clock);
        clock.enter(self.now, Duration::ZERO, || self.observe_now(observation));
    }

    fn observe_now(&mut self, observation: &Observation<'_>) {
        let happened = &Happened::new(self.now, observation);
        self.shared_status.take(happened);
        let [text, json] = LogFormat::logged(|| self.log.take(happened));
        self.write("log", &text);
        self.write("json", &json);
        self.status.take(happened);
        self.service_manager.take(happened);
        let mut message = [0; 4096];
        while let Ok(length) = self.heard.recv(&mut message) {
            let said = String::from_utf8_lossy(&message[..length]).replace('\n', " ");
            self.write("systemd", &said);
        }
        self.event_log.take(happened);
        self.event_log.written();
        let (status, page, metrics) = self.shared_status.pages();
        let events = std::fs::read_to_string(self.place.path().join("events")).unwrap();
        let now_seen = Seen {
            status,
            page,
            metrics,
            events,
        };
        self.changes(now_seen);
        let [_, json] = LogFormat::logged(|| self.reader_log.take(happened));
        self.write("elect", &json);
        let [_, json] = LogFormat::logged(|| self.message.observe(self.now, observation));
        self.write("message", &json);
        self.cordon.0.take(happened);
        if self.cordon.1.has_changed().unwrap() {
            let idle = *self.cordon.1.borrow_and_update();
            self.write("idle", &idle.to_string());
        }
    }

    fn changes(&mut self, now: Seen) {
        let before = std::mem::take(&mut self.seen);
        // The status file is written even if nothing in it has changed.
        if !Arc::ptr_eq(&now.status, &before.status) {
            self.write("status", &now.page);
        } else if now.page != before.page {
            self.write("page", &now.page);
        }
        self.write("event", &now.events[before.events.len()..]);
        // In the order of their names: the page's order differs from run to run.
        let lines = |page: &str| page.lines().map(str::to_owned).collect::<BTreeSet<_>>();
        for line in lines(&now.metrics).difference(&lines(&before.metrics)) {
            self.write("metrics", line);
        }
        self.seen = now;
    }
}

/// Replaces what differs from run to run.
fn plain(line: &str) -> String {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let line = line
        .replace(boot_id.trim(), "BOOT")
        .replace(&format!("\"pid\":{}", std::process::id()), "\"pid\":PID");
    let parts = line.split('"').map(|part| {
        let is_time = part.len() >= 20 && part.starts_with("20") && part.ends_with('Z');
        if is_time { "TIME" } else { part }
    });
    let line = parts.collect::<Vec<_>>().join("\"");
    line.replace(
        r#""boot_id":"BOOT","host":"web","identity":"web1","pid":7,"run":1000000000000,"#,
        "",
    )
    .replace(
        r#""lock":"file:/x","identity":"web1","pid":7,"guardian_pid":8,"#,
        "",
    )
}

fn standby() -> Scene {
    let mut scene = open("Standing by", false, 1, Ready::Standby, false);
    scene.quietly(|scene| scene.notice(StandingBy(HolderInfo::default())));
    scene
}

fn running() -> Scene {
    let mut scene = open("While the command runs", false, 1, Ready::Standby, false);
    scene.quietly(|scene| {
        scene.notice(InControl { token: 7 });
        scene.starts(true);
        scene.workload(WorkloadEvent::Started { pid: 9 });
    });
    scene
}

fn why() -> String {
    "timed out\nafter 5 s".into()
}

fn info() -> HolderInfo {
    HolderInfo {
        holder: Some("web2-9".into()),
        token: Some(6),
        command: Some("./other -x".into()),
        draining: true,
        ..HolderInfo::default()
    }
}

fn notices_of_a_standby() -> Vec<Notice> {
    let until = at(1030);
    let foreign = HolderInfo {
        foreign: Some("another program has the lease".into()),
        ..HolderInfo::default()
    };
    let mut notices = vec![
        StandingBy(HolderInfo::default()),
        StandingBy(info()),
        StandingBy(foreign),
        InControl { token: 7 },
        Doubt {
            why: why(),
            term_at: None,
        },
        Refused {
            why: why(),
            leaves_at: until,
        },
        Recovered,
        Cordoned { why: why() },
        Uncordoned,
        Fit,
        CoolingDown { until },
        Overlapped,
    ];
    let unfit = [
        Unfit::Failed(Failed::Exited(Code(1))),
        Unfit::Failed(Failed::NotStarted(libc::ENOENT)),
        Unfit::TimedOut,
        Unfit::CannotAsk,
        Unfit::ProgramRefused,
    ];
    notices.extend(unfit.map(Unfit));
    notices
}

fn notices_of_a_tenure() -> Vec<Notice> {
    let until = at(1030);
    let mut notices = vec![
        Doubt {
            why: why(),
            term_at: Some(until),
        },
        BackingOff { until, number: 4 },
        Restarting,
        RestartsSpent,
        HookFailed(Failed::Exited(Signal(libc::SIGKILL))),
        HoldOver,
        Keeping { until },
        Unrecorded { why: why() },
        Pausing { until },
        NotDone,
        Overlapped,
        Released,
        FoundLost { why: why() },
        LeftToRunOut { why: why() },
    ];
    let causes = [
        Cause::CommandEnded,
        Cause::Stopped(libc::SIGTERM),
        Cause::Stopped(libc::SIGPIPE),
        Cause::Doubt { why: why() },
        Cause::Lost { why: why() },
        Cause::HandOver,
        Cause::GivenUp(HandOverReason::Hung(Hung::Triggered)),
        Cause::Cordoned { why: why() },
        Cause::GuardianLost,
    ];
    notices.extend(causes.map(Draining));
    let killed = [libc::SIGINT, libc::SIGTERM, libc::SIGKILL].map(Signal);
    notices.extend([0, 3].map(Code).map(CommandEnded));
    notices.extend(killed.map(CommandEnded));
    let recorded = |(status, over)| Recorded {
        outcome: Outcome {
            exit: Code(status),
            over,
        },
        attempt: 2,
    };
    notices.extend([(0, true), (3, false), (3, true)].map(recorded));
    notices
}

fn workload_events() -> Vec<WorkloadEvent> {
    let (how, at) = (Failed::Exited(Code(1)), at(1001));
    let mut events = vec![
        WorkloadEvent::Started { pid: 10 },
        WorkloadEvent::NotStarted {
            errno: libc::ENOENT,
        },
        WorkloadEvent::Stopped,
        WorkloadEvent::Exited(Code(0)),
        WorkloadEvent::Exited(Code(3)),
        WorkloadEvent::Exited(Signal(libc::SIGKILL)),
        WorkloadEvent::LeftBehind,
        WorkloadEvent::TreeEmpty { at },
        WorkloadEvent::Acting,
        WorkloadEvent::ClockJumped,
        WorkloadEvent::Lost,
        WorkloadEvent::TreeStuck,
        WorkloadEvent::HookFailed { at, how },
        WorkloadEvent::Standby(Some(11)),
        WorkloadEvent::Standby(None),
        WorkloadEvent::Condition(Ok(())),
        WorkloadEvent::Condition(Err(Unfit::TimedOut)),
    ];
    let failed = |how, number| HealthEvent::Failed { how, number, of: 3 };
    let not_asked = |number| HealthEvent::NotAsked {
        errno: libc::EAGAIN,
        number,
    };
    let health = [
        HealthEvent::Answered { again: false },
        HealthEvent::Answered { again: true },
        failed(ProbeFailure::Answered(302), 1),
        failed(ProbeFailure::TimedOut, 2),
        not_asked(1),
        not_asked(2),
        HealthEvent::Hung(Hung::Silent(Duration::from_secs(9))),
        HealthEvent::GuardianLost,
    ];
    events.extend(health.map(WorkloadEvent::Health));
    events
}

fn replies_and_rings() -> Scene {
    let mut scene = standby();
    let transient = || Failure::Transient {
        why: why(),
        retry_after: None,
    };
    let lost = Failure::Lost {
        until: None,
        why: why(),
    };
    let done = TaskResult {
        status: 0,
        holder: "web2".into(),
        at: "2026-01-01".into(),
        token: 3,
    };
    let grant = Grant {
        t0: at(1001),
        token: 7,
        failed: 0,
    };
    for (name, reply) in [
        ("acquire: held", Err(Failure::Held(info()))),
        ("acquire: done", Err(Failure::AlreadyDone(done))),
        ("acquire: transient", Err(transient())),
        ("acquire", Ok(grant)),
    ] {
        scene.observe(name, &Observation::Acquired(&reply));
    }
    let t0 = scene.now;
    scene.after(1);
    for (name, reply) in [
        ("renew", Ok(())),
        ("renew: transient", Err(transient())),
        ("renew: lost", Err(lost)),
        ("renew: held", Err(Failure::Held(info()))),
    ] {
        let reply = &reply;
        scene.observe(name, &Observation::Renewed { t0, reply });
    }
    for ring in [
        Ring::Silent,
        Ring::Silent,
        Ring::Greeted { rank: 2 },
        Ring::Draining,
        Ring::Released,
        Ring::Closed,
    ] {
        scene.observe(&format!("{ring:?}"), &Observation::Rang(ring));
    }
    scene.notice(InControl { token: 7 });
    scene
}

fn done(cause: &str, overlap: bool, exit: i32) -> Observation<'_> {
    Observation::Done {
        cause,
        overlap,
        exit,
    }
}

fn stopped_in_a_slot() -> Scene {
    let mut scene = open("Stopped in a slot", false, 3, Ready::Held, true);
    scene.notice(StandingBy(info()));
    scene.notice(InControl { token: 7 });
    scene.starts(true);
    scene.workload(WorkloadEvent::Started { pid: 9 });
    scene.after(20);
    let kill_at = scene.now + Duration::from_secs(58);
    let expires = scene.now + Duration::from_secs(60);
    scene.observe("extended", &Observation::Extended { kill_at, expires });
    let kill_at = scene.now + Duration::from_secs(10);
    scene.observe("drains", &Observation::Drains { kill_at });
    scene.observe("stops", &Observation::Stops);
    scene.notice(Draining(Cause::Stopped(libc::SIGTERM)));
    scene.workload(WorkloadEvent::Exited(Signal(libc::SIGTERM)));
    scene.notice(CommandEnded(Signal(libc::SIGTERM)));
    scene.workload(WorkloadEvent::TreeEmpty { at: scene.now });
    scene.notice(Released);
    scene.observe("done", &done("stopped by SIGTERM", false, 143));
    scene
}

fn success_on_a_disk() -> Scene {
    let mut scene = open("A success on a disk", true, 1, Ready::Command, false);
    scene.notice(StandingBy(info()));
    scene.notice(InControl { token: 8 });
    scene.starts(false);
    let kill_at = Instant::FOREVER;
    let expires = kill_at;
    scene.observe("extended", &Observation::Extended { kill_at, expires });
    scene.workload(WorkloadEvent::Exited(Code(0)));
    scene.notices([CommandEnded(Code(0)), Released]);
    scene.notice(InControl { token: 9 });
    scene.starts(false);
    let kill_at = at(1100);
    scene.observe("drains", &Observation::Drains { kill_at });
    scene.notice(Draining(Cause::HandOver));
    scene.workload(WorkloadEvent::Exited(Signal(libc::SIGKILL)));
    let until = at(1200);
    scene.notices([CommandEnded(Code(0)), Released, CoolingDown { until }]);
    scene.observe("done", &done("the command ended", true, 0));
    scene
}

fn kept_away() -> Scene {
    let mut scene = open("Kept away", false, 1, Ready::Standby, false);
    let until = at(1100);
    let leaves_at = until;
    scene.notices([
        Cordoned { why: why() },
        Uncordoned,
        Unfit(Unfit::ProgramRefused),
        Fit,
        Refused {
            why: why(),
            leaves_at,
        },
        Recovered,
        StandingBy(info()),
        HookFailed(Failed::NotStarted(libc::EACCES)),
        LeftToRunOut { why: why() },
        CoolingDown { until },
    ]);
    scene
}

#[test]
fn observers_write_what_the_scenes_expect() {
    let mut scenes = Vec::new();
    let mut play = |mut scene: Scene, event: &dyn Fn(&mut Scene)| {
        event(&mut scene);
        scenes.push(scene.text);
    };
    for notice in notices_of_a_standby() {
        play(standby(), &|scene| scene.notice(notice.clone()));
    }
    for notice in notices_of_a_tenure() {
        play(running(), &|scene| scene.notice(notice.clone()));
    }
    for event in workload_events() {
        play(running(), &|scene| scene.workload(event));
    }
    for scene in [
        replies_and_rings(),
        stopped_in_a_slot(),
        success_on_a_disk(),
        kept_away(),
    ] {
        play(scene, &|_| {});
    }
    let text = scenes.join("\n");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(EXPECTED, &text).unwrap();
    }
    let expected = std::fs::read_to_string(EXPECTED).unwrap();
    let mut lines = text.lines().zip(expected.lines()).zip(1..);
    let differs = lines.find(|((now, before), _)| now != before);
    assert_eq!(
        differs, None,
        "the first line that differs; BLESS=1 writes them anew, to be read"
    );
    assert_eq!(text.len(), expected.len());
}
