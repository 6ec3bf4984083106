//! Results of `--once` in `status` and `list`, and `reset`, which removes them: under the lock, and
//! only what it has shown.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Place, STRING, connection_string, refused, said};
use crate::support::azurite::azurite;
use crate::support::blob::Blob;
use crate::support::instance::{Ended, Instance};
use crate::support::programs::trafficcop;
use crate::support::proxy::{Call, Proxy};
use crate::support::scene::Scene;

const DONE: Ended = Ended::Code(0);

/// Runs a task as `by`, unless it was done already; returns whether its command ran.
fn runs(scene: &Scene, place: &Place, key: &str, by: &str) -> bool {
    let run = place.verb(scene, "run").args(["--once-key", key]);
    let run = run.args(["--identity", by]).shell("echo it-ran").finish();
    assert_eq!(run.ended, DONE, "{run:?}");
    run.stdout.contains("it-ran")
}

fn fails(scene: &Scene, place: &Place, key: &str) {
    let run = place.verb(scene, "run").args(["--once-key", key]);
    let run = run.args(["--once-attempts", "1"]).shell("exit 3").finish();
    assert_eq!(run.ended, Ended::Code(3), "{run:?}");
}

fn places(scene: &Scene, blob: &str) -> [Place; 2] {
    [Place::file(scene), Place::blob(blob)]
}

fn keys(scene: &Scene, place: &Place) -> Vec<String> {
    let told = place.status(scene);
    let once = told["once"].as_array().expect("an array");
    let key = |task: &Value| task["key"].as_str().expect("a key").to_owned();
    once.iter().map(key).collect()
}

#[test]
fn status_and_list_tell_what_is_done_and_what_failed() {
    let scene = Scene::new();
    Blob::named("reset-told/neighbour").create(&[]);
    for place in places(&scene, "reset-told/one") {
        assert_eq!(place.status(&scene)["once"], json!([]));
        assert!(runs(&scene, &place, "v7", "web1"));
        fails(&scene, &place, "v8");
        let hourly = place.verb(&scene, "run").args(["--once-per", "24h"]);
        let hourly = hourly.args(["--identity", "web2"]).shell("true").finish();
        assert_eq!(hourly.ended, DONE, "{hourly:?}");
        let told = place.status(&scene);
        let of = |key: &str| {
            let mut all = told["once"].as_array().unwrap().iter();
            all.find(|task| task["key"] == key).unwrap().clone()
        };
        let fields: Vec<String> = of("v7").as_object().unwrap().keys().cloned().collect();
        assert_eq!(
            fields,
            ["at", "by", "exit", "failed", "key", "period", "token"]
        );
        let v7 = of("v7");
        assert_eq!((&v7["exit"], &v7["by"]), (&json!(0), &json!("web1")));
        assert_eq!((&v7["token"], &v7["period"]), (&json!(1), &Value::Null));
        assert!(v7["at"].as_str().unwrap().ends_with('Z'), "{v7}");
        assert_eq!(of("v8")["exit"], 3);
        let slot = of("once")["period"].as_str().unwrap().to_owned();
        assert!(slot.ends_with("T00:00:00Z"), "{slot}");
        let text = place.verb(&scene, "status").finish();
        let words = [
            "v7: done by web1 at ",
            "v8: failed for good with exit status 3",
            "once (period ",
        ];
        said(&text, 1, &words);
        let list = place.verb(&scene, "list").finish();
        if place.string.is_none() {
            said(&list, 0, &["ONCE", "done:2,failed:1"]);
        }
    }
    let list = Place::blob("reset-told").verb(&scene, "list");
    said(&list.finish(), 0, &["ONCE", "done:2,failed:1"]);
}

#[test]
fn reset_task_runs_again_and_all_else_stays() {
    let scene = Scene::new();
    for place in places(&scene, "reset-one/one") {
        for key in ["v7", "v8"] {
            assert!(runs(&scene, &place, key, "web1"));
            assert!(!runs(&scene, &place, key, "web2"));
        }
        let before = place.status(&scene);
        let reset = place.verb(&scene, "reset").args(["--once-key", "v7", "-y"]);
        let words = [
            "v7: done by web1",
            "the task v7 is forgotten",
            "forgotten\n",
        ];
        said(&reset.finish(), 0, &words);
        let mut after = place.status(&scene);
        assert_eq!(keys(&scene, &place), ["v8"]);
        after["once"] = before["once"].clone();
        assert_eq!(after, before, "the rest of the record");
        assert!(!runs(&scene, &place, "v8", "web2"));
        assert!(runs(&scene, &place, "v7", "web2"));
        let token = place.status(&scene)["token"].as_u64();
        assert!(token > before["token"].as_u64(), "it went on from there");

        let unnamed = place.verb(&scene, "reset").arg("--yes").finish();
        refused(&unnamed, 64, &["2 tasks", "--once-key", "v7, v8", "--all"]);
        let all = place
            .verb(&scene, "reset")
            .args(["--yes", "--all"])
            .finish();
        said(&all, 0, &["ALL tasks", "forgotten\n"]);
        assert_eq!(place.status(&scene)["once"], json!([]));
        let none = place
            .verb(&scene, "reset")
            .args(["--yes", "--all"])
            .finish();
        said(&none, 1, &["there is no result", "nothing was forgotten"]);
        assert!(runs(&scene, &place, "v8", "web3"));
        // The only one needs no name.
        said(&place.verb(&scene, "reset").arg("-y").finish(), 0, &["v8"]);
        assert!(runs(&scene, &place, "v8", "web4"));
    }
}

