//! Containment and terminal, on the real kernel: cgroups, PID namespaces, the keeper of a lock, job
//! control on a pseudo-terminal.
//!
//! A test that forks by itself runs as a program of its own (`#[ignore]`d tests named `role_…`, which
//! the others start), so that the forking process has one thread, may change its user, and may be
//! killed. What a machine refuses is printed, never passed over.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use trafficcop::clock::Instant;
use trafficcop::supervise::contain::{Cgroup, Forked, Pidns, keeper};

/// Longer than anything here takes on the worst of machines.
const PATIENCE: u16 = 60_000;

// ---- programs of their own ----------------------------------------------------------------------

/// A role of this test binary, as a process that we talk with over its stdin and stdout.
struct Role {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Role {
    fn start(name: &str, user: u32, arguments: &[&str]) -> Role {
        let binary = Binary::for_everybody();
        let mut command = Command::new(&binary.path);
        command
            .args([name, "--exact", "--ignored", "--nocapture", "--quiet"])
            .env("RUST_TEST_THREADS", "1")
            .env("ROLE_ARGUMENTS", arguments.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if user != 0 {
            command.uid(user).gid(user);
        }
        let mut child = loop {
            match command.spawn() {
                // A fork of another test still has our copy open for writing.
                Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => continue,
                child => break child.expect("a role starts"),
            }
        };
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Role {
            child,
            stdin,
            stdout,
        }
    }

    /// The next line the role says with `say`; panics at its end.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let length = self.stdout.read_line(&mut line).expect("readable");
            assert!(length > 0, "the role ended without a word");
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].trim_end().to_owned();
            }
        }
    }

    fn hear_number(&mut self) -> i32 {
        let line = self.hear();
        line.parse()
            .unwrap_or_else(|_| panic!("not a number: {line}"))
    }

    fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("still open");
        writeln!(stdin, "{line}").expect("the role listens");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn kill(&mut self) {
        self.child.kill().expect("killable");
        self.child.wait().expect("reapable");
    }

    fn end_well(&mut self) {
        drop(self.stdin.take());
        let status = self.child.wait().expect("reapable");
        assert!(status.success(), "the role failed: {status}");
    }
}

impl Drop for Role {
    /// For a test that fails.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MARK: &str = "role says: ";

fn say(what: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{what}").expect("somebody listens");
    out.flush().expect("somebody listens");
}

fn told() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("readable");
    line.trim_end().to_owned()
}

fn arguments() -> Vec<String> {
    let text = std::env::var("ROLE_ARGUMENTS").unwrap_or_default();
    text.split('\n').map(str::to_owned).collect()
}

/// This test binary at a place where any user may run it.
struct Binary {
    path: PathBuf,
    _place: tempfile::TempDir,
}

impl Binary {
    fn for_everybody() -> &'static Binary {
        use std::os::unix::fs::PermissionsExt;
        static PLACE: std::sync::OnceLock<Binary> = std::sync::OnceLock::new();
        PLACE.get_or_init(|| {
            let place = tempfile::Builder::new()
                .permissions(fs::Permissions::from_mode(0o755))
                .tempdir()
                .expect("a directory");
            let path = place.path().join("contain");
            fs::copy(std::env::current_exe().expect("known"), &path).expect("copied");
            Binary {
                path,
                _place: place,
            }
        })
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A pidfd: readable when the process is dead.
fn pidfd(pid: i32) -> OwnedFd {
    // SAFETY: an integer in, a new descriptor out.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        assert!(fd >= 0, "process {pid} is not there");
        OwnedFd::from_raw_fd(i32::try_from(fd).expect("a descriptor"))
    }
}

fn dies(process: &OwnedFd) -> bool {
    within(process, PATIENCE)
}

fn within(process: &OwnedFd, milliseconds: u16) -> bool {
    let mut entries = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut entries, PollTimeout::from(milliseconds)) == Ok(1)
}

