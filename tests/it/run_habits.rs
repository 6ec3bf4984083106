//! `trafficcop run --restart`, `--max-hold`, `--min-hold`: control that is kept, rotated, or passed
//! on.

use std::fs::File;
use std::time::Duration;

use nix::sys::signal::Signal;
use trafficcop::Instant;

use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string};
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Instance};
use crate::support::journal::What;
use crate::support::processes;
use crate::support::scene::Scene;

const TERM: Ended = Ended::Died(Signal::SIGTERM);
const KILL: Ended = Ended::Died(Signal::SIGKILL);

fn instance(scene: &Scene, name: &str, options: &[&str], command: &[&str]) -> Instance {
    scene
        .run_on_file()
        .args(["--identity", name])
        .args(options)
        .journalist(name, command)
        .start()
}

fn until(scene: &Scene, name: &str) -> String {
    scene
        .path(&format!("{name}.done"))
        .to_str()
        .unwrap()
        .to_owned()
}

fn let_end(scene: &Scene, name: &str) {
    File::create(until(scene, name)).unwrap();
}

fn starts(scene: &Scene, tag: &str) -> Vec<Instant> {
    let lines = scene.journal.lines();
    let starts = lines
        .iter()
        .filter(|line| line.what == What::Start && line.tag == tag);
    starts.map(|line| Instant::from_nanos(line.at)).collect()
}

fn await_starts(scene: &Scene, tag: &str, count: usize) {
    await_for(
        &format!("{count} starts of {tag}"),
        || (starts(scene, tag).len() >= count).then_some(()),
        || scene.journal.to_string(),
    );
}

const FAILING: [&str; 4] = ["--beats", "3", "--status", "3"];
const ON_FAILURE: [&str; 2] = ["--restart", "on-failure"];
const ALWAYS: [&str; 2] = ["--restart", "always"];

#[test]
fn a_command_that_fails_is_started_again_under_the_same_token_after_a_growing_back_off() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &ON_FAILURE, &FAILING);
    await_starts(&scene, "one", 3);
    one.signal(Signal::SIGTERM);
    one.wait();
    let starts = starts(&scene, "one");
    assert!(starts[1].since(starts[0]) >= Duration::from_secs(1));
    assert!(starts[2].since(starts[1]) >= Duration::from_secs(2));
    assert_eq!(scene.journal.judge(), ["one"], "one tenure");
    let log = one.stderr();
    for words in [
        "exited with status 3",
        "started again in 1s (restart 1)",
        "starting the command again",
        "started again in 2s (restart 2)",
    ] {
        assert!(log.contains(words), "'{words}' is not in\n{log}");
    }
    scene.await_nobody();
}

#[test]
fn on_failure_leaves_a_success_alone() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &ON_FAILURE, &["--beats", "3"]);
    assert_eq!(one.wait(), Ended::Code(0));
    assert_eq!(starts(&scene, "one").len(), 1);
}

#[test]
fn always_starts_a_success_again() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &ALWAYS, &["--beats", "3"]);
    await_starts(&scene, "one", 2);
    one.signal(Signal::SIGTERM);
    one.wait();
    assert_eq!(scene.journal.judge(), ["one"]);
    scene.await_nobody();
}

#[test]
fn a_command_that_is_not_there_is_127_however_often_it_would_be_restarted() {
    let scene = Scene::new();
    let finished = scene
        .run_on_file()
        .args(ALWAYS)
        .command(["no-such-command"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(127), "{}", finished.stderr);
    assert!(!finished.stderr.contains("again"), "{}", finished.stderr);
}

#[test]
fn a_command_that_is_gone_at_its_restart_is_127() {
    let scene = Scene::new();
    let script = scene.path("once.sh");
    std::fs::write(&script, "#!/bin/sh\nrm \"$0\"\nexit 3\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let finished = scene
        .run_on_file()
        .args(ON_FAILURE)
        .command([&script])
        .finish();
    assert_eq!(finished.ended, Ended::Code(127), "{}", finished.stderr);
}

#[test]
fn a_stop_during_the_back_off_is_death_by_its_signal() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &ON_FAILURE, &FAILING);
    one.await_log("started again in 4s");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    assert_eq!(starts(&scene, "one").len(), 3);
    scene.await_nobody();
}

#[test]
fn the_lock_is_kept_during_the_back_off() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &ON_FAILURE, &FAILING);
    one.await_log("started again in 4s");
    let other = scene.run_on_file().arg("-n").command(["true"]).finish();
    assert_eq!(other.ended, Ended::Code(75), "{}", other.stderr);
    one.signal(Signal::SIGTERM);
    one.wait();
}

