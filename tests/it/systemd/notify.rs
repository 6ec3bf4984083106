//! Messages to the service manager, the command's included.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::await_for;
use crate::support::instance::{Ended, Instance, Run};
use crate::support::scene::Scene;
use crate::systemd::manager::Manager;

fn service<'a>(scene: &'a Scene, manager: &Manager, name: &str) -> Run<'a> {
    scene
        .run_on_file()
        .args(["--identity", name])
        .env("NOTIFY_SOCKET", &manager.path)
        .env("RUNTIME_DIRECTORY", scene.directory())
}

fn lasting(scene: &Scene, name: &str) -> String {
    let go = scene.path(&format!("{name}.go"));
    format!("while [ ! -e {} ]; do sleep 0.05; done", go.display())
}

fn let_go_on(scene: &Scene, name: &str) {
    fs::write(scene.path(&format!("{name}.go")), "").expect("written");
}

#[test]
fn standby_is_ready_and_its_status_is_the_logs() {
    let scene = Scene::new();
    let (one, two) = (Manager::at(&scene, "one"), Manager::at(&scene, "two"));
    let mut holder = service(&scene, &one, "web1")
        .shell(&lasting(&scene, "web1"))
        .start();
    let control = one.await_line("STATUS=in control, token 1");
    assert!(one.await_line("READY=1") <= control);
    let mut standby = service(&scene, &two, "web2").command(["true"]).start();
    two.await_line("STATUS=standing by: web1 is in control, token 1");
    two.await_line("READY=1");
    let_go_on(&scene, "web1");
    assert_eq!(holder.wait(), Ended::Code(0));
    assert_eq!(standby.wait(), Ended::Code(0));
    two.await_line("STATUS=in control, token 2");
    for manager in [&one, &two] {
        assert_eq!(manager.count("READY=1"), 1, "{:#?}", manager.said());
        assert_eq!(manager.count("STOPPING=1"), 1, "{:#?}", manager.said());
        assert_eq!(manager.count("MAINPID"), 0);
        // No watchdog is set, so none is fed.
        assert_eq!(manager.count("WATCHDOG"), 0);
    }
}

/// To systemd a process that ends without READY has failed, whatever its status; and of READY and
/// STOPPING in one message it takes one.
#[test]
fn clean_exit_sends_ready_before_stopping() {
    let scene = Scene::new();
    let done = scene.run_on_file().arg("--once").command(["true"]).finish();
    assert_eq!(done.ended, Ended::Code(0), "{}", done.stderr);
    for (name, options, command, exit) in [
        ("done", &["--once"][..], "true", 0),
        ("unfit", &["-n", "-E", "0", "--if", "false"], "true", 0),
        ("silent", &["--ready", "command"], "true", 0),
        ("refused", &["-n", "--if", "false"], "true", 75),
        ("failed", &["--ready", "command"], "false", 1),
    ] {
        let manager = Manager::at(&scene, name);
        let run = service(&scene, &manager, "web1").args(options);
        let finished = run.command([command]).finish();
        assert_eq!(finished.ended, Ended::Code(exit), "{}", finished.stderr);
        let messages = manager.messages();
        let with = |word: &str| -> Vec<usize> {
            let all = messages.iter().enumerate();
            let found = all.filter(|(_, message)| message.contains(word));
            found.map(|(number, _)| number).collect()
        };
        let (ready, stopping) = (with("READY=1"), with("STOPPING=1"));
        assert_eq!(ready.len(), usize::from(exit == 0), "{name}: {messages:#?}");
        assert_eq!(stopping.len(), 1, "{name}: {messages:#?}");
        assert!(ready < stopping, "{name}: {messages:#?}");
    }
}

#[test]
fn unfit_instance_is_ready_and_its_status_has_the_reason() {
    let scene = Scene::new();
    let manager = Manager::at(&scene, "one");
    let fit = scene.path("fit");
    let mut one = service(&scene, &manager, "web1")
        .args(["--poll", "200ms", "--if"])
        .arg(format!("test -e {}", fit.display()))
        .command(["true"])
        .start();
    let words = "STATUS=not fit to take control: the --if command exited with status 1";
    let told = manager.await_line(words);
    // A rolling update of units must not wait for a machine that may never be fit.
    assert!(manager.await_line("READY=1") <= told);
    fs::write(&fit, "").expect("written");
    manager.await_line("STATUS=in control, token 1");
    assert_eq!(one.wait(), Ended::Code(0));
    assert_eq!(manager.count(words), 1, "{:#?}", manager.said());
}

