//! `status`, `list` and `watch`: who has a lock, without touching it.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Place, json as parse, refused, said};
use crate::support::await_for;
use crate::support::azurite::{azurite, connection_string_with_key};
use crate::support::blob::{Blob, sas_for};
use crate::support::instance::{Ended, Instance};
use crate::support::programs::trafficcop;
use crate::support::proxy::{Call, Mode, Proxy};
use crate::support::scene::Scene;

/// Holds the lock with a command that is deaf to SIGTERM by now.
fn hold_stubbornly(place: &Place, scene: &Scene) -> Instance {
    let deaf = scene.path("deaf");
    let script = format!(
        "trap '' TERM; : >'{}'; while :; do sleep 0.05; done",
        deaf.display()
    );
    let holder = place.hold(scene, "web1", &script);
    await_for(
        "the command to be deaf",
        || deaf.exists().then_some(()),
        String::new,
    );
    holder
}

const FIELDS: [&str; 13] = [
    "command", "flaw", "held", "holder", "host", "lock", "name", "once", "pid", "seconds", "since",
    "state", "token",
];

/// Free, held, draining, free again.
fn a_tenure_as_status_tells_it(scene: &Scene, place: &Place) {
    let before = place.status(scene);
    assert_eq!(
        (&before["state"], &before["holder"]),
        (&json!("missing"), &Value::Null)
    );
    let fields: Vec<&str> = before
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(fields, FIELDS);

    let mut holder = hold_stubbornly(place, scene);
    let held = place.status(scene);
    assert_eq!(held["state"], "held");
    assert_eq!(held["holder"], "web1");
    assert_eq!(held["pid"], holder.pid());
    assert_eq!(held["token"], 1);
    assert_eq!(
        held["command"].as_str().unwrap().split(' ').next(),
        Some("sh")
    );
    assert!(held["seconds"].is_u64() && held["since"].is_string() && held["host"].is_string());
    assert_eq!(held["flaw"], Value::Null);
    let text = place.verb(scene, "status").finish();
    let pid = format!("pid {}", holder.pid());
    said(&text, 0, &["held", "web1", &pid, "token", "(for ", "sh -c"]);

    holder.signal(Signal::SIGTERM);
    let draining = place.await_state(scene, "draining");
    assert_eq!(
        (&draining["held"], &draining["holder"]),
        (&json!(true), &json!("web1"))
    );
    said(
        &place.verb(scene, "status").finish(),
        0,
        &["stopping", "web1"],
    );
    holder.assert_running();

    holder.signal(Signal::SIGTERM);
    holder.wait();
    let after = place.status(scene);
    assert_eq!(
        (&after["state"], &after["seconds"]),
        (&json!("free"), &Value::Null)
    );
    assert_eq!(
        (&after["holder"], &after["token"]),
        (&json!("web1"), &json!(1))
    );
    said(
        &place.verb(scene, "status").finish(),
        1,
        &["free", "last", "web1"],
    );
}

#[test]
fn status_of_a_file_through_a_tenure() {
    let scene = Scene::new();
    a_tenure_as_status_tells_it(&scene, &Place::file(&scene));
}

#[test]
fn status_of_a_blob_through_a_tenure() {
    let scene = Scene::new();
    a_tenure_as_status_tells_it(&scene, &Place::blob("status-tenure/one"));
}

#[test]
fn looking_creates_nothing_and_asks_for_nothing_but_a_look() {
    let scene = Scene::new();
    let neighbour = Blob::named("looking/other");
    neighbour.create(&[("trafficcop_token", "4")]);
    let proxy = Proxy::before(azurite().port);
    for name in ["looking/none", "looking/other", "looking-nowhere/one"] {
        let place = Place::blob_at(name, proxy.port);
        assert_eq!(place.status(&scene)["held"], false, "{name}");
        said(
            &place.verb(&scene, "break").arg("--yes").finish(),
            1,
            &["nothing to break"],
        );
    }
    let container = Place::blob_at("looking", proxy.port);
    said(
        &container.verb(&scene, "list").finish(),
        0,
        &["looking/other"],
    );
    let calls: Vec<Call> = proxy.log().iter().map(|seen| seen.call).collect();
    let mut looks = vec![Call::Look; 6];
    looks.push(Call::Other);
    assert_eq!(calls, looks, "list is the one that is no look at a blob");
    assert_eq!(neighbour.all_in_its_container(), ["other"]);
    assert_eq!(neighbour.lease_state(), "available");

    let file = Place::file(&scene);
    assert_eq!(file.status(&scene)["state"], "missing");
    assert!(!scene.lock().exists(), "status made the file");
}