#[test]
fn leftovers_of_a_command_end_before_its_restart() {
    let scene = Scene::new();
    let command = [
        "--beats", "3", "--status", "3", "--daemon", "--term", "ignore",
    ];
    let options = ["--restart", "on-failure", "--grace", "1s"];
    let mut one = instance(&scene, "one", &options, &command);
    await_starts(&scene, "one", 2);
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.await_nobody();
    let lines = scene.journal.lines();
    let second = starts(&scene, "one")[1];
    let daemon = lines
        .iter()
        .find(|line| line.tag == "one/daemon")
        .expect("a daemon");
    let last = lines
        .iter()
        .rfind(|line| line.pid == daemon.pid)
        .map(|line| Instant::from_nanos(line.at))
        .unwrap();
    assert!(last < second, "{}", scene.journal);
}

#[test]
fn a_supervisor_killed_during_the_back_off_leaves_nothing_and_hands_over() {
    let scene = Scene::new();
    let mut first = instance(&scene, "first", &ON_FAILURE, &FAILING);
    scene.journal.await_tag(What::Start, "first");
    let done = until(&scene, "second");
    let mut second = instance(&scene, "second", &[], &["--until", &done]);
    second.await_log("standing by");
    first.await_log("started again in 4s");
    first.signal(Signal::SIGKILL);
    assert_eq!(first.wait(), KILL);
    scene.journal.await_tag(What::Beat, "second");
    let_end(&scene, "second");
    assert_eq!(second.wait(), Ended::Code(0));
    assert_eq!(scene.journal.judge(), ["first", "second"]);
    assert!(starts(&scene, "first").len() == 3, "{}", scene.journal);
    scene.await_nobody();
}

#[test]
fn a_guardian_killed_during_the_back_off_ends_it_with_status_70() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &ON_FAILURE, &FAILING);
    one.await_log("started again in 4s");
    // Without a command it is the only child.
    let all = processes::marked(scene.directory());
    let guardian = all.iter().find(|process| process.parent == one.pid());
    let guardian = guardian.expect("a guardian").pid;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(guardian), Signal::SIGKILL).unwrap();
    assert_eq!(one.wait(), Ended::Code(70), "{}", one.stderr());
    assert_eq!(starts(&scene, "one").len(), 3);
    scene.await_nobody();
}

#[test]
fn a_machine_on_which_the_command_cannot_work_passes_it_on() {
    let scene = Scene::new();
    let mut options = ON_FAILURE.to_vec();
    options.extend(["--restart-limit", "1", "--cooldown", "2s"]);
    let mut broken = instance(&scene, "broken", &options, &FAILING);
    scene.journal.await_tag(What::Start, "broken");
    let done = until(&scene, "well");
    let mut well = instance(&scene, "well", &[], &["--until", &done]);
    let token = scene.journal.await_tag(What::Beat, "well").token;
    broken.await_log("standing by: well is in control");
    broken.assert_running();
    let log = broken.stderr();
    for words in [
        "as often as --restart-limit allows",
        "gave the lock back",
        "cooling down for",
    ] {
        assert!(log.contains(words), "'{words}' is not in\n{log}");
    }
    assert_eq!(
        starts(&scene, "broken").len() as u64,
        2 * (token - 1),
        "one restart in each tenure\n{}",
        scene.journal
    );
    let_end(&scene, "well");
    assert_eq!(well.wait(), Ended::Code(0));
    // No other instance is left: it competes again.
    scene
        .journal
        .await_line("a further tenure", |line| line.token > token);
    broken.signal(Signal::SIGTERM);
    broken.wait();
    let turns = scene.journal.judge();
    assert_eq!(turns.first().unwrap(), "broken");
    assert_eq!(turns.last().unwrap(), "broken");
    assert_eq!(turns.iter().filter(|tag| *tag == "well").count(), 1);
    scene.await_nobody();
}

#[test]
fn two_instances_with_a_max_hold_take_turns_and_never_overlap() {
    let scene = Scene::new();
    let options = ["--max-hold", "1s", "--cooldown", "500ms", "--grace", "1s"];
    let command = ["--term", "50:0", "--children", "1"];
    let mut one = instance(&scene, "one", &options, &command);
    let mut two = instance(&scene, "two", &options, &command);
    let turns = |tag: &str| {
        let tenures = scene.journal.tenures();
        tenures
            .iter()
            .filter(|tenure| tenure.tag.starts_with(tag))
            .count()
    };
    await_for(
        "each to have had three turns",
        || (turns("one") >= 3 && turns("two") >= 3).then_some(()),
        || scene.journal.to_string(),
    );
    one.assert_running();
    two.assert_running();
    for instance in [&one, &two] {
        instance.signal(Signal::SIGTERM);
    }
    one.wait();
    two.wait();
    scene.journal.judge();
    assert!(one.stderr().contains("control was held for --max-hold"));
    scene.await_nobody();
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_at_the_end_of_its_grace_and_control_goes_round() {
    let scene = Scene::new();
    let options = ["--max-hold", "1s", "--grace", "300ms"];
    let mut one = instance(&scene, "one", &options, &["--term", "ignore"]);
    scene.journal.await_tag(What::Beat, "one");
    let done = until(&scene, "two");
    let mut two = instance(&scene, "two", &[], &["--until", &done]);
    scene.journal.await_tag(What::Beat, "two");
    one.assert_running();
    let_end(&scene, "two");
    assert_eq!(two.wait(), Ended::Code(0));
    one.signal(Signal::SIGTERM);
    one.wait();
    assert_eq!(scene.journal.judge()[..2], ["one", "two"]);
    scene.await_nobody();
}

#[test]
fn a_stop_during_a_hand_over_is_the_end() {
    let scene = Scene::new();
    let options = ["--max-hold", "1s", "--grace", "60s"];
    let mut one = instance(&scene, "one", &options, &["--term", "5000:5"]);
    one.await_log("control was held for --max-hold");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), Ended::Code(5), "{}", one.stderr());
    scene.await_nobody();
}

