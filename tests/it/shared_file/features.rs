//! Features on a lock kept as on a shared drive.

use std::path::PathBuf;

use serde_json::Value;

use super::*;
use crate::support::await_for;
use crate::support::instance::{Finished, assert_ended};

fn lock(scene: &Scene) -> PathBuf {
    let directory = scene.path("locks");
    std::fs::create_dir_all(&directory).unwrap();
    directory.join("lock")
}

/// Runs on the scene's lock, kept as on a shared drive.
fn shared<'a>(scene: &'a Scene, name: &str, options: &[&str]) -> Run<'a> {
    run(scene, &lock(scene), name, options).arg("--shared")
}

fn shared_instance(scene: &Scene, name: &str, options: &[&str], command: &[&str]) -> Instance {
    let options = [&["--shared"], options].concat();
    instance(scene, &lock(scene), name, &options, command)
}

fn verb(scene: &Scene, words: &[&str], path: PathBuf) -> Finished {
    let verb = scene.verb(words[0]).arg("--file").arg(path);
    verb.args(&words[1..]).finish()
}

fn status(scene: &Scene) -> Value {
    let told = verb(scene, &["status", "--json"], lock(scene));
    serde_json::from_str(&told.stdout).unwrap_or_else(|_| panic!("{}", told.stderr))
}

#[test]
fn two_slots_let_two_run_and_the_third_when_one_ends() {
    let scene = Scene::new();
    let slots = ["--slots", "2"];
    let mut a = shared_instance(&scene, "a", &slots, &[]);
    let b = shared_instance(&scene, "b", &slots, &[]);
    scene.journal.await_tag(What::Beat, "a");
    scene.journal.await_tag(What::Beat, "b");
    let mut c = shared_instance(&scene, "c", &slots, &[]);
    c.await_log("standing by");
    c.assert_running();
    let_end(&scene, "a");
    assert_eq!(a.wait(), Ended::Code(0), "{}", a.stderr());
    let first = scene.journal.await_tag(What::Start, "c");
    assert!(first.at > last_before(&scene, "a", u64::MAX).at);
    scene.journal.await_sign_of_life("b");
    terminate(b);
    terminate(c);
    scene.await_nobody();
}

#[test]
fn task_is_done_once_and_later_candidates_do_nothing() {
    let scene = Scene::new();
    let one = shared_instance(&scene, "one", &["--once"], &[]);
    scene.journal.await_tag(What::Beat, "one");
    let two = shared_instance(&scene, "two", &["--once"], &[]);
    two.await_log("standing by");
    let_end(&scene, "one");
    for one in [one, two] {
        let finished = one.finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    }
    let three = shared(&scene, "three", &["--once"]).journalist("three", &[]);
    assert_ended(&three.finish(), 0, "one");
    // Other tenures keep the result; another key is another task.
    for _ in 0..2 {
        let other = shared(&scene, "other", &[]).command(["true"]).finish();
        assert_eq!(other.ended, Ended::Code(0), "{}", other.stderr);
    }
    let key = shared(&scene, "key", &["--once", "--once-key", "b"]).command(["true"]);
    assert_eq!(key.finish().ended, Ended::Code(0));
    let four = shared(&scene, "four", &["--once"]).journalist("four", &[]);
    assert_ended(&four.finish(), 0, "one");
    assert_eq!(scene.journal.judge(), ["one"]);
}

#[test]
fn a_failed_task_is_tried_again() {
    let scene = Scene::new();
    let tried = scene.path("tried");
    let script = format!("mkdir {} && exit 3; exit 0", tried.display());
    let two = ["one", "two"].map(|name| shared(&scene, name, &["--once"]).shell(&script).start());
    let mut failed = 0;
    for one in two {
        let finished = one.finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
        failed += finished.stderr.matches("attempt 1 failed").count();
    }
    assert_eq!(failed, 1);
    let late = shared(&scene, "late", &["--once"]).journalist("late", &[]);
    assert_eq!(late.finish().ended, Ended::Code(0));
    assert_eq!(scene.journal.judge(), [""; 0]);
}

#[test]
fn a_task_is_done_once_in_a_slot_of_time() {
    let scene = Scene::new();
    let slot = ["--once-per", "365d"];
    for name in ["one", "two"] {
        let done = shared(&scene, name, &slot).journalist(name, &["--beats", "1"]);
        assert_eq!(done.finish().ended, Ended::Code(0));
    }
    assert_eq!(scene.journal.judge(), ["one"]);
    let beside = std::fs::read_dir(scene.path("locks/lock.versions")).unwrap();
    let names = beside.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let times: Vec<String> = names.filter(|name| name.starts_with("time")).collect();
    assert!(times.is_empty(), "{times:?}");
}

