//! Checks of a file's directory: whether locks exclude each other there, or on a shared drive the makers of a
//! directory, and what that costs.
//!
//! A file system can hang, so a thread works, which `doctor` leaves behind. It must never lock or write the lock's
//! own file.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nix::errno::Errno;
use time::OffsetDateTime;

use super::{
    Finding, Findings, attempt_limit, brief, clock, fail, of, ok, pace, percentile, suffix, warn,
};
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
        findings.add("place", fail(why, ""));
    }
    let proof = mount.proof();
    let place = match shared {
        true => of_shared_mount(&mount, promised),
        false => ok(format!("{}: on this machine only", mount.kind)),
    };
    findings.add("mount", place);
    if !shared && mount::is_cleaned(&path) {
        let found = "below /tmp or /var/tmp, where cleaners such as systemd-tmpfiles remove files that look old";
        let advice = "name a file in /run/lock or /var/lib";
        findings.add("cleaners", warn(found, advice));
    }
    let patience = if shared { DRIVE_TIMEOUT } else { DISK_TIMEOUT };
    let started = std::thread::Builder::new()
        .name("doctor".into())
        .spawn(move || {
            let say = |check, finding| drop(to.send(Some((check, finding))));
            let alive = || drop(to.send(None));
            match shared {
                true => on_shared_drive(&path, &budget, proof, &say, &alive),
                false => on_own_disk(&path, &budget, &say),
            }
        });
    if let Err(why) = started {
        return findings.add("thread", fail(why, "raise the limit"));
    }
    loop {
        match from.recv_timeout(patience) {
            Ok(Some((check, finding))) => findings.add(check, finding),
            Ok(None) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let found = format!("the file system has not answered for {}", show(patience));
                return findings.add("hang", fail(found, "check its server (see dmesg)"));
            }
        }
    }
}

fn on_own_disk(path: &Path, budget: &Budget, say: &dyn Fn(&'static str, Finding)) {
    let examined = match file::examine(path) {
        Err(why) => return say("open", fail(why, "")),
        Ok(examined) => examined,
    };
    let exists = examined.is_some();
    match examined {
        None => say("open", ok("there is no such file yet: run creates it")),
        Some(record) => {
            say("open", ok("for reading and writing"));
            let anew = "the next tenure writes it again; the fencing token does not go back";
            say("record", of(record, anew).at_most_a_warning());
            say("lock", lock(path));
        }
    }
    let mut probe = match Probe::beside(path, &suffix()) {
        Ok(probe) => probe,
        Err(why) => {
            let what = "no file can be created beside the lock";
            let unneeded = "run does not need it while the lock's file exists, but exclusion and writes \
                 could not be tried";
            let needed = "run cannot create the lock's file: create it for this user, \
                 or give the directory to this user";
            let finding = match exists {
                true => warn(format!("{what}: {}", words(&why)), unneeded),
                false => refused(what, &why, needed),
            };
            return say("directory", finding);
        }
    };
    say("directory", ok("a file can be created beside the lock"));
    let excludes = match probe.excludes() {
        Ok(excludes) => exclusion(excludes, "two of this process"),
        Err(why) => {
            let found = format!("cannot be locked: {}", words(&why));
            fail(found, "use a file on another mount")
        }
    };
    say("descriptors", excludes);
    say("processes", processes(&probe));
    let written = match probe.writes(SAMPLES) {
        Ok(samples) => {
            let (p50, p99) = (percentile(&samples, 50), percentile(&samples, 99));
            let (mid, end) = (brief(p50), brief(p99));
            let found = format!("a record reaches the disk in p50 {mid}, p99 {end} of {SAMPLES}");
            match p99 * 4 < attempt_limit(budget) {
                true => ok(found),
                false => warn(found, "slow to begin each tenure: use another disk"),
            }
        }
        Err(why) => refused("cannot be written", &why, "run needs it"),
    };
    say("sync", written);
    let asked = OffsetDateTime::now_utc();
    let time = match probe.written_at() {
        Ok(theirs) => clock(asked, theirs, "the file system's"),
        Err(why) => {
            let found = format!("cannot be read: {} (the lock is not affected)", words(&why));
            warn(found, "")
        }
    };
    say("clock", time);
}

fn exclusion(excludes: bool, two: &str) -> Finding {
    let useless = "locks here do nothing: use a file on another mount";
    match excludes {
        true => ok(format!("{two} exclude each other")),
        false => fail(format!("{two} do not exclude each other"), useless),
    }
}

/// Returns the kernel's text, without its number.
fn words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_owned(),
        None => error.to_string(),
    }
}

fn refused(what: &str, error: &io::Error, otherwise: &str) -> Finding {
    let advice = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC | Errno::EDQUOT) => {
            "make room: the drive, or this user's quota, has no space or no inodes left (df, df -i)"
        }
        _ => otherwise,
    };
    fail(format!("{what}: {}", words(error)), advice)
}

