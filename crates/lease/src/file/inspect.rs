//! Looks at a file's lock without competing for it, lists locks, and forgets results of one-time tasks.
//!
//! A look opens for reading only, creates and locks nothing: it needs no permission to write, and no instance
//! finds the lock taken by it. The kernel tells whether the lock is held; the record tells who wrote it last.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;

use super::once_log::{self, Lookup};
use super::record::Content;
use super::{lock, open};
use crate::blocking::{BlockingJobs, Stalled};
use crate::errors::{errno_of, failure_at, fatal, fatal_at, transient};
use crate::inspect::{
    BreakResult, FORGETTING, Inspector, LockState, LockStatus, REQUEST, ResetResult, Tasks,
    UNREADABLE,
};
use crate::once::TaskLog;
use crate::record::Record;
use crate::{mount, shared_file};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::absolute;

/// Problem of a kernel's lock on a drive that machines share.
pub const KERNEL_ON_SHARED: &str = "a lock of the kernel's on a shared drive, where it excludes no other \
    machine: 'run' refuses it";
// Reads of a file that changes hands meanwhile; then the last record counts.
const READS: usize = 4;
const FLOCKED: &str = "another program has locked it with flock(2)";

/// Inspector of a path.
pub struct FileInspector {
    path: PathBuf,
    jobs: BlockingJobs,
}

impl FileInspector {
    /// Makes the inspector; opens nothing.
    ///
    /// # Errors
    /// If there is no working directory for a relative path.
    pub fn new(path: &Path) -> io::Result<FileInspector> {
        Ok(FileInspector {
            path: absolute(path)?,
            jobs: BlockingJobs::new(),
        })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        give_up_at: Instant,
        job: impl FnOnce(PathBuf) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let path = self.path.clone();
        let done = self.jobs.run(give_up_at, move || job(path)).await;
        done.unwrap_or_else(|stalled| {
            // Whichever request hangs, the cause is the file system.
            let why = match stalled {
                Stalled::NoThread => stalled.to_string(),
                Stalled::Occupied | Stalled::Overtime => "its file system does not answer".into(),
            };
            Err(transient(format!("{}: {why}", self.path.display())))
        })
    }
}

#[async_trait]
impl Inspector for FileInspector {
    async fn look(&self, give_up_at: Instant) -> Result<LockStatus, Failure> {
        self.blocking(give_up_at, |path| look(&path)).await
    }

    async fn list(&self, suffix: &str, give_up_at: Instant) -> Result<Vec<LockStatus>, Failure> {
        let suffix = suffix.to_owned();
        self.blocking(give_up_at, move |path| {
            // The locks beside a lock need not exist.
            list(&mount::beside(&path, &suffix), suffix.is_empty())
        })
        .await
    }

    async fn break_lease(
        &self,
        seen: LockStatus,
        period: Option<u8>,
        by: &str,
    ) -> Result<BreakResult, Failure> {
        let seen = seen.record.unwrap_or_default();
        let period = period.map(|seconds| Duration::from_secs(seconds.into()));
        // The holder writes every few seconds, and a write here takes as long as the drive needs.
        let end = Instant::now() + REQUEST * 3;
        let mut broken = BreakResult::Overtaken;
        while broken == BreakResult::Overtaken && Instant::now() < end {
            let (seen, by) = (seen.clone(), by.to_owned());
            let attempt = self.blocking(Instant::now() + REQUEST, move |path| {
                shared_file::break_lock(&path, &seen, period, &by)
            });
            broken = attempt.await?;
        }
        Ok(broken)
    }

    async fn forget(
        &self,
        tasks: &Tasks,
        seen: LockStatus,
        force: bool,
    ) -> Result<ResetResult, Failure> {
        let (tasks, shown) = (tasks.clone(), seen.task_log());
        self.blocking(Instant::now() + FORGETTING, move |path| {
            forget(&path, &tasks, &shown, force)
        })
        .await
    }
}

pub(crate) fn address_of(path: &Path) -> String {
    let absolute = std::path::absolute(path);
    absolute.as_deref().unwrap_or(path).display().to_string()
}