#[test]
fn with_ready_held_it_is_ready_when_the_command_was_started() {
    let scene = Scene::new();
    let manager = Manager::at(&scene, "two");
    let mut holder = scene.run_on_file().shell(&lasting(&scene, "web1")).start();
    holder.await_log("in control");
    let mut standby = service(&scene, &manager, "web2")
        .args(["--ready", "held"])
        .shell(&lasting(&scene, "web2"))
        .start();
    manager.await_line("STATUS=standing by");
    assert_eq!(manager.count("READY=1"), 0);
    let_go_on(&scene, "web1");
    assert_eq!(holder.wait(), Ended::Code(0));
    let control = manager.await_line("STATUS=in control");
    assert!(manager.await_line("READY=1") > control);
    let_go_on(&scene, "web2");
    assert_eq!(standby.wait(), Ended::Code(0));
}

fn written(path: &Path) -> String {
    await_for(
        "the command to write",
        || {
            fs::read_to_string(path)
                .ok()
                .filter(|text| text.ends_with('\n'))
        },
        String::new,
    )
}

#[test]
fn the_command_has_a_socket_of_ours_and_says_there_that_it_is_ready() {
    let scene = Scene::new();
    let manager = Manager::at(&scene, "manager");
    let found = scene.path("found");
    let script = format!(
        "printf '%s %s %s\\n' \"$NOTIFY_SOCKET\" \"${{WATCHDOG_USEC-none}}\" \"${{WATCHDOG_PID-none}}\" > {}; {}",
        found.display(),
        lasting(&scene, "job")
    );
    let mut instance = service(&scene, &manager, "web1")
        .args(["--ready", "command"])
        .env("WATCHDOG_USEC", "60000000")
        .shell(&script)
        .start();
    let text = written(&found);
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(
        words[1..],
        ["none", "none"],
        "the watchdog is between systemd and us"
    );
    let socket = PathBuf::from(words[0]);
    assert_ne!(socket, manager.path);
    let directory = socket.parent().expect("a directory").to_owned();
    let mode = fs::metadata(&directory)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);

    manager.await_line("STATUS=in control");
    assert_eq!(
        manager.count("READY=1"),
        0,
        "the command has not said so yet"
    );
    let command = UnixDatagram::unbound().expect("a socket");
    let say = |message: &[u8]| {
        command.send_to(message, &socket).expect("heard");
    };
    say(b"STATUS=loading 3 of 7\nMAINPID=1\nWATCHDOG=trigger\nFDSTORE=1\nSTOPPING=1\n");
    say(b"\xff\xfe\x00nonsense");
    let shown = manager.await_line("STATUS=in control, token 1; the command: loading 3 of 7");
    assert_eq!(manager.count("READY=1"), 0);
    say(b"READY=1\nSTATUS=\n");
    assert!(manager.await_line("READY=1") > shown);
    for hidden in ["MAINPID", "FDSTORE", "STOPPING", "WATCHDOG=trigger"] {
        assert_eq!(manager.count(hidden), 0, "{:#?}", manager.said());
    }
    // A drain for standbys: the record announces it while the command still runs.
    await_for(
        "the record to say that control will change",
        || {
            fs::read_to_string(scene.lock())
                .ok()?
                .contains("\"draining\":true")
                .then_some(())
        },
        || instance.stderr(),
    );
    let_go_on(&scene, "job");
    assert_eq!(instance.wait(), Ended::Code(0));
    assert!(!directory.exists(), "nothing is left behind");
}

#[test]
fn hooks_and_the_standby_command_are_no_business_of_the_service_manager_s() {
    let scene = Scene::new();
    let manager = Manager::at(&scene, "manager");
    let script = "echo ${NOTIFY_SOCKET-none} ${WATCHDOG_USEC-none}";
    let finished = service(&scene, &manager, "web1")
        .env("WATCHDOG_USEC", "60000000")
        .args(["--on-acquire", script, "--on-lost", script])
        .command(["true"])
        .finish();
    assert_eq!(
        finished.stdout, "none none\nnone none\n",
        "{}",
        finished.stderr
    );
}

