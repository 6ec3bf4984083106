//! Stuck in the kernel, where no signal arrives: a health check, and a command before it runs.

use super::*;
use crate::shared_file::drive::Fate;

#[test]
fn a_check_that_cannot_be_killed_costs_control_and_the_lock_is_left_to_run_out() {
    let Some(drive) = Drive::new() else { return };
    let (scene, here, there) = (Scene::new(), drive.mount(), drive.mount());
    scene.excuse_confession("what is stuck in the kernel may go on when that lets it go");
    File::create(here.path("looked-at")).expect("a file");
    let script = format!(
        "exec stat {} > /dev/null",
        there.path("looked-at").display()
    );
    let checks = [
        "--health",
        &script,
        "--health-every",
        "1s",
        "--health-timeout",
        "1s",
    ];
    let options = [&checks[..], &["--cooldown", "1h"]].concat();
    let mut one = instance(&scene, &here.path("lock"), "one", &options, &[]);
    scene.journal.await_tag(What::Beat, "one");
    let two = instance(&scene, &here.path("lock"), "two", &[], &[]);
    two.await_log("standing by: one is in control");
    there.set(&[], Fate::Stick);
    one.await_log("a process of the --health command cannot be killed");
    // No other check starts meanwhile, and one that does not start does not count as answered.
    one.await_log("hung: --health failed 3 times in a row; the last time it took too long");
    assert_eq!(there.switchboard().caught(), 1);
    assert_eq!(one.wait(), Ended::Code(71), "{}", one.stderr());
    assert!(
        !one.stderr().contains("gave the lock back"),
        "{}",
        one.stderr()
    );
    let first = scene.journal.await_tag(What::Start, "two");
    assert!(first.at > last_before(&scene, "one", u64::MAX).at);
    // Not released: the standby waited for a lease.
    assert_eq!(first.token, drive.greatest("lock"), "{}", two.stderr());
    there.heal();
    terminate(two);
    scene.await_nobody();
    assert_eq!(scene.journal.judge(), ["one", "two"]);
}

/// The program's drive does not answer: it was ordered, and never runs.
#[test]
fn a_command_whose_start_hangs_is_found_to_hang() {
    let Some(drive) = Drive::new() else { return };
    let (scene, there) = (Scene::new(), drive.mount());
    let program = there.path("program");
    std::fs::copy("/bin/true", &program).expect("a program");
    let go = scene.path("go");
    let waits = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    let one = scene
        .run_on_file()
        .args(["--health", "false", "--health-every", "1s"])
        .args(["--health-failures", "2", "--grace", "1s"])
        .args(["--on-acquire", &waits])
        .command([program.to_str().expect("text")])
        .start();
    one.await_log("in control, token 1");
    there.hang();
    File::create(go).expect("a file");
    one.await_log("hung: --health failed 2 times in a row");
    one.await_log("gave the lock back");
    there.heal();
    terminate(one);
    scene.await_nobody();
}
