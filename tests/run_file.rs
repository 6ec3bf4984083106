//! `trafficcop run --file`: what happens to commands and instances, end to end.
//!
//! Read as a specification: each test is one sentence of it.

#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::fs::File;
use std::os::unix::fs::symlink;
use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::clock::Instant;

use support::await_for;
use support::instance::{Ended, Instance};
use support::journal::What;
use support::processes::{Process, await_stopped};
use support::scene::Scene;

const TERM: Ended = Ended::Died(Signal::SIGTERM);
const KILL: Ended = Ended::Died(Signal::SIGKILL);

/// An instance whose command writes into the journal until the file `NAME.done` appears.
fn instance(scene: &Scene, name: &str, options: &[&str], command: &[&str]) -> Instance {
    let done = scene.path(&format!("{name}.done"));
    let mut words = vec!["--until", done.to_str().unwrap()];
    words.extend(command);
    scene
        .run_on_file()
        .args(["--identity", name])
        .args(options)
        .journalist(name, &words)
        .start()
}

fn let_end(scene: &Scene, name: &str) {
    File::create(scene.path(&format!("{name}.done"))).unwrap();
}

/// Two instances compete. The first, with this command, is in control; `end` ends it; then the
/// second must run, and not before everything of the first is gone.
fn hand_over(command: &[&str], end: impl FnOnce(&Scene, &Instance), expected: Ended) {
    let scene = Scene::new();
    let mut first = instance(&scene, "first", &["--grace", "500ms"], command);
    scene.journal.await_tag(What::Beat, "first");
    if command.contains(&"--daemon") {
        scene.journal.await_tag(What::Beat, "first/daemon");
    }
    let mut second = instance(&scene, "second", &[], &[]);
    second.await_log("standing by: first is in control, token 1");
    scene.journal.await_sign_of_life("first");

    end(&scene, &first);
    assert_eq!(first.wait(), expected, "{}", first.stderr());
    scene.journal.await_tag(What::Beat, "second");
    let_end(&scene, "second");
    assert_eq!(second.wait(), Ended::Code(0), "{}", second.stderr());
    assert_eq!(scene.journal.judge(), ["first", "second"]);
    scene.await_nobody();
}

const A_TREE: [&str; 7] = [
    "--term",
    "ignore",
    "--daemon",
    "--children",
    "2",
    "--storm",
    "6",
];

#[test]
fn the_end_of_the_command_hands_over() {
    hand_over(
        &["--status", "7"],
        |scene, _| let_end(scene, "first"),
        Ended::Code(7),
    );
}

#[test]
fn the_end_of_a_command_that_leaves_a_daemon_hands_over_when_the_daemon_is_gone() {
    hand_over(
        &["--daemon", "--storm", "6"],
        |scene, first| {
            let_end(scene, "first");
            first.await_log("left processes behind");
        },
        Ended::Code(0),
    );
}

#[test]
fn terminate_hands_over() {
    hand_over(&[], |_, first| first.signal(Signal::SIGTERM), TERM);
}

#[test]
fn interrupt_hands_over() {
    hand_over(&[], |_, first| first.signal(Signal::SIGINT), TERM);
}

#[test]
fn hangup_hands_over() {
    hand_over(&[], |_, first| first.signal(Signal::SIGHUP), TERM);
}

#[test]
fn quit_hands_over() {
    hand_over(&[], |_, first| first.signal(Signal::SIGQUIT), TERM);
}

#[test]
fn the_death_of_the_supervisor_hands_over() {
    hand_over(&[], |_, first| first.signal(Signal::SIGKILL), KILL);
}

#[test]
fn a_tree_that_ignores_terminate_is_killed_before_the_hand_over() {
    hand_over(&A_TREE, |_, first| first.signal(Signal::SIGTERM), KILL);
}

#[test]
fn the_death_of_the_supervisor_hands_over_when_a_tree_that_ignores_terminate_is_gone() {
    hand_over(&A_TREE, |_, first| first.signal(Signal::SIGKILL), KILL);
}

#[test]
fn the_death_of_the_guardian_hands_over_when_the_tree_is_gone_and_is_status_70() {
    hand_over(
        &A_TREE,
        |_, first| {
            let guardian = nix::unistd::Pid::from_raw(first.guardian());
            nix::sys::signal::kill(guardian, Signal::SIGKILL).unwrap();
        },
        Ended::Code(70),
    );
}

