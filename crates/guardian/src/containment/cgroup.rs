//! A cgroup (version 2) of the command's own, which the kernel kills at one stroke, even if its processes fork,
//! daemonise or change their user meanwhile.
//!
//! Guardian and supervisor both hold it. The guardian spawns into it, either kills it, and the supervisor
//! removes it. It lies in the cgroup of this process, which stays as it was: no controller is enabled and no
//! process is moved. After [`Cgroup::prepare`] only [`Cgroup::remove`] and [`Cgroup::clear`] allocate.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FlockArg, OFlag, open};
use nix::poll::{PollFlags, PollTimeout};
use nix::sys::stat::Mode;
use nix::unistd::mkdir;

use super::super::raw::{self, Clone3, Forked, Quiet};
use trafficcop_core::clock::Instant;
use trafficcop_core::machine::procfs;
use trafficcop_core::util::flock;

const ADVICE: &str = "run as root, or below a delegated cgroup (systemd: Delegate=yes in the unit)";
/// Three numbers follow, with dots between: the PID namespace, the supervisor's pid in it, and a count.
const PREFIX: &str = "trafficcop-";
const EMPTY: &[u8] = b"populated 0";
const POPULATED: &[u8] = b"populated 1";
/// Attempts to make and lock a cgroup before a sweeper removes it.
const TRIES: usize = 16;
/// Wait for leftovers of dead instances to die.
const AT_THE_START: Duration = Duration::from_secs(1);
/// Likewise; less than the supervisor waits for its guardian.
const BEFORE_A_COMMAND: Duration = Duration::from_secs(5);

/// Cgroup that only the command's tree lives in.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// Holds the lock that marks the cgroup as in use: see [`sweep`].
    watch: OwnedFd,
    kill: OwnedFd,
    events: OwnedFd,
    procs: OwnedFd,
    /// See [`Cgroup::bears`].
    bears: AtomicBool,
}

impl Cgroup {
    /// Makes a cgroup below that of this process, untried. First it kills and removes what dead instances left:
    /// without guardian and supervisor, a tree controls nothing.
    ///
    /// # Errors
    /// One line: what is missing and what to do.
    pub fn prepare() -> Result<Cgroup, String> {
        let home = home().map_err(refused)?;
        let _ = sweep(&home, AT_THE_START);
        Cgroup::make(&home).map_err(refused)
    }

    /// Checks that a cgroup is available: makes and removes one.
    ///
    /// # Errors
    /// One line: what is missing and what to do.
    pub fn available() -> Result<(), String> {
        let made = home()
            .and_then(|home| Cgroup::make(&home))
            .map_err(refused)?;
        made.try_out().map(drop)
    }

    /// Tries it with a process: the way in, and the count. False: no process can be born in it, which a
    /// guardian that was forked before does not know.
    ///
    /// # Errors
    /// One line: what is missing and what to do.
    pub fn try_out(&self) -> Result<bool, String> {
        if self.was_seen_from_inside() {
            return Ok(true);
        }
        // A fork may still be born inside (another architecture, a filter of system calls).
        if self.was_seen_by_a_fork().is_ok() {
            return Ok(true);
        }
        self.bear_no_more();
        let complaint = |why| refused(format!("{}: {why}", self.path.display()));
        self.was_seen_by_a_fork().map_err(complaint)?;
        Ok(false)
    }

    /// Removes what dead instances left beside this one. Returns whether all of it is dead.
    pub(crate) fn sweep_beside(&self) -> bool {
        let home = self.path.parent();
        home.is_none_or(|home| sweep(home, BEFORE_A_COMMAND))
    }