// ---- cgroup -------------------------------------------------------------------------------------

/// Forks into the cgroup a family that ignores everything: a child, and a daemon of a daemon in a
/// session of its own, which has closed its descriptors. Returns the two pids once both live (the
/// daemon's as it knows it itself).
fn family(fork: impl FnOnce() -> std::io::Result<Forked>) -> (i32, i32) {
    let (from, to) = nix::unistd::pipe().expect("a pipe");
    match fork().expect("a child") {
        Forked::Child => {
            ignore_everything();
            // SAFETY: one thread; the children only wait.
            unsafe {
                // As an exec would: nothing of the guardian's stays open.
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
            // In a namespace of their own they do not know the numbers that we see.
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

fn forever() -> ! {
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

fn cgroup_or_say_so() -> Option<Cgroup> {
    match Cgroup::prepare(true) {
        Ok(cgroup) => cgroup,
        Err(why) => {
            println!("NOT TESTED on this machine: {why}");
            None
        }
    }
}

#[test]
fn a_cgroup_dies_as_one_with_its_daemons_and_sub_cgroups() {
    let mut role = Role::start("role_cgroup", 0, &[]);
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
    let Some(cgroup) = cgroup_or_say_so() else {
        return say("none");
    };
    say("one");
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
    // Its next command is not taken for one that was being born when the last one was killed.
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
        assert_eq!(poll(&mut entries, PollTimeout::from(PATIENCE)), Ok(1));
    }
}

#[test]
fn what_dead_instances_left_is_swept_away_and_the_living_are_spared() {
    let mut left = Role::start("role_cgroup_left", 0, &[]);
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
    assert!(!within(&daemon, 0), "nobody is left to kill it");
    let other = cgroup_or_say_so().expect("there was one before");
    assert!(dies(&main) && dies(&daemon));
    // A test beside this one may have begun to sweep just before, and be at it.
    let begun = Instant::now();
    while place.exists() {
        let waited = Instant::now().since(begun);
        assert!(
            waited < Duration::from_millis(PATIENCE.into()),
            "{} is still there",
            place.display()
        );
        std::thread::yield_now();
    }
    other.remove().expect("removed");
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
    let mut role = Role::start("role_delegated", 0, &[&place.display().to_string()]);
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
            let refused = Cgroup::prepare(true).is_err_and(|why| why.contains("Delegate=yes"))
                && matches!(Cgroup::prepare(false), Ok(None));
            // SAFETY: always allowed.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        pid => {
            let status = waitpid(Pid::from_raw(pid), None);
            assert_eq!(status, Ok(WaitStatus::Exited(Pid::from_raw(pid), 0)));
            say("refused outside");
        }
    }
    // Into a leaf beside those that will be made, as systemd does it.
    fs::create_dir(place.join("us")).expect("a leaf");
    fs::write(place.join("cgroup.procs"), "0").expect("moved");
    become_user();
    let cgroup = Cgroup::prepare(true).expect("delegated").expect("by name");
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
        assert_eq!(poll(&mut entries, PollTimeout::from(PATIENCE)), Ok(1));
    }
    cgroup.remove().expect("removed");
}

// ---- PID namespace ------------------------------------------------------------------------------

/// As root, and as nobody in particular.
fn users() -> Vec<u32> {
    if is_root() { vec![0, 65534] } else { vec![0] }
}

/// Starts a role for each user and says so where the machine refuses.
fn in_namespaces(name: &str, test: impl Fn(Role)) {
    for user in users() {
        let mut role = Role::start(name, user, &[]);
        match role.hear().as_str() {
            "ready" => test(role),
            why => println!("NOT TESTED as user {user}: {why}"),
        }
    }
}

fn pidns_or_say_so() -> bool {
    match Pidns::available(true) {
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

/// What lives in the namespace of this init, as we see it from outside: init first.
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

/// A guardian's life in one role: a namespace, a family in it, then as it is told.
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
                // Understood when it next looks: a signal that all ignore makes it look.
                space.signal_all(libc::SIGUSR1).expect("told");
            }
            "empty?" => say(space.is_empty()),
            "kill" => space.kill(),
            "kill main" => kill(Pid::from_raw(main), Signal::SIGKILL).expect("killed"),
            "reap" => say(format!("{:?}", waitpid(Pid::from_raw(-1), None))),
            _ => return,
        }
    }
}

