//! Start of a command: preparation before the fork, and the few system calls between fork and exec.
//!
//! The child must not block, allocate or unwind. The command must inherit everything (environment, directory,
//! descriptors, signal dispositions, priority) as trafficcop did.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, Pid, access, getppid, pipe, setpgid};

use super::Program;
use super::containment::Containment;
use super::process::is_ignored_by_us;
use super::raw::{self, Disposition, Forked};
use super::socket_activation::{OwnPid, Sockets, WATCHED};
use super::tty::Foreground;
use super::wire::Change;

const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// Signals that `fork` changes after the capture.
const OURS: [i32; 2] = [libc::SIGCHLD, libc::SIGTTOU];

/// Inherited state, for the command.
pub(super) struct SpawnContext {
    dispositions: &'static Dispositions,
    nice: i32,
    oom_score_adj: Option<Vec<u8>>,
    pub(super) foreground: Foreground,
    pub(super) sockets: Option<Sockets>,
}

struct Dispositions {
    ignored: [bool; 65],
    /// The few signals to set: not the command's disposition, or changed here.
    differs: [bool; 65],
    mask: SigSet,
}

impl Dispositions {
    /// Ignored signals stay ignored (as `nohup` wants), but for those that [`begin`](super::begin) ignores
    /// itself.
    fn read() -> Dispositions {
        let mut ignored = [false; 65];
        let mut differs = [false; 65];
        let slots = ignored.iter_mut().zip(&mut differs).skip(1);
        for (number, (ignored, differs)) in SIGNALS.zip(slots) {
            let found = raw::disposition(number);
            *ignored = found == Disposition::Ignored && !is_ignored_by_us(number);
            *differs = OURS.contains(&number) || (found != Disposition::Default && !*ignored);
        }
        // Has real-time signals, which have no name.
        let mask = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
        Dispositions {
            ignored,
            differs,
            mask,
        }
    }

    fn ignores(&self, signal: i32) -> bool {
        usize::try_from(signal).is_ok_and(|number| self.ignored.get(number) == Some(&true))
    }
}

impl SpawnContext {
    /// The first call's view of the signals counts: each guardian changes them.
    pub(super) fn capture() -> SpawnContext {
        static AT_FIRST: OnceLock<Dispositions> = OnceLock::new();
        let dispositions = AT_FIRST.get_or_init(Dispositions::read);
        SpawnContext {
            dispositions,
            nice: raw::nice(),
            oom_score_adj: None,
            foreground: Foreground::ours(dispositions.ignores(libc::SIGINT)),
            sockets: Sockets::ours(),
        }
    }

    pub(super) fn nice(&self) -> i32 {
        self.nice
    }

    pub(super) fn restore_oom_score(&mut self, text: Vec<u8>) {
        self.oom_score_adj = Some(text);
    }

    fn restore(&self) {
        if let Some(score) = &self.oom_score_adj
            && let Ok(file) = open(c"/proc/self/oom_score_adj", OFlag::O_WRONLY, Mode::empty())
        {
            // A failure leaves the better score.
            let _ = nix::unistd::write(&file, score);
        }
        if raw::nice() != self.nice {
            raw::set_nice(self.nice);
        }
        let signals = self.dispositions;
        let wanted = signals.ignored.iter().zip(&signals.differs).skip(1);
        for (number, (ignored, differs)) in SIGNALS.zip(wanted) {
            match (*differs, *ignored) {
                (false, _) => {}
                (true, true) => raw::ignore(number),
                (true, false) => raw::set_default(number),
            }
        }
        let _ = signals.mask.thread_set_mask();
    }
}

/// Command and environment for exec: arrays of pointers into strings it owns.
pub(super) struct ExecImage {
    files: Vec<CString>,
    _args: Vec<CString>,
    _env: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    /// `/bin/sh FILE ARGS`, for a file without a format; `exec` fills in FILE.
    shell_argv: Vec<*const libc::c_char>,
    pub(super) in_front: bool,
    /// Whether it gets passed sockets.
    listens: bool,
    own_pids: Vec<OwnPid>,
}

