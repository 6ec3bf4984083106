//! PID namespaces die with their guardian and at their deadline.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use trafficcop::Instant;
use trafficcop_guardian::containment::{Forked, Pidns};

use crate::contain::cgroup::family;
use crate::contain::role::{Role, dies, is_root, pidfd, say, told, within};

/// Returns root and an unprivileged user.
fn users() -> Vec<u32> {
    if is_root() { vec![0, 65534] } else { vec![0] }
}

/// Starts a role for each user, and prints where the machine refuses.
pub(crate) fn in_namespaces(name: &str, test: impl Fn(Role)) {
    for user in users() {
        let mut role = Role::start(name, user, &[]);
        match role.hear().as_str() {
            "ready" => test(role),
            why => println!("NOT TESTED as user {user}: {why}"),
        }
    }
}

pub(crate) fn pidns_or_say_so() -> bool {
    match Pidns::available() {
        Ok(_) => {
            say("ready");
            true
        }
        Err(why) => {
            say(why);
            false
        }
    }
}

/// Lists the processes in the namespace of this init as seen from outside, init first.
fn members(init: i32) -> Vec<i32> {
    let space = fs::read_link(format!("/proc/{init}/ns/pid")).expect("init lives");
    let mut found = vec![init];
    for entry in fs::read_dir("/proc").expect("mounted") {
        let name = entry.expect("readable").file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if pid != init && fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|its| its == space)
        {
            found.push(pid);
        }
    }
    found
}

#[test]
#[ignore = "a role"]
fn role_pidns() {
    if !pidns_or_say_so() {
        return;
    }
    let space = Pidns::open(Instant::FOREVER).expect("a namespace");
    // SAFETY: one thread.
    let (main, _) = family(|| unsafe { space.fork() });
    say(space.init());
    say(main);
    loop {
        match told().as_str() {
            "extend" => space.extend(Instant::now() + Duration::from_secs(3600)),
            "near" => {
                space.extend(Instant::now() + Duration::from_millis(300));
                // It notices at its next look; a signal that all ignore triggers one.
                space.signal_all(libc::SIGUSR1).expect("told");
            }
            "empty?" => say(space.is_empty()),
            "kill" => space.kill(),
            "ask" => space.signal_all(libc::SIGKILL).expect("told"),
            "kill main" => kill(Pid::from_raw(main), Signal::SIGKILL).expect("killed"),
            "reap" => say(format!("{:?}", waitpid(Pid::from_raw(-1), None))),
            _ => return,
        }
    }
}

/// Returns the pids of a `role_pidns`: pidfds of init, main and the daemon.
pub(crate) fn meet(role: &mut Role) -> (i32, Vec<OwnedFd>) {
    let init = role.hear_number();
    let main = role.hear_number();
    let members = members(init);
    assert_eq!(members.len(), 3, "init, main and daemon: {members:?}");
    assert!(members.contains(&main));
    (init, members.into_iter().map(pidfd).collect())
}

#[test]
fn a_namespace_dies_with_its_guardian() {
    in_namespaces("namespace::role_pidns", |mut role| {
        let (_, all) = meet(&mut role);
        role.kill();
        assert!(all.iter().all(dies));
    });
}

#[test]
fn a_namespace_dies_at_its_deadline_although_the_guardian_is_stopped() {
    in_namespaces("namespace::role_pidns", |mut role| {
        let (_, all) = meet(&mut role);
        role.tell("near");
        role.tell("empty?");
        assert_eq!(role.hear(), "false");
        kill(role.pid(), Signal::SIGSTOP).expect("stopped");
        // Init waits until the stopped parent reaps the main process, but nothing else runs any
        // more.
        assert!(all[1..].iter().all(dies));
        role.kill();
        assert!(dies(&all[0]));
    });
}

