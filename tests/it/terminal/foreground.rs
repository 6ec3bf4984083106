//! The foreground group after a command's end.

use std::path::Path;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, tcgetpgrp};

use super::{Duration, Session, WAIT_LIMIT, awaits_end_of, pid_in, start_noted};

impl Session {
    fn has_in_front(&self, group: i32) {
        let begun = Instant::now();
        while tcgetpgrp(&self.keys) != Ok(Pid::from_raw(group)) {
            assert!(begun.elapsed() < WAIT_LIMIT, "{group} is not in front");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).expect("it is ours");
}

#[test]
fn a_command_that_ends_takes_no_terminal_from_the_shell_that_took_it_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut session = Session::begin();
    start_noted(&mut session, directory.path(), "");
    let supervisor = pid_in(&directory.path().join("pid"));
    let command = pid_in(&directory.path().join("command"));
    session.has_in_front(command);
    // By a signal instead of the terminal, without its command.
    send(supervisor, Signal::SIGSTOP);
    session.sees("Stopped");
    session.presses("echo shell-$((40+2))\n");
    session.sees("shell-42");
    send(command, Signal::SIGTERM);
    awaits_end_of(command);
    // A call that began before reads the first.
    for number in 3..6 {
        session.presses(&format!("echo shell-$((40+{number}))\n"));
        session.sees(&format!("shell-4{number}"));
    }
    session.presses("fg\n");
    awaits_end_of(supervisor);
    session.presses("echo status-$?\n");
    session.sees("status-143");
}

/// Returns shell code that writes the shell's pid into a file, atomically.
fn noted(file: &Path) -> String {
    let file = file.display();
    format!("echo $$ > {file}.new; mv {file}.new {file}")
}

#[test]
fn a_terminal_that_a_job_of_the_command_has_comes_back_when_the_command_has_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let job = format!("{}; exec sleep 600", noted(&at("job")));
    std::fs::write(at("job.sh"), job).expect("a script");
    let command = format!(
        "set -m; {}; sh {}; true",
        noted(&at("command")),
        at("job.sh").display()
    );
    std::fs::write(at("command.sh"), command).expect("a script");
    let script = format!(
        "{} run -q --file {} -- bash {}\nread -r line\necho got:$line\n",
        env!("CARGO_BIN_EXE_trafficcop"),
        at("lock").display(),
        at("command.sh").display(),
    );
    std::fs::write(at("script.sh"), script).expect("a script");
    let mut session = Session::begin();
    // A background reader is stopped: no shell in between gets the terminal back.
    session.presses(&format!("sh {}\n", at("script.sh").display()));
    let command = pid_in(&at("command"));
    session.has_in_front(pid_in(&at("job")));
    send(command, Signal::SIGKILL);
    awaits_end_of(command);
    session.presses("one\n");
    session.sees("got:one");
}

#[test]
fn background_job_of_a_script_leaves_it_the_terminal() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let command = format!("{}; exec sleep 600", noted(&at("command")));
    std::fs::write(at("command.sh"), command).expect("a script");
    let script = format!(
        "{} run -q --file {} -- sh {} &\n\
         while [ ! -e {} ]; do sleep 0.05; done\n\
         read -r line\necho got:$line\nkill $!\nwait $!\necho status-$?\n",
        env!("CARGO_BIN_EXE_trafficcop"),
        at("lock").display(),
        at("command.sh").display(),
        at("command").display(),
    );
    std::fs::write(at("script.sh"), script).expect("a script");
    let mut session = Session::begin();
    session.presses(&format!("sh {}\n", at("script.sh").display()));
    let _ = pid_in(&at("command"));
    // A background reader is stopped.
    session.presses("one\n");
    session.sees("got:one");
    session.sees("status-143");
}

#[test]
fn ctrl_c_counts_as_a_stop_and_not_as_a_failure() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let command = format!("{}; exec sleep 600", noted(&at("command")));
    std::fs::write(at("command.sh"), command).expect("a script");
    let once = format!(
        "{} run -q --once --once-on-failure stop --file {} --",
        env!("CARGO_BIN_EXE_trafficcop"),
        at("lock").display(),
    );
    let mut session = Session::begin();
    session.presses(&format!("{once} sh {}\n", at("command.sh").display()));
    session.has_in_front(pid_in(&at("command")));
    session.presses("\x03");
    session.presses("echo status-$?\n");
    session.sees("status-130");
    session.presses(&format!("{once} echo ran-$((40+2))\n"));
    session.sees("ran-42");
}
