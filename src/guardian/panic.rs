//! What becomes of us when we panic: what we supervise is drained and given back as at any other end.
//!
//! The guardian does that whenever the supervisor is gone, and a panic makes it gone, as soon as can
//! be: this process is replaced by a fresh image of the same program, in which there is no lock that
//! nobody unlocks and no other thread that goes on. What was ours alone is closed with that, above all
//! the guardians' sockets. The new image keeps our process id until the guardians have ended, because
//! a service manager or a container kills what is left where the main process ends. Then it leaves
//! with a status that says so.
//!
//! Installed by `main`; [`super::begin`] knows the new image by its name. It must never wait for
//! anything that another thread of ours may hold.

use std::ffi::{CStr, CString};
use std::panic::PanicHookInfo;
use std::process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, execv};

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
/// Somebody is at it.
static BEGUN: AtomicBool = AtomicBool::new(false);

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

/// This guardian is gone.
pub(super) fn wait_no_more(guardian: i32) {
    if let Ok(mut guardians) = GUARDIANS.lock() {
        guardians.retain(|known| *known != guardian);
    }
}

fn panicked(info: &PanicHookInfo<'_>, tell: fn(&str)) {
    if process::id() != SUPERVISOR.load(Ordering::Relaxed) {
        tell(&format!("the guardian failed: {}", text(info)));
        leave(1);
    }
    if BEGUN.swap(true, Ordering::SeqCst) {
        // The first one ends us all.
        loop {
            std::thread::park();
        }
    }
    tell(&format!(
        "trafficcop itself failed: {}: what it supervises is stopped and given back by the \
         guardian; please report this",
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
    leave(LOST);
}

/// If this is the image that we left in our place: waits for the guardians, and does not return.
pub(super) fn wait_if_we_failed<'a>(mut words: impl Iterator<Item = &'a CStr>) {
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
    leave(LOST);
}

/// What happened where, in one line.
fn text(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let said = payload.downcast_ref::<&str>().copied();
    let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let mut text: String = said
        .unwrap_or("a panic")
        .chars()
        .map(|each| if each.is_control() { ' ' } else { each })
        .take(TEXT_MAX)
        .collect();
    if let Some(location) = info.location() {
        // Where the sources lay when it was built is nobody's business.
        let file = location.file().rsplit('/').next().unwrap_or_default();
        text = format!("{text} ({file}:{})", location.line());
    }
    text
}

fn leave(status: libc::c_int) -> ! {
    // SAFETY: a number. Nothing of this process is to be tidied up, least of all by exit handlers.
    unsafe { libc::_exit(status) }
}
