//! Releases the lock after the supervisor's death, from the guardian.
//!
//! The store leaves a note with each version ([`leave_note`]) in shared memory, until others can read that the
//! lock is free ([`forget`]). [`execute`] runs when the supervisor is dead and the tree is empty. It must never
//! make a version after one that may be another's.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use super::chain::STEPS;
use super::owner::{Owner, owner_of};
use super::share::{Made, Share};
use crate::errors::{errno_of, is_passing};
use crate::version_record::{VersionRecord, VersionState};
use crate::{MakeMemory, SharedMemory};
use trafficcop_core::Observed;
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::util::lock;

pub(super) const MARK: &[u8] = b"shared drive";

/// Seconds that the guardian waits for a drive; then the lease runs out.
pub const LIMIT: u32 = 10;
const RETRY: Duration = Duration::from_millis(250);

// One for the process: the guardian is forked before any store exists.
static MEMORY: OnceLock<Option<Arc<dyn SharedMemory>>> = OnceLock::new();
// Slots can be released together.
static WRITING: Mutex<()> = Mutex::new(());

/// Makes the memory at the first call, before the fork.
pub(super) fn prepare(make: MakeMemory) -> Option<Arc<dyn SharedMemory>> {
    MEMORY.get_or_init(make).clone()
}

pub(crate) fn is_meant(release_info: &[u8]) -> bool {
    release_info == MARK
}

pub(super) fn leave_note(
    memory: &dyn SharedMemory,
    path: &Path,
    t0: Instant,
    record: &VersionRecord,
) {
    let _writing = lock(&WRITING);
    memory.put(&note(path, t0, record));
}

pub(super) fn forget(memory: &dyn SharedMemory, path: &Path) {
    let _writing = lock(&WRITING);
    let noted = memory.take().as_deref().and_then(read);
    if noted.is_some_and(|(noted, ..)| noted == path) {
        memory.put(&[]);
    }
}

fn note(path: &Path, t0: Instant, record: &VersionRecord) -> Vec<u8> {
    let t0 = t0.as_nanos().to_ne_bytes();
    [path.as_os_str().as_bytes(), b"\0", &t0, &record.encode()].concat()
}

pub(crate) fn execute() {
    let Some(memory) = MEMORY.get().and_then(Option::as_ref) else {
        return;
    };
    // A drive that hangs must not keep the guardian, which has blocked SIGALRM.
    let alarm: SigSet = [Signal::SIGALRM].into_iter().collect();
    let _ = alarm.thread_unblock();
    nix::unistd::alarm::set(LIMIT);
    release_orphaned_by(&**memory);
    nix::unistd::alarm::cancel();
}

/// Does what the guardian does with a note.
pub fn release_orphaned_by(memory: &dyn SharedMemory) {
    let note = memory.take();
    if let Some((path, t0, last)) = note.as_deref().and_then(read) {
        give_back(&Share::new(&path), t0, last);
    }
}

fn read(note: &[u8]) -> Option<(PathBuf, Instant, VersionRecord)> {
    let at = note.iter().position(|byte| *byte == 0)?;
    let path = std::ffi::OsString::from_vec(note[..at].to_vec());
    let (t0, record) = note[at + 1..].split_first_chunk()?;
    let t0 = Instant::from_nanos(u64::from_ne_bytes(*t0));
    Some((path.into(), t0, VersionRecord::decode(record)?))
}

