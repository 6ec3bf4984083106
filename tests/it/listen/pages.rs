use std::io::Write;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::client::{
    ask, await_leader, await_state, await_status, connect, get, read, request, status,
};
use super::{await_deaf, deaf, instance, lasting, let_go_on};
use crate::support::await_for;
use crate::support::instance::Ended;
use crate::support::scene::Scene;

#[test]
fn holder_and_standby_are_ready_and_sound_and_one_of_them_leads() {
    let scene = Scene::new();
    let (mut one, at_one) = instance(&scene, "one", &[], &lasting(&scene, "one"));
    await_leader(at_one);
    let (_two, at_two) = instance(&scene, "two", &[], &lasting(&scene, "two"));
    await_status(at_two, "who holds the lock", |status| {
        status["holder"] == "one"
    });
    for page in ["/healthz", "/readyz"] {
        for at in [at_one, at_two] {
            let reply = get(at, page);
            assert_eq!(reply.status, 200, "{page}: {reply:?}");
            assert_eq!(reply.headers["cache-control"], "no-store");
        }
    }
    for page in ["/leader", "/primary"] {
        let (yes, no) = (get(at_one, page), get(at_two, page));
        assert_eq!((yes.status, no.status), (200, 503), "{yes:?} {no:?}");
        assert!(yes.body.contains("token 1"), "{yes:?}");
        assert!(no.body.contains("standby: one has control"), "{no:?}");
    }
    let held = status(at_one);
    assert_eq!(held["state"], "holding");
    assert_eq!(held["leader"], true);
    assert_eq!(held["token"], 1);
    // A local file's lock has no deadline.
    assert!(held["control_remaining_seconds"].is_null(), "{held}");
    let waits = status(at_two);
    assert_eq!(waits["leader"], false);
    assert!(waits["token"].is_null() && waits["command_pid"].is_null());
    let_go_on(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0));
    await_leader(at_two);
    assert!(get(at_two, "/leader").body.contains("token 2"));
}

/// `nc -N` and `socat -` close their half.
#[test]
fn client_that_closes_its_half_is_answered() {
    let scene = Scene::new();
    let (_one, at) = instance(&scene, "one", &[], &lasting(&scene, "one"));
    await_leader(at);
    let mut stream = connect(at).expect("an instance listens");
    stream
        .write_all(request("GET", "/leader").as_bytes())
        .expect("it reads");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("it is open");
    assert_eq!(read(stream).expect("an answer").status, 200);
}

#[test]
fn the_status_page_is_the_status_file() {
    let scene = Scene::new();
    let file = scene.path("status.json");
    let options = ["--status-file", file.to_str().expect("a path")];
    let (_one, at) = instance(&scene, "one", &options, &lasting(&scene, "one"));
    await_leader(at);
    let page = status(at);
    let written: serde_json::Value = await_for(
        "the file to say it too",
        || {
            let text = std::fs::read_to_string(&file).ok()?;
            let said: serde_json::Value = serde_json::from_str(&text).ok()?;
            (!said["command_pid"].is_null()).then_some(said)
        },
        String::new,
    );
    for (name, value) in written.as_object().expect("an object") {
        assert_eq!(&page[name], value, "{name}");
    }
}

#[test]
fn while_a_stop_drains_the_command_leads_until_it_has_ended() {
    let scene = Scene::new();
    // The command's child ignores the signal, too.
    let script = format!("trap '' TERM; sleep 1000 & {}; exit 3", deaf(&scene, "one"));
    let (mut one, at) = instance(&scene, "one", &["--grace", "1h"], &script);
    await_deaf(&scene, "one");
    await_leader(at);
    one.signal(Signal::SIGTERM);
    await_state(at, "draining");
    let reply = get(at, "/leader");
    assert_eq!(reply.status, 200, "its command still runs: {reply:?}");
    assert_eq!(get(at, "/readyz").status, 200);
    assert_eq!(get(at, "/healthz").status, 200);
    let_go_on(&scene, "one");
    let left = await_status(at, "how the command ended", |status| {
        status["command_exit"] == 3
    });
    assert_eq!(left["state"], "draining", "{left}");
    let reply = get(at, "/leader");
    assert_eq!(reply.status, 503, "its remaining processes do not lead");
    assert!(!scene.trees().is_empty());
    // Directly after the first it counts as the same.
    let ended = await_for(
        "it to end",
        || {
            one.ended().or_else(|| {
                one.signal(Signal::SIGTERM);
                None
            })
        },
        || scene.journal.to_string(),
    );
    assert_eq!(ended, Ended::Code(3), "{}", one.stderr());
}

#[test]
fn no_instance_leads_between_two_commands_of_a_lease() {
    let scene = Scene::new();
    let options = ["--min-hold", "1h"];
    let (_one, at) = instance(&scene, "one", &options, "exit 0");
    await_state(at, "resting");
    assert_eq!(get(at, "/leader").status, 503);
    assert_eq!(get(at, "/readyz").status, 200);
    assert!(get(at, "/metrics").body.contains("trafficcop_lease_held{"));
}

