//! What `run` needs of a drive that machines share: that of two who make one directory one is told
//! that it exists, and that this takes little of the lease.
//!
//! Called by `file`, in its thread. Must never touch the lock's own files.

use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::file::{lock, words};
use super::{Check, CheckResult, attempt_limit, brief, percentiles};
use crate::core::Budget;
use crate::lease::mount::Mount;
use crate::lease::shared_file::{race, round_trips};
use crate::units::show;

/// How many names the makers race for.
const NAMES: u64 = 40;
/// How many are timed.
const SAMPLES: u64 = 10;
/// How late an NFS mount may tell of what others did in a directory, if nothing else is said.
const LATE: u64 = 60;

/// What the mount says of itself.
pub(super) fn of_mount(mount: &Mount) -> Check {
    const NAME: &str = "mount";
    let found = match mount.shared {
        true => format!(
            "{}, shared with other machines: the lock is a lease, kept in directories beside the file",
            mount.kind
        ),
        false => format!(
            "{}, on this machine, with a lock of a shared drive on it: that is obeyed",
            mount.kind
        ),
    };
    if mount.is_unproven() {
        return Check::warn(
            NAME,
            found,
            "what two machines are told that make one directory is up to the program behind it: run \
             doctor on two machines at once",
        );
    }
    if mount.is_slow_to_tell() {
        let late = option(&mount.options, "acdirmax=").unwrap_or(LATE);
        return Check::warn(
            NAME,
            format!("{found}; with nocto it tells up to {late} s late what others do"),
            "nothing overlaps, but a hand-over can take as long: mount it without nocto",
        );
    }
    Check::ok(NAME, found)
}

fn option(options: &str, name: &str) -> Option<u64> {
    let mut options = options.split(',');
    options.find_map(|option| option.strip_prefix(name)?.parse().ok())
}

/// Tries it out.
pub(super) fn work(path: &Path, budget: &Budget, to: &Sender<Check>) {
    // Where nobody listens any more nobody wants to know.
    let say = |check| {
        let _gone = to.send(check);
    };
    say(lock(path));
    let suffix = format!(".trafficcop-doctor-{:08x}", fastrand::u32(..));
    let mut beside = path.as_os_str().to_owned();
    beside.push(suffix);
    let beside = Path::new(&beside);
    match round_trips(beside, SAMPLES) {
        Ok(samples) => say(round_trip(&samples, budget)),
        Err(why) => {
            return say(Check::fail(
                "directory",
                format!("no directory can be made beside the lock: {}", words(&why)),
                "give the directory to this user",
            ));
        }
    }
    say(match race(beside, NAMES) {
        Ok(race) if race.shared == 0 && race.unmade == 0 => Check::ok(
            "makers",
            format!("eight who make one of {NAMES} names exclude each other"),
        ),
        Ok(race) => Check::fail(
            "makers",
            format!(
                "of {NAMES} names {} were made by more than one of eight, and {} by nobody",
                race.shared, race.unmade
            ),
            "a lock here keeps nobody out: use a file on another drive",
        ),
        Err(why) => Check::fail("makers", format!("it failed: {}", words(&why)), ""),
    });
}

fn round_trip(samples: &[Duration], budget: &Budget) -> Check {
    const NAME: &str = "round trip";
    let (p50, p99) = percentiles(samples);
    let limit = attempt_limit(budget);
    let found = format!(
        "a version is made in p50 {}, p99 {} of {SAMPLES}; a renewal is two of them and may take {} of --lease {}",
        brief(p50),
        brief(p99),
        brief(limit),
        show(budget.lease)
    );
    let verdict = match () {
        () if p50 * 2 >= limit => CheckResult::Fail,
        () if p99 * 4 >= limit => CheckResult::Warn,
        () => return Check::ok(NAME, found),
    };
    Check {
        verdict,
        ..Check::warn(NAME, found, "slow: take a longer --lease, or another drive")
    }
}
