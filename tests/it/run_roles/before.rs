//! `--on-acquire` must succeed before a tenure begins.

use super::*;
use crate::support::azurite::{azurite, connection_string};
use crate::support::blob::Blob;
use crate::support::proxy::{Mode, Proxy};

/// Checks that the second instance has control without an overlap, and stops it.
fn second_follows(scene: &Scene, mut second: Instance) {
    scene.journal.await_tag(What::Beat, "second");
    second.signal(Signal::SIGTERM);
    second.wait();
    scene.await_nobody();
    assert_eq!(judge(scene), ["first", "second"]);
}

#[test]
fn a_killed_supervisor_s_hook_is_gone_before_another_has_control() {
    let scene = Scene::new();
    let mut first = on_file(&scene, "first")
        .args(hook(&scene, "first", "--term ignore --daemon"))
        .args(["--grace", "2s"])
        .start();
    scene.journal.await_tag(What::Beat, "first/hook/daemon");
    let second = on_file(&scene, "second").start();
    second.await_log("standing by");
    first.signal(Signal::SIGKILL);
    first.wait();
    second_follows(&scene, second);
    assert_eq!(starts(&scene.journal, "first"), 0);
}

#[test]
fn a_killed_guardian_s_hook_is_gone_before_another_has_control() {
    let scene = Scene::new();
    let mut first = on_file(&scene, "first")
        .args(hook(&scene, "first", "--term ignore --daemon --children 2"))
        .args(on_lost(&scene, "first"))
        .start();
    scene.journal.await_tag(What::Beat, "first/hook/daemon");
    let second = on_file(&scene, "second").start();
    second.await_log("standing by");
    let [guardian, _aftermath] = &guardians(&scene, &first)[..] else {
        panic!("two guardians");
    };
    sigkill(guardian.pid);
    assert_eq!(first.wait(), Ended::Code(70), "{}", first.stderr());
    let cause = "the guardian died or fell silent";
    assert_eq!(
        await_text(&scene, "first.lost"),
        format!("standby 1 {cause}")
    );
    second_follows(&scene, second);
}

#[test]
fn a_silent_guardian_s_hook_is_gone_before_another_has_control() {
    let scene = Scene::new();
    let mut first = on_file(&scene, "first")
        .args(hook(&scene, "first", "--term ignore --children 2"))
        .start();
    scene.journal.await_tag(What::Beat, "first/hook/child");
    let second = on_file(&scene, "second").start();
    second.await_log("standing by");
    kill(Pid::from_raw(first.guardian()), Signal::SIGSTOP).unwrap();
    assert_eq!(first.wait(), Ended::Code(70), "{}", first.stderr());
    second_follows(&scene, second);
}

#[test]
fn a_hook_that_fails_lets_another_have_its_turn() {
    let scene = Scene::new();
    let mut first = on_file(&scene, "first")
        .args(hook(&scene, "first", "--beats 40 --status 3 --daemon"))
        .args(standby(&scene, "first", ""))
        .args(on_lost(&scene, "first"))
        .args(["--grace", "2s"])
        .start();
    scene.journal.await_tag(What::Start, "first/hook");
    let mut second = on_file(&scene, "second").start();
    scene.journal.await_tag(What::Beat, "second");
    standbys(&scene).await_tag(What::Beat, "first");
    let log = first.stderr();
    for words in [
        "the --on-acquire command exited with status 3: handing control over",
        "cooling down for 500ms",
    ] {
        assert!(log.contains(words), "'{words}' is not in\n{log}");
    }
    assert_eq!(
        await_text(&scene, "first.lost"),
        "standby 1 the --on-acquire command exited with status 3"
    );
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), TERM);
    second.signal(Signal::SIGTERM);
    second.wait();
    scene.await_nobody();
    // The hook's daemon had ended before the lock was released.
    assert_eq!(judge(&scene), ["first", "second"]);
    assert_eq!(starts(&scene.journal, "first"), 0);
}

