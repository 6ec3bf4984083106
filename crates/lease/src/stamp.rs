//! Stamps that a waiting instance leaves for the next one on this machine: which version it saw last, and since
//! when.
//!
//! An instance that looks once (`-n`, a line of cron) never watches for a whole lease. Without stamps, ten
//! machines that look once a minute would never take over from a dead holder. It must never believe a stamp of
//! another boot, clock or user. Nor may a version's number alone count: a lock that was made anew begins at 1
//! again.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use trafficcop_core::clock::Instant;
use trafficcop_core::machine::procfs;
use trafficcop_core::observed::Version;
use trafficcop_core::util::{check, ours_in};

// An unfinished stamp's name has more after it.
const STAMP: &str = ".seen";

/// Version, with a fingerprint that tells its chain from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamped {
    pub(super) version: Version,
    pub(super) fingerprint: String,
}

pub(super) fn find(places: &[PathBuf], path: &Path, of: &Stamped) -> Option<Instant> {
    find_in(directory(places)?, path, of)
}

fn find_in(directory: &Path, path: &Path, of: &Stamped) -> Option<Instant> {
    // The name can be another file's by then.
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut file = options.open(directory.join(name(path))).ok()?;
    let found = file.metadata().ok()?;
    let ours = found.is_file() && is_private(&found) && found.len() < 4096;
    let mut text = String::new();
    ours.then(|| file.read_to_string(&mut text))?.ok()?;
    let mut words = text.split('\n');
    let same = words.next()? == clock()?
        && words.next()? == path.display().to_string()
        && words.next()?.parse() == Ok(of.version)
        && words.next()? == of.fingerprint;
    let stamp = words.next().filter(|_| same)?.parse().ok()?;
    let stamp = Instant::from_nanos(stamp);
    // One from the future would prolong the wait beyond a lease.
    (stamp <= Instant::now()).then_some(stamp)
}

/// Leaves a stamp. If that fails or is late, the next instance waits a whole lease.
pub(super) fn leave(
    places: &[PathBuf],
    path: &Path,
    of: Stamped,
    stamp: Instant,
    within: Duration,
) {
    // In a thread: the process is about to end, and the directory may hang.
    let (places, path) = (places.to_owned(), path.to_owned());
    let (done, wait) = std::sync::mpsc::channel();
    let started = std::thread::Builder::new()
        .name("lock-stamp".into())
        .spawn(move || {
            if let Some(directory) = directory(&places) {
                leave_in(directory, &path, &of, stamp);
            }
            let _ = done.send(());
        });
    if started.is_ok() {
        let _ = wait.recv_timeout(within);
    }
}

fn leave_in(directory: &Path, path: &Path, of: &Stamped, stamp: Instant) -> Option<()> {
    let text = format!(
        "{}\n{}\n{}\n{}\n{}\n",
        clock()?,
        path.display(),
        of.version,
        of.fingerprint,
        stamp.as_nanos()
    );
    // A reader finds the old stamp or the new one. No fsync: it is worth nothing after a boot.
    let whole = directory.join(name(path));
    let part = directory.join(format!("{}.{:08x}", name(path), fastrand::u32(..)));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = options
        .open(&part)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&part, whole));
    if written.is_err() {
        let _ = fs::remove_file(part);
    }
    sweep(directory);
    written.ok()
}

/// Removes stamps, finished or not, that are older than a monthly job's pause.
fn sweep(directory: &Path) {
    const KEPT: Duration = Duration::from_secs(40 * 24 * 60 * 60);
    for path in ours_in(directory, "", fs::Metadata::is_file) {
        let age = fs::metadata(&path).and_then(|found| found.modified());
        let name = path.file_name().unwrap_or_default();
        let is_stamp = name.to_string_lossy().contains(STAMP);
        // By the wall clock: a stamp removed too early costs one lease of waiting.
        if is_stamp && age.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > KEPT)) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Identifies the stamps' clock.
