//! The end of a command with a healthy guardian and supervisor.

use super::*;

pub(super) fn the_whole_family_dies_at_the_deadline(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    let deadlines = Deadlines::within(1000, 1500);
    scene.give(deadlines);
    let (first, last) = scene.deaths();
    assert!(first >= deadlines.kill_at, "killed before the deadline");
    assert!(last < deadlines.kill_at + Duration::from_secs(20));
    let heard = scene.news_until("TreeEmpty");
    scene.assert_all_dead();
    assert_eq!(heard[0], "Acting");
    assert!(heard.contains(&"Exited(Signal(9))".to_owned()), "{heard:?}");
}

pub(super) fn a_polite_command_ends_within_its_grace(who: Who) {
    let mut scene = Scene::acting(who, &["wait", "@/journal"]);
    scene.start_family(Deadlines::none(), 1);
    scene.give(Deadlines::within(0, FAR));
    scene.expect("Acting");
    scene.expect("Exited(Signal(15))");
    scene.expect("TreeEmpty");
    scene.assert_all_dead();
}

pub(super) fn a_renewal_that_waited_past_the_deadline_is_an_expiry(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    let deadlines = Deadlines::within(FAR, 3000);
    scene.give_for_sure(deadlines);
    scene.signal_guardian(libc::SIGSTOP);
    scene.give(Deadlines::within(FAR, FAR));
    // Before it can find the guardian silent.
    scene.signal_supervisor(libc::SIGSTOP);
    assert!(
        Instant::now() < deadlines.kill_at,
        "a machine too slow for this case"
    );
    scene.await_deadline_of_stopped(deadlines);
    scene.signal_guardian(libc::SIGCONT);
    scene.deaths();
    scene.signal_supervisor(libc::SIGCONT);
    scene.expect("Acting");
    scene.expect("Exited(Signal(9))");
    scene.expect("TreeEmpty");
}

pub(super) fn a_shorter_deadline_holds(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::within(FAR, FAR), 3);
    let shorter = Deadlines::within(400, 800);
    scene.give(shorter);
    let (first, _) = scene.deaths();
    assert!(first >= shorter.kill_at);
}

pub(super) fn a_renewal_while_draining_moves_the_kill(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    let deadlines = Deadlines::within(FAR, 3000);
    scene.give(deadlines);
    let end = word(Instant::now() + LONG * 10);
    scene.do_now(&format!("drain 15 {end}"));
    scene.give(Deadlines::within(FAR, FAR));
    assert!(
        Instant::now() < deadlines.kill_at,
        "a machine too slow for this case"
    );
    sleep_until(deadlines.kill_at + Duration::from_millis(300));
    scene.assert_all_alive();
    let end = Instant::now() + Duration::from_millis(200);
    scene.say(&format!("drain 15 {}", word(end)));
    let (first, _) = scene.deaths();
    assert!(first >= end);
    let heard = scene.news_until("TreeEmpty");
    assert!(!heard.contains(&"Acting".to_owned()), "{heard:?}");
}

pub(super) fn a_polite_daemon_that_was_left_behind_is_drained(who: Who) {
    let mut scene = Scene::acting(who, &["leave", "@/journal"]);
    scene.start(Deadlines::within(FAR, FAR * 2));
    scene.expect("Started");
    scene.expect("Exited(Code(3))");
    scene.expect("LeftBehind");
    scene.expect("TreeEmpty");
    scene.meet(1);
    scene.assert_all_dead();
}

pub(super) fn a_deaf_family_that_was_left_behind_is_killed(who: Who) {
    let mut scene = Scene::acting(who, &["leave-deaf", "@/journal"]);
    // A grace of 400 ms.
    scene.start(Deadlines::within(FAR, FAR + 400));
    scene.expect("Started");
    scene.expect("Exited(Code(3))");
    scene.expect("LeftBehind");
    scene.expect("TreeEmpty");
    scene.meet(2);
    scene.assert_all_dead();
    scene.dismiss();
}