#[test]
fn a_result_outlives_a_holder_that_dies_after_it() {
    let scene = Scene::new();
    let done = shared(&scene, "one", &["--once"])
        .command(["true"])
        .finish();
    assert_eq!(done.ended, Ended::Code(0), "{}", done.stderr);
    let dies = shared_instance(&scene, "dies", &[], &[]);
    scene.journal.await_tag(What::Beat, "dies");
    kill_both(dies);
    let late = shared(&scene, "late", &["--once"]).journalist("late", &[]);
    assert_eq!(late.finish().ended, Ended::Code(0));
    assert_eq!(scene.journal.judge(), ["dies"]);
}

#[test]
fn a_command_is_started_again_while_control_is_kept() {
    let scene = Scene::new();
    let options = ["--restart", "always"];
    let one = shared(&scene, "one", &options).journalist("one", &["--beats", "2"]);
    let one = one.start();
    await_for(
        "three starts",
        || {
            let lines = scene.journal.lines();
            let starts = lines.iter().filter(|line| line.what == What::Start);
            (starts.count() >= 3).then_some(())
        },
        || one.stderr(),
    );
    // Its command may be between two runs.
    one.signal(Signal::SIGTERM);
    let _ = one.finish();
    let tenures = scene.journal.tenures();
    assert_eq!(tenures.len(), 1, "{}", scene.journal);
}

#[test]
fn max_hold_hands_control_round() {
    let scene = Scene::new();
    let options = ["--max-hold", "3s", "--grace", "1s"];
    let one = shared_instance(&scene, "one", &options, &[]);
    scene.journal.await_tag(What::Beat, "one");
    let two = shared_instance(&scene, "two", &options, &[]);
    scene.journal.await_tag(What::Beat, "two");
    scene.journal.await_line("another turn", |line| {
        line.command() == "one" && line.token > 1
    });
    drop(terminate(two));
    drop(terminate(one));
    assert_eq!(scene.journal.judge()[..3], ["one", "two", "one"]);
}

