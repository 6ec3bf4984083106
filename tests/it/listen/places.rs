//! Addresses to listen on: refusals, sockets, and leftovers.

use std::net::{TcpListener, TcpStream};
use std::path::Path;

use nix::sys::signal::Signal;

use super::client::{address, await_leader, get, get_at};
use super::{await_deaf, deaf, instance, lasting, let_go_on};
use crate::support::await_for;
use crate::support::instance::Ended;
use crate::support::scene::Scene;

/// Checks a refusal in one line with these words; nothing was opened or run.
fn refused(scene: &Scene, options: &[&str], status: i32, words: &[&str]) {
    let ran = scene.path("ran");
    let script = format!("touch {}", ran.display());
    let finished = scene.run_on_file().args(options).shell(&script).finish();
    let said = &finished.stderr;
    assert_eq!(finished.ended, Ended::Code(status), "{options:?}: {said}");
    assert_eq!(said.lines().count(), 1, "{options:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{word} is missing: {said}");
    }
    assert!(!ran.exists() && !scene.lock().exists(), "{options:?}");
}

#[test]
fn a_place_that_cannot_be_is_refused() {
    let scene = Scene::new();
    let refuse = |at: &str, words: &[&str]| refused(&scene, &["--listen", at], 64, words);
    refuse("9090", &["--listen 9090", "127.0.0.1:9090"]);
    refuse("", &["--listen"]);
    refuse("example.org:80", &["--listen", "127.0.0.1:9090"]);
    refuse("127.0.0.1:70000", &["--listen"]);
    refuse("0.0.0.0:9090", &["other machines", "--listen-any"]);
    refuse("[::]:9090", &["other machines", "--listen-any"]);
    refuse("unix:here.sock", &["whole path"]);
    let long = format!("unix:/tmp/{}", "x".repeat(103));
    refuse(&long, &["108 bytes", "107"]);
    let taken = scene.path("taken");
    std::fs::write(&taken, "a file").expect("written");
    refuse(&format!("unix:{}", taken.display()), &["not a socket"]);
    let lock = format!("unix:{}", scene.lock().display());
    refuse(&lock, &["lock's file"]);
    refused(&scene, &["--listen-any"], 64, &["--listen-any", "--listen"]);
    assert_eq!(std::fs::read(&taken).expect("there"), b"a file");
}

#[test]
fn a_port_in_use_is_refused_and_its_owner_is_left_alone() {
    let scene = Scene::new();
    let owner = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = owner.local_addr().expect("an address").to_string();
    refused(&scene, &["--listen", &at], 69, &[&at, "in use"]);
    drop(owner);
    let missing = scene.path("missing/socket");
    let missing = format!("unix:{}", missing.display());
    refused(&scene, &["--listen", &missing], 69, &["directory"]);
}

#[test]
fn a_socket_is_answered_at_and_goes_with_its_instance() {
    let scene = Scene::new();
    let path = scene.path("one.sock");
    let at = format!("unix:{}", path.display());
    let start = |script: &str| {
        let run = scene.run_on_file().env("TRAFFICCOP_LISTEN", &at);
        let one = run.shell(script).start();
        one.await_log(&format!("answering at {at}"));
        one
    };
    let leads = |path: &Path| {
        await_for(
            "it to lead",
            || (get_at(path, "/leader").status == 200).then_some(()),
            String::new,
        );
    };
    let mut one = start(&lasting(&scene, "one"));
    leads(&path);
    let other = scene.path("other.lock");
    let other = scene
        .run()
        .arg("--file")
        .arg(&other)
        .args(["--listen", &at]);
    let finished = other.shell("exit 0").finish();
    assert_eq!(finished.ended, Ended::Code(69), "{}", finished.stderr);
    assert!(finished.stderr.contains("in use"), "{}", finished.stderr);
    leads(&path);
    let_go_on(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0));
    assert!(!path.exists(), "it is gone with its instance");
    // A killed instance's socket is replaced.
    let mut two = start(&lasting(&scene, "two"));
    leads(&path);
    two.signal(Signal::SIGKILL);
    two.wait();
    assert!(path.exists());
    scene.await_nobody();
    let _three = start(&lasting(&scene, "three"));
    leads(&path);
}

#[test]
fn with_listen_any_other_machines_can_ask() {
    let scene = Scene::new();
    let run = scene.run_on_file().args(["--listen", "0.0.0.0:0"]);
    let one = run
        .arg("--listen-any")
        .shell(&lasting(&scene, "one"))
        .start();
    let mut at = address(&one);
    assert!(at.ip().is_unspecified());
    at.set_ip([127, 0, 0, 1].into());
    await_leader(at);
}

#[test]
fn neither_guardian_nor_command_keeps_the_port() {
    let scene = Scene::new();
    let (mut one, at) = instance(&scene, "one", &["--grace", "1h"], &deaf(&scene, "one"));
    await_deaf(&scene, "one");
    await_leader(at);
    one.signal(Signal::SIGKILL);
    one.wait();
    assert!(!scene.trees().is_empty(), "its guardian drains");
    assert!(TcpStream::connect(at).is_err(), "nothing listens");
    let_go_on(&scene, "one");
}

fn threads(pid: i32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        let name = task.ok()?.path().join("comm");
        Some(std::fs::read_to_string(name).ok()?.trim().to_owned())
    };
    tasks.filter_map(name).collect()
}

#[test]
fn without_the_flag_there_is_no_server() {
    let scene = Scene::new();
    let run = scene.run_on_file().shell(&lasting(&scene, "one"));
    let one = run.start();
    one.await_log("in control");
    assert!(!threads(one.pid()).contains(&"http".to_owned()));
    let_go_on(&scene, "one");
    scene.await_nobody();
    let (two, at) = instance(&scene, "two", &[], &lasting(&scene, "two"));
    // Set by the thread itself, which has done so once it answers.
    assert_eq!(get(at, "/healthz").status, 200);
    assert!(threads(two.pid()).contains(&"http".to_owned()));
}