impl ExecImage {
    /// Prepares what `execvp` needs, with changes to the environment. EINVAL: a NUL, or an invalid name of a
    /// variable.
    pub(super) fn prepare(
        program: &Program,
        changes: Vec<Change>,
        sockets: Option<Sockets>,
    ) -> Result<ExecImage, Errno> {
        let command = &program.words;
        let hidden = |name: &OsStr| sockets.is_some() && Sockets::hides(name, program.in_front);
        let listens = program.in_front && sockets.is_some();
        let mut own_pids = Vec::new();
        if listens {
            own_pids.push(OwnPid::of_sockets());
        }
        if changes
            .iter()
            .any(|(name, value)| name == WATCHED && value.is_some())
        {
            own_pids.push(OwnPid::named(WATCHED));
        }
        let mut variables: Vec<(OsString, OsString)> = std::env::vars_os()
            .filter(|(name, _)| changes.iter().all(|(new, _)| new != name) && !hidden(name))
            .collect();
        variables.extend(
            changes
                .into_iter()
                .filter(|(name, _)| name != WATCHED)
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let path = variables
            .iter()
            .find(|(name, _)| name == "PATH")
            .map(|(_, value)| &**value);
        let files = candidates(command.first().ok_or(Errno::EINVAL)?, path)?;
        let args = command
            .iter()
            .map(|word| CString::new(word.as_bytes()).map_err(|_| Errno::EINVAL))
            .collect::<Result<Vec<_>, _>>()?;
        let env = variables
            .into_iter()
            .map(|(name, value)| {
                let mut entry = name.into_vec();
                entry.push(b'=');
                entry.extend_from_slice(value.as_bytes());
                CString::new(entry).map_err(|_| Errno::EINVAL)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let argv = pointers(args.iter());
        let mut shell_argv = vec![c"/bin/sh".as_ptr(), ptr::null()];
        shell_argv.extend_from_slice(&argv[1..]);
        let mut envp = pointers(env.iter());
        // The null stays at the end.
        envp.splice(0..0, own_pids.iter().map(OwnPid::as_ptr));
        Ok(ExecImage {
            argv,
            envp,
            listens,
            own_pids,
            shell_argv,
            files,
            _args: args,
            _env: env,
            in_front: program.in_front,
        })
    }

    /// Returns only on failure.
    fn exec(&mut self) -> Errno {
        let mut exec_result = Errno::ENOENT;
        let mut denied = false;
        for file in &self.files {
            // SAFETY: the arrays end with null and point to strings that `self` owns.
            unsafe {
                libc::execve(file.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr());
            }
            exec_result = Errno::last();
            if exec_result == Errno::ENOEXEC {
                // A script without "#!": as `execvp` does.
                self.shell_argv[1] = file.as_ptr();
                // SAFETY: as above; "/bin/sh" is a constant.
                unsafe {
                    libc::execve(
                        c"/bin/sh".as_ptr(),
                        self.shell_argv.as_ptr(),
                        self.envp.as_ptr(),
                    );
                }
                return Errno::last();
            }
            match exec_result {
                Errno::EACCES => denied = true,
                Errno::ENOENT
                | Errno::ENOTDIR
                | Errno::ESTALE
                | Errno::ENODEV
                | Errno::ETIMEDOUT => {}
                other => return other,
            }
        }
        if denied { Errno::EACCES } else { exec_result }
    }
}

fn pointers<'a>(strings: impl Iterator<Item = &'a CString>) -> Vec<*const libc::c_char> {
    strings
        .map(|string| string.as_ptr())
        .chain([ptr::null()])
        .collect()
}

/// Files that `execvp` would try for `name`.
fn candidates(name: &OsStr, path: Option<&OsStr>) -> Result<Vec<CString>, Errno> {
    let name = name.as_bytes();
    if name.is_empty() {
        return Ok(Vec::new());
    }
    let whole = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| Errno::EINVAL);
    if name.contains(&b'/') {
        return Ok(vec![whole(name.to_vec())?]);
    }
    path.unwrap_or(OsStr::new("/bin:/usr/bin"))
        .as_bytes()
        .split(|byte| *byte == b':')
        .map(|directory| {
            let mut file = directory.to_vec();
            if !file.is_empty() {
                file.push(b'/');
            }
            file.extend_from_slice(name);
            whole(file)
        })
        .collect()
}

/// Checks that `name` can be executed, with `path` as `PATH`, before an instance competes or takes a message.
/// Otherwise only a fail-over would reveal a useless standby, and a typo would cost each message an attempt. A
/// missing interpreter shows only at the start.
///
/// # Errors
/// ENOENT: there is no such command. EACCES: it may not be executed, or a directory that may not be searched
/// could have it. For a path, the error of stat(2).
pub fn which(name: &OsStr, path: Option<&OsStr>) -> Result<(), Errno> {
    let mut found = Errno::ENOENT;
    let is_a_path = name.as_bytes().contains(&b'/');
    for candidate in candidates(name, path)? {
        let candidate = Path::new(OsStr::from_bytes(candidate.as_bytes()));
        found = match nix::sys::stat::stat(candidate) {
            Ok(_) if candidate.is_file() && access(candidate, AccessFlags::X_OK).is_ok() => {
                return Ok(());
            }
            // It may exist, hidden from this process.
            Ok(_) | Err(Errno::EACCES) => Errno::EACCES,
            Err(errno) if is_a_path => errno,
            Err(_) => found,
        };
    }
    Err(found)
}

pub(super) struct Child {
    /// The process, and the group that it leads.
    pub(super) pid: i32,
    /// Carries four bytes of error number if the exec fails; closed empty if it succeeds.
    pub(super) exec_result: OwnedFd,
}

#[derive(Clone, Copy, Default)]
pub(super) struct PassedFds<'a> {
    pub(super) lock: Option<BorrowedFd<'a>>,
    pub(super) input: Option<BorrowedFd<'a>>,
}

