//! The command under test: a small program that writes its life into a journal.
//!
//! Not a module: the harness compiles it (`programs.rs`) and passes it to `trafficcop run`. Each of
//! its processes appends `start`, `beat` and `end` lines with tag, fencing token, holder, pid and
//! CLOCK_BOOTTIME, by single writes on O_APPEND; the judge (`journal.rs`) reads them. It must never
//! buffer a line, and never write one for another process.
//!
//! Usage: `journalist JOURNAL TAG [--every MS] [--beats N] [--status S] [--until FILE] [--term
//! default|ignore|MS:STATUS] [--daemon] [--children N] [--storm N] [--storm-every MS] [--fat MIB]
//! [--watchdog] [--deadlock FILE]`

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CLOCK_BOOTTIME: c_int = 7;
const SIGKILL: c_int = 9;
const SIGTERM: c_int = 15;
const SIGCHLD: c_int = 17;
const SIG_IGN: usize = 1;

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

unsafe extern "C" {
    fn clock_gettime(clock: c_int, to: *mut Timespec) -> c_int;
    fn fork() -> c_int;
    fn setsid() -> c_int;
    fn close(fd: c_int) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn kill(pid: c_int, number: c_int) -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
}

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_term(_: c_int) {
    ASKED.store(true, Ordering::SeqCst);
}

#[derive(Clone, Copy)]
enum Term {
    Default,
    Ignore,
    /// Ends with this status, this long after the signal.
    After(Duration, i32),
}

struct Options {
    journal: PathBuf,
    tag: String,
    every: Duration,
    beats: Option<u64>,
    status: i32,
    until: Option<PathBuf>,
    term: Term,
    daemon: bool,
    children: u32,
    storm: usize,
    storm_every: Duration,
    fat: usize,
    /// Whether its main process sends `WATCHDOG=1` with each beat.
    watchdog: bool,
    /// File after whose creation it deadlocks.
    deadlock: Option<PathBuf>,
}

fn options() -> Options {
    let mut words = std::env::args().skip(1);
    let mut options = Options {
        journal: words.next().expect("a journal").into(),
        tag: words.next().expect("a tag"),
        every: Duration::from_millis(5),
        beats: None,
        status: 0,
        until: None,
        term: Term::Default,
        daemon: false,
        children: 0,
        storm: 0,
        storm_every: Duration::from_millis(5),
        fat: 0,
        watchdog: false,
        deadlock: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().expect("a value");
        match word.as_str() {
            "--every" => options.every = Duration::from_millis(value().parse().expect("ms")),
            "--beats" => options.beats = Some(value().parse().expect("a count")),
            "--status" => options.status = value().parse().expect("a status"),
            "--until" => options.until = Some(value().into()),
            "--daemon" => options.daemon = true,
            "--children" => options.children = value().parse().expect("a count"),
            "--storm" => options.storm = value().parse().expect("a count"),
            "--storm-every" => {
                options.storm_every = Duration::from_millis(value().parse().expect("ms"));
            }
            "--watchdog" => options.watchdog = true,
            "--deadlock" => options.deadlock = Some(value().into()),
            "--fat" => options.fat = value().parse().expect("MiB"),
            "--term" => {
                options.term = match value().as_str() {
                    "default" => Term::Default,
                    "ignore" => Term::Ignore,
                    other => {
                        let (delay, status) = other.split_once(':').expect("MS:STATUS");
                        let delay = Duration::from_millis(delay.parse().expect("ms"));
                        Term::After(delay, status.parse().expect("a status"))
                    }
                }
            }
            other => panic!("journalist does not know {other}"),
        }
    }
    options
}

fn boottime() -> u64 {
    let mut now = Timespec {
        seconds: 0,
        nanos: 0,
    };
    // SAFETY: `now` is a timespec as the kernel lays it out on 64-bit Linux.
    let failed = unsafe { clock_gettime(CLOCK_BOOTTIME, &raw mut now) };
    assert_eq!(failed, 0);
    now.seconds as u64 * 1_000_000_000 + now.nanos as u64
}

struct Pen {
    file: File,
    words: String,
}

impl Pen {
    fn open(options: &Options, role: &str) -> Pen {
        let token = std::env::var("TRAFFICCOP_TOKEN").unwrap_or_else(|_| "none".into());
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&options.journal);
        // An identity may have blanks; a field may not.
        let holder = std::env::var("TRAFFICCOP_HOLDER").unwrap_or_else(|_| "none".into());
        let holder = holder.replace(char::is_whitespace, "_");
        let pid = std::process::id();
        let words = format!("{}{role} {token} {holder} {pid}", options.tag);
        Pen {
            file: file.expect("the journal can be opened"),
            words,
        }
    }

    fn write(&mut self, what: &str) {
        let line = format!("{what} {} {}\n", self.words, boottime());
        self.file
            .write_all(line.as_bytes())
            .expect("the journal can be written");
    }
}

