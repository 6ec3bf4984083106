//! Start of the supervisor's process, and its end after a panic.
//!
//! [`begin`] replaces Rust's own start, which reads /proc for a tenth of a millisecond to find a guard page
//! that this program does not need, and overrides the inherited setting of SIGPIPE, which the command must get.
//! Signals that kill for an impossible write (into a pipe without a reader, or beyond the limit of a file's
//! size) are ignored: the write then fails with an error message.
//!
//! After a panic, the command is drained and the lease given back as at any other end. The guardian does that
//! whenever the supervisor is gone, and a panic makes it go as soon as possible. The process replaces itself
//! with a fresh image of the same program, which has no lock that stays locked and no other thread. The exec
//! also closes what belonged to the supervisor alone, above all the guardians' sockets. The new image keeps the
//! process id until the guardians have ended, because a service manager or a container kills what is left when
//! the main process ends.
//!
//! `main` calls [`begin`], first of all and once. [`begin`] must not log: logging is not set up yet. A
//! panicking thread must never wait for anything that another thread may hold.

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

/// Exit status when the machine refuses something (see `exit`, above this crate).
const UNAVAILABLE: c_int = 69;

/// Signals that this process ignores, and whether they were ignored before.
static IGNORED: [(libc::c_int, AtomicBool); 2] = [
    (libc::SIGPIPE, AtomicBool::new(false)),
    (libc::SIGXFSZ, AtomicBool::new(false)),
];

const NOTHING_TO_PUT: &[u8] = b"trafficcop: error: stdin or stdout is closed, and there is no /dev/null to put in its place: start it with both, or mount /dev; exit status 69\n";
static NO_STDOUT: AtomicBool = AtomicBool::new(false);

/// Whether [`begin`] made this process ignore them.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// First word of the new image, followed by the guardians' process ids.
const NAME: &CStr = c"trafficcop: failed";
/// Exit status for lost control (see `exit`, above this crate).
const LOST: libc::c_int = 70;
/// Longest text of a panic that is reported.
const TEXT_MAX: usize = 300;

static GUARDIANS: Mutex<Vec<i32>> = Mutex::new(Vec::new());
/// Process id of the supervisor, which leaves in this way after a panic. A guardian just ends, and its tree with it.
static SUPERVISOR: AtomicU32 = AtomicU32::new(0);
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Prepares the process: descriptors 0 to 2 are open, and an impossible write is an error instead of a fatal
/// signal. Returns the words of the command line.
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
        // SAFETY: the caller vouches for `count` strings that end with NUL and stay.
        unsafe { CStr::from_ptr(*words.add(number)) }
    });
    wait_if_we_failed(words.clone());
    words
        .map(|word| OsStr::from_bytes(word.to_bytes()).to_owned())
        .collect()
}

/// Whether this signal is ignored now but was not at the start. Also true for SIGPIPE if Rust's own start ran
/// first (in a program that embeds this crate): it leaves no trace of the earlier setting.
pub(super) fn is_ignored_by_us(signal: libc::c_int) -> bool {
    let ours = IGNORED.iter().find(|(number, _)| *number == signal);
    ours.is_some_and(|(number, was_ignored)| {
        (BEGUN.load(Ordering::Relaxed) || *number == libc::SIGPIPE)
            && !was_ignored.load(Ordering::Relaxed)
    })
}

/// Opens /dev/null in place of a missing stdin, stdout or stderr. Otherwise the next file would become one of
/// them, and the log would be written into the lock's record. Without a /dev/null the process ends.
fn open_the_first_three() {
    for number in 0..3 {
        if raw::closes_on_exec(number).is_some() {
            continue;
        }
        if number == libc::STDOUT_FILENO {
            NO_STDOUT.store(true, Ordering::Relaxed);
        }
        // The lowest free number is the one that is closed.
        let nothing = open(c"/dev/null", OFlag::O_RDWR, Mode::empty());
        if nothing.map(IntoRawFd::into_raw_fd).is_err() {
            if raw::closes_on_exec(libc::STDERR_FILENO).is_some() {
                // SAFETY: it was seen to be open, and nothing closes it before this process ends.
                let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
                let _ = nix::unistd::write(stderr, NOTHING_TO_PUT);
            }
            raw::exit(UNAVAILABLE);
        }
    }
}

/// Whether this process was started without a stdout: what it writes there is lost.
#[must_use]
pub fn stdout_was_closed() -> bool {
    NO_STDOUT.load(Ordering::Relaxed)
}

/// Sets the panic hook, which ends this process as described above. `tell` prints one line for people, without
/// taking a lock.
pub fn leave_by_the_guardians(tell: fn(&str)) {
    SUPERVISOR.store(process::id(), Ordering::Relaxed);
    std::panic::set_hook(Box::new(move |info| panicked(info, tell)));
}

/// Makes the process wait for a guardian after a panic.
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
        // The first thread that panicked ends the process.
        loop {
            std::thread::park();
        }
    }
    tell(&format!(
        "trafficcop itself failed: {}: the guardian stops the command and gives the lock back; please report this",
        text(info)
    ));
    // No signal may end this process before that is done. The new image inherits the blocked signals.
    let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None);
    let guardians = GUARDIANS.try_lock();
    let guardians = guardians.map(|pids| pids.clone()).unwrap_or_default();
    if !guardians.is_empty() {
        let pids = guardians.iter().map(|pid| CString::new(pid.to_string()));
        let words: Vec<CString> = std::iter::once(NAME.to_owned())
            .chain(pids.flatten())
            .collect();
        // If this fails, the guardians finish without this process.
        let _ = execv(c"/proc/self/exe", &words);
    }
    raw::exit(LOST);
}

/// Waits for the guardians and exits, if this is the new image after a panic.
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

/// Returns the message and place of a panic, in one line.
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
        // Leave out the directory of the build machine.
        let file = location.file().rsplit('/').next().unwrap_or_default();
        text = format!("{text} ({file}:{})", location.line());
    }
    text
}
