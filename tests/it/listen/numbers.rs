//! `/metrics` can be parsed, counts events, and has the metrics that the examples query.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use super::client::{address, await_leader, await_state, await_status, connect, get, read};
use super::openmetrics::{Numbers, parse};
use super::{await_deaf, deaf, instance, lasting, let_go_on};
use crate::support::await_for;
use crate::support::instance::Ended;
use crate::support::scene::Scene;

fn numbers(at: SocketAddr) -> Numbers {
    let reply = get(at, "/metrics");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(
        reply.headers["content-type"],
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    parse(&reply.body).unwrap_or_else(|why| panic!("{why}\n{}", reply.body))
}

#[test]
fn metrics_are_plain_text_on_request() {
    let scene = Scene::new();
    let one = scene
        .run_on_file()
        .args(["--listen", "127.0.0.1:0"])
        .shell("exec sleep 600")
        .start();
    let at = address(&one);
    let asked = |accept: &str| {
        let mut stream = connect(at).unwrap();
        let lines = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
        stream.write_all(lines.as_bytes()).unwrap();
        read(stream).unwrap()
    };
    let plain = asked("text/plain");
    assert_eq!(
        plain.headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let is_declared = |line: &str| line.starts_with("# TYPE ") && line.ends_with("_total counter");
    assert!(plain.body.lines().any(is_declared), "{}", plain.body);
    assert!(!plain.body.contains("# EOF"), "{}", plain.body);
    let both = asked("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4");
    assert!(both.body.ends_with("# EOF\n"), "{}", both.body);
}

#[test]
fn a_life_is_counted() {
    let scene = Scene::new();
    let failed = scene.path("failed");
    // Fails once, is restarted, and then ignores TERM.
    let script = format!(
        "[ -e {0} ] || {{ touch {0}; exit 4; }}; {1}",
        failed.display(),
        deaf(&scene, "one")
    );
    let options = ["--shared", "--lease", "12s", "--grace", "1h"];
    let restarts = ["--restart", "on-failure"];
    let (mut one, at) = instance(&scene, "one", &[&options[..], &restarts].concat(), &script);
    await_status(at, "the second start", |status| {
        status["command_exit"] == 4 && status["leader"] == true
    });
    await_deaf(&scene, "one");
    let now = numbers(at);
    for (sample, value) in [
        ("trafficcop_leader", 1.0),
        ("trafficcop_lease_held", 1.0),
        ("trafficcop_command_running", 1.0),
        ("trafficcop_token", 1.0),
        ("trafficcop_state{state=\"holding\"}", 1.0),
        ("trafficcop_state{state=\"standby\"}", 0.0),
        ("trafficcop_acquisitions_total", 1.0),
        (
            "trafficcop_acquire_attempts_total{result=\"acquired\"}",
            1.0,
        ),
        ("trafficcop_command_starts_total", 2.0),
        ("trafficcop_command_restarts_total", 1.0),
        ("trafficcop_command_exits_total{result=\"failure\"}", 1.0),
        ("trafficcop_command_exits_total{result=\"success\"}", 0.0),
        ("trafficcop_drains_total{cause=\"stop\"}", 0.0),
        ("trafficcop_lease_losses_total{cause=\"doubt\"}", 0.0),
        ("trafficcop_kills_total{cause=\"stop\"}", 0.0),
        ("trafficcop_overlaps_total", 0.0),
        ("trafficcop_leases_left_to_run_out_total", 0.0),
        ("trafficcop_build_info{version=\"0.1.0\"}", 1.0),
    ] {
        assert_eq!(now.at(sample), value, "{sample}");
    }
    let left = now.at("trafficcop_control_remaining_seconds");
    let lease = now.at("trafficcop_lease_remaining_seconds");
    assert!(
        0.0 < left && left < lease && lease <= 12.0,
        "{left} {lease}"
    );
    let renewed = "trafficcop_renew_attempts_total{result=\"success\"}";
    let first = now.at(renewed);
    crate::support::await_for(
        "another renewal",
        || (numbers(at).at(renewed) > first).then_some(()),
        || one.stderr(),
    );
    let now = numbers(at);
    let observed = now.at("trafficcop_renew_duration_seconds_count");
    assert_eq!(observed, now.at(renewed));
    assert_eq!(
        observed,
        now.at("trafficcop_renew_duration_seconds_bucket{le=\"+Inf\"}")
    );
    assert!(
        now.locks.len() == 1 && now.locks.iter().all(|lock| lock.contains("singleton.lock")),
        "{:?}",
        now.locks
    );
    one.signal(Signal::SIGTERM);
    await_state(at, "draining");
    let now = numbers(at);
    assert_eq!(now.at("trafficcop_drains_total{cause=\"stop\"}"), 1.0);
    assert_eq!(now.at("trafficcop_leader"), 1.0, "it still runs");
    let asked = now.at("trafficcop_http_requests_total{path=\"/metrics\",code=\"200\"}");
    assert!(asked >= 3.0, "{asked}");
    get(at, "/nothing/here");
    let other = "trafficcop_http_requests_total{path=\"other\",code=\"404\"}";
    assert_eq!(numbers(at).at(other), 1.0);
    let_go_on(&scene, "one");
    assert_eq!(one.wait(), Ended::Code(0), "{}", one.stderr());
}

#[test]
fn a_loss_is_counted_and_who_lost_stands_by() {
    let scene = Scene::new();
    scene.excuse_event_logs("the lease is broken at once");
    let options = ["--shared", "--lease", "30s"];
    let (one, at_one) = instance(&scene, "one", &options, &deaf(&scene, "one"));
    await_deaf(&scene, "one");
    await_leader(at_one);
    let quick = [&options[..], &["--poll", "100ms"]].concat();
    let (_two, at_two) = instance(&scene, "two", &quick, &lasting(&scene, "two"));
    await_status(at_two, "who is in control", |status| {
        status["holder"] == "one"
    });
    let broken = scene
        .verb("break")
        .args(["--period", "0", "--yes", "--file"]);
    let broken = broken.arg(scene.lock()).finish();
    assert_eq!(broken.ended, Ended::Code(0), "{broken:?}\n{}", one.stderr());
    await_leader(at_two);
    await_status(at_one, "who has control now", |status| {
        status["holder"] == "two" && status["state"] == "standby"
    });
    assert_eq!(get(at_one, "/leader").status, 503, "{}", one.stderr());
    assert_eq!(get(at_one, "/readyz").status, 200);
    assert_eq!(get(at_one, "/healthz").status, 200);
    let now = numbers(at_one);
    for (sample, value) in [
        ("trafficcop_leader", 0.0),
        ("trafficcop_lease_held", 0.0),
        ("trafficcop_control_remaining_seconds", 0.0),
        ("trafficcop_command_running", 0.0),
        ("trafficcop_state{state=\"standby\"}", 1.0),
        ("trafficcop_lease_losses_total{cause=\"lost\"}", 1.0),
        ("trafficcop_renew_attempts_total{result=\"lost\"}", 1.0),
        ("trafficcop_drains_total{cause=\"lost\"}", 1.0),
        ("trafficcop_kills_total{cause=\"lost\"}", 1.0),
        ("trafficcop_overlaps_total", 1.0),
        ("trafficcop_command_exits_total{result=\"signal\"}", 1.0),
    ] {
        assert_eq!(now.at(sample), value, "{sample}\n{}", one.stderr());
    }
    assert!(now.at("trafficcop_acquire_attempts_total{result=\"held\"}") >= 1.0);
}

#[test]
fn a_lock_s_name_is_a_label_whatever_is_in_it() {
    let scene = Scene::new();
    let lock = scene.path("a \"quoted\" \\ {lock}");
    let one = scene.run().arg("--file").arg(&lock).args(super::ANYWHERE);
    let one = one.shell(&lasting(&scene, "one")).start();
    let locks = numbers(super::address(&one)).locks;
    let lock = lock.to_str().expect("text");
    assert!(locks.iter().all(|name| name.contains(lock)), "{locks:?}");
}

fn metrics_in(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c: char| !word(c))
        .filter(|word| word.starts_with("trafficcop_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_examples_ask_for_what_there_is() {
    let scene = Scene::new();
    let options = ["--shared", "--lease", "12s", "--health", "true"];
    let (_one, at) = instance(&scene, "one", &options, &lasting(&scene, "one"));
    await_leader(at);
    get(at, "/leader");
    let there = await_for(
        "its health to be known",
        || {
            let there = numbers(at).names;
            there.contains("trafficcop_health").then_some(there)
        },
        || get(at, "/metrics").body,
    );
    let read = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{name}: {why}"))
    };
    let alerts = read("examples/prometheus-alerts.yml");
    let board = read("examples/grafana-dashboard.json");
    let chapter = read("docs/reference.md");
    for (name, text) in [
        ("alerts", &alerts),
        ("dashboard", &board),
        ("docs/reference.md", &chapter),
    ] {
        for metric in metrics_in(text) {
            // `work` has these; work::told checks them.
            if metric.starts_with("trafficcop_message") {
                continue;
            }
            // A histogram is also referred to by its family name.
            let counted = there.contains(&format!("{metric}_count"));
            assert!(
                there.contains(&metric) || counted,
                "{name}: there is no {metric}"
            );
        }
    }
    // Every metric is explained.
    for name in &there {
        let family = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(name);
        assert!(
            chapter.contains(family),
            "docs/reference.md does not tell of {family}"
        );
    }
    assert!(metrics_in(&alerts).len() >= 6 && metrics_in(&board).len() >= 10);
    for metric in there.iter().filter(|name| name.contains("_health")) {
        assert!(
            board.contains(metric),
            "the dashboard does not show {metric}"
        );
    }
    let board: serde_json::Value = serde_json::from_str(&board).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(panel["title"].is_string(), "{panel}");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{panel}");
        for target in panel["targets"].as_array().expect("what it shows") {
            assert!(target["expr"].is_string(), "{panel}");
        }
    }
}

#[test]
fn the_balancer_s_configuration_is_one_it_accepts() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/haproxy.cfg");
    let text = std::fs::read_to_string(&path).expect("it is there");
    for word in ["uri /leader", "http-check expect status 200"] {
        assert!(text.contains(word), "{word}");
    }
    let Ok(verdict) = Command::new("haproxy")
        .args(["-c", "-f"])
        .arg(&path)
        .output()
    else {
        println!("haproxy is not installed here: examples/haproxy.cfg was not verified");
        return;
    };
    let said = String::from_utf8_lossy(&verdict.stderr);
    assert!(verdict.status.success(), "{said}");
}
