//! A worker's messages to its service manager, its commands' included.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use trafficcop::Instant;

use crate::support::await_for;
use crate::support::azurite::{KEY, queue_string, queues};
use crate::support::instance::{Ended, Instance, Run};
use crate::support::processes;
use crate::support::queue::Mailbox;
use crate::support::scene::Scene;
use crate::systemd::manager::Manager;

fn service_at<'a>(scene: &'a Scene, manager: &Manager, queue: &str, port: u16) -> Run<'a> {
    scene
        .verb("work")
        .args(["--queue", queue])
        .env("AZURE_STORAGE_CONNECTION_STRING", queue_string(port, KEY))
        .env("NOTIFY_SOCKET", &manager.path)
        .env("RUNTIME_DIRECTORY", scene.directory())
}

fn service<'a>(scene: &'a Scene, manager: &Manager, mailbox: &Mailbox) -> Run<'a> {
    service_at(scene, manager, &mailbox.name, queues().port)
}

/// Writes down its environment, and runs until it is released.
fn lasting(scene: &Scene) -> String {
    format!(
        "cd {}; m=$(cat); \
         echo \"$NOTIFY_SOCKET ${{WATCHDOG_USEC-none}} ${{WATCHDOG_PID-none}} $TRAFFICCOP_MESSAGE_ID\" > found-$m.new; \
         mv found-$m.new found-$m; while [ ! -e go-$m ]; do sleep 0.05; done",
        scene.directory().display()
    )
}

fn found(scene: &Scene, message: &str) -> Vec<String> {
    let path = scene.path(&format!("found-{message}"));
    await_for(
        "the command to write",
        || {
            let text = fs::read_to_string(&path).ok()?;
            Some(text.split_whitespace().map(str::to_owned).collect())
        },
        String::new,
    )
}

fn let_go_on(scene: &Scene, message: &str) {
    fs::write(scene.path(&format!("go-{message}")), "").expect("written");
}

fn stop(instance: &mut Instance) {
    instance.signal(Signal::SIGTERM);
    assert_eq!(instance.wait(), Ended::Died(Signal::SIGTERM));
}

#[test]
fn worker_is_ready_when_it_takes_messages_and_reports_their_number() {
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    let manager = Manager::at(&scene, "manager");
    let mut instance = service(&scene, &manager, &mailbox)
        .shell(&lasting(&scene))
        .start();
    let looks = manager.await_line("STATUS=looking at the queue");
    let ready = manager.await_line("READY=1");
    assert!(looks < ready);
    assert!(manager.await_line("STATUS=waiting for messages") >= ready);
    mailbox.put("a");
    manager.await_line("STATUS=working on 1 message");
    let_go_on(&scene, "a");
    manager.await_times("STATUS=waiting for messages", 2);
    assert_eq!(manager.count("STOPPING"), 0);
    stop(&mut instance);
    manager.await_line("STATUS=a stop was requested by SIGTERM");
    assert_eq!(manager.count("READY=1"), 1);
    assert_eq!(manager.count("STOPPING=1"), 1);
    // No watchdog is set, so none is fed.
    assert_eq!(manager.count("WATCHDOG"), 0);
}

#[test]
fn worker_is_not_ready_before_the_queue_has_answered() {
    let scene = Scene::new();
    let manager = Manager::at(&scene, "manager");
    let mut instance = service_at(&scene, &manager, "orders", 1)
        .command(["true"])
        .start();
    manager.await_line("STATUS=cannot reach the queue");
    assert_eq!(manager.count("READY=1"), 0, "{:#?}", manager.said());
    stop(&mut instance);
    assert_eq!(manager.count("READY=1"), 0, "{:#?}", manager.said());
    assert_eq!(manager.count("STOPPING=1"), 1);

    let mut instance = service_at(&scene, &manager, "no-such-queue", queues().port)
        .command(["true"])
        .start();
    assert_eq!(instance.wait(), Ended::Code(66), "{}", instance.stderr());
    assert_eq!(manager.count("READY=1"), 0, "{:#?}", manager.said());
}

#[test]
fn each_command_has_a_socket_of_ours_and_is_quoted_under_its_message_until_it_ends() {
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    let manager = Manager::at(&scene, "manager");
    for message in ["a", "b"] {
        mailbox.put(message);
    }
    let mut instance = service(&scene, &manager, &mailbox)
        .args(["-j", "2"])
        .env("WATCHDOG_USEC", "60000000")
        .shell(&lasting(&scene))
        .start();
    let (a, b) = (found(&scene, "a"), found(&scene, "b"));
    for words in [&a, &b] {
        assert_eq!(
            words[1..3],
            ["none", "none"],
            "that is between systemd and us"
        );
        assert_ne!(words[0], manager.path.to_string_lossy());
    }
    assert_ne!(a[0], b[0], "we know who speaks");
    let somebody = UnixDatagram::unbound().expect("a socket");
    let say = |words: &[String], message: &[u8]| {
        somebody.send_to(message, &words[0]).expect("heard");
    };
    say(&a, b"STATUS=half done\nREADY=1\nSTOPPING=1\nMAINPID=1\n");
    manager.await_line(&format!(
        "STATUS=working on 2 messages; message {}: half done",
        a[3]
    ));
    say(&b, b"STATUS=nearly done\n");
    manager.await_line(&format!("message {}: nearly done", b[3]));
    let_go_on(&scene, "a");
    manager.await_line(&format!(
        "STATUS=working on 1 message; message {}: nearly done",
        b[3]
    ));
    assert_eq!(manager.count("READY=1"), 1);
    for hidden in ["MAINPID", "STOPPING"] {
        assert_eq!(manager.count(hidden), 0, "{:#?}", manager.said());
    }
    let_go_on(&scene, "b");
    manager.await_line("STATUS=waiting for messages");
    stop(&mut instance);
    let directory = PathBuf::from(&a[0]);
    assert!(
        !directory.parent().expect("one").exists(),
        "nothing is left"
    );
}

