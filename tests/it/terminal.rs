//! The built binary on a terminal, started from an interactive shell: job control.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::support::processes::processor_time;

mod foreground;
mod interrupts;

/// Limit of a wait for what happens at once on a machine that is not starved.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// Repeats what is typed, and reports each interrupt.
const COMMAND: &str = r#"
trap 'echo interrupted' INT
echo ready
while :; do
    read -r line || continue
    echo "got:$line"
    if [ "$line" = quit ]; then exit 5; fi
done
"#;

struct Session {
    shell: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    shown: String,
    /// Up to where the screen has been looked at.
    seen: usize,
}

impl Session {
    fn begin() -> Session {
        let size = nix::pty::Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = crate::support::pty::open(Some(&size));
        let mut quiet = nix::sys::termios::tcgetattr(&pty.slave).expect("a terminal");
        quiet
            .local_flags
            .remove(nix::sys::termios::LocalFlags::ECHO);
        nix::sys::termios::tcsetattr(&pty.slave, nix::sys::termios::SetArg::TCSANOW, &quiet)
            .expect("a terminal");
        let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        let mut command = Command::new("bash");
        command
            .args(["--norc", "--noprofile", "--noediting", "-i"])
            .env("PS1", "")
            // Reports on jobs must be in English.
            .env("LC_ALL", "C")
            .env("TERM", "xterm")
            .env_remove("PROMPT_COMMAND")
            .stdin(end())
            .stdout(end())
            .stderr(end());
        // SAFETY: system calls only; the dispositions are those of a login.
        unsafe {
            command.pre_exec(|| {
                for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTSTP] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let shell = command
            .spawn()
            .expect("these tests need bash as an interactive shell");
        drop(pty.slave);
        let keys = File::from(pty.master);
        let mut output = keys.try_clone().expect("a descriptor");
        let (to, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                if to.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Session {
            shell,
            keys,
            screen,
            shown: String::new(),
            seen: 0,
        }
    }

    fn presses(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("typed");
    }

    /// Presses Ctrl-C. The empty line after it is for a shell that was about to read: it looks at
    /// its traps only when it has read.
    fn interrupts(&mut self) {
        self.presses("\x03");
        self.presses("\n");
        self.sees("interrupted");
    }

    /// Waits for this text, after the last.
    fn sees(&mut self, text: &str) {
        loop {
            if let Some(at) = self.shown[self.seen..].find(text) {
                self.seen += at + text.len();
                return;
            }
            let Ok(bytes) = self.screen.recv_timeout(WAIT_LIMIT) else {
                panic!("waited in vain for {text:?}; the screen:\n{}", self.shown);
            };
            self.shown.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Its jobs get a SIGHUP with the terminal's end, and drain.
        let _gone = self.shell.kill();
        let _reaped = self.shell.wait();
    }
}

fn a_job_under_control(contain: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let script = directory.path().join("command");
    std::fs::write(&script, COMMAND).expect("a script");
    let lock = directory.path().join("lock");
    let mut session = Session::begin();
    session.presses(&format!(
        "{} run -q --contain {contain} --file {} -- bash {}\n",
        env!("CARGO_BIN_EXE_trafficcop"),
        lock.display(),
        script.display(),
    ));
    session.sees("ready");
    session.presses("one\n");
    session.sees("got:one");
    session.interrupts();
    // Ctrl-Z: command and supervisor stop, and the shell has the terminal.
    session.presses("\x1a");
    session.sees("Stopped");
    session.presses("echo shell-$((40+2))\n");
    session.sees("shell-42");
    session.presses("fg\n");
    session.presses("two\n");
    session.sees("got:two");
    session.interrupts();
    session.presses("quit\n");
    session.sees("got:quit");
    // An end within the grace after a Ctrl-C is the end of the job by it.
    session.presses("echo status-$?\n");
    session.sees("status-130");
    assert_eq!(
        session.shown.matches("interrupted").count(),
        2,
        "each Ctrl-C once:\n{}",
        session.shown
    );
}

#[test]
fn a_command_on_a_terminal_is_a_job_like_any_other() {
    a_job_under_control("none");
}

#[test]
fn a_command_in_a_namespace_of_its_own_is_a_job_too() {
    let probe = Command::new(env!("CARGO_BIN_EXE_trafficcop"))
        .args(["run", "-q", "--contain", "pidns", "--file"])
        .arg(tempfile::NamedTempFile::new().expect("a file").path())
        .args(["--", "true"])
        .status()
        .expect("the binary runs");
    if probe.success() {
        a_job_under_control("pidns");
    } else {
        println!("CANNOT RUN HERE: no PID namespace is to be had ({probe})");
    }
}

/// Starts another holder of this lock, which ends when its stdin is closed.
fn holder(lock: &std::path::Path) -> Child {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_trafficcop"))
        .args(["run", "-q", "--identity", "web-one", "--file"])
        .arg(lock)
        .args(["--", "sh", "-c", "echo begun; read -r line || true"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut begun = [0; 6];
    let stdout = holder.stdout.as_mut().expect("piped");
    stdout.read_exact(&mut begun).expect("it has control");
    holder
}

fn stand_by(session: &mut Session, lock: &std::path::Path, options: &str) {
    session.presses(&format!(
        "{} run {options} --file {} -- echo in-$((40+2))\n",
        env!("CARGO_BIN_EXE_trafficcop"),
        lock.display(),
    ));
}

#[test]
fn ctrl_z_stops_a_standby_and_bg_and_fg_continue_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let lock = directory.path().join("lock");
    let mut holder = holder(&lock);
    let mut session = Session::begin();
    stand_by(&mut session, &lock, "");
    session.sees("standing by");
    session.presses("\x1a");
    session.sees("Stopped");
    session.presses("echo shell-$((40+2))\n");
    session.sees("shell-42");
    session.presses("bg\n");
    session.presses("jobs\n");
    session.sees("Running");
    session.presses("fg\n");
    drop(holder.stdin.take());
    assert!(holder.wait().expect("it ends").success());
    session.sees("]: in control");
    session.sees("in-42");
    session.presses("echo status-$?\n");
    session.sees("status-0");
}

fn awaits(file: &std::path::Path) {
    let begun = std::time::Instant::now();
    while !file.exists() {
        assert!(begun.elapsed() < WAIT_LIMIT, "no {}", file.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The number of a process that writes it into this file.
fn pid_in(file: &std::path::Path) -> i32 {
    awaits(file);
    let text = std::fs::read_to_string(file).expect("a number");
    text.trim().parse().expect("a number")
}

fn awaits_end_of(pid: i32) {
    let begun = std::time::Instant::now();
    while nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None).is_ok() {
        assert!(begun.elapsed() < WAIT_LIMIT, "process {pid} is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Session {
    /// Closes the terminal's window, or cuts its line.
    fn vanishes(mut self) {
        let nothing = File::options().write(true).open("/dev/null");
        self.keys = nothing.expect("there is one");
        // The reader of the screen has a descriptor, too.
        let _gone = self.shell.kill();
        let _reaped = self.shell.wait();
    }
}

/// Starts an instance, with its pid and its command's in files.
fn start_noted(session: &mut Session, directory: &std::path::Path, before: &str) {
    let place = directory.display();
    session.presses(&format!(
        "{before} sh -c 'echo $$ > {place}/pid.new; mv {place}/pid.new {place}/pid; exec {} run --file {place}/lock -- \
         sh -c \"echo \\$\\$ > {place}/command.new; mv {place}/command.new {place}/command; exec sleep 600\"'\n",
        env!("CARGO_BIN_EXE_trafficcop"),
    ));
}

#[test]
fn a_holder_whose_terminal_vanishes_drains_and_gives_the_lock_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut session = Session::begin();
    start_noted(&mut session, directory.path(), "");
    let supervisor = pid_in(&directory.path().join("pid"));
    let command = pid_in(&directory.path().join("command"));
    session.vanishes();
    awaits_end_of(command);
    awaits_end_of(supervisor);
    let mut next = holder(&directory.path().join("lock"));
    drop(next.stdin.take());
    assert!(next.wait().expect("it ends").success());
}

#[test]
fn a_standby_whose_terminal_vanishes_ends_unless_hang_ups_are_ignored() {
    let directory = tempfile::tempdir().expect("a directory");
    let lock = directory.path().join("lock");
    let mut first = holder(&lock);
    let mut session = Session::begin();
    start_noted(&mut session, directory.path(), "");
    session.sees("standing by");
    let standby = pid_in(&directory.path().join("pid"));
    session.vanishes();
    awaits_end_of(standby);
    std::fs::remove_file(directory.path().join("pid")).expect("it was there");

    // `nohup`, with the log on the terminal.
    let mut session = Session::begin();
    start_noted(&mut session, directory.path(), "trap '' HUP;");
    session.sees("standing by");
    let standby = pid_in(&directory.path().join("pid"));
    session.vanishes();
    drop(first.stdin.take());
    assert!(first.wait().expect("it ends").success());
    // It takes over without a place to write to.
    let command = pid_in(&directory.path().join("command"));
    let used = processor_time(standby);
    assert!(used < Duration::from_secs(5), "it spins: {used:?}");
    let end = nix::sys::signal::Signal::SIGTERM;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(standby), end).expect("it is ours");
    awaits_end_of(command);
    awaits_end_of(standby);
}

#[test]
fn log_of_a_standby_has_no_control_sequences_on_a_terminal() {
    let directory = tempfile::tempdir().expect("a directory");
    let lock = directory.path().join("lock");
    for (options, said) in [
        ("-w 3", "standing by: web-one is in control"),
        ("-w 3 --log json", "\"event\":\"standby\""),
        ("-w 3 -q", "control not obtained"),
    ] {
        let mut holder = holder(&lock);
        let mut session = Session::begin();
        stand_by(&mut session, &lock, options);
        session.sees(said);
        session.presses("echo status-$?\n");
        session.sees("status-75");
        assert!(!session.shown.contains('\x1b'), "{:?}", session.shown);
        drop(holder.stdin.take());
        holder.wait().expect("it ends");
    }
}
