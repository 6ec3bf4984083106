//! Creation of a guardian: a small child process of the supervisor that is named, hard to starve and holds only
//! its own descriptors.
//!
//! [`fork`] comes before the runtime and any second thread. Nothing may return into the caller from inside the
//! guardian.

use std::ffi::{CStr, OsString};
use std::io::{self, IoSliceMut, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::mman::MlockAllFlags;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::containment::Containment;
use super::control::{ControlFile, View};
use super::event_loop::{EventLoop, Kernel};
use super::handle::GuardianHandle;
use super::liveness::HealthCheck;
use super::spawn::SpawnContext;
use super::tty::Foreground;
use super::wire::{Event, FRAME};
use super::{Contain, Setup, SetupError, process, raw, tree};
use trafficcop_core::machine::procfs;
use trafficcop_core::util::with_awaited_children;

/// Not the product's name: a `pkill` by that must spare the process that cleans up.
const NAME: &CStr = c"tc-guardian";

/// Descriptors to try one by one if they cannot be listed: some 5 ms.
const TRIED: RawFd = 1 << 16;

/// Children to spare when a dead guardian's tree is killed.
static UNRELATED: Mutex<Vec<i32>> = Mutex::new(Vec::new());

pub(super) fn unrelated_children() -> Vec<i32> {
    UNRELATED
        .lock()
        .map(|pids| pids.clone())
        .unwrap_or_default()
}

fn spare(pid: i32) {
    if let Ok(mut pids) = UNRELATED.lock() {
        pids.push(pid);
    }
}

/// Another process may get the id of a reaped guardian.
pub(super) fn forget_unrelated(pid: i32) {
    process::wait_no_more(pid);
    if let Ok(mut pids) = UNRELATED.lock() {
        pids.retain(|unrelated_children| *unrelated_children != pid);
    }
}

/// A process 1 adopts every orphan of its container, and no other process can reap them.
pub(super) fn reap_adopted() {
    with_awaited_children(|awaited| {
        let spare = [process::guardians().as_slice(), awaited].concat();
        for pid in tree::reap_ended(&spare) {
            forget_unrelated(pid);
        }
    });
}

/// Guardian that waits for its handle. It exits when this is dropped.
#[derive(Debug)]
pub struct Guardian {
    pid: i32,
    socket: UnixStream,
    containment: Containment,
    control: ControlFile,
    health_check: Arc<HealthCheck>,
    foreground: bool,
}

impl Guardian {
    /// Returns the containment in force: never [`Contain::Auto`].
    #[must_use]
    pub fn containment(&self) -> Contain {
        self.containment.kind()
    }

    /// Returns the guardian's process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the path of the control file, if there is one.
    #[must_use]
    pub fn control_file(&self) -> Option<&Path> {
        self.control.path()
    }

    /// Whether this process was started in the foreground of a terminal. A command that stops was then stopped
    /// with Ctrl-Z, and this process stops, too.
    #[must_use]
    pub fn has_terminal(&self) -> bool {
        self.foreground
    }

    /// Opens the control file for other parts of this process.
    ///
    /// # Errors
    /// There is no control file, or it cannot be read.
    pub fn view(&self) -> io::Result<View> {
        let none = || io::Error::other("no directory would take a control file");
        View::open(self.control.path().ok_or_else(none)?)
    }

    /// Returns the check whether the supervisor works, for the time after [`attend`](Self::attend).
    #[must_use]
    pub fn health_check(&self) -> Arc<HealthCheck> {
        Arc::clone(&self.health_check)
    }

    /// Waits until the guardian is ready, and returns the supervisor's side of it.
    ///
    /// # Errors
    /// The guardian is not ready, or its socket cannot be registered with the runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time and I/O.
    pub fn attend(mut self) -> Result<GuardianHandle, SetupError> {
        // While the guardian gets ready.
        self.control.sweep_beside();
        if let Err(refusal) = hear_ready(&self) {
            tree::signal(self.pid, libc::SIGKILL);
            let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(self.pid), None);
            forget_unrelated(self.pid);
            self.control.retire();
            return Err(refusal);
        }
        let socket = tokio::net::UnixStream::from_std(self.socket)
            .map_err(system("registering its socket"))?;
        Ok(GuardianHandle::new(
            self.pid,
            socket,
            self.containment,
            self.control,
            self.health_check,
        ))
    }
}

