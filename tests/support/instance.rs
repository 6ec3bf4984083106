//! Instances of the binary under test.
//!
//! An instance starts clean whatever the test runner's state is: no settings from the environment,
//! every signal at its default, nothing on stdin.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;

use super::processes::{self, MARK, Process};
use super::scene::Scene;
use super::{await_for, programs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Died(Signal),
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Ended {
        match status.code() {
            Some(code) => Ended::Code(code),
            None => Ended::Died(
                Signal::try_from(status.signal().expect("no code, so a signal"))
                    .expect("a signal we know"),
            ),
        }
    }
}

/// Unused parameter of a mount.
const NOTHING: Option<&str> = None;

const CLOEXEC: libc::c_int = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;

pub(crate) struct Run<'a> {
    scene: &'a Scene,
    command: Command,
    verb: String,
    args: Vec<OsString>,
    workload: Vec<OsString>,
    stdin: Stdio,
    stdout: Option<Stdio>,
    ignored: Vec<Signal>,
    broken_stderr: bool,
    /// An event log would cost what the test counts.
    no_event_log: bool,
    preparations: Vec<Preparation>,
}

/// Runs in the child between fork and exec; it may not need another thread.
type Preparation = Box<dyn FnMut() -> io::Result<()> + Send + Sync>;

impl<'a> Run<'a> {
    pub(super) fn new(scene: &'a Scene, verb: &str) -> Run<'a> {
        let mut command = Command::new(programs::trafficcop());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().to_uppercase();
            if text.starts_with("TRAFFICCOP_")
                || text.starts_with("AZURE_")
                || text.ends_with("_PROXY")
                || ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"].contains(&&*text)
            {
                command.env_remove(&name);
            }
        }
        command.env(MARK, scene.directory());
        Run {
            scene,
            command,
            verb: verb.to_owned(),
            args: Vec::new(),
            workload: Vec::new(),
            stdin: Stdio::null(),
            stdout: None,
            ignored: Vec::new(),
            broken_stderr: false,
            no_event_log: false,
            preparations: Vec::new(),
        }
    }

    #[must_use]
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    #[must_use]
    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    #[must_use]
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs on a machine that refuses a call while a file of its name is in this directory: see
    /// `refusing.rs`, and [`Scene::refuse`].
    #[must_use]
    pub(crate) fn on_a_machine_that_refuses(self) -> Self {
        let directory = self.scene.path("refusing");
        std::fs::create_dir_all(&directory).expect("a directory in the scene");
        self.env("REFUSING", directory)
            .env("LD_PRELOAD", programs::refusing())
    }

    #[must_use]
    pub(crate) fn current_dir(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    #[must_use]
    pub(crate) fn stdin(mut self, file: File) -> Self {
        self.stdin = file.into();
        self
    }

    /// Sets its stdout, instead of a file of the scene.
    #[must_use]
    pub(crate) fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.stdout = Some(stdout.into());
        self
    }

    /// Ignores this signal from the start, as `nohup` and background jobs do.
    #[must_use]
    pub(crate) fn ignoring(mut self, number: Signal) -> Self {
        self.ignored.push(number);
        self
    }

    /// Starts with a stderr without a reader: every write to it is an EPIPE.
    #[must_use]
    pub(crate) fn with_broken_stderr(mut self) -> Self {
        self.broken_stderr = true;
        self
    }

    /// Runs as a user bound by file permissions, even if the test runs as root.
    #[must_use]
    pub(crate) fn bound_by_permissions(mut self) -> Self {
        const CAP_DAC_OVERRIDE: libc::c_ulong = 1;
        const CAP_DAC_READ_SEARCH: libc::c_ulong = 2;
        self.preparations.push(Box::new(|| {
            for capability in [CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH] {
                // SAFETY: takes numbers only. It fails without a capability to drop.
                unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
            }
            Ok(())
        }));
        self
    }

    #[must_use]
    pub(crate) fn without_event_log(mut self) -> Self {
        self.no_event_log = true;
        self
    }

    /// Limits the instance and its command; without the harness's event log, which would need some
    /// of it.
    #[must_use]
    pub(crate) fn limited(mut self, resource: Resource, limit: u64) -> Self {
        self.preparations
            .push(Box::new(move || Ok(setrlimit(resource, limit, limit)?)));
        self.without_event_log()
    }

