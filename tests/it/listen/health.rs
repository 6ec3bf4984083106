//! Reports about a command's health: a command that hangs does not lead.

use std::fs::File;

use super::client::get;
use super::openmetrics::parse;
use super::{await_deaf, deaf, instance, let_go_on};
use crate::support::await_for;
use crate::support::scene::Scene;

#[test]
fn a_command_that_hangs_is_no_leader_and_its_health_is_told_everywhere() {
    let scene = Scene::new();
    let sick = scene.path("sick");
    let status = scene.path("status");
    let script = format!("test ! -e {}", sick.display());
    let options = [
        "--health",
        &script,
        // Also its time limit: a process may start more than a second late on a busy machine.
        "--health-every",
        "5s",
        "--health-failures",
        "2",
        "--cooldown",
        "1h",
        // The command ignores TERM, and is not killed meanwhile.
        "--grace",
        "1h",
        "--status-file",
        status.to_str().unwrap(),
    ];
    let (mut one, at) = instance(&scene, "web1", &options, &deaf(&scene, "web1"));
    await_deaf(&scene, "web1");
    let document =
        || -> serde_json::Value { serde_json::from_str(&get(at, "/status").body).expect("JSON") };
    let health = |wanted: &str| {
        await_for(
            &format!("health to be {wanted}"),
            || (document()["health"] == wanted).then_some(()),
            || document().to_string(),
        );
    };
    health("ok");
    assert_eq!(get(at, "/leader").status, 200);
    assert!(document()["health_answered_seconds_ago"].as_f64().unwrap() < 60.0);
    let numbers = || parse(&get(at, "/metrics").body).expect("numbers");
    assert!((numbers().at("trafficcop_health") - 1.0).abs() < 0.1);

    File::create(&sick).expect("a file");
    health("hung");
    // Reported an instant later, and the server has its own thread.
    await_for(
        "the drain",
        || (document()["state"] == "draining").then_some(()),
        || document().to_string(),
    );
    assert_eq!(get(at, "/leader").status, 503, "it is still being stopped");
    assert_eq!(get(at, "/readyz").status, 200);
    let now = numbers();
    assert!(now.at("trafficcop_health").abs() < 0.1);
    assert!((now.at("trafficcop_health_failures_total") - 2.0).abs() < 0.1);
    assert!(now.at("trafficcop_health_answer_age_seconds") > 0.0);
    assert!((now.at("trafficcop_drains_total{cause=\"hung\"}") - 1.0).abs() < 0.1);
    let text = await_for(
        "the status file",
        || {
            let text = std::fs::read_to_string(&status).ok()?;
            text.contains("\"health\":\"hung\"").then_some(text)
        },
        String::new,
    );
    assert!(
        text.contains("\"cause\":\"hung: --health failed 2"),
        "{text}"
    );

    let_go_on(&scene, "web1");
    one.await_log("cooling down");
    assert_eq!(document()["health"], serde_json::Value::Null);
    one.signal(nix::sys::signal::Signal::SIGTERM);
    one.wait();
}
