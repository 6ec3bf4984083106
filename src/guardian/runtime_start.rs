//! What a process begins with, in place of Rust's own start. That one looks for the guard page of a
//! stack that nobody of ours overflows, which is a tenth of a millisecond of reading /proc, and it
//! ignores SIGPIPE over whatever there was: the command is to find it as we did.
//!
//! What would kill us for a write that cannot be done (into a pipe without a reader, or beyond the
//! limit of a file's size) is ignored instead: there it is an error, with words.
//!
//! Called by `main`, first of all and once. Must never print: there is nobody to tell yet.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::panic::wait_if_we_failed;

/// What the machine refuses: the status of `exit`, which is above this room.
const UNAVAILABLE: c_int = 69;

/// What we ignore, and whether it was ignored when we were started, and not by us.
static IGNORED: [(libc::c_int, AtomicBool); 2] = [
    (libc::SIGPIPE, AtomicBool::new(false)),
    (libc::SIGXFSZ, AtomicBool::new(false)),
];

/// It was us who ignored them.
static BEGUN: AtomicBool = AtomicBool::new(false);

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
        // SAFETY: numbers only; "ignore" runs no code of ours.
        let before = unsafe { libc::signal(*number, libc::SIG_IGN) };
        was_ignored.store(before == libc::SIG_IGN, Ordering::Relaxed);
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
        // SAFETY: numbers, and a constant path. The lowest free number is the one that is closed.
        unsafe {
            if libc::fcntl(number, libc::F_GETFD) < 0
                && libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) < 0
            {
                libc::_exit(UNAVAILABLE);
            }
        }
    }
}