#[test]
fn without_a_service_manager_nothing_changes() {
    let scene = Scene::new();
    let finished = scene
        .run_on_file()
        .args(["--ready", "command"])
        .shell("echo ${NOTIFY_SOCKET-none}")
        .finish();
    assert_eq!(finished.ended, Ended::Code(0));
    assert_eq!(finished.stdout, "none\n");
}

fn fed(scene: &Scene, manager: &Manager, name: &str, pid: Option<&str>) -> Instance {
    let mut run = service(scene, manager, name).env("WATCHDOG_USEC", "200000");
    if let Some(pid) = pid {
        run = run.env("WATCHDOG_PID", pid);
    }
    run.command(["sleep", "600"]).start()
}

#[test]
fn the_watchdog_is_fed_while_supervisor_and_guardian_both_answer_and_not_otherwise() {
    let scene = Scene::new();
    let (first, second) = (Manager::at(&scene, "one"), Manager::at(&scene, "two"));
    let mut holder = fed(&scene, &first, "web1", None);
    first.await_times("WATCHDOG=1", 3);
    holder.await_log("in control");
    let mut standby = fed(&scene, &second, "web2", None);
    second.await_line("STATUS=standing by");
    second.await_times("WATCHDOG=1", 3);

    // A standby's guardian has no command, but a supervisor without one is not healthy.
    let guardian = Pid::from_raw(standby.guardian());
    kill(guardian, Signal::SIGSTOP).expect("ours");
    crate::support::processes::await_stopped(guardian.as_raw());
    // One may be on its way. The other instance's beat is the clock.
    let before = second.count("WATCHDOG=1");
    first.await_times("WATCHDOG=1", first.count("WATCHDOG=1") + 10);
    let now = second.count("WATCHDOG=1");
    assert!(now <= before + 1, "fed without a guardian");
    kill(guardian, Signal::SIGCONT).expect("ours");
    second.await_times("WATCHDOG=1", before + 3);
    standby.assert_running();

    for instance in [&mut standby, &mut holder] {
        instance.signal(Signal::SIGTERM);
        instance.wait();
    }
}

#[test]
fn a_watchdog_of_another_process_is_not_fed() {
    let scene = Scene::new();
    let (theirs, ours) = (Manager::at(&scene, "one"), Manager::at(&scene, "two"));
    let mut other = fed(&scene, &theirs, "web1", Some("1"));
    theirs.await_line("READY=1");
    let mut fed = fed(&scene, &ours, "web2", None);
    ours.await_times("WATCHDOG=1", 5);
    assert_eq!(theirs.count("WATCHDOG"), 0);
    for instance in [&mut fed, &mut other] {
        instance.signal(Signal::SIGTERM);
        instance.wait();
    }
}

#[test]
fn a_stop_is_told_once_and_asks_for_time_as_long_as_the_drain_takes() {
    let scene = Scene::new();
    let manager = Manager::at(&scene, "manager");
    let deaf = format!("trap '' TERM; echo deaf; {}", lasting(&scene, "job"));
    let mut instance = service(&scene, &manager, "web1").shell(&deaf).start();
    await_for(
        "the command to turn deaf",
        || (instance.stdout() == "deaf\n").then_some(()),
        String::new,
    );
    assert_eq!(manager.count("STOPPING=1"), 0);
    assert_eq!(manager.count("EXTEND_TIMEOUT_USEC="), 0);
    instance.signal(Signal::SIGTERM);
    let stops = manager.await_line("STOPPING=1");
    let status = manager.await_line("STATUS=stopping the command: SIGTERM received");
    assert!(stops <= status);
    // More than once: systemd's extension expires.
    manager.await_times("EXTEND_TIMEOUT_USEC=20000000", 2);
    instance.assert_running();
    let_go_on(&scene, "job");
    instance.wait();
    manager.await_line("STATUS=stopped by SIGTERM");
    assert_eq!(manager.count("STOPPING=1"), 1);
}

