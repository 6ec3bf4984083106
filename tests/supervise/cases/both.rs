use super::*;

/// Takes a lock that is free again only when the tree is empty.
fn lock_in(scene: &Scene) -> String {
    let lock = scene.path("lock");
    fs::write(&lock, "").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(&lock, mode).unwrap();
    lock
}

/// Kills both. In a namespace the kernel kills all. Otherwise this is a documented weakness: a
/// daemon lives on, and only the next instance that starts here kills a cgroup.
pub(super) fn both_killed_at_once(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    let lock = lock_in(&scene);
    scene.start_with(Deadlines::none(), &lock, "");
    scene.expect("Started");
    scene.meet(3);
    // Neither can act before the other is dead.
    scene.signal_guardian(libc::SIGSTOP);
    scene.signal_supervisor(libc::SIGSTOP);
    scene.signal_guardian(libc::SIGKILL);
    scene.signal_supervisor(libc::SIGKILL);
    if who.contain == Contain::Pidns {
        let file = fs::File::options().write(true).open(&lock).unwrap();
        proc::wait_for("the lock", || proc::try_lock(&file).then_some(()));
        scene.assert_all_dead();
        return;
    }
    scene.main().death();
    scene.assert_some_alive();
    if who.contain == Contain::Cgroup {
        scene.supervisor.wait().unwrap();
        scene.guardian.death();
        let next = Scene::acting(who, &["exit", "0"]);
        scene.deaths();
        next.dismiss();
    }
}

/// The kernel continues the guardian when its group is orphaned: its new parent is in another
/// session.
pub(super) fn a_stopped_guardian_and_a_killed_supervisor(who: Who) {
    let props = Props {
        own_session: true,
        ..Props::default()
    };
    let mut scene = Scene::acting_with(who, &["family", "@/journal"], props);
    // No grace.
    scene.start_family(Deadlines::within(FAR, FAR), 3);
    scene.set_release_info();
    scene.signal_supervisor(libc::SIGSTOP);
    scene.signal_guardian(libc::SIGSTOP);
    scene.signal_supervisor(libc::SIGKILL);
    scene.deaths();
    scene.assert_testament();
}

/// A child subreaper in the same session adopts the guardian, so its group is not orphaned and it
/// stays stopped. Once continued, it acts by its own timer.
pub(super) fn a_guardian_that_stays_stopped_and_a_killed_supervisor(who: Who) {
    let props = Props {
        nursery: true,
        ..Props::default()
    };
    let mut scene = Scene::acting_with(who, &["family", "@/journal"], props);
    let lock = lock_in(&scene);
    scene.start_with(Deadlines::none(), &lock, "");
    scene.expect("Started");
    scene.meet(3);
    let deadlines = Deadlines::within(FAR, 1500);
    scene.give_for_sure(deadlines);
    scene.signal_supervisor(libc::SIGSTOP);
    scene.signal_guardian(libc::SIGSTOP);
    scene.signal_supervisor(libc::SIGKILL);
    scene.await_deadline_of_stopped(deadlines);
    let file = fs::File::options().write(true).open(&lock).unwrap();
    assert!(!proc::try_lock(&file), "the guardian has it");
    scene.signal_guardian(libc::SIGCONT);
    scene.deaths();
    scene.guardian.death();
    proc::wait_for("the lock", || proc::try_lock(&file).then_some(()));
}

pub(super) fn both_stopped(who: Who) {
    let mut scene = Scene::acting(who, &["family", "@/journal"]);
    scene.start_family(Deadlines::none(), 3);
    let deadlines = Deadlines::within(FAR, 1500);
    scene.give_for_sure(deadlines);
    scene.signal_supervisor(libc::SIGSTOP);
    scene.signal_guardian(libc::SIGSTOP);
    scene.await_deadline_of_stopped(deadlines);
    scene.signal_guardian(libc::SIGCONT);
    scene.deaths();
    scene.signal_supervisor(libc::SIGCONT);
    scene.news_until("TreeEmpty");
    scene.assert_all_dead();
    scene.dismiss();
}
