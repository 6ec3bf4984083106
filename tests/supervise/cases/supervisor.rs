use super::*;

pub(super) fn the_whole_family_dies_with_the_supervisor(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    // A grace of half a second.
    scene.start_family(Deadlines::within(FAR, FAR + 500), 3);
    scene.set_release_info();
    scene.assert_all_alive();
    scene.signal_supervisor(libc::SIGKILL);
    scene.deaths();
    scene.assert_testament();
}

pub(super) fn the_guardian_survives_the_death_of_the_supervisors_group(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::within(FAR, FAR + 100), 3);
    scene.set_release_info();
    proc::kill(-scene.supervisor_pid(), libc::SIGKILL);
    scene.deaths();
    scene.assert_testament();
}

/// Makes a scene in which the lock ends with the supervisor, and the command this much later.
fn without_its_lock(who: Who, millis: &'static str) -> Scene {
    let props = Props {
        env: vec![("ORPHAN_GRACE", millis)],
        ..Props::default()
    };
    Scene::acting_with(who, &["family", "@/journal"], props)
}

pub(super) fn a_grace_that_was_granted_is_cut_where_the_lock_dies_with_the_supervisor(who: Who) {
    let mut scene = without_its_lock(who, "500");
    scene.start_family(Deadlines::none(), 3);
    let end = Instant::now() + Duration::from_millis(FAR);
    scene.do_now(&format!("drain {} {}", libc::SIGTERM, word(end)));
    scene.signal_supervisor(libc::SIGKILL);
    scene.deaths();
}

pub(super) fn what_a_dead_supervisor_ordered_is_not_begun_where_its_lock_died_with_it(who: Who) {
    // Long enough to see a command.
    let mut scene = without_its_lock(who, "3000");
    // The supervisor waits for its guardian's answers from here on.
    scene.set_release_info();
    scene.signal_guardian(libc::SIGSTOP);
    scene.start(Deadlines::none());
    scene.give(Deadlines::none());
    scene.signal_supervisor(libc::SIGKILL);
    scene.supervisor.wait().unwrap();
    scene.signal_guardian(libc::SIGCONT);
    scene.guardian.death();
    let begun = proc::journal(&scene.path("journal"));
    assert!(begun.is_empty(), "{begun:?}");
}

pub(super) fn a_second_guardian_does_not_hide_the_supervisors_death(who: Who) {
    let props = Props {
        env: vec![("SPARE_GUARDIAN", "1")],
        ..Props::default()
    };
    let mut scene = Scene::acting_with(who, &["family", "@/journal"], props);
    scene.start_family(Deadlines::within(FAR, FAR + 100), 3);
    scene.set_release_info();
    scene.signal_supervisor(libc::SIGKILL);
    scene.deaths();
    scene.assert_testament();
    scene.second.as_ref().unwrap().death();
}

pub(super) fn a_lease_of_two_guardians_is_given_back_after_both_are_gone(who: Who) {
    let props = Props {
        env: vec![("SPARE_GUARDIAN", "partner")],
        // Otherwise the kernel would continue the stopped one.
        nursery: true,
        ..Props::default()
    };
    let mut scene = Scene::acting_with(who, &["family", "@/journal"], props);
    scene.start_family(Deadlines::within(FAR, FAR + 100), 3);
    scene.set_release_info();
    let partner = scene.second.as_ref().unwrap().kin.pid;
    proc::kill(partner, libc::SIGSTOP);
    await_stopped(partner);
    scene.signal_supervisor(libc::SIGKILL);
    scene.deaths();
    // Longer than the release takes.
    sleep_until(Instant::now() + Duration::from_millis(700));
    let testament = fs::metadata(scene.path("testament"));
    assert!(testament.is_err(), "given back beside what may live");
    proc::kill(partner, libc::SIGCONT);
    scene.second.as_ref().unwrap().death();
    scene.assert_testament();
}

pub(super) fn a_will_is_carried_out_between_two_commands(who: Who) {
    let mut scene = Scene::acting(who, &["exit", "0"]);
    scene.start(Deadlines::none());
    scene.news_until("TreeEmpty");
    scene.set_release_info();
    scene.signal_supervisor(libc::SIGKILL);
    scene.assert_testament();
}

pub(super) fn a_dismissed_guardian_carries_out_no_will(who: Who) {
    let mut scene = Scene::acting(who, &["exit", "0"]);
    scene.set_release_info();
    let testament = scene.path("testament");
    scene.say("dismiss");
    while scene.news() != "dismissed" {}
    scene.guardian.death();
    assert!(fs::metadata(testament).is_err());
}

pub(super) fn a_stopped_supervisor_cannot_keep_the_family_alive(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    let deadlines = Deadlines::within(1000, 1500);
    scene.give(deadlines);
    scene.signal_supervisor(libc::SIGSTOP);
    let (first, last) = scene.deaths();
    assert!(first >= deadlines.kill_at, "killed before the deadline");
    assert!(last < deadlines.kill_at + Duration::from_secs(20));
    // Its orders after its return are too late, which is not the guardian's fault.
    let (term_at, kill_at) = Deadlines::within(FAR, FAR).words();
    scene.say(&format!("extend {term_at} {kill_at}"));
    scene.signal_supervisor(libc::SIGCONT);
    let heard = scene.news_until("TreeEmpty");
    assert!(!heard.contains(&"Lost".to_owned()), "{heard:?}");
}

pub(super) fn a_stopped_supervisor_does_not_blame_the_guardian(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    for _ in 0..3 {
        scene.signal_supervisor(libc::SIGSTOP);
        // Longer than any limit.
        sleep_until(Instant::now() + Duration::from_millis(1500));
        scene.signal_supervisor(libc::SIGCONT);
        // Two pings, from which a wrong conclusion could be drawn.
        sleep_until(Instant::now() + Duration::from_millis(700));
        scene.assert_all_alive();
    }
    scene.say("kill");
    scene.expect("Exited(Signal(9))");
    scene.expect("TreeEmpty");
    scene.assert_all_dead();
}
