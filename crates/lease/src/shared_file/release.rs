//! Gives the lock back after the supervisor's death, from the guardian.
//!
//! What it needs lies in memory that the two share, because it changes with every renewal: the
//! store leaves a note with each version ([`leave_note`]), from the taking over to the moment at which others can
//! read that the lock is free ([`forget`]). [`execute`] is called when the supervisor is dead and
//! the tree is empty. It must never make a version after one that may be another's.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

use super::chain::STEPS;
use super::share::{Made, Share};
use super::whose::{Whose, whose};
use crate::errors::{errno_of, is_passing};
use crate::version_record::{State, VersionRecord};
use crate::{MakeMemory, SharedMemory};
use trafficcop_core::Observed;
use trafficcop_core::clock::{self, Instant};
use trafficcop_core::util::lock;

// What the guardian is told to release by. It is told before the first tenure; the rest changes with every renewal
// and is in the memory.
pub(super) const MARK: &[u8] = b"shared drive";

/// After so many seconds a drive that does not answer is left alone; the lease runs out by itself.
pub const LIMIT: u32 = 10;
// From one attempt to the next of what failed for a moment.
const RETRY: Duration = Duration::from_millis(250);

// Of the process and not of a store: the guardian is forked before there is any, and finds it here.
static MEMORY: OnceLock<Option<Arc<dyn SharedMemory>>> = OnceLock::new();
// The memory has one writer at a time, and slots are released at once.
static WRITING: Mutex<()> = Mutex::new(());

/// Makes the memory, keeps it for [`execute`], and returns what is kept; the first call counts. Call it
/// before the fork.
pub(super) fn prepare(make: MakeMemory) -> Option<Arc<dyn SharedMemory>> {
    MEMORY.get_or_init(make).clone()
}

/// Whether this is ours to carry out.
pub(crate) fn is_meant(release_info: &[u8]) -> bool {
    release_info == MARK
}

/// Tells the guardian the lock's path, since when our lease counts, and the record of our last version.
pub(super) fn leave_note(
    memory: &dyn SharedMemory,
    path: &Path,
    t0: Instant,
    record: &VersionRecord,
) {
    let _writing = lock(&WRITING);
    memory.put(&note(path, t0, record));
}

/// Takes back the note of the lock at this path.
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

/// Makes the version after the last that was ours, and says in it that the lock is free.
pub(crate) fn execute() {
    let Some(memory) = MEMORY.get().and_then(Option::as_ref) else {
        return;
    };
    // A drive that hangs must not keep the guardian: the alarm ends it, wherever it waits. It is blocked
    // here, as other signals are that the guardian reads.
    let alarm: SigSet = [Signal::SIGALRM].into_iter().collect();
    let _ = alarm.thread_unblock();
    nix::unistd::alarm::set(LIMIT);
    release_orphaned_by(&**memory);
    nix::unistd::alarm::cancel();
}

/// What the guardian does by what stands in this memory, if it is given [`LIMIT`] for it.
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
    if last.state == State::Released {
        // Our supervisor died before it knew that others can read that.
        if share.record(last.version).is_none() {
            tell(share, &last, give_up_at);
        }
        return;
    }
    // It may have died before it knew whether its version goes on from anything.
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
    // More than one where our supervisor died between making a version and noting it: nobody writes the record of
    // that any more, and without one it is held for 60 s.
    while steps < STEPS {
        let Some(version) = observed.own().and_then(|own| own.checked_add(1)) else {
            return;
        };
        match share.make(version) {
            // As for a holder: what we went on from is gone, and a version that nothing is before would end the
            // lock for everybody.
            Ok(Made::Made) if matches!(share.is_there(version - 1), Ok(false)) => {
                let _ = share.remove(version);
                return;
            }
            Ok(Made::Made) => {
                let record = VersionRecord {
                    version,
                    state: State::Released,
                    ..last
                };
                return tell(share, &record, give_up_at);
            }
            Ok(Made::Exists) => {
                let judge = |claim| observed.exists(version, claim, Instant::now());
                // Another's, for whom it is; or not to be known, and it runs out by itself.
                match whose(share, version, judge) {
                    Ok(Whose::Ours) => steps += 1,
                    Err(error) if is_passing(errno_of(&error)) && waits(give_up_at) => {}
                    _ => return,
                }
            }
            // Whether it was made is seen when it is asked for again.
            Err(error) if is_passing(errno_of(&error)) && waits(give_up_at) => {}
            Err(_) => return,
        }
    }
}

