//! A stopped supervisor: no effect on a local lock, a deadline on a shared drive.

use nix::sys::signal::Signal;
use trafficcop::Instant;

use super::{A_TREE, instance, let_end};
use crate::support::await_for;
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::scene::Scene;

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
fn on_a_shared_drive_a_stopped_supervisor_s_tree_is_dead_in_time_and_it_competes_again() {
    let scene = Scene::new();
    let mut one = instance(&scene, "one", &["--shared", "--lease", "12s"], &A_TREE);
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
        .await_line("a second tenure", |line| line.token > 1);
    one.signal(Signal::SIGTERM);
    one.wait();
    assert_eq!(scene.journal.judge(), ["one", "one"]);
    scene.await_nobody();
}

#[test]
fn lock_file_replaced_under_its_holder_is_reported_at_the_release() {
    let scene = Scene::new();
    scene.excuse_event_logs("two have a lock each, on two files");
    let mut one = instance(&scene, "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    std::fs::remove_file(scene.lock()).unwrap();
    let mut two = instance(&scene, "two", &[], &[]);
    let beside = scene.journal.await_tag(What::Beat, "two");
    assert_eq!(beside.token, 1, "the new file counts anew");
    scene.journal.await_sign_of_life("one");
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(71), "{}", one.stderr());
    assert!(one.stderr().contains("removed or replaced"));
    let_end(&scene, "two");
    assert_eq!(
        two.wait(),
        Ended::Code(0),
        "its own lock was sound: {}",
        two.stderr()
    );
    scene.await_nobody();
}

#[test]
fn renewals_on_a_shared_drive_keep_the_command_for_longer_than_a_lease() {
    let scene = Scene::new();
    let mut one = instance(
        &scene,
        "one",
        &["--shared", "--lease", "12s"],
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
