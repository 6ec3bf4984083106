//! What becomes of instances whose limits are squeezed at random while they work: processes and
//! threads, descriptors, sizes of files, memory. Run only when it is named (`cargo bench -- squeeze`,
//! for `TRAFFICCOP_SOAK` seconds, 600 unless said), as root, because limits of processes bind
//! everybody else only: each stand has a user of its own.
//!
//! The kernel's limits are set from outside, on supervisors and guardians that run and on those that
//! are started; memory by a cgroup, which the command outgrows, not trafficcop. The commands keep a
//! journal; nothing here asks trafficcop whether it was right.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::instance::{await_for, bare, children};
use crate::numbers::Samples;
use crate::programs;
use crate::support::azurite::{KEY, azurite, connection_string, queue_string, queues};
use crate::support::exclusive;
use crate::support::journal::{Journal, What};
use crate::support::programs::journalist;
use crate::support::queue::Mailbox;
use crate::table::Figure;

/// How many instances compete in each stand.
const INSTANCES: usize = 3;
/// The first of the users that the stands are run by: none that a machine gives to anybody.
const FIRST_USER: u32 = 62_301;
/// What the command ends with if nothing disturbs it.
const ORDERLY: i32 = 7;
/// The most messages that wait in the queue.
const BACKLOG: u32 = 6;

/// What they compete for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stand {
    File,
    SharedFile,
    Blob,
    Queue,
}

const STANDS: [Stand; 4] = [Stand::File, Stand::SharedFile, Stand::Blob, Stand::Queue];

impl Stand {
    fn name(self) -> &'static str {
        match self {
            Stand::File => "file",
            Stand::SharedFile => "shared file",
            Stand::Blob => "blob",
            Stand::Queue => "queue",
        }
    }

    /// Exit statuses that are its own, or the command's: of a shell that could not fork (2), of the
    /// journalist as told, when it panics (101), cannot be run or is killed (126 to 159).
    fn may_end_with(self, status: i32) -> bool {
        match self {
            Stand::Queue => [0, 69, 70].contains(&status),
            _ => [0, 2, ORDERLY, 69, 70, 71, 101].contains(&status) || (126..160).contains(&status),
        }
    }
}

/// The limits that are squeezed, with the most and the least they are squeezed to.
const LIMITS: [(&str, std::ops::Range<u64>); 3] =
    [("nproc", 0..12), ("nofile", 0..28), ("fsize", 0..16_384)];
/// In MiB; the command needs up to 32 beyond what trafficcop does.
const MEMORY: std::ops::Range<u64> = 14..40;

/// One instance, and whoever takes its place when it has ended.
struct Instance {
    stand: Stand,
    user: u32,
    which: usize,
    place: PathBuf,
    mailbox: Option<String>,
    group: Option<PathBuf>,
    squeezed: BTreeMap<&'static str, u64>,
    child: Option<Child>,
    /// How many of it the kernel had killed for want of memory when it was last looked after.
    killed: u64,
}

