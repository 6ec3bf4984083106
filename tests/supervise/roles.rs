//! The two other roles: a supervisor that takes orders from a socket, and its commands, which
//! record every process that they make.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{ForkResult, fork};
use trafficcop::Instant;
use trafficcop_core::Deadlines;
use trafficcop_guardian::containment::{Cgroup, Pidns};
use trafficcop_guardian::{self, Contain, GuardianHandle, Partner, Program, Setup, SpawnRequest};

use super::proc;
use super::scene::Who;

/// Writes how many of the journal's processes live, where `release_info` says.
fn on_orphaned(release_info: &[u8]) {
    let release_info = String::from_utf8_lossy(release_info);
    let (journal, testament) = release_info
        .split_once(' ')
        .expect("a release_info of two paths");
    let alive = proc::journal(journal)
        .iter()
        .filter(|kin| kin.is_alive())
        .count();
    append(testament, &format!("alive {alive}\n"));
}

fn append(path: &str, line: &str) {
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the journal can be written");
}

/// Carries out orders until the judge hangs up.
pub(crate) fn supervisor(control: &str, command: Vec<OsString>) {
    let spare = std::env::var("SPARE_GUARDIAN").ok();
    let contain = match std::env::var("CONTAIN").as_deref() {
        Ok("Cgroup") => Contain::Cgroup,
        Ok("Pidns") => Contain::Pidns,
        _ => Contain::None,
    };
    let orphan_grace = std::env::var("ORPHAN_GRACE")
        .ok()
        .map(|millis| std::time::Duration::from_millis(millis.parse().expect("a number")));
    let setup = |command: &[OsString], partner| Setup {
        programs: vec![Program::command(command.to_vec())],
        contain,
        grace: std::time::Duration::from_secs(10),
        left_behind: None,
        orphan_grace,
        on_orphaned,
        withheld: Vec::new(),
        partner,
        tells_others: false,
    };
    // A guardian for something else under the same lease is forked first.
    let (ends, awaits) = match spare.as_deref() {
        Some("partner") => Partner::pair().map(|(ends, awaits)| (Some(ends), Some(awaits))),
        _ => Ok((None, None)),
    }
    .expect("a pipe");
    let fork = |partner| trafficcop_guardian::fork(setup(&command, partner)).expect("a guardian");
    let partner = ends.map(|ends| fork(Some(ends)));
    let guardian = fork(awaits);
    assert_eq!(guardian.containment(), contain);
    let second = partner.or_else(|| spare.is_some().then(|| fork(None)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let socket = tokio::net::UnixStream::connect(control).await.unwrap();
        let (lines, mut answers) = socket.into_split();
        let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(lines));
        let pids = [Some(&guardian), second.as_ref()].map(|one| one.map_or(0, |one| one.pid()));
        let hello = format!("guardians {} {} {}\n", pids[0], pids[1], proc::me());
        tokio::io::AsyncWriteExt::write_all(&mut answers, hello.as_bytes())
            .await
            .unwrap();
        let mut handle = guardian.attend().unwrap();
        let _second = second.map(|second| second.attend().unwrap());
        loop {
            let answer = tokio::select! {
                line = lines.next_line() => match line.unwrap() {
                    Some(line) if line == "dismiss" => break handle.dismiss().await,
                    Some(line) => {
                        obey(&mut handle, &line);
                        "did\n".to_owned()
                    }
                    None => return,
                },
                news = handle.next_event() => format!("{news:?}\n"),
            };
            tokio::io::AsyncWriteExt::write_all(&mut answers, answer.as_bytes())
                .await
                .unwrap();
        }
        tokio::io::AsyncWriteExt::write_all(&mut answers, b"dismissed\n")
            .await
            .unwrap();
    });
}

/// Adopts and reaps orphans in the same session, which keeps their groups from being orphaned.
pub(crate) fn nursery(words: &[String]) {
    nix::sys::prctl::set_child_subreaper(true).unwrap();
    let mut supervisor = Command::new(&words[0]);
    supervisor.args(&words[1..]).process_group(0);
    let dies_with_us = || nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into);
    // SAFETY: prctl is a mere system call.
    unsafe { supervisor.pre_exec(dies_with_us) };
    let mut supervisor = supervisor.spawn().unwrap();
    while nix::sys::wait::wait().is_ok() {}
    // Reaped with the others; its end shows in the count.
    let _reaped = supervisor.wait();
}

/// Tries this containment in a process like the supervisor.
pub(crate) fn probe(who: Who) -> Result<(), String> {
    let mut ask = Command::new(std::env::current_exe().unwrap());
    ask.args(["--probe", &format!("{:?}", who.contain)]);
    if who.nobody {
        ask.uid(65534).gid(65534);
    }
    let answer = ask.output().map_err(|e| e.to_string())?;
    if answer.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&answer.stderr).into_owned())
}

pub(crate) fn probed(contain: &str) -> ExitCode {
    let refusal = match contain {
        "Cgroup" => Cgroup::prepare().err(),
        "Pidns" => Pidns::available().err(),
        _ => None,
    };
    let Some(why) = refusal else {
        return ExitCode::SUCCESS;
    };
    eprint!("{why}");
    ExitCode::FAILURE
}

