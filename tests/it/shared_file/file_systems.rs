//! File systems on which two machines may both make a directory, and `doctor` between two machines.

use super::*;
use crate::support::instance::assert_ended;
use crate::support::namespaces::unshared_or_say_so;
use crate::support::programs::trafficcop;

const PROMISE: &str = "--mkdir-is-exclusive";

#[test]
fn shared_drive_of_an_unknown_kind_is_refused_without_the_promise() {
    let Some(drive) = Drive::new() else { return };
    let (scene, store) = (Scene::new(), drive.mount_as("blobfuse2"));
    let lock = store.path("lock");
    let refused = run(&scene, &lock, "one", &[]).command(["true"]).finish();
    assert_ended(&refused, 69, "fuse.blobfuse2");
    assert!(refused.stderr.contains(PROMISE), "{}", refused.stderr);
    assert!(!lock.exists(), "it made the lock");
    // `--shared` decides how the lock is kept, and says nothing about the drive.
    let shared = run(&scene, &lock, "one", &["--shared"]).command(["true"]);
    assert_ended(&shared.finish(), 69, PROMISE);
    let elect = scene.verb("elect").arg("--file").arg(&lock);
    assert_ended(&elect.finish(), 69, PROMISE);
    let promised = run(&scene, &lock, "one", &[PROMISE]).command(["true"]);
    assert_eq!(promised.finish().ended, Ended::Code(0));
    // It competes with no instance.
    let look = scene.verb("status").arg("--file").arg(&lock).finish();
    assert_eq!(look.ended, Ended::Code(1), "{}", look.stderr);
    let by_variable = run(&scene, &lock, "one", &[]).env("TRAFFICCOP_MKDIR_IS_EXCLUSIVE", "1");
    assert_eq!(by_variable.command(["true"]).finish().ended, Ended::Code(0));
}

#[test]
fn local_disks_and_known_drives_need_no_promise() {
    let Some(drive) = Drive::new() else { return };
    let (scene, view) = (Scene::new(), drive.mount());
    for (lock, option) in [(scene.lock(), "--shared"), (view.path("lock"), "--quiet")] {
        let finished = run(&scene, &lock, "one", &[option])
            .command(["true"])
            .finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    }
}

/// Runs doctors on two machines at the same time; returns their outputs and statuses.
fn doctors(scene: &Scene, locks: [&Path; 2]) -> [(String, Ended); 2] {
    let doctors = locks.map(|lock| scene.verb("doctor").arg("--file").arg(lock).start());
    doctors.map(|doctor| {
        let finished = doctor.finish();
        let machines = |line: &&str| line.contains("  machines  ");
        let said = finished.stdout.lines().find(machines);
        let said = said.unwrap_or_else(|| panic!("{}", finished.stdout));
        (said.to_owned(), finished.ended)
    })
}

#[test]
fn doctors_on_two_machines_race_and_find_a_drive_that_excludes() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    for (said, ended) in doctors(&scene, [&here.path("lock"), &there.path("lock")]) {
        assert!(said.starts_with("ok"), "{said}");
        assert!(said.contains("made 20 names at the same time"), "{said}");
        assert_eq!(ended, Ended::Code(0), "{said}");
    }
    assert_eq!(here.entries(), [""; 0], "it left something behind");
}

#[test]
fn doctors_on_two_machines_fail_where_both_made_one_directory() {
    let Some(drive) = Drive::new() else { return };
    drive.exclude_nobody();
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    for (said, ended) in doctors(&scene, [&here.path("lock"), &there.path("lock")]) {
        assert!(said.starts_with("fail"), "{said}");
        assert!(said.contains("does not exclude"), "{said}");
        assert_eq!(ended, Ended::Code(1), "{said}");
    }
}

#[test]
fn doctor_alone_says_that_no_other_came_and_fails_on_an_unknown_kind() {
    let Some(drive) = Drive::new() else { return };
    let (scene, known, unknown) = (Scene::new(), drive.mount(), drive.mount_as("blobfuse2"));
    let doctor = |lock: &Path, options: &[&str]| {
        let doctor = scene.verb("doctor").arg("--file").arg(lock).args(options);
        let finished = doctor.finish();
        assert!(
            finished.stdout.contains("no other doctor came"),
            "{}",
            finished.stdout
        );
        (finished.ended, finished.stdout)
    };
    let (ended, said) = doctor(&known.path("a"), &[]);
    assert_eq!(ended, Ended::Code(0), "{said}");
    assert!(said.contains("ok    machines"), "{said}");
    let (ended, said) = doctor(&unknown.path("b"), &[]);
    assert_eq!(ended, Ended::Code(1), "{said}");
    assert!(
        said.contains("fail  mount") && said.contains(PROMISE),
        "{said}"
    );
    let (ended, said) = doctor(&unknown.path("c"), &[PROMISE]);
    assert_eq!(ended, Ended::Code(0), "{said}");
    assert!(said.contains("warn  machines"), "{said}");
}

#[test]
fn mount_point_of_a_network_drive_that_is_not_mounted_is_refused() {
    let scene = Scene::new();
    let share = scene.path("share");
    std::fs::create_dir(&share).expect("made");
    let fstab = scene.path("fstab");
    let line = format!("server:/x {} nfs4 noauto 0 0\n", share.display());
    std::fs::write(&fstab, line).expect("written");
    let with_fstab = format!(
        "mount -t tmpfs none /etc && cp '{}' /etc/fstab && exec \"$@\"",
        fstab.display()
    );
    let Some(mut shell) = unshared_or_say_so(&["--mount"], &with_fstab) else {
        return;
    };
    let script = format!(
        r#"cd '{}'
        for options in '' --shared; do
            '{program}' run -n --contain none $options --file share/lock -- echo ran; echo $?
        done
        ls -A share
        '{program}' run -n --contain none --file lock -- echo beside
        mount -t tmpfs none share
        '{program}' run -n --contain none --file share/lock -- echo mounted"#,
        scene.directory().display(),
        program = trafficcop()
    );
    let output = shell.args(["sh", "-c", &script]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.stdout, b"69\n69\nbeside\nmounted\n", "{said}");
    let reason = "is the mount point of a network drive (nfs4, /etc/fstab) that is not mounted";
    assert_eq!(said.matches(reason).count(), 2, "{said}");
}

#[test]
fn second_name_of_a_lock_is_refused_where_it_is_taken_and_looked_at_by_status() {
    let scene = Scene::new();
    let lock = scene.lock();
    let held = run(&scene, &lock, "one", &["--shared"])
        .command(["true"])
        .finish();
    assert_eq!(held.ended, Ended::Code(0), "{}", held.stderr);
    std::fs::hard_link(&lock, scene.path("second")).expect("linked");
    let refused = run(&scene, &lock, "one", &["-n"])
        .command(["true"])
        .finish();
    assert_ended(&refused, 69, "it has a second name (a hard link)");
    let looked = scene.verb("status").arg("--file").arg(&lock).finish();
    assert_eq!(looked.ended, Ended::Code(1), "{}", looked.stderr);
    assert!(looked.stdout.contains("free"), "{}", looked.stdout);
}