impl Instance {
    /// Starts it under the limits it has at the moment.
    fn start(&mut self) {
        let Instance { stand, place, .. } = self;
        let path = |name: &str| place.join(name);
        let mut ours = bare(if *stand == Stand::Queue {
            "work"
        } else {
            "run"
        });
        match stand {
            Stand::File => ours.arg("--file").arg(path("lock")),
            Stand::SharedFile => ours
                .args(["--shared", "--lease", "12s", "--file"])
                .arg(path("lock")),
            Stand::Blob => ours
                .env(
                    "AZURE_STORAGE_CONNECTION_STRING",
                    connection_string(azurite().port),
                )
                .args(["--lease", "15s", "--blob", "squeeze/lock"]),
            Stand::Queue => ours
                .env(
                    "AZURE_STORAGE_CONNECTION_STRING",
                    queue_string(queues().port, KEY),
                )
                .args(["--encoding", "text", "--lock-time", "5s", "-j", "3"])
                .args(["--retry-delay", "1s..2s"])
                .args(["--max-attempts", &exclusive::MAX_ATTEMPTS.to_string()])
                .args(["--queue", self.mailbox.as_deref().unwrap_or_default()]),
        };
        let which = self.which;
        ours.args(["--grace", "2s", "--event-log"])
            .arg(path(&format!("events-{which}")))
            .arg("--status-file")
            .arg(path(&format!("status-{which}")))
            .args([
                "--listen",
                &format!("unix:{}", path(&format!("socket-{which}")).display()),
            ]);
        if *stand != Stand::Queue {
            // One that goes on for ever, one that starts again what failed, one that ends.
            let (restart, beats) =
                [("always", "100"), ("on-failure", "300"), ("never", "150")][which];
            ours.args(["--max-hold", "15s"]);
            let fat = (16 * which).to_string();
            let tag = format!("c{which}");
            ours.args([
                "--restart",
                restart,
                "--",
                "sh",
                "-c",
                "\"$@\"; exit $?",
                "sh",
            ])
            .arg(path("journalist"))
            .arg(path("journal"))
            .args([&*tag, "--every", "50", "--children", "1", "--beats", beats])
            .args(["--fat", &*fat, "--status", &ORDERLY.to_string()]);
        } else {
            // The body says how long it takes and how it ends.
            let script = "read tag beats fat; export TRAFFICCOP_TOKEN=$TRAFFICCOP_MESSAGE_ATTEMPT \
                 TRAFFICCOP_HOLDER=w; \
                 \"$0\" \"$1\" $tag --every 50 --beats $beats --fat $fat; exit $?";
            ours.args(["--", "sh", "-c", script])
                .arg(path("journalist"))
                .arg(path("journal"));
        }
        let limits = self
            .squeezed
            .iter()
            .map(|(name, most)| format!("--{name}={most}:"));
        let user = self.user;
        let mut whole = Command::new("sh");
        whole
            .args([
                "-c",
                "[ -z \"$0\" ] || echo $$ >\"$0/cgroup.procs\"; exec \"$@\"",
            ])
            .arg(self.group.as_deref().unwrap_or(Path::new("")))
            .args(["setpriv", "--clear-groups"])
            .args([format!("--reuid={user}"), format!("--regid={user}")])
            .arg("prlimit")
            .args(limits)
            .arg("--")
            .arg(ours.get_program())
            .args(ours.get_args())
            .env("XDG_RUNTIME_DIR", &self.place)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        for (name, value) in ours.get_envs() {
            match value {
                Some(value) => whole.env(name, value),
                None => whole.env_remove(name),
            };
        }
        let mut child = whole.spawn().expect("a shell can be started");
        // Through us, because a limit of file sizes would cut it off.
        let mut said = child.stderr.take().expect("a pipe");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log());
        let mut log = log.expect("a log in the scene");
        std::thread::spawn(move || std::io::copy(&mut said, &mut log));
        self.child = Some(child);
    }

    fn log(&self) -> PathBuf {
        self.place.join(format!("log-{}", self.which))
    }

    fn pid(&self) -> Option<i32> {
        let child = self.child.as_ref()?;
        Some(i32::try_from(child.id()).expect("pids fit"))
    }

    /// Its supervisor and its guardians.
    fn processes(&self) -> Vec<i32> {
        let Some(pid) = self.pid() else {
            return Vec::new();
        };
        children(pid).into_iter().chain([pid]).collect()
    }

    /// Sets one limit of one of its processes; `None`: as it was.
    fn limit(&mut self, name: &'static str, most: Option<u64>, rng: &mut fastrand::Rng) {
        match most {
            Some(most) => self.squeezed.insert(name, most),
            None => self.squeezed.remove(name),
        };
        let soft = most.map_or("unlimited".to_owned(), |most| most.to_string());
        // No more descriptors than anybody may have.
        let soft = if name == "nofile" && most.is_none() {
            "1024".to_owned()
        } else {
            soft
        };
        let all = self.processes();
        let squeezed = match most {
            Some(_) => rng.choice(all).into_iter().collect(),
            None => all,
        };
        for pid in squeezed {
            // It may have ended meanwhile.
            let _ = Command::new("prlimit")
                .args(["--pid", &pid.to_string(), &format!("--{name}={soft}:")])
                .stderr(Stdio::null())
                .status();
        }
    }

    /// Sets the memory of all its processes together.
    fn memory(&self, most: Option<u64>) {
        let Some(group) = &self.group else { return };
        let bytes = most.map_or(-1, |most| i64::try_from(most << 20).unwrap_or(i64::MAX));
        let unified = group.join("memory.max");
        // What is in use may be more than can be taken back: then it stays as it is.
        let _ = match unified.exists() {
            true if bytes < 0 => std::fs::write(unified, "max"),
            true => std::fs::write(unified, bytes.to_string()),
            false => std::fs::write(group.join("memory.limit_in_bytes"), bytes.to_string()),
        };
    }

    fn squeeze(&mut self, rng: &mut fastrand::Rng) {
        match rng.usize(0..=LIMITS.len()) {
            at if at < LIMITS.len() => {
                let (name, values) = LIMITS[at].clone();
                self.limit(name, Some(rng.u64(values)), rng);
            }
            _ => self.memory(Some(rng.u64(MEMORY))),
        }
    }

    fn release(&mut self, rng: &mut fastrand::Rng) {
        for (name, _) in LIMITS {
            self.limit(name, None, rng);
        }
        self.memory(None);
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok().flatten();
        if status.is_some() {
            self.child = None;
        }
        status
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            // It may have ended; it is not reaped yet.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(3).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
    }
}

