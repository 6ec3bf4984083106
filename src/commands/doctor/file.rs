//! What `run` needs of a file on this machine's own disk: that it can be opened, that locks there exclude other descriptors and
//! other processes, and what a write costs.
//!
//! Called by `doctor`. The work is done in a thread of its own, because a file system can hang; then
//! that is told, and the thread left behind. Must never lock or write the lock's own file.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use nix::errno::Errno;
use time::OffsetDateTime;

use super::{Check, Findings, attempt_limit, brief, percentiles, shared_file};
use crate::clock::Instant;
use crate::commands::lock_target;
use crate::commands::lock_view::LockView;
use crate::core::Budget;
use crate::lease::file::{self, Inspector, Probe, Subject};
use crate::lease::mount;
use crate::units::show;

/// The second process's answer "it is not locked"; none of an error's.
pub(super) const NOT_LOCKED: u8 = 3;
/// For how long a file system may say nothing.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for a drive that machines share: who asks because something hangs wants an answer.
const SHARED_PATIENCE: Duration = Duration::from_secs(6);
/// How many writes are timed.
const SAMPLES: usize = 10;

/// Examines.
pub(super) fn examine(findings: &mut Findings, path: &Path, budget: &Budget) {
    let (to, from) = channel();
    let (path, budget) = (path.to_owned(), *budget);
    let mount = mount::of(&path);
    let shared = mount.shared || file::is_shared(&path);
    findings.add(match shared {
        true => shared_file::of_mount(&mount),
        false => Check::ok("mount", format!("{}, on this machine only", mount.kind)),
    });
    let patience = if shared { SHARED_PATIENCE } else { PATIENCE };
    let started = std::thread::Builder::new()
        .name("doctor".into())
        .spawn(move || {
            if shared {
                shared_file::work(&path, &budget, &to);
            } else {
                work(&path, &budget, &to);
            }
        });
    if let Err(why) = started {
        return findings.add(Check::fail("thread", why.to_string(), "raise the limit"));
    }
    loop {
        match from.recv_timeout(patience) {
            Ok(check) => findings.add(check),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                return findings.add(Check::fail(
                    "hang",
                    format!("the file system has not answered for {}", show(patience)),
                    "is its server there? (see dmesg)",
                ));
            }
        }
    }
}

fn work(path: &Path, budget: &Budget, to: &Sender<Check>) {
    // Where nobody listens any more nobody wants to know.
    let say = |check| {
        let _gone = to.send(check);
    };
    let subject = match Subject::open(path) {
        Ok(subject) => subject,
        Err(why) => return say(Check::fail("open", why.to_string(), "")),
    };
    match &subject {
        Some(subject) => {
            say(Check::ok("open", "for reading and writing"));
            say(match subject.record() {
                Ok(what) => Check::ok("record", what),
                Err(what) => Check::warn(
                    "record",
                    what,
                    "the next tenure writes it anew; the fencing token does not go back",
                ),
            });
            say(lock(path));
        }
        None => say(Check::ok("open", "there is no such file yet: run makes it")),
    }
    let suffix = format!(".trafficcop-doctor-{:08x}", fastrand::u32(..));
    let probe = Probe::beside(path, &suffix);
    let mut probe = match probe {
        Ok(probe) => {
            say(Check::ok("directory", "a file beside the lock can be made"));
            Some(probe)
        }
        Err(why) => {
            let found = format!("no file beside the lock can be made: {}", words(&why));
            say(match subject.is_some() {
                true => Check::warn(
                    "directory",
                    found,
                    "run does not need it while the lock's file exists, but exclusion and writes \
                     could not be tried",
                ),
                false => Check::fail(
                    "directory",
                    found,
                    "run cannot make the lock's file: make it for this user, or give the directory \
                     to this user",
                ),
            });
            None
        }
    };
    if let Some(probe) = &mut probe {
        say(descriptors(probe));
        say(processes(probe));
        say(writes(probe, budget));
        say(clock(probe));
    }
}

