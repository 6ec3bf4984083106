//! Looks at a lock on a shared drive without competing, breaks it, and forgets results. For `doctor` it tries
//! whether makers of one name exclude each other.
//!
//! A look makes and writes nothing, and a trial never touches the lock's own files.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use super::errors::TRYING;
use super::files::Found;
use super::share::{Hint, Made, Share};
use crate::inspect::{BreakResult, LockStatus, ResetResult, Tasks};
use crate::once::TaskLog;
use crate::record::Record;
use crate::version_record::VersionRecord;
use trafficcop_core::Failure;
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::observed::Version;

// Pauses for a new version's record.
const RECORD_RETRY: Duration = Duration::from_millis(50);
const RECORD_RETRIES: usize = 40;

struct Last {
    version: Version,
    record: Option<VersionRecord>,
    versions: Option<Found>,
}

fn last(share: &Share) -> Result<Last, Failure> {
    for _ in 0..RECORD_RETRIES {
        let found = last_now(share)?;
        if found.version == 0 || found.record.is_some() {
            return Ok(found);
        }
        clock::pause(RECORD_RETRY);
    }
    last_now(share)
}

fn last_now(share: &Share) -> Result<Last, Failure> {
    let failed = |what: &str, error| share.refusal(what, &error);
    let versions = share.place().map_err(|error| failed("reading it", error))?;
    let hint = match share.hint().map_err(|error| failed("reading it", error))? {
        // A hint from hours ago can name a version that was removed since.
        Hint::Record(record) => share
            .exists(record.version)
            .unwrap_or(true)
            .then_some(*record),
        Hint::Missing | Hint::Empty | Hint::Unread => None,
        Hint::Foreign => return Err(share.stranger()),
    };
    let mut version = match &hint {
        Some(record) => record.version,
        None => match share.list() {
            Ok(versions) => versions.last().copied().unwrap_or(0),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failed("reading its versions", error)),
        },
    };
    while let Some(next) = version.checked_add(1) {
        let exists = share.exists(next);
        if !exists.map_err(|error| failed("reading its versions", error))? {
            break;
        }
        version = next;
    }
    let record = hint.filter(|record| record.version == version);
    Ok(Last {
        version,
        record: record.or_else(|| share.record(version)),
        versions,
    })
}

/// Returns the state of the lock.
pub fn look(path: &Path) -> Result<LockStatus, Failure> {
    let Last {
        version, record, ..
    } = last(&Share::new(path))?;
    let name = path.display().to_string();
    Ok(VersionRecord::status(name.clone(), name, version, record))
}

/// Tries whether this user could take over the lock; `false`: it has no version yet.
///
/// # Errors
/// If this user could not, or if that cannot be tried.
pub fn try_taking_over(path: &Path) -> Result<bool, Failure> {
    let share = Share::new(path);
    let Last {
        version,
        record,
        versions,
    } = last(&share)?;
    if version == 0 {
        return Ok(false);
    }
    let tried = share
        .refuse_strangers(versions)
        .and_then(|()| share.try_taking_over(version, record.is_some()));
    tried.map_err(|error| share.refusal(TRYING, &error))?;
    Ok(true)
}

