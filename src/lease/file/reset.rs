//! Forgets results of tasks that are to be done once, in a lock file.
//!
//! Called by the verb `reset`. It happens under the file's lock, so that no instance can have begun,
//! or be just about to; without it only where that was asked for. It creates nothing, and must never
//! write anything but the results: the record, and the token in it, stay as they are.

use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::errors::is_passing;
use super::inspect::Inspector;
use super::once_log::{self, Lookup};
use super::record::Content;
use super::{lock, open};
use crate::clock::Instant;
use crate::core::Failure;
use crate::lease::inspect::{ResetResult, Tasks};
use crate::lease::once::TaskLog;
use crate::lease::shared_file;

impl Inspector {
    /// Forgets these results, if they are still what was `shown`, and nobody has the lock; with
    /// `force` also while somebody has it.
    ///
    /// # Errors
    /// As [`Inspector::look`]. After `Transient` they may be forgotten or not.
    pub async fn forget(
        &self,
        errands: &Tasks,
        shown: &TaskLog,
        force: bool,
        give_up_at: Instant,
    ) -> Result<ResetResult, Failure> {
        let (errands, shown) = (errands.clone(), shown.clone());
        self.blocking(give_up_at, move |path| {
            forget(&path, &errands, &shown, force)
        })
        .await
    }
}

fn forget(
    path: &Path,
    errands: &Tasks,
    shown: &TaskLog,
    force: bool,
) -> Result<ResetResult, Failure> {
    if open::open_to_look(path)?.is_none() {
        return Ok(ResetResult::Nothing);
    }
    if open::bears_versions(path) {
        return shared_file::forget(path, errands, shown, force);
    }
    let file = open::open(path, false)?;
    forget_alone(&file, path, errands, shown, force)
}

/// Under the lock of this description, which is free again afterwards.
fn forget_alone(
    file: &fs::File,
    path: &Path,
    errands: &Tasks,
    shown: &TaskLog,
    force: bool,
) -> Result<ResetResult, Failure> {
    match lock::try_exclusive(file) {
        Ok(true) => {}
        Ok(false) if force => {}
        Ok(false) => return Ok(ResetResult::Held),
        Err(errno) => return Err(failure(path, "locking it", errno)),
    }
    let done = forget_in(file, path, errands, shown);
    // Not left to its closing: a process that is just being started may have a copy of it. An error
    // is the closing's to make good.
    let _ = lock::unlock(file);
    done
}

fn forget_in(
    file: &fs::File,
    path: &Path,
    errands: &Tasks,
    shown: &TaskLog,
) -> Result<ResetResult, Failure> {
    if open::is_replaced(path, file) {
        return Ok(ResetResult::Changed);
    }
    let failed = |what: &'static str| {
        move |error: io::Error| {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
            failure(path, what, errno)
        }
    };
    if open::read(file).map_err(failed("reading it"))? == Content::Foreign {
        return Err(open::foreign(path).into());
    }
    let mut task_log = match once_log::read(file).map_err(failed("reading it"))? {
        Lookup::Nothing => return Ok(ResetResult::Nothing),
        Lookup::Results { task_log, .. } if errands.are_same(shown, &task_log) => task_log,
        Lookup::Results { .. } => return Ok(ResetResult::Changed),
        Lookup::Damaged if *errands == Tasks::All => {
            write(file, &TaskLog::EMPTY).map_err(failed("writing its results"))?;
            return Ok(ResetResult::Done);
        }
        Lookup::Damaged => return Ok(ResetResult::Changed),
    };
    if !errands.leave(&mut task_log) {
        return Ok(ResetResult::Nothing);
    }
    write(file, &task_log).map_err(failed("writing its results"))?;
    Ok(ResetResult::Done)
}

/// Into both lines: what is forgotten must not come back when one of them is torn later.
fn write(file: &fs::File, task_log: &TaskLog) -> io::Result<()> {
    once_log::write(file, task_log)?;
    once_log::write(file, task_log)
}

fn failure(path: &Path, what: &str, errno: Errno) -> Failure {
    let why = format!("{}: {what}: {}", path.display(), errno.desc());
    if is_passing(errno) {
        return super::errors::transient(why);
    }
    Failure::Fatal {
        why,
        denied: matches!(errno, Errno::EACCES | Errno::EPERM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    use crate::lease::file::record;
    use crate::lease::record::Record;

    fn known(text: &str) -> TaskLog {
        TaskLog::parse(text).expect("results")
    }

    const TWO: &str = r#"[{"key":"a","over":{"exit":0,"token":6,"by":"b","at":"c"}},{"key":"d","tries":{"failed":1,"token":7}}]"#;

    fn file_with(task_log: &TaskLog) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let record = Record {
            token: 7,
            holder: "web1".into(),
            ..Record::default()
        };
        fs::write(&path, record::encode(&record)).unwrap();
        let file = open::open_existing(&path).unwrap();
        once_log::make_room(&file, &TaskLog::EMPTY).unwrap();
        once_log::write(&file, task_log).unwrap();
        (dir, path)
    }

    fn there(path: &Path) -> TaskLog {
        let file = open::open_existing(path).unwrap();
        once_log::read(&file).unwrap().into_ledger()
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
        // Whichever of the two lines is torn.
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
    fn nothing_is_changed_while_it_is_held_or_when_it_is_not_what_was_shown() {
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
        // The holder has its lock still.
        let other = open::open_existing(&path).unwrap();
        assert_eq!(lock::try_exclusive(&other), Ok(false));
    }

    #[test]
    fn the_lock_is_free_afterwards_though_somebody_has_a_copy_of_the_descriptor() {
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
    fn nothing_is_made_and_what_cannot_be_read_goes_with_all() {
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
        assert_eq!(once_log::read(&file).unwrap().into_ledger(), TaskLog::EMPTY);
        assert!(all(dir.path()).is_err(), "a directory");
    }
}