fn give_back(share: &Share, t0: Instant, last: VersionRecord) {
    let give_up_at = Instant::now() + Duration::from_secs(LIMIT.into());
    if last.state == VersionState::Released {
        // The supervisor died before it knew that others can read that.
        if share.record(last.version).is_none() {
            tell(share, &last, give_up_at);
        }
        return;
    }
    // The supervisor may have died before it knew whether this version has a predecessor.
    loop {
        match share.is_there(last.version.saturating_sub(1)) {
            Ok(true) => break,
            Err(error) if is_passing(errno_of(&error)) && waits(give_up_at) => {}
            Ok(false) | Err(_) => return,
        }
    }
    let mut observed = Observed::new(last.nonce, last.lease);
    observed.made(last.version, t0);
    let mut steps = 0;
    // Several: the supervisor may have died between making a version and noting it.
    while steps < STEPS {
        let Some(version) = observed.own().and_then(|own| own.checked_add(1)) else {
            return;
        };
        match share.make(version) {
            // A version without a predecessor would end the lock for all.
            Ok(Made::Made) if matches!(share.is_there(version - 1), Ok(false)) => {
                let _ = share.remove(version);
                return;
            }
            Ok(Made::Made) => {
                let record = VersionRecord {
                    version,
                    state: VersionState::Released,
                    ..last
                };
                return tell(share, &record, give_up_at);
            }
            Ok(Made::Exists) => {
                let judge = |claim| observed.exists(version, claim, Instant::now());
                // Another instance has it, or the owner is unknown and the lease runs out.
                match owner_of(share, version, judge) {
                    Ok(Owner::Ours) => steps += 1,
                    Err(error) if is_passing(errno_of(&error)) && waits(give_up_at) => {}
                    _ => return,
                }
            }
            // The next request shows whether it was made.
            Err(error) if is_passing(errno_of(&error)) && waits(give_up_at) => {}
            Err(_) => return,
        }
    }
}

fn tell(share: &Share, record: &VersionRecord, give_up_at: Instant) {
    // A record that was begun is not begun again: then the hint must be written.
    while share.write_record(record).is_err()
        && share.write_hint(record).is_err()
        && waits(give_up_at)
    {}
    let _ = share.write_hint(record);
}