#[test]
fn of_many_instances_each_gets_its_turn_alone() {
    let scene = Scene::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    let command = ["--beats", "12", "--daemon", "--children", "1"];
    let crowd: Vec<Instance> = names
        .iter()
        .map(|name| instance(&scene, name, &["--grace", "100ms"], &command))
        .collect();
    for one in crowd {
        let finished = one.finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    }
    let mut order = scene.journal.judge();
    order.sort();
    assert_eq!(order, names);
    let tokens: Vec<u64> = scene
        .journal
        .tenures()
        .iter()
        .map(|tenure| tenure.token)
        .collect();
    assert_eq!(tokens, [1, 2, 3, 4, 5, 6]);
    scene.await_nobody();
}

#[test]
fn a_waiter_is_woken_by_the_kernel_and_does_not_poll() {
    let scene = Scene::new();
    let mut first = instance(&scene, "first", &[], &[]);
    scene.journal.await_tag(What::Beat, "first");
    let mut second = instance(&scene, "second", &["--poll", "1h"], &[]);
    second.await_log("standing by");
    let_end(&scene, "first");
    assert_eq!(first.wait(), Ended::Code(0));
    scene.journal.await_tag(What::Beat, "second");
    let_end(&scene, "second");
    assert_eq!(second.wait(), Ended::Code(0));
}

#[test]
fn a_standby_leaves_by_the_signal_it_is_sent_and_disturbs_nobody() {
    let scene = Scene::new();
    let mut holder = instance(&scene, "holder", &[], &[]);
    scene.journal.await_tag(What::Beat, "holder");
    for number in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ] {
        let mut standby = instance(&scene, "standby", &[], &[]);
        standby.await_log("standing by");
        standby.signal(number);
        assert_eq!(standby.wait(), Ended::Died(number), "{}", standby.stderr());
    }
    holder.assert_running();
    let_end(&scene, "holder");
    assert_eq!(holder.wait(), Ended::Code(0));
    assert_eq!(scene.journal.judge(), ["holder"]);
    scene.await_nobody();
}

#[test]
fn a_hangup_that_was_ignored_when_we_started_stays_ignored() {
    let scene = Scene::new();
    let done = scene.path("done");
    let mut one = scene
        .run_on_file()
        .ignoring(Signal::SIGHUP)
        .journalist("one", &["--until", done.to_str().unwrap()])
        .start();
    scene.journal.await_tag(What::Beat, "one");
    one.signal(Signal::SIGHUP);
    one.signal(Signal::SIGWINCH);
    scene.journal.await_sign_of_life("one");
    one.assert_running();
    File::create(done).unwrap();
    assert_eq!(one.wait(), Ended::Code(0));
}

#[test]
fn no_wait_gives_up_at_once_with_status_75_or_the_one_asked_for() {
    let scene = Scene::new();
    let holder = instance(&scene, "holder", &[], &[]);
    scene.journal.await_tag(What::Beat, "holder");
    let marker = scene.path("marker");
    let touch = ["touch", marker.to_str().unwrap()];
    for (options, status) in [
        (&["-n"][..], 75),
        (&["--no-wait"][..], 75),
        (&["-n", "-E", "9"][..], 9),
        (&["-n", "-E", "0"][..], 0),
        (&["--wait", "0"][..], 75),
    ] {
        let finished = scene.run_on_file().args(options).command(touch).finish();
        assert_eq!(
            finished.ended,
            Ended::Code(status),
            "{options:?}: {}",
            finished.stderr
        );
        assert!(
            finished.stderr.contains("holder is in control"),
            "{}",
            finished.stderr
        );
    }
    assert!(!marker.exists());
    drop(holder);
}

#[test]
fn wait_gives_up_after_its_time_and_not_before() {
    let scene = Scene::new();
    let holder = instance(&scene, "holder", &[], &[]);
    scene.journal.await_tag(What::Beat, "holder");
    let begin = Instant::now();
    let finished = scene
        .run_on_file()
        .args(["-w", "1"])
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(75), "{}", finished.stderr);
    assert!(Instant::now().since(begin) >= Duration::from_secs(1));
    drop(holder);
}

#[test]
fn wait_is_over_when_control_is_obtained() {
    let scene = Scene::new();
    let mut first = instance(&scene, "first", &[], &[]);
    scene.journal.await_tag(What::Beat, "first");
    let mut second = instance(&scene, "second", &["-w", "10m"], &[]);
    second.await_log("standing by");
    let_end(&scene, "first");
    first.wait();
    scene.journal.await_tag(What::Beat, "second");
    let_end(&scene, "second");
    assert_eq!(second.wait(), Ended::Code(0));
}