/// Breaks the lease: see [`Inspector::break_lease`](crate::inspect::Inspector::break_lease).
pub fn break_lock(
    path: &Path,
    seen: &Record,
    period: Option<Duration>,
    by: &str,
) -> Result<BreakResult, Failure> {
    let share = Share::new(path);
    let Last {
        version,
        record,
        versions,
    } = last(&share)?;
    let Some(read) = record else {
        return Ok(match version {
            0 => BreakResult::Free,
            _ => BreakResult::Overtaken,
        });
    };
    // All others wait for this record's lease, from when they saw it.
    let (record, after) = match read.broken(seen, period, by) {
        Ok((record, after)) => {
            let version = version.saturating_add(1);
            (VersionRecord { version, ..record }, after)
        }
        Err(nothing) => return Ok(nothing),
    };
    let strange = share.refuse_strangers(versions);
    strange.map_err(|error| share.refusal("breaking it", &error))?;
    // First: a holder that can read no record must know that an operator may have made it.
    let said = share.say_broken(version);
    let said = said.map_err(|error| share.refusal("recording that it is broken", &error))?;
    if !said || !make(&share, record.version)? {
        return Ok(BreakResult::Overtaken);
    }
    let written = share.write_record(&record);
    // Another instance has taken over by it: no holder continues from what may be an operator's.
    if share
        .exists(record.version.saturating_add(1))
        .unwrap_or(false)
    {
        return Ok(BreakResult::Within(Duration::ZERO));
    }
    tell(&share, &record, written)?;
    Ok(BreakResult::Within(after))
}

pub(crate) fn forget(
    path: &Path,
    tasks: &Tasks,
    shown: &TaskLog,
    force: bool,
) -> Result<ResetResult, Failure> {
    let share = Share::new(path);
    let Last {
        version,
        record,
        versions,
    } = last(&share)?;
    if version == 0 {
        return Ok(ResetResult::Nothing);
    }
    let lock = path.display().to_string();
    let record = match VersionRecord::without(record, &lock, tasks, shown, force)? {
        Ok(record) => VersionRecord {
            version: version.saturating_add(1),
            ..record
        },
        Err(nothing) => return Ok(nothing),
    };
    let strange = share.refuse_strangers(versions);
    strange.map_err(|error| share.refusal("forgetting it", &error))?;
    Ok(match put(&share, &record)? {
        true => ResetResult::Done,
        false => ResetResult::Changed,
    })
}

/// Returns `false` if another was first.
fn put(share: &Share, record: &VersionRecord) -> Result<bool, Failure> {
    if !make(share, record.version)? {
        return Ok(false);
    }
    tell(share, record, share.write_record(record))?;
    Ok(true)
}

fn make(share: &Share, version: Version) -> Result<bool, Failure> {
    let made = share.make(version);
    let failed = |error| share.refusal("making its next version", &error);
    Ok(made.map_err(failed)? == Made::Made)
}

/// Writes the hint, too: others read either.
fn tell(share: &Share, record: &VersionRecord, written: io::Result<()>) -> Result<(), Failure> {
    let hinted = share.write_hint(record);
    match written {
        Err(error) if hinted.is_err() => Err(share.refusal("writing its record", &error)),
        _ => Ok(()),
    }
}

// Enough for a server with a few threads to have two at one name.
const MAKERS: usize = 8;

/// Result of a race for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// Number of names.
    pub names: u64,
    /// Names that several makers were told to have made.
    pub shared: u64,
    /// Names that no maker was told to have made.
    pub unmade: u64,
}

/// Has eight makers make the same names beside `path`, and removes them. Calls `alive` after each answer.
///
/// # Errors
/// The kernel's.
pub fn race(path: &Path, names: u64, alive: &(dyn Fn() + Sync)) -> io::Result<Race> {
    let share = Share::new(path);
    share.begin()?;
    let start = Barrier::new(MAKERS);
    let make = || -> io::Result<Vec<u64>> {
        let mut won = Vec::new();
        let mut failed = None;
        for name in 1..=names {
            // A failed maker goes on: the others wait for it here.
            start.wait();
            match share.make(name) {
                Ok(Made::Made) => won.push(name),
                Ok(Made::Exists) => {}
                Err(error) => failed = Some(error),
            }
            alive();
        }
        failed.map_or(Ok(won), Err)
    };
    let won: io::Result<Vec<Vec<u64>>> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS).map(|_| scope.spawn(make)).collect();
        let ended = makers.into_iter().map(|maker| {
            let died = |_| Err(io::Error::other("a maker died"));
            maker.join().unwrap_or_else(died)
        });
        ended.collect()
    });
    clear(&share, alive);
    let mut won = won?.concat();
    let all = won.len() as u64;
    won.sort_unstable();
    won.dedup();
    let different = won.len() as u64;
    Ok(Race {
        names,
        shared: all - different,
        unmade: names - different,
    })
}

