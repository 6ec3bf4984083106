//! Cgroups: a family dies together, leftovers of dead instances are swept away, and an unprivileged
//! user can have one.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use trafficcop_guardian::containment::{Cgroup, Forked};
use trafficcop_guardian::{self, Contain, Program, Setup};

use crate::contain::WAIT_LIMIT;
use crate::contain::role::{Role, arguments, dies, is_root, pidfd, say, told, within};
use crate::support::scene::Scene;

/// Forks a family that ignores everything: a child, and a double-forked daemon in a session of its
/// own, without descriptors. Returns their pids once both live (the daemon's as it knows it
/// itself).
pub(crate) fn family(fork: impl FnOnce() -> std::io::Result<Forked>) -> (i32, i32) {
    let (from, to) = nix::unistd::pipe().expect("a pipe");
    match fork().expect("a child") {
        Forked::Child => {
            ignore_everything();
            // SAFETY: one thread; the children only wait.
            unsafe {
                // As an exec would: no descriptor of the guardian's stays.
                libc::dup2(to.as_raw_fd(), 0);
                libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0);
                let between = libc::fork();
                if between == 0 {
                    libc::setsid();
                    if libc::fork() == 0 {
                        send_own_pid();
                        libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
                        forever();
                    }
                    libc::_exit(0);
                }
                libc::waitpid(between, std::ptr::null_mut(), 0);
                // By now the daemon is an orphan.
                send_own_pid();
                forever()
            }
        }
        Forked::Parent(main) => {
            drop(to);
            let mut file = File::from(from);
            let (mut numbers, mut daemon) = (Vec::new(), 0);
            while numbers.len() < 2 {
                let mut number = [0; 4];
                file.read_exact(&mut number).expect("both live");
                numbers.push(i32::from_ne_bytes(number));
            }
            // Other numbers in a pid namespace of its own.
            numbers.retain(|pid| *pid != main);
            if let [pid] = numbers[..] {
                daemon = pid;
            }
            (main, daemon)
        }
    }
}

