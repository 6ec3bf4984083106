//! Requests to the drive: versions, their records, the hint.
//!
//! Called only where hanging is allowed. It must never remove the lock's path, rename anything but a prepared
//! chain, or report a version as made that existed before.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::geteuid;

use super::files::{self, Found, Kind};
use crate::mount::{self, beside};
use crate::version_record::{self, FIRST_LINE, VersionRecord};
use trafficcop_core::observed::Version;

pub(crate) const VERSIONS: &str = ".versions";
const RECORD: &str = "record";
// Made in a version to see that it exists; holds the next version's record. In the next version itself, a
// create that a server in its grace period holds back would lock the directory that the renewal needs.
const NEXT: &str = "next";
// Made by an operator in a version, all of them, before the next version. A holder that finds the next without
// a readable record makes the first that is missing: if it can, no operator made the next. Several, because
// that answer can be lost, and a retry needs another name.
const BROKEN: [&str; 4] = ["broken.1", "broken.2", "broken.3", "broken.4"];
const TRIAL: &str = "time.";
// Digits of the greatest number: names sort as numbers do.
const DIGITS: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Made,
    Exists,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    No,
    /// Broken, being broken, or too many answers were lost.
    Perhaps,
    IsGone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    Missing,
    Empty,
    /// First line of a lock, without a readable record.
    Unread,
    Record(Box<VersionRecord>),
    /// File of a kernel lock, or of another program.
    Foreign,
}

#[derive(Clone, Debug)]
pub(super) struct Share {
    path: PathBuf,
    versions: PathBuf,
}

impl Share {
    pub(super) fn new(path: &Path) -> Share {
        Share {
            path: path.to_owned(),
            versions: beside(path, VERSIONS),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn versions(&self) -> &Path {
        &self.versions
    }

    fn version(&self, version: Version) -> PathBuf {
        self.versions.join(name(version))
    }

    /// Returns the directory of a version's record; version 0 has none.
    fn record_place(&self, version: Version) -> PathBuf {
        self.version(version.saturating_sub(1)).join(NEXT)
    }

    pub(super) fn hint(&self) -> io::Result<Hint> {
        match files::stat(&self.path) {
            // Opening a device can have effects.
            Ok(found) if found.kind != Kind::File => return Err(not_a_file(found)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Hint::Missing),
            Err(error) => return Err(error),
        }
        let bytes = match files::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Hint::Missing),
            Err(error) => return Err(error),
        };
        if bytes.is_empty() {
            return Ok(Hint::Empty);
        }
        if let Some(record) = VersionRecord::decode(&bytes) {
            return Ok(Hint::Record(Box::new(record)));
        }
        // Only zeros: a crash of the server has torn a write.
        let blank = bytes.iter().all(|byte| *byte == 0);
        if bytes.starts_with(FIRST_LINE) || FIRST_LINE.starts_with(&bytes) || blank {
            return Ok(Hint::Unread);
        }
        Ok(Hint::Foreign)
    }