#[test]
fn watchdog_that_is_not_below_half_of_the_lease_is_warned_of() {
    for (micros, warned) in [("5000000", 1), ("4900000", 0)] {
        let scene = Scene::new();
        let manager = Manager::at(&scene, "one");
        let finished = service(&scene, &manager, "web1")
            .args(["--shared", "--lease", "10s"])
            .env("WATCHDOG_USEC", micros)
            .shell("exit 3")
            .finish();
        assert_eq!(finished.ended, Ended::Code(3), "{}", finished.stderr);
        let count = finished.stderr.matches("; set WatchdogSec=4s").count();
        assert_eq!(count, warned, "{}", finished.stderr);
    }
}

#[test]
fn a_socket_that_is_gone_or_none_costs_one_line_and_nothing_else() {
    let scene = Scene::new();
    let gone = scene.path("gone").into_os_string();
    for (socket, words) in [
        (gone, "the service manager cannot be reached"),
        (
            "vsock:2:1234".into(),
            "NOTIFY_SOCKET=vsock:2:1234 cannot be used",
        ),
    ] {
        let finished = scene
            .run_on_file()
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", "20000")
            .shell("sleep 0.3; exit 3")
            .finish();
        assert_eq!(finished.ended, Ended::Code(3), "{}", finished.stderr);
        assert_eq!(
            finished.stderr.matches(words).count(),
            1,
            "{}",
            finished.stderr
        );
        assert_eq!(
            finished.stderr.matches("warning: ").count(),
            1,
            "{}",
            finished.stderr
        );
    }
}

#[test]
fn a_service_manager_that_does_not_read_is_not_waited_for_and_learns_the_truth_later() {
    let scene = Scene::new();
    let manager = Manager::at(&scene, "manager");
    manager.fill();
    let mut instance = service(&scene, &manager, "web1")
        .shell(&lasting(&scene, "job"))
        .start();
    instance.await_log("in control");
    await_for(
        "the command to run",
        || scene.trees().first().map(|_| ()),
        || instance.stderr(),
    );
    assert_eq!(manager.count("READY=1"), 0, "there was no room for it");
    manager.await_line("READY=1");
    manager.await_line("STATUS=in control");
    let_go_on(&scene, "job");
    assert_eq!(instance.wait(), Ended::Code(0));
    assert_eq!(
        instance.stderr().matches("warning: ").count(),
        0,
        "{}",
        instance.stderr()
    );
}

#[test]
fn an_election_is_a_service_too() {
    let scene = Scene::new();
    let manager = Manager::at(&scene, "manager");
    let mut instance = scene
        .elect()
        .arg("--file")
        .arg(scene.lock())
        .env("NOTIFY_SOCKET", &manager.path)
        .env("WATCHDOG_USEC", "200000")
        .start();
    manager.await_line("READY=1");
    manager.await_line("STATUS=in control");
    manager.await_times("WATCHDOG=1", 2);
    instance.signal(Signal::SIGTERM);
    manager.await_line("STOPPING=1");
    instance.wait();
}

#[test]
fn the_command_s_health_is_in_the_status_and_its_watchdog_is_ours() {
    let scene = Scene::new();
    let manager = Manager::at(&scene, "manager");
    let sick = scene.path("sick");
    let script = format!("test ! -e {}", sick.display());
    let feeding = "while :; do systemd-notify WATCHDOG=1; sleep 0.2; done";
    let mut instance = service(&scene, &manager, "web1")
        .args(["--health", &script, "--health-every", "200ms"])
        .args(["--health-failures", "1000000", "--watchdog", "1h"])
        .shell(feeding)
        .start();
    manager.await_line("STATUS=in control, token 1");
    fs::write(&sick, "").expect("written");
    let failing = manager.await_line("in control, token 1; --health exited with status 1 (");
    fs::remove_file(&sick).expect("there");
    await_for(
        "the status to be as before",
        || {
            let said = manager.said();
            let later = said.iter().skip(failing + 1);
            let mut status = later.filter(|line| line.starts_with("STATUS=in control"));
            status.find(|line| !line.contains("--health")).map(|_| ())
        },
        || format!("{:#?}", manager.said()),
    );
    // The command's feed trafficcop's watchdog only.
    assert_eq!(manager.count("WATCHDOG"), 0, "{:#?}", manager.said());
    instance.signal(Signal::SIGTERM);
    instance.wait();
}
