//! A machine that refuses descriptors, room in files, and calls of the runtime.

use nix::sys::resource::Resource;
use nix::sys::signal::Signal;

use crate::contain::namespace::pidns_or_say_so;
use crate::support::await_for;
use crate::support::instance::{Ended, Instance, assert_ended};
use crate::support::journal::What;
use crate::support::namespaces::unshared_or_say_so;
use crate::support::processes::processor_time;
use crate::support::scene::Scene;

#[test]
fn a_limit_of_the_size_of_files_costs_the_event_log_and_not_the_command() {
    const LIMIT: u64 = 64 * 1024;
    let scene = Scene::new();
    let log = scene.path("events");
    std::fs::write(&log, "x".repeat(LIMIT as usize - 1) + "\n").unwrap();
    let finished = scene
        .run_on_file()
        .limited(Resource::RLIMIT_FSIZE, LIMIT)
        .arg("--event-log")
        .arg(&log)
        // Not before the log is to be written, on which nothing waits.
        .shell("exec 2>/dev/null; head -c 70000 /dev/zero >big; echo $?; exit 3")
        .current_dir(scene.directory())
        .finish();
    assert_ended(&finished, 3, "cannot write the event log");
    // The command dies of a signal that trafficcop ignores: its starter decides that.
    assert_eq!(finished.stdout, "153\n", "{}", finished.stderr);
    assert_eq!(
        finished
            .stderr
            .matches("cannot write the event log")
            .count(),
        1
    );
    assert_eq!(std::fs::metadata(&log).unwrap().len(), LIMIT);
}

#[test]
fn too_few_descriptors_are_reported_before_anything_starts() {
    let scene = Scene::new();
    let ran = scene.path("ran");
    let script = format!("echo >> {}", ran.display());
    let mut most_refused = 0;
    for limit in 4..=40 {
        let _ = std::fs::remove_file(&ran);
        let finished = scene
            .run_on_file()
            .limited(Resource::RLIMIT_NOFILE, limit)
            .shell(&script)
            .finish();
        let said = &finished.stderr;
        match finished.ended {
            Ended::Code(0) => assert!(ran.exists(), "{limit}: {said}"),
            Ended::Code(69) => {
                assert!(!ran.exists(), "{limit}: {said}");
                assert!(said.contains("descriptors") || said.contains("Too many open files"));
                most_refused = limit;
            }
            other => panic!("{limit}: {other:?}\n{said}"),
        }
    }
    assert!((8..40).contains(&most_refused), "{most_refused}");
}

#[test]
fn too_small_a_stack_is_refused_and_not_a_segmentation_fault() {
    let scene = Scene::new();
    for kib in [64, 128, 256, 511, 512, 1024] {
        let finished = scene
            .run_on_file()
            .limited(Resource::RLIMIT_STACK, kib << 10)
            .args(["true"])
            .finish();
        let said = &finished.stderr;
        match kib < 512 {
            true => {
                assert_eq!(finished.ended, Ended::Code(69), "{kib}: {said}");
                assert!(
                    said.contains(&format!("the stack limit is {kib} KiB")),
                    "{said}"
                );
            }
            false => assert_eq!(finished.ended, Ended::Code(0), "{kib}: {said}"),
        }
    }
}

#[test]
fn a_process_that_cannot_be_had_for_a_moment_is_asked_for_again() {
    let scene = Scene::new();
    let ran = || {
        scene
            .run_on_file()
            .on_a_machine_that_refuses()
            .args(["--contain", "none"])
            .command(["echo", "ran"])
    };
    // The first makes the guardian, the second the command.
    scene.refuse_after("fork", 1, 2);
    let finished = ran().finish();
    assert_ended(&finished, 0, "in control");
    assert_eq!(finished.stdout, "ran\n");

    // The process that keeps a namespace's lock comes after the guardian and a probe.
    if pidns_or_say_so() {
        scene.refuse_after("fork", 2, 1);
        let finished = ran().args(["--contain", "pidns"]).finish();
        assert_ended(&finished, 0, "in control");
        assert_eq!(finished.stdout, "ran\n");
    }

    scene.refuse_after("fork", 1, 100);
    let finished = ran().finish();
    assert_ended(&finished, 69, "try again");
    assert_eq!(finished.stdout, "");

    scene.refuse("fork");
    let finished = ran().finish();
    assert_ended(&finished, 69, "cannot set up the guardian: forking");
    assert!(finished.stderr.contains("try again"), "{}", finished.stderr);
}

