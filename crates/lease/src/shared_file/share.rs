//! The requests to the drive, and nothing but them: the versions, their records, the hint.
//!
//! Called by `chain`, `look`, `writer`, `release`, `inspect` and `probe`, always where hanging is allowed: in
//! a thread that nobody waits for past its time, or in a guardian whose work is done. Nothing stays
//! open between two calls, nothing is locked. It decides nothing, and must never remove the lock's
//! path, rename anything, or say that a version was made which was there before.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::geteuid;

use super::files::{self, Found, Kind};
use crate::mount::{self, beside};
use crate::version_record::{self, FIRST_LINE, VersionRecord};
use trafficcop_core::observed::Version;

/// What the directory of versions is called, after the lock's path.
pub(crate) const VERSIONS: &str = ".versions";
/// What a version's record is called. It lies in `NEXT` of the version before it.
const RECORD: &str = "record";
// What whoever made the version after it makes in it, to see that it is there; that version's record
// goes in here. Not into the version itself: a create that the server holds back (its grace period)
// keeps the directory locked in our own kernel, and there the next renewal makes its `NEXT`.
const NEXT: &str = "next";
// What an operator makes in a version, all of them, before he makes the one after it: its holder, who is told that
// this exists and can read nothing there, makes the first that is missing, and then knows that it is no operator's.
// Several, as an answer to that can be lost, too, and another try needs another name.
const BROKEN: [&str; 4] = ["broken.1", "broken.2", "broken.3", "broken.4"];
// What the name of a trial begins with: a directory that is made to ask something of it, and removed again.
const TRIAL: &str = "time.";
// The digits of a version's name: those of the greatest number, so that names sort as numbers do.
const DIGITS: usize = 20;

/// The drive's answer to the question of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// We made it.
    Made,
    /// It exists.
    Exists,
}

/// Whether an operator has broken the lease of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// He had not when this was asked.
    No,
    /// He has, or has begun to, or so many answers to this question were lost.
    Perhaps,
    /// The version is not there.
    IsGone,
}

/// What stands at the lock's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// Nothing is there.
    Missing,
    /// A file with nothing in it.
    Empty,
    /// Our first line, and no record that could be read.
    Unread,
    /// The record that its maker wrote last, as far as we are told.
    Record(Box<VersionRecord>),
    /// Something else: a lock of the kernel's, or of another program.
    Stranger,
}

/// A lock's place on the drive.
#[derive(Clone, Debug)]
pub(super) struct Share {
    path: PathBuf,
    versions: PathBuf,
}