#[test]
fn instance_is_not_ready_before_it_has_reached_its_store() {
    let scene = Scene::new();
    let store = crate::support::azurite::connection_string(1);
    let one = scene
        .run()
        .env("AZURE_STORAGE_CONNECTION_STRING", store)
        .args(["--blob", "locks/away"])
        .args(super::ANYWHERE)
        .shell("exit 0")
        .start();
    let at = super::address(&one);
    let reply = get(at, "/readyz");
    assert_eq!(reply.status, 503, "{reply:?}");
    assert_eq!(get(at, "/leader").status, 503);
    assert_eq!(get(at, "/healthz").status, 200);
}

#[test]
fn a_guardian_that_does_not_answer_is_not_sound() {
    let scene = Scene::new();
    let (_one, at_one) = instance(&scene, "one", &[], &lasting(&scene, "one"));
    await_leader(at_one);
    // No other check would notice its end: a standby's guardian has no command.
    let (two, at) = instance(&scene, "two", &[], &lasting(&scene, "two"));
    assert_eq!(get(at, "/healthz").status, 200);
    let guardian = Pid::from_raw(
        status(at)["guardian_pid"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok())
            .expect("a pid"),
    );
    kill(guardian, Signal::SIGSTOP).expect("it is there");
    await_for(
        "it to be found out",
        || (get(at, "/healthz").status == 503).then_some(()),
        || two.stderr(),
    );
    assert_eq!(get(at, "/readyz").status, 200);
    kill(guardian, Signal::SIGCONT).expect("it is there");
    await_for(
        "it to be well again",
        || (get(at, "/healthz").status == 200).then_some(()),
        || two.stderr(),
    );
}

#[test]
fn head_and_options_say_the_same_without_the_text_and_nothing_else_is_done() {
    let scene = Scene::new();
    let (_one, at) = instance(&scene, "one", &["--min-hold", "1h"], "exit 0");
    await_state(at, "resting");
    // A no must be one for every method: a load balancer may use OPTIONS.
    for (page, code) in [("/leader", 503), ("/readyz", 200), ("/status", 200)] {
        let whole = get(at, page);
        let (head, options) = (ask(at, "HEAD", page), ask(at, "OPTIONS", page));
        for reply in [&whole, &head, &options] {
            assert_eq!(reply.status, code, "{page}: {reply:?}");
        }
        assert!(head.body.is_empty() && options.body.is_empty());
        assert_eq!(head.headers["content-type"], whole.headers["content-type"]);
        assert_eq!(options.headers["allow"], "GET, HEAD, OPTIONS");
        assert_eq!(options.headers["content-length"], "0");
    }
    for method in ["POST", "PUT", "DELETE", "TRACE", "BREW"] {
        let reply = ask(at, method, "/leader");
        assert_eq!(reply.status, 405, "{method}: {reply:?}");
        assert_eq!(reply.headers["allow"], "GET, HEAD, OPTIONS");
    }
    for path in ["/", "/leaders", "/leader/", "//leader", "/LEADER", "*"] {
        let reply = ask(at, "GET", path);
        assert_eq!(reply.status, 404, "{path}: {reply:?}");
    }
    assert!(
        get(at, "/").body.contains("/healthz"),
        "it says what there is"
    );
    assert_eq!(get(at, "/leader?verbose=1").status, 503);
}

#[test]
fn malformed_requests_are_refused_and_harmless() {
    let scene = Scene::new();
    let (_one, at) = instance(&scene, "one", &[], &lasting(&scene, "one"));
    await_leader(at);
    let send = |text: &str| {
        let mut stream = connect(at).expect("a connection");
        // It may be refused before it is sent.
        let _ = stream.write_all(text.as_bytes());
        read(stream)
    };
    assert_eq!(send("nonsense\r\n\r\n").expect("an answer").status, 400);
    let long = format!("GET /leader HTTP/1.1\r\nX: {}", "x".repeat(9000));
    if let Ok(reply) = send(&long) {
        assert!([431, 400].contains(&reply.status), "{reply:?}");
    }
    let many = "X: y\r\n".repeat(100);
    if let Ok(reply) = send(&format!("GET /leader HTTP/1.1\r\n{many}\r\n")) {
        assert_eq!(reply.status, 431, "{reply:?}");
    }
    // Simple checks use HTTP/1.0; each connection serves one request.
    let reply = send("GET /readyz HTTP/1.0\r\n\r\n").expect("an answer");
    assert_eq!(reply.status, 200);
    let twice = request("GET", "/readyz").repeat(2);
    let reply = send(&twice).expect("an answer");
    assert_eq!(reply.headers["connection"], "close");
    assert!(!reply.body.contains("HTTP/1.1"), "{reply:?}");
    await_leader(at);
}
