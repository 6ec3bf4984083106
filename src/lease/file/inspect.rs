//! Looks at a file's lock without competing for it, and lists the locks of a directory.
//!
//! Called by the verbs. Opens for reading only, creates and locks nothing: who looks needs no
//! permission to write, and no instance can find the lock taken because somebody looked. That a
//! lock is held is what the kernel says; the record only tells who wrote it last.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use super::blocking::{Lane, Stalled};
use super::once_log::{self, Lookup};
use super::record::Content;
use super::{lock, open};
use crate::clock::Instant;
use crate::core::Failure;
use crate::lease::inspect::{Broken, LockState, LockStatus, UNREAD};
use crate::lease::once::TaskLog;
use crate::lease::record::Record;
use crate::lease::{mount, shared_file};

/// The flaw of a lock of the kernel's on a drive that machines share.
pub const KERNEL_ON_SHARED: &str =
    "a lock of the kernel's on a shared drive, where it keeps nobody out: 'run' refuses it";
/// How often a file is read again that changed hands while it was read.
const READS: usize = 4;

/// A path, to be looked at.
pub struct Inspector {
    path: PathBuf,
    blocking: Lane,
}

impl Inspector {
    /// Nothing is opened yet.
    ///
    /// # Errors
    /// Where there is no working directory to a relative path.
    pub fn new(path: &Path) -> io::Result<Inspector> {
        Ok(Inspector {
            path: std::path::absolute(path)?,
            blocking: Lane::new(),
        })
    }

    /// The path, for people.
    #[must_use]
    pub fn lock(&self) -> String {
        self.path.display().to_string()
    }

    /// Looks.
    ///
    /// # Errors
    /// `Fatal` where it is no lock or cannot be read, `Transient` where the file system does not
    /// answer.
    pub async fn look(&self, give_up_at: Instant) -> Result<LockStatus, Failure> {
        self.blocking(give_up_at, |path| look(&path)).await
    }

    /// The locks in the directory, or those whose paths begin with the path: files that bear our
    /// record. Those that cannot be read are left out, and told of in the log.
    ///
    /// # Errors
    /// As [`Inspector::look`].
    pub async fn list(&self, give_up_at: Instant) -> Result<Vec<LockStatus>, Failure> {
        self.blocking(give_up_at, |path| list(&path)).await
    }

    /// The locks beside the path whose names are its own and `suffix` and more.
    ///
    /// # Errors
    /// As [`Inspector::look`].
    pub async fn list_beside(
        &self,
        suffix: &'static str,
        give_up_at: Instant,
    ) -> Result<Vec<LockStatus>, Failure> {
        self.blocking(give_up_at, move |path| list(&mount::beside(&path, suffix)))
            .await
    }

    /// Whether the lock is one of a shared drive, and so a lease; else it is the kernel's.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        super::is_shared(&self.path)
    }

    /// Ends the tenure that was shown, on a shared drive: others can have control after `period` (10 to
    /// 60 s, or at once), or without one after its own lease. `by` is named in the record.
    ///
    /// # Errors
    /// As [`Inspector::look`]. After `Transient` it may be broken or not.
    pub async fn break_lease(
        &self,
        seen: &Record,
        period: Option<Duration>,
        by: &str,
        give_up_at: Instant,
    ) -> Result<Broken, Failure> {
        let (seen, by) = (seen.clone(), by.to_owned());
        self.blocking(give_up_at, move |path| {
            shared_file::break_lock(&path, &seen, period, &by)
        })
        .await
    }

    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        give_up_at: Instant,
        job: impl FnOnce(PathBuf) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let path = self.path.clone();
        match self.blocking.run(give_up_at, move || job(path)).await {
            Ok(done) => done,
            Err(Stalled::NoThread) => Err(self.hangs("no thread could be started")),
            Err(Stalled::Occupied | Stalled::Overtime) => {
                Err(self.hangs("its file system does not answer"))
            }
        }
    }

    fn hangs(&self, why: &str) -> Failure {
        Failure::Transient {
            why: format!("{}: {why}", self.path.display()),
            retry_after: None,
        }
    }
}

/// With a slash at its end a path is a directory's, and looks like a file that is not there yet.
fn refuse_a_missing_directory(path: &Path) -> Result<(), Failure> {
    if !path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir() {
        return Ok(());
    }
    Err(Failure::Fatal {
        why: format!(
            "{}: this directory does not exist: create the directory",
            path.display()
        ),
        denied: false,
    })
}

