//! Reports: a row for each message in the log, in the event log and in the metrics; and the
//! worker's state in the status file and over HTTP.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::*;
use crate::support::instance::Instance;
use crate::support::proxy::{Mode, Proxy};
use crate::support::{WAIT_LIMIT, await_for};

fn get(instance: &Instance, page: &str) -> (u16, String) {
    let words = "answering at http://";
    instance.await_log(words);
    let log = instance.stderr();
    let (_, rest) = log.split_once(words).expect("awaited");
    let address = rest.split(['\n', '"']).next().expect("an address");
    let mut stream = TcpStream::connect(address).expect("an instance listens");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a limit");
    let request = format!("GET {page} HTTP/1.1\r\nHost: here\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    (status.expect("a status"), body.to_owned())
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

#[test]
fn one_row_for_each_message_says_the_same_in_the_log_and_in_the_event_log() {
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    let script = "read how; case $how in fail) exit 3;; kill) kill -9 $$;; bad) exit 65;; esac";
    let events = scene.path("events");
    for (text, outcome, exit, cause) in [
        ("well", "completed", Some(0), None),
        ("fail", "retried", Some(3), Some("CommandFailed")),
        ("kill", "retried", Some(137), Some("CommandFailed")),
        ("bad", "dead-lettered", Some(65), Some("CommandRejected")),
    ] {
        mailbox.put(text);
        let id = mailbox.visible()[0].id.clone();
        let worker = worker(&scene, &mailbox)
            .args(["--once", "--log", "json", "--retry-delay", "1h"])
            .arg("--event-log")
            .arg(&events);
        let done = worker.shell(script).finish();
        let logged = lines(&done.stderr);
        let row = logged.iter().find(|line| line["event"] == "message");
        let row = row.unwrap_or_else(|| panic!("no row: {}", done.stderr));
        let told = lines(&std::fs::read_to_string(&events).unwrap());
        let record = told
            .iter()
            .rev()
            .find(|line| line["event"] == "message")
            .unwrap_or_else(|| panic!("no record: {told:?}"));
        for (line, reason) in [(row, "reason"), (record, "cause")] {
            assert_eq!(line["message_id"], id, "{line}");
            assert_eq!(line["attempt"], 1, "{line}");
            assert_eq!(line["outcome"], outcome, "{line}");
            assert_eq!(line["command_exit"], Value::from(exit), "{line}");
            assert_eq!(line["renewals"], 0, "{line}");
            assert!(line["duration_ms"].is_u64(), "{line}");
            assert_eq!(line[reason].as_str(), cause, "{line}");
        }
        assert_eq!(row["duration_ms"], record["duration_ms"]);
        let words: Vec<&str> = told
            .iter()
            .filter_map(|line| line["event"].as_str())
            .collect();
        assert_eq!(words[words.len() - 3..], ["working", "message", "done"]);
    }
}

#[test]
fn renewals_and_the_time_a_command_took_are_in_its_row() {
    let (scene, mailbox) = with("x");
    let events = scene.path("events");
    let done = worker(&scene, &mailbox)
        .args(["--once", "--lock-time", "10s", "--renew-at", "10%"])
        .arg("--event-log")
        .arg(&events)
        .shell("sleep 2.5")
        .finish();
    assert_ended(&done, 0, "completed, attempt 1, exit 0, ");
    let told = lines(&std::fs::read_to_string(&events).unwrap());
    let row = told.iter().find(|line| line["event"] == "message").unwrap();
    assert!(row["renewals"].as_u64().unwrap() >= 1, "{row}");
    assert!(row["duration_ms"].as_u64().unwrap() >= 2500, "{row}");
}

#[test]
fn messages_are_counted_by_outcome_over_http_and_the_status_file_says_what_goes_on() {
    let (scene, mailbox) = (Scene::new(), Mailbox::fresh());
    let (status, go) = (scene.path("status"), scene.path("go"));
    let script = format!(
        "read how; while [ ! -e {} ]; do sleep 0.05; done; exit $how",
        go.display()
    );
    let mut running = worker(&scene, &mailbox)
        .args(["--listen", "127.0.0.1:0", "-j", "2", "--retry-delay", "1h"])
        .arg("--status-file")
        .arg(&status)
        .shell(&script)
        .start();
    let await_state = |state: &str| {
        await_for(
            &format!("the status file to say {state}"),
            || Some(read(&status)).filter(|status| status["state"] == state),
            || read(&status).to_string(),
        )
    };
    let told = await_state("waiting");
    assert!(told["lock"].as_str().unwrap().ends_with(&mailbox.name));
    assert_eq!(told["pid"], running.pid());
    assert!(told["guardian_pid"].is_i64(), "{told}");
    assert_eq!(get(&running, "/healthz").0, 200);
    assert_eq!(get(&running, "/readyz").0, 200);
    assert_eq!(get(&running, "/leader").0, 503, "a worker has no leader");
    mailbox.put("0");
    mailbox.put("65");
    await_state("working");
    let metric = |name: &str| {
        let (_, text) = get(&running, "/metrics");
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .unwrap_or_default()
    };
    let await_metric = |name: &str, value: f64| {
        await_for(
            &format!("{name} to be {value}"),
            || (metric(name) == value).then_some(()),
            || get(&running, "/metrics").1,
        );
    };
    await_metric("trafficcop_messages_in_flight", 2.0);
    std::fs::write(&go, "").unwrap();
    await_metric("trafficcop_messages_in_flight", 0.0);
    let count = |outcome: &str| {
        let (_, text) = get(&running, "/metrics");
        let label = format!("outcome=\"{outcome}\"");
        let line = text
            .lines()
            .find(|line| line.starts_with("trafficcop_messages_total") && line.contains(&label));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    assert_eq!(count("completed"), Some(1));
    assert_eq!(count("dead-lettered"), Some(1));
    assert_eq!(count("retried"), Some(0));
    await_metric("trafficcop_message_duration_seconds_count", 2.0);
    await_state("waiting");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.wait(), Ended::Died(Signal::SIGTERM));
    let told = read(&status);
    assert_eq!(
        (&told["state"], &told["exit"]),
        (&"done".into(), &143.into())
    );
    assert!(told["cause"].as_str().unwrap().contains("SIGTERM"));
}

#[test]
fn a_worker_whose_queue_does_not_answer_is_sound_and_not_ready() {
    let scene = Scene::new();
    let nobody = Proxy::alone(Mode::Freeze);
    let running = worker_at(&scene, &Mailbox::named("jobs"), nobody.port)
        .args(["--listen", "127.0.0.1:0"])
        .command(["true"])
        .start();
    let asked = || (!nobody.log().is_empty()).then_some(());
    await_for("the queue to be asked", asked, || running.stderr());
    assert_eq!(get(&running, "/healthz").0, 200);
    assert_eq!(get(&running, "/readyz").0, 503);
    stopped_by(Signal::SIGTERM, running);
}
