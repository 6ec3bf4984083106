//! Checks of a file's directory: whether locks exclude each other there, or on a shared drive the makers of a
//! directory, and what that costs.
//!
//! A file system can hang, so the work is done in a thread, which `doctor` then leaves behind. It must never lock
//! or write the lock's own file.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nix::errno::Errno;
use time::OffsetDateTime;

use super::{Check, Findings, attempt_limit, brief, clock, pace, percentile, suffix};
use crate::clock::Instant;
use crate::commands;
use crate::commands::look::LockView;
use crate::core::Budget;
use crate::host::Host;
use crate::lease::file::{self, FileInspector, Probe};
use crate::lease::inspect::Inspector as _;
use crate::lease::mount::{self, Mount, beside};
use crate::lease::shared_file::{Meeting, meet, race, round_trips, try_taking_over};
use crate::units::show;

// Exit status of the second process; no error has it.
pub(super) const NOT_LOCKED: u8 = 3;
// A disk may wake up, or a pool be repaired.
const DISK_TIMEOUT: Duration = Duration::from_secs(30);
// An operator who asks because something hangs wants an answer.
const DRIVE_TIMEOUT: Duration = Duration::from_secs(6);
const SAMPLES: usize = 10;
// A server that misleads two of eight makers does so within a few names.
const NAMES: u64 = 40;
// Wait for another doctor, on another machine.
const MEETING: Duration = Duration::from_secs(10);
// NFS shows other machines' changes in a directory after so many seconds (acdirmax).
const LATE: u64 = 60;

pub(super) fn examine(findings: &mut Findings, path: &Path, budget: &Budget, promised: bool) {
    let (to, from) = channel();
    let (path, budget) = (path.to_owned(), *budget);
    let mount = mount::of(&path);
    let shared = mount.shared || file::is_shared(&path).unwrap_or(true);
    if let Err(why) = mount::refuse_wrong_place(&path) {
        findings.add(Check::fail("place", why.to_string(), ""));
    }
    let proof = mount.proof();
    findings.add(match shared {
        true => of_shared_mount(&mount, promised),
        false => Check::ok("mount", format!("{}: on this machine only", mount.kind)),
    });
    if !shared && mount::is_cleaned(&path) {
        let found = "below /tmp or /var/tmp, where cleaners such as systemd-tmpfiles remove files that look old";
        let advice = "name a file in /run/lock or /var/lib";
        findings.add(Check::warn("cleaners", found, advice));
    }
    let patience = if shared { DRIVE_TIMEOUT } else { DISK_TIMEOUT };
    // A thread that hangs in the kernel cannot be ended: the process ends without it.
    let started = std::thread::Builder::new()
        .name("doctor".into())
        .spawn(move || {
            let say = |check| drop(to.send(Some(check)));
            let alive = || drop(to.send(None));
            match shared {
                true => on_shared_drive(&path, &budget, proof, &say, &alive),
                false => on_own_disk(&path, &budget, &say),
            }
        });
    if let Err(why) = started {
        return findings.add(Check::fail("thread", why.to_string(), "raise the limit"));
    }
    loop {
        match from.recv_timeout(patience) {
            Ok(Some(check)) => findings.add(check),
            Ok(None) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let found = format!("the file system has not answered for {}", show(patience));
                let advice = "check its server (see dmesg)";
                return findings.add(Check::fail("hang", found, advice));
            }
        }
    }
}

