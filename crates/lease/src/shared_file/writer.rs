//! Writes records and hints behind the making of versions, and removes versions that are old.
//!
//! Called by `store` after every version that was made. Control does not depend on it: a server that
//! has just been restarted makes versions at once, and opens no file for a minute. So it has
//! threads of its own, which end when there is nothing to write; a newer record takes the place of
//! one that still waits. It must never write a record for a version that another made.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::share::Share;
use crate::version_record::VersionRecord;
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::observed::Version;
use trafficcop_core::util::lock;

/// What stays, and what is removed.
struct Keeping {
    // A version may be removed when so much later a newer one was made, by the server's clock: longer than any
    // cache of a client keeps a view of the directory.
    kept_for: Duration,
    // So many of the last versions stay, however old they are: after a night without a holder the last one must
    // still be found, with what is carried along.
    kept: usize,
    // How many are removed at once: more than come in a round, so that a backlog shrinks, and few enough for the
    // writing of records not to wait for long.
    removed: usize,
    // From one removal to the next, in versions: a listing of the directory is not to be had with each renewal.
    pace: u64,
}

const KEEPING: Keeping = Keeping {
    kept_for: Duration::from_secs(3600),
    kept: 64,
    removed: 128,
    pace: 32,
};

/// In minutes that stand for days, less is kept and for a shorter time: views that are older than that come up.
const SIMULATED: Keeping = Keeping {
    kept_for: Duration::from_secs(60),
    kept: 6,
    removed: 12,
    pace: 3,
};

fn keeping() -> &'static Keeping {
    match clock::is_simulated() {
        true => &SIMULATED,
        false => &KEEPING,
    }
}

/// What became of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// It, or that of a later version, stands in its place, on the server's disk.
    pub(super) record: bool,
    /// So does the hint.
    pub(super) hint: bool,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The record itself.
    Record,
    /// Whatever others can see it by.
    Either,
}

/// The writer of one lock.
#[derive(Clone)]
pub(super) struct Writer(Arc<Shared>);

struct Shared {
    share: Share,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Both, and the threads that write them.
const TARGETS: [(Target, &str); 2] = [(Target::Record, "lock-record"), (Target::Hint, "lock-hint")];

/// What is written where.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Record,
    Hint,
}

/// Records and hints have a queue and a thread each: a hint can have to wait until the server has received
/// of everybody who read it, and one of those may be gone.
#[derive(Default)]
struct Queue {
    record: Pending,
    hint: Pending,
    // A greater version than any of ours was found in the directory: the next renewal is told.
    surpassed: Option<Version>,
    /// The version after which old ones are looked for again.
    removal: Version,
}

#[derive(Default)]
struct Pending {
    // What is to be written next. One place and no list: of two that wait only the newer is worth writing.
    next: Option<VersionRecord>,
    /// A thread is at it.
    running: bool,
    /// The last version that was dealt with, and whether it was written.
    done: Option<(Version, bool)>,
    /// Trouble was told and has not ended.
    told: bool,
}

impl Pending {
    /// Whether the record of this version, or of one after it, was written; `None`: not known yet.
    fn outcome(&self, version: Version) -> Option<bool> {
        let (_, written) = self.done.filter(|(done, _)| *done >= version)?;
        Some(written)
    }

    /// Nothing is known of this version, and something is still under way.
    fn is_open(&self, version: Version) -> bool {
        self.running && self.outcome(version).is_none()
    }
}

impl Queue {
    fn pending(&mut self, target: Target) -> &mut Pending {
        match target {
            Target::Record => &mut self.record,
            Target::Hint => &mut self.hint,
        }
    }
}

