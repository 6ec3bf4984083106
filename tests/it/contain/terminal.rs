//! The command has the terminal, and job control works.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::contain::role::{MARK, say};
use crate::support::programs::{Ourselves, ourselves};

struct Shell(
    Child,
    #[expect(dead_code, reason = "it is there as long")] Arc<Ourselves>,
);

impl Drop for Shell {
    /// Kills the shell if the test fails; its job dies with it.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a role on a terminal of its own as a shell would be: session leader, in the foreground.
fn on_a_terminal(name: &str) -> (Shell, File, BufReader<File>) {
    let pty = crate::support::pty::open(None);
    let mut quiet = nix::sys::termios::tcgetattr(&pty.slave).expect("a terminal");
    quiet
        .local_flags
        .remove(nix::sys::termios::LocalFlags::ECHO);
    nix::sys::termios::tcsetattr(&pty.slave, nix::sys::termios::SetArg::TCSANOW, &quiet)
        .expect("a terminal");
    let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
    let program = ourselves();
    let mut command = Command::new(&program.path);
    command
        .arg(format!("contain::{name}"))
        .args(["--exact", "--ignored", "--nocapture", "--quiet"])
        .env("RUST_TEST_THREADS", "1")
        .stdin(end())
        .stdout(end())
        .stderr(end());
    // SAFETY: two system calls.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            libc::ioctl(0, libc::TIOCSCTTY, 0);
            Ok(())
        });
    }
    let child = command.spawn().expect("a role starts");
    let master = File::from(pty.master);
    let reader = BufReader::new(master.try_clone().expect("a descriptor"));
    (Shell(child, program), master, reader)
}

fn heard(terminal: &mut BufReader<File>) -> String {
    loop {
        let mut line = String::new();
        terminal.read_line(&mut line).expect("the role speaks");
        if let Some(at) = line.find(MARK) {
            return line[at + MARK.len()..].trim_end().to_owned();
        }
    }
}

#[test]
fn the_command_has_the_terminal_and_job_control_works() {
    let (mut shell, mut keys, mut screen) = on_a_terminal("terminal::role_shell");
    assert_eq!(heard(&mut screen), "ours true");
    // It reads from the terminal, in a group of its own.
    keys.write_all(b"hello\n").expect("typed");
    assert_eq!(heard(&mut screen), "read hello");
    // Ctrl-C: SIGINT for the command only, once.
    keys.write_all(b"\x03").expect("typed");
    assert_eq!(heard(&mut screen), "interrupted");
    // Ctrl-Z: the command stops, then the supervisor, and the shell has the terminal.
    keys.write_all(b"\x1a").expect("typed");
    assert_eq!(heard(&mut screen), "shell sees a stop");
    assert_eq!(heard(&mut screen), "shell has the terminal true");
    // fg: the supervisor continues, gives the terminal to the command, and that reads again.
    assert_eq!(heard(&mut screen), "supervisor goes on");
    keys.write_all(b"again\n").expect("typed");
    assert_eq!(heard(&mut screen), "read again");
    keys.write_all(b"\x03").expect("typed");
    assert_eq!(heard(&mut screen), "interrupted");
    keys.write_all(b"quit\n").expect("typed");
    assert_eq!(heard(&mut screen), "supervisor has the terminal true");
    assert_eq!(heard(&mut screen), "supervisor was interrupted 0 times");
    assert_eq!(heard(&mut screen), "command was interrupted 2 times");
    assert_eq!(heard(&mut screen), "shell sees the end 0");
    assert!(shell.0.wait().expect("reapable").success());
}

static INTERRUPTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

extern "C" fn count_interrupt(_: libc::c_int) {
    INTERRUPTED.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}

fn count_interrupts() {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, sigaction};
    let count = SigHandler::Handler(count_interrupt);
    let action = SigAction::new(count, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only adds to an atomic.
    unsafe { sigaction(Signal::SIGINT, &action) }.expect("a handler");
}

fn interrupts() -> u8 {
    INTERRUPTED.load(std::sync::atomic::Ordering::SeqCst)
}