#[test]
fn a_stop_during_the_cool_down_ends_it_at_once() {
    let scene = Scene::new();
    let options = ["--max-hold", "1s", "--cooldown", "1h"];
    let mut one = instance(&scene, "one", &options, &[]);
    one.await_log("cooling down for");
    let other = scene.run_on_file().arg("-n").command(["true"]).finish();
    assert_eq!(other.ended, Ended::Code(0), "the lock is free");
    one.signal(Signal::SIGINT);
    assert_eq!(one.wait(), Ended::Died(Signal::SIGINT), "{}", one.stderr());
    scene.await_nobody();
}

#[test]
fn a_short_command_s_lock_is_kept_for_a_clock_that_is_late_and_given_back_on_a_stop() {
    let scene = Scene::new();
    let options = ["--min-hold", "1h"];
    let mut one = instance(&scene, "one", &options, &["--beats", "3", "--status", "7"]);
    one.await_log("keeping the lock for");
    let late = || {
        scene
            .run_on_file()
            .args(["-n", "-E", "0"])
            .journalist("late", &["--beats", "3"])
            .finish()
    };
    let finished = late();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    assert_eq!(scene.journal.judge(), ["one"], "the late one did not run");
    one.assert_running();
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), Ended::Code(7), "{}", one.stderr());
    let finished = late();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    assert_eq!(scene.journal.judge(), ["one", "late"]);
    scene.await_nobody();
}

#[test]
fn a_hold_that_was_long_enough_ends_with_the_command_s_status() {
    let scene = Scene::new();
    let begin = Instant::now();
    let options = ["--min-hold", "2s"];
    let mut one = instance(&scene, "one", &options, &["--beats", "3", "--status", "7"]);
    assert_eq!(one.wait(), Ended::Code(7), "{}", one.stderr());
    assert!(Instant::now().since(begin) >= Duration::from_secs(2));
}

#[test]
fn a_supervisor_killed_while_the_lock_is_kept_gives_it_back() {
    let scene = Scene::new();
    let options = ["--min-hold", "1h"];
    let mut one = instance(&scene, "one", &options, &["--beats", "3"]);
    one.await_log("keeping the lock for");
    one.signal(Signal::SIGKILL);
    assert_eq!(one.wait(), KILL);
    scene.await_nobody();
    let other = scene.run_on_file().arg("-n").command(["true"]).finish();
    assert_eq!(other.ended, Ended::Code(0), "{}", other.stderr);
}

#[test]
fn the_status_file_says_resting_and_standing_back() {
    let scene = Scene::new();
    let status = scene.path("status.json");
    let says = |words: &str| {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        text.contains(&format!("\"state\":\"{words}\""))
    };
    let await_state = |words: &str| {
        await_for(
            words,
            || says(words).then_some(()),
            || std::fs::read_to_string(&status).unwrap_or_default(),
        );
    };
    let mut options = vec!["--status-file", status.to_str().unwrap()];
    options.extend(ON_FAILURE);
    options.extend(["--restart-limit", "2", "--cooldown", "1h"]);
    let mut one = instance(&scene, "one", &options, &FAILING);
    await_state("resting");
    await_state("cooling down");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    await_state("done");
}

#[test]
fn a_supervisor_killed_during_the_back_off_gives_a_blob_s_lease_back() {
    let scene = Scene::new();
    let blob = Blob::named("habits/back-off");
    let mut one = scene
        .run()
        .env(
            "AZURE_STORAGE_CONNECTION_STRING",
            connection_string(azurite().port),
        )
        .args(["--blob", &blob.name, "--lease", "60s"])
        .args(ON_FAILURE)
        .journalist("one", &FAILING)
        .start();
    one.await_log("started again in 4s");
    assert_eq!(blob.lease_state(), "leased", "it is kept meanwhile");
    one.signal(Signal::SIGKILL);
    let killed = Instant::now();
    assert_eq!(one.wait(), KILL);
    blob.await_lease_state("available");
    // Renewed when the back-off began, so it cannot have run out.
    assert!(Instant::now().since(killed) < Duration::from_secs(45));
    scene.await_nobody();
}
