//! Cron lines on a lock of this machine kept as on a shared drive.

use super::*;

fn line_of_cron(scene: &Scene) -> crate::support::instance::Finished {
    let lock = scene.lock();
    run(scene, &lock, "cron", &["--shared", "-n"])
        .journalist("cron", &["--beats", "2"])
        .finish()
}

#[test]
fn lines_of_cron_get_control_one_lease_after_the_first_looked_and_not_before() {
    let scene = Scene::new();
    let one = instance(&scene, &scene.lock(), "one", &["--shared"], &[]);
    scene.journal.await_tag(What::Beat, "one");
    kill_both(one);
    let first = Instant::now();
    loop {
        let begun = Instant::now();
        let finished = line_of_cron(&scene);
        if finished.ended == Ended::Code(0) {
            break;
        }
        assert_eq!(finished.ended, Ended::Code(75), "{}", finished.stderr);
        assert!(begun < first + LEASE + POLL + POLL, "{}", finished.stderr);
        std::thread::sleep(Duration::from_millis(500));
    }
    let start = scene.journal.await_tag(What::Start, "cron");
    assert!(start.at >= (first + LEASE).as_nanos(), "{}", scene.journal);
    assert_eq!(scene.journal.judge(), ["one", "cron"]);
}

#[test]
fn stamp_of_a_removed_lock_does_not_apply_to_the_next() {
    let scene = Scene::new();
    scene.excuse_event_logs("the lock is removed, and the next one counts anew");
    let lock = scene.lock();
    let one = instance(&scene, &lock, "one", &["--shared"], &[]);
    scene.journal.await_tag(What::Beat, "one");
    let seen = Instant::now();
    assert_eq!(line_of_cron(&scene).ended, Ended::Code(75));
    kill_both(one);
    std::fs::remove_dir_all(scene.path("singleton.lock.versions")).unwrap();
    std::fs::remove_file(&lock).unwrap();
    // As long as an instance that had seen it would wait.
    crate::support::await_for(
        "a lease to be over",
        || (Instant::now() > seen + LEASE).then_some(()),
        String::new,
    );
    let _two = instance(&scene, &lock, "two", &["--shared"], &[]);
    scene.journal.await_tag(What::Beat, "two");
    let finished = line_of_cron(&scene);
    assert_eq!(finished.ended, Ended::Code(75), "{}", finished.stderr);
    scene.journal.await_sign_of_life("two");
    assert_not_stopped(&scene, "two");
}

#[test]
fn a_line_of_cron_gets_what_was_released_at_once() {
    let scene = Scene::new();
    for _ in 0..3 {
        let finished = line_of_cron(&scene);
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    }
    assert_eq!(scene.journal.judge(), ["cron"; 3]);
}

#[test]
fn a_line_of_cron_never_gets_what_is_renewed() {
    let scene = Scene::new();
    let one = instance(&scene, &scene.lock(), "one", &["--shared"], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    let first = Instant::now();
    while Instant::now() < first + LEASE * 2 {
        let finished = line_of_cron(&scene);
        assert_eq!(finished.ended, Ended::Code(75), "{}", finished.stderr);
        scene.journal.await_sign_of_life("one");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_not_stopped(&scene, "one");
    drop(one);
}
