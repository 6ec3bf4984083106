//! Waiting for the lock: for ever, for a while or not at all.

use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use trafficcop::Instant;

use super::{instance, let_end};
use crate::support::instance::Ended;
use crate::support::journal::What;
use crate::support::scene::Scene;

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
fn a_standby_whose_directory_was_removed_says_that_once_and_has_the_lock_when_it_is_there_again() {
    let scene = Scene::new();
    scene.excuse_event_logs("the lock file is removed under its holder");
    let directory = scene.path("locks");
    std::fs::create_dir(&directory).unwrap();
    let on_it = |name: &str| {
        let run = scene.run().arg("--file").arg(directory.join("lock"));
        run.args(["--identity", name])
    };
    let done = scene.path("first.done");
    let words = ["--until", done.to_str().unwrap()];
    let mut first = on_it("first").journalist("first", &words).start();
    scene.journal.await_tag(What::Beat, "first");
    let mut second = on_it("second").journalist("second", &[]).start();
    second.await_log("standing by");
    std::fs::remove_dir_all(&directory).unwrap();
    let_end(&scene, "first");
    assert_eq!(first.wait(), Ended::Code(71), "{}", first.stderr());
    second.await_log("its directory does not exist");
    // It looks every two seconds, but logs one line.
    std::thread::sleep(Duration::from_secs(5));
    let log = second.stderr();
    assert!(!log.contains("was replaced"), "{log}");
    assert_eq!(
        log.matches("its directory does not exist").count(),
        1,
        "{log}"
    );
    std::fs::create_dir(&directory).unwrap();
    scene.journal.await_tag(What::Beat, "second");
    second.signal(Signal::SIGTERM);
    second.wait();
}

/// A process is forked ahead only for a free lock.
#[test]
fn a_standby_keeps_no_process_for_its_command() {
    let scene = Scene::new();
    let mut holder = instance(&scene, "holder", &[], &[]);
    scene.journal.await_tag(What::Beat, "holder");
    let mut standby = instance(&scene, "standby", &[], &[]);
    standby.await_log("standing by");
    let guardian = standby.guardian();
    let children = format!("/proc/{guardian}/task/{guardian}/children");
    let give_up_at = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(&children).unwrap().is_empty() {
        assert!(Instant::now() < give_up_at, "it keeps a process");
        std::thread::yield_now();
    }
    let_end(&scene, "holder");
    assert_eq!(holder.wait(), Ended::Code(0));
    scene.journal.await_tag(What::Beat, "standby");
    let_end(&scene, "standby");
    assert_eq!(standby.wait(), Ended::Code(0));
}

#[test]
fn signalled_standby_dies_of_it_without_disturbing_others() {
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
            status == 0 || finished.stderr.contains("holder is in control"),
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
fn flock_and_an_instance_wait_for_each_other() {
    let scene = Scene::new();
    let flock = |how| {
        let file = std::fs::File::create(scene.lock()).unwrap();
        Flock::lock(file, how).map_err(|(_, errno)| errno)
    };
    let stranger = flock(FlockArg::LockExclusiveNonblock).unwrap();
    let mut looks = instance(&scene, "looks", &["-n"], &[]);
    assert_eq!(looks.wait(), Ended::Code(75));
    let mut waits = instance(&scene, "waits", &[], &[]);
    waits.await_log("standing by: another instance is in control");
    drop(stranger);
    scene.journal.await_tag(What::Beat, "waits");
    let refused = flock(FlockArg::LockExclusiveNonblock);
    assert_eq!(refused.unwrap_err(), nix::errno::Errno::EWOULDBLOCK);
    let_end(&scene, "waits");
    drop(flock(FlockArg::LockExclusive).unwrap());
    assert_eq!(waits.wait(), Ended::Code(0));
}
