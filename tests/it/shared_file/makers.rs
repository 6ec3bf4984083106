//! Makers that die: between version and record, with their machine, and long ago.

use super::*;
use crate::shared_file::drive::{Fate, Op, View};

#[test]
fn a_maker_that_dies_before_its_record_is_followed_after_the_longest_lease() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let lock = here.path("lock");
    let first = run(&scene, &lock, "first", &[]).command(["true"]).finish();
    assert_eq!(first.ended, Ended::Code(0), "{}", first.stderr);
    here.set(&[Op::Create, Op::Write], Fate::Hang);
    let one = instance(&scene, &lock, "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    assert_eq!((drive.greatest("lock"), drive.record("lock", 3)), (3, None));
    kill_both(one);
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: another instance is in control");
    let seen = Instant::now();
    let first = scene.journal.await_tag(What::Start, "two");
    let longest = Duration::from_secs(60);
    assert!(first.at < (seen + longest + POLL).as_nanos());
    assert!(first.at > (seen + longest - POLL).as_nanos());
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn a_holder_that_dies_with_its_machine_is_followed_within_a_lease_and_a_poll() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let one = instance(&scene, &here.path("lock"), "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    drive.await_renewal("lock");
    let renewed = Instant::now();
    kill_both(one);
    let first = scene.journal.await_tag(What::Start, "two");
    assert!(first.at < followed_by(renewed));
    assert!(first.at > (renewed + LEASE - POLL).as_nanos());
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

/// Starts a holder whose tree ignores TERM, and a standby.
fn deaf_and_standby(scene: &Scene, here: &View, there: &View) -> (Instance, Instance) {
    let one = instance(scene, &here.path("lock"), "one", &[], &DEAF);
    scene.journal.await_tag(What::Beat, "one/daemon");
    let two = instance(scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    (one, two)
}

#[test]
fn the_guardian_gives_back_what_a_dead_supervisor_had() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let (mut one, two) = deaf_and_standby(&scene, &here, &there);
    drive.await_renewal("lock");
    let renewed = Instant::now();
    one.signal(Signal::SIGKILL);
    let first = scene.journal.await_tag(What::Start, "two");
    assert_eq!(one.wait(), KILL);
    // It dies at the end of the grace in doubt, 2 s; the lease has not run out.
    assert!(first.at < (renewed + LEASE).as_nanos());
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

/// Checks that the next command starts well before a lease is over, and before a version without a
/// record may be followed.
fn assert_costs_no_lease(scene: &Scene, two: Instance, killed: Instant) {
    let first = scene.journal.await_tag(What::Start, "two");
    assert!(
        first.at < (killed + LEASE / 2).as_nanos(),
        "{}",
        two.stderr()
    );
    terminate(two);
}

fn kill_supervisor(mut one: Instance) -> Instant {
    one.signal(Signal::SIGKILL);
    let killed = Instant::now();
    assert_eq!(one.wait(), KILL);
    killed
}

#[test]
fn a_supervisor_killed_while_it_confirms_its_take_over_costs_no_lease() {
    let Some(drive) = Drive::new() else { return };
    // A standby command is started before by its guardian.
    for standby in [&[][..], &["--standby", "exec sleep 60"]] {
        let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
        let lock = format!("lock-{}", standby.len());
        let before = instance(&scene, &there.path(&lock), "before", &[], &[]);
        scene.journal.await_tag(What::Beat, "before");
        let one = instance(&scene, &here.path(&lock), "one", standby, &[]);
        one.await_log("standing by: before is in control");
        // The entry that it makes in the previous version; its own version exists by then.
        here.switchboard()
            .set(&[Op::Mkdir], Some("next"), Fate::Hang, 1);
        terminate(before);
        here.await_caught(1);
        let killed = kill_supervisor(one);
        let two = instance(&scene, &there.path(&lock), "two", &[], &[]);
        assert_costs_no_lease(&scene, two, killed);
        assert_eq!(scene.journal.judge(), ["before", "two"]);
        scene.await_nobody();
    }
}

fn draining_and_standby(scene: &Scene, lock: &str, here: &View, there: &View) -> [Instance; 2] {
    let one = instance(scene, &here.path(lock), "one", &[], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    let two = instance(scene, &there.path(lock), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    one.signal(Signal::SIGTERM);
    two.await_log("which is stopping");
    [one, two]
}

#[test]
fn a_supervisor_killed_while_it_makes_the_version_of_its_release_costs_no_lease() {
    let Some(drive) = Drive::new() else { return };
    // The answer for the version, or for the entry in the previous one.
    for (lock, of_the_version) in [("of-the-version", true), ("of-the-one-before", false)] {
        let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
        let [one, two] = draining_and_standby(&scene, lock, &here, &there);
        let released = format!("{:020}", drive.greatest(lock) + 1);
        let name = if of_the_version { &*released } else { "next" };
        here.switchboard()
            .set(&[Op::Mkdir], Some(name), Fate::Mute, 1);
        let_end(&scene, "one");
        here.await_caught(1);
        let killed = kill_supervisor(one);
        assert_costs_no_lease(&scene, two, killed);
        assert_eq!(scene.journal.judge(), ["one", "two"]);
    }
}

#[test]
fn a_supervisor_killed_while_it_writes_that_the_lock_is_free_costs_no_lease() {
    let Some(drive) = Drive::new() else { return };
    // Without record and hint, or with an empty record.
    for (lock, ops) in [
        ("nothing", &[Op::Open, Op::Create][..]),
        ("empty", &[Op::Open, Op::Write]),
    ] {
        let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
        let [one, two] = draining_and_standby(&scene, lock, &here, &there);
        here.set(ops, Fate::Hang);
        let_end(&scene, "one");
        // Record and hint.
        here.await_caught(2);
        let killed = kill_supervisor(one);
        here.heal();
        assert_costs_no_lease(&scene, two, killed);
        assert_eq!(scene.journal.judge(), ["one", "two"]);
    }
}

#[test]
fn the_guardian_asks_again_where_the_drive_failed_for_a_moment() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let (mut one, two) = deaf_and_standby(&scene, &here, &there);
    drive.await_renewal("lock");
    let renewed = Instant::now();
    one.signal(Signal::SIGKILL);
    assert_eq!(one.wait(), KILL);
    // The guardian makes the next version, once its tree, which ignores TERM, is dead.
    let lost = Fate::Lose(nix::libc::EIO);
    here.switchboard().set(&[Op::Mkdir], None, lost, 1);
    let first = scene.journal.await_tag(What::Start, "two");
    assert_eq!(here.switchboard().caught(), 1);
    // Neither the lease nor an unrecorded version's minute has run out.
    assert!(first.at < (renewed + LEASE).as_nanos());
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn a_supervisor_that_dies_while_the_drive_hangs_is_followed_within_a_lease_and_a_poll() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let (mut one, two) = deaf_and_standby(&scene, &here, &there);
    drive.await_renewal("lock");
    let renewed = Instant::now();
    here.hang();
    one.signal(Signal::SIGKILL);
    assert_eq!(one.wait(), KILL);
    let first = scene.journal.await_tag(What::Start, "two");
    assert!(first.at < followed_by(renewed));
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
    // The guardian does not wait for ever.
    scene.await_nobody();
}

#[test]
fn a_dead_guardian_ends_the_command_and_hands_over() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let (mut one, two) = deaf_and_standby(&scene, &here, &there);
    let guardian = nix::unistd::Pid::from_raw(one.guardian());
    let killed = Instant::now();
    nix::sys::signal::kill(guardian, Signal::SIGKILL).unwrap();
    assert_eq!(one.wait(), Ended::Code(70), "{}", one.stderr());
    let first = scene.journal.await_tag(What::Start, "two");
    assert!(first.at < (killed + LEASE + POLL).as_nanos());
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn supervisor_paused_past_its_lease_is_too_late_for_its_tree() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let one = instance(&scene, &here.path("lock"), "one", &[], &DEAF);
    scene.journal.await_tag(What::Beat, "one/daemon");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    one.freeze();
    let first = scene.journal.await_tag(What::Start, "two");
    one.signal(Signal::SIGCONT);
    one.await_log("standing by: two is in control");
    assert!(last_before(&scene, "one", u64::MAX).at < first.at);
    terminate(one);
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn standby_with_a_shorter_lease_and_poll_waits_for_the_lease_of_the_holder() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let longer = [
        "--lease",
        "20s",
        "--grace-on-loss",
        "4s",
        "--margin",
        "800ms",
        "--poll",
        "5s",
    ];
    let one = instance(&scene, &here.path("lock"), "one", &longer, &DEAF);
    scene.journal.await_tag(What::Beat, "one/daemon");
    let shorter = ["--lease", "10s", "--poll", "300ms"];
    let two = instance(&scene, &there.path("lock"), "two", &shorter, &[]);
    two.await_log("standing by: one is in control");
    drive.await_renewal("lock");
    let renewed = Instant::now();
    one.freeze();
    let first = scene.journal.await_tag(What::Start, "two");
    one.signal(Signal::SIGCONT);
    assert!(first.at > (renewed + Duration::from_secs(20) - POLL).as_nanos());
    // The guardian alone used the lease of 20 s up to its margin.
    let last = last_before(&scene, "one", u64::MAX).at;
    assert!(last > (renewed + Duration::from_secs(15)).as_nanos());
    terminate(one);
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}