pub(super) fn the_lock_lives_as_long_as_the_tree(who: Who) {
    let mut scene = Scene::acting(who, &["deaf", "@/journal"]);
    let lock = scene.path("lock");
    fs::write(&lock, "").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(&lock, mode).unwrap();
    let is_free = || {
        let file = fs::File::options().write(true).open(&lock).unwrap();
        proc::try_lock(&file)
    };
    for _ in 0..2 {
        scene.start_with(Deadlines::none(), &lock, "");
        scene.expect("Started");
        scene.meet(1);
        assert!(!is_free());
        scene.say("kill");
        scene.news_until("TreeEmpty");
        // The report of an empty tree means that the lock is free.
        assert!(is_free());
        scene.forget();
    }
    // With the guardian dead and the supervisor stopped, the command still holds it.
    scene.start_with(Deadlines::within(FAR, FAR + 500), &lock, "");
    scene.expect("Started");
    scene.meet(1);
    scene.signal_supervisor(libc::SIGKILL);
    assert!(!is_free() || !scene.main().is_alive());
    scene.deaths();
    scene.guardian.death();
    assert!(is_free());
}

/// Starts a command of root, as after sudo, under an unprivileged guardian: a cgroup or a namespace
/// can kill it, but it may not be signalled by its pid.
fn untouchable(who: Who) -> Option<(Scene, impl Fn() -> bool)> {
    if !who.nobody || who.contain != Contain::None {
        return None;
    }
    let mut scene = Scene::new(
        who,
        &["./as-root", "--act", "as-root", "@/journal"],
        Props::default(),
    );
    let program = scene.path("as-root");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mode = |path: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(path, mode).unwrap();
    };
    mode(&program, 0o4755);
    let lock = scene.path("lock");
    fs::write(&lock, "").unwrap();
    mode(&lock, 0o666);
    scene.start_with(Deadlines::none(), &format!("kept:{lock}"), "");
    scene.expect("Started");
    scene.meet(1);
    let is_free = move || {
        let file = fs::File::options().write(true).open(&lock).unwrap();
        proc::try_lock(&file)
    };
    Some((scene, is_free))
}

pub(super) fn a_tree_that_may_not_be_signalled_keeps_its_guardian_and_the_lock(who: Who) {
    let Some((mut scene, lock_is_free)) = untouchable(who) else {
        return;
    };
    scene.say("kill");
    scene.expect("TreeStuck");
    scene.say("dismiss");
    scene.expect("dismissed");
    assert!(scene.supervisor.wait().unwrap().success());
    assert!(scene.main().is_alive() && scene.guardian.is_alive());
    assert!(!lock_is_free());
    scene.main().kill();
    scene.guardian.death();
    assert!(lock_is_free());
    scene.assert_all_dead();
}

pub(super) fn a_tree_that_may_not_be_signalled_keeps_the_supervisor_of_a_dead_guardian(who: Who) {
    let Some((mut scene, lock_is_free)) = untouchable(who) else {
        return;
    };
    scene.signal_guardian(libc::SIGKILL);
    scene.expect("Lost");
    scene.expect("TreeStuck");
    scene.say("dismiss");
    // Longer than a dismissed guardian gets.
    sleep_until(Instant::now() + Duration::from_secs(3));
    assert!(scene.main().is_alive() && !lock_is_free());
    scene.main().kill();
    scene.expect("dismissed");
    assert!(scene.supervisor.wait().unwrap().success());
    assert!(lock_is_free());
}

/// The guardian has no room for a descriptor that it gets: the lock's, or a message's.
pub(super) fn without_what_is_to_be_kept_open_nothing_is_started(who: Who) {
    let mut scene = Scene::acting(who, &["deaf", "@/journal"]);
    let lock = scene.path("lock");
    fs::write(&lock, "").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(&lock, mode).unwrap();
    // Its setup is finished by then.
    scene.start(Deadlines::none());
    scene.expect("Started");
    scene.meet(1);
    scene.say("kill");
    scene.news_until("TreeEmpty");
    scene.forget();
    let guardian = scene.guardian.kin.pid;
    scene.do_now(&format!("limit {guardian} 0"));
    for handed in [lock.clone(), format!("stdin:{lock}")] {
        scene.start_with(Deadlines::none(), &handed, "");
        let news = scene.news();
        assert_eq!(news, format!("NotStarted {{ errno: {} }}", libc::EMFILE));
    }
    let file = fs::File::options().write(true).open(&lock).unwrap();
    proc::wait_for("the lock", || proc::try_lock(&file).then_some(()));
    drop(file);
    scene.do_now(&format!("limit {guardian} 256"));
    scene.start_with(Deadlines::none(), &lock, "");
    scene.expect("Started");
    scene.dismiss();
}