#[test]
fn the_command_s_end_is_our_end() {
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
        let finished = scene.run_on_file().command(&words).finish();
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
fn a_command_that_catches_terminate_has_its_grace_and_its_own_status() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &["--grace", "10m"], &["--term", "300:5"]);
    scene.journal.await_tag(What::Beat, "one");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), Ended::Code(5), "{}", one.stderr());
    scene.journal.await_tag(What::End, "one");
}

#[test]
fn a_second_terminate_kills_at_once() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &["--grace", "10m"], &A_TREE);
    scene.journal.await_tag(What::Beat, "one/daemon");
    one.signal(Signal::SIGTERM);
    one.await_log("stopping the command: SIGTERM received");
    scene.journal.await_sign_of_life("one/daemon");
    // Signals that come together are one request: say it again until it is heard.
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
fn signals_that_are_not_ours_are_passed_on() {
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
    let state = |words: &[&str]| {
        let finished = scene
            .run_on_file()
            .ignoring(Signal::SIGUSR2)
            .current_dir(scene.directory())
            .command(words)
            .finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
        finished.stdout
    };
    for line in state(&["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]).lines() {
        let (name, set) = line.split_once(":\t").unwrap();
        // The two after the 31st are the C library's own; cargo leaves them ignored.
        let set = u64::from_str_radix(set, 16).unwrap() & ((1 << 31) - 1);
        let usr2 = 1 << (Signal::SIGUSR2 as i32 - 1);
        assert_eq!(set, if name == "SigIgn" { usr2 } else { 0 }, "{line}");
    }
    let directory = scene.directory().canonicalize().unwrap();
    assert_eq!(state(&["pwd", "-P"]).trim(), directory.to_str().unwrap());

    // Beside stdin, stdout and stderr (and the directory that ls reads) there is only the lock,
    // which must live as long as the command.
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
fn settings_come_from_the_environment_and_the_command_line_wins() {
    let scene = Scene::new();
    let holder = instance(&scene, "holder", &[], &[]);
    scene.journal.await_tag(What::Beat, "holder");
    let settings = || {
        scene
            .run()
            .env("TRAFFICCOP_FILE", scene.lock())
            .env("TRAFFICCOP_NO_WAIT", "true")
            .env("TRAFFICCOP_CONFLICT_EXIT_CODE", "21")
    };
    let finished = settings().command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(21), "{}", finished.stderr);
    let finished = settings().args(["-E", "22"]).command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(22), "{}", finished.stderr);
    let finished = settings()
        .arg("--file")
        .arg(scene.path("other"))
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    drop(holder);
}

#[test]
fn a_stopped_supervisor_costs_a_local_lock_nothing() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &["--lease", "12s"], &["--term", "60000:9"]);
    scene.journal.await_tag(What::Beat, "one");
    one.freeze();
    let later = Instant::now().as_nanos() + 3_000_000_000;
    scene
        .journal
        .await_line("life after three seconds", |line| line.at > later);
    one.signal(Signal::SIGCONT);
    scene.journal.await_sign_of_life("one");
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(scene.journal.judge(), ["one"]);
    assert!(
        scene
            .journal
            .lines()
            .iter()
            .all(|line| line.what != What::Term)
    );
}

#[test]
fn with_a_heartbeat_a_stopped_supervisor_s_tree_is_dead_in_time_and_it_competes_again() {
    let scene = Scene::new();
    let mut one = instance(
        &scene,
        "one",
        &["--heartbeat", "on", "--lease", "12s"],
        &A_TREE,
    );
    scene.journal.await_tag(What::Beat, "one/daemon");
    one.freeze();
    let end_of_lease = Instant::now().as_nanos() + 12_000_000_000;
    await_for(
        "the tree to be gone",
        || scene.trees().is_empty().then_some(()),
        String::new,
    );
    let last = scene
        .journal
        .lines()
        .iter()
        .map(|line| line.at)
        .max()
        .unwrap();
    assert!(last < end_of_lease, "{}", scene.journal);
    one.signal(Signal::SIGCONT);
    scene
        .journal
        .await_line("a second tenure", |line| line.token == 2);
    one.signal(Signal::SIGTERM);
    one.wait();
    assert_eq!(scene.journal.judge(), ["one", "one"]);
    scene.await_nobody();
}

