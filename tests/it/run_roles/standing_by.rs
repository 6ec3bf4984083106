//! `--standby` runs while another instance has control, and ends before the own command starts.

use std::time::Duration;

use trafficcop::Instant;

use super::*;

#[test]
fn one_of_three_holds_the_others_stand_by_and_roles_change() {
    let scene = Scene::new();
    let standbys = standbys(&scene);
    let start = |name: &str| {
        on_file(&scene, name)
            .args(standby(&scene, name, ""))
            .start()
    };
    let mut first = start("first");
    scene.journal.await_tag(What::Beat, "first");
    let (second, third) = (start("second"), start("third"));
    standbys.await_tag(What::Beat, "second");
    standbys.await_tag(What::Beat, "third");
    assert_eq!(starts(&standbys, "first"), 0, "it never waited");
    first.signal(Signal::SIGKILL);
    first.wait();
    let next = scene
        .journal
        .await_line("the next holder", |line| line.token == 2);
    let (mut next, mut last) = if next.tag == "second" {
        (second, third)
    } else {
        (third, second)
    };
    next.signal(Signal::SIGTERM);
    assert_eq!(next.wait(), TERM);
    scene
        .journal
        .await_line("the last holder", |line| line.token == 3);
    last.signal(Signal::SIGTERM);
    assert_eq!(last.wait(), TERM);
    scene.await_nobody();
    assert_eq!(judge(&scene).len(), 3);
}

#[test]
fn a_standby_that_ignores_term_and_its_daemon_are_gone_before_the_command_starts() {
    for contain in ["none", "cgroup", "pidns"] {
        let scene = Scene::new();
        let mut first = holder(&scene, "first");
        let mut second = on_file(&scene, "second")
            .args(["--grace", "2s", "--contain", contain])
            .args(standby(
                &scene,
                "second",
                "--term ignore --daemon --children 1",
            ))
            .start();
        let standbys = standbys(&scene);
        await_for(
            "a standby, or the word that this machine has no such containment",
            || (starts(&standbys, "second/daemon") > 0 || second.ended().is_some()).then_some(()),
            || standbys.to_string(),
        );
        if second.ended() == Some(Ended::Code(64)) {
            assert!(
                second.stderr().contains("is not available"),
                "{}",
                second.stderr()
            );
            println!("no --contain {contain} here: {}", second.stderr());
            continue;
        }
        standbys.await_tag(What::Beat, "second/child");
        let_end(&scene, "first");
        assert_eq!(first.wait(), Ended::Code(0));
        let freed = Instant::now().as_nanos();
        let begun = scene.journal.await_tag(What::Start, "second");
        // Two seconds of grace; the rest is for a slow machine.
        assert!(Duration::from_nanos(begun.at.saturating_sub(freed)) < Duration::from_secs(30));
        second.signal(Signal::SIGTERM);
        assert_eq!(second.wait(), TERM, "{}", second.stderr());
        scene.await_nobody();
        assert_eq!(judge(&scene), ["first", "second"]);
    }
}

#[test]
fn a_stop_while_standing_by_drains_the_standby_command() {
    let scene = Scene::new();
    let _first = holder(&scene, "first");
    let mut second = on_file(&scene, "second")
        .args(standby(&scene, "second", "--term 300:5 --daemon"))
        .args(["--grace", "2s"])
        .start();
    standbys(&scene).await_tag(What::Beat, "second/daemon");
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait(), TERM, "the standby's status is not ours");
    standbys(&scene).await_tag(What::End, "second");
    let left = scene.trees();
    assert_eq!(left.len(), 1, "only the holder's command: {left:?}");
}

#[test]
fn a_second_stop_kills_the_standby_command_at_once() {
    let scene = Scene::new();
    let _first = holder(&scene, "first");
    let mut second = on_file(&scene, "second")
        .args(standby(&scene, "second", "--term ignore"))
        .args(["--grace", "10m"])
        .start();
    standbys(&scene).await_tag(What::Beat, "second");
    second.signal(Signal::SIGTERM);
    // Not an echo of the first.
    std::thread::sleep(Duration::from_millis(300));
    second.assert_running();
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait(), TERM);
}

#[test]
fn a_stop_while_the_standby_drains_gives_the_lock_back_at_once() {
    let scene = Scene::new();
    let mut first = holder(&scene, "first");
    let mut second = on_file(&scene, "second")
        .args(standby(&scene, "second", "--term ignore"))
        .args(on_lost(&scene, "second"))
        .args(["--grace", "10m"])
        .start();
    standbys(&scene).await_tag(What::Beat, "second");
    let_end(&scene, "first");
    first.wait();
    second.await_log("stopping the standby command");
    let mut third = on_file(&scene, "third").start();
    third.await_log("standing by");
    second.signal(Signal::SIGTERM);
    scene.journal.await_tag(What::Beat, "third");
    assert_eq!(
        await_text(&scene, "second.lost"),
        "standby 2 stopped by SIGTERM"
    );
    std::thread::sleep(Duration::from_millis(300));
    second.assert_running();
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait(), TERM);
    third.signal(Signal::SIGTERM);
    third.wait();
    scene.await_nobody();
    assert_eq!(judge(&scene), ["first", "third"]);
}

#[test]
fn a_killed_guardian_of_a_standby_leaves_nothing_and_is_status_70() {
    let scene = Scene::new();
    let first = holder(&scene, "first");
    let mut second = on_file(&scene, "second")
        .args(standby(&scene, "second", "--term ignore --daemon"))
        .args(on_lost(&scene, "second"))
        .start();
    standbys(&scene).await_tag(What::Beat, "second/daemon");
    sigkill(guardians(&scene, &second)[0].pid);
    assert_eq!(second.wait(), Ended::Code(70), "{}", second.stderr());
    let left = scene.trees();
    assert_eq!(left.len(), 1, "only the holder's command: {left:?}");
    scene.journal.await_sign_of_life("first");
    assert!(!scene.path("second.lost").exists(), "there was no tenure");
    drop(first);
}

#[test]
fn supervisor_and_guardian_of_a_standby_killed_at_once_take_it_along() {
    let scene = Scene::new();
    let _first = holder(&scene, "first");
    let mut second = on_file(&scene, "second")
        .args(standby(&scene, "second", "--term ignore"))
        .start();
    standbys(&scene).await_tag(What::Beat, "second");
    let guardian = guardians(&scene, &second)[0].pid;
    second.freeze();
    sigkill(guardian);
    second.signal(Signal::SIGKILL);
    second.wait();
    await_for(
        "the standby command to be gone",
        || (scene.trees().len() == 1).then_some(()),
        || format!("{:?}", scene.trees()),
    );
}

#[test]
fn a_standby_that_fails_is_started_again_and_one_that_succeeds_is_not() {
    let scene = Scene::new();
    let _first = holder(&scene, "first");
    let start = |name: &str, options: &str| {
        on_file(&scene, name)
            .args(standby(&scene, name, options))
            .start()
    };
    let failing = start("failing", "--beats 2 --status 3");
    let done = start("done", "--beats 2");
    await_starts(&standbys(&scene), "failing", 2);
    failing.await_log("the standby command exited with status 3: it is started again in 1s");
    done.await_log("the standby command ended");
    assert_eq!(starts(&standbys(&scene), "done"), 1);
}