/// The members of a `role_pidns`: pidfds of init, main and the daemon.
fn meet(role: &mut Role) -> (i32, Vec<OwnedFd>) {
    let init = role.hear_number();
    let main = role.hear_number();
    let members = members(init);
    assert_eq!(members.len(), 3, "init, main and daemon: {members:?}");
    assert!(members.contains(&main));
    (init, members.into_iter().map(pidfd).collect())
}

#[test]
fn a_namespace_dies_with_its_guardian() {
    in_namespaces("role_pidns", |mut role| {
        let (_, all) = meet(&mut role);
        role.kill();
        assert!(all.iter().all(dies));
    });
}

#[test]
fn a_namespace_dies_at_its_deadline_although_the_guardian_is_stopped() {
    in_namespaces("role_pidns", |mut role| {
        let (_, all) = meet(&mut role);
        role.tell("near");
        role.tell("empty?");
        assert_eq!(role.hear(), "false");
        kill(role.pid(), Signal::SIGSTOP).expect("stopped");
        // Init waits for the parent of the main process to reap it, and that one is stopped: but
        // nothing of it runs any more.
        assert!(all[1..].iter().all(dies));
        role.kill();
        assert!(dies(&all[0]));
    });
}

#[test]
fn killing_init_kills_the_family_and_both_are_the_guardians_to_reap() {
    in_namespaces("role_pidns", |mut role| {
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
    in_namespaces("role_pidns", |mut role| {
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
    in_namespaces("role_at_home", |mut role| {
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
            // SAFETY: a signal to ourselves, and the end.
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

// ---- keeper -------------------------------------------------------------------------------------

#[test]
fn the_keeper_holds_the_lock_until_the_namespace_is_empty() {
    in_namespaces("role_keeper", |mut role| {
        let lock = PathBuf::from(role.hear());
        let guardian = role.hear_number();
        let keeper = pidfd(role.hear_number());
        let (_, all) = meet(&mut role);
        let file = File::options().read(true).write(true).open(&lock);
        let file = file.expect("readable by us");
        assert!(file.try_lock().is_err(), "the guardian holds it");
        kill(Pid::from_raw(guardian), Signal::SIGKILL).expect("killed");
        // The main process has come to the role, which does not reap it yet: so long the namespace
        // is not empty, although its init has closed all it had.
        assert!(all[1..].iter().all(dies));
        role.tell("reap the guardian");
        assert_eq!(role.hear(), "reaped");
        assert!(!within(&all[0], 0) && !within(&keeper, 0));
        assert!(
            file.try_lock().is_err(),
            "only the keeper is left to hold it"
        );
        role.tell("reap the rest");
        assert!(all.iter().all(dies));
        assert!(dies(&keeper), "the keeper ends by itself");
        file.try_lock().expect("free");
        role.end_well();
    });
}

/// A supervisor whose guardian has the namespace.
#[test]
#[ignore = "a role"]
fn role_keeper() {
    if !pidns_or_say_so() {
        return;
    }
    nix::sys::prctl::set_child_subreaper(true).expect("allowed");
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("lock");
    say(path.display());
    // SAFETY: one thread.
    match unsafe { nix::unistd::fork() }.expect("a guardian") {
        nix::unistd::ForkResult::Child => {
            let lock = File::create(&path).expect("a file");
            lock.lock().expect("ours alone");
            let space = Pidns::open(Instant::FOREVER).expect("a namespace");
            let keeper = keeper::start(lock.as_fd(), &space).expect("a keeper");
            // SAFETY: one thread.
            let (main, _) = family(|| unsafe { space.fork() });
            say(std::process::id());
            say(keeper);
            say(space.init());
            say(main);
            forever()
        }
        nix::unistd::ForkResult::Parent { child } => {
            told();
            waitpid(child, None).expect("reaped");
            say("reaped");
            told();
            while waitpid(Pid::from_raw(-1), None).is_ok() {}
        }
    }
}

// ---- terminal -----------------------------------------------------------------------------------

struct Shell(Child);

impl Drop for Shell {
    /// For a test that fails; its job dies with it.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A supervisor on a terminal of its own, as a shell would start it: leader of the session, in the
/// foreground. What it says comes out of the terminal.
fn on_a_terminal(name: &str) -> (Shell, File, BufReader<File>) {
    let pty = nix::pty::openpty(None, None).expect("a terminal");
    let mut quiet = nix::sys::termios::tcgetattr(&pty.slave).expect("a terminal");
    quiet
        .local_flags
        .remove(nix::sys::termios::LocalFlags::ECHO);
    nix::sys::termios::tcsetattr(&pty.slave, nix::sys::termios::SetArg::TCSANOW, &quiet)
        .expect("a terminal");
    let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
    let mut command = Command::new(&Binary::for_everybody().path);
    command
        .args([name, "--exact", "--ignored", "--nocapture", "--quiet"])
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
    let child = loop {
        match command.spawn() {
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
            child => break child.expect("a role starts"),
        }
    };
    let master = File::from(pty.master);
    let reader = BufReader::new(master.try_clone().expect("a descriptor"));
    (Shell(child), master, reader)
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
    let (mut shell, mut keys, mut screen) = on_a_terminal("role_shell");
    assert_eq!(heard(&mut screen), "ours true");
    // The command reads from the terminal, in a group of its own.
    keys.write_all(b"hello\n").expect("typed");
    assert_eq!(heard(&mut screen), "read hello");
    // Ctrl-C: the command, once, and nobody else.
    keys.write_all(b"\x03").expect("typed");
    assert_eq!(heard(&mut screen), "interrupted");
    // Ctrl-Z: the command stops, then the supervisor, and the shell has the terminal.
    keys.write_all(b"\x1a").expect("typed");
    assert_eq!(heard(&mut screen), "shell sees a stop");
    assert_eq!(heard(&mut screen), "shell has the terminal true");
    // fg: the supervisor goes on, gives the terminal, and the command reads again.
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

/// A shell with one job: a supervisor with a command, each in a group of its own.
#[test]
#[ignore = "a role"]
fn role_shell() {
    use nix::sys::wait::WaitPidFlag;
    use nix::unistd::{ForkResult, fork, getpid, setpgid};
    // SAFETY: one thread.
    let ForkResult::Parent { child: job } = (unsafe { fork() }).expect("a job") else {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).expect("allowed");
        let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        // The shell puts its job into the foreground, and so do we, not to race with it.
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
    // The supervisor took it back for its own group: the shell is not left without it.
    say(format!("shell has the terminal {}", terminal == Ok(job)));
    kill(job, Signal::SIGCONT).expect("fg");
    let ended = waitpid(job, None);
    assert_eq!(ended, Ok(WaitStatus::Exited(job, 0)));
    say("shell sees the end 0");
}

fn job_on_terminal() {
    use nix::sys::wait::WaitPidFlag;
    use nix::unistd::{ForkResult, fork, setpgid};
    use trafficcop::supervise::tty::{Terminal, stop_ourselves};
    count_interrupts();
    let terminal = Terminal::ours().expect("we are in the foreground");
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
    stop_ourselves().expect("stopped, and continued");
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
    // Taken only while we wait, so that none comes between a look and the wait.
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
