//! A drive that does not answer: for less than a lease allows, for longer, and during other
//! requests.

use super::*;
use crate::shared_file::drive::{ALWAYS, Fate, OPENS, Op};
use nix::libc;

#[test]
fn a_drive_that_hangs_for_less_than_the_room_costs_nothing() {
    let Some(drive) = Drive::new() else { return };
    let (scene, view) = (Scene::new(), drive.mount());
    let mut one = instance(&scene, &view.path("lock"), "one", &[], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    for _ in 0..2 {
        // The last one may have been made late.
        drive.await_renewal("lock");
        let renewed = drive.await_renewal("lock");
        view.hang();
        let since = Instant::now();
        await_life(&scene, "one", since, Duration::from_millis(6500));
        assert_eq!(drive.greatest("lock"), renewed);
        view.heal();
    }
    await_life(&scene, "one", Instant::now(), LEASE);
    assert_not_stopped(&scene, "one");
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    assert_eq!(scene.journal.judge(), ["one"]);
    scene.await_nobody();
}

#[test]
fn a_drive_that_hangs_past_the_lease_ends_the_tree_in_time_and_its_instance_competes_again() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let mut one = instance(&scene, &here.path("lock"), "one", &[], &DEAF);
    scene.journal.await_tag(What::Beat, "one/daemon");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    drive.await_renewal("lock");
    let renewed = Instant::now();
    here.hang();
    let first = scene.journal.await_tag(What::Start, "two");
    let last = last_before(&scene, "one", u64::MAX);
    assert!(last.at < (renewed + LEASE).as_nanos(), "{}", scene.journal);
    assert!(first.at < followed_by(renewed), "{}", scene.journal);
    one.assert_running();
    here.heal();
    one.await_log("standing by: two is in control");
    let_end(&scene, "two");
    let again = scene.journal.await_line("a second tenure", |line| {
        line.command() == "one" && line.token > first.token
    });
    assert!(again.at > first.at);
    one.signal(Signal::SIGTERM);
    one.wait();
    assert!(!one.stderr().contains("overlap"), "{}", one.stderr());
    assert_eq!(scene.journal.judge(), ["one", "two", "one"]);
    scene.await_nobody();
}

#[test]
fn answer_after_the_lease_grants_no_control() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let one = instance(&scene, &here.path("lock"), "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    // The next renewal's answer comes much later than all others.
    here.switchboard().set(&[Op::Mkdir], None, Fate::Mute, 1);
    here.await_caught(1);
    here.hang();
    let first = scene.journal.await_tag(What::Start, "two");
    here.heal();
    one.await_log("standing by: two is in control");
    await_life(&scene, "two", Instant::now(), LEASE / 2);
    assert!(first.at > last_before(&scene, "one", u64::MAX).at);
    terminate(one);
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
    scene.await_nobody();
}

#[test]
fn sigterm_ends_an_instance_whose_drive_hangs() {
    let Some(drive) = Drive::new() else { return };
    let (scene, view) = (Scene::new(), drive.mount());
    let grace = ["--grace", "1s"];
    let mut one = instance(&scene, &view.path("lock"), "one", &grace, &DEAF);
    scene.journal.await_tag(What::Beat, "one/daemon");
    view.hang();
    view.await_caught(1);
    let asked = Instant::now();
    one.signal(Signal::SIGTERM);
    one.wait();
    let took = Instant::now().since(asked);
    assert!(took < Duration::from_secs(13), "{took:?} {}", one.stderr());
    scene.assert_no_tree();
    // The guardian may still try to release.
    scene.await_nobody();
    let took = Instant::now().since(asked);
    assert!(took < Duration::from_secs(24), "{took:?} {}", one.stderr());
}

