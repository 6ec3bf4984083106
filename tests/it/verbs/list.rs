//! `list`: the locks of a container or a directory.

use serde_json::{Value, json};

use super::{Place, assert_whole, json as parse, said};
use crate::support::azurite::azurite;
use crate::support::blob::Blob;
use crate::support::proxy::Proxy;
use crate::support::scene::Scene;

#[test]
fn the_locks_of_a_container_by_prefix_and_nothing_else() {
    let scene = Scene::new();
    let holder = Place::blob("listing/jobs/b").hold(&scene, "web7", "sleep 600");
    Blob::named("listing/jobs/a")
        .create(&[("trafficcop_token", "41"), ("trafficcop_holder", "web3")]);
    Blob::named("listing/jobs/letter").create(&[("owner", "somebody")]);
    Blob::named("listing/lock.standby").create(&[("trafficcop_token", "1")]);
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
            "listing/lock.standby",
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
    assert_whole(&some[0]);
    let broken = parse(&list("listing/other").arg("--json").finish());
    assert!(
        broken[0]["problem"].as_str().unwrap().contains("seven"),
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
    let settings = directory.join("settings");
    std::fs::write(&settings, r#"{"token": 7, "name": "app"}"#).unwrap();
    let used = scene
        .run()
        .arg("--file")
        .arg(&settings)
        .args(["true"])
        .finish();
    said(&used, 69, &[]);
    let list = |path| {
        let list = scene.verb("list").arg("--json").arg("--file").arg(path);
        let mut all = parse(&list.finish());
        for lock in all.as_array_mut().unwrap() {
            // Different from look to look.
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
    // A mistyped path is not a directory without locks.
    for path in [scene.path("lokcs"), directory.join("jbo")] {
        let listed = scene.verb("list").arg("--file").arg(&path).finish();
        said(&listed, 69, &[]);
        let name = path.display().to_string();
        let words = "there is no such directory";
        let line = &listed.stderr;
        assert!(line.contains(&name) && line.contains(words), "{line}");
    }
    let empty = scene.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let listed = scene.verb("list").arg("--file").arg(&empty).finish();
    said(&listed, 0, &["LOCK"]);
    let table = scene.verb("list").arg("--file").arg(&directory).finish();
    said(&table, 0, &["web9", "sleep 600"]);
    assert!(!table.stdout.contains("letter"));
}