fn obey(handle: &mut GuardianHandle, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let at = |word: &str| match word {
        "-" => Instant::FOREVER,
        nanos => Instant::from_nanos(nanos.parse().unwrap()),
    };
    match words[..] {
        ["start", term_at, kill_at, lock, ref rest @ ..] => handle.start(SpawnRequest {
            program: 0,
            in_control: true,
            unset: Vec::new(),
            env: rest
                .iter()
                .filter_map(|word| word.split_once('='))
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            deadlines: Deadlines {
                term_at: at(term_at),
                kill_at: at(kill_at),
            },
            stop_signal: libc::SIGTERM,
            stop_to: trafficcop_guardian::StopTo::Group,
            lock: (lock != "-" && !lock.starts_with("stdin:")).then(|| locked(lock)),
            input: lock
                .strip_prefix("stdin:")
                .map(|path| File::open(path).unwrap().into()),
            release_info: Vec::new(),
        }),
        ["set_release_info", ref words @ ..] => handle.set_release_info(words.join(" ").as_bytes()),
        ["extend", term_at, kill_at] => handle.extend(Deadlines {
            term_at: at(term_at),
            kill_at: at(kill_at),
        }),
        ["drain", number, end] => handle.drain(number.parse().unwrap(), at(end)),
        ["kill"] => handle.kill(),
        ["signal", number] => handle.signal(number.parse().unwrap()),
        ["resume"] => handle.resume(),
        ["limit", pid, most] => proc::limit_files(pid.parse().unwrap(), most.parse().unwrap()),
        _ => panic!("what is {line:?}?"),
    }
}

/// Locks the file; after "kept:" the supervisor has a duplicate, as a store has.
fn locked(path: &str) -> OwnedFd {
    if let Some(path) = path.strip_prefix("kept:") {
        let file = locked(path);
        std::mem::forget(file.try_clone().unwrap());
        return file;
    }
    let file = File::options().write(true).open(path).unwrap();
    assert!(proc::try_lock(&file), "the lock is free before");
    file.into()
}

pub(crate) fn act(words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["exit", code] => std::process::exit(code.parse().unwrap()),
        ["die", number] => {
            proc::kill(proc::me(), number.parse().unwrap());
        }
        ["report", path] => report(path),
        ["wait", journal] => stay(journal, "main"),
        ["deaf", journal] => {
            be_deaf();
            stay(journal, "main");
        }
        ["as-root", journal] => as_root(journal),
        ["family", journal] => {
            be_deaf();
            family(journal);
            stay(journal, "main");
        }
        ["leave", journal] => {
            daemon(journal);
            proc::await_journal(journal, 1);
            std::process::exit(3);
        }
        ["leave-deaf", journal] => {
            be_deaf();
            family(journal);
            proc::await_journal(journal, 2);
            std::process::exit(3);
        }
        _ => panic!("what is {words:?}?"),
    }
}

fn stay(journal: &str, role: &str) {
    proc::record(journal, role);
    loop {
        nix::unistd::pause();
    }
}

fn be_deaf() {
    for number in [
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGALRM,
    ] {
        // SAFETY: "ignore" runs no code.
        unsafe { signal(number, SigHandler::SigIgn) }.unwrap();
    }
}

/// Becomes root with all ids, as sudo does: others may not signal it, its parent's death sends no
/// signal, and it has no descriptor.
fn as_root(journal: &str) {
    let (user, group) = (nix::unistd::Uid::from_raw(0), nix::unistd::Gid::from_raw(0));
    nix::unistd::setresgid(group, group, group).unwrap();
    nix::unistd::setresuid(user, user, user).unwrap();
    for fd in 0..64 {
        // SAFETY: nothing in this process uses a descriptor it has not opened after this.
        unsafe { libc::close(fd) };
    }
    stay(journal, "main");
}

fn child(body: impl FnOnce()) {
    // SAFETY: this program has one thread.
    if let ForkResult::Child = unsafe { fork() }.unwrap() {
        body();
        std::process::exit(0);
    }
}

fn family(journal: &str) {
    child(|| {
        nix::unistd::setsid().unwrap();
        stay(journal, "grandchild");
    });
    daemon(journal);
}

/// Forks twice, into its own session, without descriptors.
fn daemon(journal: &str) {
    child(|| {
        nix::unistd::setsid().unwrap();
        child(|| {
            for fd in 0..64 {
                // SAFETY: nothing in this process uses a descriptor it has not opened after this.
                unsafe { libc::close(fd) };
            }
            stay(journal, "daemon");
        });
    });
}

fn report(path: &str) {
    let mut text = String::new();
    let mut stdin = String::new();
    std::io::stdin().read_to_string(&mut stdin).unwrap();
    text += &format!("stdin {stdin}\n");
    text += &format!("cwd {}\n", std::env::current_dir().unwrap().display());
    for (name, value) in std::env::vars() {
        text += &format!("env {name}={value}\n");
    }
    let mut fds: Vec<String> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            // The descriptor of this listing is closed when its link is read.
            let target = fs::read_link(entry.path()).ok()?;
            Some(format!(
                "fd {} {}",
                entry.file_name().to_str()?,
                target.display()
            ))
        })
        .collect();
    fds.sort();
    text += &fds.join("\n");
    text.push('\n');
    text += &fs::read_to_string("/proc/self/status").unwrap();
    text += &fs::read_to_string("/proc/self/limits").unwrap();
    text += &format!(
        "oom {}",
        fs::read_to_string("/proc/self/oom_score_adj").unwrap()
    );
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    text += &format!(
        "pgrp {}\nnice {}\npolicy {}\n",
        fields[2], fields[16], fields[38]
    );
    fs::write(path, text).unwrap();
}