#[test]
fn other_people_s_metadata_stays_and_unreadable_results_go_with_all() {
    let scene = Scene::new();
    let blob = Blob::named("reset-others/one");
    blob.create(&[
        ("Owner", "somebody"),
        ("trafficcop_token", "41"),
        ("trafficcop_once", "[{torn"),
    ]);
    let place = Place::blob(&blob.name);
    let problem = place.status(&scene)["problem"].to_string();
    assert!(problem.contains("reset --all"), "{problem}");
    refused(
        &place.verb(&scene, "reset").arg("-y").finish(),
        64,
        &["cannot be read", "--all"],
    );
    let all = place.verb(&scene, "reset").args(["-y", "--all"]).finish();
    said(&all, 0, &["forgotten\n"]);
    assert_eq!(blob.metadata("owner").as_deref(), Some("somebody"));
    assert_eq!(blob.metadata("trafficcop_token").as_deref(), Some("41"));
    assert_eq!(blob.metadata("trafficcop_once"), None);
    assert_eq!(blob.lease_state(), "available");
    assert!(runs(&scene, &place, "v7", "web1"));
}

fn busy(scene: &Scene, place: &Place, key: &str, identity: &str, script: &str) -> Instance {
    let run = place.verb(scene, "run").args(["--once-key", key]);
    let run = run.args(["--lease", "15s", "--poll", "500ms"]);
    let run = run.args(["--identity", identity]).shell(script).start();
    run.await_log("in control");
    run
}

#[test]
fn reset_is_refused_while_the_lock_is_held() {
    let scene = Scene::new();
    for place in places(&scene, "reset-held/one") {
        assert!(runs(&scene, &place, "v7", "web1"));
        let mut holder = busy(&scene, &place, "v8", "web2", "sleep 600");
        let reset = place.verb(&scene, "reset").args(["-y", "--once-key", "v7"]);
        let words = [
            "web2",
            "the lock is held",
            "--force",
            "nothing was forgotten",
        ];
        said(&reset.finish(), 1, &words);
        assert_eq!(keys(&scene, &place), ["v7"]);
        holder.assert_running();
        holder.signal(Signal::SIGTERM);
        holder.wait();
    }
}

#[test]
fn forced_reset_of_a_file_keeps_the_holders_own_result() {
    let scene = Scene::new();
    let place = Place::file(&scene);
    assert!(runs(&scene, &place, "v7", "web1"));
    let end = scene.path("end");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done", end.display());
    let mut holder = busy(&scene, &place, "v8", "web2", &script);
    let reset = place.verb(&scene, "reset");
    let reset = reset.args(["-y", "--force", "--once-key", "v7"]).finish();
    said(&reset, 0, &["its holder continues", "forgotten\n"]);
    assert_eq!(keys(&scene, &place), Vec::<String>::new());
    holder.assert_running();
    File::create(end).unwrap();
    assert_eq!(holder.wait(), DONE, "{}", holder.stderr());
    assert_eq!(keys(&scene, &place), ["v8"], "and v7 did not come back");
    assert!(runs(&scene, &place, "v7", "web3"));
}

#[test]
fn forced_reset_of_a_blob_stops_its_holder_first() {
    let scene = Scene::new();
    let place = Place::blob("reset-forced/one");
    assert!(runs(&scene, &place, "v7", "web1"));
    let run = place.verb(&scene, "run").args(["--once-key", "v8"]);
    let run = run.args(["--lease", "15s", "--if-lost", "exit"]);
    let mut holder = run.journalist("web2", &[]).start();
    holder.await_log("in control");
    let reset = place.verb(&scene, "reset");
    let reset = reset.args(["-y", "--force", "--once-key", "v7"]).finish();
    said(&reset, 0, &["BROKEN", "forgotten\n"]);
    // It was the holder's lease until then.
    scene.assert_no_tree();
    assert_eq!(holder.wait(), Ended::Code(70), "{}", holder.stderr());
    assert_eq!(keys(&scene, &place), Vec::<String>::new());
    assert!(runs(&scene, &place, "v7", "web3"));
    assert!(runs(&scene, &place, "v8", "web3"), "it was never recorded");
}

