//! The control file: sixteen bytes that tell any process of this machine until when the command may believe in
//! its control, and whether it was asked to stop.
//!
//! The guardian writes it, or the supervisor when the guardian is dead. It must never promise more than the
//! deadline at which the guardian kills: so it stays true when its writer is stopped or dead.
//!
//! It is two native-endian `u64`, nanoseconds of CLOCK_BOOTTIME. The first is the end of control: 0 without
//! control, `u64::MAX` without a deadline. The second is the end of a drain, or 0; it is written before the
//! first signal. A death between the two leaves a command that begins nothing more, never one that got a signal
//! and still reads "in control". A reader may use the first word alone, and a file may have no other.
//!
//! A living owner locks the file. One without a lock means nothing: the next start removes it.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::mman::ProtFlags;

use super::shared_memory::{Mapping, SharedControl};
use super::state::ControlState;
use trafficcop_core::clock::Instant;
use trafficcop_core::machine::lasting;
use trafficcop_core::util::{is_locked_by_another, is_safe_from_others, ours_in, whole_file};

pub(super) const VARIABLE: &str = "TRAFFICCOP_CONTROL";
const PREFIX: &str = "trafficcop-control.";
// End of the name until the file is locked.
const UNFINISHED: &str = ".part";
const LENGTH: usize = size_of::<SharedControl>();
// The first word alone, or both with room for a later version's.
const READABLE: [RangeInclusive<u64>; 2] = [8..=8, 16..=64];

/// Whether a path has the name of a control file.
pub fn is_control_file(path: &Path) -> bool {
    let name = path.file_name();
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
}

/// Whether a visible living owner's control file is at this path.
pub fn is_control_file_in_use(path: &Path) -> bool {
    View::open(path).is_ok_and(|view| is_locked_by_another(&view.file) == Ok(true))
}

#[derive(Debug)]
struct Location {
    words: Mapping<SharedControl>,
    path: PathBuf,
    file: Arc<File>,
}

/// The owners' side; `None` if no directory takes a file.
#[derive(Debug)]
pub(super) struct ControlFile(Option<Location>);

impl ControlFile {
    /// Makes one without control, in the first suitable directory.
    pub(super) fn create() -> ControlFile {
        let variable = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        // systemd.exec(5): colons separate several.
        let of_the_unit = variable("RUNTIME_DIRECTORY")
            .and_then(|all| Some(std::env::split_paths(&all).next()?.into()));
        // Memory first: a hanging disk's page would stop the writer of the deadline. The service manager's
        // directory comes before /dev/shm, which logind empties after the user's last session.
        let places = [
            of_the_unit,
            Some("/run".into()),
            Some("/dev/shm".into()),
            variable("XDG_RUNTIME_DIR"),
            variable("TMPDIR"),
            Some("/tmp".into()),
        ];
        let mut why = None;
        // The command may change its directory.
        let places = places.into_iter().flatten().map(PathBuf::from);
        for directory in places.filter(|directory| directory.is_absolute()) {
            match create_in(&directory) {
                Ok(place) => return ControlFile(Some(place)),
                Err(error) => why = Some(error),
            }
        }
        let why = why.map_or_else(String::new, |error| error.to_string());
        tracing::warn!("there is no control file: no directory for it is writable: {why}");
        ControlFile(None)
    }

    pub(super) fn sweep_beside(&self) {
        if let Some(directory) = self.path().and_then(Path::parent) {
            sweep(directory);
        }
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.0.as_ref().map(|place| &*place.path)
    }

    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.0.as_ref().map(|place| place.file.as_raw_fd())
    }

    pub(super) fn set(&self, control: ControlState) {
        if let Some(Location { words, .. }) = &self.0 {
            // Each is one store of eight bytes, never seen half. The drain goes first: with the end of control
            // a reader sees it, too.
            let ControlState { until, drain } = control;
            words.drain.store(drain.as_nanos(), Ordering::Release);
            words.until.store(until.as_nanos(), Ordering::Release);
        }
    }

    /// Writes "not in control" for ever, and removes the file.
    pub(super) fn retire(&mut self) {
        // A process that has the file mapped goes on reading.
        self.set(ControlState::NONE);
        if let Some(place) = self.0.take() {
            let _ = fs::remove_file(&place.path);
        }
    }
}

fn create_in(directory: &Path) -> io::Result<Location> {
    // Another starting instance may sweep the file before it is locked.
    create_once_in(directory).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => create_once_in(directory),
        _ => Err(error),
    })
}

fn create_once_in(directory: &Path) -> io::Result<Location> {
    // Renaming the file could mislead the command.
    if !is_safe_from_others(&fs::metadata(directory)?) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let name = format!("{}.{:08x}", std::process::id(), fastrand::u32(..));
    // With the final name and no lock it would be a leftover.
    let fresh = directory.join(format!("{PREFIX}{name}{UNFINISHED}"));
    let path = directory.join(format!("{PREFIX}{name}"));
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        // No link: every user can make one in /tmp.
        .create_new(true)
        .mode(0o600)
        .open(&fresh)?;
    let made = (|| {
        // Written, not only extended: without room the mapping would fault.
        file.write_all(&[0; LENGTH])?;
        file.set_permissions(fs::Permissions::from_mode(0o444))?;
        fcntl(&file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK)))?;
        let words = Mapping::of(&file, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?;
        fs::rename(&fresh, &path)?;
        Ok(words)
    })();
    match made {
        Ok(words) => {
            let file = Arc::new(file);
            lasting::add(&file);
            Ok(Location { words, path, file })
        }
        Err(error) => {
            let _ = fs::remove_file(&fresh);
            Err(error)
        }
    }
}

