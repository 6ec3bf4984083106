//! One call of a helper program ([`Helper`]): a process group with limits and a deadline.
//!
//! A call ends with all that it started; after the supervisor's death the guardian kills it.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{AccessFlags, Pid, access};

use super::release::{self, Running};
use crate::errors::{fatal, transient};
use trafficcop_core::Failure;
use trafficcop_core::clock::Instant;
use trafficcop_core::util::{AwaitedChild, lock, plain};

/// Longest text, in bytes.
const TEXT: usize = 64 * 1024;
/// Longest tag, in bytes.
const TAG: usize = 256;
/// Bytes kept of a helper's stderr.
const SAID: usize = 4096;
/// Exit status of `put` if the tag did not hold.
const REFUSED: i32 = 4;
/// Exit status of a verb that the helper does not have.
const NO_VERB: i32 = 2;
/// Tag of a missing entry.
pub(super) const NONE: &str = "-";
const INSTALLED: &str = "/usr/share/trafficcop/stores";

/// Finds a helper: a path, or the name behind `trafficcop-store-` in the directories of `path` (PATH).
///
/// # Errors
/// `Fatal`, with the places searched.
pub fn find(helper: &str, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let executes = |path: &PathBuf| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    if helper.contains('/') {
        let path = std::path::absolute(helper).unwrap_or_else(|_| helper.into());
        return Some(path).filter(executes).ok_or_else(|| {
            fatal(format!(
                "the helper {helper} is not an executable file: check --store"
            ))
        });
    }
    let program = format!("trafficcop-store-{helper}");
    let places = std::env::split_paths(path.unwrap_or_default()).chain([PathBuf::from(INSTALLED)]);
    let found = places.map(|place| place.join(&program)).find(executes);
    found.ok_or_else(|| {
        fatal(format!(
            "there is no helper {program} in PATH or in {INSTALLED}: \
             install it, or name it by its path (--store ./HELPER:NAME)"
        ))
    })
}

/// Helper program, and the entry that it keeps.
#[derive(Clone, Debug)]
pub struct Helper {
    /// Name in the lock's address, the same on every machine.
    pub(super) shown: String,
    /// Full path of the program.
    pub program: PathBuf,
    /// Name of the entry.
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) tag: String,
    pub(super) text: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    Done,
    Refused,
}

/// End of a call.
pub struct Finished {
    /// Exit status of the helper.
    pub status: ExitStatus,
    /// Bytes that it printed.
    pub stdout: Vec<u8>,
    /// End of its stderr.
    pub said: String,
}

/// Store of a simulation, and the memory shared with the guardian; the process's clock carries it.
#[cfg(debug_assertions)]
pub trait Calls: crate::SharedMemory {
    /// Answers, in the thread that calls.
    ///
    /// # Errors
    /// Those of a call.
    fn call(&self, words: &[&str], input: &[u8], give_up_at: Instant) -> Result<Finished, Failure>;
}

#[cfg(debug_assertions)]
pub(super) fn simulated() -> Option<std::sync::Arc<Box<dyn Calls>>> {
    trafficcop_core::clock::carried()?.downcast().ok()
}

impl Helper {
    pub(super) fn named(&self, name: String) -> Helper {
        let (shown, program) = (self.shown.clone(), self.program.clone());
        Helper {
            shown,
            program,
            name,
        }
    }

    pub(super) fn address(&self) -> String {
        format!("{}:{}", self.shown, self.name)
    }

    /// Returns the path under which stamps know the entry.
    pub(super) fn place(&self) -> PathBuf {
        self.address().into()
    }

    pub(super) fn about(&self, what: &str) -> String {
        format!("{}: {what}", self.address())
    }

    /// Reads the entry; `None` if there is none.
    pub(super) fn get(&self, give_up_at: Instant) -> Result<Option<Entry>, Failure> {
        let stdout = self.ask(&["get", &self.name], give_up_at)?;
        let end = stdout.iter().position(|byte| *byte == b'\n');
        let (tag, text) = stdout.split_at(end.unwrap_or(stdout.len()));
        let tag = std::str::from_utf8(tag).unwrap_or_default().trim_end();
        if tag.is_empty() || tag.len() > TAG {
            return Err(self.doubt("get", "its first line is no tag: correct the helper"));
        }
        let entry = Entry {
            tag: tag.to_owned(),
            // A shell drops the last newlines of what it reads.
            text: text.trim_ascii().to_owned(),
        };
        Ok(Some(entry).filter(|entry| entry.tag != NONE))
    }

