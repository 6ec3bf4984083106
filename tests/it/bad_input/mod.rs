//! Input that cannot work is refused: in one line that names what, why and what to do, with the
//! right exit status, nothing started or left behind, no secret shown.

mod account;
mod environment;
mod local;
mod service;
mod usage;

use crate::support::azurite::{KEY, azurite, connection_string};
use crate::support::instance::{Ended, Run};
use crate::support::proxy::Proxy;
use crate::support::scene::Scene;

/// Valid, but of no account.
const WRONG_KEY: &str =
    "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U=";
/// SAS with a signature that can be searched for.
const SAS: &str = "sv=2021-12-02&ss=b&srt=sco&sp=rwdlac&se=2199-01-01&sig=U2VjcmV0U2lnbmF0dXJl";
const STRING: &str = "AZURE_STORAGE_CONNECTION_STRING";

/// Runs a command line that must be refused with this status, in one line with all these words.
fn refused(scene: &Scene, run: Run<'_>, status: i32, words: &[&str]) {
    let marker = scene.path("marker");
    let finished = run.command(["touch", marker.to_str().unwrap()]).finish();
    judge(scene, &finished.stderr, finished.ended, status, words);
}

fn judge(scene: &Scene, stderr: &str, ended: Ended, status: i32, words: &[&str]) {
    assert_eq!(ended, Ended::Code(status), "{stderr}");
    let errors: Vec<&str> = stderr
        .lines()
        .filter(|line| line.contains(": error: "))
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

/// Lists the scene's directory without the harness's own outputs.
fn left_behind(scene: &Scene) -> Vec<String> {
    std::fs::read_dir(scene.directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("stdout-") && !name.starts_with("stderr-"))
        .collect()
}

/// Checks arguments on a lock file that are refused before the file is created.
fn bad_usage(args: &[&str], words: &[&str]) {
    let scene = Scene::new();
    refused(&scene, scene.run_on_file().args(args), 64, words);
    assert_eq!(left_behind(&scene), [""; 0]);
}

/// Checks arguments on a blob of a reachable store.
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