/// Plays a shell with one job: supervisor and command, each in its group.
#[test]
#[ignore = "a role"]
fn role_shell() {
    use nix::sys::wait::WaitPidFlag;
    use nix::unistd::{ForkResult, fork, getpid, setpgid};
    // SAFETY: one thread.
    let ForkResult::Parent { child: job } = (unsafe { fork() }).expect("a job") else {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).expect("allowed");
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        // Shell and job both do this, so that neither waits for the other.
        let tty = std::io::stdin();
        nix::sys::signal::SigSet::from(Signal::SIGTTOU)
            .thread_block()
            .expect("a mask");
        nix::unistd::tcsetpgrp(&tty, getpid()).expect("in the foreground");
        nix::sys::signal::SigSet::from(Signal::SIGTTOU)
            .thread_unblock()
            .expect("a mask");
        job_on_terminal();
        std::process::exit(0);
    };
    let _ = setpgid(job, job);
    let stopped = waitpid(job, Some(WaitPidFlag::WUNTRACED));
    assert!(
        matches!(stopped, Ok(WaitStatus::Stopped(..))),
        "{stopped:?}"
    );
    say("shell sees a stop");
    let terminal = nix::unistd::tcgetpgrp(std::io::stdin());
    // The supervisor took it back for its own group.
    say(format!("shell has the terminal {}", terminal == Ok(job)));
    kill(job, Signal::SIGCONT).expect("fg");
    let ended = waitpid(job, None);
    assert_eq!(ended, Ok(WaitStatus::Exited(job, 0)));
    say("shell sees the end 0");
}

fn job_on_terminal() {
    use nix::sys::wait::WaitPidFlag;
    use nix::unistd::{ForkResult, fork, setpgid};
    use trafficcop_guardian::tty::{StopAsked, Terminal, stop_ourselves};
    count_interrupts();
    let terminal = Terminal::ours(false).expect("we are in the foreground");
    say(format!("ours {}", terminal.is_ours()));
    // SAFETY: one thread.
    let ForkResult::Parent { child: command } = (unsafe { fork() }).expect("a command") else {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).expect("allowed");
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        while !terminal.is_with(std::process::id().cast_signed()) {
            std::thread::yield_now();
        }
        return command_on_terminal();
    };
    let _ = setpgid(command, command);
    terminal.give(command.as_raw()).expect("given");
    assert!(terminal.is_with(command.as_raw()) && !terminal.is_ours());
    let stopped = waitpid(command, Some(WaitPidFlag::WUNTRACED));
    assert_eq!(stopped, Ok(WaitStatus::Stopped(command, Signal::SIGTSTP)));
    terminal.take_back().expect("taken");
    stop_ourselves(StopAsked::OfTheCommand).expect("stopped, and continued");
    terminal.give(command.as_raw()).expect("given");
    nix::sys::signal::killpg(command, Signal::SIGCONT).expect("continued");
    say("supervisor goes on");
    let Ok(WaitStatus::Exited(_, count)) = waitpid(command, None) else {
        panic!("the command ends by itself");
    };
    terminal.take_back().expect("taken");
    say(format!(
        "supervisor has the terminal {}",
        terminal.is_ours()
    ));
    say(format!("supervisor was interrupted {} times", interrupts()));
    say(format!("command was interrupted {count} times"));
}

fn command_on_terminal() {
    use nix::sys::signal::SigSet;
    // Unblocked only during the wait: no signal comes between a look and the wait.
    SigSet::from(Signal::SIGINT).thread_block().expect("a mask");
    let mut known = 0;
    loop {
        let stdin = std::io::stdin();
        let mut entries = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        let ready = nix::poll::ppoll(&mut entries, None, Some(SigSet::empty()));
        while known < interrupts() {
            known += 1;
            say("interrupted");
        }
        if ready != Ok(1) {
            continue;
        }
        let mut bytes = [0; 64];
        let length = nix::unistd::read(&stdin, &mut bytes).expect("we have the terminal");
        let line = String::from_utf8_lossy(&bytes[..length]);
        if line.trim_end() == "quit" {
            std::process::exit(i32::from(interrupts()));
        }
        say(format!("read {}", line.trim_end()));
    }
}