/// Waits before another attempt; `false`: no time is left.
fn waits(give_up_at: Instant) -> bool {
    let soon = Instant::now() + RETRY < give_up_at;
    if soon {
        clock::pause(RETRY);
    }
    soon
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn tenure() -> (tempfile::TempDir, PathBuf, Share, VersionRecord) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let share = Share::new(&path);
        share.make_hint().unwrap();
        share.begin().unwrap();
        share.make(1).unwrap();
        let last = VersionRecord {
            version: 1,
            state: VersionState::Draining,
            nonce: 5,
            lease: Duration::from_secs(15),
            record: Record::default(),
            unread: false,
        };
        (dir, path, share, last)
    }

    #[test]
    fn note_releases_the_lock_only_while_its_version_is_the_last() {
        let (_dir, path, share, last) = tenure();
        let noted = note(&path, Instant::now(), &last);
        let (there, t0, read) = read(&noted).unwrap();
        assert_eq!(there, path);
        give_back(&share, t0, read);
        assert_eq!(share.record(2).unwrap().state, VersionState::Released);
        let of_another = VersionRecord { nonce: 6, ..last };
        give_back(&share, t0, of_another);
        assert_eq!(share.list().unwrap(), [0, 1, 2]);
        for bytes in [&b""[..], b"a\0b", &noted[..20]] {
            assert!(super::read(bytes).is_none());
        }
    }

    #[test]
    fn version_that_a_dead_supervisor_did_not_note_is_given_back() {
        let (_dir, _path, share, last) = tenure();
        share.make(2).unwrap();
        give_back(&share, Instant::now(), last);
        assert_eq!(share.record(3).unwrap().state, VersionState::Released);
        assert_eq!(share.list().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn missing_record_of_a_release_is_written_and_a_readable_one_is_left_alone() {
        let (_dir, _path, share, last) = tenure();
        let released = VersionRecord {
            version: 2,
            state: VersionState::Released,
            ..last
        };
        share.make(2).unwrap();
        give_back(&share, Instant::now(), released.clone());
        assert_eq!(share.record(2).as_ref(), Some(&released));
        // Another instance writes its record later.
        share.make(3).unwrap();
        give_back(&share, Instant::now(), released);
        assert_eq!(share.list().unwrap(), [0, 1, 2, 3]);
        assert_eq!(share.record(3), None);
    }

    #[test]
    fn unconfirmed_version_without_a_predecessor_is_not_continued() {
        let (_dir, _path, share, last) = tenure();
        share.make(7).unwrap();
        let unconfirmed = VersionRecord { version: 7, ..last };
        give_back(&share, Instant::now(), unconfirmed);
        assert_eq!(share.list().unwrap(), [0, 1, 7]);
    }

    #[derive(Default)]
    struct Bytes(Mutex<Vec<u8>>);

    impl SharedMemory for Bytes {
        fn put(&self, bytes: &[u8]) {
            *lock(&self.0) = bytes.to_vec();
        }

        fn take(&self) -> Option<Vec<u8>> {
            Some(lock(&self.0).clone()).filter(|bytes| !bytes.is_empty())
        }
    }

    #[test]
    fn forgetting_a_lock_clears_its_note_and_not_that_of_another_slot() {
        let (_dir, path, _share, last) = tenure();
        let memory = Bytes::default();
        forget(&memory, &path);
        leave_note(&memory, &path, Instant::now(), &last);
        forget(&memory, Path::new("/another"));
        assert!(memory.take().is_some());
        forget(&memory, &path);
        assert_eq!(memory.take(), None);
    }

    /// The drive was set back to an earlier state.
    #[test]
    fn version_made_after_a_gap_is_removed() {
        let (_dir, _path, share, last) = tenure();
        share.remove(1).unwrap();
        give_back(&share, Instant::now(), last);
        assert_eq!(share.list().unwrap(), [0]);
    }

    #[test]
    fn version_of_an_unknown_owner_is_left_alone() {
        let (_dir, _path, share, last) = tenure();
        assert!(share.say_broken(1).unwrap());
        share.make(2).unwrap();
        give_back(&share, Instant::now(), last.clone());
        assert_eq!(share.list().unwrap(), [0, 1, 2]);
        let (_dir, _path, share, _) = tenure();
        share.make(2).unwrap();
        let lease = last.lease;
        give_back(&share, Instant::now() - lease, last);
        assert_eq!(share.list().unwrap(), [0, 1, 2]);
    }

    #[cfg(debug_assertions)]
    mod simulated {
        use std::io;
        use std::rc::Rc;
        use std::sync::atomic::{AtomicBool, Ordering};

        use nix::errno::Errno;

        use super::super::super::files::{self, Answer, Call, Drive};
        use super::*;
        use trafficcop_core::clock::{SimulatedClock, start_thread};

        /// Local disk that fails once when asked for a break.
        #[derive(Default)]
        struct Fails(AtomicBool);

        impl Drive for Fails {
            fn ask(&self, call: Call) -> io::Result<Answer> {
                let is_it =
                    matches!(&call, Call::MakeDirectory(path) if path.ends_with("broken.1"));
                if is_it && !self.0.swap(true, Ordering::Relaxed) {
                    return Err(Errno::EIO.into());
                }
                files::carry_out(call)
            }
        }

        #[test]
        fn passing_error_of_the_owner_check_is_retried() {
            let (_dir, _path, share, last) = tenure();
            share.make(2).unwrap();
            let drive: Box<dyn Drive> = Box::new(Fails::default());
            let clock: Rc<SimulatedClock> = Rc::default();
            clock.carry(Arc::new(drive));
            let begun = Instant::ZERO + Duration::from_secs(1000);
            let (tell, told) = std::sync::mpsc::channel();
            clock.enter(begun, Duration::ZERO, || {
                start_thread("work", move || {
                    give_back(&share, Instant::now(), last);
                    let _ = tell.send(share.record(3).map(|record| record.state));
                })
                .unwrap();
            });
            while let Some(next) = clock.next() {
                clock.enter(next, Duration::ZERO, || {});
            }
            assert_eq!(told.recv(), Ok(Some(VersionState::Released)));
        }
    }
}