/// The kernel does it, too, but later in init's own end.
#[test]
fn an_init_that_is_asked_to_kills_the_others_and_ends_by_itself() {
    in_namespaces("namespace::role_pidns", |mut role| {
        let (init, all) = meet(&mut role);
        role.tell("ask");
        assert!(all[1..].iter().all(dies));
        role.tell("reap");
        assert!(role.hear().starts_with("Ok(Signaled("));
        role.tell("reap");
        assert_eq!(role.hear(), format!("Ok(Exited(Pid({init}), 0))"));
    });
}

#[test]
fn killing_init_kills_the_family_and_both_are_the_guardians_to_reap() {
    in_namespaces("namespace::role_pidns", |mut role| {
        let (init, all) = meet(&mut role);
        role.tell("kill");
        assert!(all[1..].iter().all(dies));
        role.tell("reap");
        assert!(role.hear().starts_with("Ok(Signaled("));
        assert!(dies(&all[0]));
        role.tell("reap");
        assert_eq!(
            role.hear(),
            format!("Ok(Signaled(Pid({init}), SIGKILL, false))")
        );
        role.tell("reap");
        assert_eq!(role.hear(), "Err(ECHILD)");
        role.end_well();
    });
}

#[test]
fn a_namespace_is_empty_when_only_init_is_left() {
    in_namespaces("namespace::role_pidns", |mut role| {
        let (init, all) = meet(&mut role);
        role.tell("kill main");
        role.tell("reap");
        assert!(role.hear().ends_with("SIGKILL, false))"));
        role.tell("empty?");
        assert_eq!(role.hear(), "false", "the daemon lives");
        let daemon = members(init);
        assert_eq!(daemon.len(), 2, "{daemon:?}");
        kill(Pid::from_raw(daemon[1]), Signal::SIGKILL).expect("killed");
        assert!(all[1..].iter().all(dies));
        role.tell("empty?");
        let mut answer = role.hear();
        while answer != "true" {
            role.tell("empty?");
            answer = role.hear();
        }
        assert!(!within(&all[0], 0), "init waits for the guardian");
        role.end_well();
        assert!(dies(&all[0]));
    });
}

#[test]
fn the_main_process_finds_itself_at_home() {
    in_namespaces("namespace::role_at_home", |mut role| {
        assert_eq!(role.hear(), "own proc true");
        assert_eq!(role.hear(), "cwd true");
        assert_eq!(role.hear(), "user true");
        assert_eq!(role.hear(), "stopped and continued");
        role.end_well();
    });
}

#[test]
#[ignore = "a role"]
fn role_at_home() {
    if !pidns_or_say_so() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    std::env::set_current_dir(&place).expect("ours");
    let here = std::env::current_dir().expect("known");
    let user = nix::unistd::getuid();
    let space = Pidns::open(Instant::FOREVER).expect("a namespace");
    // SAFETY: one thread.
    match unsafe { space.fork() }.expect("a process in it") {
        Forked::Child => {
            let own = fs::read_link("/proc/self")
                .is_ok_and(|link| link.to_str() == Some(&std::process::id().to_string()));
            say(format!("own proc {own}"));
            say(format!(
                "cwd {}",
                std::env::current_dir().is_ok_and(|it| it == here)
            ));
            say(format!("user {}", nix::unistd::getuid() == user));
            // SAFETY: a signal to this process, and its end.
            unsafe {
                libc::raise(libc::SIGSTOP);
                libc::_exit(7)
            }
        }
        Forked::Parent(main) => {
            let main = Pid::from_raw(main);
            let stopped = waitpid(main, Some(nix::sys::wait::WaitPidFlag::WUNTRACED));
            assert_eq!(stopped, Ok(WaitStatus::Stopped(main, Signal::SIGSTOP)));
            kill(main, Signal::SIGCONT).expect("continued");
            assert_eq!(waitpid(main, None), Ok(WaitStatus::Exited(main, 7)));
            say("stopped and continued");
        }
    }
}