    fn make(home: &Path) -> Result<Cgroup, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Two supervisors can have the same pid, in two namespaces.
        let space = fs::metadata("/proc/self/ns/pid").map_or(0, |space| space.ino());
        let mut tries = 0;
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{PREFIX}{space}.{}.{number}", std::process::id());
            let path = home.join(name);
            match mkdir(&path, Mode::from_bits_truncate(0o755)) {
                // Despite the umask: a sweeper of another user must see that this cgroup is in use.
                Ok(()) => drop(fs::set_permissions(
                    &path,
                    fs::Permissions::from_mode(0o755),
                )),
                Err(Errno::EEXIST) => continue,
                Err(e) => return Err(format!("cannot make {}: {}", path.display(), e.desc())),
            }
            tries += 1;
            let why = match Cgroup::occupy(&path) {
                Ok(Some(made)) => return Ok(made),
                Ok(None) => None,
                Err(why) => Some(why),
            };
            // A sweeper took it for a leftover.
            let removed = fs::remove_dir(&path);
            let swept = why.is_none() || removed.is_err() && !path.exists();
            if !swept || tries == TRIES {
                let another = || format!("{}: another instance removes it", path.display());
                return Err(why.unwrap_or_else(another));
            }
        }
    }

    /// `None`: a sweeper was faster.
    fn occupy(path: &Path) -> Result<Option<Cgroup>, String> {
        let open = |file: &str, flags: OFlag| {
            open_at(path, file, flags).map_err(|e| match e {
                Errno::ENOENT if file == "cgroup.kill" => {
                    "the kernel has no cgroup.kill (Linux 5.14)".to_owned()
                }
                e => format!("{}/{file}: {}", path.display(), e.desc()),
            })
        };
        let watch = open(".", OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        if flock(&watch, FlockArg::LockExclusiveNonblock) == Err(Errno::EWOULDBLOCK) {
            return Ok(None);
        }
        Ok(Some(Cgroup {
            kill: open("cgroup.kill", OFlag::O_WRONLY)?,
            events: open("cgroup.events", OFlag::O_RDONLY)?,
            procs: open("cgroup.procs", OFlag::O_WRONLY)?,
            path: path.to_owned(),
            watch,
            bears: AtomicBool::new(true),
        }))
    }

    fn bear_no_more(&self) {
        self.bears.store(false, Ordering::Relaxed);
    }

    /// Whether [`Cgroup::fork`] lets the child be born inside. A move takes some 15 ms on an idle machine,
    /// until all processors have passed a quiet point of the kernel.
    ///
    /// Birth needs clone3, and a cgroup that was never killed: Linux 6.18 compares its count of kills with that
    /// of the parent's cgroup, takes the child for unborn at the kill, and kills it.
    #[must_use]
    pub fn bears(&self) -> bool {
        self.bears.load(Ordering::Relaxed)
    }

    /// Forks; the child is inside before it goes on.
    ///
    /// # Errors
    /// The child could not get inside; there is no child then.
    ///
    /// # Safety
    /// If the process has other threads, the child may only make async-signal-safe calls.
    pub unsafe fn fork(&self) -> io::Result<Forked> {
        if self.bears() {
            let wanted = Clone3 {
                exit_signal: libc::SIGCHLD,
                cgroup: Some(self.watch.as_fd()),
                ..Clone3::default()
            };
            // SAFETY: passed on to the caller.
            return unsafe { wanted.fork() };
        }
        let (theirs, ours) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        // SAFETY: passed on to the caller.
        match unsafe { raw::fork() }? {
            Forked::Child => {
                let errno = match nix::unistd::write(&self.procs, b"0") {
                    Ok(_) => 0,
                    Err(e) => e as i32,
                };
                let told = nix::unistd::write(&ours, &errno.to_ne_bytes());
                if errno != 0 || told.is_err() {
                    raw::exit(125);
                }
                Ok(Forked::Child)
            }
            Forked::Parent(pid) => {
                drop(ours);
                let mut reply = [0; 4];
                // Writes of this length to a pipe are not torn.
                let errno = match read_once(&theirs, &mut reply) {
                    4 => i32::from_ne_bytes(reply),
                    _ => libc::ECHILD,
                };
                if errno == 0 {
                    return Ok(Forked::Parent(pid));
                }
                raw::reap(pid);
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    /// Takes a third of the time of a trial by fork.
    fn was_seen_from_inside(&self) -> bool {
        let mut text = [0; 128];
        raw::look_from_inside(self.watch.as_fd(), self.events.as_fd(), &mut text)
            .is_ok_and(|length| says(&text[..length], POPULATED))
            && self.is_empty()
    }

    fn was_seen_by_a_fork(&self) -> Result<(), String> {
        let said = |e: Errno| e.desc().to_owned();
        // The child answers by a pipe: with SIGCHLD ignored, there is no exit status.
        let (from, to) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(said)?;
        let quiet = Quiet::begin();
        // SAFETY: the child only makes system calls.
        match unsafe { self.fork() } {
            Err(e) => Err(format!("no process can be put into it: {e}")),
            Ok(Forked::Child) => {
                let mut text = [0; 128];
                let length = nix::sys::uio::pread(&self.events, &mut text, 0).unwrap_or(0);
                if says(&text[..length], POPULATED) {
                    let _ = nix::unistd::write(&to, b"1");
                }
                raw::exit(0)
            }
            Ok(Forked::Parent(pid)) => {
                drop((quiet, to));
                let counted = read_once(&from, &mut [0]) == 1;
                raw::reap(pid);
                if counted && self.is_empty() {
                    return Ok(());
                }
                Err("it does not list its processes".to_owned())
            }
        }
    }

    /// Returns the file to write "0" to, for a process born outside.
    #[must_use]
    pub fn join(&self) -> BorrowedFd<'_> {
        self.procs.as_fd()
    }

    /// Kills everything inside, sub-cgroups and unfinished forks included.
    ///
    /// # Errors
    /// Those of write(2). ENODEV: the cgroup is gone.
    pub fn kill(&self) -> io::Result<()> {
        self.bear_no_more();
        nix::unistd::write(&self.kill, b"1")?;
        Ok(())
    }

    /// Whether nothing lives inside; a zombie does not live. A removed cgroup is empty, an unreadable one is
    /// not.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        is_empty(&self.events)
    }

    /// Returns a descriptor with POLLPRI when [`Cgroup::is_empty`] may have changed.
    #[must_use]
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Returns what a forked process needs to use it.
    #[must_use]
    pub fn descriptors(&self) -> [RawFd; 4] {
        [&self.watch, &self.kill, &self.events, &self.procs].map(AsRawFd::as_raw_fd)
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes sub-cgroups, and thaws: the next command must not start frozen.
    pub(crate) fn clear(&self) {
        if let Ok(freeze) = open_at(&self.path, "cgroup.freeze", OFlag::O_WRONLY) {
            let _ = nix::unistd::write(&freeze, b"0");
        }
        for inner in subdirectories(&self.path).unwrap_or_default() {
            let _ = remove(&inner);
        }
    }

    /// Removes it, with sub-cgroups, unless it is already gone.
    ///
    /// # Errors
    /// EBUSY while something lives inside.
    pub fn remove(&self) -> io::Result<()> {
        remove(&self.path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

fn home() -> Result<PathBuf, String> {
    let read = |path: &str| procfs::text(path).map_err(|e| format!("{path}: {e}"));
    find_home(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)
}

fn find_home(membership: &str, mounts: &str) -> Result<PathBuf, String> {
    let path = membership
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .ok_or("this system has no cgroups of version 2")?;
    if path.split('/').any(|part| part == "..") {
        return Err("this cgroup is outside of the cgroup namespace".to_owned());
    }
    let mut mounted = false;
    for line in mounts.lines() {
        let Some((fields, kind)) = line.split_once(" - ") else {
            continue;
        };
        if !kind.starts_with("cgroup2 ") {
            continue;
        }
        mounted = true;
        let mut fields = fields.split(' ').skip(3);
        let (Some(root), Some(point)) = (fields.next(), fields.next()) else {
            continue;
        };
        let root = procfs::unescaped(root.as_bytes());
        if let Ok(below) = Path::new(path).strip_prefix(root) {
            return Ok(procfs::unescaped(point.as_bytes()).join(below));
        }
    }
    Err(if mounted {
        "this cgroup is not below any cgroup2 mount".to_owned()
    } else {
        "no cgroup2 file system is mounted".to_owned()
    })
}

fn refused(why: String) -> String {
    format!("no cgroup available: {why}; {ADVICE}")
}

/// Ends and removes the cgroups of dead instances; returns whether all of that is dead.
///
/// In a leftover cgroup no process holds the lock. Pids would not do: they differ between PID namespaces. An
/// instance whose new cgroup is swept before it is locked makes another.
fn sweep(home: &Path, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    let Ok(beside) = subdirectories(home) else {
        return false;
    };
    let mut all = true;
    for path in beside {
        let name = path.file_name().and_then(|name| name.to_str());
        if !name.is_some_and(is_ours) {
            continue;
        }
        let Ok(dir) = open_at(&path, ".", OFlag::O_DIRECTORY | OFlag::O_RDONLY) else {
            all &= !path.exists();
            continue;
        };
        // Shared: another sweeper's find may live on, and each waits for its end.
        if flock(&dir, FlockArg::LockSharedNonblock).is_ok() {
            all &= end(&path, until);
            let _ = remove(&path);
        }
    }
    all
}

/// Returns whether nothing lives there any more.
fn end(path: &Path, until: Instant) -> bool {
    let Ok(events) = open_at(path, "cgroup.events", OFlag::O_RDONLY) else {
        return !path.exists();
    };
    if let Ok(kill) = open_at(path, "cgroup.kill", OFlag::O_WRONLY) {
        let _ = nix::unistd::write(&kill, b"1");
    }
    while !is_empty(&events) {
        let left = until.since(Instant::now()).as_millis();
        if left == 0 {
            return false;
        }
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        raw::poll([events.as_fd()], PollFlags::POLLPRI, wait);
    }
    true
}

fn is_ours(name: &str) -> bool {
    let numbers = name.strip_prefix(PREFIX).map(|rest| rest.split('.'));
    numbers.is_some_and(|numbers| {
        let mut count = 0;
        let digits = |number: &str| {
            count += 1;
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        };
        numbers.into_iter().all(digits) && count == 3
    })
}

fn open_at(dir: &Path, file: &str, flags: OFlag) -> nix::Result<OwnedFd> {
    open(&dir.join(file), flags | OFlag::O_CLOEXEC, Mode::empty())
}

fn is_empty(events: &OwnedFd) -> bool {
    let mut text = [0; 128];
    match nix::sys::uio::pread(events, &mut text, 0) {
        Ok(length) => says(&text[..length], EMPTY),
        Err(e) => e == Errno::ENODEV,
    }
}

fn says(text: &[u8], what: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').any(|line| line == what)
}

fn remove(path: &Path) -> io::Result<()> {
    let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    match fs::remove_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {}
        Err(e) if gone(&e) => return Ok(()),
        done => return done,
    }
    for inner in subdirectories(path)? {
        remove(&inner)?;
    }
    fs::remove_dir(path).or_else(|e| if gone(&e) { Ok(()) } else { Err(e) })
}

fn subdirectories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn read_once(fd: &OwnedFd, buffer: &mut [u8]) -> usize {
    loop {
        match nix::unistd::read(fd, buffer) {
            Err(Errno::EINTR) => {}
            read => return read.unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
40 39 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn own_cgroup_is_found_below_its_mount() {
        assert_eq!(
            find_home("9:name=systemd:/\n0::/a.slice/b.service\n", HYBRID),
            Ok(PathBuf::from("/sys/fs/cgroup/unified/a.slice/b.service"))
        );
        assert_eq!(
            find_home("0::/\n", HYBRID),
            Ok(PathBuf::from("/sys/fs/cgroup/unified"))
        );
    }

    #[test]
    fn mount_of_a_subtree_serves_its_part_only() {
        let bound = "41 31 0:38 /a /mnt/with\\040space rw shared:5 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            find_home("0::/a/b\n", bound),
            Ok(PathBuf::from("/mnt/with space/b"))
        );
        assert!(find_home("0::/ab\n", bound).is_err());
        assert!(find_home("0::/../x\n", HYBRID).is_err());
    }

    #[test]
    fn only_names_of_trafficcop_are_swept() {
        for ours in ["trafficcop-4026531836.7.0", "trafficcop-0.1.12"] {
            assert!(is_ours(ours), "{ours}");
        }
        for other in [
            "trafficcop-web.service",
            "trafficcop-1.service",
            "trafficcop-",
            "trafficcop-1..2",
            "trafficcop-1.2",
            "trafficcop-1.2.3.4",
            "other-1.2.3",
        ] {
            assert!(!is_ours(other), "{other}");
        }
    }

    #[test]
    fn missing_cgroup2_is_named_in_the_error() {
        let none = find_home("3:cpu:/\n", HYBRID).unwrap_err();
        assert!(none.contains("version 2"), "{none}");
        let unmounted = find_home("0::/\n", "22 27 0:21 / /proc rw - proc proc rw\n").unwrap_err();
        assert!(unmounted.contains("mounted"), "{unmounted}");
    }

    #[test]
    fn cgroup_locked_by_a_sweeper_is_no_error() {
        let (swept, left) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let sweeper = open_at(swept.path(), ".", OFlag::O_RDONLY).unwrap();
        flock(&sweeper, FlockArg::LockSharedNonblock).unwrap();
        assert!(matches!(Cgroup::occupy(swept.path()), Ok(None)));
        // A test that forks in parallel keeps the first one's lock until its exec.
        assert!(Cgroup::occupy(left.path()).is_err(), "no cgroup");
    }

    #[test]
    fn concurrent_sweeps_do_not_prevent_a_new_cgroup() {
        let Some(other) = fresh() else { return };
        let home = other.path().parent().unwrap();
        let over = AtomicBool::new(false);
        let made = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    sweep(home, Duration::ZERO);
                }
            });
            let made = (0..1000).try_for_each(|_| Cgroup::make(home).map(drop));
            over.store(true, Ordering::Relaxed);
            made
        });
        assert_eq!(made, Ok(()));
    }

    #[test]
    fn populated_cgroup_is_not_gone_because_another_sweeps_it() {
        let home = tempfile::tempdir().unwrap();
        let left = home.path().join("trafficcop-1.2.3");
        fs::create_dir(&left).unwrap();
        let lock = |how| {
            let dir = open_at(&left, ".", OFlag::O_RDONLY).unwrap();
            flock(&dir, how).map(|()| dir)
        };
        fs::write(left.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        assert!(!sweep(home.path(), Duration::ZERO), "it cannot be killed");
        fs::write(left.join("cgroup.kill"), "").unwrap();
        let sweeper = lock(FlockArg::LockSharedNonblock).unwrap();
        assert!(
            !sweep(home.path(), Duration::ZERO),
            "another instance removes"
        );
        drop(sweeper);
        fs::write(left.join("cgroup.events"), "populated 0\nfrozen 0\n").unwrap();
        assert!(sweep(home.path(), Duration::ZERO), "nothing lives in it");
    }

    #[test]
    fn owned_cgroup_is_not_swept() {
        let Some(owned) = fresh() else { return };
        let home = owned.path().parent().unwrap();
        sweep(home, Duration::ZERO);
        assert!(owned.path().exists());
    }

    fn fresh() -> Option<Cgroup> {
        let made = Cgroup::prepare();
        if let Err(why) = &made {
            println!("NOT TESTED: {why}");
        }
        made.ok()
    }

    #[test]
    fn quick_trial_agrees_with_the_trial_by_fork() {
        let Some(cgroup) = fresh() else { return };
        let quick = cgroup.was_seen_from_inside();
        let slow = cgroup.was_seen_by_a_fork();
        // Without assembly the quick trial fails.
        assert_eq!(quick, slow.is_ok() && cfg!(target_arch = "x86_64"));
        assert_eq!(cgroup.try_out(), Ok(slow.is_ok()));
        cgroup.bear_no_more();
        assert_eq!(cgroup.was_seen_by_a_fork(), Ok(()));
        // No birth inside any more: see `Cgroup::bears`. The trial must not hang either.
        cgroup.kill().expect("it is there");
        assert!(!cgroup.was_seen_from_inside());
        assert!(cgroup.is_empty());
    }

    #[test]
    fn trial_whose_parent_died_leaves_the_cgroup_empty() {
        let Some(cgroup) = fresh() else { return };
        // SAFETY: the child only forks, without allocating, and leaves.
        let pid = match unsafe { raw::fork() }.expect("forked") {
            // SAFETY: as above.
            Forked::Child => raw::exit(match unsafe { cgroup.fork() } {
                Ok(Forked::Child) => raw::exit(i32::from(cgroup.is_empty())),
                Ok(Forked::Parent(_)) => 0,
                Err(_) => 1,
            }),
            Forked::Parent(pid) => pid,
        };
        assert_eq!(raw::reap(pid), Some(0), "it went inside");
        while !cgroup.is_empty() {
            if !raw::poll(
                [cgroup.events()],
                PollFlags::POLLPRI,
                PollTimeout::from(10_000_u16),
            ) {
                let _ = cgroup.kill();
                panic!("it is still there");
            }
        }
    }
}
