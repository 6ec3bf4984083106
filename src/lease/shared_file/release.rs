//! Gives the lock back after the supervisor's death, from the guardian.
//!
//! What it needs lies in memory that the two share, because it changes with every renewal: the
//! store writes a [`note`] with each version, [`execute`] is called when the supervisor is dead and
//! the tree is empty. It must never make more than the one version after the last that was ours.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nix::sys::signal::{SigSet, Signal};

use super::record::{State, VersionRecord};
use super::share::{Made, Share};
use crate::lease::{MakeMemory, SharedMemory};

// What the guardian is told to release by. It is told once in a tenure; the rest changes with every renewal and
// is in the memory.
pub(super) const MARK: &[u8] = b"shared drive";

/// After so many seconds a drive that does not answer is left alone; the lease runs out by itself.
pub const LIMIT: u32 = 10;

// Of the process and not of a store: the guardian is forked before there is any, and finds it here.
static MEMORY: OnceLock<Option<Arc<dyn SharedMemory>>> = OnceLock::new();

/// Makes the memory, keeps it for [`execute`], and returns what is kept; the first call counts. Call it
/// before the fork.
pub(super) fn prepare(make: MakeMemory) -> Option<Arc<dyn SharedMemory>> {
    MEMORY.get_or_init(make).clone()
}

/// Whether this is ours to carry out.
pub(in crate::lease) fn is_meant(release_info: &[u8]) -> bool {
    release_info == MARK
}

/// The lock's path and the last record of ours.
pub(super) fn note(path: &Path, record: &VersionRecord) -> Vec<u8> {
    [path.as_os_str().as_bytes(), b"\0", &record.encode()].concat()
}

/// Makes the version after the last that was ours, and says in it that the lock is free.
pub(in crate::lease) fn execute() {
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
    if let Some((path, last)) = note.as_deref().and_then(read) {
        give_back(&Share::new(&path), last);
    }
}

fn read(note: &[u8]) -> Option<(PathBuf, VersionRecord)> {
    let at = note.iter().position(|byte| *byte == 0)?;
    let path = std::ffi::OsString::from_vec(note[..at].to_vec());
    Some((path.into(), VersionRecord::decode(&note[at + 1..])?))
}

fn give_back(share: &Share, last: VersionRecord) {
    let Some(version) = last.version.checked_add(1) else {
        return;
    };
    // If it exists somebody made it: a renewal of ours whose answer nobody received, which runs out by
    // itself, or another, for whom it is.
    if let Ok(Made::Made) = share.make(version) {
        let record = VersionRecord {
            version,
            state: State::Released,
            ..last
        };
        // One of the two is enough, and nobody can be told any more.
        let _ = share.write_record(&record);
        let _ = share.write_hint(&record);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lease::record::Record;

    #[test]
    fn a_note_gives_back_what_is_still_the_last_and_nothing_else() {
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
        let (there, read) = read(&note(&path, &last)).unwrap();
        assert_eq!(there, path);
        give_back(&share, read);
        assert_eq!(share.record(2).unwrap().state, State::Released);
        give_back(&share, last);
        assert_eq!(share.list().unwrap(), [0, 1, 2]);
        assert!(super::read(b"").is_none() && super::read(b"a\0b").is_none());
    }
}