fn look(path: &Path) -> Result<LockStatus, Failure> {
    refuse_a_missing_directory(path)?;
    let Some(file) = open::open_to_look(path)? else {
        // What stands at the path is only a hint to where a shared drive's versions are.
        return match open::has_versions(path) {
            true => shared_file::look(path),
            false => Ok(sighting(path, LockState::Missing, None, None)),
        };
    };
    match seen(path, &file)? {
        Some(sighting) => Ok(sighting),
        None => Err(open::foreign(path).into()),
    }
}

/// What an open file shows; `None` if it holds something that we did not write.
fn seen(path: &Path, file: &fs::File) -> Result<Option<LockStatus>, Failure> {
    let failed = |what: &str, errno: Errno| Failure::Fatal {
        why: format!("{}: {what}: {}", path.display(), errno.desc()),
        denied: matches!(errno, Errno::EACCES | Errno::EPERM),
    };
    let locked = || lock::is_locked_by_another(file).map_err(|errno| failed("its lock", errno));
    let mut held = locked()?;
    let mut content = Content::Empty;
    let mut found = Lookup::Nothing;
    let unreadable = |error: io::Error| {
        let errno = error.raw_os_error().unwrap_or(0);
        failed("reading it", Errno::from_raw(errno))
    };
    for _ in 0..READS {
        content = open::read(file).map_err(unreadable)?;
        found = once_log::read(file).map_err(unreadable)?;
        if content == Content::Shared || content == Content::Empty && open::has_versions(path) {
            return shared_file::look(path).map(Some);
        }
        // The record belongs to the lock only if both were seen as they are.
        let now = locked()?;
        if now == held {
            break;
        }
        held = now;
    }
    let state = if held {
        LockState::Held
    } else {
        LockState::Free
    };
    let (record, flaw) = match content {
        Content::Foreign | Content::Shared => return Ok(None),
        Content::Empty => (None, None),
        Content::Record(record) => (Some(record), None),
        Content::Damaged(token) => {
            let known = token.map(|token| Record {
                token,
                ..Record::default()
            });
            (known, Some("its record is damaged".to_owned()))
        }
    };
    let unread = found == Lookup::Damaged;
    let flaw = flaw.or(unread.then(|| UNREAD.to_owned()));
    let flaw = flaw.or_else(|| {
        let shared = mount::of(path).shared;
        shared.then(|| KERNEL_ON_SHARED.to_owned())
    });
    let once = found.into_ledger();
    let record = match (record, once == TaskLog::EMPTY) {
        (record, true) => record,
        (record, false) => Some(Record {
            once,
            ..record.unwrap_or_default()
        }),
    };
    Ok(Some(LockStatus {
        unread,
        ..sighting(path, state, record, flaw)
    }))
}

fn sighting(
    path: &Path,
    state: LockState,
    record: Option<Record>,
    flaw: Option<String>,
) -> LockStatus {
    LockStatus {
        name: path.display().to_string(),
        lock: path.display().to_string(),
        state,
        record,
        flaw,
        unread: false,
        version: None,
    }
}

/// The lock whose versions are kept here, if nothing at its own path says so.
fn without_its_hint(versions: &Path) -> Option<PathBuf> {
    let lock = versions.as_os_str().as_bytes();
    let lock = lock.strip_suffix(shared_file::VERSIONS.as_bytes())?;
    let lock = PathBuf::from(OsStr::from_bytes(lock));
    let hinted = fs::metadata(&lock).is_ok_and(|found| found.len() > 0);
    (!hinted && versions.is_dir()).then_some(lock)
}