/// Measures `times` times how long making a name takes. Calls `alive` as [`race`] does.
///
/// # Errors
/// The kernel's.
pub fn round_trips(path: &Path, times: u64, alive: &dyn Fn()) -> io::Result<Vec<Duration>> {
    let share = Share::new(path);
    share.begin()?;
    let made: io::Result<Vec<Duration>> = (1..=times)
        .map(|name| {
            let begun = Instant::now();
            share.make(name)?;
            alive();
            Ok(Instant::now().since(begun))
        })
        .collect();
    clear(&share, alive);
    made
}

fn clear(share: &Share, alive: &dyn Fn()) {
    for name in share.list().unwrap_or_default() {
        let _ = share.remove(name);
        alive();
    }
    let _ = fs::remove_dir(share.versions());
}

#[cfg(test)]
mod tests {
    use super::super::share;
    use super::*;
    use crate::inspect::LockState;
    use crate::version_record::VersionState;

    fn lock(record: &VersionRecord) -> (tempfile::TempDir, std::path::PathBuf, Share) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let share = Share::new(&path);
        share.make_hint().unwrap();
        share.begin().unwrap();
        assert!(put(&share, record).unwrap());
        (dir, path, share)
    }

    fn record(state: VersionState, once: &str) -> VersionRecord {
        VersionRecord {
            version: 1,
            state,
            nonce: 1,
            lease: Duration::from_secs(15),
            record: Record {
                token: 1,
                holder: "a".into(),
                once: TaskLog::parse(once).unwrap_or_default(),
                ..Record::default()
            },
            unread: false,
        }
    }

    const ONE: &str = r#"[{"key":"a","over":{"exit":0,"token":6,"by":"b","at":"c"}}]"#;

    #[test]
    fn look_reports_the_last_version_and_makes_nothing() {
        let (_dir, path, share) = lock(&record(VersionState::Held, ""));
        assert_eq!(look(&path).unwrap().state, LockState::Held);
        share.make(2).unwrap();
        let seen = look(&path).unwrap();
        assert_eq!((seen.state, seen.record), (LockState::Held, None));
        assert!(seen.problem.is_some());
        share.make(3).unwrap();
        share
            .write_record(&VersionRecord {
                version: 3,
                ..record(VersionState::Released, "")
            })
            .unwrap();
        assert_eq!(look(&path).unwrap().state, LockState::Free);
        assert_eq!(share.list().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn break_counts_when_another_instance_takes_over_at_once() {
        let (_dir, path, share) = lock(&record(VersionState::Held, ""));
        let seen = look(&path).unwrap().record.unwrap();
        share.make(3).unwrap();
        let broken = break_lock(&path, &seen, None, "me");
        assert_eq!(broken, Ok(BreakResult::Within(Duration::ZERO)));
        let Hint::Record(hint) = share.hint().unwrap() else {
            panic!("the hint has no record");
        };
        assert_eq!(hint.version, 1, "the hint was rewritten");
    }

    #[test]
    fn a_look_waits_for_the_record_of_a_version_that_is_being_made() {
        let (_dir, path, share) = lock(&record(VersionState::Held, ""));
        share.make(2).unwrap();
        let writer = std::thread::spawn(move || {
            std::thread::sleep(RECORD_RETRY * 2);
            let held = record(VersionState::Held, "");
            share.write_record(&VersionRecord { version: 2, ..held })
        });
        let seen = look(&path).unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(
            (seen.record.map(|record| record.token), seen.problem),
            (Some(1), None)
        );
    }

    #[test]
    fn breaking_ends_the_tenure_that_was_shown_and_no_other() {
        let (_dir, path, share) = lock(&record(VersionState::Held, ONE));
        let seen = look(&path).unwrap().record.unwrap();
        let other = Record {
            token: 9,
            ..seen.clone()
        };
        assert_eq!(
            break_lock(&path, &other, None, "me"),
            Ok(BreakResult::Changed)
        );
        let lease = Duration::from_secs(15);
        assert_eq!(
            break_lock(&path, &seen, None, "me"),
            Ok(BreakResult::Within(lease))
        );
        let broken = share.record(2).unwrap();
        assert_eq!(
            (broken.state, broken.record.holder.as_str()),
            (VersionState::Held, "me")
        );
        assert_eq!(share.broken(1).unwrap(), share::Broken::Perhaps);
        assert_ne!(broken.nonce, 1);
        let now = Some(Duration::ZERO);
        assert_eq!(
            break_lock(&path, &seen, now, "me"),
            Ok(BreakResult::Within(Duration::ZERO))
        );
        let broken = share.record(3).unwrap();
        assert_eq!(broken.state, VersionState::Released);
        assert_eq!(broken.record.once, TaskLog::parse(ONE).unwrap());
        assert_eq!(break_lock(&path, &seen, now, "me"), Ok(BreakResult::Free));
    }

    #[test]
    fn results_are_forgotten_only_while_the_lock_is_free_and_if_unchanged() {
        let shown = TaskLog::parse(ONE).unwrap();
        let a = Tasks::Of("a".into());
        let (_dir, path, share) = lock(&record(VersionState::Held, ONE));
        assert_eq!(forget(&path, &a, &shown, false), Ok(ResetResult::Held));
        assert!(forget(&path, &a, &shown, true).is_err());
        let (_dir, path, free) = lock(&record(VersionState::Released, ONE));
        assert_eq!(
            forget(&path, &a, &TaskLog::EMPTY, false),
            Ok(ResetResult::Changed)
        );
        assert_eq!(forget(&path, &a, &shown, false), Ok(ResetResult::Done));
        assert_eq!(free.record(2).unwrap().record.once, TaskLog::EMPTY);
        let empty = TaskLog::EMPTY;
        assert_eq!(forget(&path, &a, &empty, false), Ok(ResetResult::Nothing));
        assert_eq!(share.list().unwrap(), [0, 1]);
    }

    #[test]
    fn race_has_one_winner_for_each_name_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock.probe");
        let race = race(&path, 20, &|| {}).unwrap();
        assert_eq!((race.names, race.shared, race.unmade), (20, 0, 0));
        assert_eq!(round_trips(&path, 5, &|| {}).unwrap().len(), 5);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn hint_of_a_removed_version_is_ignored() {
        let (_dir, path, share) = lock(&record(VersionState::Released, ""));
        for version in [2, 3] {
            share.make(version).unwrap();
            let held = VersionRecord {
                version,
                ..record(VersionState::Held, "")
            };
            share.write_record(&held).unwrap();
        }
        share.remove(0).unwrap();
        share.remove(1).unwrap();
        // The holder may lack permission to write the hint.
        assert_eq!(look(&path).unwrap().state, LockState::Held);
    }

    #[test]
    fn break_is_refused_to_a_user_whose_version_others_could_not_continue() {
        if !nix::unistd::geteuid().is_root() {
            println!("NOT TESTED: only root can give a directory away");
            return;
        }
        let (_dir, path, share) = lock(&record(VersionState::Held, ONE));
        let seen = look(&path).unwrap();
        std::os::unix::fs::chown(share.versions(), Some(4321), None).unwrap();
        let broken = break_lock(&path, seen.record.as_ref().unwrap(), None, "me");
        assert!(broken.is_err(), "{broken:?}");
        assert_eq!(share.list().unwrap(), [0, 1]);
        std::os::unix::fs::chown(share.versions(), Some(0), None).unwrap();
        let broken = break_lock(&path, seen.record.as_ref().unwrap(), None, "me");
        assert!(matches!(broken, Ok(BreakResult::Within(_))), "{broken:?}");
    }
}
