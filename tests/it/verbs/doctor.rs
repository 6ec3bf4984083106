//! `doctor`: each fault is found, and nothing is left behind.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::Value;

use super::{Place, STRING, json, no_secret, said};
use crate::support::azurite::{KEY, azurite, connection_string_with_key};
use crate::support::blob::{Blob, sas_for, sas_of_one};
use crate::support::instance::{Ended, Finished, Run, assert_ended};
use crate::support::proxy::{Call, Fate, Mode, Proxy};
use crate::support::scene::Scene;

/// Returns the verdict of one check, and its text; `none` if it was not made.
fn of(told: &Value, check: &str) -> (String, String) {
    let checks = told["checks"].as_array().expect("checks");
    let found = checks.iter().find(|known| known["check"] == check);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match found {
        Some(known) => (
            text(&known["verdict"]),
            format!("{}: {}", text(&known["found"]), text(&known["advice"])),
        ),
        None => ("none".into(), String::new()),
    }
}

/// Runs it, and expects these verdicts; the exit status follows from the worst.
fn examined(run: Run<'_>, wanted: &[(&str, &str)]) -> Value {
    let finished = run.arg("--json").finish();
    no_secret(&finished);
    let told = json(&finished);
    for (check, verdict) in wanted {
        assert_eq!(of(&told, check).0, *verdict, "{check} in {told:#}");
    }
    let failed = told["verdict"] == "fail";
    assert_eq!(finished.ended, Ended::Code(i32::from(failed)), "{told:#}");
    told
}

const PERMISSIONS: [&str; 8] = [
    "read", "create", "acquire", "renew", "write", "release", "break", "delete",
];

#[test]
fn a_blob_that_will_do_and_is_not_touched() {
    let scene = Scene::new();
    let place = Place::blob("doctor/one");
    let mut holder = place.hold(&scene, "web1", "sleep 600");
    let blob = Blob::named("doctor/one");
    let before = blob.look().expect("a blob");
    let told = examined(
        place.verb(&scene, "doctor"),
        &[("credential", "ok"), ("reach", "ok")],
    );
    assert_eq!(told["verdict"], "warn", "{told:#}");
    for check in PERMISSIONS {
        assert_eq!(of(&told, check).0, "ok", "{check} in {told:#}");
    }
    for check in ["guardian", "clock", "round-trip", "immutability"] {
        assert_eq!(of(&told, check).0, "ok", "{check} in {told:#}");
    }
    assert_eq!(of(&told, "emulator").0, "warn");
    assert!(of(&told, "lock").1.contains("web1"), "{told:#}");
    assert!(
        of(&told, "round-trip").1.contains("of 20 renewals"),
        "{told:#}"
    );
    let text = place.verb(&scene, "doctor").finish();
    said(
        &text,
        0,
        &["ok", "warn", "emulator", "round-trip", "p50", "p99"],
    );
    assert!(!text.stdout.contains("fail "), "{}", text.stdout);

    assert_eq!(
        blob.all_in_its_container(),
        ["one"],
        "it left something behind"
    );
    let same = |headers: &std::collections::BTreeMap<String, String>| {
        ["etag", "x-ms-lease-state", "x-ms-meta-trafficcop_token"].map(|name| headers[name].clone())
    };
    assert_eq!(same(&before), same(&blob.look().expect("a blob")));
    holder.assert_running();
}

#[test]
fn a_container_that_is_missing_is_not_made() {
    let scene = Scene::new();
    let place = Place::blob("doctor-nowhere/one");
    let told = examined(
        place.verb(&scene, "doctor"),
        &[("reach", "ok"), ("container", "warn")],
    );
    assert_eq!(of(&told, "create").0, "none");
    let list = Place::blob("doctor-nowhere").verb(&scene, "list").finish();
    assert_eq!(list.ended, Ended::Code(69), "{list:?}");
}

#[test]
fn credentials_that_do_not_do() {
    let scene = Scene::new();
    Blob::named("doctor-denied/one").create(&[]);
    let place = Place::blob("doctor-denied/one");
    let with = |string: String| {
        let place = Place {
            string: Some(string),
            ..place.clone()
        };
        place.verb(&scene, "doctor")
    };
    let wrong = connection_string_with_key(azurite().port, "c2VjcmV0c2VjcmV0");
    let told = examined(
        with(wrong),
        &[("credential", "ok"), ("read", "fail"), ("create", "none")],
    );
    assert!(of(&told, "read").1.contains("403"), "{told:#}");
    let contradiction = scene
        .verb("doctor")
        .args(["--blob", "doctor-denied/one"])
        .env("AZURE_STORAGE_ACCOUNT", "web");
    let told = examined(contradiction, &[("credential", "fail"), ("guardian", "ok")]);
    assert!(
        of(&told, "credential").1.contains("AZURE_STORAGE_KEY"),
        "{told:#}"
    );
    let nowhere = format!("AccountName=web;AccountKey={KEY};EndpointSuffix=storage.invalid");
    examined(with(nowhere), &[("reach", "fail"), ("read", "none")]);
    let cut = Proxy::alone(Mode::Cut);
    examined(
        with(super::connection_string(cut.port)),
        &[("reach", "fail")],
    );
    let page = Proxy::alone(Mode::Answer(200, "text/html", "<html>log in</html>"));
    let told = examined(
        with(super::connection_string(page.port)),
        &[("reach", "fail")],
    );
    assert!(of(&told, "reach").1.contains("web page"), "{told:#}");
}

