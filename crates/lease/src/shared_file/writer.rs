//! Writes records and hints behind the making of versions, and removes old versions.
//!
//! Control does not depend on it: a server that has just restarted makes versions at once, and opens no file
//! for a minute. So it has threads of its own. It must never write a record for another's version.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::share::Share;
use crate::version_record::VersionRecord;
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::observed::Version;
use trafficcop_core::util::lock;

/// Limits of the old versions that stay.
#[derive(Clone, Copy, Debug)]
pub struct KeptVersions {
    /// Age at which versions may be removed, by the server's clock: no client's cached view is as old.
    pub kept_for: Duration,
    /// Last versions that stay: after a night without a holder, the last results must be found.
    pub kept: usize,
    /// Versions removed at once: more than come in a round, but few, as records wait meanwhile.
    pub removed: usize,
    /// Versions between two lists, which would cost too much at each renewal.
    pub pace: u64,
}

pub(crate) const KEPT_VERSIONS: KeptVersions = KeptVersions {
    kept_for: Duration::from_secs(3600),
    kept: 64,
    removed: 128,
    pace: 32,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// Whether the record, or a later version's, is on the server's disk.
    pub(super) record: bool,
    pub(super) hint: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Record,
    /// Record or hint: others can read either.
    Either,
}

#[derive(Clone)]
pub(super) struct Writer(Arc<SharedQueue>);

struct SharedQueue {
    share: Share,
    kept_versions: KeptVersions,
    queue: Mutex<Queue>,
    changed: Condvar,
}

const TARGETS: [(Target, &str); 2] = [(Target::Record, "lock-record"), (Target::Hint, "lock-hint")];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Record,
    Hint,
}

/// Records and hints, with a thread each: a hint may wait for every client that read it, and one may be gone.
#[derive(Default)]
struct Queue {
    record: Pending,
    hint: Pending,
    // Version greater than any own, for the next renewal.
    surpassed: Option<Version>,
    removal: Version,
}

#[derive(Default)]
struct Pending {
    // Record to write next: of two, only the newer is worth writing.
    next: Option<VersionRecord>,
    running: bool,
    done: Option<(Version, bool)>,
    told: bool,
}

impl Pending {
    /// Whether the record of this version, or a later one, was written; `None`: not known yet.
    fn outcome(&self, version: Version) -> Option<bool> {
        let (_, written) = self.done.filter(|(done, _)| *done >= version)?;
        Some(written)
    }

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
    pub(super) fn new(share: Share, kept_versions: KeptVersions) -> Writer {
        Writer(Arc::new(SharedQueue {
            share,
            kept_versions,
            queue: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Writes this once more, unless a thread is at it or others can read it.
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

    /// Writes this after the current write.
    pub(super) fn put(&self, record: &VersionRecord) {
        for (target, name) in TARGETS {
            self.put_by(target, name, record);
        }
    }

    fn put_by(&self, target: Target, name: &str, record: &VersionRecord) {
        let mut queue = self.0.queue();
        let pending = queue.pending(target);
        pending.next = Some(record.clone());
        // An earlier attempt's outcome says nothing of this one.
        pending.done = pending.done.filter(|(done, _)| *done != record.version);
        if pending.running {
            return;
        }
        let shared = Arc::clone(&self.0);
        match clock::start_thread(name, move || shared.work(target)) {
            Ok(()) => pending.running = true,
            // The next version brings its record again.
            Err(error) => tracing::debug!(%error, "no thread to write the lock's record"),
        }
    }

    /// Returns the outcome once it is decided or the time is up.
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
            // In short pauses: the clock of this wait stops in a suspend.
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

    pub(super) fn surpassed(&self) -> Option<Version> {
        self.0.queue().surpassed.take()
    }
}

impl SharedQueue {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn work(&self, target: Target) {
        loop {
            let (record, removal) = {
                let mut queue = self.queue();
                let pending = queue.pending(target);
                // Under the mutex of `put`: a record that comes now finds the thread running, or starts one.
                let Some(record) = pending.next.take() else {
                    pending.running = false;
                    self.changed.notify_all();
                    return;
                };
                let due = target == Target::Record && record.version >= queue.removal;
                if due {
                    queue.removal = record.version.saturating_add(self.kept_versions.pace);
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

    fn tell(&self, pending: &mut Pending, error: Option<&io::Error>) {
        let Some(error) = error else {
            pending.told = false;
            return;
        };
        if !std::mem::replace(&mut pending.told, true) {
            let path = self.share.path().display();
            tracing::warn!(
                %error,
                "{path}: the lock's record cannot be written ({error}); control is not affected, but standbys \
                 learn of changes late"
            );
        }
    }

    /// Removes old versions. An instance with a view as old finds its version's predecessor missing, and
    /// withdraws. Stops at the first version that was not certainly removed.
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
        let kept_versions = self.kept_versions;
        let old = versions.len().saturating_sub(kept_versions.kept);
        for version in versions[..old].iter().take(kept_versions.removed) {
            let made = self.share.made_at(*version);
            let age = made.ok().and_then(|made| now.checked_sub(made));
            if age.is_none_or(|age| age < kept_versions.kept_for)
                || self.share.remove(*version).is_err()
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
    use crate::version_record::VersionState;

    fn record(version: Version) -> VersionRecord {
        VersionRecord {
            version,
            state: VersionState::Held,
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
        let writer = Writer::new(share.clone(), KEPT_VERSIONS);
        let nothing = Written::default();
        assert_eq!(writer.outcome(1, soon(), Wanted::Either), nothing);
        assert_eq!(share.make(1).unwrap(), Made::Made);
        writer.put(&record(1));
        assert!(writer.outcome(1, soon(), Wanted::Record).record);
        assert_eq!(share.record(1), Some(record(1)));
        let other = VersionRecord {
            nonce: 2,
            ..record(1)
        };
        assert!(share.write_record(&other).is_err());
        assert_eq!(share.record(1), Some(record(1)));
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
        let writer = Writer::new(share.clone(), KEPT_VERSIONS);
        writer.0.remove_old(100);
        let left = share.list().unwrap();
        assert_eq!((left[0], left.len()), (37, 64));
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
