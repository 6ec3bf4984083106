//! JSON, the event log, and refusals.

use std::path::PathBuf;
use std::process::Command;

use super::*;
use crate::support::azurite::azurite;
use crate::support::programs::trafficcop;

fn check(control: &PathBuf) -> Option<i32> {
    let mut command = Command::new(trafficcop());
    command.arg("check").env("TRAFFICCOP_CONTROL", control);
    command.status().expect("it can be run").code()
}

#[test]
fn json_has_the_documented_fields_and_the_control_file_tells_the_same() {
    let scene = Scene::new();
    let link = scene.path("control");
    let run = on_file(&scene).args(["--json", "--grace", "1h", "--control-file"]);
    let (mut first, mut reader) = unread(run.arg(&link).args(["--identity", "one"]));
    let holder: serde_json::Value = serde_json::from_str(&first_line(&mut reader)).unwrap();
    let lock = scene.lock().to_string_lossy().into_owned();
    let fields: Vec<&String> = holder.as_object().unwrap().keys().collect();
    let mut wanted: Vec<&str> = trafficcop::internals::args::FIELDS
        .iter()
        .map(|f| f.0)
        .collect();
    wanted.sort_unstable();
    assert_eq!(fields, wanted);
    assert_eq!(holder["role"], "holder");
    assert_eq!(holder["token"], 1);
    assert_eq!(holder["holder"], "one");
    assert_eq!(holder["identity"], "one");
    assert!(holder["lock"].as_str().unwrap().contains(&lock), "{holder}");
    assert_eq!(holder["slot"], 0);
    let control = PathBuf::from(holder["control"].as_str().unwrap());
    assert_eq!(std::fs::read_link(&link).unwrap(), control);
    assert_eq!(check(&link), Some(0));

    let (_second, mut other) = unread(on_file(&scene).arg("--json"));
    let standby: serde_json::Value = serde_json::from_str(&first_line(&mut other)).unwrap();
    assert_eq!(standby["role"], "standby");
    assert_eq!(standby["holder"], "one");
    assert_eq!(standby["token"], 1);

    // From this line on the reader has no control.
    first.signal(Signal::SIGTERM);
    let leaving: serde_json::Value = serde_json::from_str(&first_line(&mut reader)).unwrap();
    assert_eq!(leaving["role"], "standby");
    assert_eq!(leaving["holder"], serde_json::Value::Null);
    assert_eq!(check(&link), Some(1));
    drop(reader);
    assert_eq!(first.wait(), TERM);
    assert!(link.symlink_metadata().is_err(), "the link is left");
}

#[test]
fn no_wait_names_the_holder_and_exits_75() {
    let scene = Scene::new();
    let first = Pair::start("first", on_file(&scene));
    first.heard.await_line("holder 1");
    let finished = on_file(&scene).arg("-n").finish();
    assert_eq!(finished.ended, Ended::Code(75), "{}", finished.stderr);
    assert_eq!(finished.stdout, "standby first\n");
}

#[test]
fn invalid_options_are_refused_in_one_line() {
    let refused = |more: &[&str], words: &[&str]| {
        let scene = Scene::new();
        let finished = on_file(&scene).args(more).finish();
        assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
        for word in words {
            assert!(finished.stderr.contains(word), "{}", finished.stderr);
        }
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
        assert!(!scene.lock().exists(), "the lock's file was made");
    };
    refused(
        &["--", "job", "-x"],
        &["no command", "trafficcop run", "job -x"],
    );
    refused(&["job"], &["no command"]);
    refused(
        &["--control-file", "/etc"],
        &["--control-file", "symbolic link"],
    );
    refused(&["--control-file", ""], &["--control-file"]);
    refused(&["--grace", "soon"], &["--grace"]);
    refused(&["--max-hold", "1ms"], &["--max-hold"]);
    refused(&["--cooldown", "9s"], &["--cooldown"]);
}

