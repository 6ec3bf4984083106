//! `status` shows a lock's holder without touching the lock; and refusals of all verbs that look.

use std::process::{Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Place, assert_whole, refused, said};
use crate::support::azurite::{azurite, connection_string_with_key};
use crate::support::blob::{Blob, sas_for};
use crate::support::instance::Ended;
use crate::support::programs::trafficcop;
use crate::support::proxy::{Call, Mode, Proxy};
use crate::support::scene::Scene;

/// Free, held, draining, free again.
fn a_tenure_as_status_tells_it(scene: &Scene, place: &Place) {
    let before = place.status(scene);
    assert_eq!(
        (&before["state"], &before["holder"]),
        (&json!("missing"), &Value::Null)
    );
    assert_whole(&before);

    let mut holder = place.hold_stubbornly(scene);
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
    assert_eq!(held["problem"], Value::Null);
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
    Blob::named("status-tenure/neighbour").create(&[]);
    a_tenure_as_status_tells_it(&scene, &Place::blob("status-tenure/one"));
}

#[test]
fn looking_creates_nothing_and_asks_for_nothing_but_a_look() {
    let scene = Scene::new();
    let neighbour = Blob::named("looking/other");
    neighbour.create(&[("trafficcop_token", "4")]);
    let proxy = Proxy::before(azurite().port);
    for name in ["looking/none", "looking/other"] {
        let place = Place::blob_at(name, proxy.port);
        assert_eq!(place.status(&scene)["held"], false, "{name}");
        said(
            &place.verb(&scene, "break").arg("--yes").finish(),
            1,
            &["nothing to break"],
        );
    }
    let nowhere = Place::blob_at("looking-nowhere/one", proxy.port);
    let finished = nowhere.verb(&scene, "status").finish();
    refused(&finished, 69, &["no container", "looking-nowhere"]);
    let container = Place::blob_at("looking", proxy.port);
    said(
        &container.verb(&scene, "list").finish(),
        0,
        &["looking/other"],
    );
    let calls: Vec<Call> = proxy.log().iter().map(|seen| seen.call).collect();
    // A name without a lock may have slots.
    let (look, list) = (Call::Look, Call::Other);
    let none = [look, list, look, list];
    let others = [look, look, look, list];
    assert_eq!(calls, [none, others].concat());
    assert_eq!(neighbour.all_in_its_container(), ["other"]);
    assert_eq!(neighbour.lease_state(), "available");

    let file = Place::file(&scene);
    assert_eq!(file.status(&scene)["state"], "missing");
    assert!(!scene.lock().exists(), "status made the file");
}

#[test]
fn unreadable_lock_is_an_error_and_not_free() {
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
    // For a SAS without the right to list, the error names the missing letter.
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
        ("list", &[], &["nothing to list", "--blob", "--file"]),
        ("doctor", &[], &["no lock"]),
        (
            "status",
            &["--blob", url, "--file", "x"],
            &["--file cannot be used with --blob", "exactly one lock"],
        ),
        (
            "run",
            &["--blob", url, "--file", "x", "true"],
            &["--file cannot be used with --blob", "exactly one lock"],
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
            .arg(if verb == "list" {
                scene.directory().to_owned()
            } else {
                scene.lock()
            })
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

#[test]
fn a_lock_that_flock_has_is_held_by_no_instance() {
    let scene = Scene::new();
    let place = Place::file(&scene);
    let run = place
        .verb(&scene, "run")
        .args(["--once-key", "v7", "--identity", "web1"]);
    said(&run.shell("true").finish(), 0, &[]);
    let file = std::fs::File::open(scene.lock()).unwrap();
    let stranger = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
    let held = place.status(&scene);
    assert_eq!(held["state"], "held");
    assert_eq!((&held["holder"], &held["token"]), (&Value::Null, &json!(1)));
    assert!(held["problem"].as_str().unwrap().contains("flock(2)"));
    let reset = place
        .verb(&scene, "reset")
        .args(["--all", "--yes"])
        .finish();
    said(&reset, 1, &["the lock is held"]);
    drop(stranger);
    let free = place.status(&scene);
    assert_eq!(
        (&free["state"], &free["holder"]),
        (&json!("free"), &json!("web1"))
    );
}
