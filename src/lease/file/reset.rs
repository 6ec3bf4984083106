//! Forgets results of tasks that are to be done once, in a lock file.
//!
//! Called by the verb `reset`. It happens under the file's lock, so that no instance can have begun,
//! or be just about to; without it only where that was asked for. It creates nothing, and must never
//! write anything but the results: the record, and the token in it, stay as they are.

use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::failures::is_passing;
use super::inspect::Inspector;
use super::line::Content;
use super::results::{self, Found};
use super::{lock, opening};
use crate::clock::Instant;
use crate::core::Failure;
use crate::lease::inspect::{Errands, Forgotten};
use crate::lease::once::Ledger;
use crate::lease::shared_file;

impl Inspector {
    /// Forgets these results, if they are still what was `shown`, and nobody has the lock; with
    /// `force` also while somebody has it.
    ///
    /// # Errors
    /// As [`Inspector::look`]. After `Transient` they may be forgotten or not.
    pub async fn forget(
        &self,
        errands: &Errands,
        shown: &Ledger,
        force: bool,
        give_up_at: Instant,
    ) -> Result<Forgotten, Failure> {
        let (errands, shown) = (errands.clone(), shown.clone());
        self.blocking(give_up_at, move |path| {
            forget(&path, &errands, &shown, force)
        })
        .await
    }
}

fn forget(
    path: &Path,
    errands: &Errands,
    shown: &Ledger,
    force: bool,
) -> Result<Forgotten, Failure> {
    if opening::open_to_look(path)?.is_none() {
        return Ok(Forgotten::Nothing);
    }
    if opening::bears_versions(path) {
        return shared_file::forget(path, errands, shown, force);
    }
    let file = opening::open(path, false)?;
    forget_alone(&file, path, errands, shown, force)
}

/// Under the lock of this description, which is free again afterwards.
fn forget_alone(
    file: &fs::File,
    path: &Path,
    errands: &Errands,
    shown: &Ledger,
    force: bool,
) -> Result<Forgotten, Failure> {
    match lock::try_exclusive(file) {
        Ok(true) => {}
        Ok(false) if force => {}
        Ok(false) => return Ok(Forgotten::Held),
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
    errands: &Errands,
    shown: &Ledger,
) -> Result<Forgotten, Failure> {
    if opening::is_replaced(path, file) {
        return Ok(Forgotten::Changed);
    }
    let failed = |what: &'static str| {
        move |error: io::Error| {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
            failure(path, what, errno)
        }
    };
    if opening::read(file).map_err(failed("reading it"))? == Content::Foreign {
        return Err(opening::foreign(path).into());
    }
    let mut ledger = match results::read(file).map_err(failed("reading it"))? {
        Found::Nothing => return Ok(Forgotten::Nothing),
        Found::Results { ledger, .. } if errands.are_same(shown, &ledger) => ledger,
        Found::Results { .. } => return Ok(Forgotten::Changed),
        Found::Damaged if *errands == Errands::All => {
            write(file, &Ledger::EMPTY).map_err(failed("writing its results"))?;
            return Ok(Forgotten::Done);
        }
        Found::Damaged => return Ok(Forgotten::Changed),
    };
    if !errands.leave(&mut ledger) {
        return Ok(Forgotten::Nothing);
    }
    write(file, &ledger).map_err(failed("writing its results"))?;
    Ok(Forgotten::Done)
}

/// Into both lines: what is forgotten must not come back when one of them is torn later.
fn write(file: &fs::File, ledger: &Ledger) -> io::Result<()> {
    results::write(file, ledger)?;
    results::write(file, ledger)
}

