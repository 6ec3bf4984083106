//! Environment and end of the command.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::signal::{SigHandler, SigSet, Signal, kill, signal};
use nix::unistd::Pid;

use super::{A_TREE, KILL, instance, let_end};
use crate::support::await_for;
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::namespaces::unshared_or_say_so;
use crate::support::processes::{MARK, Process, await_stopped};
use crate::support::scene::Scene;

/// `nohup` ignores signals, and so does a shell without job control for its `&`.
#[test]
fn signals_ignored_at_the_start_stay_ignored() {
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGTSTP,
    ] {
        let scene = Scene::new();
        let done = scene.path("done");
        let mut one = scene
            .run_on_file()
            .ignoring(signal)
            .journalist("one", &["--until", done.to_str().unwrap()])
            .start();
        scene.journal.await_tag(What::Beat, "one");
        one.signal(signal);
        one.signal(Signal::SIGWINCH);
        scene.journal.await_sign_of_life("one");
        one.assert_running();
        File::create(done).unwrap();
        assert_eq!(one.wait(), Ended::Code(0));
    }
}

#[test]
fn supervisor_ends_as_its_command_does() {
    let scene = Scene::new();
    let script = scene.path("not-executable");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    for (words, expected) in [
        (vec!["true"], Ended::Code(0)),
        (vec!["sh", "-c", "exit 7"], Ended::Code(7)),
        (vec!["sh", "-c", "exit 255"], Ended::Code(255)),
        (vec!["sh", "-c", "kill -9 $$"], KILL),
        (
            vec!["sh", "-c", "kill -USR1 $$"],
            Ended::Died(Signal::SIGUSR1),
        ),
        (vec![script.to_str().unwrap()], Ended::Code(126)),
        (vec![scene.directory().to_str().unwrap()], Ended::Code(126)),
        (vec!["no-such-command-anywhere"], Ended::Code(127)),
        (vec!["/no/such/path"], Ended::Code(127)),
    ] {
        let run = scene.run_on_file().env("PATH", "/usr/bin:/bin");
        let finished = run.command(&words).finish();
        assert_eq!(finished.ended, expected, "{words:?}: {}", finished.stderr);
        if let Ended::Code(126 | 127) = expected {
            let last = finished.stderr.lines().last().unwrap_or_default();
            assert!(
                last.contains("cannot run") && last.contains(words[0]),
                "{}",
                finished.stderr
            );
        }
    }
    scene.await_nobody();
}

#[test]
fn a_command_that_catches_sigterm_has_its_grace_and_its_own_status() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &["--grace", "10m"], &["--term", "300:5"]);
    scene.journal.await_tag(What::Beat, "one");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), Ended::Code(5), "{}", one.stderr());
    scene.journal.await_tag(What::End, "one");
}

#[test]
fn a_second_sigterm_kills_at_once() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &["--grace", "10m"], &A_TREE);
    scene.journal.await_tag(What::Beat, "one/daemon");
    one.signal(Signal::SIGTERM);
    one.await_log("stopping the command: SIGTERM received");
    scene.journal.await_sign_of_life("one/daemon");
    // Pending signals of one kind merge, so repeat it until it is noticed.
    await_for(
        "the end",
        || {
            if one.ended().is_none() {
                one.signal(Signal::SIGTERM);
            }
            one.ended()
        },
        String::new,
    );
    assert_eq!(one.wait(), KILL, "{}", one.stderr());
    scene.await_nobody();
}

#[test]
fn the_stop_signal_is_the_one_asked_for() {
    let scene = Scene::new();
    let one = scene
        .run_on_file()
        .args(["--stop-signal", "USR2"])
        .shell("trap 'echo usr2; exit 3' USR2; echo ready; while :; do sleep 0.01; done")
        .start();
    await_for(
        "the command",
        || one.stdout().contains("ready").then_some(()),
        || one.stderr(),
    );
    one.signal(Signal::SIGTERM);
    let finished = one.finish();
    assert_eq!(
        (finished.ended, &*finished.stdout),
        (Ended::Code(3), "ready\nusr2\n")
    );
}

#[test]
fn other_signals_are_passed_on() {
    let scene = Scene::new();
    let one = scene
        .run_on_file()
        .shell(
            "trap 'echo usr1' USR1; trap 'echo usr2; exit 0' USR2; echo ready; \
             while :; do sleep 0.01; done",
        )
        .start();
    let said = |words: &str| {
        await_for(
            words,
            || one.stdout().contains(words).then_some(()),
            || one.stderr(),
        );
    };
    said("ready");
    one.signal(Signal::SIGUSR1);
    said("usr1");
    one.signal(Signal::SIGUSR2);
    said("usr2");
    assert_eq!(one.finish().ended, Ended::Code(0));
}

#[test]
fn a_terminal_stop_stops_the_command_then_us_and_continue_continues_both() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &[], &[]);
    let command = scene.journal.await_tag(What::Beat, "one").pid;
    one.signal(Signal::SIGTSTP);
    await_stopped(one.pid());
    assert_eq!(
        Process::read(command).unwrap().state,
        'T',
        "the command stops first"
    );
    one.signal(Signal::SIGCONT);
    scene.journal.await_sign_of_life("one");
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
}

