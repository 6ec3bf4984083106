//! What cannot work is refused: one line that names what, why and what to do, the right exit
//! status, nothing started, nothing left behind, no secret shown.

#[expect(dead_code, reason = "each test binary uses a part of the support")]
mod support;

use std::os::unix::fs::PermissionsExt;

use support::azurite::{ACCOUNT, KEY, azurite, connection_string, connection_string_with_key};
use support::blob::Blob;
use support::instance::{Ended, Run};
use support::proxy::{Mode, Proxy};
use support::scene::Scene;

/// A key that is a key, but nobody's.
const WRONG_KEY: &str =
    "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U=";
/// A SAS as it looks like, with a signature to look for.
const SAS: &str = "sv=2021-12-02&ss=b&srt=sco&sp=rwdlac&se=2199-01-01&sig=U2VjcmV0U2lnbmF0dXJl";
const STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";

/// Runs what must be refused with this status, in one line that has all these words in it.
fn refused(scene: &Scene, run: Run<'_>, status: i32, words: &[&str]) {
    let marker = scene.path("marker");
    let finished = run.command(["touch", marker.to_str().unwrap()]).finish();
    judge(scene, &finished.stderr, finished.ended, status, words);
}

fn judge(scene: &Scene, stderr: &str, ended: Ended, status: i32, words: &[&str]) {
    assert_eq!(ended, Ended::Code(status), "{stderr}");
    let errors: Vec<&str> = stderr
        .lines()
        .filter(|line| line.starts_with("trafficcop: error: "))
        .collect();
    let [line] = errors[..] else {
        panic!("not one line that says why:\n{stderr}");
    };
    assert_eq!(
        stderr.lines().last(),
        Some(line),
        "the reason is not the last word:\n{stderr}"
    );
    if status == 64 {
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    for word in words {
        assert!(line.contains(word), "{word:?} is not in: {line}");
    }
    for secret in [KEY, WRONG_KEY, "U2VjcmV0U2lnbmF0dXJl", "sig="] {
        assert!(!stderr.contains(secret), "a secret is shown: {stderr}");
    }
    assert!(!scene.path("marker").exists(), "the command was started");
    scene.await_nobody();
}

/// What is in the scene's directory but for the outputs that the harness keeps there.
fn left_behind(scene: &Scene) -> Vec<String> {
    std::fs::read_dir(scene.directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("stdout-") && !name.starts_with("stderr-"))
        .collect()
}

/// Arguments on a lock file that are bad usage: refused before the file is even created.
fn bad_usage(args: &[&str], words: &[&str]) {
    let scene = Scene::new();
    refused(&scene, scene.run_on_file().args(args), 64, words);
    assert_eq!(left_behind(&scene), [""; 0]);
}

/// The same on a blob, with a store that is there.
fn bad_usage_on_blob(args: &[&str], words: &[&str]) {
    let scene = Scene::new();
    let proxy = Proxy::before(azurite().port);
    let run = scene
        .run()
        .env(STRING, connection_string(proxy.port))
        .args(args);
    refused(&scene, run, 64, words);
    assert!(proxy.log().is_empty(), "the store was asked");
}

#[test]
fn no_command() {
    let scene = Scene::new();
    let finished = scene.run_on_file().finish();
    judge(
        &scene,
        &finished.stderr,
        finished.ended,
        64,
        &["no command", "--"],
    );
    let empty = scene.run_on_file().command([""]).finish();
    judge(&scene, &empty.stderr, empty.ended, 64, &["empty"]);
    assert_eq!(left_behind(&scene), [""; 0]);
}

#[test]
fn no_lock_or_two() {
    let scene = Scene::new();
    refused(&scene, scene.run(), 64, &["no lock", "--blob", "--file"]);
    bad_usage(
        &["--blob", "locks/one"],
        &["two locks", "locks/one", "exactly one"],
    );
}

#[test]
fn an_unknown_flag() {
    let scene = Scene::new();
    let run = scene
        .run_on_file()
        .args(["--leese", "30s"])
        .command(["true"]);
    let finished = run.finish();
    assert_eq!(finished.ended, Ended::Code(64));
    assert!(finished.stderr.contains("--leese"), "{}", finished.stderr);
    assert_eq!(left_behind(&scene), [""; 0]);
}

#[test]
fn a_lease_outside_what_a_blob_can_have() {
    for lease in ["14s", "61s", "infinite", "-1", "0", "15.5s", "500ms"] {
        let lease = format!("--lease={lease}");
        bad_usage_on_blob(&["--blob", "locks/one", &lease], &["--lease"]);
    }
    bad_usage_on_blob(
        &["--blob", "locks/one", "--lease", "14s"],
        &["14s", "15s to 60s"],
    );
    bad_usage_on_blob(
        &["--blob", "locks/one", "--lease", "61s"],
        &["61s", "15s to 60s"],
    );
}

#[test]
fn a_page_blob_of_half_a_page() {
    for size in ["1000", "0", "-512", "9999T", "big"] {
        let size = format!("--page-blob={size}");
        bad_usage_on_blob(&["--blob", "locks/one", &size], &["--page-blob"]);
    }
    bad_usage_on_blob(&["--blob", "locks/one", "--page-blob=1000"], &["512"]);
}

#[test]
fn a_grace_that_does_not_fit() {
    let blob = ["--blob", "locks/one", "--lease", "15s"];
    let row = |more: &[&str], words: &[&str]| bad_usage_on_blob(&[&blob, more].concat(), words);
    row(
        &["--grace-on-loss", "10s"],
        &["--grace-on-loss", "10", "raise --lease"],
    );
    row(&["--grace-on-loss", "1h"], &["--grace-on-loss"]);
    row(&["--margin", "0"], &["--margin"]);
}

#[test]
fn numbers_and_durations_that_are_none() {
    bad_usage(&["-E", "600"], &["600", "0 to 255"]);
    bad_usage(&["-E=-1"], &["-1", "0 to 255"]);
    bad_usage(&["-w", "soon"], &["--wait", "soon"]);
    bad_usage(&["--grace", "10 parsecs"], &["--grace"]);
    bad_usage(&["--poll", "1ms"], &["--poll"]);
    bad_usage(&["--stop-signal", "SIGNONSENSE"], &["--stop-signal"]);
    bad_usage(&["-n", "-w", "3s"], &["--no-wait", "--wait"]);
    bad_usage(&["--identity", ""], &["--identity"]);
}

#[test]
fn flags_that_belong_to_the_other_kind_of_lock() {
    bad_usage(&["--page-blob"], &["--page-blob"]);
    bad_usage(&["--emulator"], &["--emulator"]);
    bad_usage(&["--no-create"], &["--no-create"]);
    bad_usage_on_blob(
        &["--blob", "locks/one", "--heartbeat", "on"],
        &["--heartbeat"],
    );
    bad_usage_on_blob(
        &["--blob", "locks/one", "--no-create", "--page-blob"],
        &["--no-create"],
    );
}

#[test]
fn names_that_azure_does_not_know() {
    for (name, word) in [
        ("locks", "CONTAINER/NAME"),
        ("/one", "CONTAINER/NAME"),
        ("locks/", "CONTAINER/NAME"),
        ("Locks/one", "Locks"),
        ("lo/one", "3 to 63"),
        ("lock--s/one", "hyphen"),
        ("-locks/one", "hyphen"),
        ("lock_s/one", "lock_s"),
        ("locks/one.", "name"),
        ("locks/one/", "name"),
    ] {
        bad_usage_on_blob(&[&format!("--blob={name}")], &[word]);
    }
    let container = "c".repeat(64) + "/one";
    bad_usage_on_blob(&["--blob", &container], &["3 to 63"]);
    let name = "locks/".to_owned() + &"n".repeat(1025);
    bad_usage_on_blob(&["--blob", &name], &["name"]);
}

#[test]
fn connection_strings_with_a_part_missing_or_broken() {
    let scene = Scene::new();
    let key = format!("AccountKey={KEY}");
    for (string, words) in [
        (format!("AccountName=web;{key}x="), &["account key"][..]),
        (
            format!("{key};EndpointSuffix=core.windows.net"),
            &["the storage account is missing"][..],
        ),
        (
            "AccountName=web;EndpointSuffix=core.windows.net".into(),
            &["the credential is missing"][..],
        ),
        (
            "BlobEndpoint=https://web.blob.core.windows.net".into(),
            &["missing"][..],
        ),
        (
            format!("AccountName=web;{key};Nonsense"),
            &["part without"][..],
        ),
        (
            "UseDevelopmentStorage=maybe".into(),
            &["UseDevelopmentStorage"][..],
        ),
        (format!("AccountName=Web_1;{key}"), &["account name"][..]),
        ("AccountName=web;AccountKey=?;".into(), &["base64"][..]),
        (
            format!("BlobEndpoint=https://web.example/?{SAS}"),
            &["BlobEndpoint"][..],
        ),
    ] {
        let run = scene
            .run()
            .args(["--blob", "locks/one"])
            .env(STRING, &string);
        refused(&scene, run, 64, words);
    }
    assert_eq!(left_behind(&scene), [""; 0]);
}

#[test]
fn no_credential_or_half_of_one() {
    let scene = Scene::new();
    let run = || scene.run().args(["--blob", "locks/one"]);
    refused(
        &scene,
        run(),
        64,
        &["missing", "AZURE_STORAGE_CONNECTION_STRING"],
    );
    refused(
        &scene,
        run().env("AZURE_STORAGE_ACCOUNT", "web"),
        64,
        &["missing"],
    );
    refused(
        &scene,
        run().env("AZURE_STORAGE_KEY", KEY),
        64,
        &["AZURE_STORAGE_ACCOUNT"],
    );
    refused(
        &scene,
        run().env(STRING, "").env("AZURE_STORAGE_SAS_TOKEN", SAS),
        64,
        &["missing"],
    );
}

#[test]
fn credentials_that_contradict_each_other() {
    let scene = Scene::new();
    let run = || scene.run().args(["--blob", "locks/one"]);
    let string = connection_string(1);
    for (variables, words) in [
        (
            &[(STRING, &*string), ("AZURE_STORAGE_ACCOUNT", "other")][..],
            &["different accounts"],
        ),
        (
            &[(STRING, &*string), ("AZURE_STORAGE_KEY", WRONG_KEY)][..],
            &["different keys"],
        ),
        (
            &[(STRING, &*string), ("AZURE_STORAGE_SAS_TOKEN", SAS)][..],
            &["one credential"],
        ),
        (
            &[
                ("AZURE_STORAGE_ACCOUNT", "web"),
                ("AZURE_STORAGE_KEY", KEY),
                ("AZURE_STORAGE_SAS_TOKEN", SAS),
            ][..],
            &["one credential"],
        ),
    ] {
        let mut run = run();
        for (name, value) in variables {
            run = run.env(name, value);
        }
        refused(&scene, run, 64, &[words[0], "contradict"]);
    }
    let other = run()
        .arg("--emulator")
        .env("AZURE_STORAGE_ACCOUNT", "other");
    refused(&scene, other, 64, &["--emulator"]);
}

#[test]
fn plain_http_to_another_machine() {
    let scene = Scene::new();
    let string = format!("AccountName=web;AccountKey={KEY};BlobEndpoint=http://192.0.2.1/web");
    let run = scene
        .run()
        .args(["--blob", "locks/one"])
        .env(STRING, string);
    refused(&scene, run, 64, &["http", "192.0.2.1", "https"]);
    let protocol = format!("DefaultEndpointsProtocol=http;AccountName=web;AccountKey={KEY}");
    let run = scene
        .run()
        .args(["--blob", "locks/one"])
        .env(STRING, protocol);
    refused(&scene, run, 64, &["http", "https"]);
    let run = scene
        .run()
        .args(["--blob", "http://web.blob.core.windows.net/locks/one"])
        .env("AZURE_STORAGE_KEY", KEY);
    refused(&scene, run, 64, &["http", "https"]);
    let run = scene
        .run()
        .args(["--blob", "http://localhost.example/locks/one"]);
    refused(
        &scene,
        run.env("AZURE_STORAGE_SAS_TOKEN", SAS),
        64,
        &["http", "https"],
    );
}

#[test]
fn a_key_that_is_not_the_account_s() {
    let scene = Scene::new();
    let blob = Blob::named("wrong-key/one");
    blob.create(&[]);
    let string = connection_string_with_key(azurite().port, WRONG_KEY);
    let run = scene.run().args(["--blob", &blob.name]).env(STRING, string);
    refused(&scene, run, 77, &["403", "wrong-key/one", "credential"]);
    assert_eq!(blob.lease_state(), "available");
}

#[test]
fn a_sas_that_expired_long_ago() {
    let scene = Scene::new();
    let url = format!(
        "http://127.0.0.1:{}/{ACCOUNT}/wrong-sas/one",
        azurite().port
    );
    let run = scene
        .run()
        .args(["--blob", &url])
        .env("AZURE_STORAGE_SAS_TOKEN", SAS);
    refused(&scene, run, 77, &["403", "wrong-sas/one"]);
}

#[test]
fn a_host_that_does_not_exist() {
    let scene = Scene::new();
    let string = format!("AccountName=web;AccountKey={KEY};EndpointSuffix=storage.invalid");
    let run = scene
        .run()
        .args(["--blob", "locks/one", "--lease", "15s"])
        .env(STRING, string);
    refused(&scene, run, 69, &["web.blob.storage.invalid"]);
}

#[test]
fn a_port_where_nobody_listens() {
    let scene = Scene::new();
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let run = scene.run().args(["--blob", "locks/one", "--lease", "15s"]);
    refused(
        &scene,
        run.env(STRING, connection_string(port)),
        69,
        &["locks/one"],
    );
}

/// A server that is none of ours.
fn strange_server(mode: Mode, words: &[&str]) {
    let scene = Scene::new();
    let server = Proxy::alone(mode);
    let run = scene.run().args(["--blob", "locks/one", "--lease", "15s"]);
    refused(
        &scene,
        run.env(STRING, connection_string(server.port)),
        69,
        words,
    );
    assert!(!server.log().is_empty(), "it was never asked");
}

#[test]
fn a_server_that_answers_200_with_a_web_page() {
    let page = "<!DOCTYPE html><html><body>Please log in</body></html>";
    strange_server(
        Mode::Answer(200, "text/html; charset=utf-8", page),
        &["locks/one"],
    );
}

#[test]
fn a_server_that_answers_404_with_a_web_page() {
    strange_server(
        Mode::Answer(404, "text/html", "<html>nothing here</html>"),
        &["404"],
    );
}

#[test]
fn a_server_that_always_fails() {
    strange_server(Mode::Answer(500, "text/plain", "no"), &["500"]);
}

#[test]
fn a_server_that_never_answers() {
    strange_server(Mode::Freeze, &["locks/one"]);
}

/// The command's own failures to start: the lock is free again, and exists.
#[test]
fn commands_that_cannot_be_run() {
    let scene = Scene::new();
    let script = scene.path("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let plain = scene.path("plain");
    std::fs::write(&plain, "text\n").unwrap();
    for (command, status, word) in [
        ("no-such-command-anywhere", 127, "no-such-command-anywhere"),
        (script.to_str().unwrap(), 127, "No such file"),
        (plain.to_str().unwrap(), 126, "cannot run"),
        (scene.directory().to_str().unwrap(), 126, "cannot run"),
    ] {
        let finished = scene.run_on_file().command([command]).finish();
        judge(&scene, &finished.stderr, finished.ended, status, &[word]);
    }
    let after = scene.run_on_file().arg("-n").command(["true"]).finish();
    assert_eq!(
        after.ended,
        Ended::Code(0),
        "the lock was not given back: {}",
        after.stderr
    );
}

#[test]
fn lock_files_that_cannot_be() {
    let scene = Scene::new();
    let file = |path: &str| scene.run().arg("--file").arg(scene.path(path));
    refused(
        &scene,
        file("no/such/lock"),
        69,
        &["no/such/lock", "directory"],
    );
    std::fs::create_dir(scene.path("directory")).unwrap();
    refused(
        &scene,
        file("directory"),
        69,
        &["directory", "name a file in it"],
    );
    std::fs::write(scene.path("letter"), "Dear Sir or Madam,\n").unwrap();
    refused(&scene, file("letter"), 69, &["letter", "not a lock record"]);
    let kept = std::fs::read_to_string(scene.path("letter")).unwrap();
    assert_eq!(
        kept, "Dear Sir or Madam,\n",
        "other people's files are theirs"
    );
    refused(
        &scene,
        scene.run().args(["--file", "/dev/null"]),
        69,
        &["regular file"],
    );
    refused(&scene, scene.run().args(["--file", ""]), 64, &["--file"]);
}

#[test]
fn a_lock_file_without_permission() {
    let scene = Scene::new();
    let lock = scene.lock();
    std::fs::write(&lock, "").unwrap();
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o444)).unwrap();
    let run = scene.run_on_file().bound_by_permissions();
    refused(&scene, run, 77, &["singleton.lock", "permission"]);
}

#[test]
fn a_lock_file_on_a_read_only_file_system() {
    let scene = Scene::new();
    let mount = scene.path("mount");
    std::fs::create_dir(&mount).unwrap();
    let run = scene
        .run()
        .with_tmpfs(&mount, 0)
        .arg("--file")
        .arg(mount.join("lock"));
    refused(&scene, run, 69, &["mount/lock", "read-only"]);
}

#[test]
fn a_lock_file_on_a_full_file_system() {
    let scene = Scene::new();
    let mount = scene.path("mount");
    std::fs::create_dir(&mount).unwrap();
    // Of one page; the shell takes it, then becomes what we test.
    let lock = mount.join("lock");
    let run = scene
        .run()
        .with_tmpfs(&mount, 1)
        .with_full(&mount)
        .arg("--file")
        .arg(&lock);
    refused(&scene, run, 69, &["mount/lock", "room"]);
}

#[test]
fn a_status_file_that_is_the_lock() {
    let scene = Scene::new();
    let status = scene.lock();
    bad_usage(&["--status-file", "/"], &["--status-file"]);
    refused(
        &scene,
        scene.run_on_file().arg("--status-file").arg(&status),
        64,
        &["--status-file", "lock"],
    );
    assert!(!status.exists());
}
