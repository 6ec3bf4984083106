//! This test binary as a separate program, controlled over stdin and stdout.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use crate::contain::WAIT_LIMIT;
use crate::support::programs::{Ourselves, ourselves};

pub(crate) struct Role {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    _program: Arc<Ourselves>,
}

impl Role {
    pub(crate) fn start(name: &str, user: u32, arguments: &[&str]) -> Role {
        let program = ourselves();
        let mut command = Command::new(&program.path);
        command
            .arg(format!("contain::{name}"))
            .args(["--exact", "--ignored", "--nocapture", "--quiet"])
            .env("RUST_TEST_THREADS", "1")
            .env("ROLE_ARGUMENTS", arguments.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if user != 0 {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().expect("a role starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Role {
            child,
            stdin,
            stdout,
            _program: program,
        }
    }

    /// Returns the next line that the role says with `say`; panics at its end.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let length = self.stdout.read_line(&mut line).expect("readable");
            assert!(length > 0, "the role ended without a word");
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].trim_end().to_owned();
            }
        }
    }

    pub(crate) fn hear_number(&mut self) -> i32 {
        let line = self.hear();
        line.parse()
            .unwrap_or_else(|_| panic!("not a number: {line}"))
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("still open");
        writeln!(stdin, "{line}").expect("the role listens");
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killable");
        self.child.wait().expect("reapable");
    }

    pub(crate) fn end_well(&mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().expect("reapable");
        assert!(status.success(), "the role failed: {status}");
    }
}

impl Drop for Role {
    /// Kills it if the test fails.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) const MARK: &str = "role says: ";

pub(crate) fn say(what: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{what}").expect("the test reads");
    out.flush().expect("the test reads");
}

pub(crate) fn told() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("readable");
    line.trim_end().to_owned()
}

pub(crate) fn arguments() -> Vec<String> {
    let text = std::env::var("ROLE_ARGUMENTS").unwrap_or_default();
    text.split('\n').map(str::to_owned).collect()
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Opens a pidfd, which becomes readable when the process is dead.
pub(crate) fn pidfd(pid: i32) -> OwnedFd {
    // SAFETY: an integer in, a new descriptor out.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        assert!(fd >= 0, "process {pid} is not there");
        OwnedFd::from_raw_fd(i32::try_from(fd).expect("a descriptor"))
    }
}

pub(crate) fn dies(process: &OwnedFd) -> bool {
    within(process, WAIT_LIMIT)
}

pub(crate) fn within(process: &OwnedFd, milliseconds: u16) -> bool {
    let mut entries = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut entries, PollTimeout::from(milliseconds)) == Ok(1)
}