/// Says that a version of ours is free.
fn tell(share: &Share, record: &VersionRecord, give_up_at: Instant) {
    // One of the two is enough, and nobody can be told any more. What was begun of a record is not begun again: then
    // the hint has to say it.
    while share.write_record(record).is_err()
        && share.write_hint(record).is_err()
        && waits(give_up_at)
    {}
    let _ = share.write_hint(record);
}

/// Waits a moment, if there is time for another attempt after it.
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
            state: State::Draining,
            nonce: 5,
            lease: Duration::from_secs(15),
            record: Record::default(),
            unread: false,
        };
        (dir, path, share, last)
    }

    #[test]
    fn a_note_gives_back_what_is_still_the_last_and_nothing_else() {
        let (_dir, path, share, last) = tenure();
        let noted = note(&path, Instant::now(), &last);
        let (there, t0, read) = read(&noted).unwrap();
        assert_eq!(there, path);
        give_back(&share, t0, read);
        assert_eq!(share.record(2).unwrap().state, State::Released);
        // Another's.
        let of_another = VersionRecord { nonce: 6, ..last };
        give_back(&share, t0, of_another);
        assert_eq!(share.list().unwrap(), [0, 1, 2]);
        for bytes in [&b""[..], b"a\0b", &noted[..20]] {
            assert!(super::read(bytes).is_none());
        }
    }

    #[test]
    fn what_a_supervisor_made_before_it_died_and_did_not_note_is_given_back() {
        let (_dir, _path, share, last) = tenure();
        share.make(2).unwrap();
        give_back(&share, Instant::now(), last);
        assert_eq!(share.record(3).unwrap().state, State::Released);
        assert_eq!(share.list().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_release_whose_record_is_missing_is_written_and_one_that_can_be_read_is_left_alone() {
        let (_dir, _path, share, last) = tenure();
        let released = VersionRecord {
            version: 2,
            state: State::Released,
            ..last
        };
        share.make(2).unwrap();
        give_back(&share, Instant::now(), released.clone());
        assert_eq!(share.record(2).as_ref(), Some(&released));
        // Another has taken over, and has yet to write its record.
        share.make(3).unwrap();
        give_back(&share, Instant::now(), released);
        assert_eq!(share.list().unwrap(), [0, 1, 2, 3]);
        assert_eq!(share.record(3), None);
    }

    #[test]
    fn a_version_that_was_not_confirmed_and_goes_on_from_none_is_not_followed() {
        let (_dir, _path, share, last) = tenure();
        share.make(7).unwrap();
        let unconfirmed = VersionRecord { version: 7, ..last };
        give_back(&share, Instant::now(), unconfirmed);
        assert_eq!(share.list().unwrap(), [0, 1, 7]);
    }

    /// Bytes of this process.
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
    fn a_note_is_forgotten_with_its_lock_and_not_with_another_slot() {
        let (_dir, path, _share, last) = tenure();
        let memory = Bytes::default();
        forget(&memory, &path);
        leave_note(&memory, &path, Instant::now(), &last);
        forget(&memory, Path::new("/another"));
        assert!(memory.take().is_some());
        forget(&memory, &path);
        assert_eq!(memory.take(), None);
    }

    /// The drive was set back to what it was before.
    #[test]
    fn nothing_is_left_behind_a_gap() {
        let (_dir, _path, share, last) = tenure();
        share.remove(1).unwrap();
        give_back(&share, Instant::now(), last);
        assert_eq!(share.list().unwrap(), [0]);
    }

    #[test]
    fn what_may_be_an_operator_s_or_somebody_s_after_the_lease_is_left_alone() {
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

    /// In a simulation, which has a drive that fails.
    #[cfg(debug_assertions)]
    mod simulated {
        use std::io;
        use std::rc::Rc;
        use std::sync::atomic::{AtomicBool, Ordering};

        use nix::errno::Errno;

        use super::super::super::files::{self, Answer, Call, Drive};
        use super::*;
        use trafficcop_core::clock::{SimulatedClock, start_thread};

        /// A disk of this machine that fails once when it is asked whether a lease was broken.
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
        fn whose_answer_failed_for_a_moment_is_asked_again_also_whose_a_version_is() {
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
            assert_eq!(told.recv(), Ok(Some(State::Released)));
        }
    }
}