fn list(path: &Path) -> Result<Vec<LockStatus>, Failure> {
    refuse_a_missing_directory(path)?;
    let (directory, prefix) = match path.file_name() {
        Some(name) if !path.is_dir() => (path.parent().unwrap_or(path), name.as_encoded_bytes()),
        _ => (path, &b""[..]),
    };
    let entries = fs::read_dir(directory).map_err(|error| Failure::Fatal {
        why: format!(
            "{}: cannot list it: {}: name a directory, or the path of a lock in one",
            directory.display(),
            Errno::from_raw(error.raw_os_error().unwrap_or(0)).desc()
        ),
        denied: error.kind() == io::ErrorKind::PermissionDenied,
    })?;
    let mut found = Vec::new();
    let mut unread = 0_u32;
    for entry in entries.filter_map(Result::ok) {
        if !entry.file_name().as_encoded_bytes().starts_with(prefix) {
            continue;
        }
        let path = entry.path();
        if let Some(lock) = without_its_hint(&path) {
            match shared_file::look(&lock) {
                Ok(sighting) if sighting.record.is_some() => found.push(sighting),
                Ok(_) => {}
                Err(_) => unread += 1,
            }
            continue;
        }
        // By its size first: most files of a directory are none of ours, and are not even opened.
        let Ok(known) = fs::metadata(&path) else {
            continue;
        };
        if !known.is_file() || known.len() == 0 || known.len() > once_log::LENGTH as u64 {
            continue;
        }
        match open::open_to_look(&path).map(|file| file.map(|file| seen(&path, &file))) {
            Ok(Some(Ok(Some(sighting)))) if sighting.record.is_some() => found.push(sighting),
            Ok(None | Some(Ok(_))) => {}
            Err(_) | Ok(Some(Err(_))) => unread += 1,
        }
    }
    if unread > 0 {
        tracing::warn!(
            "{unread} files in {} cannot be read, and may be locks",
            directory.display()
        );
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::file::record;
    use crate::lease::record::Candidate;

    fn record(token: u64) -> Record {
        let candidate = Candidate {
            identity: "a".into(),
            host: "h".into(),
            pid: 7,
            command: "job".into(),
        };
        Record::begun(&candidate, token)
    }

    #[test]
    fn versions_are_found_where_nothing_at_their_path_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock.0");
        fs::create_dir_all(dir.path().join(format!("lock.0.versions/{:020}", 1))).unwrap();
        for hint in [None, Some(b"")] {
            if let Some(hint) = hint {
                fs::write(&path, hint).unwrap();
            }
            let seen = look(&path).unwrap();
            assert_eq!(seen.state, LockState::Held, "{hint:?}");
            assert_eq!(seen.version.as_deref(), Some("1"));
            assert_eq!(
                without_its_hint(&dir.path().join("lock.0.versions")),
                Some(path.clone())
            );
        }
        fs::write(&path, shared_file::FIRST_LINE).unwrap();
        assert_eq!(without_its_hint(&dir.path().join("lock.0.versions")), None);
    }

    #[test]
    fn looking_creates_and_locks_nothing_and_believes_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(look(&path).unwrap().state, LockState::Missing);
        assert!(!path.exists());
        fs::write(&path, record::encode(&record(7))).unwrap();
        let seen = look(&path).unwrap();
        assert_eq!(
            (seen.state, seen.record.unwrap().token),
            (LockState::Free, 7)
        );
        let holder = open::open_existing(&path).unwrap();
        assert_eq!(lock::try_exclusive(&holder), Ok(true));
        assert_eq!(look(&path).unwrap().state, LockState::Held);
        // Looking has not taken it away.
        let other = open::open_existing(&path).unwrap();
        assert_eq!(lock::try_exclusive(&other), Ok(false));
        assert!(look(&dir.path().join("no/lock")).is_err());
        fs::write(&path, "#!/bin/sh\n").unwrap();
        assert!(look(&path).unwrap_err().to_string().contains("not a lock"));
    }

    #[test]
    fn only_files_with_our_record_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
        put("b.1", &record::encode(&record(1)));
        put("b.0", &record::encode(&record(2)));
        put("a", &record::encode(&record(3)));
        put("torn", b"{\"token\": 9,\"hol");
        put("letter", b"Dear Sir");
        put("empty", b"");
        put("zeros", &[0; 100]);
        put("long", &[b' '; once_log::LENGTH + 1]);
        let file = open::open_existing(&dir.path().join("b.1")).unwrap();
        once_log::make_room(&file, &TaskLog::EMPTY).unwrap();
        fs::create_dir(dir.path().join("b.dir")).unwrap();
        let names = |path: &Path| -> Vec<String> {
            let name = |seen: &LockStatus| seen.name.rsplit('/').next().unwrap().to_owned();
            list(path).unwrap().iter().map(name).collect()
        };
        assert_eq!(names(dir.path()), ["a", "b.0", "b.1", "torn"]);
        assert_eq!(names(&dir.path().join("b")), ["b.0", "b.1"]);
        assert!(list(&dir.path().join("no/where")).is_err());
    }
}