/// Prints its signals, and ends by SIGURG, which is passed on after all earlier ones.
const LISTENER: &str = "trap 'echo cont' CONT; trap 'echo term' TERM; trap 'over=1' URG; \
     echo ready; while [ -z \"$over\" ]; do sleep 0.01; done; exit 3";

#[test]
fn command_gets_no_sigcont_after_its_stop_signal() {
    let scene = Scene::new();
    for contain in ["none", "auto"] {
        let one = scene
            .run_on_file()
            .args(["--grace", "10m", "--contain", contain])
            .shell(LISTENER)
            .start();
        let says = |words: &str| {
            await_for(
                words,
                || one.stdout().contains(words).then_some(()),
                || one.stderr(),
            );
        };
        says("ready");
        one.signal(Signal::SIGTERM);
        says("term");
        // systemd sends it after every TERM.
        one.signal(Signal::SIGCONT);
        one.signal(Signal::SIGURG);
        let finished = one.finish();
        assert_eq!(
            (finished.ended, &*finished.stdout),
            (Ended::Code(3), "ready\nterm\n"),
            "{contain}"
        );
    }
}

#[test]
fn stopped_command_is_continued_for_its_stop_signal() {
    let scene = Scene::new();
    let listener = |name: &str| {
        format!("trap 'echo {name}; exit 3' TERM; kill -STOP $$; while :; do sleep 0.01; done")
    };
    let child = scene.path("child");
    std::fs::write(&child, listener("child")).unwrap();
    let script = format!("sh {} & {}", child.display(), listener("main"));
    let one = scene
        .run_on_file()
        .args(["--grace", "10m"])
        .shell(&script)
        .start();
    await_for(
        "two of them to be stopped",
        || {
            let trees = scene.trees();
            let stopped = trees.iter().filter(|process| process.state == 'T').count();
            (stopped == 2).then_some(())
        },
        || format!("{:?}", scene.trees()),
    );
    one.signal(Signal::SIGTERM);
    let finished = one.finish();
    assert_eq!(finished.ended, Ended::Code(3), "{}", finished.stderr);
    for name in ["main", "child"] {
        assert!(finished.stdout.contains(name), "{}", finished.stdout);
    }
}

/// Starts a script that waits for an instance in its own group, and a sibling. Returns the ids of
/// the script, the sibling, the instance and its command.
fn in_the_group_of_a_script(scene: &Scene, session: bool) -> (std::process::Child, [i32; 4]) {
    let script = format!(
        "sleep 1000 & sibling=$!; {} run -q --file {} -- sh -c 'echo $$; exec sleep 1000' & \
         echo $sibling $!; wait $!",
        env!("CARGO_BIN_EXE_trafficcop"),
        scene.lock().display()
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .env(MARK, scene.directory())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped());
    let begin = move || {
        if session {
            nix::unistd::setsid()?;
        } else {
            nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        }
        Ok(())
    };
    // SAFETY: one system call.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, begin) };
    let mut shell = command.spawn().unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    let mut numbers = vec![i32::try_from(shell.id()).unwrap()];
    while numbers.len() < 4 {
        let line = lines.next().unwrap().unwrap();
        numbers.extend(line.split(' ').map(|pid| pid.parse::<i32>().unwrap()));
    }
    (shell, numbers.try_into().unwrap())
}

#[test]
fn a_terminal_stop_sent_to_us_alone_stops_us_and_the_command_and_nobody_else() {
    for session in [false, true] {
        let scene = Scene::new();
        let (mut shell, [script, sibling, one, command]) =
            in_the_group_of_a_script(&scene, session);
        kill(Pid::from_raw(one), Signal::SIGTSTP).unwrap();
        await_stopped(one);
        await_stopped(command);
        for other in [script, sibling] {
            let state = Process::read(other).map(|process| process.state);
            assert!(state.is_some_and(|state| state != 'T'), "{state:?}");
        }
        kill(Pid::from_raw(one), Signal::SIGCONT).unwrap();
        await_for(
            "the command to go on",
            || Process::read(command).filter(|process| process.state != 'T'),
            || format!("{:?}", scene.trees()),
        );
        kill(Pid::from_raw(one), Signal::SIGTERM).unwrap();
        shell.wait().unwrap();
        kill(Pid::from_raw(sibling), Signal::SIGKILL).unwrap();
        scene.await_nobody();
    }
}

