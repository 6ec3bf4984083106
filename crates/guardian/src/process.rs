//! How the supervisor's process begins, and what becomes of it when it panics.
//!
//! It begins in place of Rust's own start. That one looks for the guard page of a
//! stack that nobody of ours overflows, which is a tenth of a millisecond of reading /proc, and it
//! ignores SIGPIPE over whatever there was: the command is to find it as we did.
//! What would kill us for a write that cannot be done (into a pipe without a reader, or beyond the
//! limit of a file's size) is ignored instead: there it is an error, with words.
//!
//! After a panic what we supervise is drained and given back as at any other end.
//! The guardian does that whenever the supervisor is gone, and a panic makes it gone, as soon as can
//! be: this process is replaced by a fresh image of the same program, in which there is no lock that
//! nobody unlocks and no other thread that goes on. What was ours alone is closed with that, above all
//! the guardians' sockets. The new image keeps our process id until the guardians have ended, because
//! a service manager or a container kills what is left where the main process ends. Then it leaves
//! with a status that says so.
//!
//! Called by `main`, first of all and once. [`begin`] must never print: there is nobody to tell yet; and
//! who panics must never wait for anything that another thread of ours may hold.

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

/// What the machine refuses: the status of `exit`, which is above this room.
const UNAVAILABLE: c_int = 69;

/// What we ignore, and whether it was ignored when we were started, and not by us.
static IGNORED: [(libc::c_int, AtomicBool); 2] = [
    (libc::SIGPIPE, AtomicBool::new(false)),
    (libc::SIGXFSZ, AtomicBool::new(false)),
];

/// Why we end before anything began.
const NOTHING_TO_PUT: &[u8] = b"trafficcop: error: stdin or stdout is closed, and there is no /dev/null to put in its place: start it with both, or mount /dev; exit status 69\n";
/// What is our stdout was closed when we were started.
static NO_STDOUT: AtomicBool = AtomicBool::new(false);

/// It was us who ignored them.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// The first word of the new image, followed by the guardians' process ids.
const NAME: &CStr = c"trafficcop: failed";
/// The status of `exit` for control that was lost, which is above this room.
const LOST: libc::c_int = 70;
/// The longest text of a panic that is told.
const TEXT_MAX: usize = 300;

/// The guardians that live.
static GUARDIANS: Mutex<Vec<i32>> = Mutex::new(Vec::new());
/// The process that is to end so. A guardian is none: its end is its tree's.
static SUPERVISOR: AtomicU32 = AtomicU32::new(0);
/// Somebody panicked, and is at it.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Makes the process what the rest of us expects (descriptors 0 to 2 are open, a write into a
/// closed pipe or beyond a limit is an error and no death), and says with which words it was started.
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

/// Whether this signal, which is ignored now, was not when we were started. Of SIGPIPE that is said
/// also where Rust's own start was before us (in a program that embeds us), which ignores it and
/// leaves nothing to see.
pub(super) fn is_ignored_by_us(signal: libc::c_int) -> bool {
    let ours = IGNORED.iter().find(|(number, _)| *number == signal);
    ours.is_some_and(|(number, was_ignored)| {
        (BEGUN.load(Ordering::Relaxed) || *number == libc::SIGPIPE)
            && !was_ignored.load(Ordering::Relaxed)
    })
}

/// What is opened next must not become somebody's stdin, stdout or stderr: the log would be written
/// into the lock's record. Where there is nothing to put there instead, that is the end.
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
                // SAFETY: it was seen to be open, and nobody closes it before we end.
                let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
                let _ = nix::unistd::write(stderr, NOTHING_TO_PUT);
            }
            raw::exit(UNAVAILABLE);
        }
    }
}

/// Whether we were started without a stdout: what is written there since is read by nobody.
#[must_use]
pub fn stdout_was_closed() -> bool {
    NO_STDOUT.load(Ordering::Relaxed)
}

/// From now on a panic, on whatever thread, ends this process so. `tell` says one line to people, and
/// takes no lock for it.
pub fn leave_by_the_guardians(tell: fn(&str)) {
    SUPERVISOR.store(process::id(), Ordering::Relaxed);
    std::panic::set_hook(Box::new(move |info| panicked(info, tell)));
}

/// This guardian is waited for.
pub(super) fn wait_for(guardian: i32) {
    if let Ok(mut guardians) = GUARDIANS.lock() {
        guardians.push(guardian);
    }
}

/// Those that live.
pub(super) fn guardians() -> Vec<i32> {
    GUARDIANS
        .lock()
        .map(|pids| pids.clone())
        .unwrap_or_default()
}

/// This guardian is gone.
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
        // The first one ends us all.
        loop {
            std::thread::park();
        }
    }
    tell(&format!(
        "trafficcop itself failed: {}: the guardian stops the command and gives the lock back; please report this",
        text(info)
    ));
    // Nobody may end us before that is done. What is blocked stays so in the new image.
    let _ = sigprocmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), None);
    let guardians = GUARDIANS.try_lock();
    let guardians = guardians.map(|pids| pids.clone()).unwrap_or_default();
    if !guardians.is_empty() {
        let pids = guardians.iter().map(|pid| CString::new(pid.to_string()));
        let words: Vec<CString> = std::iter::once(NAME.to_owned())
            .chain(pids.flatten())
            .collect();
        // Where it fails they do it without us.
        let _ = execv(c"/proc/self/exe", &words);
    }
    raw::exit(LOST);
}

/// If this is the image that we left in our place: waits for the guardians, and does not return.
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

/// What happened where, in one line.
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
        // Where the sources lay when it was built is nobody's business.
        let file = location.file().rsplit('/').next().unwrap_or_default();
        text = format!("{text} ({file}:{})", location.line());
    }
    text
}