#[test]
fn failing_hook_ends_an_instance_whose_wait_is_over() {
    for (options, most) in [
        // Not a 0, which is for a lock of another holder.
        (&["-n", "-E", "0"][..], 1),
        (&["-n", "--shared"], 1),
        (&["-w", "2s"], 5),
    ] {
        let scene = Scene::new();
        let first = on_file(&scene, "first").args(hook(&scene, "first", "--beats 2 --status 3"));
        let first = first.args(on_lost(&scene, "first")).args(options);
        let finished = first.start().finish();
        let log = finished.stderr;
        assert_eq!(finished.ended, Ended::Code(69), "{options:?}: {log}");
        let words = "the --on-acquire command exited with status 3";
        let last = format!("{words}; exit status 69");
        assert!(log.contains(&last), "{options:?}: {log}");
        let tried = starts(&scene.journal, "first/hook");
        assert!((1..=most).contains(&tried), "{options:?}: {tried} {log}");
        assert_eq!(starts(&scene.journal, "first"), 0);
        let told = await_text(&scene, "first.lost");
        assert_eq!(told.lines().count(), tried, "{options:?}: {told}");
        assert!(told.lines().all(|line| line.ends_with(words)), "{told}");
        // It was released: another instance has its turn at once.
        let second = on_file(&scene, "second").args(options);
        let finished = second.journalist("second", &["--beats", "2"]).finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    }
}

#[test]
fn leftovers_of_a_hook_end_before_the_command_starts() {
    let scene = Scene::new();
    let mut one = on_file(&scene, "one")
        .args(hook(&scene, "one", "--beats 40 --daemon"))
        .args(["--grace", "2s"])
        .start();
    let begun = scene.journal.await_tag(What::Start, "one");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    let lines = scene.journal.lines();
    let daemon = lines.iter().rfind(|line| line.tag == "one/hook/daemon");
    let daemon = daemon.expect("the hook left a daemon");
    assert!(daemon.at < begun.at, "{}", scene.journal);
    assert_eq!(starts(&scene.journal, "one/hook"), 1);
}

#[test]
fn a_stop_during_the_hook_is_death_by_its_signal_and_starts_nothing() {
    let scene = Scene::new();
    let mut one = on_file(&scene, "one")
        .args(hook(&scene, "one", "--term 200:0 --daemon"))
        .args(on_lost(&scene, "one"))
        .args(["--grace", "2s"])
        .start();
    scene.journal.await_tag(What::Beat, "one/hook/daemon");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM, "{}", one.stderr());
    scene.await_nobody();
    scene.journal.await_tag(What::End, "one/hook");
    assert_eq!(starts(&scene.journal, "one"), 0);
    assert_eq!(
        await_text(&scene, "one.lost"),
        "standby 1 stopped by SIGTERM"
    );
}

#[test]
fn a_hook_that_hangs_past_the_deadline_is_gone_before_another_has_control() {
    let scene = Scene::new();
    let lock = Blob::named("roles/hanging-hook");
    let proxy = Proxy::before(azurite().port);
    let on_blob = |name: &str, port| {
        scene
            .run()
            .args(["--identity", name, "--blob", &lock.name, "--lease", "15s"])
            .env("AZURE_STORAGE_CONNECTION_STRING", connection_string(port))
            .journalist(name, &[])
    };
    let mut first = on_blob("first", proxy.port)
        .args(hook(&scene, "first", "--term ignore --daemon"))
        .args(standby(&scene, "first", ""))
        .args(on_lost(&scene, "first"))
        .start();
    scene.journal.await_tag(What::Beat, "first/hook/daemon");
    proxy.set(Mode::Freeze);
    let mut second = on_blob("second", azurite().port).start();
    scene.journal.await_tag(What::Beat, "second");
    proxy.set(Mode::Pass);
    standbys(&scene).await_tag(What::Beat, "first");
    let lost = await_text(&scene, "first.lost");
    let cause = "standby 1 the lease could not be renewed in time: ";
    assert!(lost.starts_with(cause), "{lost}");
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), TERM);
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait(), TERM);
    scene.await_nobody();
    assert_eq!(judge(&scene), ["first", "second"]);
}
