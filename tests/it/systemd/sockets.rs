//! Socket activation: the service's sockets reach the command, with its pid in LISTEN_PID, and no
//! other process.

use std::process::{Command, Output};

use crate::support::processes::MARK;
use crate::support::programs;
use crate::support::scene::Scene;

/// Descriptors 3 and 4, which stand in for two sockets.
const ACTIVATED: &str =
    "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=web:admin LISTEN_PIDFDID=77 exec \"$@\" 3<$0 4<$0";
/// Such descriptors with another process's pid.
const PASSED_BY: &str = "LISTEN_PID=1 LISTEN_FDS=2 LISTEN_FDNAMES=web:admin exec \"$@\" 3<$0 4<$0";
/// Prints what a process of a tenure has.
const TELL: &str = r#"
    told() { [ "${LISTEN_PID-none}" = $$ ] && echo -n "me " || echo -n "${LISTEN_PID-none} "; }
    # No substitution here: that opens descriptors.
    had=; for fd in 3 4; do [ -e /proc/$$/fd/$fd ] && had="$had$fd "; done
    echo "$1 $(told)${LISTEN_FDS-none} ${LISTEN_FDNAMES-none} ${LISTEN_PIDFDID-none} $had"
"#;

fn run(scene: &Scene, how: &str, options: &[&str], command: &str) -> Output {
    Command::new("sh")
        .args(["-c", how])
        .arg(scene.lock())
        .args([programs::trafficcop(), "run", "--file"])
        .arg(scene.lock())
        .args(options)
        .args(["--", "sh", "-c", command, "sh", "command"])
        .env(MARK, scene.directory())
        .output()
        .expect("it can be started")
}

fn said(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn scene() -> Scene {
    let scene = Scene::new();
    std::fs::write(scene.lock(), "").expect("written");
    scene
}

#[test]
fn sockets_are_handed_to_the_command_and_addressed_to_it() {
    let scene = scene();
    let hook = format!("set -- hook; {TELL}");
    let hooks = ["--on-acquire", &*hook, "--on-lost", &*hook];
    let output = run(&scene, ACTIVATED, &hooks, TELL);
    assert_eq!(
        said(&output),
        "hook none none none none \ncommand me 2 web:admin none 3 4 \nhook none none none none \n"
    );
}

#[test]
fn a_restarted_command_gets_them_again_under_its_new_id() {
    let scene = scene();
    let once = scene.path("once");
    let script = format!(
        "{TELL} [ -e {0} ] || {{ : > {0}; exit 1; }}",
        once.display()
    );
    let output = run(&scene, ACTIVATED, &["--restart", "on-failure"], &script);
    let line = "command me 2 web:admin none 3 4 \n";
    assert_eq!(said(&output), format!("{line}{line}"));
}

#[test]
fn they_are_addressed_to_a_command_that_has_process_ids_of_its_own() {
    let scene = scene();
    let output = run(&scene, ACTIVATED, &["--contain", "pidns"], TELL);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(64) && stderr.contains("pidns") {
        eprintln!("this machine has no PID namespaces for us: NOT TRIED: {stderr}");
        return;
    }
    // Its pid within the namespace.
    assert_eq!(said(&output), "command me 2 web:admin none 3 4 \n");
}

#[test]
fn sockets_for_another_process_pass_through_unchanged() {
    let scene = scene();
    let hook = format!("set -- hook; {TELL}");
    let output = run(&scene, PASSED_BY, &["--on-acquire", &hook], TELL);
    let theirs = "1 2 web:admin none 3 4 \n";
    assert_eq!(said(&output), format!("hook {theirs}command {theirs}"));
}
