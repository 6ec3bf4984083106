//! Stores that are away, let nobody in, or are none.

use super::{SAS, STRING, WRONG_KEY, refused};
use crate::support::azurite::{
    ACCOUNT, KEY, azurite, connection_string, connection_string_with_key,
};
use crate::support::blob::Blob;
use crate::support::proxy::{Mode, Proxy};
use crate::support::scene::Scene;

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
