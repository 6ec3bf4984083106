//! Lost, wrong and old answers, and what each instance concludes.

use nix::libc;

use super::*;
use crate::shared_file::drive::{Fate, Op};

#[test]
fn lost_answers_to_the_making_of_a_renewal_stop_nothing() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let mut one = instance(&scene, &here.path("lock"), "one", &[], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    for (count, errno) in [libc::EEXIST, libc::EIO, libc::EEXIST, libc::ETIMEDOUT]
        .into_iter()
        .enumerate()
    {
        drive.await_renewal("lock");
        here.switchboard()
            .set(&[Op::Mkdir], None, Fate::Lose(errno), 1);
        here.await_caught(count + 1);
    }
    await_life(&scene, "one", Instant::now(), LEASE);
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    scene.journal.await_tag(What::Start, "two");
    assert_not_stopped(&scene, "one");
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn a_lost_answer_to_a_take_over_costs_the_longest_lease_and_no_overlap() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let mut one = instance(&scene, &here.path("lock"), "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    let lost = Fate::Lose(libc::EEXIST);
    there.switchboard().set(&[Op::Mkdir], None, lost, 1);
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    there.await_caught(1);
    let lost_at = Instant::now();
    let first = scene.journal.await_tag(What::Start, "two");
    let latest = lost_at + Duration::from_secs(60) + POLL + POLL;
    assert!(first.at < latest.as_nanos(), "{}", scene.journal);
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn a_lost_answer_to_a_release_is_made_up_for() {
    let Some(drive) = Drive::new() else { return };
    for errno in [libc::EIO, libc::EEXIST] {
        let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
        let lock = format!("lock-{errno}");
        let one = instance(&scene, &here.path(&lock), "one", &[], &HEARS);
        scene.journal.await_tag(What::Beat, "one");
        let two = instance(&scene, &there.path(&lock), "two", &[], &[]);
        two.await_log("standing by: one is in control");
        one.signal(Signal::SIGTERM);
        scene.journal.await_tag(What::Term, "one");
        // The version that announces the drain is made; the answer to the next is lost.
        drive.await_renewal(&lock);
        here.switchboard()
            .set(&[Op::Mkdir], None, Fate::Lose(errno), 1);
        let_end(&scene, "one");
        here.await_caught(1);
        let lost_at = Instant::now();
        let _ = one.finish();
        let first = scene.journal.await_tag(What::Start, "two");
        let latest = lost_at + LEASE + POLL;
        assert!(first.at < latest.as_nanos(), "{}", scene.journal);
        terminate(two);
        assert_eq!(scene.journal.judge(), ["one", "two"]);
    }
}

/// The version is made, and for a while no write succeeds: its record is written after that.
#[test]
fn unreadable_release_is_rewritten() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let one = instance(&scene, &here.path("lock"), "one", &[], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    one.signal(Signal::SIGTERM);
    scene.journal.await_tag(What::Term, "one");
    // The announcement of the drain is made and written.
    two.await_log("which is stopping");
    here.set(&[Op::Open, Op::Create, Op::Write], Fate::Fail(libc::EIO));
    let_end(&scene, "one");
    // Record and hint.
    here.await_caught(2);
    here.heal();
    let healed = Instant::now();
    let _ = one.finish();
    let first = scene.journal.await_tag(What::Start, "two");
    // Not a minute, after which an unreadable release need not be waited for.
    let latest = healed + Duration::from_secs(30);
    assert!(first.at < latest.as_nanos(), "{}", scene.journal);
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

/// The probe's directory is made and removed; its name is unique.
#[test]
fn lost_answers_to_the_question_for_the_time_end_nothing() {
    let Some(drive) = Drive::new() else { return };
    let (scene, view) = (Scene::new(), drive.mount());
    let lock = view.path("lock");
    let first = run(&scene, &lock, "first", &[]).command(["true"]).finish();
    assert_eq!(first.ended, Ended::Code(0), "{}", first.stderr);
    // On a free lock the probe comes first.
    for (op, errno) in [(Op::Mkdir, libc::EEXIST), (Op::Rmdir, libc::ENOENT)] {
        view.switchboard().set(&[op], None, Fate::Lose(errno), 1);
    }
    let options = ["--once-per", "1h", "-n"];
    let asks = run(&scene, &lock, "asks", &options).command(["true"]);
    let asks = asks.finish();
    assert_eq!(asks.ended, Ended::Code(0), "{}", asks.stderr);
    assert_eq!(view.switchboard().caught(), 2);
    let left = std::fs::read_dir(view.path("lock.versions")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = left.filter(|name| name.starts_with("time")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn errors_for_less_than_the_room_stop_nothing() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let mut one = instance(&scene, &here.path("lock"), "one", &[], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    for errno in [libc::EIO, libc::ESTALE, libc::EACCES] {
        drive.await_renewal("lock");
        for view in [&here, &there] {
            view.set(&[], Fate::Fail(errno));
        }
        await_life(&scene, "one", Instant::now(), Duration::from_secs(5));
        for view in [&here, &there] {
            view.heal();
        }
    }
    await_life(&scene, "one", Instant::now(), LEASE);
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    scene.journal.await_tag(What::Start, "two");
    assert_not_stopped(&scene, "one");
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn errors_past_the_lease_end_the_command_and_its_instance_competes_again() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let one = instance(&scene, &here.path("lock"), "one", &[], &DEAF);
    scene.journal.await_tag(What::Beat, "one/daemon");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    drive.await_renewal("lock");
    let renewed = Instant::now();
    here.set(&[], Fate::Fail(libc::EIO));
    let first = scene.journal.await_tag(What::Start, "two");
    let last = last_before(&scene, "one", u64::MAX);
    assert!(last.at < (renewed + LEASE).as_nanos(), "{}", scene.journal);
    assert!(first.at < followed_by(renewed), "{}", scene.journal);
    here.heal();
    one.await_log("standing by: two is in control");
    let_end(&scene, "two");
    scene.journal.await_line("a second tenure", |line| {
        line.command() == "one" && line.token > first.token
    });
    drop(two);
    one.signal(Signal::SIGKILL);
    assert_eq!(one.finish().ended, KILL);
    scene.await_nobody();
    assert_eq!(scene.journal.judge(), ["one", "two", "one"]);
}

#[test]
fn a_full_disk_that_still_makes_directories_stops_nothing() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let mut one = instance(&scene, &here.path("lock"), "one", &[], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    let full = Fate::Fail(libc::ENOSPC);
    here.set(&[Op::Create, Op::Write], full);
    await_life(&scene, "one", Instant::now(), LEASE * 5 / 2);
    // Once for the record and once for the hint, instead of each renewal.
    let told = one.stderr().matches("cannot be written").count();
    assert!((1..=2).contains(&told), "{}", one.stderr());
    here.heal();
    drive.await_renewal("lock");
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    scene.journal.await_tag(What::Start, "two");
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn a_full_disk_ends_the_command_in_time_and_it_runs_again_when_there_is_room() {
    let Some(drive) = Drive::new() else { return };
    let (scene, view) = (Scene::new(), drive.mount());
    let one = instance(&scene, &view.path("lock"), "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    drive.await_renewal("lock");
    let renewed = Instant::now();
    let full = Fate::Fail(libc::ENOSPC);
    view.set(&[Op::Create, Op::Write, Op::Mkdir], full);
    one.await_log("stopping the command");
    one.await_log("make room");
    let stopped = Instant::now();
    assert!(stopped < renewed + LEASE, "{}", one.stderr());
    crate::support::await_for(
        "the tree to be gone",
        || scene.trees().is_empty().then_some(()),
        || one.stderr(),
    );
    // A standby that could not take the lock over does not report that the store answers.
    one.await_log("not given back and will expire");
    view.await_caught(view.switchboard().caught() + 2);
    let said = one.stderr();
    assert!(!said.contains("answers again"), "{said}");
    let doctor = scene.verb("doctor").arg("--file").arg(view.path("lock"));
    let found = doctor.finish().stdout;
    for check in ["take-over", "directory"] {
        let mut lines = found.lines();
        let line = lines.find(|line| line.starts_with(&format!("fail  {check}")));
        assert!(
            line.is_some_and(|line| line.contains("make room")),
            "{found}"
        );
    }
    assert!(!found.contains("give the directory"), "{found}");
    view.heal();
    let again = scene
        .journal
        .await_line("a second tenure", |line| line.token > 1);
    assert_eq!(again.command(), "one");
    one.await_log("answers again");
    terminate(one);
    assert_eq!(scene.journal.judge(), ["one", "one"]);
}

#[test]
fn a_standby_with_old_news_never_takes_over_from_who_lives_and_does_when_it_hears() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let one = instance(&scene, &here.path("lock"), "one", &[], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    let old = Duration::from_secs(30);
    there.remember_for(old);
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    await_life(&scene, "one", Instant::now(), LEASE * 3);
    assert_not_stopped(&scene, "one");
    let released = Instant::now();
    one.signal(Signal::SIGTERM);
    let_end(&scene, "one");
    let first = scene.journal.await_tag(What::Start, "two");
    let latest = released + old + POLL + POLL;
    assert!(first.at < latest.as_nanos(), "{}", scene.journal);
    drop(one);
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn instances_that_begin_at_once_on_several_clients_each_get_their_turn_alone() {
    let Some(drive) = Drive::new() else { return };
    let (scene, views) = (Scene::new(), [0; 3].map(|_| drive.mount()));
    views[2].remember_for(Duration::from_secs(2));
    let names = ["a", "b", "c", "d", "e", "f"];
    let crowd: Vec<Instance> = names
        .iter()
        .zip(views.iter().cycle())
        .map(|(name, view)| {
            let command = ["--every", "20", "--beats", "12", "--daemon"];
            run(&scene, &view.path("lock"), name, &["--grace", "100ms"])
                .journalist(name, &command)
                .start()
        })
        .collect();
    for one in crowd {
        let finished = one.finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    }
    let mut order = scene.journal.judge();
    order.sort();
    assert_eq!(order, names);
    scene.await_nobody();
}

/// An SMB client remembers for a second that a name is missing.
#[test]
fn a_lock_that_another_instance_has_just_begun_is_used_however_long_the_client_hides_it() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    // It has begun the lock, and hangs before it takes it.
    let first = format!("{:020}", 1);
    here.switchboard()
        .set(&[Op::Mkdir], Some(&first), Fate::Hang, 1);
    let mut one = instance(&scene, &here.path("lock"), "one", &[], &[]);
    here.await_caught(1);
    // Longer than one attempt.
    let hidden = 20;
    let switchboard = there.switchboard();
    let missing = Fate::Fail(libc::ENOENT);
    switchboard.set(&[Op::Lookup], Some("lock.versions"), missing, hidden);
    let late = run(&scene, &there.path("lock"), "late", &["-n"]).command(["true"]);
    let late = late.finish();
    assert_eq!(switchboard.caught(), hidden, "{}", late.stderr);
    assert_eq!(late.ended, Ended::Code(0), "{}", late.stderr);
    assert_eq!(drive.versions("lock"), [0, 1, 2]);
    here.heal();
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(scene.journal.judge(), ["one"]);
}