fn bearing<'a>(scene: &'a Scene, verb: &str, name: &str, sas: &str) -> Run<'a> {
    let url = format!(
        "http://127.0.0.1:{}/devstoreaccount1/{name}",
        azurite().port
    );
    let run = scene.verb(verb).args(["--blob", &url]);
    run.env("AZURE_STORAGE_SAS_TOKEN", sas)
}

fn with_sas<'a>(scene: &'a Scene, name: &str, permissions: &str) -> Run<'a> {
    bearing(scene, "doctor", name, &sas_for(permissions))
}

#[test]
fn a_sas_that_may_only_read() {
    let scene = Scene::new();
    let blob = Blob::named("doctor-sas/one");
    blob.create(&[]);
    let wanted = [
        ("credential", "ok"),
        ("read", "ok"),
        ("create", "fail"),
        ("acquire", "none"),
    ];
    let told = examined(with_sas(&scene, "doctor-sas/one", "r"), &wanted);
    assert!(of(&told, "create").1.contains("rcw"), "{told:#}");
    assert_eq!(blob.all_in_its_container(), ["one"]);
}

#[test]
fn a_sas_for_the_lock_alone_is_no_fault() {
    let scene = Scene::new();
    let name = "doctor-sas-b/one";
    let blob = Blob::named(name);
    blob.create(&[]);
    let its = sas_of_one(name, "rcw");
    let wanted = [
        ("reach", "ok"),
        ("read", "ok"),
        ("permissions", "warn"),
        ("create", "none"),
    ];
    examined(bearing(&scene, "doctor", name, &its), &wanted);
    assert_eq!(blob.all_in_its_container(), ["one"]);
    // Nothing is missing for `run`.
    let run = bearing(&scene, "run", name, &its).args(["--", "true"]);
    assert_ended(&run.finish(), 0, "");
}

#[test]
fn a_sas_that_may_not_delete_says_what_it_left_behind() {
    let scene = Scene::new();
    let blob = Blob::named("doctor-sas-d/one");
    blob.create(&[]);
    let run = with_sas(&scene, "doctor-sas-d/one", "rcw");
    let told = examined(run, &[("write", "ok"), ("break", "ok"), ("delete", "warn")]);
    let all = blob.all_in_its_container();
    let left = all
        .iter()
        .find(|name| name.contains(".trafficcop-doctor-"))
        .expect("the probe");
    assert!(of(&told, "delete").1.contains(left.as_str()), "{told:#}");
    // It is no lock.
    let list = Place::blob("doctor-sas-d").verb(&scene, "list").finish();
    assert!(!list.stdout.contains("doctor-"), "{list:?}");
}

/// Refuses one request as Azure does; returns the report.
fn once_refused(call: Call, check: &str, verdict: &str) -> Value {
    let scene = Scene::new();
    let name = format!("doctor-fault/{check}");
    let blob = Blob::named(&name);
    blob.create(&[]);
    let proxy = Proxy::before(azurite().port);
    proxy.next(call, Fate::Answer(403, "text/plain", "no"));
    let run = Place::blob_at(&name, proxy.port).verb(&scene, "doctor");
    let told = examined(run, &[(check, verdict)]);
    assert!(of(&told, check).1.contains("403"), "{told:#}");
    told
}

#[test]
fn each_permission_is_seen_to_be_missing() {
    once_refused(Call::Acquire, "acquire", "fail");
    once_refused(Call::Renew, "renew", "fail");
    once_refused(Call::SetMetadata, "write", "fail");
    once_refused(Call::Release, "release", "fail");
    once_refused(Call::OtherLease, "break", "warn");
    let told = once_refused(Call::Create, "create", "fail");
    assert_eq!(of(&told, "permissions").0, "warn", "{told:#}");
    // The probe is removed after every failure.
    let all = Blob::named("doctor-fault/create").all_in_its_container();
    assert!(
        all.iter().all(|name| !name.contains("trafficcop-doctor")),
        "{all:?}"
    );
}

#[test]
fn a_store_that_is_too_slow_for_the_lease() {
    let scene = Scene::new();
    Blob::named("doctor-slow/one").create(&[]);
    let proxy = Proxy::before(azurite().port);
    proxy.set(Mode::Delay(Duration::from_millis(1600)));
    let run = Place::blob_at("doctor-slow/one", proxy.port).verb(&scene, "doctor");
    let told = examined(
        run.args(["--lease", "15s"]),
        &[("renew", "ok"), ("round-trip", "fail")],
    );
    assert!(
        of(&told, "round-trip").1.contains("longer --lease"),
        "{told:#}"
    );
    proxy.set(Mode::Pass);
}

