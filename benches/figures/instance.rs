//! Started tools with the probe as their command, and the clock they are measured by.
//!
//! Used by every section. Whatever is started here is killed when it is dropped.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::programs;

/// For how long anything is waited for: the machine may be slow, but it must not hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// The same for a word of the command, in milliseconds.
const TOLD: u16 = 60_000;

/// CLOCK_MONOTONIC in milliseconds.
///
/// # Panics
/// Never on Linux.
pub(crate) fn now() -> f64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the monotonic clock");
    now.tv_sec() as f64 * 1e3 + now.tv_nsec() as f64 / 1e6
}

/// The lock of an instance.
#[derive(Clone, Copy)]
pub(crate) enum Lock<'a> {
    /// A file.
    File(&'a Path),
    /// `CONTAINER/NAME` on the Azurite with this connection string.
    Blob(&'a str, &'a str),
}

/// `trafficcop run` on this lock, without a command yet.
pub(crate) fn trafficcop(lock: Lock<'_>) -> Command {
    let mut command = bare("run");
    match lock {
        Lock::File(path) => command.arg("--file").arg(path),
        Lock::Blob(name, connection) => command
            .env("AZURE_STORAGE_CONNECTION_STRING", connection)
            .args(["--blob", name]),
    };
    command
}

/// A verb of `trafficcop`, with nothing of our environment that would speak to it.
pub(crate) fn bare(verb: &str) -> Command {
    let mut command = Command::new(programs::trafficcop());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_uppercase();
        let ours = text.starts_with("TRAFFICCOP_") || text.starts_with("AZURE_");
        if ours || text.ends_with("_PROXY") {
            command.env_remove(name);
        }
    }
    command.arg(verb);
    command
}

/// `trafficcop run` with this command after the `--`.
pub(crate) fn trafficcop_with(lock: Lock<'_>, words: &[&Path]) -> Command {
    let mut command = trafficcop(lock);
    command.arg("--").args(words);
    command
}

/// `flock` with this command.
pub(crate) fn flock(path: &Path, words: &[&Path]) -> Command {
    let mut command = Command::new("flock");
    command.arg(path).args(words);
    command
}

/// A started tool.
pub(crate) struct Instance {
    child: Child,
    stdout: ChildStdout,
}

impl Instance {
    /// Starts it; its stderr goes to the end of the file `log`, as a service's would.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Instance {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log in the scene");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the tool can be started");
        let stdout = child.stdout.take().expect("its stdout is a pipe");
        // Room for two minutes of `probe beat`, which must not wait for us; where it is refused, for eight seconds.
        let _ = fcntl(&stdout, FcntlArg::F_SETPIPE_SZ(1 << 20));
        Instance { child, stdout }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("pids fit")
    }

    /// The next time that the probe tells, in milliseconds on [`now`]'s clock.
    pub(crate) fn told(&mut self) -> Result<f64, String> {
        let mut asked = [PollFd::new(self.stdout.as_fd(), PollFlags::POLLIN)];
        if poll(&mut asked, TOLD) == Ok(0) {
            return Err("the command told no time for a minute".to_owned());
        }
        let mut nanos = [0; 8];
        self.stdout
            .read_exact(&mut nanos)
            .map_err(|error| format!("the command told no time: {error}"))?;
        Ok(i64::from_le_bytes(nanos) as f64 / 1e6)
    }

    /// The last time that the probe tells, when it has ended and all that was started with it.
    pub(crate) fn told_last(&mut self) -> Result<f64, String> {
        let mut last = self.told()?;
        while let Ok(later) = self.told() {
            last = later;
        }
        Ok(last)
    }

    /// Lets a `probe hold` or `probe beat` end.
    pub(crate) fn let_go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for its end, which has to be a success.
    pub(crate) fn succeed(mut self) -> Result<(), String> {
        self.let_go();
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("it ended with {status}"))
        }
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// SIGTERM.
    pub(crate) fn ask_to_end(&self) {
        // It may have ended; then there is nothing to end (and it is not reaped yet).
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGTERM);
    }

    /// SIGTERM, and waits for its end.
    pub(crate) fn terminate(mut self) {
        self.ask_to_end();
        let _ = self.child.wait();
    }

    /// SIGKILL, to it alone.
    pub(crate) fn kill(&self) {
        // It may have ended; then there is nothing to kill (and it is not reaped yet).
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGKILL);
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Looks every millisecond until `look` returns something.
pub(crate) fn await_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, String> {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if begin.elapsed() > PATIENCE {
            return Err(format!("waited {PATIENCE:?} in vain for {what}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The guardian of a supervisor: its only child, by the name it bears in a process list.
pub(crate) fn guardian(supervisor: i32) -> Result<i32, String> {
    await_for("a guardian", || guardians(supervisor).first().copied())
}

/// All guardians of a worker.
pub(crate) fn guardians(supervisor: i32) -> Vec<i32> {
    let mut all = children(supervisor);
    all.retain(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "tc-guardian")
    });
    all
}

/// The children of a process's main thread.
pub(crate) fn children(parent: i32) -> Vec<i32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let numbers = text.split_ascii_whitespace();
    numbers.filter_map(|pid| pid.parse().ok()).collect()
}
