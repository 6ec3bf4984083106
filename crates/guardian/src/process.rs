//! Start of the supervisor's process, and its end after a panic.
//!
//! [`begin`] replaces Rust's own start, which takes a tenth of a millisecond to find a needless guard page, and
//! overrides the inherited setting of SIGPIPE, which the command must get. An impossible write (a pipe without
//! a reader, the limit of a file's size) must fail with an error, so its signals are ignored.
//!
//! After a panic the guardian drains the command and gives the lease back, as whenever the supervisor is gone.
//! So the process replaces itself with a fresh image of the same program, without locks, threads or the
//! guardians' sockets. It keeps the process id until the guardians have ended, because a service manager or a
//! container kills the rest when the main process ends.
//!
//! [`begin`] comes before logging is set up. A panicking thread must never wait for what another thread may
//! hold.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::PanicHookInfo;
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, execv};

use super::raw::{self, Disposition};
use trafficcop_core::util::is_unprintable;

/// See `exit`, above this crate.
const UNAVAILABLE: c_int = 69;

static IGNORED: [(libc::c_int, AtomicBool); 2] = [
    (libc::SIGPIPE, AtomicBool::new(false)),
    (libc::SIGXFSZ, AtomicBool::new(false)),
];

const NOTHING_TO_PUT: &[u8] =
    b"trafficcop: error: stdin or stdout is closed, and there is no /dev/null \
    to put in its place: start it with both, or mount /dev; exit status 69\n";
static NO_STDOUT: AtomicBool = AtomicBool::new(false);

static BEGUN: AtomicBool = AtomicBool::new(false);

/// First word of the new image; the guardians' process ids follow.
const NAME: &CStr = c"trafficcop: failed";
/// See `exit`, above this crate.
const LOST: libc::c_int = 70;
const TEXT_MAX: usize = 300;

static GUARDIANS: Mutex<Vec<i32>> = Mutex::new(Vec::new());
/// A panicking guardian just ends, and its tree with it.
static SUPERVISOR: AtomicU32 = AtomicU32::new(0);
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Prepares the process: opens descriptors 0 to 2, and makes an impossible write an error. Returns its
/// arguments.
///
/// # Safety
/// `words` are the `count` strings that the C library gives `main`, and there is one thread.
#[must_use]
pub unsafe fn begin(count: c_int, words: *const *const c_char) -> Vec<OsString> {
    open_the_first_three();
    BEGUN.store(true, Ordering::Relaxed);
    for (number, was_ignored) in &IGNORED {
        let before = raw::disposition(*number);
        was_ignored.store(before == Disposition::Ignored, Ordering::Relaxed);
        raw::ignore(*number);
    }
    let words = (0..usize::try_from(count).unwrap_or(0)).map(|number| {
        // SAFETY: the caller vouches for `count` lasting strings that end with NUL.
        unsafe { CStr::from_ptr(*words.add(number)) }
    });
    wait_if_we_failed(words.clone());
    words
        .map(|word| OsStr::from_bytes(word.to_bytes()).to_owned())
        .collect()
}

/// Whether this process ignores the signal, but did not at its start. In a program that embeds this crate,
/// Rust's start hides SIGPIPE's earlier setting: assume the same.
pub(super) fn is_ignored_by_us(signal: libc::c_int) -> bool {
    let ours = IGNORED.iter().find(|(number, _)| *number == signal);
    ours.is_some_and(|(number, was_ignored)| {
        (BEGUN.load(Ordering::Relaxed) || *number == libc::SIGPIPE)
            && !was_ignored.load(Ordering::Relaxed)
    })
}

/// Opens /dev/null for a missing stdin, stdout or stderr. Otherwise the log might go into the lock's record.
fn open_the_first_three() {
    for number in 0..3 {
        if raw::closes_on_exec(number).is_some() {
            continue;
        }
        if number == libc::STDOUT_FILENO {
            NO_STDOUT.store(true, Ordering::Relaxed);
        }
        let nothing = open(c"/dev/null", OFlag::O_RDWR, Mode::empty());
        if nothing.map(IntoRawFd::into_raw_fd).is_err() {
            if raw::closes_on_exec(libc::STDERR_FILENO).is_some() {
                // SAFETY: it is open, and nothing closes it before this process ends.
                let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
                let _ = nix::unistd::write(stderr, NOTHING_TO_PUT);
            }
            raw::exit(UNAVAILABLE);
        }
    }
}

/// Whether this process was started without a stdout.
#[must_use]
pub fn stdout_was_closed() -> bool {
    NO_STDOUT.load(Ordering::Relaxed)
}

/// Sets the panic hook that ends this process as above. `tell` prints a line without taking a lock.
pub fn leave_by_the_guardians(tell: fn(&str)) {
    SUPERVISOR.store(process::id(), Ordering::Relaxed);
    std::panic::set_hook(Box::new(move |info| panicked(info, tell)));
}

pub(super) fn wait_for(guardian: i32) {
    if let Ok(mut guardians) = GUARDIANS.lock() {
        guardians.push(guardian);
    }
}

pub(super) fn guardians() -> Vec<i32> {
    GUARDIANS
        .lock()
        .map(|pids| pids.clone())
        .unwrap_or_default()
}

pub(super) fn wait_no_more(guardian: i32) {
    if let Ok(mut guardians) = GUARDIANS.lock() {
        guardians.retain(|known| *known != guardian);
    }
}

fn panicked(info: &PanicHookInfo<'_>, tell: fn(&str)) {
    if process::id() != SUPERVISOR.load(Ordering::Relaxed) {
        tell(&format!("the guardian failed: {}", text(info)));
        raw::exit(1);
    }
    if PANICKED.swap(true, Ordering::SeqCst) {
        loop {
            std::thread::park();
        }
    }
    tell(&format!(
        "trafficcop itself failed: {}: the guardian stops the command and gives the lock back; please report this",
        text(info)
    ));
    // No signal may interrupt this; the new image inherits the mask.
    let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None);
    let guardians = GUARDIANS.try_lock();
    let guardians = guardians.map(|pids| pids.clone()).unwrap_or_default();
    if !guardians.is_empty() {
        let pids = guardians.iter().map(|pid| CString::new(pid.to_string()));
        let words: Vec<CString> = std::iter::once(NAME.to_owned())
            .chain(pids.flatten())
            .collect();
        // On failure the guardians finish without this process.
        let _ = execv(c"/proc/self/exe", &words);
    }
    raw::exit(LOST);
}

fn wait_if_we_failed<'a>(mut words: impl Iterator<Item = &'a CStr>) {
    if words.next() != Some(NAME) {
        return;
    }
    for word in words {
        let pid = word.to_str().ok().and_then(|word| word.parse().ok());
        let Some(pid) = pid.filter(|pid| *pid > 0).map(Pid::from_raw) else {
            continue;
        };
        while waitpid(pid, None) == Err(Errno::EINTR) {}
    }
    raw::exit(LOST);
}

fn text(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let said = payload.downcast_ref::<&str>().copied();
    let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let mut text: String = said
        .unwrap_or("a panic")
        .chars()
        .map(|each| if is_unprintable(each) { ' ' } else { each })
        .take(TEXT_MAX)
        .collect();
    if let Some(location) = info.location() {
        // Without the build machine's directory.
        let file = location.file().rsplit('/').next().unwrap_or_default();
        text = format!("{text} ({file}:{})", location.line());
    }
    text
}