    /// Starts in a namespace of this kind, unprivileged where users may; `namespaces.rs` tells
    /// whether that is so here.
    fn within(mut self, kind: CloneFlags) -> Self {
        let user = nix::unistd::geteuid();
        let group = nix::unistd::getegid();
        let maps = [
            ("/proc/self/uid_map", format!("0 {user} 1")),
            ("/proc/self/setgroups", "deny".to_owned()),
            ("/proc/self/gid_map", format!("0 {group} 1")),
        ];
        self.preparations.push(Box::new(move || {
            let mut spaces = kind;
            if !user.is_root() {
                spaces |= CloneFlags::CLONE_NEWUSER;
            }
            unshare(spaces)?;
            if !user.is_root() {
                for (file, text) in &maps {
                    std::fs::write(file, text)?;
                }
            }
            Ok(())
        }));
        self
    }

    /// Starts without a network: every address is unreachable, even its own.
    #[must_use]
    pub(crate) fn without_network(self) -> Self {
        self.within(CloneFlags::CLONE_NEWNET)
    }

    /// Starts with mounts of its own, which this function makes.
    fn with_mounts(
        self,
        mut make: impl FnMut() -> nix::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let mut within = self.within(CloneFlags::CLONE_NEWNS);
        within.preparations.push(Box::new(move || {
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(NOTHING, "/", NOTHING, private, NOTHING)?;
            Ok(make()?)
        }));
        within
    }

    /// Starts with a file system of its own on this directory, of `room` pages of 4 KiB, or
    /// read-only if that is 0.
    #[must_use]
    pub(crate) fn with_tmpfs(self, directory: &Path, room: u32) -> Self {
        let directory = directory.to_owned();
        let options = format!("size={}", room.max(1) * 4096);
        let flags = if room == 0 {
            MsFlags::MS_RDONLY
        } else {
            MsFlags::empty()
        };
        self.with_mounts(move || {
            let options = Some(options.as_str());
            mount(NOTHING, &directory, Some("tmpfs"), flags, options)
        })
    }

    #[must_use]
    pub(crate) fn with_run(self, directory: &Path) -> Self {
        let directory = directory.to_owned();
        self.with_mounts(move || {
            mount(Some(&directory), "/run", NOTHING, MsFlags::MS_BIND, NOTHING)
        })
    }

    /// Fills this file system, so that no file in it can grow.
    #[must_use]
    pub(crate) fn with_full(mut self, directory: &Path) -> Self {
        let ballast = directory.join("ballast");
        let page = [0_u8; 4096];
        self.preparations.push(Box::new(move || {
            let mut file = File::create(&ballast)?;
            while io::Write::write(&mut file, &page).is_ok() {}
            Ok(())
        }));
        self
    }

    #[must_use]
    pub(crate) fn command<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.workload = words.into_iter().map(|word| word.as_ref().into()).collect();
        self
    }

    #[must_use]
    pub(crate) fn shell(self, script: &str) -> Self {
        self.command(["sh", "-c", script])
    }

    #[must_use]
    pub(crate) fn journalist(self, tag: &str, options: &[&str]) -> Self {
        let words = self.scene.journalist(tag, options);
        self.command(words)
    }

    /// Starts it. It is killed with the calling thread at the latest.
    #[must_use]
    pub(crate) fn start(mut self) -> Instance {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let stdout = self.scene.path(&format!("stdout-{number}"));
        let stderr = self.scene.path(&format!("stderr-{number}"));
        let logs = &self.scene.event_logs;
        let log = logs.of(&self.verb, &self.args, number, !self.no_event_log);
        self.command.arg(&self.verb).args(log).args(&self.args);
        if !self.workload.is_empty() {
            self.command.arg("--").args(&self.workload);
        }
        let create = |path| File::create(path).expect("a file in the scene");
        let out = self.stdout.unwrap_or_else(|| create(&stdout).into());
        self.command.stdin(self.stdin).stdout(out);
        if self.broken_stderr {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            self.command.stderr(writer);
        } else {
            self.command.stderr(create(&stderr));
        }
        let ignored = self.ignored;
        let (files, most) = processes::files_at_first();
        let mut preparations = self.preparations;
        let prepare = move || {
            for number in Signal::iterator() {
                let handler = if ignored.contains(&number) {
                    SigHandler::SigIgn
                } else {
                    SigHandler::SigDfl
                };
                if !matches!(number, Signal::SIGKILL | Signal::SIGSTOP) {
                    // SAFETY: no handler function is installed.
                    unsafe { signal(number, handler) }?;
                }
            }
            nix::sys::signal::SigSet::empty().thread_set_mask()?;
            setrlimit(Resource::RLIMIT_NOFILE, files, most)?;
            // A killed test leaves nothing behind.
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            // Do not pass on the test runner's descriptors. SAFETY: takes numbers; descriptors are
            // marked, not closed.
            unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOEXEC) };
            preparations.iter_mut().try_for_each(|prepare| prepare())
        };
        // SAFETY: the preparations make system calls on memory that is the child's alone after the
        // fork, so no lock of another thread is needed.
        unsafe { self.command.pre_exec(prepare) };
        // As a shell gives to a job: no signal for the test reaches it.
        self.command.process_group(0);
        let child = self.command.spawn().expect("the binary can be started");
        Instance {
            child,
            ended: None,
            stdout,
            stderr,
            scene: self.scene.directory().to_owned(),
        }
    }

    #[must_use]
    pub(crate) fn finish(self) -> Finished {
        self.start().finish()
    }
}