    pub(super) fn put(&self, tag: &str, text: &[u8], give_up_at: Instant) -> Result<Put, Failure> {
        let finished = self.call(&["put", &self.name, tag], text, give_up_at)?;
        match finished.status.code() {
            Some(0) => Ok(Put::Done),
            Some(REFUSED) => Ok(Put::Refused),
            _ => Err(self.failed("put", &finished)),
        }
    }

    /// Reads the store's clock, in seconds since 1970.
    ///
    /// # Errors
    /// Those of a call, and `Fatal` if it prints no number.
    pub fn time(&self, give_up_at: Instant) -> Result<u64, Failure> {
        let finished = self.call(&["time"], b"", give_up_at)?;
        match finished.status.code() {
            Some(0) => {}
            // A shell that fails exits 2, too, and says why.
            Some(NO_VERB) if finished.said.trim().is_empty() => {
                let why = "its helper has no verb 'time', which --once-per needs: add it (trafficcop-store(7))";
                return Err(fatal(self.about(why)));
            }
            _ => return Err(self.failed("time", &finished)),
        }
        let text = String::from_utf8_lossy(&finished.stdout);
        let seconds = text.trim().split('.').next().map(str::parse);
        let problem = || fatal(self.about("'time' must print seconds since 1970"));
        seconds.and_then(Result::ok).ok_or_else(problem)
    }

    pub(super) fn list(&self, prefix: &str, give_up_at: Instant) -> Result<Vec<String>, Failure> {
        self.names(&["list", prefix], give_up_at)
    }

    /// Lists the variables that hold credentials.
    pub(super) fn hides(&self, give_up_at: Instant) -> Vec<OsString> {
        let names = self.names(&["hides"], give_up_at).unwrap_or_default();
        names.into_iter().map(OsString::from).collect()
    }

    fn names(&self, words: &[&str], give_up_at: Instant) -> Result<Vec<String>, Failure> {
        let stdout = self.ask(words, give_up_at)?;
        let lines = String::from_utf8_lossy(&stdout);
        let names = lines.lines().map(str::trim).filter(|name| !name.is_empty());
        Ok(names.map(str::to_owned).collect())
    }

    fn ask(&self, words: &[&str], give_up_at: Instant) -> Result<Vec<u8>, Failure> {
        let finished = self.call(words, b"", give_up_at)?;
        match finished.status.success() {
            true => Ok(finished.stdout),
            false => Err(self.failed(words[0], &finished)),
        }
    }

    fn doubt(&self, verb: &str, why: &str) -> Failure {
        transient(format!("{}: '{verb}' of the helper: {why}", self.address()))
    }

    fn failed(&self, verb: &str, finished: &Finished) -> Failure {
        let how = match (finished.status.code(), finished.status.signal()) {
            (Some(status), _) => format!("exit status {status}"),
            (None, signal) => format!("killed by signal {}", signal.unwrap_or(0)),
        };
        let said = reason(&finished.said).map_or(String::new(), |line| format!(" ({line})"));
        self.doubt(verb, &format!("{how}{said}"))
    }

    /// Runs the helper; kills it at `give_up_at`.
    fn call(&self, words: &[&str], input: &[u8], give_up_at: Instant) -> Result<Finished, Failure> {
        let verb = words[0];
        #[cfg(debug_assertions)]
        if let Some(calls) = simulated() {
            return calls.call(words, input, give_up_at);
        }
        let mut command = Command::new(&self.program);
        command.args(words.iter().map(OsStr::new)).process_group(0);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let started = AwaitedChild::spawn(|| command.spawn(), |child: &Child| Some(child.id()));
        let (child, _awaited) = started.map_err(|error| match error.kind() {
            // EAGAIN and the like pass; a missing program does not.
            ErrorKind::NotFound | ErrorKind::PermissionDenied => fatal(self.cannot_run(&error)),
            _ => transient(self.cannot_run(&error)),
        })?;
        let running = Running::of(child.id());
        let mut group = Group { child, running };
        let ended = group.attend(input, give_up_at);
        let (stdout, said, problem) = match ended {
            Ok((stdout, said)) => (stdout, said, None),
            Err(problem) => (Vec::new(), String::new(), Some(problem)),
        };
        // Until it is reaped, the leader keeps the group's number from others.
        let status = group.end();
        match (problem, status) {
            (Some(problem), _) => Err(self.doubt(verb, problem)),
            (None, Err(error)) => Err(self.doubt(verb, &error.to_string())),
            (None, Ok(status)) => {
                self.log(&said);
                Ok(Finished {
                    status,
                    stdout,
                    said,
                })
            }
        }
    }

