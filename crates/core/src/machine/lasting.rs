//! Files that must outlast cleaners of temporary files, such as systemd-tmpfiles.
//!
//! A lock that a command has held for weeks looks old. If a cleaner removed it, the next instance would
//! make a new file and run at the same time.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::clock;
use crate::util::lock;

// Far shorter than any cleaner's age, and soon after the machine has slept for weeks.
const EVERY: Duration = Duration::from_secs(600);

static FILES: Mutex<Vec<Weak<File>>> = Mutex::new(Vec::new());

/// Keeps the times of this file (and a directory's entries) fresh until its last owner drops it.
pub fn add(file: &Arc<File>) {
    let mut files = lock(&FILES);
    files.retain(|known| known.strong_count() > 0 && known.as_ptr() != Arc::as_ptr(file));
    files.push(Arc::downgrade(file));
}

/// Link whose times stay fresh until this is dropped.
pub type Lasting = Arc<File>;

/// Keeps the times of the link at this path fresh.
///
/// # Errors
/// The kernel's.
pub fn of_link(path: &Path) -> std::io::Result<Lasting> {
    let mut options = File::options();
    options
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW);
    let link = Arc::new(options.open(path)?);
    add(&link);
    Ok(link)
}

/// Refreshes the files until the result is dropped. Call it inside a runtime.
pub fn keep() -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    if clock::is_simulated() {
        return tasks;
    }
    tasks.spawn(async {
        loop {
            clock::sleep(EVERY).await;
            let (done, is_done) = oneshot::channel::<()>();
            let job = move || {
                refresh();
                drop(done);
            };
            // One thread at a time, even if a disk hangs.
            if clock::start_thread("refresh", job).is_ok() {
                let _ = is_done.await;
            }
        }
    });
    tasks
}

/// Sets the times of all files in use to now.
pub fn refresh() {
    let files: Vec<_> = lock(&FILES).iter().filter_map(Weak::upgrade).collect();
    for file in files {
        if let Err(errno) = refresh_one(&file) {
            tracing::debug!(%errno, "the times of a file cannot be refreshed");
        }
    }
}

fn refresh_one(file: &File) -> nix::Result<()> {
    // UTIME_NOW needs only the right to write. This path also reaches a file opened with O_PATH.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    set_to_now(Path::new(&path), UtimensatFlags::FollowSymlink)?;
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        // The command may have put a link there to another owner's file.
        set_to_now(&entry.path(), UtimensatFlags::NoFollowSymlink)?;
    }
    Ok(())
}

fn set_to_now(path: &Path, flags: UtimensatFlags) -> nix::Result<()> {
    let now = &TimeSpec::UTIME_NOW;
    utimensat(AT_FDCWD, path, now, now, flags)
}

/// Tells whether nothing has refreshed this file since [`make_old`].
#[cfg(debug_assertions)]
#[doc(hidden)]
#[must_use]
pub fn is_old(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::symlink_metadata(path).is_ok_and(|found| found.mtime() == 1 && found.atime() == 1)
}

/// Sets the times of a file to 1970, for tests.
///
/// # Panics
/// If the times cannot be set.
#[cfg(debug_assertions)]
#[doc(hidden)]
pub fn make_old(path: &Path) {
    let old = TimeSpec::new(1, 0);
    let flags = UtimensatFlags::NoFollowSymlink;
    utimensat(AT_FDCWD, path, &old, &old, flags).expect("the times can be set");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_files_and_of_directory_entries_are_refreshed() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let foreign = tempfile::NamedTempFile::new().expect("a file");
        fs::create_dir(at("message")).expect("made");
        for name in ["lock", "gone", "message/body"] {
            fs::write(at(name), "x").expect("written");
        }
        for link in ["message/link", "control"] {
            std::os::unix::fs::symlink(foreign.path(), at(link)).expect("made");
        }
        let open = |name: &str| Arc::new(File::open(at(name)).expect("there"));
        let owned = [open("lock"), open("message")];
        owned.iter().for_each(add);
        let _link = of_link(&at("control")).expect("there");
        add(&open("gone"));
        let names = ["lock", "message/body", "message/link", "message", "control"];
        for path in names.map(at).iter().map(|path| &**path) {
            make_old(path);
        }
        make_old(&at("gone"));
        make_old(foreign.path());
        refresh();
        assert_eq!(names.map(|name| is_old(&at(name))), [false; 5]);
        assert!(is_old(&at("gone")), "its owner has dropped it");
        assert!(is_old(foreign.path()), "behind a link");
    }
}