#[test]
fn a_heartbeat_that_succeeds_keeps_the_command_for_longer_than_a_lease() {
    let scene = Scene::new();
    let mut one = instance(
        &scene,
        "one",
        &["--heartbeat", "on", "--lease", "12s"],
        &["--term", "60000:9"],
    );
    let start = scene.journal.await_tag(What::Start, "one");
    scene.journal.await_line("life after a lease", |line| {
        line.at > start.at + 12_500_000_000
    });
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert!(
        scene
            .journal
            .lines()
            .iter()
            .all(|line| line.what != What::Term)
    );
}

#[test]
fn the_status_file_says_what_happens() {
    let scene = Scene::new();
    let file = scene.path("status.json");
    let options = ["--status-file", file.to_str().unwrap(), "--contain", "none"];
    let mut one = instance(&scene, "one", &options, &["--status", "4"]);
    let command = scene.journal.await_tag(What::Beat, "one").pid;
    let read = || -> Option<serde_json::Value> {
        serde_json::from_str(&std::fs::read_to_string(&file).ok()?).expect("whole JSON, always")
    };
    let status = await_for(
        "the status to name the command",
        || read().filter(|status| !status["command_pid"].is_null()),
        || format!("{:?}\n{}", read(), one.stderr()),
    );
    assert_eq!(status["state"], "holding");
    assert_eq!(status["command_pid"], command);
    assert_eq!(status["pid"], one.pid());
    assert_eq!(status["guardian_pid"], one.guardian());
    assert_eq!(status["token"], 1);
    assert_eq!(status["identity"], "one");
    assert_eq!(status["contain"], "none");
    assert!(
        status["lock"]
            .as_str()
            .unwrap()
            .contains(scene.lock().to_str().unwrap())
    );
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(4));
    let status = read().unwrap();
    assert_eq!(status["state"], "done");
    assert_eq!(status["exit"], 4);
    assert_eq!(status["command_exit"], 4);
    assert_eq!(status["overlap"], false);
    assert!(status["command_pid"].is_null());
}

#[test]
fn the_json_log_is_json() {
    let scene = Scene::new();
    let options = ["--log", "json"];
    let mut one = instance(&scene, "one", &options, &[]);
    scene.journal.await_tag(What::Beat, "one");
    one.signal(Signal::SIGTERM);
    one.wait();
    let lines: Vec<serde_json::Value> = one
        .stderr()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}")))
        .collect();
    assert!(lines.len() >= 3, "{lines:?}");
    for line in &lines {
        assert!(
            line["level"].is_string() && line["message"].is_string(),
            "{line}"
        );
        assert!(line["ts"].as_str().unwrap().ends_with('Z'), "{line}");
    }
    let control = lines
        .iter()
        .find(|line| line["token"] == 1)
        .expect("a line with the token");
    assert_eq!(control["identity"], "one");
}

#[test]
fn a_log_that_nobody_reads_stops_nothing() {
    let scene = Scene::new();
    let finished = scene
        .run_on_file()
        .with_broken_stderr()
        .journalist("one", &["--beats", "20", "--status", "6", "--daemon"])
        .args(["--grace", "100ms"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(6));
    assert_eq!(scene.journal.judge(), ["one"]);
    scene.await_nobody();
}

#[test]
fn the_lock_file_stays_and_tells_the_last_holder() {
    let scene = Scene::new();
    for token in 1..=2 {
        let run = scene
            .run_on_file()
            .args(["--identity", "web1"])
            .shell("exit 3");
        assert_eq!(run.finish().ended, Ended::Code(3));
        let text = std::fs::read_to_string(scene.lock()).unwrap();
        let record: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(record["token"], token);
        assert_eq!(record["holder"], "web1");
        assert_eq!(record["command"], "sh -c 'exit 3'");
    }
}

#[test]
fn a_link_to_the_lock_is_the_same_lock() {
    let scene = Scene::new();
    let holder = instance(&scene, "holder", &[], &[]);
    scene.journal.await_tag(What::Beat, "holder");
    let link = scene.path("link");
    symlink(scene.lock(), &link).unwrap();
    let finished = scene
        .run()
        .arg("--file")
        .arg(link)
        .arg("-n")
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(75), "{}", finished.stderr);
    drop(holder);
}