    /// Logs the reason on stderr, at most once a second.
    fn log(&self, said: &str) {
        static LAST: Mutex<Option<Instant>> = Mutex::new(None);
        let Some(line) = reason(said) else {
            return;
        };
        let (now, mut last) = (Instant::now(), lock(&LAST));
        if last.is_none_or(|last| now.since(last) >= Duration::from_secs(1)) {
            *last = Some(now);
            tracing::info!("{}: the helper reports: {line}", self.address());
        }
    }

    fn cannot_run(&self, error: &std::io::Error) -> String {
        let program = self.program.display();
        format!("the helper {program} cannot be run: {error}")
    }
}

/// Returns the line of stderr that names an error, else the last.
fn reason(said: &str) -> Option<String> {
    let mut lines = said.lines().filter(|line| !line.trim().is_empty());
    // Clients print the error first and details below it, or a log first.
    let is_error = |line: &&str| !line.starts_with('{') && line.to_lowercase().contains("error:");
    let line = lines.clone().find(is_error).or_else(|| lines.next_back())?;
    Some(plain(line.trim()))
}

struct Group {
    child: Child,
    running: Running,
}

impl Group {
    fn attend(
        &mut self,
        mut input: &[u8],
        give_up_at: Instant,
    ) -> Result<(Vec<u8>, String), &'static str> {
        let mut stdin = self.child.stdin.take();
        let mut stdout = self.child.stdout.take();
        let mut stderr = self.child.stderr.take();
        let pipes = [
            stdin.as_ref().map(AsFd::as_fd),
            stdout.as_ref().map(AsFd::as_fd),
            stderr.as_ref().map(AsFd::as_fd),
        ];
        for pipe in pipes.into_iter().flatten() {
            let _ = fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        }
        let (mut answer, mut said) = (Vec::new(), Vec::new());
        loop {
            let left = give_up_at.since(Instant::now());
            if left.is_zero() {
                return Err("no answer in time");
            }
            let ends = [
                (stdin.as_ref().map(AsFd::as_fd), PollFlags::POLLOUT),
                (stdout.as_ref().map(AsFd::as_fd), PollFlags::POLLIN),
                (stderr.as_ref().map(AsFd::as_fd), PollFlags::POLLIN),
            ];
            let open = ends
                .into_iter()
                .filter_map(|(end, ready)| Some((end?, ready)));
            let mut fds: Vec<PollFd> = open.map(|(end, ready)| PollFd::new(end, ready)).collect();
            // An ended helper may have left its pipes to a daemon, and one that has closed them ends at once.
            let longest = if fds.is_empty() { 1 } else { 100 };
            let nap = left.min(Duration::from_millis(longest)).as_millis();
            let _ = poll(
                &mut fds,
                PollTimeout::try_from(nap).unwrap_or(PollTimeout::ZERO),
            );
            let was_over = self.is_over();
            if let Some(pipe) = &mut stdin {
                match pipe.write(input) {
                    Ok(written) => input = &input[written..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // It need not read its input.
                    Err(_) => input = &[],
                }
                if input.is_empty() {
                    stdin = None;
                }
            }
            if !read(&mut stdout, &mut answer, TEXT + TAG + 1) {
                return Err("it prints more than 64 KiB: correct the helper");
            }
            read(&mut stderr, &mut said, usize::MAX);
            let kept = said.len().saturating_sub(SAID);
            said.drain(..kept);
            if was_over || stdout.is_none() && stderr.is_none() && self.is_over() {
                return Ok((answer, String::from_utf8_lossy(&said).into_owned()));
            }
        }
    }

    /// Whether the helper has ended; does not reap it.
    fn is_over(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        !matches!(
            waitid(Id::Pid(self.pid()), flags),
            Ok(WaitStatus::StillAlive)
        )
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn end(mut self) -> std::io::Result<ExitStatus> {
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let status = self.child.wait();
        release::has_ended(&self.running);
        status
    }
}

/// Reads what there is; `false`: more than `limit`.
fn read<R: Read>(pipe: &mut Option<R>, into: &mut Vec<u8>, limit: usize) -> bool {
    let Some(open) = pipe else {
        return true;
    };
    let mut bytes = [0; 4096];
    // An endless writer gets its next turn after the others.
    for _ in 0..16 {
        match open.read(&mut bytes) {
            Ok(read) if read > 0 => into.extend_from_slice(&bytes[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Ok(_) | Err(_) => {
                *pipe = None;
                break;
            }
        }
    }
    into.len() <= limit
}