/// Forks a guardian. This process becomes a child subreaper.
///
/// The first call captures the signal mask and dispositions for every command, and the guardian closes every
/// descriptor that is close-on-exec by now: call it early.
///
/// # Errors
/// A requested feature is not available, or the kernel refuses; nothing is left behind.
pub fn fork(setup: Setup) -> Result<Guardian, SetupError> {
    let programs = &setup.programs;
    if programs.is_empty() || programs.iter().any(|program| program.words.is_empty()) {
        return Err(SetupError::NoCommand);
    }
    if programs
        .iter()
        .flat_map(|program| &program.words)
        .any(has_nul)
    {
        return Err(SetupError::Nul);
    }
    let threads = threads().map_err(system("reading /proc/self/status"))?;
    if threads != 1 {
        return Err(SetupError::Threads(threads));
    }
    // The guardian finds the rest of a command there.
    tree::proc_is_ours().map_err(|seen| SetupError::Proc {
        seen,
        pid: std::process::id(),
    })?;
    if let Some(kind) = tree::namespace_of_children_alone(Path::new("/proc/self/ns")) {
        return Err(SetupError::ChildrenElsewhere(kind));
    }
    let mut containment = Containment::prepare(setup.contain)?;
    let mut context = SpawnContext::capture();
    if setup.tells_others {
        context.foreground = Foreground::nobody_s();
        context.sockets = None;
    }
    prctl::set_child_subreaper(true).map_err(errno("becoming a child subreaper"))?;
    // A process that ignores SIGCHLD loses its children's status; one that blocks it does not notice that its
    // guardian was stopped.
    raw::set_default(libc::SIGCHLD);
    let blocked = SigSet::from(Signal::SIGCHLD);
    blocked
        .thread_unblock()
        .map_err(errno("unblocking SIGCHLD"))?;
    let foreground = context.foreground.is_there();
    if foreground {
        // While the command has the terminal, logging would stop this process under `stty tostop`.
        raw::ignore(libc::SIGTTOU);
    }
    let mut control = ControlFile::create();
    note_inherited_children();
    loop {
        let (ours, its) = UnixStream::pair().map_err(system("making a socket pair"))?;
        // SAFETY: there is one thread (see above), so the child's memory is consistent; it stays in `live`.
        match unsafe { nix::unistd::fork() }.map_err(errno("forking"))? {
            nix::unistd::ForkResult::Child => {
                // With this end open, the guardian would not notice the supervisor's death.
                drop(ours);
                live(setup, context, containment, control, its)
            }
            nix::unistd::ForkResult::Parent { child } => {
                drop(its);
                // Both processes do this, so that it is done before either relies on it.
                let _ = nix::unistd::setpgid(child, child);
                let tried = containment.try_out(setup.contain);
                if let Ok(true) = tried {
                    spare(child.as_raw());
                    process::wait_for(child.as_raw());
                    return Ok(Guardian {
                        pid: child.as_raw(),
                        socket: ours,
                        containment,
                        control,
                        health_check: Arc::default(),
                        foreground,
                    });
                }
                // The guardian, which has no orders yet, knows a containment that is no longer in use.
                tree::signal(child.as_raw(), libc::SIGKILL);
                let _ = nix::sys::wait::waitpid(child, None);
                tried.inspect_err(|_| control.retire())?;
            }
        }
    }
}

fn has_nul(word: &OsString) -> bool {
    word.as_bytes().contains(&0)
}

fn system(what: &'static str) -> impl Fn(io::Error) -> SetupError {
    move |why| SetupError::System { what, why }
}

fn errno(what: &'static str) -> impl Fn(Errno) -> SetupError {
    move |errno| SetupError::System {
        what,
        why: errno.into(),
    }
}

/// Returns the number of threads of this process.
///
/// # Errors
/// /proc cannot be read.
pub fn threads() -> io::Result<usize> {
    // Two links, and one for each thread: a tenth of the cost of the status file.
    if std::fs::metadata("/proc/self/task").is_ok_and(|tasks| tasks.nlink() == 3) {
        return Ok(1);
    }
    let status = procfs::text("/proc/self/status")?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"))
        .and_then(|number| number.trim().parse().ok())
        .ok_or_else(|| io::Error::other("no line \"Threads:\""))
}

/// Spares background jobs of a shell that became this process by `exec`.
fn note_inherited_children() {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let known = unrelated_children();
    for child in tree::children_of(me) {
        if !known.contains(&child) {
            spare(child);
        }
    }
}

fn hear_ready(guardian: &Guardian) -> Result<(), SetupError> {
    let what = "waiting for its first word";
    let mut frame = [0; FRAME];
    let mut socket = &guardian.socket;
    // For a fresh process on a starved machine.
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .map_err(system(what))?;
    socket.read_exact(&mut frame).map_err(system(what))?;
    match Event::decode(&frame) {
        Ok(Event::Ready) => {}
        Ok(Event::Unready { errno }) => {
            return Err(SetupError::System {
                what: "its descriptors, timers and signals",
                why: io::Error::from_raw_os_error(errno),
            });
        }
        _ => return Err(system(what)(io::ErrorKind::InvalidData.into())),
    }
    socket.set_read_timeout(None).map_err(system(what))?;
    socket.set_nonblocking(true).map_err(system(what))
}