fn on_own_disk(path: &Path, budget: &Budget, say: &dyn Fn(Check)) {
    let exists = match file::examine(path) {
        Err(why) => return say(Check::fail("open", why.to_string(), "")),
        Ok(None) => {
            say(Check::ok(
                "open",
                "there is no such file yet: run creates it",
            ));
            false
        }
        Ok(Some(record)) => {
            say(Check::ok("open", "for reading and writing"));
            let anew = "the next tenure writes it again; the fencing token does not go back";
            say(record.map_or_else(
                |what| Check::warn("record", what, anew),
                |what| Check::ok("record", what),
            ));
            say(lock(path));
            true
        }
    };
    let mut probe = match Probe::beside(path, &suffix()) {
        Ok(probe) => probe,
        Err(why) => {
            let found = format!("no file can be created beside the lock: {}", words(&why));
            return say(match exists {
                true => Check::warn(
                    "directory",
                    found,
                    "run does not need it while the lock's file exists, but exclusion and writes \
                     could not be tried",
                ),
                false => Check::fail(
                    "directory",
                    found,
                    advice(
                        &why,
                        "run cannot create the lock's file: create it for this user, \
                         or give the directory to this user",
                    ),
                ),
            });
        }
    };
    say(Check::ok(
        "directory",
        "a file can be created beside the lock",
    ));
    say(match probe.excludes() {
        Ok(excludes) => exclusion("descriptors", excludes, "two of this process"),
        Err(why) => {
            let found = format!("cannot be locked: {}", words(&why));
            Check::fail("descriptors", found, "use a file on another mount")
        }
    });
    say(processes(&probe));
    say(match probe.writes(SAMPLES) {
        Ok(samples) => {
            let (p50, p99) = (percentile(&samples, 50), percentile(&samples, 99));
            let (mid, end) = (brief(p50), brief(p99));
            let found = format!("a record reaches the disk in p50 {mid}, p99 {end} of {SAMPLES}");
            match p99 * 4 < attempt_limit(budget) {
                true => Check::ok("sync", found),
                false => Check::warn("sync", found, "slow to begin each tenure: use another disk"),
            }
        }
        Err(why) => {
            let found = format!("cannot be written: {}", words(&why));
            Check::fail("sync", found, advice(&why, "run needs it"))
        }
    });
    let asked = OffsetDateTime::now_utc();
    say(match probe.written_at() {
        Ok(theirs) => clock(asked, theirs, "the file system's"),
        Err(why) => {
            let found = format!("cannot be read: {} (the lock is not affected)", words(&why));
            Check::warn("clock", found, "")
        }
    });
}

fn exclusion(check: &'static str, excludes: bool, two: &str) -> Check {
    let went = match excludes {
        true => Ok(format!("{two} exclude each other")),
        false => Err(format!("{two} do not exclude each other")),
    };
    let useless = "locks here do nothing: use a file on another mount";
    Check::of(check, went, useless)
}

/// Returns the kernel's text, without its number.
fn words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_owned(),
        None => error.to_string(),
    }
}

fn advice(error: &io::Error, otherwise: &'static str) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => {
            "make room: the drive, or this user's quota, has no space or no inodes left (df, df -i)"
        }
        _ => otherwise,
    }
}

fn lock(path: &Path) -> Check {
    let seen = FileInspector::new(path)
        .map_err(anyhow::Error::from)
        .and_then(|lock| {
            // Longer than the receiver waits, so that a drive that hangs is reported once, there.
            let limit = Instant::now() + DRIVE_TIMEOUT * 2;
            commands::run(async { Ok(lock.look(limit).await?) })
        });
    match seen {
        Ok(seen) if seen.problem.as_deref() == Some(file::KERNEL_ON_SHARED) => Check::fail(
            "lock",
            file::KERNEL_ON_SHARED,
            "end what holds it and remove the file, or name another",
        ),
        Ok(seen) => {
            let view = LockView::of(&seen, OffsetDateTime::now_utc());
            Check::ok("lock", view.line())
        }
        Err(why) => Check::fail("lock", format!("{why:#}"), ""),
    }
}

fn processes(probe: &Probe) -> Check {
    const NAME: &str = "processes";
    // What excludes two descriptors of one process need not exclude two processes.
    let asked = std::env::current_exe().and_then(|program| {
        Command::new(program)
            .arg("find-locked")
            .arg(probe.path())
            .stdin(Stdio::null())
            .output()
    });
    let unable = match asked {
        Ok(output) => match output.status.code() {
            Some(0) => return exclusion(NAME, true, "two"),
            Some(code) if code == i32::from(NOT_LOCKED) => return exclusion(NAME, false, "two"),
            _ => format!("the second one failed ({})", output.status),
        },
        Err(why) => format!("a second one cannot be started: {}", words(&why)),
    };
    Check::warn(NAME, unable, "exclusion is not tested: try again")
}