fn lock(path: &Path) -> Finding {
    let seen = FileInspector::new(path)
        .map_err(anyhow::Error::from)
        .and_then(|lock| {
            // Longer than the receiver waits, so that a drive that hangs is reported once, there.
            let limit = Instant::now() + DRIVE_TIMEOUT * 2;
            commands::run(async { Ok(lock.look(limit).await?) })
        });
    match seen {
        Ok(seen) if seen.problem.as_deref() == Some(file::KERNEL_ON_SHARED) => fail(
            file::KERNEL_ON_SHARED,
            "end what holds it and remove the file, or name another",
        ),
        Ok(seen) => ok(LockView::of(&seen, OffsetDateTime::now_utc()).line()),
        Err(why) => fail(format_args!("{why:#}"), ""),
    }
}

fn processes(probe: &Probe) -> Finding {
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
            Some(0) => return exclusion(true, "two"),
            Some(code) if code == i32::from(NOT_LOCKED) => return exclusion(false, "two"),
            _ => format!("the second one failed ({})", output.status),
        },
        Err(why) => format!("a second one cannot be started: {}", words(&why)),
    };
    warn(unable, "exclusion is not tested: try again")
}

fn of_shared_mount(mount: &Mount, promised: bool) -> Finding {
    let kind = &mount.kind;
    let kept = match mount.shared {
        true => {
            "shared with other machines: the lock is a lease, kept in directories beside the file"
        }
        false => "on this machine, with a lock of a shared drive on it, which run obeys",
    };
    let Some(proof) = mount.proof() else {
        let found = format!(
            "{kind}, {kept}; whether exactly one of two machines makes a directory on {kind} is not known"
        );
        let trusted = "run uses it on your promise (--mkdir-is-exclusive)";
        let refused = "run refuses it: use a drive that is known (docs/files.md), or pass --mkdir-is-exclusive if \
             exactly one makes it here; to try that, run doctor on two machines at the same time";
        return match promised {
            true => warn(found, trusted),
            false => fail(found, refused),
        };
    };
    let found =
        format!("{kind}, {kept}; exactly one of two machines makes a directory there: {proof}");
    if mount.is_slow_to_tell() {
        let mut options = mount.options.split(',');
        let late = options.find_map(|option| option.strip_prefix("acdirmax=")?.parse().ok());
        let late = late.unwrap_or(LATE);
        return warn(
            format!("{found}; with nocto it shows changes of other machines up to {late} s late"),
            "nothing overlaps, but a hand-over can take that long: mount it without nocto",
        );
    }
    ok(found)
}

fn on_shared_drive(
    path: &Path,
    budget: &Budget,
    proof: Option<&str>,
    say: &dyn Fn(&'static str, Finding),
    alive: &(dyn Fn() + Sync),
) {
    say("lock", lock(path));
    match try_taking_over(path) {
        // Nothing is made yet, and the user who begins it will own it.
        Ok(false) => {}
        Ok(true) => say("take-over", ok("this user could take it over")),
        Err(why) => say("take-over", fail(why, "")),
    }
    let beside = beside(path, suffix());
    let samples = match round_trips(&beside, SAMPLES as u64, alive) {
        Ok(samples) => samples,
        Err(why) => {
            let what = "no directory can be created beside the lock";
            let advice = "give the directory to this user";
            return say("directory", refused(what, &why, advice));
        }
    };
    let what = "versions that were made, of which a renewal makes two";
    let slow = "slow: take a longer --lease, or another drive";
    say("round trip", pace(&samples, what, budget, [slow; 2]));
    let makers = match race(&beside, NAMES, alive) {
        Ok(race) if race.shared == 0 && race.unmade == 0 => ok(format!(
            "eight makers of one of {NAMES} names exclude each other"
        )),
        Ok(race) => fail(
            format!(
                "eight makers tried {NAMES} names: {} names have two makers or more, {} have none",
                race.shared, race.unmade
            ),
            "a lock here excludes no other machine: use a file on another drive",
        ),
        Err(why) => refused("it failed", &why, "try another drive"),
    };
    say("makers", makers);
    let met = meet(path, &Host::here().host, MEETING, alive);
    say("machines", machines(met, proof));
}

fn machines(met: io::Result<Option<Meeting>>, proof: Option<&str>) -> Finding {
    match met {
        Ok(None) => {
            let found = format!("no other doctor came within {}", show(MEETING));
            let advice =
                "to try the drive between two machines, run doctor on both at the same time";
            match proof {
                Some(_) => ok(format!("{found}: {advice}")),
                None => warn(found, advice),
            }
        }
        Ok(Some(Meeting {
            host,
            names,
            shared: 0,
        })) => ok(format!(
            "this doctor and one on {host} made {names} names at the same time: each has one maker"
        )),
        Ok(Some(met)) => fail(
            format!(
                "of {} names {} were made by this doctor and by one on {}",
                met.names, met.shared, met.host
            ),
            "a lock here does not exclude: use a file on another drive",
        ),
        Err(why) => refused("the race failed", &why, "try another drive"),
    }
}