#[test]
fn what_cannot_be_looked_at_is_an_error_and_not_free() {
    let scene = Scene::new();
    let blob = Blob::named("looking-denied/one");
    blob.create(&[]);
    let wrong = connection_string_with_key(azurite().port, "c2VjcmV0c2VjcmV0");
    let denied = Place {
        string: Some(wrong),
        ..Place::blob(&blob.name)
    };
    for verb in ["status", "watch", "break"] {
        refused(
            &denied.verb(&scene, verb).finish(),
            77,
            &["403", "looking-denied/one"],
        );
    }
    refused(&denied.verb(&scene, "list").finish(), 77, &["403", "list"]);
    let cut = Proxy::alone(Mode::Cut);
    let away = Place::blob_at("looking-denied/one", cut.port);
    refused(
        &away.verb(&scene, "status").finish(),
        69,
        &["looking-denied/one"],
    );
    let page = Proxy::alone(Mode::Answer(200, "text/html", "<html>log in</html>"));
    let portal = Place::blob_at("looking-denied/one", page.port);
    refused(&portal.verb(&scene, "status").finish(), 69, &["web page"]);
    let nowhere = scene.verb("list").args(["--blob", "looking-nowhere-else"]);
    let nowhere = nowhere.env(super::STRING, super::connection_string(azurite().port));
    refused(
        &nowhere.finish(),
        69,
        &["no container", "looking-nowhere-else"],
    );
    // A SAS that may not list says which letter it lacks.
    let url = format!(
        "http://127.0.0.1:{}/devstoreaccount1/looking-denied",
        azurite().port
    );
    let unlisted = scene.verb("list").args(["--blob", &url]);
    let unlisted = unlisted
        .env("AZURE_STORAGE_SAS_TOKEN", sas_for("rw"))
        .finish();
    refused(&unlisted, 77, &["403", "permission l"]);

    std::fs::write(scene.lock(), "Dear Sir or Madam,\n").unwrap();
    let file = Place::file(&scene);
    refused(
        &file.verb(&scene, "status").finish(),
        69,
        &["not a lock record"],
    );
    for (path, words) in [("no/such", "directory"), ("", "it is a directory")] {
        let run = scene.verb("status").arg("--file").arg(scene.path(path));
        refused(&run.finish(), 69, &[words]);
    }
    refused(
        &scene
            .verb("list")
            .arg("--file")
            .arg(scene.path("no/such"))
            .finish(),
        69,
        &["cannot list"],
    );
}

#[test]
fn bad_usage_is_refused() {
    let scene = Scene::new();
    let file = scene.lock().display().to_string();
    let url = "https://web.blob.core.windows.net/locks/one?sv=1&sig=U2VjcmV0";
    for (verb, args, words) in [
        ("status", &[][..], &["no lock", "--blob", "--file"][..]),
        ("list", &[], &["no lock"]),
        ("doctor", &[], &["no lock"]),
        (
            "status",
            &["--blob", url, "--file", "x"],
            &["two locks", "locks/one"],
        ),
        (
            "run",
            &["--blob", url, "--file", "x", "true"],
            &["two locks", "locks/one"],
        ),
        ("status", &["--blob", "Locks/one"], &["Locks"]),
        ("status", &["--blob", "locks"], &["CONTAINER/NAME"]),
        (
            "status",
            &["--blob", "locks/one"],
            &["AZURE_STORAGE_CONNECTION_STRING"],
        ),
        ("list", &["--blob", "Locks"], &["Locks"]),
        ("status", &["--file", ""], &["--file is empty"]),
        ("status", &["--file", &file, "--emulator"], &["--emulator"]),
        (
            "watch",
            &["--file", &file, "--poll", "1ms"],
            &["--poll", "100ms"],
        ),
        (
            "watch",
            &["--file", &file, "--poll", "soon"],
            &["--poll", "duration"],
        ),
        (
            "break",
            &["--blob", "locks/one", "--period", "61"],
            &["--period 61", "60"],
        ),
        (
            "doctor",
            &["--blob", "locks/one", "--lease", "5s"],
            &["--lease", "15s"],
        ),
        ("doctor", &["--file", &file, "--lease", "1s"], &["--lease"]),
    ] {
        refused(&scene.verb(verb).args(args).finish(), 64, words);
    }
    assert!(!scene.lock().exists());
    let unknown = scene.verb("status").arg("--nonsense").finish();
    assert_eq!(unknown.ended, Ended::Code(64), "{unknown:?}");
}

