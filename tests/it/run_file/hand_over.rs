//! However the holder ends, the next instance runs then, and never before.

use nix::sys::signal::Signal;

use super::{A_TREE, KILL, TERM, instance, let_end};
use crate::support::instance::{Ended, Instance};
use crate::support::journal::What;
use crate::support::scene::Scene;

/// Two instances compete. The first, with this command, is in control, and `end` ends it. The
/// second must run then, but not before all processes of the first have ended.
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
fn sigterm_ends_the_command_and_hands_over() {
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
fn a_tree_that_ignores_sigterm_is_killed_before_the_hand_over() {
    hand_over(&A_TREE, |_, first| first.signal(Signal::SIGTERM), KILL);
}

#[test]
fn the_death_of_the_supervisor_hands_over_when_a_tree_that_ignores_sigterm_is_gone() {
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
fn many_instances_run_one_at_a_time() {
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