#[test]
fn the_control_file_s_link_of_a_living_instance_is_its_own() {
    let scene = Scene::new();
    let link = scene.path("control");
    let with_link = || on_file(&scene).arg("--control-file").arg(&link);
    // A killed instance's leftover has no owner.
    std::os::unix::fs::symlink(scene.path("trafficcop-control.1.dead"), &link).unwrap();
    let (mut first, mut reader) = unread(with_link().args(["--grace", "1h"]));
    assert_eq!(first_line(&mut reader), "holder 1");
    let control = std::fs::read_link(&link).unwrap();
    assert_eq!(check(&link), Some(0));
    let finished = with_link().arg("-n").finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    let words = "another instance keeps its link there: name another one";
    assert!(finished.stderr.contains(words), "{}", finished.stderr);
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    assert_eq!(std::fs::read_link(&link).unwrap(), control);
    assert_eq!(check(&link), Some(0));

    // Another's link, which this instance must not remove.
    std::fs::remove_file(&link).unwrap();
    let other = scene.path("trafficcop-control.1.other");
    std::os::unix::fs::symlink(&other, &link).unwrap();
    drop(reader);
    assert_eq!(first.wait(), PIPE);
    assert_eq!(std::fs::read_link(&link).unwrap(), other);
}

#[test]
fn the_event_log_is_written_to_no_other_output() {
    let scene = Scene::new();
    let link = scene.path("control");
    let with_link = |path| on_file(&scene).arg("--control-file").arg(path);
    let (_first, mut reader) = unread(with_link(&link));
    assert_eq!(first_line(&mut reader), "holder 1");
    let control = std::fs::read_link(&link).unwrap();
    let new = scene.path("new");
    let listen = format!("--listen=unix:{}", new.display());
    let run = |verb: &str| scene.verb(verb).arg("--file").arg(scene.lock());
    for (run, log, words) in [
        (with_link(&link), &link, "--control-file"),
        (with_link(&link), &control, "--control-file"),
        (with_link(&new), &new, "--control-file"),
        (run("run").arg(&listen).command(["true"]), &new, "--listen"),
    ] {
        let finished = run.args(["-n", "--event-log"]).arg(log).finish();
        assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
        let is_said = |word| finished.stderr.contains(word);
        assert!(
            is_said(words) && is_said("event log"),
            "{}",
            finished.stderr
        );
    }
    let queue = scene.verb("work").args(["--queue", "qqq", &listen]);
    let finished = queue
        .arg("--event-log")
        .arg(&new)
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(64), "{}", finished.stderr);
    assert!(finished.stderr.contains("event log"), "{}", finished.stderr);
    assert_eq!(std::fs::metadata(&control).unwrap().len(), 16);
    assert_eq!(check(&link), Some(0));
}

#[test]
fn the_event_log_of_two_on_a_blob_is_a_timeline_without_an_overlap() {
    let scene = Scene::new();
    let logs = ["one", "two"].map(|name| scene.path(&format!("{name}.events")));
    let start = |name: &str, log: &PathBuf| {
        let elect = scene.elect().args(["--blob", "elect-events/one"]);
        elect
            .env(
                "AZURE_STORAGE_CONNECTION_STRING",
                connection_string(azurite().port),
            )
            .args(["--lease", "15s", "--poll", "500ms", "--identity", name])
            .arg("--event-log")
            .arg(log)
            .start()
    };
    let says = |instance: &Instance, words: &str| {
        await_for(
            &format!("{words:?} on stdout"),
            || instance.stdout().contains(words).then_some(()),
            || instance.stderr(),
        );
    };
    let mut one = start("one", &logs[0]);
    says(&one, "holder 1\n");
    let mut two = start("two", &logs[1]);
    says(&two, "standby one\n");
    one.signal(Signal::SIGTERM);
    assert_eq!(one.wait(), TERM);
    says(&two, "holder 2\n");
    two.signal(Signal::SIGTERM);
    assert_eq!(two.wait(), TERM);
    let told = Command::new(trafficcop())
        .args(["timeline", "--json"])
        .args(&logs)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&told.stdout);
    assert_eq!(told.status.code(), Some(0), "{told:?}");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let locks = json["locks"].as_array().expect("locks");
    assert_eq!(locks.len(), 1, "{json:#}");
    let lock = locks[0]["lock"].as_str().expect("its address");
    assert!(lock.ends_with("/elect-events/one"), "{lock}");
    let tenures = locks[0]["tenures"].as_array().expect("tenures");
    let told: Vec<_> = tenures
        .iter()
        .map(|tenure| {
            let text = |field: &str| tenure[field].as_str().expect(field).to_owned();
            (text("identity"), tenure["token"].as_u64(), text("end"))
        })
        .collect();
    let released = "released".to_owned();
    assert_eq!(
        told,
        [
            ("one".to_owned(), Some(1), released.clone()),
            ("two".to_owned(), Some(2), released)
        ],
        "{json:#}"
    );
    assert_eq!(json["overlap"], false);
}