fn failure(path: &Path, what: &str, errno: Errno) -> Failure {
    let why = format!("{}: {what}: {}", path.display(), errno.desc());
    if is_passing(errno) {
        return super::failures::transient(why);
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

    use crate::lease::file::line;
    use crate::lease::record::Record;

    fn known(text: &str) -> Ledger {
        Ledger::parse(text).expect("results")
    }

    const TWO: &str = r#"[{"key":"a","over":{"exit":0,"token":6,"by":"b","at":"c"}},{"key":"d","tries":{"failed":1,"token":7}}]"#;

    fn file_with(ledger: &Ledger) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let record = Record {
            token: 7,
            holder: "web1".into(),
            ..Record::default()
        };
        fs::write(&path, line::encode(&record)).unwrap();
        let file = opening::open_existing(&path).unwrap();
        results::make_room(&file, &Ledger::EMPTY).unwrap();
        results::write(&file, ledger).unwrap();
        (dir, path)
    }

    fn there(path: &Path) -> Ledger {
        let file = opening::open_existing(path).unwrap();
        results::read(&file).unwrap().into_ledger()
    }

    #[test]
    fn one_key_is_forgotten_for_good_and_the_record_stays() {
        let (_dir, path) = file_with(&known(TWO));
        let record = fs::read(&path).unwrap()[..line::WIDTH].to_vec();
        let a = Errands::Of("a".into());
        assert_eq!(forget(&path, &a, &known(TWO), false), Ok(Forgotten::Done));
        assert_eq!(fs::read(&path).unwrap()[..line::WIDTH], record);
        let rest = there(&path);
        assert_eq!(rest.entries().len(), 1);
        // Whichever of the two lines is torn.
        for place in [4096, 8192] {
            let bytes = fs::read(&path).unwrap();
            let file = opening::open_existing(&path).unwrap();
            file.write_all_at(b"torn", place).unwrap();
            assert_eq!(there(&path), rest);
            fs::write(&path, bytes).unwrap();
        }
        assert_eq!(forget(&path, &a, &rest, false), Ok(Forgotten::Nothing));
        assert_eq!(
            forget(&path, &Errands::All, &rest, false),
            Ok(Forgotten::Done)
        );
        assert_eq!(there(&path), Ledger::EMPTY);
    }

    #[test]
    fn nothing_is_changed_while_it_is_held_or_when_it_is_not_what_was_shown() {
        let (_dir, path) = file_with(&known(TWO));
        let before = fs::read(&path).unwrap();
        assert_eq!(
            forget(&path, &Errands::All, &Ledger::EMPTY, false),
            Ok(Forgotten::Changed)
        );
        let holder = opening::open_existing(&path).unwrap();
        assert_eq!(lock::try_exclusive(&holder), Ok(true));
        let all = |force| forget(&path, &Errands::All, &known(TWO), force);
        assert_eq!(all(false), Ok(Forgotten::Held));
        assert_eq!(fs::read(&path).unwrap(), before);
        assert_eq!(all(true), Ok(Forgotten::Done));
        assert_eq!(there(&path), Ledger::EMPTY);
        // The holder has its lock still.
        let other = opening::open_existing(&path).unwrap();
        assert_eq!(lock::try_exclusive(&other), Ok(false));
    }

    #[test]
    fn the_lock_is_free_afterwards_though_somebody_has_a_copy_of_the_descriptor() {
        let (_dir, path) = file_with(&known(TWO));
        let file = opening::open_existing(&path).unwrap();
        let copy = file.try_clone().unwrap();
        let a = Errands::Of("a".into());
        let done = forget_alone(&file, &path, &a, &known(TWO), false);
        assert_eq!(done, Ok(Forgotten::Done));
        drop(file);
        let other = opening::open_existing(&path).unwrap();
        assert_eq!(lock::try_exclusive(&other), Ok(true));
        drop(copy);
    }

    #[test]
    fn nothing_is_made_and_what_cannot_be_read_goes_with_all() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none");
        let all = |path: &Path| forget(path, &Errands::All, &Ledger::EMPTY, false);
        assert_eq!(all(&missing), Ok(Forgotten::Nothing));
        assert!(!missing.exists());
        let (_dir, path) = file_with(&Ledger::EMPTY);
        let file = opening::open_existing(&path).unwrap();
        for place in [4096, 8192] {
            file.write_all_at(b"torn", place).unwrap();
        }
        let of = Errands::Of("a".into());
        assert_eq!(
            forget(&path, &of, &Ledger::EMPTY, false),
            Ok(Forgotten::Changed)
        );
        assert_eq!(all(&path), Ok(Forgotten::Done));
        assert_eq!(results::read(&file).unwrap().into_ledger(), Ledger::EMPTY);
        assert!(all(dir.path()).is_err(), "a directory");
    }
}