/// Refuses a missing directory, which would look like a missing file.
fn refuse_a_missing_directory(path: &Path) -> Result<(), Failure> {
    if !path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir() {
        return Ok(());
    }
    Err(fatal(format!(
        "{}: this directory does not exist: mount its share, or create the directory",
        path.display()
    )))
}

fn look(path: &Path) -> Result<LockStatus, Failure> {
    refuse_a_missing_directory(path)?;
    let Some(file) = open::open_to_look(path)? else {
        return match open::has_versions(path) {
            true => shared_file::look(path),
            false => Ok(status(path, LockState::Missing, None, None)),
        };
    };
    match seen(path, &file)? {
        Some(seen) => Ok(seen),
        None => Err(open::foreign(path).into()),
    }
}

/// Reads a file; `None` if its content is another program's.
fn seen(path: &Path, file: &fs::File) -> Result<Option<LockStatus>, Failure> {
    let failed = |what: &str, errno: Errno| fatal_at(path, what, errno);
    let locked = || lock::locked_by_another(file).map_err(|errno| failed("its lock", errno));
    let mut held = locked()?;
    let mut content = Content::Empty;
    let mut found = Lookup::Nothing;
    let unreadable = |error: io::Error| failed("reading it", errno_of(&error));
    for _ in 0..READS {
        content = open::read(file).map_err(unreadable)?;
        found = once_log::read(file).map_err(unreadable)?;
        // Beside versions, the file is at best a hint.
        if content == Content::Shared || open::has_versions(path) {
            return shared_file::look(path).map(Some);
        }
        // The record belongs to the lock only if that was the same before and after.
        let now = locked()?;
        if now == held {
            break;
        }
        held = now;
    }
    let state = match held {
        Some(_) => LockState::Held,
        None => LockState::Free,
    };
    let (record, problem) = match content {
        Content::Foreign | Content::Shared => return Ok(None),
        Content::Empty => (None, None),
        Content::Record(record) => (Some(record), None),
        Content::Damaged(token) => (
            token.map(Record::of_token),
            Some("its record is damaged".to_owned()),
        ),
    };
    let (record, problem) = match held {
        // The record is an earlier holder's.
        Some(lock::Kind::Flock) => (
            record.map(|record| Record::of_token(record.token)),
            Some(FLOCKED.to_owned()),
        ),
        Some(lock::Kind::Ofd) | None => (record, problem),
    };
    let unreadable = found == Lookup::Damaged;
    let problem = problem.or(unreadable.then(|| UNREADABLE.to_owned()));
    let problem = problem.or_else(|| {
        let mount = mount::of(path);
        // Without /proc nothing is known.
        (mount.shared && mount.is_known()).then(|| KERNEL_ON_SHARED.to_owned())
    });
    let once = found.into_task_log();
    let record = match (record, once == TaskLog::EMPTY) {
        (record, true) => record,
        (record, false) => Some(Record {
            once,
            ..record.unwrap_or_default()
        }),
    };
    Ok(Some(LockStatus {
        unreadable,
        ..status(path, state, record, problem)
    }))
}

fn status(
    path: &Path,
    state: LockState,
    record: Option<Record>,
    problem: Option<String>,
) -> LockStatus {
    LockStatus {
        name: path.display().to_string(),
        lock: path.display().to_string(),
        state,
        record,
        problem,
        ..LockStatus::default()
    }
}

/// Returns the lock of these versions, unless the file at its path shows them.
fn without_its_hint(versions: &Path) -> Option<PathBuf> {
    let lock = versions.as_os_str().as_bytes();
    let lock = lock.strip_suffix(shared_file::VERSIONS.as_bytes())?;
    let lock = PathBuf::from(OsStr::from_bytes(lock));
    let hinted = fs::metadata(&lock).is_ok_and(|found| found.len() > 0);
    (!hinted && versions.is_dir()).then_some(lock)
}