impl Writer {
    pub(super) fn new(share: Share) -> Writer {
        Writer(Arc::new(Shared {
            share,
            queue: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Has this written once more where it was not and nobody is at it, unless others can see it by the other
    /// of the two.
    pub(super) fn again(&self, record: &VersionRecord) {
        let seen = self.outcome(record.version, Instant::ZERO, Wanted::Either);
        if seen.record || seen.hint {
            return;
        }
        for (target, name) in TARGETS {
            if !self.0.queue().pending(target).running {
                self.put_by(target, name, record);
            }
        }
    }

    /// Has this written as soon as what is under way is done.
    pub(super) fn put(&self, record: &VersionRecord) {
        for (target, name) in TARGETS {
            self.put_by(target, name, record);
        }
    }

    fn put_by(&self, target: Target, name: &str, record: &VersionRecord) {
        let mut queue = self.0.queue();
        let pending = queue.pending(target);
        pending.next = Some(record.clone());
        // What became of an attempt before this is no news of it.
        pending.done = pending.done.filter(|(done, _)| *done != record.version);
        if pending.running {
            return;
        }
        let shared = Arc::clone(&self.0);
        match clock::start_thread(name, move || shared.work(target)) {
            Ok(()) => pending.running = true,
            // The version is made, and the next one brings its record again.
            Err(error) => tracing::debug!(%error, "no thread to write the lock's record"),
        }
    }

    /// What became of the record of this version: waits until what is wanted is there, or will not be,
    /// or the time is up.
    pub(super) fn outcome(&self, version: Version, give_up_at: Instant, wanted: Wanted) -> Written {
        let mut queue = self.0.queue();
        loop {
            let written = Written {
                record: queue.record.outcome(version) == Some(true),
                hint: queue.hint.outcome(version) == Some(true),
            };
            let (enough, open) = match wanted {
                Wanted::Record => (written.record, queue.record.is_open(version)),
                Wanted::Either => (
                    written.record || written.hint,
                    queue.record.is_open(version) || queue.hint.is_open(version),
                ),
            };
            let left = give_up_at.since(Instant::now());
            if enough || !open || left.is_zero() {
                return written;
            }
            // In short naps: this wait's clock stands still in a suspend.
            let nap = left.min(Duration::from_millis(500));
            if clock::is_simulated() {
                drop(queue);
                clock::pause(nap.min(Duration::from_millis(20)));
                queue = self.0.queue();
                continue;
            }
            let waited = self.0.changed.wait_timeout(queue, nap);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A greater version than ours that was found where ours should be the greatest.
    pub(super) fn surpassed(&self) -> Option<Version> {
        self.0.queue().surpassed.take()
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn work(&self, target: Target) {
        loop {
            let (record, removal) = {
                let mut queue = self.queue();
                let pending = queue.pending(target);
                // Under the same mutex as `put`: a record that comes now finds the thread running, or begins one.
                let Some(record) = pending.next.take() else {
                    pending.running = false;
                    self.changed.notify_all();
                    return;
                };
                let due = target == Target::Record && record.version >= queue.removal;
                if due {
                    queue.removal = record.version.saturating_add(keeping().pace);
                }
                (record, due)
            };
            let version = record.version;
            let written = match target {
                Target::Record => self.share.write_record(&record),
                Target::Hint => self.share.write_hint(&record),
            };
            {
                let mut queue = self.queue();
                let pending = queue.pending(target);
                self.tell(pending, written.as_ref().err());
                pending.done = Some((version, written.is_ok()));
                self.changed.notify_all();
            }
            if removal && written.is_ok() {
                self.remove_old(version);
            }
        }
    }

    /// Said once until it goes well again.
    fn tell(&self, pending: &mut Pending, error: Option<&io::Error>) {
        let Some(error) = error else {
            pending.told = false;
            return;
        };
        if !std::mem::replace(&mut pending.told, true) {
            let path = self.share.path().display();
            tracing::warn!(
                %error,
                "{path}: the lock's record cannot be written ({error}); control is not affected, but standbys learn of changes late"
            );
        }
    }

    /// Removes what is older than an hour, oldest first. Whoever comes with a view as old as that
    /// finds that the version before its own is gone, and withdraws. It ends with the first that was
    /// not removed for certain: none may be gone while one before it is there.
    fn remove_old(&self, ours: Version) {
        let Ok(versions) = self.share.list() else {
            return;
        };
        if let Some(greatest) = versions.last().filter(|greatest| **greatest > ours) {
            self.queue().surpassed.get_or_insert(*greatest);
            return;
        }
        let Ok(now) = self.share.made_at(ours) else {
            return;
        };
        // Oldest first: a gap in the chain would pass for its beginning.
        let keeping = keeping();
        let old = versions.len().saturating_sub(keeping.kept);
        for version in versions[..old].iter().take(keeping.removed) {
            let made = self.share.made_at(*version);
            let age = made.ok().and_then(|made| now.checked_sub(made));
            if age.is_none_or(|age| age < keeping.kept_for) || self.share.remove(*version).is_err()
            {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::{UtimensatFlags, utimensat};
    use nix::sys::time::TimeSpec;

    use super::super::share::Made;
    use super::*;
    use crate::record::Record;
    use crate::version_record::State;

    fn record(version: Version) -> VersionRecord {
        VersionRecord {
            version,
            state: State::Held,
            nonce: 1,
            lease: Duration::from_secs(15),
            record: Record::default(),
            unread: false,
        }
    }

    fn lock() -> (tempfile::TempDir, Share) {
        let dir = tempfile::tempdir().unwrap();
        let share = Share::new(&dir.path().join("lock"));
        share.make_hint().unwrap();
        share.begin().unwrap();
        (dir, share)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn a_record_is_written_to_its_place_and_to_the_hint() {
        let (_dir, share) = lock();
        let writer = Writer::new(share.clone());
        let nothing = Written::default();
        assert_eq!(writer.outcome(1, soon(), Wanted::Either), nothing);
        assert_eq!(share.make(1).unwrap(), Made::Made);
        writer.put(&record(1));
        assert!(writer.outcome(1, soon(), Wanted::Record).record);
        assert_eq!(share.record(1), Some(record(1)));
        // Of a version that is another's nothing is written over.
        let other = VersionRecord {
            nonce: 2,
            ..record(1)
        };
        assert!(share.write_record(&other).is_err());
        assert_eq!(share.record(1), Some(record(1)));
        // A hint that cannot be written keeps no record from being written.
        std::fs::remove_file(share.path()).unwrap();
        share.make(2).unwrap();
        writer.put(&record(2));
        assert!(writer.outcome(2, soon(), Wanted::Either).record);
        assert_eq!(share.record(2), Some(record(2)));
    }

    #[test]
    fn old_versions_are_removed_oldest_first_but_not_the_last_64() {
        let (_dir, share) = lock();
        for version in 0..=100 {
            share.make(version).unwrap();
            share.is_there(version).unwrap();
            if version <= 90 {
                let name = share.versions().join(format!("{version:020}"));
                let old = share.made_at(version).unwrap() - Duration::from_secs(3700);
                let old = TimeSpec::from_duration(old);
                let flags = UtimensatFlags::FollowSymlink;
                utimensat(nix::fcntl::AT_FDCWD, &name, &old, &old, flags).unwrap();
            }
        }
        let writer = Writer::new(share.clone());
        writer.0.remove_old(100);
        let left = share.list().unwrap();
        assert_eq!((left[0], left.len()), (37, 64));
        // What is not an hour old stays, and with it all that is younger.
        for version in 101..=180 {
            share.make(version).unwrap();
        }
        writer.0.remove_old(180);
        assert_eq!(share.list().unwrap()[0], 91);
        share.make(181).unwrap();
        writer.0.remove_old(180);
        assert_eq!(writer.surpassed(), Some(181));
    }
}
