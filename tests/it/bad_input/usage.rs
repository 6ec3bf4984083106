//! Bad usage and settings that cannot hold: refused before anything is opened or asked.

use super::{bad_usage, bad_usage_on_blob, judge, left_behind, refused};
use crate::support::instance::Ended;
use crate::support::scene::Scene;

#[test]
fn no_command() {
    let scene = Scene::new();
    let finished = scene.run_on_file().finish();
    judge(
        &scene,
        &finished.stderr,
        finished.ended,
        64,
        &["no command", "--"],
    );
    let empty = scene.run_on_file().command([""]).finish();
    judge(&scene, &empty.stderr, empty.ended, 64, &["empty"]);
    assert_eq!(left_behind(&scene), [""; 0]);
}

#[test]
fn no_lock_or_two() {
    let scene = Scene::new();
    refused(&scene, scene.run(), 64, &["no lock", "--blob", "--file"]);
    bad_usage(
        &["--blob", "locks/one"],
        &["two locks", "locks/one", "exactly one"],
    );
}

#[test]
fn an_unknown_flag() {
    let scene = Scene::new();
    let run = scene
        .run_on_file()
        .args(["--leese", "30s"])
        .command(["true"]);
    let finished = run.finish();
    assert_eq!(finished.ended, Ended::Code(64));
    assert!(finished.stderr.contains("--leese"), "{}", finished.stderr);
    assert_eq!(left_behind(&scene), [""; 0]);
}

#[test]
fn a_lease_outside_what_a_blob_can_have() {
    for lease in ["14s", "61s", "infinite", "-1", "0", "15.5s", "500ms"] {
        let lease = format!("--lease={lease}");
        bad_usage_on_blob(&["--blob", "locks/one", &lease], &["--lease"]);
    }
    bad_usage_on_blob(
        &["--blob", "locks/one", "--lease", "14s"],
        &["14s", "15s to 60s"],
    );
    bad_usage_on_blob(
        &["--blob", "locks/one", "--lease", "61s"],
        &["61s", "15s to 60s"],
    );
}

#[test]
fn a_page_blob_of_half_a_page() {
    for size in ["1000", "0", "-512", "9999T", "big"] {
        let size = format!("--page-blob={size}");
        bad_usage_on_blob(&["--blob", "locks/one", &size], &["--page-blob"]);
    }
    bad_usage_on_blob(&["--blob", "locks/one", "--page-blob=1000"], &["512"]);
}

#[test]
fn a_grace_that_does_not_fit() {
    let blob = ["--blob", "locks/one", "--lease", "15s"];
    let row = |more: &[&str], words: &[&str]| bad_usage_on_blob(&[&blob, more].concat(), words);
    row(
        &["--grace-on-loss", "10s"],
        &["--grace-on-loss", "10", "raise --lease"],
    );
    row(&["--grace-on-loss", "1h"], &["--grace-on-loss"]);
    row(&["--margin", "0"], &["--margin"]);
}

#[test]
fn numbers_and_durations_that_are_none() {
    bad_usage(&["-E", "600"], &["600", "0 to 255"]);
    bad_usage(&["-E=-1"], &["-1", "0 to 255"]);
    bad_usage(&["-w", "soon"], &["--wait", "soon"]);
    bad_usage(&["--grace", "10 parsecs"], &["--grace"]);
    bad_usage(&["--poll", "1ms"], &["--poll"]);
    bad_usage(&["--stop-signal", "SIGNONSENSE"], &["--stop-signal"]);
    bad_usage(&["-n", "-w", "3s"], &["--no-wait", "--wait"]);
    bad_usage(&["--identity", ""], &["--identity"]);
}

#[test]
fn a_task_that_cannot_be_done_once() {
    bad_usage(&["--once-per", "0"], &["--once-per 0s", "needs a length"]);
    bad_usage(&["--once-attempts", "2"], &["--once-attempts", "--once"]);
    for contradiction in [
        ["--restart", "always"],
        ["--max-hold", "1h"],
        ["--min-hold", "1h"],
        ["--slots", "2"],
    ] {
        let [flag, _] = contradiction;
        bad_usage(
            &[&["--once"], &contradiction[..]].concat(),
            &[flag, "--once", "contradict", "leave"],
        );
    }
}

#[test]
fn flags_that_belong_to_the_other_kind_of_lock() {
    bad_usage(&["--page-blob"], &["--page-blob"]);
    bad_usage(&["--emulator"], &["--emulator"]);
    bad_usage(&["--no-create"], &["--no-create"]);
    bad_usage_on_blob(&["--blob", "locks/one", "--shared"], &["--shared"]);
    bad_usage(
        &["--heartbeat", "on"],
        &["--heartbeat is gone", "leave it out"],
    );
    bad_usage(&["--shared", "--lease", "70s"], &["--lease", "take 60s"]);
    bad_usage_on_blob(
        &["--blob", "locks/one", "--no-create", "--page-blob"],
        &["--no-create"],
    );
}

#[test]
fn a_status_file_that_is_the_lock() {
    let scene = Scene::new();
    let status = scene.lock();
    bad_usage(&["--status-file", "/"], &["--status-file"]);
    refused(
        &scene,
        scene.run_on_file().arg("--status-file").arg(&status),
        64,
        &["--status-file", "lock"],
    );
    assert!(!status.exists());
}