fn list(path: &Path, must_exist: bool) -> Result<Vec<LockStatus>, Failure> {
    refuse_a_missing_directory(path)?;
    let (directory, prefix) = match path.file_name() {
        Some(name) if !path.is_dir() => (path.parent().unwrap_or(path), name.as_encoded_bytes()),
        _ => (path, &b""[..]),
    };
    let entries = fs::read_dir(directory).map_err(|error| {
        let denied = error.kind() == io::ErrorKind::PermissionDenied;
        let advice = match denied {
            true => "make it readable for this user",
            false => "name a directory, or the path of a lock in one",
        };
        let (path, why) = (directory.display(), errno_of(&error).desc());
        Failure::Fatal {
            why: format!("{path}: cannot list it: {why}: {advice}"),
            denied,
        }
    })?;
    let mut found = Vec::new();
    let mut unread = 0_u32;
    let mut named = 0_u32;
    // Unreadable files must not hide the others.
    for entry in entries.filter_map(Result::ok) {
        if !entry.file_name().as_encoded_bytes().starts_with(prefix) {
            continue;
        }
        named += 1;
        let path = entry.path();
        if let Some(lock) = without_its_hint(&path) {
            match shared_file::look(&lock) {
                Ok(seen) if seen.record.is_some() => found.push(seen),
                Ok(_) => {}
                Err(_) => unread += 1,
            }
            continue;
        }
        // Most files are no locks, and are not even opened.
        let Ok(known) = fs::metadata(&path) else {
            continue;
        };
        if !known.is_file() || known.len() == 0 || known.len() > once_log::LENGTH as u64 {
            continue;
        }
        match open::open_to_look(&path).map(|file| file.map(|file| seen(&path, &file))) {
            Ok(Some(Ok(Some(seen)))) if seen.record.is_some() => found.push(seen),
            Ok(None | Some(Ok(_))) => {}
            Err(_) | Ok(Some(Err(_))) => unread += 1,
        }
    }
    if unread > 0 {
        tracing::warn!(
            "{unread} of the files in {} cannot be read; they may be locks",
            directory.display()
        );
    }
    // A mistyped path would look like an empty directory.
    if named == 0 && must_exist && !prefix.is_empty() {
        return Err(fatal(format!(
            "{}: there is no such directory, and nothing in {} has a name that begins with it: name a \
             directory, or the path of a lock in one",
            path.display(),
            directory.display()
        )));
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Forgets results under the file's lock, so that no instance begins meanwhile; without it only by force.
fn forget(
    path: &Path,
    tasks: &Tasks,
    shown: &TaskLog,
    force: bool,
) -> Result<ResetResult, Failure> {
    // Also if the path was removed: that takes nothing from a shared drive's lock.
    if open::bears_versions(path) {
        return shared_file::forget(path, tasks, shown, force);
    }
    if open::open_to_look(path)?.is_none() {
        return Ok(ResetResult::Nothing);
    }
    let file = open::open(path, false)?;
    forget_alone(&file, path, tasks, shown, force)
}

fn forget_alone(
    file: &fs::File,
    path: &Path,
    tasks: &Tasks,
    shown: &TaskLog,
    force: bool,
) -> Result<ResetResult, Failure> {
    match lock::try_exclusive(file) {
        Ok(true) => {}
        // The holder merges its results with those in the file.
        Ok(false) if force => {}
        Ok(false) => return Ok(ResetResult::Held),
        Err(errno) => return Err(failure_at(path, "locking it", errno)),
    }
    let done = forget_in(file, path, tasks, shown);
    // Not left to close(2): a process that is being started may have a copy.
    let _ = lock::unlock(file);
    done
}

fn forget_in(
    file: &fs::File,
    path: &Path,
    tasks: &Tasks,
    shown: &TaskLog,
) -> Result<ResetResult, Failure> {
    // The lock of a file that left the path protects nothing.
    if open::is_replaced(path, file) {
        return Ok(ResetResult::Changed);
    }
    let failed =
        |what: &'static str| move |error: io::Error| failure_at(path, what, errno_of(&error));
    if open::read(file).map_err(failed("reading it"))? == Content::Foreign {
        return Err(open::foreign(path).into());
    }
    let (found, unreadable) = match once_log::read(file).map_err(failed("reading it"))? {
        Lookup::Nothing => return Ok(ResetResult::Nothing),
        Lookup::Results { task_log, .. } => (task_log, false),
        // Counts as unchanged: the earlier text cannot be known. Only --all gets further.
        Lookup::Damaged => (shown.clone(), true),
    };
    Ok(match tasks.remaining_of(&found, unreadable, shown) {
        Ok(left) => {
            write(file, &left).map_err(failed("writing its results"))?;
            ResetResult::Done
        }
        Err(nothing) => nothing,
    })
}

/// Writes both lines: a torn one must not bring forgotten results back.
fn write(file: &fs::File, task_log: &TaskLog) -> io::Result<()> {
    once_log::write(file, task_log)?;
    once_log::write(file, task_log)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    use crate::file::record;
    use crate::record::Candidate;

    fn record(token: u64) -> Record {
        let candidate = Candidate {
            identity: "a".into(),
            host: "h".into(),
            pid: 7,
            command: "job".into(),
            bell: None,
        };
        Record::begun(&candidate, token)
    }

    #[test]
    fn versions_are_found_without_a_hint_at_their_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock.0");
        fs::create_dir_all(dir.path().join(format!("lock.0.versions/{:020}", 1))).unwrap();
        for hint in [None, Some(b"")] {
            if let Some(hint) = hint {
                fs::write(&path, hint).unwrap();
            }
            let seen = look(&path).unwrap();
            assert_eq!(seen.state, LockState::Held, "{hint:?}");
            assert_eq!(seen.tag.as_deref(), Some("1"));
            assert_eq!(
                without_its_hint(&dir.path().join("lock.0.versions")),
                Some(path.clone())
            );
        }
        // A hint longer than a record, and one that a crash of the server tore.
        let long = [crate::version_record::FIRST_LINE, &[b'x'; 3000][..]].concat();
        for hint in [long, vec![0; 8192]] {
            fs::write(&path, &hint).unwrap();
            let seen = look(&path).unwrap();
            assert_eq!(seen.state, LockState::Held, "{}", hint.len());
            assert_eq!(seen.tag.as_deref(), Some("1"));
        }
        fs::write(&path, crate::version_record::FIRST_LINE).unwrap();
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
        put("torn", &record::encode(&record(9))[..40]);
        put("letter", b"Dear Sir");
        put("empty", b"");
        put("zeros", &[0; 100]);
        put("long", &[b' '; once_log::LENGTH + 1]);
        let file = open::open_existing(&dir.path().join("b.1")).unwrap();
        once_log::make_room(&file, &TaskLog::EMPTY).unwrap();
        fs::create_dir(dir.path().join("b.dir")).unwrap();
        let names = |path: &Path| -> Vec<String> {
            let name = |seen: &LockStatus| seen.name.rsplit('/').next().unwrap().to_owned();
            list(path, true).unwrap().iter().map(name).collect()
        };
        assert_eq!(names(dir.path()), ["a", "b.0", "b.1", "torn"]);
        assert_eq!(names(&dir.path().join("b")), ["b.0", "b.1"]);
        assert!(list(&dir.path().join("no/where"), true).is_err());
    }

    fn known(text: &str) -> TaskLog {
        TaskLog::parse(text).expect("results")
    }

    const TWO: &str = concat!(
        r#"[{"key":"a","over":{"exit":0,"token":6,"by":"b","at":"c"}},"#,
        r#"{"key":"d","tries":{"failed":1,"token":7}}]"#
    );

    fn file_with(task_log: &TaskLog) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        fs::write(&path, record::encode(&record(7))).unwrap();
        let file = open::open_existing(&path).unwrap();
        once_log::make_room(&file, &TaskLog::EMPTY).unwrap();
        once_log::write(&file, task_log).unwrap();
        (dir, path)
    }

    fn there(path: &Path) -> TaskLog {
        let file = open::open_existing(path).unwrap();
        once_log::read(&file).unwrap().into_task_log()
    }

    #[test]
    fn one_key_is_forgotten_for_good_and_the_record_stays() {
        let (_dir, path) = file_with(&known(TWO));
        let record = fs::read(&path).unwrap()[..record::WIDTH].to_vec();
        let a = Tasks::Of("a".into());
        assert_eq!(forget(&path, &a, &known(TWO), false), Ok(ResetResult::Done));
        assert_eq!(fs::read(&path).unwrap()[..record::WIDTH], record);
        let rest = there(&path);
        assert_eq!(rest.entries().len(), 1);
        for place in [4096, 8192] {
            let bytes = fs::read(&path).unwrap();
            let file = open::open_existing(&path).unwrap();
            file.write_all_at(b"torn", place).unwrap();
            assert_eq!(there(&path), rest);
            fs::write(&path, bytes).unwrap();
        }
        assert_eq!(forget(&path, &a, &rest, false), Ok(ResetResult::Nothing));
        assert_eq!(
            forget(&path, &Tasks::All, &rest, false),
            Ok(ResetResult::Done)
        );
        assert_eq!(there(&path), TaskLog::EMPTY);
    }

    #[test]
    fn unforced_reset_changes_nothing_if_held_or_not_as_shown() {
        let (_dir, path) = file_with(&known(TWO));
        let before = fs::read(&path).unwrap();
        assert_eq!(
            forget(&path, &Tasks::All, &TaskLog::EMPTY, false),
            Ok(ResetResult::Changed)
        );
        let holder = open::open_existing(&path).unwrap();
        assert_eq!(lock::try_exclusive(&holder), Ok(true));
        let all = |force| forget(&path, &Tasks::All, &known(TWO), force);
        assert_eq!(all(false), Ok(ResetResult::Held));
        assert_eq!(fs::read(&path).unwrap(), before);
        assert_eq!(all(true), Ok(ResetResult::Done));
        assert_eq!(there(&path), TaskLog::EMPTY);
        let other = open::open_existing(&path).unwrap();
        assert_eq!(lock::try_exclusive(&other), Ok(false));
    }

    #[test]
    fn reset_unlocks_even_if_a_copy_of_the_descriptor_is_open() {
        let (_dir, path) = file_with(&known(TWO));
        let file = open::open_existing(&path).unwrap();
        let copy = file.try_clone().unwrap();
        let a = Tasks::Of("a".into());
        let done = forget_alone(&file, &path, &a, &known(TWO), false);
        assert_eq!(done, Ok(ResetResult::Done));
        drop(file);
        let other = open::open_existing(&path).unwrap();
        assert_eq!(lock::try_exclusive(&other), Ok(true));
        drop(copy);
    }

    #[test]
    fn reset_creates_nothing_and_only_all_forgets_unreadable_results() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        let all = |path: &Path| forget(path, &Tasks::All, &TaskLog::EMPTY, false);
        assert_eq!(all(&missing), Ok(ResetResult::Nothing));
        assert!(!missing.exists());
        let (_dir, path) = file_with(&TaskLog::EMPTY);
        let file = open::open_existing(&path).unwrap();
        for place in [4096, 8192] {
            file.write_all_at(b"torn", place).unwrap();
        }
        let of = Tasks::Of("a".into());
        assert_eq!(
            forget(&path, &of, &TaskLog::EMPTY, false),
            Ok(ResetResult::Changed)
        );
        assert_eq!(all(&path), Ok(ResetResult::Done));
        assert_eq!(
            once_log::read(&file).unwrap().into_task_log(),
            TaskLog::EMPTY
        );
        assert!(all(dir.path()).is_err(), "a directory");
    }

    #[test]
    fn reset_finds_a_shared_lock_without_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        // Version 1 is being made: an instance has the lock.
        fs::create_dir_all(dir.path().join("lock.versions/00000000000000000000/next")).unwrap();
        fs::create_dir(dir.path().join("lock.versions/00000000000000000001")).unwrap();
        let seen = forget(&path, &Tasks::All, &TaskLog::EMPTY, false);
        assert_eq!(seen, Ok(ResetResult::Held), "by its maker");
    }
}