/// The child becomes the command only if this process is still its parent.
pub(super) fn spawn(
    parent: i32,
    image: &mut ExecImage,
    context: &SpawnContext,
    handed: PassedFds<'_>,
    containment: &Containment,
) -> Result<Child, Errno> {
    let parent = containment.parent_seen(parent);
    let join = containment.join();
    let (exec_result, tell) =
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK)?;
    // SAFETY: the guardian has one thread, so the child's memory is consistent; the child stays in
    // `become_command`.
    match unsafe { containment.fork() }? {
        Forked::Child => become_command(image, context, handed, join, parent, tell.as_fd()),
        Forked::Parent(pid) => {
            // Both processes do this, so that it is done before either relies on it. Fails after the exec.
            let _ = setpgid(Pid::from_raw(pid), Pid::from_raw(pid));
            Ok(Child { pid, exec_result })
        }
    }
}

/// The child: no allocation, no lock, no unwinding, and no return.
fn become_command(
    image: &mut ExecImage,
    context: &SpawnContext,
    handed: PassedFds<'_>,
    join: Option<BorrowedFd<'_>>,
    parent: i32,
    tell: BorrowedFd<'_>,
) -> ! {
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    // If the guardian died before that, no signal comes.
    if getppid().as_raw() != parent {
        raw::exit(127);
    }
    // The command must not run outside its containment.
    if let Some(file) = join
        && let Err(errno) = nix::unistd::write(file, b"0")
    {
        give_up(tell, errno);
    }
    for own_pid in &mut image.own_pids {
        own_pid.fill(std::process::id());
    }
    if let Some(sockets) = context.sockets.filter(|_| !image.listens) {
        sockets.close();
    }
    if let Some(lock) = handed.lock {
        let _ = raw::keep_through_exec(lock);
    }
    if image.in_front {
        context.foreground.occupy();
    } else if let Err(errno) = handed.input.map_or_else(read_nothing, raw::put_on_stdin) {
        give_up(tell, errno);
    }
    context.restore();
    give_up(tell, image.exec())
}

