//! The kernel's process table, limited to the processes of a scene. They inherit a variable in
//! their environment, by which they are found whatever their parent, name or PID namespace is.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Variable with the scene's directory.
pub(crate) const MARK: &str = "TEST_SCENE";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    /// First argument: the name under which it was started.
    pub(crate) program: OsString,
    /// Empty if the kernel does not tell.
    pub(crate) executable: PathBuf,
    pub(crate) state: char,
}

impl Process {
    /// Reads one process; `None` if it does not exist or is a zombie.
    #[must_use]
    pub(crate) fn read(pid: i32) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
        let state = fields.next()?.chars().next()?;
        if matches!(state, 'Z' | 'X') {
            return None;
        }
        let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let program = cmdline.split(|byte| *byte == 0).next()?.to_vec();
        Some(Process {
            pid,
            parent: fields.next()?.parse().ok()?,
            program: OsString::from_vec(program),
            executable: std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default(),
            state,
        })
    }

    /// Whether it is supervisor or guardian, whatever its name.
    #[must_use]
    pub(crate) fn is_ours(&self) -> bool {
        self.executable == Path::new(super::programs::trafficcop())
    }
}

/// Result of a walk through the process table: pids and their marks.
type Walk = Arc<Vec<(i32, Vec<u8>)>>;

fn walk() -> Vec<(i32, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let beginning = format!("{MARK}=").into_bytes();
    pids.filter_map(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut variables = environ.split(|byte| *byte == 0);
        let mark = variables.find_map(|variable| variable.strip_prefix(&beginning[..]))?;
        Some((pid, mark.to_vec()))
    })
    .collect()
}

/// Returns a walk that began after this call. Concurrent calls share one, because dozens of tests
/// look at the same time.
fn walk_together() -> Walk {
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    static LAST: Mutex<(u64, Option<Walk>)> = Mutex::new((0, None));
    let asked = BEGUN.load(Ordering::SeqCst);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let (number, Some(walk)) = &*last
        && *number > asked
    {
        return Arc::clone(walk);
    }
    let number = BEGUN.fetch_add(1, Ordering::SeqCst) + 1;
    let fresh = Arc::new(walk());
    *last = (number, Some(Arc::clone(&fresh)));
    fresh
}

/// Lists all living processes with the mark of the scene in this directory.
#[must_use]
pub(crate) fn marked(scene: &Path) -> Vec<Process> {
    let mark = scene.as_os_str().as_encoded_bytes();
    let walk = walk_together();
    let ours = walk.iter().filter(|(_, its)| its == mark);
    ours.filter_map(|(pid, _)| Process::read(*pid)).collect()
}

/// Kills the scene's processes until there are none. For the end of a scene only.
pub(crate) fn sweep(scene: &Path) {
    for _ in 0..200 {
        let left = marked(scene);
        if left.is_empty() {
            return;
        }
        for process in left {
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the processor time of this living process, its own and the kernel's for it.
pub(crate) fn processor_time(pid: i32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields: Vec<&str> = stat[stat.rfind(')').expect("a name")..]
        .split_whitespace()
        .collect();
    let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
    // A tick is a hundredth of a second on every kernel (proc(5), USER_HZ).
    Duration::from_millis(10 * (ticks(12) + ticks(13)))
}

pub(crate) fn await_stopped(pid: i32) {
    super::await_for(
        "a process to be stopped",
        || Process::read(pid).filter(|process| process.state == 'T'),
        || format!("{:?}", Process::read(pid)),
    );
}

/// Returns the soft and hard limit of open files before a test raised it: what instances start
/// with, whichever tests ran before them.
pub(crate) fn files_at_first() -> (u64, u64) {
    static FIRST: OnceLock<(u64, u64)> = OnceLock::new();
    *FIRST.get_or_init(|| getrlimit(Resource::RLIMIT_NOFILE).expect("a limit"))
}

/// Raises the test process's limit of open files to this number, or as far as possible, and returns
/// it. It never lowers it, because other tests share it.
pub(crate) fn allow_ourselves_files(wanted: u64) -> u64 {
    let (soft, hard) = files_at_first();
    let files = wanted.clamp(soft, hard);
    setrlimit(Resource::RLIMIT_NOFILE, files, hard).expect("within the limit");
    files
}

pub(crate) fn allow_descriptors(pid: i32, more: u64) {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of ours");
    let numbers = open
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let limit = libc::rlimit {
        rlim_cur: numbers.max().map_or(0, |most: u64| most + 1) + more,
        rlim_max: 4096,
    };
    // SAFETY: reads a limit that lives long enough, and writes nothing.
    let done = unsafe {
        libc::prlimit(
            pid,
            libc::RLIMIT_NOFILE,
            &raw const limit,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