fn sweep(directory: &Path) {
    for path in ours_in(directory, PREFIX, Metadata::is_file) {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        if options
            .open(&path)
            .is_ok_and(|file| is_locked_by_another(&file) == Ok(false))
        {
            // For processes that still have it open, or mapped.
            let _ = unsay(&path);
            let _ = fs::remove_file(&path);
        }
    }
}

fn unsay(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    file.write_all_at(&[0; LENGTH], 0)
}

/// Control file for readers, even after its removal.
#[derive(Debug)]
pub struct View {
    words: Mapping<SharedControl>,
    file: File,
}

impl View {
    /// Maps the file at this path.
    ///
    /// # Errors
    /// If it cannot be read, or is no control file.
    pub fn open(path: &Path) -> io::Result<View> {
        let file = OpenOptions::new()
            .read(true)
            // A FIFO would let a script's `check` wait for ever.
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        // By now the path may be another file.
        let found = file.metadata()?;
        let fits = READABLE.iter().any(|range| range.contains(&found.len()));
        if !found.is_file() || !fits {
            return Err(io::Error::other(
                "it is not a file of eight or sixteen bytes",
            ));
        }
        let words = Mapping::of(&file, ProtFlags::PROT_READ)?;
        Ok(View { words, file })
    }

    /// Reads the state. Without a living owner, which would revoke it, it is "not in control".
    #[must_use]
    pub fn read(&self) -> ControlState {
        let [until, drain] = [&self.words.until, &self.words.drain]
            .map(|word| Instant::from_nanos(word.load(Ordering::Acquire)));
        let read = ControlState { until, drain };
        if read == ControlState::NONE || is_locked_by_another(&self.file) != Ok(true) {
            return ControlState::NONE;
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;
    use trafficcop_core::machine::lasting::{is_old, make_old};

    #[test]
    fn view_reads_what_was_written_and_nothing_after_the_end() {
        let mut control = ControlFile::create();
        let path = control.path().expect("a place").to_owned();
        let view = View::open(&path).expect("a control file");
        assert_eq!(view.read(), ControlState::NONE);
        let until = Instant::FOREVER;
        let drain = Instant::from_nanos(7);
        for told in [ControlState::until(until), ControlState { until, drain }] {
            control.set(told);
            assert_eq!(view.read(), told);
            let bytes = fs::read(&path).expect("readable");
            let words = [u64::MAX, told.drain.as_nanos()].map(u64::to_ne_bytes);
            assert_eq!(bytes, words.concat());
        }
        let mode = fs::metadata(&path).expect("there").mode();
        assert_eq!(mode & 0o7777, 0o444);
        control.retire();
        assert!(!path.exists());
        assert_eq!(view.read(), ControlState::NONE);
    }

    #[test]
    fn a_control_file_in_use_never_looks_old() {
        let control = ControlFile::create();
        let path = control.path().expect("a place");
        make_old(path);
        lasting::refresh();
        assert!(!is_old(path));
    }

    #[test]
    fn leftovers_are_swept_and_those_in_use_are_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let living = create_in(directory.path()).expect("a file");
        let dead = create_in(directory.path()).expect("a file");
        let left = dead.path.clone();
        dead.words.until.store(u64::MAX, Ordering::Release);
        dead.words.drain.store(7, Ordering::Release);
        let view = View::open(&left).expect("a control file");
        let mapped = Mapping::of(&File::open(&left).expect("there"), ProtFlags::PROT_READ);
        assert_eq!(view.read().until, Instant::FOREVER);
        drop(dead);
        let unfinished = directory
            .path()
            .join(format!("{PREFIX}7.0000002a{UNFINISHED}"));
        fs::write(&unfinished, "").expect("written");
        let foreign = directory.path().join("something.else");
        fs::write(&foreign, "x").expect("written");
        // A neighbouring test's child has the descriptor until its exec.
        let give_up_at = Instant::now() + std::time::Duration::from_secs(60);
        let next = ControlFile(Some(create_in(directory.path()).expect("a file")));
        while left.exists() && Instant::now() < give_up_at {
            next.sweep_beside();
        }
        let next = next.0.expect("still there");
        assert!(!left.exists() && !unfinished.exists());
        assert_eq!(view.read(), ControlState::NONE, "its writer is dead");
        let SharedControl { until, drain } = &*mapped.expect("mapped");
        let words = [until, drain].map(|word| word.load(Ordering::Acquire));
        assert_eq!(words, [0, 0], "the sweeper wrote it");
        assert!(living.path.exists() && next.path.exists() && foreign.exists());
    }

    #[test]
    fn a_directory_in_which_others_can_rename_is_not_used() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = |mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(directory.path(), mode).expect("ours");
            create_in(directory.path()).is_ok()
        };
        assert!(open(0o1777) && open(0o755) && !open(0o777));
    }

    #[test]
    fn only_a_control_file_is_read_as_one() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(View::open(file.path()).is_err());
        assert!(View::open(Path::new("/")).is_err());
        assert!(View::open(Path::new("/nowhere/at/all")).is_err());
    }
}