#[test]
fn command_ends_with_its_supervisor_where_descriptors_cannot_be_listed() {
    let scene = Scene::new();
    scene.refuse("opendir");
    let start = |name| {
        scene
            .run_on_file()
            .on_a_machine_that_refuses()
            .args(["--contain", "none", "--identity", name])
            // Guardians must not have the descriptors of earlier ones.
            .args(["--health", "true", "--on-lost", "true"])
            .journalist(name, &[])
            .start()
    };
    let mut one = start("one");
    scene.journal.await_tag(What::Beat, "one");
    let mut two = start("two");
    two.await_log("standing by");
    one.signal(Signal::SIGKILL);
    one.wait();
    scene.journal.await_tag(What::Beat, "two");
    two.signal(Signal::SIGTERM);
    two.wait();
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

#[test]
fn guardian_that_cannot_close_its_descriptors_is_refused() {
    let scene = Scene::new();
    scene.refuse("opendir");
    scene.refuse("close_range");
    let finished = scene
        .run_on_file()
        .on_a_machine_that_refuses()
        .command(["echo", "ran"])
        .finish();
    assert_ended(&finished, 69, "cannot set up the guardian: its descriptors");
    assert_eq!(finished.stdout, "");
}

/// Starts an instance whose guardian fails in this call from now on, and has been woken since. Its
/// command has left an orphan that has ended.
fn with_a_failing_guardian(scene: &Scene, call: &str) -> Instance {
    let orphan = scene.path("orphan");
    let script = format!(
        "( (until [ -e {0}.go ]; do sleep 0.05; done; echo > {0}) & ); exec sleep 1000",
        orphan.display()
    );
    let one = scene
        .run_on_file()
        .on_a_machine_that_refuses()
        .args(["--contain", "none", "--grace", "1s"])
        .shell(&script)
        .start();
    one.await_log("in control");
    scene.refuse(call);
    std::fs::write(scene.path("orphan.go"), "").unwrap();
    await_for(
        "the orphan to end",
        || orphan.exists().then_some(()),
        String::new,
    );
    one
}

/// Checks that its loop uses at most half a second of processor time in three, even where it polls.
fn rests(one: &Instance) {
    let guardian = one.guardian();
    let begun = trafficcop::Instant::now();
    let before = processor_time(guardian);
    let three = std::time::Duration::from_secs(3);
    await_for(
        "three seconds",
        || (trafficcop::Instant::now().since(begun) >= three).then_some(()),
        String::new,
    );
    let used = processor_time(guardian) - before;
    assert!(used < three / 6, "{used:?}");
}

#[test]
fn guardian_whose_poll_fails_rests_between_turns_and_still_ends_the_command() {
    let scene = Scene::new();
    let mut one = with_a_failing_guardian(&scene, "poll");
    rests(&one);
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), Ended::Died(Signal::SIGTERM), "{}", one.stderr());
    scene.await_nobody();
}

#[test]
fn guardian_that_cannot_reap_reports_that_and_keeps_its_deadlines() {
    let scene = Scene::new();
    scene.excuse_event_logs("it cannot be known that nothing of the command lives");
    let mut one = with_a_failing_guardian(&scene, "waitpid");
    rests(&one);
    one.signal(Signal::SIGTERM);
    one.await_log("a process of the command cannot be killed");
    assert_eq!(one.wait(), Ended::Code(71), "{}", one.stderr());
    scene.grant("waitpid");
    scene.await_nobody();
}

#[test]
fn lock_below_the_upper_directory_of_an_overlay_is_refused_and_one_on_the_overlay_works() {
    let scene = Scene::new();
    // By the directory, a link, and a second mount.
    let script = "cd \"$0\" && mount -t tmpfs none . && cd \"$0\" && mkdir low up work merged bound && \
         ln -s up link && \
         mount -t overlay -o lowerdir=$0/low,upperdir=$0/up,workdir=$0/work none merged && mount --bind up bound && \
         exec \"$@\"";
    let script = script.replace("$0", &scene.directory().display().to_string());
    let run = |lock: &str, shared: bool| {
        let mut unshared = unshared_or_say_so(&["--mount"], &script)?;
        unshared.args([env!("CARGO_BIN_EXE_trafficcop"), "run", "-n", "--file"]);
        unshared.arg(scene.path(lock));
        unshared
            .args(shared.then_some("--shared"))
            .args(["--", "echo", "ran"]);
        let output = unshared.output().unwrap();
        let said =
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
        Some((output.status.code(), said))
    };
    for lock in ["up/lock", "link/lock", "bound/lock", "merged/lock"] {
        for shared in [false, true] {
            let Some((status, said)) = run(lock, shared) else {
                return;
            };
            if lock == "merged/lock" {
                assert_eq!(status, Some(0), "{said}");
            } else {
                assert_eq!(status, Some(69), "{lock}: {said}");
                assert!(said.contains("upper directory of the overlay"), "{said}");
                assert!(!said.contains("ran"), "{said}");
            }
        }
    }
}
