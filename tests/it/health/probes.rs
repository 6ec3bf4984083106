//! `--health CMD`, under the same promise as the command that it checks.

use std::fs::File;

use nix::sys::signal::Signal;

use super::{COOL, PATIENT, QUICK, await_lines, events, signal, stop, timeline};
use crate::support::await_for;
use crate::support::instance::{Ended, Instance, Run};
use crate::support::journal::What;
use crate::support::processes::Process;
use crate::support::programs;
use crate::support::scene::Scene;

/// Starts an instance whose command writes into the journal, with this script as its check.
fn asked<'a>(scene: &'a Scene, run: Run<'a>, name: &str, script: &str) -> Instance {
    asked_every(PATIENT, scene, run, name, script)
}

fn asked_every<'a>(
    often: [&str; 4],
    scene: &'a Scene,
    run: Run<'a>,
    name: &str,
    script: &str,
) -> Instance {
    run.args(["--identity", name, "--health", script, "--event-log"])
        .arg(events(scene))
        .args(often)
        .args(COOL)
        .journalist(name, &[])
        .start()
}

/// Runs on a lock that is not kept by a descriptor.
fn on_share(scene: &Scene) -> Run<'_> {
    scene
        .run_on_file()
        .args(["--shared", "--lease", "20s", "--poll", "200ms"])
}

fn journalist(scene: &Scene, name: &str, options: &str) -> String {
    let journalist = programs::journalist().display();
    let journal = scene.journal.path().display();
    format!("exec {journalist} {journal} {name}/health {options}")
}

#[test]
fn a_command_whose_checks_fail_loses_control_to_another_instance() {
    let scene = Scene::new();
    let sick = scene.path("sick");
    let script = format!("test ! -e {} || exit 3", sick.display());
    let mut one = asked(&scene, scene.run_on_file(), "one", &script);
    scene.journal.await_tag(What::Beat, "one");
    let mut two = asked(&scene, scene.run_on_file(), "two", "true");
    two.await_log("standing by");
    File::create(&sick).unwrap();
    scene.journal.await_tag(What::Beat, "two");
    one.await_log("--health failed 3 times in a row; the last time it exited with status 3");
    one.await_log("cooling down");
    stop(&mut two);
    stop(&mut one);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
    let (text, _) = timeline(&scene);
    assert!(
        text.contains("given back: hung: --health failed 3"),
        "{text}"
    );
    let log = std::fs::read_to_string(events(&scene)).unwrap();
    for word in ["unhealthy", "hung"] {
        assert!(
            log.contains(&format!("\"event\":\"{word}\"")),
            "{word}: {log}"
        );
    }
}

#[test]
fn checks_that_fail_now_and_then_stop_nothing() {
    let scene = Scene::new();
    let asked = scene.path("asked");
    // Two of three fail, but never three in a row.
    let script = format!(
        "echo >> {0}; [ $(($(wc -l < {0}) % 3)) = 0 ]",
        asked.display()
    );
    let mut one = self::asked(&scene, scene.run_on_file(), "one", &script);
    // Four have failed.
    await_lines(&asked, 7);
    one.await_log("--health succeeds again");
    assert!(!one.stderr().contains("hung:"), "{}", one.stderr());
    stop(&mut one);
    assert_eq!(scene.journal.tenures().len(), 1);
}

#[test]
fn check_that_cannot_be_started_for_want_of_processes_stops_nothing() {
    let scene = Scene::new();
    let run = scene
        .run_on_file()
        .on_a_machine_that_refuses()
        .args(["--contain", "none", "-v"])
        .args(["--health-failures", "2"]);
    let often = ["--health-every", "1s", "--health-timeout", "1s"];
    let mut one = asked_every(often, &scene, run, "one", "true");
    scene.journal.await_tag(What::Beat, "one");
    scene.refuse("fork");
    // Twice the number that would be too many.
    one.await_log_times("this is no failure of the command and does not count", 4);
    scene.grant("fork");
    assert!(!one.stderr().contains("hung"), "{}", one.stderr());
    stop(&mut one);
    assert_eq!(scene.journal.tenures().len(), 1);
}

