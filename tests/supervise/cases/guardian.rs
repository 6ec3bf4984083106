//! A guardian that dies or stops, and its supervisor's reaction.

use super::*;

pub(super) fn the_supervisor_finishes_for_a_killed_guardian(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    scene.signal_guardian(libc::SIGKILL);
    scene.expect("Lost");
    scene.expect("TreeEmpty");
    scene.assert_all_dead();
}

pub(super) fn the_supervisor_finishes_for_a_stopped_guardian(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    scene.signal_guardian(libc::SIGSTOP);
    scene.expect("Lost");
    scene.expect("TreeEmpty");
    scene.assert_all_dead();
    assert!(!scene.guardian.is_alive());
}

pub(super) fn who_insists_does_not_wait_for_a_start(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    // The supervisor waits for its answers.
    scene.set_release_info();
    scene.signal_guardian(libc::SIGSTOP);
    scene.start(Deadlines::none());
    let asked = Instant::now();
    scene.do_now("kill");
    scene.expect("Lost");
    // Less than a start may take.
    assert!(Instant::now().since(asked) < Duration::from_secs(8));
    scene.expect("TreeEmpty");
    assert!(!scene.guardian.is_alive());
}

pub(super) fn a_second_guardian_survives_the_rescue(who: Who) {
    let props = Props {
        env: vec![("SPARE_GUARDIAN", "1")],
        // A child from before its exec, which the supervisor must not kill.
        through: vec!["sh", "-c", "sleep 1000 & exec \"$0\" \"$@\""],
        ..Props::default()
    };
    let mut scene = Scene::acting_with(who, &["family", "@/journal"], props);
    let children = format!("/proc/{0}/task/{0}/children", scene.supervisor_pid());
    let before: Vec<i32> = ids(&children);
    assert_eq!(before.len(), 3, "sleep and two guardians");
    scene.start_family(Deadlines::none(), 3);
    scene.signal_guardian(libc::SIGKILL);
    scene.expect("Lost");
    scene.expect("TreeEmpty");
    scene.assert_all_dead();
    let mut after = ids(&children);
    after.push(scene.guardian.kin.pid);
    after.sort_unstable();
    let mut all = before.clone();
    all.sort_unstable();
    let stranger = before
        .iter()
        .find(|pid| **pid != scene.guardian.kin.pid && **pid != second(&scene));
    proc::kill(*stranger.unwrap(), libc::SIGKILL);
    assert_eq!(after, all);
}

fn second(scene: &Scene) -> i32 {
    scene.second.as_ref().unwrap().kin.pid
}

fn ids(path: &str) -> Vec<i32> {
    let text = fs::read_to_string(path).unwrap();
    text.split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect()
}

pub(super) fn the_command_dies_with_its_guardian(who: Who) {
    let mut scene = Scene::acting(who, &["deaf", "@/journal"]);
    scene.start_family(Deadlines::none(), 1);
    // Only the kernel can do it now.
    scene.signal_supervisor(libc::SIGSTOP);
    scene.signal_guardian(libc::SIGKILL);
    scene.deaths();
}

pub(super) fn an_idle_guardian_is_left_in_peace(who: Who) {
    let mut scene = Scene::acting(who, &["exit", "0"]);
    scene.start(Deadlines::none());
    scene.news_until("TreeEmpty");
    let path = format!("/proc/{}/status", scene.guardian.kin.pid);
    let switches = || {
        let text = fs::read_to_string(&path).unwrap();
        let line = text.lines().find(|l| l.starts_with("voluntary"));
        line.unwrap().to_owned()
    };
    proc::wait_for("the guardian to rest", || {
        let before = switches();
        sleep_until(Instant::now() + Duration::from_millis(1200));
        (switches() == before).then_some(())
    });
}

pub(super) fn the_guardian_does_not_bear_our_name(who: Who) {
    let scene = Scene::acting(who, &["exit", "0"]);
    let read = |name: &str| {
        let path = format!("/proc/{}/{name}", scene.guardian.kin.pid);
        fs::read_to_string(path).unwrap()
    };
    proc::wait_for("the name and the command line to be changed", || {
        (read("comm") == "tc-guardian\n" && read("cmdline").trim_end_matches('\0') == "tc-guardian")
            .then_some(())
    });
}