#[test]
fn the_locks_of_a_container_by_prefix_and_nothing_else() {
    let scene = Scene::new();
    let holder = Place::blob("listing/jobs/b").hold(&scene, "web7", "sleep 600");
    Blob::named("listing/jobs/a")
        .create(&[("trafficcop_token", "41"), ("trafficcop_holder", "web3")]);
    Blob::named("listing/jobs/letter").create(&[("owner", "somebody")]);
    Blob::named("listing/other").create(&[("trafficcop_token", "seven")]);
    let list = |name: &str| Place::blob(name).verb(&scene, "list");
    let all = list("listing").finish();
    said(
        &all,
        0,
        &[
            "LOCK",
            "HOLDER",
            "listing/jobs/a",
            "listing/jobs/b",
            "listing/other",
            "web7",
        ],
    );
    assert!(!all.stdout.contains("letter"), "{}", all.stdout);
    let row = |name: &str| -> Vec<String> {
        let row = all
            .stdout
            .lines()
            .find(|line| line.contains(name))
            .expect(name);
        row.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row("jobs/b")[1..4], ["held", "1", "web7"]);
    assert_eq!(row("jobs/a")[1..4], ["free", "41", "-"]);

    let some = parse(&list("listing/jobs/").arg("--json").finish());
    let names: Vec<&Value> = some
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| &lock["name"])
        .collect();
    assert_eq!(names, ["listing/jobs/a", "listing/jobs/b"]);
    assert_eq!(some[1]["pid"], holder.pid());
    assert_eq!(
        some[1]["lock"],
        Place::blob("listing/jobs/b").status(&scene)["lock"]
    );
    let fields: Vec<&str> = some[0]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(fields, FIELDS);
    let broken = parse(&list("listing/other").arg("--json").finish());
    assert!(
        broken[0]["flaw"].as_str().unwrap().contains("seven"),
        "{broken}"
    );
    let none = list("listing/nothing").finish();
    said(&none, 0, &["LOCK"]);
    assert!(none.stderr.contains("no locks"), "{none:?}");
}

#[test]
fn a_container_of_more_than_a_page_is_listed_whole() {
    let scene = Scene::new();
    for number in 0..203 {
        Blob::named(&format!("many-locks/n{number:03}")).create(&[("trafficcop_token", "1")]);
    }
    let proxy = Proxy::before(azurite().port);
    let place = Place::blob_at("many-locks", proxy.port);
    let all = parse(&place.verb(&scene, "list").arg("--json").finish());
    assert_eq!(all.as_array().unwrap().len(), 203);
    assert_eq!(all[202]["name"], "many-locks/n202");
    assert!(proxy.log().len() > 1, "one page was enough");
}

#[test]
fn the_locks_of_a_directory_and_the_slots_of_one() {
    let scene = Scene::new();
    let directory = scene.path("locks");
    std::fs::create_dir(&directory).unwrap();
    let lock = directory.join("job");
    let holder = scene
        .run()
        .arg("--file")
        .arg(&lock)
        .args(["--slots", "2", "--identity", "web9"]);
    let holder = holder.shell("sleep 600").start();
    holder.await_log("in control");
    std::fs::write(directory.join("letter"), "Dear Sir or Madam,\n").unwrap();
    let list = |path| {
        let list = scene.verb("list").arg("--json").arg("--file").arg(path);
        let mut all = parse(&list.finish());
        for lock in all.as_array_mut().unwrap() {
            // It goes on between two looks.
            lock["seconds"].take();
        }
        all
    };
    let all = list(&directory);
    assert_eq!(
        all,
        list(&lock),
        "the slots of the lock are all that is there"
    );
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
    assert_eq!(
        (&all[0]["holder"], &all[0]["state"]),
        (&json!("web9"), &json!("held"))
    );
    assert!(all[0]["name"].as_str().unwrap().contains("/locks/job."));
    let table = scene.verb("list").arg("--file").arg(&directory).finish();
    said(&table, 0, &["web9", "sleep 600"]);
    assert!(!table.stdout.contains("letter"));
}

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
    let mut holder = hold_stubbornly(place, scene);
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
        let gist = |line: &Value| {
            (
                line["state"].clone(),
                line["holder"].clone(),
                line["token"].clone(),
            )
        };
        assert_ne!(gist(&pair[0]), gist(&pair[1]), "no change, but a line");
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
        // The spread is a fifth; what the machine adds makes it only longer, but for the reading
        // of the first request of the two.
        let apart = Duration::from_nanos(pair[1].at - pair[0].at);
        assert!(
            apart > Duration::from_millis(300),
            "{apart:?} after the look before"
        );
    }
}

/// Killed at the latest with its test.
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
        "it to end: nobody reads",
        || watch.0.try_wait().expect("ours"),
        String::new,
    );
    assert_eq!(Ended::from(status), Ended::Died(Signal::SIGPIPE));
}

#[test]
fn an_answer_that_cannot_be_written_is_no_answer() {
    let scene = Scene::new();
    for verb in ["status", "list", "doctor"] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = Command::new(trafficcop())
            .env_clear()
            .args([verb, "--file"])
            .arg(scene.lock())
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(69), "{verb}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("stdout") && said.contains("No space left"),
            "{said}"
        );
    }
}