    /// Makes the lock's path with its first line, unless it exists.
    pub(super) fn make_hint(&self) -> io::Result<()> {
        let made = files::write(self.path.clone(), true, false, version_record::first_hint());
        match made {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn begin_hint(&self) -> io::Result<()> {
        files::write(
            self.path.clone(),
            false,
            false,
            version_record::first_hint(),
        )
    }

    /// Never creates the hint: an operator who removed it meant that.
    pub(super) fn write_hint(&self, record: &VersionRecord) -> io::Result<()> {
        files::write(self.path.clone(), false, true, record.encode_hint())
    }

    /// Like [`Share::place`], but also refuses a hard link.
    pub(super) fn examine(&self) -> io::Result<Option<Found>> {
        match files::stat_link(&self.path) {
            Ok(found) if found.kind == Kind::File && found.has_another_name => Err(io::Error::new(
                ErrorKind::InvalidInput,
                "it has a second name (a hard link): remove one of them",
            )),
            _ => self.place(),
        }
    }

    /// Refuses a path that is not the lock's file itself: the versions lie beside the name, so with a second
    /// name two instances would have the lock.
    pub(super) fn place(&self) -> io::Result<Option<Found>> {
        let why = match files::stat_link(&self.path) {
            Ok(found) if found.kind == Kind::Link => {
                Some("it is a symbolic link: name the file itself")
            }
            _ if mount::of(&self.path).at == self.path => Some(
                "the file alone is mounted, and not the directory .versions beside it: mount the directory of both",
            ),
            _ => None,
        };
        if let Some(why) = why {
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        match files::stat_link(&self.versions) {
            Ok(found) if found.kind != Kind::Directory => Err(Errno::ENOTDIR.into()),
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Renames a prepared directory, with version 0 in it, to where nothing is. Simultaneous makers begin one
    /// chain, and none begins again where versions have been.
    pub(super) fn begin(&self) -> io::Result<Made> {
        let prepared = beside(&self.versions, format!(".{:016x}", fastrand::u64(..)));
        // Version 0 first: rename(2) replaces an empty directory.
        there(files::make_directory(prepared.clone()))?;
        let begun = there(files::make_directory(prepared.join(name(0))))
            .and_then(|_| files::rename(prepared.clone(), self.versions.clone()));
        let Err(error) = begun else {
            return Ok(Made::Made);
        };
        let _ = files::remove_directory(prepared.join(name(0)));
        let _ = files::remove_directory(prepared);
        // The server's word; a cache may say otherwise.
        if let Some(libc::ENOTEMPTY | libc::EEXIST) = error.raw_os_error() {
            return Ok(Made::Exists);
        }
        // NFS and SMB report a failed rename in many ways. A list can be old: then ask the server for version
        // 0.
        let there = self.list().is_ok_and(|versions| !versions.is_empty())
            || self.is_there(0).unwrap_or(false);
        if there { Ok(Made::Exists) } else { Err(error) }
    }

    /// Refuses a user whose versions others could not continue.
    pub(super) fn refuse_strangers(&self, versions: Option<Found>) -> io::Result<()> {
        let Some(of) = versions.filter(|it| it.owner != geteuid().as_raw()) else {
            return Ok(());
        };
        // Servers can give all files to one user (all_squash), and SMB shows them as one user's: a trial shows
        // the owner.
        let made = with_a_trial(&self.versions, files::stat)?;
        if made.owner == of.owner || made.writable_by_group_or_others {
            return Ok(());
        }
        let why = format!(
            "{} belongs to user {}, and what this user makes there to user {}: run this as user {1} (sudo -u '#{1}')",
            self.versions.display(),
            of.owner,
            made.owner
        );
        Err(io::Error::new(ErrorKind::InvalidInput, why))
    }

    /// Makes something beside this version and, if `within`, in it, as a take-over does.
    pub(super) fn try_taking_over(&self, last: Version, within: bool) -> io::Result<()> {
        // Modes and owners do not tell on SMB.
        let places = [
            Some(self.versions.clone()),
            within.then(|| self.version(last)),
        ];
        for place in places.into_iter().flatten() {
            with_a_trial(&place, |_| Ok(()))?;
        }
        Ok(())
    }

    /// Makes a version: the one request that no cache answers.
    pub(super) fn make(&self, version: Version) -> io::Result<Made> {
        // mkdir is the compare-and-swap: every server tells one of two makers that it exists, even in its
        // grace period, in which an exclusive create waits for 41 s.
        match files::make_directory(self.version(version)) {
            Ok(()) => Ok(Made::Made),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Made::Exists),
            Err(error) => Err(error),
        }
    }

    /// Whether a version exists, by the server's word: makes something in it, which may be made already. The
    /// server refuses a version that only the client's cache knows.
    pub(super) fn is_there(&self, version: Version) -> io::Result<bool> {
        Ok(self.make_in(version, NEXT)?.is_some())
    }

    /// Whether an operator has broken this version's lease; the next version must exist.
    pub(super) fn broken(&self, version: Version) -> io::Result<Broken> {
        for name in BROKEN {
            match self.make_in(version, name)? {
                Some(Made::Made) => return Ok(Broken::No),
                Some(Made::Exists) => {}
                None => return Ok(Broken::IsGone),
            }
        }
        Ok(Broken::Perhaps)
    }

    /// Announces a break, before the next version is made; `false`: the version is missing.
    pub(super) fn say_broken(&self, version: Version) -> io::Result<bool> {
        for name in BROKEN {
            if self.make_in(version, name)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a directory in a version; `None`: the version is missing.
    fn make_in(&self, version: Version, name: &str) -> io::Result<Option<Made>> {
        let make = || match files::make_directory(self.version(version).join(name)) {
            Ok(()) => Ok(Some(Made::Made)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Some(Made::Exists)),
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    || error.raw_os_error() == Some(libc::ESTALE) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        };
        match make()? {
            // An old cache says the same until the directory is opened.
            None if self.exists(version)? => make(),
            made => Ok(made),
        }
    }

    /// Whether a version exists, as far as the directory shows it.
    pub(super) fn exists(&self, version: Version) -> io::Result<bool> {
        match files::stat_in(self.versions.clone(), name(version)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a version has a record, readable or not; opens no file.
    pub(super) fn has_record(&self, version: Version) -> bool {
        self.bears_record(version).unwrap_or(false)
    }

    /// Like [`Share::has_record`], but reports errors.
    pub(super) fn bears_record(&self, version: Version) -> io::Result<bool> {
        match files::stat_in(self.record_place(version), RECORD.to_owned()) {
            Ok(found) => Ok(found.length > 0),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn record(&self, version: Version) -> Option<VersionRecord> {
        self.read_record(version).ok().flatten()
    }

    /// Like [`Share::record`], but reports read errors.
    pub(super) fn read_record(&self, version: Version) -> io::Result<Option<VersionRecord>> {
        let bytes = match files::read_in(self.record_place(version), RECORD) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let record = VersionRecord::decode(&bytes);
        Ok(record.filter(|record| record.version == version))
    }

    pub(super) fn write_record(&self, record: &VersionRecord) -> io::Result<()> {
        let place = self.record_place(record.version);
        // Exclusively: the record of another's version is never overwritten.
        let put = || files::write(place.join(RECORD), true, true, record.encode());
        match put() {
            // A break or a release may not have checked the version.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                there(files::make_directory(place.clone()))?;
                put()
            }
            put => put,
        }
    }

    pub(super) fn list(&self) -> io::Result<Vec<Version>> {
        let mut found: Vec<Version> = files::list(&self.versions)?
            .into_iter()
            .filter_map(|name| number(&name.into_encoded_bytes()))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Whether this version is all that a removal has left of a chain.
    pub(super) fn is_left_alone(&self, last: Version) -> io::Result<bool> {
        let versions = self.list()?;
        // Old views may have left versions beside it: none continues another.
        let goes_on = |two: &[Version]| two[0].checked_add(1) == Some(two[1]);
        Ok(versions.last() == Some(&last) && !versions.windows(2).any(goes_on))
    }

    /// Removes a version, with the record of the next.
    pub(super) fn remove(&self, version: Version) -> io::Result<()> {
        // Not as a tree: another program's files are kept and reported.
        let path = self.version(version);
        let next = path.join(NEXT);
        let removed = files::remove_file(next.join(RECORD));
        for removed in [removed, files::remove_directory(next)] {
            match removed {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match files::remove_directory(path.clone()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                // Announced breaks, and dead instances' trials.
                let mut removed = false;
                for name in files::list(&path)? {
                    let text = name.to_string_lossy();
                    if BROKEN.contains(&&*text) || text.starts_with(TRIAL) {
                        removed |= files::remove_directory(path.join(&name)).is_ok();
                    }
                }
                if !removed {
                    return Err(error);
                }
                files::remove_directory(path)
            }
            removed => removed,
        }
    }

    pub(super) fn device(&self) -> Option<u64> {
        let directory = self.path.parent()?;
        Some(files::stat(directory).ok()?.device)
    }

    /// Returns when a version, or something in it, was made, by the server's clock since 1970.
    pub(super) fn made_at(&self, version: Version) -> io::Result<Duration> {
        files::stat(&self.version(version)).map(|made| made.modified)
    }

    /// Returns the server's time since 1970.
    pub(super) fn time(&self) -> io::Result<Duration> {
        with_a_trial(&self.versions, |path| {
            files::stat(path).map(|made| made.modified)
        })
    }
}

fn with_a_trial<T>(place: &Path, ask: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    // No file: a server that has just restarted opens none.
    let path = place.join(format!("{TRIAL}{:08x}", fastrand::u32(..)));
    // No other instance takes this name: if it exists, an answer was lost.
    there(files::make_directory(path.clone()))?;
    let answer = ask(&path);
    let _ = files::remove_directory(path);
    answer
}

fn name(version: Version) -> String {
    format!("{version:0DIGITS$}")
}

fn number(name: &[u8]) -> Option<Version> {
    let digits = name.len() == DIGITS && name.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(name).ok().filter(|_| digits)?;
    text.parse().ok()
}

fn there(made: io::Result<()>) -> io::Result<bool> {
    match made {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(true),
    }
}

fn not_a_file(found: Found) -> io::Error {
    if found.kind == Kind::Directory {
        Errno::EISDIR.into()
    } else {
        io::Error::new(
            ErrorKind::InvalidInput,
            "it is not a regular file: name one",
        )
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn version_names_have_exactly_twenty_digits() {
        assert_eq!(name(41), "00000000000000000041");
        assert_eq!(number(name(u64::MAX).as_bytes()), Some(u64::MAX));
        for other in [
            "41",
            "99999999999999999999",
            "+0000000000000000041",
            "time.00000000",
        ] {
            assert_eq!(number(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn second_maker_of_a_version_is_told_that_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let share = Share::new(&dir.path().join("lock"));
        assert_eq!(share.begin().unwrap(), Made::Made);
        assert_eq!(share.begin().unwrap(), Made::Exists);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "the prepared directory is left"
        );
        assert!(share.is_there(0).unwrap() && share.is_there(0).unwrap());
        assert!(!share.exists(1).unwrap() && !share.is_there(1).unwrap());
        assert_eq!(share.make(1).unwrap(), Made::Made);
        assert_eq!(share.make(1).unwrap(), Made::Exists);
        assert!(share.exists(1).unwrap() && !share.has_record(1));
        assert_eq!(share.list().unwrap(), [0, 1]);
        let age = share.time().unwrap().checked_sub(share.made_at(1).unwrap());
        assert!(age.is_some_and(|age| age.as_secs() < 60));
        share.remove(0).unwrap();
        share.remove(1).unwrap();
        assert!(share.list().unwrap().is_empty());
        assert_eq!(share.begin().unwrap(), Made::Made);
    }

    #[test]
    fn announced_break_is_found_by_making_its_directories() {
        let dir = tempfile::tempdir().unwrap();
        let share = Share::new(&dir.path().join("lock"));
        share.begin().unwrap();
        assert_eq!(share.broken(1).unwrap(), Broken::IsGone);
        assert!(!share.say_broken(1).unwrap());
        assert_eq!(share.make(1).unwrap(), Made::Made);
        for _ in BROKEN {
            assert_eq!(share.broken(1).unwrap(), Broken::No);
        }
        assert_eq!(share.broken(1).unwrap(), Broken::Perhaps);
        assert_eq!(share.broken(0).unwrap(), Broken::No);
        assert!(share.say_broken(0).unwrap());
        assert_eq!(share.broken(0).unwrap(), Broken::Perhaps);
        fs::create_dir(share.version(0).join("time.00000000")).unwrap();
        for version in [0, 1] {
            share.remove(version).unwrap();
        }
        assert_eq!(share.list().unwrap(), [] as [Version; 0]);
    }

    #[test]
    fn hint_tells_missing_empty_unread_and_foreign_files_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let share = Share::new(&path);
        assert_eq!(share.hint().unwrap(), Hint::Missing);
        fs::write(&path, "").unwrap();
        assert_eq!(share.hint().unwrap(), Hint::Empty);
        share.begin_hint().unwrap();
        assert_eq!(share.hint().unwrap(), Hint::Unread);
        for (bytes, hint) in [
            (&b"{\"token\":7}"[..], Hint::Foreign),
            (b"#!/bin/sh\n", Hint::Foreign),
            (b"traffic", Hint::Unread),
            (&[0; 100], Hint::Unread),
            (b"trafficcop shared lock 2\n{}", Hint::Foreign),
        ] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(share.hint().unwrap(), hint);
        }
        fs::remove_file(&path).unwrap();
        share.make_hint().unwrap();
        share.make_hint().unwrap();
        assert_eq!(share.hint().unwrap(), Hint::Unread);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(share.hint().is_err());
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        Share::new(&file).examine().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(Share::new(&link).examine().is_err());
        fs::hard_link(&file, dir.path().join("second")).unwrap();
        assert!(Share::new(&file).examine().is_err());
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        assert!(Share::new(&fifo).hint().is_err());
    }

    #[test]
    fn user_whose_versions_others_could_not_continue_is_refused() {
        if !geteuid().is_root() {
            println!("NOT TESTED: only root can give a directory away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let share = Share::new(&dir.path().join("lock"));
        share.refuse_strangers(share.examine().unwrap()).unwrap();
        share.begin().unwrap();
        share.refuse_strangers(share.examine().unwrap()).unwrap();
        std::os::unix::fs::chown(share.versions(), Some(4321), None).unwrap();
        let why = share.refuse_strangers(share.examine().unwrap());
        let why = share.refusal("reading it", &why.unwrap_err()).to_string();
        assert!(why.contains("(sudo -u '#4321')"), "{why}");
        assert_eq!(share.list().unwrap(), [0], "the trial is left");
    }
}