fn exists(path: Option<&Path>) -> bool {
    path.is_some_and(Path::exists)
}

/// Beats until there is a reason to end; returns the status.
fn live(options: &Options, role: &str) -> i32 {
    let mut pen = Pen::open(options, role);
    pen.write("start");
    let mut beats = 0_u64;
    let mut asked_at = None;
    let watched = options.watchdog && role.is_empty();
    let watchdog = watched.then(|| {
        let socket = std::env::var_os("NOTIFY_SOCKET").expect("a socket");
        (UnixDatagram::unbound().expect("a socket"), socket)
    });
    let lock = Mutex::new(());
    loop {
        pen.write("beat");
        if let Some((from, to)) = &watchdog {
            // A stopped supervisor does not read; the command continues.
            from.set_nonblocking(true).expect("ours");
            let _ = from.send_to(b"WATCHDOG=1", to);
        }
        if exists(options.deadlock.as_deref()) {
            let _held = lock.lock();
            let _again = lock.lock();
        }
        beats += 1;
        if options.beats.is_some_and(|limit| beats >= limit) || exists(options.until.as_deref()) {
            pen.write("end");
            return options.status;
        }
        if ASKED.load(Ordering::SeqCst) {
            if asked_at.is_none() {
                pen.write("term");
            }
            let since = *asked_at.get_or_insert_with(boottime);
            if let Term::After(delay, status) = options.term
                && u128::from(boottime() - since) >= delay.as_nanos()
            {
                pen.write("end");
                return status;
            }
        }
        std::thread::sleep(options.every);
    }
}

/// Forks a daemon, which leaves session, parent and every descriptor, ignores TERM and beats for
/// ever.
fn daemonise(options: &Options) {
    // SAFETY: this process has one thread.
    let child = unsafe { fork() };
    if child != 0 {
        // SAFETY: a null status is allowed.
        unsafe { waitpid(child, std::ptr::null_mut(), 0) };
        return;
    }
    // SAFETY: no memory is touched; std's handles are not used after their descriptors are closed
    // (the journal is reopened).
    unsafe {
        setsid();
        if fork() != 0 {
            std::process::exit(0);
        }
        signal(SIGTERM, SIG_IGN);
        for fd in 0..256 {
            close(fd);
        }
    }
    let forever = Options {
        journal: options.journal.clone(),
        tag: options.tag.clone(),
        beats: None,
        until: None,
        deadlock: None,
        ..*options
    };
    live(&forever, "/daemon");
}

fn child(options: &Options) {
    // SAFETY: as above.
    if unsafe { fork() } == 0 {
        std::process::exit(live(options, "/child"));
    }
}

/// Forks without end: each process beats once, forks the next and continues to beat. At most
/// `options.storm` of them live; the eldest is killed.
fn storm(options: &Options) {
    // SAFETY: as above; without SIGCHLD the kernel reaps.
    if unsafe { fork() } != 0 {
        return;
    }
    // SAFETY: nothing but a disposition is changed.
    unsafe { signal(SIGCHLD, SIG_IGN) };
    let mut living = std::collections::VecDeque::new();
    loop {
        // SAFETY: as above.
        let pid = unsafe { fork() };
        if pid == 0 {
            // SAFETY: no argument.
            unsafe { setsid() };
            std::process::exit(live(options, "/storm"));
        }
        if pid > 0 {
            living.push_back(pid);
        }
        if living.len() > options.storm
            && let Some(eldest) = living.pop_front()
        {
            // SAFETY: SIGCHLD is ignored, so a pid could in theory be another process's; only this
            // process's own endless children are in the list.
            unsafe { kill(eldest, SIGKILL) };
        }
        std::thread::sleep(options.storm_every);
    }
}

fn main() {
    let options = options();
    // SAFETY: the handler only stores to an atomic.
    unsafe {
        match options.term {
            Term::Default => {}
            Term::Ignore => _ = signal(SIGTERM, SIG_IGN),
            Term::After(..) => {
                _ = signal(SIGTERM, note_term as extern "C" fn(c_int) as usize);
            }
        }
    }
    if options.daemon {
        daemonise(&options);
    }
    for _ in 0..options.children {
        child(&options);
    }
    if options.storm > 0 {
        storm(&options);
    }
    // Write to it, so that the memory is really used.
    let fat = vec![1_u8; options.fat << 20];
    let status = live(&options, "");
    drop(std::hint::black_box(fat));
    std::process::exit(status);
}