fn ignore_everything() {
    for signal in [
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGALRM,
    ] {
        // SAFETY: ignoring runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

pub(crate) fn forever() -> ! {
    loop {
        // SAFETY: always allowed.
        unsafe { libc::pause() };
    }
}

fn send_own_pid() {
    // SAFETY: takes no argument.
    let pid = unsafe { libc::getpid() };
    // SAFETY: takes a valid buffer.
    unsafe { libc::write(0, (&raw const pid).cast(), 4) };
}

/// Returns a guardian's containment without `--contain`.
fn kind_by_default() -> Option<Contain> {
    let guardian = trafficcop_guardian::fork(Setup {
        programs: vec![Program::command(vec!["true".into()])],
        contain: Contain::Auto,
        grace: Duration::ZERO,
        left_behind: None,
        orphan_grace: None,
        on_orphaned: |_| (),
        withheld: Vec::new(),
        partner: None,
        tells_others: false,
    });
    guardian.ok().map(|guardian| guardian.containment())
}

fn cgroup_or_say_so() -> Option<Cgroup> {
    match Cgroup::prepare() {
        Ok(cgroup) => Some(cgroup),
        Err(why) => {
            println!("NOT TESTED on this machine: {why}");
            None
        }
    }
}

#[test]
fn a_cgroup_dies_as_one_with_its_daemons_and_sub_cgroups() {
    let mut role = Role::start("cgroup::role_cgroup", 0, &[]);
    if role.hear() == "none" {
        println!("NOT TESTED on this machine");
        return;
    }
    let main = pidfd(role.hear_number());
    let daemon = pidfd(role.hear_number());
    role.tell("kill");
    assert!(dies(&main) && dies(&daemon));
    role.end_well();
}

#[test]
#[ignore = "a role"]
fn role_cgroup() {
    use std::os::unix::fs::PermissionsExt;
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let Some(cgroup) = cgroup_or_say_so() else {
        return say("none");
    };
    say("one");
    let mode = fs::metadata(cgroup.path()).map(|it| it.permissions().mode() & 0o777);
    assert_eq!(mode.ok(), Some(0o755), "who sweeps can look at it");
    assert!(cgroup.is_empty());
    // SAFETY: one thread.
    let (main, daemon) = family(|| unsafe { cgroup.fork() });
    assert!(!cgroup.is_empty());
    let inner = cgroup.path().join("made/by-the-command");
    fs::create_dir_all(&inner).expect("a sub-cgroup");
    fs::write(inner.join("cgroup.procs"), daemon.to_string()).expect("moved");
    assert!(
        cgroup.remove().is_err() && inner.exists(),
        "nothing may be removed while something lives in it"
    );
    say(main);
    say(daemon);
    assert_eq!(told(), "kill");
    kill_all_of(&cgroup);
    // It is not mistaken for one that was being forked at the last kill.
    assert!(!cgroup.bears());
    // SAFETY: one thread.
    let (main, daemon) = family(|| unsafe { cgroup.fork() });
    for pid in [main, daemon] {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it lives");
        let name = cgroup.path().file_name().expect("a name").to_string_lossy();
        assert!(text.contains(&*name), "{pid} is outside: {text}");
    }
    kill_all_of(&cgroup);
    cgroup.remove().expect("removed");
    assert!(!cgroup.path().exists());
    cgroup.remove().expect("removed before");
}

fn kill_all_of(cgroup: &Cgroup) {
    cgroup.kill().expect("killed");
    while !cgroup.is_empty() {
        let mut entries = [PollFd::new(cgroup.events(), PollFlags::POLLPRI)];
        assert_eq!(poll(&mut entries, PollTimeout::from(WAIT_LIMIT)), Ok(1));
    }
}

/// Plays this test in a process with a cgroup that no other start sweeps. Returns whether it did;
/// in that process it returns false, and the caller plays the test.
fn was_played_apart(name: &str) -> bool {
    use std::io::Write;
    use std::os::unix::process::CommandExt;
    const APART: &str = "CGROUP_OF_ITS_OWN";
    if std::env::var_os(APART).is_some() {
        return false;
    }
    let Some(ours) = cgroup_or_say_so() else {
        return true;
    };
    let place = ours.path().join("apart");
    fs::create_dir(&place).expect("a sub-cgroup");
    let procs = File::options().write(true).open(place.join("cgroup.procs"));
    let mut procs = procs.expect("ours");
    let mut command = std::process::Command::new(std::env::current_exe().expect("known"));
    command.arg(format!("contain::cgroup::{name}"));
    command.args(["--exact", "--nocapture"]).env(APART, "1");
    // SAFETY: one system call.
    unsafe { command.pre_exec(move || procs.write_all(b"0")) };
    let output = command.output().expect("to run it");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success() && said.contains("1 passed"));
    ours.remove().expect("removed, with what was in it");
    true
}

#[test]
fn cgroups_of_dead_instances_are_swept_and_of_living_ones_spared() {
    if was_played_apart("cgroups_of_dead_instances_are_swept_and_of_living_ones_spared") {
        return;
    }
    let mut left = Role::start("cgroup::role_cgroup_left", 0, &[]);
    if left.hear() == "none" {
        println!("NOT TESTED on this machine");
        return;
    }
    let place = PathBuf::from(left.hear());
    let main = pidfd(left.hear_number());
    let daemon = pidfd(left.hear_number());

    let other = cgroup_or_say_so().expect("there was one before");
    assert!(place.exists() && !within(&main, 0), "its owner lives");
    other.remove().expect("removed");

    left.kill();
    assert!(!within(&daemon, 0), "no process is left to kill it");
    let other = cgroup_or_say_so().expect("there was one before");
    assert!(dies(&main) && dies(&daemon));
    assert!(!place.exists(), "{} is still there", place.display());
    other.remove().expect("removed");
}

/// Every supervisor can be process 1 of a container, so that pid always exists.
#[test]
fn a_leftover_is_known_by_its_lock_and_not_by_the_pid_in_its_name() {
    if was_played_apart("a_leftover_is_known_by_its_lock_and_not_by_the_pid_in_its_name") {
        return;
    }
    let Some(ours) = cgroup_or_say_so() else {
        return;
    };
    let home = ours.path().parent().expect("the cgroup we are in");
    let left = home.join("trafficcop-12345.1.0");
    fs::create_dir(&left).expect("made");
    let other = cgroup_or_say_so().expect("there was one before");
    assert!(!left.exists(), "no guardian has it");
    assert!(ours.path().exists() && other.path() != ours.path());
    for made in [ours, other] {
        made.remove().expect("removed");
    }
}

#[test]
#[ignore = "a role"]
fn role_cgroup_left() {
    let Some(cgroup) = cgroup_or_say_so() else {
        return say("none");
    };
    say("one");
    // SAFETY: one thread.
    let (main, daemon) = family(|| unsafe { cgroup.fork() });
    say(cgroup.path().display());
    say(main);
    say(daemon);
    told();
}

#[test]
fn a_command_that_is_started_again_finds_no_sub_cgroup_of_the_one_before() {
    let Some(ours) = cgroup_or_say_so() else {
        return;
    };
    let home = ours.path().parent().expect("the cgroup we are in");
    let scene = Scene::new();
    let script = "cd $1/$(sed -n 's|^0::.*/||p' /proc/self/cgroup) && mkdir made && \
        mkdir made/deeper || { echo failed; exit 0; }; cd \"$2\" || exit 2; \
        if test -e again; then echo well; else touch again; exit 1; fi";
    let options = ["--contain", "cgroup", "--restart", "on-failure"];
    let finished = scene
        .run_on_file()
        .args(options)
        .command(
            ["sh", "-c", script, "sh"]
                .map(Path::new)
                .into_iter()
                .chain([home, scene.directory()]),
        )
        .finish();
    assert_eq!(finished.stdout, "well\n", "{}", finished.stderr);
    ours.remove().expect("removed");
}

#[test]
fn a_delegated_cgroup_serves_a_user_without_privilege() {
    let Some(ours) = is_root().then(cgroup_or_say_so).flatten() else {
        println!("NOT TESTED: needs root, to delegate a cgroup");
        return;
    };
    let place = ours.path().join("delegated");
    fs::create_dir(&place).expect("a sub-cgroup");
    for file in [
        ".",
        "cgroup.procs",
        "cgroup.threads",
        "cgroup.subtree_control",
    ] {
        std::os::unix::fs::chown(place.join(file), Some(65534), Some(65534)).expect("delegated");
    }
    let mut role = Role::start("cgroup::role_delegated", 0, &[&place.display().to_string()]);
    assert_eq!(role.hear(), "refused outside");
    let path = role.hear();
    assert!(Path::new(&path).starts_with(&place), "{path}");
    let main = pidfd(role.hear_number());
    let daemon = pidfd(role.hear_number());
    role.tell("kill");
    assert!(dies(&main) && dies(&daemon));
    role.end_well();
    ours.remove().expect("removed, with what was delegated");
}

#[test]
#[ignore = "a role"]
fn role_delegated() {
    use nix::unistd::{Gid, Uid, setresgid, setresuid};
    let place = PathBuf::from(&arguments()[0]);
    let become_user = || {
        let (user, group) = (Uid::from_raw(65534), Gid::from_raw(65534));
        setresgid(group, group, group).expect("root may");
        setresuid(user, user, user).expect("root may");
    };
    // SAFETY: the child only tries.
    match unsafe { libc::fork() } {
        0 => {
            become_user();
            let refused = Cgroup::prepare().is_err_and(|why| why.contains("Delegate=yes"))
                && kind_by_default() == Some(Contain::None);
            // SAFETY: always allowed.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        pid => {
            let status = waitpid(Pid::from_raw(pid), None);
            assert_eq!(status, Ok(WaitStatus::Exited(Pid::from_raw(pid), 0)));
            say("refused outside");
        }
    }
    // Next to those that will be made, as systemd does it.
    fs::create_dir(place.join("us")).expect("a leaf");
    fs::write(place.join("cgroup.procs"), "0").expect("moved");
    become_user();
    let cgroup = Cgroup::prepare().expect("delegated");
    say(cgroup.path().display());
    // SAFETY: one thread.
    let (main, daemon) = family(|| unsafe { cgroup.fork() });
    say(main);
    say(daemon);
    assert_eq!(told(), "kill");
    cgroup.kill().expect("killed");
    for pid in [main, daemon] {
        let _ = waitpid(Pid::from_raw(pid), None);
    }
    while !cgroup.is_empty() {
        let mut entries = [PollFd::new(cgroup.events(), PollFlags::POLLPRI)];
        assert_eq!(poll(&mut entries, PollTimeout::from(WAIT_LIMIT)), Ok(1));
    }
    cgroup.remove().expect("removed");
}