impl Share {
    /// `path` is absolute. Nothing is asked.
    pub(super) fn new(path: &Path) -> Share {
        Share {
            path: path.to_owned(),
            versions: beside(path, VERSIONS),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the versions.
    pub(super) fn versions(&self) -> &Path {
        &self.versions
    }

    fn version(&self, version: Version) -> PathBuf {
        self.versions.join(name(version))
    }

    /// The directory of a version's record. Version 0 has none.
    fn record_place(&self, version: Version) -> PathBuf {
        self.version(version.saturating_sub(1)).join(NEXT)
    }

    /// Reads the hint.
    pub(super) fn hint(&self) -> io::Result<Hint> {
        match files::stat(&self.path) {
            // Looked at before it is opened: opening a device can do things.
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
        // Nothing but zeros: a write of ours that a crash of the server has torn.
        let blank = bytes.iter().all(|byte| *byte == 0);
        if bytes.starts_with(FIRST_LINE) || FIRST_LINE.starts_with(&bytes) || blank {
            return Ok(Hint::Unread);
        }
        Ok(Hint::Stranger)
    }

    /// Makes the lock's path, with the first line alone; it may be there already.
    pub(super) fn make_hint(&self) -> io::Result<()> {
        let made = files::write(self.path.clone(), true, false, version_record::first_hint());
        match made {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes the first line into a file with nothing in it.
    pub(super) fn begin_hint(&self) -> io::Result<()> {
        files::write(
            self.path.clone(),
            false,
            false,
            version_record::first_hint(),
        )
    }

    /// Rewrites the hint in place. It is never created here: whoever removed it meant that.
    pub(super) fn write_hint(&self, record: &VersionRecord) -> io::Result<()> {
        files::write(self.path.clone(), false, true, record.encode_hint())
    }

    /// Refuses a second name (a hard link) of the lock's file, and else like [`Share::place`]. Asked where a lock is
    /// taken.
    pub(super) fn examine(&self) -> io::Result<Option<Found>> {
        match files::stat_link(&self.path) {
            Ok(found) if found.kind == Kind::File && found.has_another_name => Err(io::Error::new(
                ErrorKind::InvalidInput,
                "it has a second name (a hard link): remove one of them",
            )),
            _ => self.place(),
        }
    }

    /// Whether the path is the lock's file itself, and what stands where the versions are kept, if anything does,
    /// can be that. The versions lie beside the name: by another name of the same file another chain would be
    /// spoken of, and two would have the lock.
    pub(super) fn place(&self) -> io::Result<Option<Found>> {
        let why = match files::stat_link(&self.path) {
            Ok(found) if found.kind == Kind::Link => {
                Some("it is a symbolic link: name the file itself")
            }
            _ if mount::of(&self.path).at == self.path => Some(
                "it is mounted by itself, and its versions beside it are not: mount its directory",
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

    /// Begins a chain: puts a directory that was prepared beside it, with version 0 in it, where the
    /// versions are kept. Only where nothing is: two who begin at once begin one chain, and none
    /// begins again where versions have been.
    pub(super) fn begin(&self) -> io::Result<Made> {
        let prepared = beside(&self.versions, format!(".{:016x}", fastrand::u64(..)));
        // With version 0 in it from the first moment: a directory that is not empty is what rename(2) does not
        // replace. No other instance takes this name: where it exists, an answer to our own request was lost.
        there(files::make_directory(prepared.clone()))?;
        let begun = there(files::make_directory(prepared.join(name(0))))
            .and_then(|_| files::rename(prepared.clone(), self.versions.clone()));
        let Err(error) = begun else {
            return Ok(Made::Made);
        };
        let _ = files::remove_directory(prepared.join(name(0)));
        let _ = files::remove_directory(prepared);
        // The server says that the chain has been begun. A look at it may be answered by a cache that says otherwise.
        if let Some(libc::ENOTEMPTY | libc::EEXIST) = error.raw_os_error() {
            return Ok(Made::Exists);
        }
        // NFS and SMB answer a rename that fails in many other ways; what is there now says which it was. A list can
        // be an old one, which knows nothing of who was first: then the server is asked for what he began with.
        let there = self.list().is_ok_and(|versions| !versions.is_empty())
            || self.is_there(0).unwrap_or(false);
        if there { Ok(Made::Exists) } else { Err(error) }
    }

    /// Refuses a user from whose versions the others could not go on: whoever does makes something in them.
    /// `versions` is their directory, as [`Share::examine`] found it.
    pub(super) fn refuse_strangers(&self, versions: Option<Found>) -> io::Result<()> {
        let Some(of) = versions.filter(|it| it.owner != geteuid().as_raw()) else {
            return Ok(());
        };
        // Many servers make what anybody makes one user's (all_squash), and SMB shows all of it as one's: what we
        // would make is seen by what we make.
        let made = with_a_trial(&self.versions, files::stat)?;
        if made.owner == of.owner || made.is_others_to_write {
            return Ok(());
        }
        let why = format!(
            "its versions belong to user {}, who cannot continue those of user {}: run this as user {0} (sudo -u '#{0}')",
            of.owner, made.owner
        );
        Err(io::Error::new(ErrorKind::InvalidInput, why))
    }

    /// Tries whether this user may do what a take-over from this version does: make something beside it and, where
    /// `within`, in it.
    pub(super) fn try_taking_over(&self, last: Version, within: bool) -> io::Result<()> {
        // Modes and owners do not say it: an SMB client shows all of a share as one user's, whatever account it has.
        let places = [
            Some(self.versions.clone()),
            within.then(|| self.version(last)),
        ];
        for place in places.into_iter().flatten() {
            with_a_trial(&place, |_| Ok(()))?;
        }
        Ok(())
    }

    /// Makes a version: the one question that no cache answers.
    pub(super) fn make(&self, version: Version) -> io::Result<Made> {
        // mkdir is the compare-and-swap: of two who make one directory every server tells one that it exists,
        // and answers in its grace period, too, where an exclusive create waits for 41 s.
        match files::make_directory(self.version(version)) {
            Ok(()) => Ok(Made::Made),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Made::Exists),
            Err(error) => Err(error),
        }
    }

    /// Whether a version is there, by the server's word: something is made in it. It may be made
    /// already; where the version is not, nothing is, and a name that only our cache knows is refused.
    pub(super) fn is_there(&self, version: Version) -> io::Result<bool> {
        Ok(self.make_in(version, NEXT)?.is_some())
    }

    /// Whether an operator has broken the lease of this version, by the server's word; to be asked when
    /// the version after it exists.
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

    /// Says that the lease of this version is being broken, before the one after it is made; `false`: the
    /// version is not there.
    pub(super) fn say_broken(&self, version: Version) -> io::Result<bool> {
        for name in BROKEN {
            if self.make_in(version, name)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes a directory in a version; `None`: the version is not there.
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
            // A cache that does not know the version's name yet says the same, until the directory is opened.
            None if self.exists(version)? => make(),
            made => Ok(made),
        }
    }

    /// Whether a version is there, as far as the directory shows it. The directory is opened first:
    /// where opening asks the server, what is remembered of names is given up if it changed.
    pub(super) fn exists(&self, version: Version) -> io::Result<bool> {
        match files::stat_in(self.versions.clone(), name(version)) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a version bears a record, readable or not; answered where opening it is not (a server
    /// that has just been restarted).
    pub(super) fn has_record(&self, version: Version) -> bool {
        self.bears_record(version).unwrap_or(false)
    }

    /// The same, where it is a matter of whether that is known.
    pub(super) fn bears_record(&self, version: Version) -> io::Result<bool> {
        match files::stat_in(self.record_place(version), RECORD.to_owned()) {
            Ok(found) => Ok(found.length > 0),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The record of a version, if there is one that can be read.
    pub(super) fn record(&self, version: Version) -> Option<VersionRecord> {
        self.read_record(version).ok().flatten()
    }

    /// The same, where it is a matter of whether that is known.
    pub(super) fn read_record(&self, version: Version) -> io::Result<Option<VersionRecord>> {
        let bytes = match files::read_in(self.record_place(version), RECORD) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let record = VersionRecord::decode(&bytes);
        Ok(record.filter(|record| record.version == version))
    }

    /// Writes the record of a version that we made, and sees it to the disk.
    pub(super) fn write_record(&self, record: &VersionRecord) -> io::Result<()> {
        let place = self.record_place(record.version);
        // Created exclusively: the record of a version that another made is never written over.
        let put = || files::write(place.join(RECORD), true, true, record.encode());
        match put() {
            // Who only breaks or gives back has not looked whether the version before is there.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                there(files::make_directory(place.clone()))?;
                put()
            }
            put => put,
        }
    }

    /// The versions that are there, in order.
    pub(super) fn list(&self) -> io::Result<Vec<Version>> {
        let mut found: Vec<Version> = files::list(&self.versions)?
            .into_iter()
            .filter_map(|name| number(&name.into_encoded_bytes()))
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Whether this version, which has none before it, is what somebody has left of a chain.
    pub(super) fn is_left_alone(&self, last: Version) -> io::Result<bool> {
        let versions = self.list()?;
        // Beside it may be what old views made and could not withdraw: none of that goes on from another.
        let goes_on = |two: &[Version]| two[0].checked_add(1) == Some(two[1]);
        Ok(versions.last() == Some(&last) && !versions.windows(2).any(goes_on))
    }

    /// Removes a version, with the record of the one after it.
    pub(super) fn remove(&self, version: Version) -> io::Result<()> {
        // From the inside out, and not as a tree: what somebody else has put there is kept, and said.
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
                // What operators made in it, and the trials of instances that died.
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

    /// Which file system the lock's directory is on.
    pub(super) fn device(&self) -> Option<u64> {
        let directory = self.path.parent()?;
        Some(files::stat(directory).ok()?.device)
    }

    /// When a version was made, or something in it, by the server's clock: since 1970.
    pub(super) fn made_at(&self, version: Version) -> io::Result<Duration> {
        files::stat(&self.version(version)).map(|made| made.modified)
    }

    /// The server's time, since 1970: that of a directory made for this, which is removed again.
    pub(super) fn time(&self) -> io::Result<Duration> {
        with_a_trial(&self.versions, |path| {
            files::stat(path).map(|made| made.modified)
        })
    }
}

/// Makes a directory in this one, asks something of it, and removes it.
fn with_a_trial<T>(place: &Path, ask: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    // A directory: a file would have to be opened, which a server that was just restarted does not do.
    let path = place.join(format!("{TRIAL}{:08x}", fastrand::u32(..)));
    // Nobody else takes this name. Where it exists it is ours: an answer was lost, and it was asked for again; so
    // was the removal of what is gone.
    there(files::make_directory(path.clone()))?;
    let answer = ask(&path);
    let _ = files::remove_directory(path);
    answer
}

/// The name of a version.
fn name(version: Version) -> String {
    format!("{version:0DIGITS$}")
}

/// The version of a name.
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
    fn a_name_is_twenty_digits_and_no_other_name_is_a_version() {
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
    fn of_two_who_make_a_version_one_is_told_that_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let share = Share::new(&dir.path().join("lock"));
        assert_eq!(share.begin().unwrap(), Made::Made);
        assert_eq!(share.begin().unwrap(), Made::Exists);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing is left"
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
        // A directory with nothing in it is none.
        assert_eq!(share.begin().unwrap(), Made::Made);
    }

    #[test]
    fn whether_a_lease_is_broken_is_known_by_making_what_who_breaks_makes_first() {
        let dir = tempfile::tempdir().unwrap();
        let share = Share::new(&dir.path().join("lock"));
        share.begin().unwrap();
        assert_eq!(share.broken(1).unwrap(), Broken::IsGone);
        assert!(!share.say_broken(1).unwrap());
        assert_eq!(share.make(1).unwrap(), Made::Made);
        // As often as its answers may be lost.
        for _ in BROKEN {
            assert_eq!(share.broken(1).unwrap(), Broken::No);
        }
        assert_eq!(share.broken(1).unwrap(), Broken::Perhaps);
        // All of it is said, or what was said already is no hindrance.
        assert_eq!(share.broken(0).unwrap(), Broken::No);
        assert!(share.say_broken(0).unwrap());
        assert_eq!(share.broken(0).unwrap(), Broken::Perhaps);
        // A trial whose instance died in it is no hindrance either.
        fs::create_dir(share.version(0).join("time.00000000")).unwrap();
        for version in [0, 1] {
            share.remove(version).unwrap();
        }
        assert_eq!(share.list().unwrap(), [] as [Version; 0]);
    }

    #[test]
    fn what_stands_at_the_path_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let share = Share::new(&path);
        assert_eq!(share.hint().unwrap(), Hint::Missing);
        fs::write(&path, "").unwrap();
        assert_eq!(share.hint().unwrap(), Hint::Empty);
        share.begin_hint().unwrap();
        assert_eq!(share.hint().unwrap(), Hint::Unread);
        for (bytes, hint) in [
            (&b"{\"token\":7}"[..], Hint::Stranger),
            (b"#!/bin/sh\n", Hint::Stranger),
            (b"traffic", Hint::Unread),
            (&[0; 100], Hint::Unread),
            (b"trafficcop shared lock 2\n{}", Hint::Stranger),
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
    fn from_whose_versions_the_others_could_not_go_on_is_refused() {
        if !geteuid().is_root() {
            println!("NOT TESTED: nobody but root can give a directory away");
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
        assert_eq!(share.list().unwrap(), [0], "and nothing is left");
    }
}