/// A check that ignores TERM and never ends, with a daemon that ignores it, too.
#[test]
fn hanging_check_is_killed_with_its_tree_at_its_time_limit() {
    let scene = Scene::new();
    let script = journalist(&scene, "one", "--term ignore --daemon --children 2");
    let mut one = asked_every(QUICK, &scene, scene.run_on_file(), "one", &script);
    scene.journal.await_tag(What::Beat, "one/health/daemon");
    let mut two = asked(&scene, scene.run_on_file(), "two", "true");
    scene.journal.await_tag(What::Beat, "two");
    one.await_log("--health failed 3 times in a row; the last time it took too long");
    stop(&mut two);
    stop(&mut one);
    scene.await_nobody();
    // Checks belong to their command's tenure.
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn a_check_that_runs_when_the_command_is_to_end_is_gone_before_control_is() {
    let scene = Scene::new();
    let script = journalist(&scene, "one", "--term ignore --daemon --children 2");
    let slow = ["--health-every", "1h", "--health-timeout", "1h"];
    let mut one = on_share(&scene)
        .args(["--identity", "one", "--health", &script])
        .args(slow)
        // The command does not feed the watchdog, and is stopped for that during a check.
        .args(["--watchdog", "2s", "--watchdog-start", "2s"])
        .args(COOL)
        .journalist("one", &[])
        .start();
    scene.journal.await_tag(What::Beat, "one/health/daemon");
    let mut two = asked(&scene, on_share(&scene), "two", "true");
    two.await_log("standing by");
    scene.journal.await_tag(What::Beat, "two");
    one.await_log("cooling down");
    scene.journal.await_sign_of_life("two");
    stop(&mut two);
    stop(&mut one);
    scene.await_nobody();
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn leftovers_of_a_successful_check_are_killed() {
    let scene = Scene::new();
    let left = scene.path("left");
    let script = format!(
        "(trap '' TERM; setsid sleep 1000) & echo $! >> {}",
        left.display()
    );
    let mut one = asked(&scene, scene.run_on_file(), "one", &script);
    await_lines(&left, 4);
    assert!(!one.stderr().contains("--health"), "{}", one.stderr());
    await_for(
        "one sleeper at the most",
        || {
            (scene
                .trees()
                .iter()
                .filter(|it| it.program == "sleep")
                .count()
                <= 1)
                .then_some(())
        },
        || format!("{:?}", scene.trees()),
    );
    stop(&mut one);
    scene.await_nobody();
}

#[test]
fn output_of_a_check_is_discarded_in_any_amount() {
    let scene = Scene::new();
    let script = "yes; yes >&2";
    let finished = scene
        .run_on_file()
        .args(["--health", script])
        .args(QUICK)
        .args(COOL)
        .args([
            "--health-failures",
            "2",
            "--on-lost",
            "echo \"$TRAFFICCOP_CAUSE\"",
        ])
        .command(["sleep", "1000"])
        .start();
    finished.await_log("cooling down");
    await_for(
        "the hook",
        || finished.stdout().ends_with('\n').then_some(()),
        || finished.stderr(),
    );
    assert_eq!(
        finished.stdout(),
        "hung: --health failed 2 times in a row; the last time it took too long\n"
    );
    assert!(finished.stderr().len() < 2000);
}

#[test]
fn a_check_knows_for_whom_it_asks() {
    let scene = Scene::new();
    let seen = scene.path("seen");
    let script = format!(
        "echo \"$TRAFFICCOP_ROLE $TRAFFICCOP_TOKEN\" >> {}; {} check",
        seen.display(),
        programs::trafficcop()
    );
    let mut one = asked(&scene, scene.run_on_file(), "one", &script);
    await_lines(&seen, 3);
    stop(&mut one);
    let text = std::fs::read_to_string(&seen).unwrap();
    assert!(text.lines().all(|line| line == "holder 1"), "{text}");
    assert!(!one.stderr().contains("--health"), "{}", one.stderr());
}

#[test]
fn the_first_check_waits_for_its_delay_and_none_is_made_on_standby() {
    let scene = Scene::new();
    let seen = scene.path("seen");
    let script = format!("echo >> {}; exit 1", seen.display());
    let run = scene.run_on_file().args(["--health-delay", "1h"]);
    let mut one = asked(&scene, run, "one", &script);
    scene.journal.await_tag(What::Beat, "one");
    let mut two = asked(&scene, scene.run_on_file(), "two", &script);
    two.await_log("standing by");
    let now = trafficcop::Instant::now().as_nanos();
    scene
        .journal
        .await_line("time to pass", |line| line.at > now + 1_500_000_000);
    assert!(!seen.exists());
    stop(&mut two);
    stop(&mut one);
}

fn parent_of(pid: i32) -> i32 {
    let process = await_for("its parent", || Process::read(pid), String::new);
    process.parent
}

#[test]
fn a_supervisor_that_is_killed_takes_the_check_with_it_before_control_is_given_back() {
    let scene = Scene::new();
    let script = journalist(&scene, "one", "--term ignore --daemon --children 3");
    let one = on_share(&scene)
        .args([
            "--identity",
            "one",
            "--health",
            &script,
            "--health-every",
            "1h",
        ])
        .args(["--health-timeout", "1h"])
        .journalist("one", &[])
        .start();
    scene.journal.await_tag(What::Beat, "one/health/daemon");
    let mut two = on_share(&scene)
        .args(["--identity", "two"])
        .journalist("two", &[])
        .start();
    two.await_log("standing by");
    one.signal(Signal::SIGKILL);
    scene.journal.await_tag(What::Beat, "two");
    stop(&mut two);
    scene.await_nobody();
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn without_the_guardian_of_its_checks_an_instance_ends_in_order() {
    let scene = Scene::new();
    let script = journalist(&scene, "one", "--term ignore");
    let mut one = scene
        .run_on_file()
        .args([
            "--identity",
            "one",
            "--health",
            &script,
            "--health-every",
            "1h",
        ])
        .args(["--health-timeout", "1h"])
        .journalist("one", &["--term", "100:0"])
        .start();
    // A process that is stopped before its first line has no end in the journal.
    scene.journal.await_tag(What::Beat, "one");
    let check = scene.journal.await_tag(What::Beat, "one/health");
    signal(parent_of(check.pid), Signal::SIGKILL);
    assert_eq!(one.wait(), Ended::Code(70), "{}", one.stderr());
    scene.journal.await_tag(What::End, "one");
    scene.assert_no_tree();
}