fn live(
    setup: Setup,
    context: SpawnContext,
    containment: Containment,
    control: ControlFile,
    socket: UnixStream,
) -> ! {
    // A panic must not unwind into a second copy of the supervisor. It ends the guardian, which kills the
    // command.
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let _ = nix::unistd::setpgid(nix::unistd::Pid::from_raw(0), nix::unistd::Pid::from_raw(0));
        // No Ctrl-C and no `kill` of the job may end the process that cleans up, nor may the terminal stop it.
        let _ = nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
        let mut keep = containment.keep();
        keep.push(socket.as_raw_fd());
        keep.extend(control.descriptor());
        keep.extend(setup.partner.iter().map(|it| it.descriptor().as_raw_fd()));
        keep.extend(context.foreground.descriptor());
        let closed = close_ours(&keep);
        let _ = prctl::set_name(NAME);
        let Setup {
            grace,
            left_behind,
            orphan_grace,
            ..
        } = setup;
        let Some(kernel) = Kernel::open(closed, setup, context, containment, control, socket)
        else {
            return;
        };
        let mut event_loop = EventLoop::begin(kernel, grace)
            .leaving(left_behind)
            .orphaned_for(orphan_grace);
        // The supervisor already goes on.
        rename_arguments();
        while !event_loop.is_over() {
            let wait = event_loop.next_wait();
            let ready = event_loop.system.wait(wait);
            event_loop.turn(ready);
        }
        event_loop.system.retire();
    }));
    raw::exit(i32::from(lived.is_err()))
}

/// Closes every close-on-exec descriptor: the supervisor opened it for itself. Left open, it would keep a lock's
/// file locked, or hide the supervisor's death from another guardian.
fn close_ours(keep: &[RawFd]) -> nix::Result<()> {
    let close = |fd| {
        // No owner is used or dropped in this process, which leaves by _exit.
        if !keep.contains(&fd) && raw::closes_on_exec(fd) == Some(true) {
            raw::close(fd);
        }
    };
    if let Ok(listed) = open_descriptors() {
        listed.into_iter().for_each(close);
        return Ok(());
    }
    // Close the high numbers blindly, although a command might have inherited one.
    let end = keep.iter().fold(TRIED, |end, fd| end.max(fd + 1));
    (0..end).for_each(close);
    raw::close_range(end.unsigned_abs(), u32::MAX)
}

fn open_descriptors() -> io::Result<Vec<RawFd>> {
    let mut listed = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        listed.extend(name.to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    Ok(listed)
}

/// Changes the command line that `ps` and `pkill -f` see.
fn rename_arguments() {
    let Ok(stat) = procfs::text("/proc/self/stat") else {
        return;
    };
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return;
    };
    // Fields 48 and 49, counted from 1; `rest` begins with field 3.
    let mut fields = rest.split_ascii_whitespace().skip(45);
    let mut next = || fields.next().and_then(|field| field.parse::<usize>().ok());
    let (Some(start), Some(end)) = (next(), next()) else {
        return;
    };
    let name = NAME.to_bytes();
    if start == 0 || end <= start + name.len() {
        return;
    }
    // SAFETY: /proc tells where the command line lies on this process's own stack, which is writable. Nothing
    // else refers to it as anything but bytes, and there is one thread. NULs end the text before `end`.
    unsafe {
        let area = std::ptr::with_exposed_provenance_mut::<u8>(start);
        std::ptr::write_bytes(area, 0, end - start);
        std::ptr::copy_nonoverlapping(name.as_ptr(), area, name.len());
    }
}

/// Takes every means that the system grants to be on time on a starved machine.
pub(super) fn take_precedence(context: &mut SpawnContext) {
    // MCL_ONFAULT keeps the guardian small: it fetches no pages. No child inherits the locks.
    let _ = nix::sys::mman::mlockall(MlockAllFlags::from_bits_retain(
        libc::MCL_CURRENT | libc::MCL_ONFAULT,
    ));
    // A real-time parent's children have niceness 0: the command could not undo another.
    if raw::is_scheduled_normally() && context.nice() >= 0 {
        raw::schedule(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1);
    }
    let path = "/proc/self/oom_score_adj";
    if let Ok(score) = std::fs::read(path)
        && std::fs::write(path, "-900").is_ok()
    {
        context.restore_oom_score(score);
    }
}

pub(super) fn give_up_precedence() {
    let _ = nix::sys::mman::munlockall();
    raw::schedule(libc::SCHED_OTHER, 0);
}

/// Receives bytes and a descriptor, which is lost at the limit of open files; the frame tells of it.
pub(super) fn receive(
    socket: RawFd,
    buffer: &mut [u8],
    rights: &mut [u8],
) -> nix::Result<(usize, Option<OwnedFd>)> {
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket, &mut parts, Some(rights), flags)?;
    let mut passed = None;
    for control in message.cmsgs().into_iter().flatten() {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for descriptor in descriptors {
                // SAFETY: the kernel has just made it.
                passed = Some(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
        }
    }
    Ok((message.bytes, passed))
}