#[test]
fn a_standby_command_runs_while_not_in_control() {
    let scene = Scene::new();
    let mut one = shared_instance(&scene, "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    let (begun, ended) = (scene.path("begun"), scene.path("ended"));
    let script = format!(
        "trap 'touch {}; exit 0' TERM; touch {}; while :; do sleep 0.1; done",
        ended.display(),
        begun.display()
    );
    let two = shared_instance(&scene, "two", &["--standby", &script], &[]);
    await_for(
        "the standby",
        || begun.exists().then_some(()),
        || two.stderr(),
    );
    assert!(!ended.exists());
    let_end(&scene, "one");
    one.wait();
    scene.journal.await_tag(What::Start, "two");
    assert!(ended.exists());
    terminate(two);
}

#[test]
fn elect_tells_a_reader_who_is_in_control() {
    let scene = Scene::new();
    let elect = |name| {
        let elect = scene.elect().arg("--file").arg(lock(&scene));
        let elect = elect.args(["--identity", name, "--lease", "12s", "--poll", "1s"]);
        elect.arg("--shared").start()
    };
    let told = |one: &Instance, line: &str| {
        await_for(
            line,
            || one.stdout().lines().any(|said| said == line).then_some(()),
            || format!("{}{}", one.stdout(), one.stderr()),
        );
    };
    let one = elect("one");
    told(&one, "holder 1");
    let two = elect("two");
    told(&two, "standby one");
    one.signal(Signal::SIGTERM);
    let _ = one.finish();
    let next = await_for(
        "the next holder",
        || {
            Some(
                two.stdout()
                    .lines()
                    .find(|said| said.starts_with("holder "))?
                    .to_owned(),
            )
        },
        || format!("{}{}", two.stdout(), two.stderr()),
    );
    assert_ne!(next, "holder 1");
    two.signal(Signal::SIGTERM);
    let _ = two.finish();
}

#[test]
fn status_list_and_watch_tell_a_tenure() {
    let scene = Scene::new();
    assert_eq!(status(&scene)["state"], "missing");
    let watch = scene.verb("watch").arg("--file").arg(lock(&scene));
    let watch = watch.args(["--poll", "100ms", "--json"]).start();
    let seen = |state: &str| {
        let text = format!("\"state\":\"{state}\"");
        await_for(
            state,
            || watch.stdout().contains(&text).then_some(()),
            || format!("{}{}", watch.stdout(), watch.stderr()),
        );
    };
    seen("missing");
    let mut one = shared_instance(&scene, "one", &[], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    seen("held");
    let held = status(&scene);
    assert_eq!(
        (&held["holder"], &held["token"]),
        (&"one".into(), &1.into())
    );
    assert_eq!(held["pid"], one.pid());
    let listed = verb(&scene, &["list", "--json"], scene.path("locks"));
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["holder"], "one");
    one.signal(Signal::SIGTERM);
    seen("draining");
    let_end(&scene, "one");
    one.wait();
    seen("free");
    assert_eq!(status(&scene)["state"], "free");
}

#[test]
fn reset_has_a_task_done_again() {
    let scene = Scene::new();
    let task = |name: &str| {
        let run = shared(&scene, name, &["--once"]).journalist(name, &["--beats", "1"]);
        let finished = run.finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    };
    task("one");
    task("two");
    let reset = verb(&scene, &["reset", "--yes"], lock(&scene));
    assert_eq!(reset.ended, Ended::Code(0), "{}", reset.stderr);
    task("three");
    assert_eq!(scene.journal.judge(), ["one", "three"]);
}

#[test]
fn break_ends_a_tenure_and_the_holder_competes_again() {
    let scene = Scene::new();
    let one = shared_instance(&scene, "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    let two = shared_instance(&scene, "two", &[], &[]);
    two.await_log("standing by: one is in control");
    let broken = verb(&scene, &["break", "--yes"], lock(&scene));
    assert_eq!(broken.ended, Ended::Code(0), "{}", broken.stderr);
    scene.journal.await_tag(What::Start, "two");
    one.await_log("standing by: two is in control");
    terminate(one);
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn break_at_the_leases_end_stops_the_command_without_an_overlap() {
    let scene = Scene::new();
    let options = ["--if-lost", "exit"];
    let mut one = shared_instance(&scene, "one", &options, &["--term", "100:0"]);
    scene.journal.await_tag(What::Beat, "one");
    let broken = verb(&scene, &["break", "--yes"], lock(&scene));
    assert_eq!(broken.ended, Ended::Code(0), "{}", broken.stderr);
    assert_eq!(one.wait(), Ended::Code(70), "{}", one.stderr());
    let lines = scene.journal.lines();
    let told: Vec<What> = lines.iter().map(|line| line.what).collect();
    let ended = told.contains(&What::Term) && told.last() == Some(&What::End);
    assert!(ended, "{}", scene.journal);
}

#[test]
fn the_other_protocol_at_one_path_is_refused_by_both() {
    let scene = Scene::new();
    scene.excuse_event_logs("the lock is removed, and the next one counts anew");
    let local = || {
        scene
            .run()
            .arg("--file")
            .arg(lock(&scene))
            .arg("-n")
            .command(["true"])
            .finish()
    };
    assert_eq!(local().ended, Ended::Code(0));
    let other = || shared(&scene, "other", &["-n"]).command(["true"]).finish();
    assert_ended(&other(), 69, "no lock of a shared drive");
    std::fs::remove_file(lock(&scene)).unwrap();
    assert_eq!(other().ended, Ended::Code(0));
    // On the server's own disk the path decides.
    assert_eq!(local().ended, Ended::Code(0));
    assert_eq!(status(&scene)["token"], 3);
}

#[test]
fn instance_without_shared_stands_by_while_one_with_it_is_in_control() {
    let scene = Scene::new();
    let one = shared_instance(&scene, "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    let without = || run(&scene, &lock(&scene), "without", &["-n"]);
    let held = without().command(["true"]).finish();
    assert_ended(&held, 75, "one is in control");
    terminate(one);
    let free = without().command(["true"]).finish();
    assert_eq!(free.ended, Ended::Code(0), "{}", free.stderr);
}

#[test]
fn a_lease_that_is_too_short_or_too_long_is_refused() {
    let scene = Scene::new();
    for (lease, words) in [("9s", "10s to 60s"), ("61s", "10s to 60s")] {
        let run = scene
            .run()
            .arg("--file")
            .arg(lock(&scene))
            .args(["--shared", "--lease", lease]);
        let run = run.command(["true"]);
        assert_ended(&run.finish(), 64, words);
    }
    assert!(!lock(&scene).exists());
}