/// The inherited stdin is another program's.
fn read_nothing() -> Result<(), Errno> {
    // Without an inherited stdin this is number 0, and must survive the exec.
    let nothing = open(c"/dev/null", OFlag::O_RDONLY, Mode::empty());
    // No /dev in the container: a pipe without a writer is as empty.
    let nothing = nothing.or_else(|_| pipe().map(|(end, _)| end))?;
    let done = raw::put_on_stdin(nothing.as_fd());
    if nothing.as_raw_fd() == 0 {
        std::mem::forget(nothing);
    }
    done
}

fn give_up(tell: BorrowedFd<'_>, errno: Errno) -> ! {
    // The pipe is empty, so these go in at once.
    let _ = nix::unistd::write(tell, &(errno as i32).to_le_bytes());
    raw::exit(127)
}

/// Reads the pipe of a [`Child`]; `None`: nothing yet.
pub(super) fn exec_result(pipe: BorrowedFd<'_>) -> Option<Result<(), i32>> {
    let mut bytes = [0; 4];
    match nix::unistd::read(pipe, &mut bytes) {
        Ok(4) => Some(Err(i32::from_le_bytes(bytes))),
        Ok(_) => Some(Ok(())),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn tried(name: &str, path: &str) -> Vec<String> {
        candidates(OsStr::new(name), Some(OsStr::new(path)))
            .unwrap()
            .into_iter()
            .map(|file| file.into_string().unwrap())
            .collect()
    }

    #[test]
    fn name_is_searched_as_by_execvp() {
        assert_eq!(tried("ls", "/bin:/usr/bin"), ["/bin/ls", "/usr/bin/ls"]);
        assert_eq!(tried("./ls", "/bin"), ["./ls"]);
        assert_eq!(tried("ls", ":/bin"), ["ls", "/bin/ls"]);
        assert!(tried("", "/bin").is_empty());
    }

    #[test]
    fn child_without_its_parent_does_not_become_the_command() {
        let me = nix::unistd::getpid().as_raw();
        for (parent, expected) in [(me, 7), (1, 127)] {
            let program = Program::script(OsStr::new("exit 7"));
            let mut image = ExecImage::prepare(&program, Vec::new(), None).unwrap();
            let context = SpawnContext::capture();
            let child = spawn(
                parent,
                &mut image,
                &context,
                PassedFds::default(),
                &Containment::None,
            )
            .unwrap();
            let pid = nix::unistd::Pid::from_raw(child.pid);
            let status = nix::sys::wait::waitpid(pid, None).unwrap();
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(pid, expected));
        }
    }

    #[test]
    fn nul_in_a_variable_is_refused() {
        let program = Program::command(vec!["true".into()]);
        let bad = vec![("A".into(), Some("x\0y".into()))];
        assert_eq!(
            ExecImage::prepare(&program, bad, None).err(),
            Some(Errno::EINVAL)
        );
    }

    #[test]
    fn which_finds_what_execvp_finds() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let path = dir.path().join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (runs, text) = (file("runs", 0o755), file("text", 0o644));
        let path = Some(dir.path().as_os_str());
        let of = |name: &OsStr| which(name, path);
        assert_eq!(of("runs".as_ref()), Ok(()));
        assert_eq!(of(runs.as_os_str()), Ok(()));
        assert_eq!(of("text".as_ref()), Err(Errno::EACCES));
        assert_eq!(of(text.as_os_str()), Err(Errno::EACCES));
        assert_eq!(of("nothing".as_ref()), Err(Errno::ENOENT));
        assert_eq!(of("./runs".as_ref()), Err(Errno::ENOENT));
        assert_eq!(
            of(dir.path().as_os_str()),
            Err(Errno::EACCES),
            "a directory"
        );
        assert_eq!(which("sh".as_ref(), None), Ok(()));
    }
}