fn of_shared_mount(mount: &Mount, promised: bool) -> Check {
    const NAME: &str = "mount";
    let found = mount.kind.clone()
        + match mount.shared {
            true => {
                ", shared with other machines: the lock is a lease, kept in directories beside the file"
            }
            false => ", on this machine, with a lock of a shared drive on it, which run obeys",
        };
    let Some(proof) = mount.proof() else {
        let found = format!(
            "{found}; whether exactly one of two machines makes a directory on {} is not known",
            mount.kind
        );
        return match promised {
            true => Check::warn(
                NAME,
                found,
                "run uses it on your promise (--mkdir-is-exclusive)",
            ),
            false => Check::fail(
                NAME,
                found,
                "run refuses it: use a drive that is known (docs/files.md), or pass --mkdir-is-exclusive if \
                 exactly one makes it here; to try that, run doctor on two machines at the same time",
            ),
        };
    };
    let found = format!("{found}; exactly one of two machines makes a directory there: {proof}");
    if mount.is_slow_to_tell() {
        let mut options = mount.options.split(',');
        let late = options.find_map(|option| option.strip_prefix("acdirmax=")?.parse().ok());
        let late = late.unwrap_or(LATE);
        return Check::warn(
            NAME,
            format!("{found}; with nocto it shows changes of other machines up to {late} s late"),
            "nothing overlaps, but a hand-over can take that long: mount it without nocto",
        );
    }
    Check::ok(NAME, found)
}

fn on_shared_drive(
    path: &Path,
    budget: &Budget,
    proof: Option<&str>,
    say: &dyn Fn(Check),
    alive: &(dyn Fn() + Sync),
) {
    say(lock(path));
    match try_taking_over(path) {
        // Nothing is made yet, and the user who begins it will own it.
        Ok(false) => {}
        Ok(true) => say(Check::ok("take-over", "this user could take it over")),
        Err(why) => say(Check::fail("take-over", why.to_string(), "")),
    }
    let beside = beside(path, suffix());
    let samples = match round_trips(&beside, SAMPLES as u64, alive) {
        Ok(samples) => samples,
        Err(why) => {
            let found = format!(
                "no directory can be created beside the lock: {}",
                words(&why)
            );
            let advice = advice(&why, "give the directory to this user");
            return say(Check::fail("directory", found, advice));
        }
    };
    let what = "versions that were made, of which a renewal makes two";
    let slow = "slow: take a longer --lease, or another drive";
    say(pace("round trip", &samples, what, budget, [slow; 2]));
    say(match race(&beside, NAMES, alive) {
        Ok(race) if race.shared == 0 && race.unmade == 0 => {
            let found = format!("eight makers of one of {NAMES} names exclude each other");
            Check::ok("makers", found)
        }
        Ok(race) => Check::fail(
            "makers",
            format!(
                "eight makers tried {NAMES} names: {} names have two makers or more, {} have none",
                race.shared, race.unmade
            ),
            "a lock here excludes no other machine: use a file on another drive",
        ),
        Err(why) => {
            let found = format!("it failed: {}", words(&why));
            Check::fail("makers", found, advice(&why, "try another drive"))
        }
    });
    say(machines(
        meet(path, &Host::here().host, MEETING, alive),
        proof,
    ));
}

fn machines(met: io::Result<Option<Meeting>>, proof: Option<&str>) -> Check {
    const NAME: &str = "machines";
    match met {
        Ok(None) => {
            let found = format!("no other doctor came within {}", show(MEETING));
            let advice =
                "to try the drive between two machines, run doctor on both at the same time";
            match proof {
                Some(_) => Check::ok(NAME, format!("{found}: {advice}")),
                None => Check::warn(NAME, found, advice),
            }
        }
        Ok(Some(Meeting {
            host,
            names,
            shared: 0,
        })) => Check::ok(
            NAME,
            format!(
                "this doctor and one on {host} made {names} names at the same time: each has one maker"
            ),
        ),
        Ok(Some(met)) => Check::fail(
            NAME,
            format!(
                "of {} names {} were made by this doctor and by one on {}",
                met.names, met.shared, met.host
            ),
            "a lock here does not exclude: use a file on another drive",
        ),
        Err(why) => {
            let found = format!("the race failed: {}", words(&why));
            Check::fail(NAME, found, advice(&why, "try another drive"))
        }
    }
}
