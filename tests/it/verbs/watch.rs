//! `watch`: a line for every change, until its reader is gone.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::Place;
use crate::support::await_for;
use crate::support::azurite::azurite;
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Instance};
use crate::support::programs::trafficcop;
use crate::support::proxy::{Call, Mode, Proxy};
use crate::support::scene::Scene;

fn await_lines(watch: &Instance, count: usize) -> Vec<Value> {
    await_for(
        &format!("{count} lines"),
        || {
            let text = watch.stdout();
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let whole = lines.iter().filter(|line| line.ends_with('\n'));
            let values: Vec<Value> = whole
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            (values.len() >= count).then_some(values)
        },
        || format!("{}{}", watch.stdout(), watch.stderr()),
    )
}

fn a_tenure_as_watch_tells_it(scene: &Scene, place: &Place) {
    let watch = place
        .verb(scene, "watch")
        .args(["--poll", "100ms", "--json"])
        .start();
    assert_eq!(await_lines(&watch, 1)[0]["state"], "missing");
    let mut holder = place.hold_stubbornly(scene);
    let held = await_for(
        "the holder",
        || {
            let lines = await_lines(&watch, 2);
            let last = lines.last().unwrap().clone();
            (last["state"] == "held" && last["holder"] == "web1").then_some(last)
        },
        || watch.stdout(),
    );
    assert!(
        held["time"].is_string() && held["why"].is_null() && held["token"] == 1,
        "{held}"
    );
    holder.signal(Signal::SIGTERM);
    let ends_with = |state: &str| {
        await_for(
            state,
            || (await_lines(&watch, 1).last().unwrap()["state"] == state).then_some(()),
            || watch.stdout(),
        );
    };
    ends_with("draining");
    holder.signal(Signal::SIGTERM);
    holder.wait();
    ends_with("free");
    let lines = await_lines(&watch, 1);
    for pair in lines.windows(2) {
        let identity_of_change = |line: &Value| {
            (
                line["state"].clone(),
                line["holder"].clone(),
                line["token"].clone(),
            )
        };
        assert_ne!(
            identity_of_change(&pair[0]),
            identity_of_change(&pair[1]),
            "no change, but a line"
        );
    }
    watch.signal(Signal::SIGINT);
    let finished = watch.finish();
    assert_eq!(finished.ended, Ended::Died(Signal::SIGINT), "{finished:?}");
    assert_eq!(finished.stderr, "");
}

#[test]
fn watching_a_file_through_a_tenure() {
    let scene = Scene::new();
    a_tenure_as_watch_tells_it(&scene, &Place::file(&scene));
}

#[test]
fn watching_a_blob_through_a_tenure() {
    let scene = Scene::new();
    Blob::named("watch-tenure/neighbour").create(&[]);
    a_tenure_as_watch_tells_it(&scene, &Place::blob("watch-tenure/one"));
}

#[test]
fn a_watch_outlasts_the_store_and_looks_no_more_often_than_it_should() {
    let scene = Scene::new();
    Blob::named("watch-outage/one")
        .create(&[("trafficcop_token", "4"), ("trafficcop_holder", "w")]);
    let proxy = Proxy::before(azurite().port);
    let place = Place::blob_at("watch-outage/one", proxy.port);
    let watch = place
        .verb(&scene, "watch")
        .args(["--poll", "500ms", "--json"])
        .start();
    await_lines(&watch, 1);
    proxy.set(Mode::Cut);
    let lines = await_lines(&watch, 2);
    assert_eq!(
        (&lines[1]["state"], &lines[1]["held"]),
        (&json!("unknown"), &Value::Null)
    );
    assert!(lines[1]["why"].is_string(), "{}", lines[1]);
    proxy.set(Mode::Pass);
    assert_eq!(await_lines(&watch, 3)[2]["state"], "free");
    proxy.await_next(Call::Look);
    let log = proxy.log();
    assert!(log.iter().all(|seen| seen.call == Call::Look), "{log:?}");
    for pair in log.windows(2) {
        // The spread is a fifth. A slow machine adds to it, unless the first was read late.
        let apart = Duration::from_nanos(pair[1].at - pair[0].at);
        assert!(
            apart > Duration::from_millis(300),
            "{apart:?} after the look before"
        );
    }
}

/// Killed with its test.
struct Watch(std::process::Child);

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_watch_whose_reader_is_gone_ends_although_nothing_changes() {
    let scene = Scene::new();
    let mut child = Command::new(trafficcop())
        .env_clear()
        .args(["watch", "--poll", "100ms", "--file"])
        .arg(scene.lock())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut first = [0; 20];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    drop(child.stdout.take());
    let mut watch = Watch(child);
    let status = await_for(
        "it to end: it has no reader",
        || watch.0.try_wait().expect("ours"),
        String::new,
    );
    assert_eq!(Ended::from(status), Ended::Died(Signal::SIGPIPE));
}