#[test]
fn stdin_reaches_the_command() {
    let scene = Scene::new();
    let text = "one\ntwo\n".repeat(50_000);
    let input = scene.path("input");
    std::fs::write(&input, &text).unwrap();
    let finished = scene
        .run_on_file()
        .stdin(File::open(input).unwrap())
        .command(["cat"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    assert!(
        finished.stdout == text,
        "{} bytes came",
        finished.stdout.len()
    );
}

#[test]
fn the_command_is_told_its_token_the_lock_and_who_holds_it() {
    let scene = Scene::new();
    for token in 1..=3 {
        let finished = scene
            .run_on_file()
            .args(["--identity", "web1"])
            .shell("echo \"$TRAFFICCOP_TOKEN|$TRAFFICCOP_LOCK|$TRAFFICCOP_HOLDER\"")
            .finish();
        let lock = scene.lock();
        assert!(
            finished.stdout.starts_with(&format!("{token}|")),
            "{}",
            finished.stdout
        );
        assert!(
            finished.stdout.contains(lock.to_str().unwrap()),
            "{}",
            finished.stdout
        );
        assert!(finished.stdout.ends_with("|web1\n"), "{}", finished.stdout);
    }
}

#[test]
fn the_command_gets_the_state_we_were_started_with_and_nothing_of_ours() {
    let scene = Scene::new();
    let ignoring = |also: &[Signal], words: &[&str]| {
        let run = scene.run_on_file().ignoring(Signal::SIGUSR2);
        let finished = (also.iter())
            .fold(run, |run, signal| run.ignoring(*signal))
            .current_dir(scene.directory())
            .command(words)
            .finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
        finished.stdout
    };
    let state = |words: &[&str]| ignoring(&[], words);
    let bit = |signal: Signal| 1_u64 << (signal as i32 - 1);
    let usr2 = bit(Signal::SIGUSR2);
    // A broken pipe or a full file does not kill trafficcop; its starter decides whether it kills
    // the command.
    for (also, ignored) in [
        (&[][..], usr2),
        (&[Signal::SIGPIPE], usr2 | bit(Signal::SIGPIPE)),
        (&[Signal::SIGXFSZ], usr2 | bit(Signal::SIGXFSZ)),
    ] {
        let shown = ignoring(also, &["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]);
        assert_eq!(shown.lines().count(), 2, "{shown}");
        for line in shown.lines() {
            let (name, set) = line.split_once(":\t").unwrap();
            // The C library's two after the 31st, which cargo leaves ignored, do not count.
            let set = u64::from_str_radix(set, 16).unwrap() & ((1 << 31) - 1);
            assert_eq!(set, if name == "SigIgn" { ignored } else { 0 }, "{line}");
        }
    }
    let directory = scene.directory().canonicalize().unwrap();
    assert_eq!(state(&["pwd", "-P"]).trim(), directory.to_str().unwrap());

    // Only the lock remains (and ls's directory), which must live as long as the command.
    let lock = scene.lock().canonicalize().unwrap();
    for line in state(&["ls", "-l", "/proc/self/fd"]).lines() {
        let Some((left, target)) = line.split_once(" -> ") else {
            continue;
        };
        let number: i32 = left.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(
            number <= 2 || target.starts_with("/proc/") || lock.to_str() == Some(target),
            "leaked: {line}"
        );
    }
}

#[test]
fn a_command_with_several_guardians_gets_the_signals_we_were_started_with() {
    let scene = Scene::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_trafficcop"));
    command
        .args(["run", "--health", "true", "--on-lost", "true", "--file"])
        .arg(scene.lock())
        .args(["--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]);
    // SAFETY: system calls only.
    unsafe {
        command.pre_exec(|| {
            signal(Signal::SIGCHLD, SigHandler::SigIgn)?;
            Ok(SigSet::from(Signal::SIGCHLD).thread_block()?)
        });
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(shown.lines().count(), 2, "{shown}");
    for line in shown.lines() {
        let (_, set) = line.split_once(":\t").unwrap();
        let set = u64::from_str_radix(set, 16).unwrap();
        assert_ne!(set & 1 << (Signal::SIGCHLD as i32 - 1), 0, "{shown}");
    }
}

#[test]
fn closed_descriptors_become_empty_ones_and_nothing_of_ours() {
    let scene = Scene::new();
    let closed = "exec \"$@\" 0<&- 2>&-";
    let output = Command::new("sh")
        .args(["-c", closed, "sh", env!("CARGO_BIN_EXE_trafficcop"), "run"])
        .arg("--file")
        .arg(scene.lock())
        .args(["--", "ls", "-l", "/proc/self/fd"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    let shown = String::from_utf8(output.stdout).unwrap();
    for number in [0, 2] {
        let target = shown.lines().find_map(|line| {
            let (left, target) = line.split_once(" -> ")?;
            (left.ends_with(&format!(" {number}"))).then_some(target)
        });
        assert_eq!(target, Some("/dev/null"), "{shown}");
    }
}

#[test]
fn closed_descriptors_that_nothing_can_be_put_on_are_the_end_before_the_lock_is_opened() {
    let scene = Scene::new();
    let bare = "mount -t tmpfs none /dev && exec \"$@\" 2<&-";
    let Some(mut unshared) = unshared_or_say_so(&["--mount"], bare) else {
        return;
    };
    let status = unshared
        .args([env!("CARGO_BIN_EXE_trafficcop"), "run", "--file"])
        .arg(scene.lock())
        .args(["--", "true"])
        .status()
        .unwrap();
    assert_eq!(Ended::from(status), Ended::Code(69));
    assert!(!scene.lock().exists(), "the log would be written into it");
}
