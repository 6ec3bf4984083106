//! `--on-lost`: it runs after a tenure, and delays nothing.

use super::*;

#[test]
fn the_hook_after_a_tenure_is_told_how_the_command_ended_and_our_status_is_the_command_s() {
    let scene = Scene::new();
    let finished = scene
        .run_on_file()
        .args(on_lost(&scene, "one"))
        .shell("exit 7")
        .finish();
    assert_eq!(finished.ended, Ended::Code(7), "{}", finished.stderr);
    assert_eq!(
        await_text(&scene, "one.lost"),
        "standby 1 the command ended"
    );
}

#[test]
fn the_next_tenure_s_hook_waits_for_the_end_of_on_lost() {
    let scene = Scene::new();
    let journal = scene.path("order");
    let lines = |count: usize| {
        let text = std::fs::read_to_string(&journal).unwrap_or_default();
        (text.lines().count() >= count).then_some(text)
    };
    let add = |what: &str| format!("{what} >> {}", journal.display());
    let mut instance = scene
        .run_on_file()
        .args(["--max-hold", "1s", "--cooldown", "100ms", "--on-acquire"])
        .arg(add("echo acquire"))
        .arg("--on-lost")
        .arg(add("sleep 2; echo lost"))
        .shell("sleep 600")
        .start();
    let text = await_for("two tenures", || lines(5), || scene.journal.to_string());
    instance.signal(Signal::SIGTERM);
    instance.wait();
    let order: Vec<&str> = text.lines().take(5).collect();
    assert_eq!(order, ["acquire", "lost", "acquire", "lost", "acquire"]);
}

#[test]
fn a_hook_that_hangs_after_a_tenure_delays_neither_the_release_nor_the_exit_for_long() {
    let scene = Scene::new();
    let hang = script(&standbys(&scene), "first", "--term ignore --daemon");
    let mut first = on_file(&scene, "first")
        .args(["--grace", "4s", "--on-lost"])
        .arg(hang)
        .start();
    scene.journal.await_tag(What::Beat, "first");
    let mut second = on_file(&scene, "second").start();
    second.await_log("standing by");
    first.signal(Signal::SIGTERM);
    // Both at the same time: the next holder does not wait for it.
    standbys(&scene).await_tag(What::Beat, "first/daemon");
    scene.journal.await_tag(What::Beat, "second");
    assert_eq!(first.wait(), TERM, "{}", first.stderr());
    let log = first.stderr();
    assert!(log.contains("--on-lost command takes too long"), "{log}");
    let next = scene.journal.await_tag(What::Start, "second");
    let lives = lives(&standbys(&scene));
    assert!(
        lives.values().all(|(_, last)| *last > next.at),
        "it held up the next holder"
    );
    second.signal(Signal::SIGTERM);
    second.wait();
    scene.await_nobody();
    assert_eq!(scene.journal.judge(), ["first", "second"]);
}

#[test]
fn the_death_of_the_guardian_of_the_hook_after_a_tenure_costs_the_command_nothing() {
    let scene = Scene::new();
    let mut one = on_file(&scene, "one").args(on_lost(&scene, "one")).start();
    scene.journal.await_tag(What::Beat, "one");
    let [_, aftermath] = &guardians(&scene, &one)[..] else {
        panic!("two guardians");
    };
    sigkill(aftermath.pid);
    one.await_log("the guardian of the --on-lost command died");
    scene.journal.await_sign_of_life("one");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    assert!(
        one.stderr().contains("is not run: its guardian is gone"),
        "{}",
        one.stderr()
    );
    scene.await_nobody();
}

#[test]
fn both_guardians_killed_at_once_leave_nothing() {
    let scene = Scene::new();
    let mut one = scene
        .run_on_file()
        .args(on_lost(&scene, "one"))
        .journalist("one", &["--term", "ignore", "--daemon", "--children", "2"])
        .start();
    scene.journal.await_tag(What::Beat, "one/daemon");
    one.freeze();
    for guardian in guardians(&scene, &one) {
        sigkill(guardian.pid);
    }
    one.signal(Signal::SIGCONT);
    assert_eq!(one.wait(), Ended::Code(70), "{}", one.stderr());
    scene.await_nobody();
}