/// What became of one stand.
#[derive(Default)]
struct Story {
    squeezes: u32,
    ends: BTreeMap<String, u32>,
    strange: Vec<String>,
    killed_by_the_kernel: u64,
    killed_supervisors: u32,
    overlap: Option<String>,
    tenures: usize,
    silent: Option<String>,
}

/// Squeezes for as long as asked.
///
/// # Errors
/// What is missing here, or failed to run.
pub(crate) fn figures(scene: &Path) -> Result<Vec<Figure>, String> {
    let number = |name: &str, otherwise: u64| {
        let text = std::env::var(name);
        text.map_or(Ok(otherwise), |text| text.parse())
            .map_err(|why| format!("{name}: {why}"))
    };
    let length = Duration::from_secs(number("TRAFFICCOP_SOAK", 600)?);
    let seed = number("TRAFFICCOP_SEED", 1)?;
    if !nix::unistd::geteuid().is_root() {
        return Err("it needs root, who can be another user in each stand".to_owned());
    }
    for program in ["prlimit", "setpriv"] {
        programs::version(program).ok_or_else(|| format!("{program} is not installed here"))?;
    }
    // Others are to reach what is in it.
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(|why| format!("{}: {why}", path.display()))
    };
    open(scene, 0o755)?;
    let stories: Vec<Result<Story, String>> = std::thread::scope(|threads| {
        let started: Vec<_> = STANDS
            .into_iter()
            .enumerate()
            .map(|(number, stand)| {
                threads.spawn(move || {
                    let place = scene.join(format!("squeeze-{number}"));
                    std::fs::create_dir(&place).map_err(|why| why.to_string())?;
                    open(&place, 0o777)?;
                    let copy = place.join("journalist");
                    std::fs::copy(journalist(), &copy).map_err(|why| why.to_string())?;
                    open(&copy, 0o755)?;
                    let user = FIRST_USER + u32::try_from(number).unwrap_or_default();
                    let rng = fastrand::Rng::with_seed(seed + number as u64);
                    play(stand, &place, user, length, rng)
                })
            })
            .collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined
            .map(|story| story.unwrap_or_else(|_| Err("it panicked: see above".to_owned())))
            .collect()
    });
    let mut figures = Vec::new();
    for (stand, story) in STANDS.into_iter().zip(stories) {
        let story = story.map_err(|why| format!("{}: {why}", stand.name()))?;
        println!(
            "squeezed, {}: {} squeezes, ends: {:?}",
            stand.name(),
            story.squeezes,
            story.ends
        );
        for line in story
            .strange
            .iter()
            .take(20)
            .chain(&story.overlap)
            .chain(&story.silent)
        {
            println!("squeezed, {}: {line}", stand.name());
        }
        let mut figure = |what: &str, value: f64| {
            let mut samples = Samples::default();
            samples.push(value);
            figures.push(
                Figure::new(format!("squeezed, {}: {what}", stand.name()), "", samples)
                    .at_most(0.0),
            );
        };
        figure("overlaps", f64::from(u8::from(story.overlap.is_some())));
        figure(
            "ends by other than a status of its own",
            story.strange.len() as f64,
        );
        figure(
            "nobody at work when nothing is squeezed",
            f64::from(u8::from(story.silent.is_some())),
        );
        let mut samples = Samples::default();
        samples.push(story.tenures as f64);
        figures.push(Figure::new(
            format!("squeezed, {}: tenures, or runs of messages", stand.name()),
            "",
            samples,
        ));
        let mut samples = Samples::default();
        samples.push(story.killed_by_the_kernel as f64);
        figures.push(Figure::new(
            format!(
                "squeezed, {}: processes killed for want of memory",
                stand.name()
            ),
            "",
            samples,
        ));
        let mut samples = Samples::default();
        samples.push(f64::from(story.killed_supervisors));
        figures.push(Figure::new(
            format!("squeezed, {}: supervisors among them", stand.name()),
            "",
            samples,
        ));
    }
    Ok(figures)
}