#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) ended: Ended,
    /// Standard output, with the command's.
    pub(crate) stdout: String,
    /// Standard error, with the command's.
    pub(crate) stderr: String,
}

#[track_caller]
pub(crate) fn assert_ended(finished: &Finished, code: i32, words: &str) {
    let said = &finished.stderr;
    assert_eq!(finished.ended, Ended::Code(code), "{said}");
    assert!(said.contains(words), "not said: {words}\n{said}");
}

/// Started; killed with its scene at the latest.
pub(crate) struct Instance {
    child: Child,
    ended: Option<Ended>,
    stdout: PathBuf,
    stderr: PathBuf,
    scene: PathBuf,
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

impl Instance {
    #[must_use]
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("pids fit")
    }

    #[must_use]
    pub(crate) fn guardian(&self) -> i32 {
        await_for(
            "a guardian",
            || {
                let all = processes::marked(&self.scene);
                all.iter()
                    .find(|process| process.parent == self.pid() && process.is_ours())
                    .map(|process| process.pid)
            },
            || self.story(),
        )
    }

    #[must_use]
    pub(crate) fn stderr(&self) -> String {
        read(&self.stderr)
    }

    #[must_use]
    pub(crate) fn stderr_path(&self) -> PathBuf {
        self.stderr.clone()
    }

    #[must_use]
    pub(crate) fn stdout(&self) -> String {
        read(&self.stdout)
    }

    pub(crate) fn await_log(&self, words: &str) {
        self.await_log_times(words, 1);
    }

    pub(crate) fn await_log_times(&self, words: &str, times: usize) {
        await_for(
            &format!("\"{words}\" in the log"),
            || (self.stderr().matches(words).count() >= times).then_some(()),
            || self.story(),
        );
    }

    pub(crate) fn signal(&self, number: Signal) {
        kill(Pid::from_raw(self.pid()), number).expect("it is there and ours");
    }

    /// Waits until it is stopped.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
        processes::await_stopped(self.pid());
    }

    pub(crate) fn ended(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            let status = self.child.try_wait().expect("it is our child");
            self.ended = status.map(Ended::from);
        }
        self.ended
    }

    pub(crate) fn wait(&mut self) -> Ended {
        let stderr = self.stderr.clone();
        let pid = self.pid();
        await_for(
            "an instance to end",
            || self.ended(),
            || format!("{:?}\n{}", Process::read(pid), read(&stderr)),
        )
    }

    #[must_use]
    pub(crate) fn finish(mut self) -> Finished {
        let ended = self.wait();
        Finished {
            ended,
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    pub(crate) fn assert_running(&mut self) {
        assert_eq!(self.ended(), None, "it should still run\n{}", self.stderr());
    }

    fn story(&self) -> String {
        format!(
            "-- stderr\n{}-- processes\n{:?}",
            self.stderr(),
            processes::marked(&self.scene)
        )
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.ended().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