/// More than a second for the drain's announcement is slow, not gone.
#[test]
fn a_release_waits_for_an_announcement_that_is_under_way() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here) = (Scene::new(), drive.mount());
    let one = instance(&scene, &here.path("lock"), "one", &[], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    drive.await_renewal("lock");
    here.switchboard().set(&[Op::Mkdir], None, Fate::Hang, 1);
    one.signal(Signal::SIGTERM);
    here.await_caught(1);
    let_end(&scene, "one");
    scene.journal.await_tag(What::End, "one");
    // The first release has given up after a second; the next begins 1.6 s to 2.4 s after it and
    // gives up as late, which leaves more than a second for a busy machine.
    std::thread::sleep(Duration::from_millis(1200));
    here.heal();
    let done = one.finish();
    assert!(
        done.stderr.contains("gave the lock back"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_standby_whose_drive_hangs_is_ended_by_sigterm() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let one = instance(&scene, &here.path("lock"), "one", &[], &[]);
    scene.journal.await_tag(What::Beat, "one");
    let mut two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by");
    there.hang();
    there.await_caught(1);
    let asked = Instant::now();
    two.signal(Signal::SIGTERM);
    assert_eq!(two.wait(), TERM, "{}", two.stderr());
    let took = Instant::now().since(asked);
    assert!(took < Duration::from_secs(12), "{took:?} {}", two.stderr());
    scene.journal.await_sign_of_life("one");
    drop(one);
}

#[test]
fn sigterm_ends_an_instance_whose_first_look_hangs_while_it_lists_the_versions() {
    let Some(drive) = Drive::new() else { return };
    let (scene, view) = (Scene::new(), drive.mount());
    let lock = view.path("lock");
    let done = run(&scene, &lock, "one", &[]).command(["true"]).finish();
    assert_eq!(done.ended, Ended::Code(0), "{}", done.stderr);
    // All versions must be listed without a hint.
    std::fs::write(&lock, "").unwrap();
    view.set(&[Op::Opendir, Op::Readdir], Fate::Hang);
    let mut two = instance(&scene, &lock, "two", &[], &[]);
    view.await_caught(1);
    let asked = Instant::now();
    two.signal(Signal::SIGTERM);
    // A hanging look must not delay its last line, which has what it knows of the lock.
    assert_eq!(two.wait(), TERM, "{}", two.stderr());
    let took = Instant::now().since(asked);
    assert!(took < Duration::from_secs(12), "{took:?} {}", two.stderr());
    scene.await_nobody();
}

#[test]
fn verbs_that_look_end_in_time_on_a_hanging_drive() {
    let Some(drive) = Drive::new() else { return };
    let (scene, view) = (Scene::new(), drive.mount());
    let lock = view.path("lock");
    let done = run(&scene, &lock, "one", &[]).command(["true"]).finish();
    assert_eq!(done.ended, Ended::Code(0), "{}", done.stderr);
    view.hang();
    let verbs: [&[&str]; 5] = [
        &["status"],
        &["list"],
        &["doctor"],
        &["reset", "--all", "--yes"],
        &["break", "--yes"],
    ];
    let begun = Instant::now();
    let asked = verbs.map(|words| {
        let verb = scene.verb(words[0]).arg("--file").arg(&lock);
        (words[0], verb.args(&words[1..]).start())
    });
    for (verb, instance) in asked {
        let finished = instance.finish();
        let took = Instant::now().since(begun);
        assert!(took < Duration::from_secs(12), "{verb}: {took:?}");
        assert_ne!(
            finished.ended,
            Ended::Code(0),
            "{verb}: {}",
            finished.stdout
        );
        let said = format!("{}{}", finished.stdout, finished.stderr);
        assert!(said.contains("answer"), "{verb}: {said}");
    }
    scene.await_nobody();
}

#[test]
fn no_wait_ends_in_time_on_a_hanging_drive_with_any_output() {
    let Some(drive) = Drive::new() else { return };
    let (scene, view) = (Scene::new(), drive.mount());
    let lock = view.path("lock");
    let done = run(&scene, &lock, "one", &[]).command(["true"]).finish();
    assert_eq!(done.ended, Ended::Code(0), "{}", done.stderr);
    view.hang();
    let in_time = |case: &str, started: Instance, begun: Instant| {
        let finished = started.finish();
        let took = Instant::now().since(begun);
        let said = finished.stderr;
        assert!(took < Duration::from_secs(10), "{case}: {took:?} {said}");
        assert_eq!(finished.ended, Ended::Code(69), "{case}: {said}");
        said
    };
    let here = |name: &str| scene.path(name).to_str().unwrap().to_owned();
    let there = view.path("out").to_str().unwrap().to_owned();
    let socket = |path: &str| format!("unix:{path}");
    // Local outputs may be the lock under another name, as may those on the drive.
    let outputs = [
        ["--event-log", &here("events")],
        ["--event-log", &there],
        ["--status-file", &here("status")],
        ["--status-file", &there],
        ["--listen", &socket(&here("socket"))],
        ["--listen", &socket(&there)],
    ];
    let begun = Instant::now();
    let plain = run(&scene, &lock, "one", &["-n"]).without_event_log();
    let plain = plain.command(["true"]).start();
    let asked = outputs.map(|words| {
        let asked = run(&scene, &lock, "one", &["-n"]).without_event_log();
        (words, asked.args(words).command(["true"]).start())
    });
    let link = here("control");
    let elect = scene.verb("elect").arg("--file").arg(&lock);
    let elect = elect.args(["-n", "--control-file", &link]);
    let elect = elect.without_event_log().start();
    // On a drive that hangs, with a local lock.
    let apart = scene.run().arg("--file").arg(scene.lock()).arg("-n");
    let apart = apart.without_event_log().args(["--status-file", &there]);
    let apart = apart.command(["true"]).start();

    in_time("none", plain, begun);
    for (words, asked) in asked {
        let said = in_time(&format!("{words:?}"), asked, begun);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(words[0]), "{said}");
    }
    let said = in_time("elect", elect, begun);
    assert!(said.contains("--control-file: no answer from"), "{said}");
    let said = in_time("apart", apart, begun);
    assert!(said.contains("nothing was started"), "{said}");
    assert!(!scene.path("events").exists());
    scene.await_nobody();
}

#[test]
fn an_output_that_cannot_be_looked_at_is_not_taken_for_another_file_than_the_lock() {
    let Some(drive) = Drive::new() else { return };
    let (scene, view) = (Scene::new(), drive.mount());
    File::create(view.path("out")).unwrap();
    let out = view.path("out").to_str().unwrap().to_owned();
    let begun = scene.path("begun");
    for flag in ["--status-file", "--event-log"] {
        let failed = Fate::Fail(libc::EIO);
        view.switchboard()
            .set(&[Op::Lookup], Some("out"), failed, ALWAYS);
        let run = scene.run().arg("--file").arg(scene.lock());
        let run = run.without_event_log().args([flag, &out]);
        let finished = run.command(["touch", begun.to_str().unwrap()]).finish();
        view.heal();
        let said = &finished.stderr;
        assert_eq!(finished.ended, Ended::Code(69), "{said}");
        let words = format!("{flag}: cannot look at {out}: Input/output error");
        assert!(said.contains(&words), "{said}");
        assert!(!begun.exists() && !scene.lock().exists());
    }
}

#[test]
fn opens_that_hang_for_longer_than_the_lease_stop_nothing() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    let mut one = instance(&scene, &here.path("lock"), "one", &[], &HEARS);
    scene.journal.await_tag(What::Beat, "one");
    let two = instance(&scene, &there.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    for view in [&here, &there] {
        view.set(&OPENS, Fate::Hang);
    }
    let since = Instant::now();
    await_life(&scene, "one", since, LEASE * 5 / 2);
    for view in [&here, &there] {
        view.heal();
    }
    await_life(&scene, "one", Instant::now(), LEASE / 2);
    assert_not_stopped(&scene, "one");
    let_end(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
    scene.journal.await_tag(What::Start, "two");
    terminate(two);
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}