fn play(
    stand: Stand,
    place: &Path,
    user: u32,
    length: Duration,
    mut rng: fastrand::Rng,
) -> Result<Story, String> {
    let mut story = Story::default();
    let journal = Journal::at(place.join("journal"));
    let mailbox = (stand == Stand::Queue).then(Mailbox::fresh);
    if let Some(mailbox) = &mailbox {
        mailbox.poison().create();
    }
    let mut instances: Vec<Instance> = (0..INSTANCES)
        .map(|which| Instance {
            stand,
            user,
            which,
            place: place.to_owned(),
            mailbox: mailbox.as_ref().map(|mailbox| mailbox.name.clone()),
            group: memory_group(&format!("squeeze-{user}-{which}")),
            squeezed: BTreeMap::new(),
            child: None,
            killed: 0,
        })
        .collect();
    let mut messages = 0;
    let mut feed = |rng: &mut fastrand::Rng, most: u32| {
        let Some(mailbox) = &mailbox else { return };
        if mailbox.count() < most {
            mailbox.put(&format!(
                "m{messages} {} {}",
                rng.u32(1..160),
                rng.u32(0..32)
            ));
            messages += 1;
        }
    };
    let begin = Instant::now();
    while begin.elapsed() < length {
        feed(&mut rng, BACKLOG);
        look_after(&mut instances, &mut story, false);
        let which = rng.usize(0..INSTANCES);
        if rng.bool() {
            instances[which].squeeze(&mut rng);
            story.squeezes += 1;
        } else {
            instances[which].release(&mut rng);
        }
        std::thread::sleep(Duration::from_millis(rng.u64(50..800)));
    }
    for instance in &mut instances {
        instance.release(&mut rng);
    }
    // Who waits, waits for a lease at most, and what failed too often is put aside.
    let calm = trafficcop::Instant::now().as_nanos();
    let works = await_for("somebody at work", || {
        look_after(&mut instances, &mut story, false);
        std::thread::sleep(Duration::from_millis(100));
        let works = match &mailbox {
            Some(mailbox) => mailbox.count() == 0,
            None => journal
                .lines()
                .iter()
                .any(|line| line.what == What::Start && line.at > calm),
        };
        works.then_some(())
    });
    story.silent = works.err();
    for instance in &instances {
        instance.signal(Signal::SIGTERM);
    }
    await_for("the end of all", || {
        std::thread::sleep(Duration::from_millis(20));
        look_after(&mut instances, &mut story, true);
        instances
            .iter()
            .all(|instance| instance.child.is_none())
            .then_some(())
    })?;
    for instance in &instances {
        story.killed_by_the_kernel += killed(instance);
        if let Some(group) = &instance.group {
            // Its last process may not be gone yet; an empty one harms nobody.
            let _ = std::fs::remove_dir(group);
        }
    }
    let judged = std::panic::catch_unwind(AssertUnwindSafe(|| match stand {
        Stand::Queue => exclusive::judge(&journal.lines(), true)
            .values()
            .map(Vec::len)
            .sum(),
        _ => journal.judge().len(),
    }));
    match judged {
        Ok(tenures) => story.tenures = tenures,
        Err(why) => {
            let why = why
                .downcast_ref::<String>()
                .map(|why| why.lines().next().unwrap_or_default().to_owned());
            story.overlap = Some(why.unwrap_or_default());
        }
    }
    Ok(story)
}

/// Notes who has ended, and starts them anew unless it is `over`.
fn look_after(instances: &mut [Instance], story: &mut Story, over: bool) {
    for instance in instances {
        if let Some(status) = instance.ended() {
            *story.ends.entry(status.to_string()).or_default() += 1;
            let killed = killed(instance);
            let for_memory = killed > instance.killed;
            let own = match (status.code(), status.signal()) {
                (Some(code), _) => instance.stand.may_end_with(code),
                // No process has a say in that; its guardian ends the command.
                (None, Some(9)) if for_memory => {
                    story.killed_supervisors += 1;
                    true
                }
                // It dies of the signal that the command died of, which it says; and of ours.
                (None, Some(signal)) => {
                    over && signal == Signal::SIGTERM as i32
                        || instance.last_words().contains("the command died of")
                }
                (None, None) => false,
            };
            if !own {
                let said = instance.last_words();
                story
                    .strange
                    .push(format!("instance {}: {status}: {said}", instance.which));
            }
        }
        instance.killed = killed(instance);
        if instance.child.is_none() && !over {
            instance.start();
        }
    }
}

/// A cgroup for memory, where one can be made: beside ours in the first version's hierarchy, or below
/// the root of the second's.
fn memory_group(name: &str) -> Option<PathBuf> {
    let unified = Path::new("/sys/fs/cgroup");
    let has_memory = std::fs::read_to_string(unified.join("cgroup.subtree_control"))
        .is_ok_and(|all| all.split_ascii_whitespace().any(|one| one == "memory"));
    let parent = if has_memory {
        unified.to_owned()
    } else {
        unified.join("memory")
    };
    let group = parent.join(name);
    (std::fs::create_dir(&group).is_ok() || group.is_dir()).then_some(group)
}

/// How many processes the kernel killed in its cgroup because their memory was used up.
fn killed(instance: &Instance) -> u64 {
    let Some(group) = &instance.group else {
        return 0;
    };
    let read = |name: &str| {
        let mut text = String::new();
        let mut file = std::fs::File::open(group.join(name)).ok()?;
        file.read_to_string(&mut text).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "))?;
        line.trim().parse().ok()
    };
    read("memory.events")
        .or_else(|| read("memory.oom_control"))
        .unwrap_or_default()
}
