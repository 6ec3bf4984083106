//! The slots of `run --slots`, listed under their common name; and missing places, which are
//! errors.

use super::{Place, json, refused, said};
use crate::support::azurite::azurite;
use crate::support::blob::{Blob, sas_for, sas_of_one};
use crate::support::scene::Scene;

fn places(scene: &Scene) -> [(Place, &'static [&'static str]); 3] {
    [
        (Place::blob("slots-of-verbs/semaphore"), &[]),
        (Place::path(&scene.path("semaphore")), &[]),
        (Place::path(&scene.path("shared-semaphore")), &["--shared"]),
    ]
}

#[test]
fn slots_are_found_under_their_name() {
    let scene = Scene::new();
    for (place, options) in places(&scene) {
        let hold = |identity: &str| {
            let run = place.verb(&scene, "run").args(["--slots", "2"]);
            let run = run.args(["--identity", identity]).args(options);
            let instance = run.shell("exec sleep 600").start();
            instance.await_log("in control");
            instance
        };
        let (_one, two) = (hold("web1"), hold("web2"));
        let status = place.verb(&scene, "status").finish();
        said(&status, 0, &["semaphore.0", "semaphore.1", "web1", "web2"]);
        let told = json(&place.verb(&scene, "status").arg("--json").finish());
        let told = told.as_array().expect("one for each slot");
        assert_eq!(told.len(), 2);
        assert!(told.iter().all(|slot| slot["held"] == true), "{told:?}");
        for verb in ["break", "reset"] {
            let run = place.verb(&scene, verb).arg("--yes");
            let names = ["name one of them", "semaphore.0 (held)", "semaphore.1"];
            refused(&run.finish(), 64, &names);
        }
        let watch = place
            .verb(&scene, "watch")
            .args(["--poll", "100ms"])
            .start();
        let sees = |words: &[&str]| {
            crate::support::await_for(
                "the slots in what watch says",
                || {
                    let said = watch.stdout();
                    let is_there = |word: &&str| said.contains(*word);
                    words.iter().all(is_there).then_some(())
                },
                || watch.stdout(),
            );
        };
        sees(&["semaphore.0: held", "semaphore.1: held"]);
        two.signal(nix::sys::signal::Signal::SIGTERM);
        sees(&[": free"]);
    }
}

#[test]
fn sas_without_list_shows_the_lock_and_warns_about_slots() {
    let scene = Scene::new();
    // The container exists, but not the lock.
    Blob::named("slots-unlisted/another").create(&[]);
    let (one, other) = ("slots-unlisted/one", "slots-unlisted/other");
    let told = |text: &str| {
        text.matches("slots of this name cannot be looked for")
            .count()
    };
    for (name, sas) in [(one, sas_for("rcw")), (other, sas_of_one(other, "rcw"))] {
        let port = azurite().port;
        let url = format!("http://127.0.0.1:{port}/devstoreaccount1/{name}");
        let verb = |verb: &str| {
            let run = scene.verb(verb).args(["--blob", &url]);
            run.env("AZURE_STORAGE_SAS_TOKEN", &sas)
        };
        for (run, status, words) in [
            (verb("status"), 1, "free, and never held"),
            (verb("break").arg("--yes"), 1, "nothing to break"),
            (verb("reset").arg("--yes"), 1, "nothing was forgotten"),
        ] {
            let finished = run.finish();
            said(&finished, status, &[words]);
            assert_eq!(told(&finished.stderr), 1, "{finished:?}");
        }
        let watch = verb("watch").args(["--poll", "100ms"]).start();
        let sees = |word: &str| {
            crate::support::await_for(
                "the lock in what watch says",
                || watch.stdout().contains(word).then_some(()),
                || format!("{}{}", watch.stdout(), watch.stderr()),
            );
        };
        sees("free, no lock yet");
        let run = verb("run").shell("true").finish();
        said(&run, 0, &[]);
        // It has looked more than once by then.
        sees("token 1");
        assert_eq!(told(&watch.stderr()), 1, "{}", watch.stderr());
        refused(&verb("list").finish(), 77, &["cannot list"]);
    }
}

#[test]
fn a_place_that_is_not_there_is_an_error_for_every_verb() {
    let scene = Scene::new();
    let nowhere = scene.path("no/such/directory/");
    for (place, word) in [
        (Place::blob("no-such-container-at-all/lock"), "no container"),
        (Place::path(&nowhere), "does not exist"),
        (Place::path(&nowhere.join("lock")), "does not exist"),
    ] {
        for verb in ["status", "watch", "list", "break", "reset"] {
            let run = place.verb(&scene, verb);
            let finished = match verb {
                "break" | "reset" => run.arg("--yes").finish(),
                _ => run.finish(),
            };
            let word =
                if verb == "list" && word == "does not exist" && !finished.stderr.contains(word) {
                    "cannot list it"
                } else {
                    word
                };
            refused(&finished, 69, &[word]);
        }
    }
}