#[test]
fn without_a_yes_nothing_is_asked_of_the_store_but_a_look() {
    let scene = Scene::new();
    let blob = Blob::named("reset-unasked/one");
    assert!(runs(&scene, &Place::blob(&blob.name), "v7", "web1"));
    let proxy = Proxy::before(azurite().port);
    let place = Place::blob_at(&blob.name, proxy.port);
    let finished = place.verb(&scene, "reset").finish();
    refused(&finished, 64, &["--yes", "nothing was forgotten"]);
    assert!(finished.stdout.contains("v7"), "{finished:?}");
    let other = place.verb(&scene, "reset").args(["-y", "--once-key", "v9"]);
    said(&other.finish(), 1, &["no result of --once-key v9"]);
    let log = proxy.log();
    assert!(log.iter().all(|seen| seen.call == Call::Look), "{log:?}");
    for (args, words) in [
        (&["--all", "--once-key", "v7"][..], &["leave one out"][..]),
        (&["--once-key", ""], &["--once-key is empty"]),
    ] {
        refused(&place.verb(&scene, "reset").args(args).finish(), 64, words);
    }
    Blob::named("reset-nowhere/neighbour").create(&[]);
    for missing in places(&scene, "reset-nowhere/none") {
        let none = missing.verb(&scene, "reset").arg("-y").finish();
        said(&none, 1, &["there is no result"]);
    }
    assert!(!scene.lock().exists(), "reset made the file");
    assert_eq!(Blob::named("reset-nowhere/none").look(), None);
}

/// Waits for the question of a `reset` at a terminal.
fn asked(place: &Place) -> (Child, File) {
    let pty = crate::support::pty::open(None);
    let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
    let mut command = Command::new(trafficcop());
    command.env_clear().arg("reset").args(&place.args);
    if place.string.is_some() {
        command.env(STRING, connection_string(azurite().port));
    }
    let child = command
        .stdin(end())
        .stderr(end())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(pty.slave);
    let mut terminal = File::from(pty.master);
    let mut shown = Vec::new();
    while !shown.ends_with(b"[y/N] ") {
        let mut byte = [0];
        terminal.read_exact(&mut byte).expect("a question");
        shown.push(byte[0]);
    }
    (child, terminal)
}

fn answers((child, mut terminal): (Child, File), text: &str) -> (Option<i32>, String) {
    terminal.write_all(text.as_bytes()).expect("typed");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), said)
}

#[test]
fn reset_keeps_results_that_changed_before_the_answer() {
    let scene = Scene::new();
    for place in places(&scene, "reset-changed/one") {
        fails(&scene, &place, "v7");
        let (status, said) = answers(asked(&place), "n\n");
        assert_eq!(status, Some(1), "{said}");
        assert_eq!(keys(&scene, &place), ["v7"]);
        // Another removes it, and it is done again.
        let thinking = asked(&place);
        let other = place.verb(&scene, "reset").arg("-y").finish();
        assert_eq!(other.ended, DONE, "{other:?}");
        assert!(runs(&scene, &place, "v7", "web9"));
        let (status, said) = answers(thinking, "y\n");
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("changed meanwhile"), "{said}");
        assert!(!runs(&scene, &place, "v7", "web8"));
        // Another instance gets the lock, for another task.
        let thinking = asked(&place);
        let mut holder = busy(&scene, &place, "v8", "web2", "sleep 600");
        let (status, said) = answers(thinking, "y\n");
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("has got the lock meanwhile"), "{said}");
        holder.signal(Signal::SIGTERM);
        holder.wait();
        let (status, said) = answers(asked(&place), "y\n");
        assert_eq!(status, Some(0), "{said}");
        assert_eq!(keys(&scene, &place), Vec::<String>::new());
    }
}

#[test]
fn reset_writes_under_its_own_lease() {
    let scene = Scene::new();
    let blob = Blob::named("reset-race/one");
    assert!(runs(&scene, &Place::blob(&blob.name), "v7", "web1"));
    let proxy = Proxy::before(azurite().port);
    let place = Place::blob_at(&blob.name, proxy.port);
    let reset = place.verb(&scene, "reset").arg("-y").finish();
    said(&reset, 0, &["forgotten\n"]);
    let log = proxy.log();
    let calls: Vec<Call> = log.iter().map(|seen| seen.call).collect();
    use Call::{Acquire, Look, Release, SetMetadata};
    // Shown; then, under the lease, read again, written, released.
    assert_eq!(calls, [Look, Acquire, Look, SetMetadata, Release]);
    let ids: Vec<_> = log[1..].iter().map(|seen| seen.lease_id.as_ref()).collect();
    assert!(
        ids[0].is_some() && ids.iter().all(|id| *id == ids[0]),
        "{ids:?}"
    );
    assert_eq!(blob.lease_state(), "available");
    // After a refusal in the middle it releases the lease, too.
    assert!(runs(&scene, &place, "v7", "web1"));
    let refusal = crate::support::proxy::Fate::Refuse(403, "AuthorizationPermissionMismatch");
    proxy.next(SetMetadata, refusal);
    let reset = place.verb(&scene, "reset").arg("-y").finish();
    assert_eq!(reset.ended, Ended::Code(77), "{reset:?}");
    assert_eq!(blob.lease_state(), "available");
    assert_eq!(keys(&scene, &place), ["v7"]);
}