/// Time without a feed that counts as "not fed": several watchdog periods.
const LONG: Duration = Duration::from_secs(1);

#[test]
fn the_watchdog_is_fed_while_all_guardians_answer_whether_they_are_busy_or_idle() {
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    let manager = Manager::at(&scene, "manager");
    let mut instance = service(&scene, &manager, &mailbox)
        .args(["-j", "2"])
        .env("WATCHDOG_USEC", "200000")
        .shell(&lasting(&scene))
        .start();
    manager.await_line("STATUS=waiting for messages");
    manager.await_times("WATCHDOG=1", 3);
    let fed_again = || {
        let before = manager.count("WATCHDOG=1");
        manager.await_times("WATCHDOG=1", before + 3);
    };
    // Without any one of the idle ones the worker is not healthy.
    let all = processes::marked(scene.directory());
    let guardians: Vec<Pid> = all
        .iter()
        .filter(|process| process.parent == instance.pid() && process.is_ours())
        .map(|process| Pid::from_raw(process.pid))
        .collect();
    assert_eq!(guardians.len(), 2, "{all:?}");
    for guardian in guardians {
        kill(guardian, Signal::SIGSTOP).expect("ours");
        processes::await_stopped(guardian.as_raw());
        // One may be on its way.
        let before = manager.count("WATCHDOG=1");
        let begin = Instant::now();
        while Instant::now().since(begin) < LONG {
            let now = manager.count("WATCHDOG=1");
            assert!(now <= before + 1, "fed without a guardian");
            std::thread::sleep(Duration::from_millis(20));
        }
        kill(guardian, Signal::SIGCONT).expect("ours");
        fed_again();
    }
    // First one, then both.
    for message in ["a", "b"] {
        mailbox.put(message);
        found(&scene, message);
        fed_again();
    }
    // Also while messages are being finished.
    instance.signal(Signal::SIGTERM);
    manager.await_line("STATUS=taking no more messages, finishing 2 messages");
    fed_again();
    let_go_on(&scene, "a");
    manager.await_line("STATUS=taking no more messages, finishing 1 message");
    fed_again();
    let_go_on(&scene, "b");
    assert_eq!(instance.wait(), Ended::Died(Signal::SIGTERM));
}

#[test]
fn a_stop_is_told_once_and_asks_for_time_as_long_as_messages_are_finished() {
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    let manager = Manager::at(&scene, "manager");
    mailbox.put("a");
    let mut instance = service(&scene, &manager, &mailbox)
        .args(["--grace", "1h"])
        .shell(&lasting(&scene))
        .start();
    found(&scene, "a");
    assert_eq!(manager.count("STOPPING=1"), 0);
    assert_eq!(manager.count("EXTEND_TIMEOUT_USEC="), 0);
    instance.signal(Signal::SIGTERM);
    let stops = manager.await_line("STOPPING=1");
    let status = manager.await_line("STATUS=taking no more messages, finishing 1 message");
    assert!(stops <= status);
    // More than once: systemd's extension expires.
    manager.await_times("EXTEND_TIMEOUT_USEC=20000000", 3);
    instance.assert_running();
    let_go_on(&scene, "a");
    assert_eq!(instance.wait(), Ended::Died(Signal::SIGTERM));
    assert!(
        instance.stderr().contains("completed"),
        "{}",
        instance.stderr()
    );
    assert_eq!(manager.count("STOPPING=1"), 1);
}

#[test]
fn a_socket_that_is_gone_costs_a_worker_one_line_and_nothing_else() {
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    mailbox.put("a");
    let finished = scene
        .verb("work")
        .args(["--queue", &mailbox.name, "--once"])
        .env(
            "AZURE_STORAGE_CONNECTION_STRING",
            queue_string(queues().port, KEY),
        )
        .env("NOTIFY_SOCKET", scene.path("gone"))
        .env("WATCHDOG_USEC", "20000")
        .shell("sleep 0.3")
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    assert_eq!(
        finished.stderr.matches("warning: ").count(),
        1,
        "{}",
        finished.stderr
    );
}

#[test]
fn watchdog_that_is_not_below_half_of_the_message_s_lock_is_warned_of() {
    for (micros, warned) in [("5000000", 1), ("4900000", 0)] {
        let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
        let manager = Manager::at(&scene, "manager");
        mailbox.put("x");
        let finished = service(&scene, &manager, &mailbox)
            .args(["--once", "--lock-time", "10s"])
            .env("WATCHDOG_USEC", micros)
            .command(["true"])
            .finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
        let count = finished.stderr.matches("; set WatchdogSec=4s").count();
        assert_eq!(count, warned, "{}", finished.stderr);
    }
}