/// The kernel's words, without its number.
pub(super) fn words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_owned(),
        None => error.to_string(),
    }
}

pub(super) fn lock(path: &Path) -> Check {
    let seen = Inspector::new(path)
        .map_err(anyhow::Error::from)
        .and_then(|lock| {
            // Longer than whoever listens waits: it is there that a drive that hangs is told of, once.
            let limit = Instant::now() + SHARED_PATIENCE * 2;
            lock_target::run(async { Ok(lock.look(limit).await?) })
        });
    match seen {
        Ok(seen) if seen.flaw.as_deref() == Some(file::KERNEL_ON_SHARED) => Check::fail(
            "lock",
            file::KERNEL_ON_SHARED,
            "end what holds it and remove the file, or name another",
        ),
        Ok(seen) => Check::ok(
            "lock",
            LockView::of(&seen, OffsetDateTime::now_utc()).line(),
        ),
        Err(why) => Check::fail("lock", format!("{why:#}"), ""),
    }
}

fn descriptors(probe: &Probe) -> Check {
    const NAME: &str = "descriptors";
    match probe.excludes() {
        Ok(true) => Check::ok(NAME, "two of this process exclude each other"),
        Ok(false) => Check::fail(
            NAME,
            "two of this process do not exclude each other",
            "locks here do nothing: use a file on another mount",
        ),
        Err(why) => Check::fail(
            NAME,
            format!("cannot be locked: {}", words(&why)),
            "use a file on another mount",
        ),
    }
}

/// The probe is locked by us; another process of this program looks.
fn processes(probe: &Probe) -> Check {
    const NAME: &str = "processes";
    let asked = std::env::current_exe().and_then(|program| {
        Command::new(program)
            .arg("find-locked")
            .arg(probe.path())
            .stdin(Stdio::null())
            .output()
    });
    let status = match asked {
        Ok(output) => output.status,
        Err(why) => {
            return Check::warn(
                NAME,
                format!("a second one cannot be started: {}", words(&why)),
                "",
            );
        }
    };
    match status.code() {
        Some(0) => Check::ok(NAME, "two exclude each other"),
        Some(code) if code == i32::from(NOT_LOCKED) => Check::fail(
            NAME,
            "two do not exclude each other",
            "locks here do nothing: use a file on another mount",
        ),
        _ => Check::warn(NAME, format!("the second one failed ({status})"), ""),
    }
}

fn writes(probe: &Probe, budget: &Budget) -> Check {
    const NAME: &str = "sync";
    let samples = match probe.writes(SAMPLES) {
        Ok(samples) => samples,
        Err(why) => {
            return Check::fail(
                NAME,
                format!("cannot be written: {}", words(&why)),
                "run needs it",
            );
        }
    };
    let (p50, p99) = percentiles(&samples);
    let found = format!(
        "a record reaches the disk in p50 {}, p99 {} of {SAMPLES}",
        brief(p50),
        brief(p99)
    );
    if p99 * 4 < attempt_limit(budget) {
        return Check::ok(NAME, found);
    }
    Check::warn(NAME, found, "slow: each tenure begins with one")
}

fn clock(probe: &mut Probe) -> Check {
    const NAME: &str = "clock";
    match probe.clock() {
        Ok(skew) if skew.unsigned_abs() < Duration::from_secs(3) => {
            Check::ok(NAME, "that of the file system agrees with this machine's")
        }
        Ok(skew) => Check::warn(
            NAME,
            format!(
                "that of the file system is {} {} this machine's",
                show(Duration::from_secs(skew.unsigned_abs().as_secs())),
                if skew.is_positive() {
                    "ahead of"
                } else {
                    "behind"
                }
            ),
            "no harm to the lock, but set one of them",
        ),
        Err(why) => Check::warn(NAME, format!("cannot be known: {}", words(&why)), ""),
    }
}