#[test]
fn a_token_that_is_no_number() {
    let scene = Scene::new();
    Blob::named("doctor-token/one").create(&[("trafficcop_token", "seven")]);
    let told = examined(
        Place::blob("doctor-token/one").verb(&scene, "doctor"),
        &[("read", "ok"), ("lock", "fail"), ("write", "ok")],
    );
    assert!(of(&told, "lock").1.contains("'seven'"), "{told:#}");
}

/// Lists the scene's directory without the harness's own outputs.
fn left_behind(scene: &Scene) -> Vec<String> {
    let entries = std::fs::read_dir(scene.directory()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| !name.starts_with("stdout-") && !name.starts_with("stderr-"))
        .collect()
}

const OF_A_FILE: [&str; 6] = [
    "open",
    "directory",
    "mount",
    "descriptors",
    "processes",
    "clock",
];

#[test]
fn a_file_that_will_do_and_is_not_touched() {
    let scene = Scene::new();
    let place = Place::file(&scene);
    let told = examined(
        place.verb(&scene, "doctor"),
        &[("record", "none"), ("guardian", "ok")],
    );
    for check in OF_A_FILE {
        assert_eq!(of(&told, check).0, "ok", "{check} in {told:#}");
    }
    assert_eq!(left_behind(&scene), [""; 0], "it made something");

    let mut holder = place.hold(&scene, "web1", "sleep 600");
    let before = std::fs::read(scene.lock()).unwrap();
    let told = examined(
        place.verb(&scene, "doctor"),
        &[("record", "ok"), ("lock", "ok")],
    );
    assert!(of(&told, "lock").1.contains("web1"), "{told:#}");
    assert_eq!(left_behind(&scene), ["singleton.lock"]);
    assert_eq!(std::fs::read(scene.lock()).unwrap(), before);
    holder.assert_running();
    let text: Finished = place.verb(&scene, "doctor").finish();
    said(
        &text,
        0,
        &[
            "two of this process exclude",
            "two exclude each other",
            "on this machine only",
        ],
    );
}

#[test]
fn a_file_among_temporary_files_is_warned_of() {
    let scene = Scene::new();
    for (path, verdict) in [
        ("/var/tmp/doctor.lock", "warn"),
        ("/run/doctor.lock", "none"),
    ] {
        let run = Place::path(std::path::Path::new(path)).verb(&scene, "doctor");
        let told = json(&run.arg("--json").finish());
        assert_eq!(of(&told, "cleaners").0, verdict, "{told:#}");
    }
}

#[test]
fn files_that_do_not_do() {
    let scene = Scene::new();
    let place = Place::file(&scene);
    let open = [("open", "fail"), ("directory", "none"), ("guardian", "ok")];
    std::fs::write(scene.lock(), "Dear Sir or Madam,\n").unwrap();
    let told = examined(place.verb(&scene, "doctor"), &open);
    assert!(
        of(&told, "open").1.contains("not a lock record"),
        "{told:#}"
    );
    assert_eq!(
        std::fs::read(scene.lock()).unwrap(),
        b"Dear Sir or Madam,\n"
    );
    let nowhere = scene
        .verb("doctor")
        .arg("--file")
        .arg(scene.path("no/such"));
    examined(nowhere, &open);
    let directory = scene.verb("doctor").arg("--file").arg(scene.directory());
    examined(directory, &open);

    std::fs::write(scene.lock(), format!("{{\"token\":{:>20},\"hol", 17)).unwrap();
    let told = examined(
        place.verb(&scene, "doctor"),
        &[("open", "ok"), ("record", "warn")],
    );
    assert!(of(&told, "record").1.contains("17"), "{told:#}");
}

#[test]
fn a_directory_without_permission() {
    let scene = Scene::new();
    let directory = scene.path("theirs");
    std::fs::create_dir(&directory).unwrap();
    let lock = directory.join("lock");
    let doctor = || {
        scene
            .verb("doctor")
            .bound_by_permissions()
            .arg("--file")
            .arg(&lock)
    };
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&directory, 0o555);
    let told = examined(doctor(), &[("directory", "fail"), ("descriptors", "none")]);
    assert!(
        of(&told, "directory").1.contains("Permission denied"),
        "{told:#}"
    );
    // With a lock file, `run` needs no more.
    mode(&directory, 0o755);
    std::fs::write(&lock, "").unwrap();
    mode(&directory, 0o555);
    examined(
        doctor(),
        &[("open", "ok"), ("mount", "ok"), ("directory", "warn")],
    );
    mode(&lock, 0o444);
    let told = examined(doctor(), &[("open", "fail")]);
    assert!(of(&told, "open").1.contains("permission"), "{told:#}");
    mode(&directory, 0o755);
}

#[test]
fn the_connection_string_of_the_environment_is_the_one_that_is_used() {
    let scene = Scene::new();
    let run = scene.verb("doctor").args(["--blob", "doctor/one"]);
    let run = run.env(STRING, "AccountName=web;AccountKey=?");
    let told = examined(run, &[("credential", "fail")]);
    assert!(of(&told, "credential").1.contains("base64"), "{told:#}");
}