fn clock() -> Option<String> {
    // Every boot restarts CLOCK_BOOTTIME, and a time namespace shifts it.
    let boot = procfs::text("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

fn name(path: &Path) -> String {
    let bytes = path.as_os_str().as_encoded_bytes();
    format!("{}{STAMP}", check(bytes))
}

/// Returns this user's directories that do not outlast the boot, the best first; `runtime` is XDG_RUNTIME_DIR.
#[must_use]
pub fn runtime_directories(runtime: Option<&Path>) -> Vec<PathBuf> {
    let uid = nix::unistd::geteuid().as_raw();
    let runtime = runtime.filter(|path| path.is_absolute());
    let places = [
        (uid == 0).then(|| PathBuf::from("/run/trafficcop")),
        runtime.map(|runtime| runtime.join("trafficcop")),
        Some(PathBuf::from(format!("/tmp/trafficcop-{uid}"))),
    ];
    places.into_iter().flatten().collect()
}

/// Returns the first of these directories that exists, or can be made, and is this user's alone.
fn directory(places: &[PathBuf]) -> Option<&PathBuf> {
    places.iter().find(|place| {
        let _ = DirBuilder::new().mode(0o700).create(place);
        fs::symlink_metadata(place).is_ok_and(|found| found.is_dir() && is_private(&found))
    })
}

fn is_private(found: &fs::Metadata) -> bool {
    // A forged stamp could pretend that a lease was watched to its end.
    found.uid() == nix::unistd::geteuid().as_raw() && found.mode() & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(version: Version) -> Stamped {
        Stamped {
            version,
            fingerprint: "feed".into(),
        }
    }

    #[test]
    fn a_stamp_is_found_for_its_lock_and_version_and_for_no_other() {
        let place = tempfile::tempdir().unwrap();
        let lock = Path::new("/mnt/share/lock");
        let stamp = Instant::now();
        assert_eq!(find_in(place.path(), lock, &of(7)), None);
        leave_in(place.path(), lock, &of(7), stamp).unwrap();
        assert_eq!(find_in(place.path(), lock, &of(7)), Some(stamp));
        assert_eq!(find_in(place.path(), lock, &of(8)), None);
        assert_eq!(find_in(place.path(), Path::new("/mnt/other"), &of(7)), None);
        leave_in(place.path(), lock, &of(8), stamp).unwrap();
        assert_eq!(find_in(place.path(), lock, &of(8)), Some(stamp));
        let anew = Stamped {
            fingerprint: "beef".into(),
            ..of(8)
        };
        assert_eq!(find_in(place.path(), lock, &anew), None);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn leaving_a_stamp_sweeps_those_that_are_older_than_forty_days() {
        let place = tempfile::tempdir().unwrap();
        let (old, fresh) = (Path::new("/mnt/share/old"), Path::new("/mnt/share/fresh"));
        let now = Instant::now();
        leave_in(place.path(), fresh, &of(7), now).unwrap();
        leave_in(place.path(), old, &of(7), now).unwrap();
        let aged = |name: &str, days: u64| {
            let age = Duration::from_secs(days * 24 * 60 * 60);
            let file = fs::File::create(place.path().join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - age)
                .unwrap();
        };
        aged(&name(old), 41);
        aged(&format!("{}.0000002a", name(old)), 41);
        aged("letter", 41);
        leave_in(place.path(), Path::new("/mnt/share/lock"), &of(7), now).unwrap();
        assert_eq!(find_in(place.path(), fresh, &of(7)), Some(now));
        assert!(place.path().join("letter").exists());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 3);
    }

    #[test]
    fn stamps_that_others_can_write_or_of_another_clock_are_ignored() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().unwrap();
        let lock = Path::new("/mnt/share/lock");
        let file = place.path().join(name(lock));
        leave_in(place.path(), lock, &of(7), Instant::now()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(find_in(place.path(), lock, &of(7)), None, "writable by all");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(find_in(place.path(), lock, &of(7)).is_some());
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replacen('-', "", 1)).unwrap();
        assert_eq!(find_in(place.path(), lock, &of(7)), None, "another boot");
        let hour = Duration::from_secs(3600);
        leave_in(place.path(), lock, &of(7), Instant::now() + hour).unwrap();
        assert_eq!(find_in(place.path(), lock, &of(7)), None, "from the future");
        for bytes in [&b""[..], b"\n\n\n", &[0xff; 5000]] {
            fs::write(&file, bytes).unwrap();
            assert_eq!(find_in(place.path(), lock, &of(7)), None);
        }
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        assert_eq!(find_in(place.path(), lock, &of(7)), None, "a link");
    }
}
