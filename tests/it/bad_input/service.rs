//! Stores that are away, deny access, or are no stores.

use super::{SAS, STRING, WRONG_KEY, refused};
use crate::authority::authority;
use crate::support::azurite::{
    ACCOUNT, KEY, azurite, connection_string, connection_string_with_key,
};
use crate::support::blob::Blob;
use crate::support::closed_port::ClosedPort;
use crate::support::proxy::{Mode, Proxy};
use crate::support::scene::Scene;

#[test]
fn a_key_that_is_not_the_account_s() {
    let scene = Scene::new();
    let blob = Blob::named("wrong-key/one");
    blob.create(&[]);
    let string = connection_string_with_key(azurite().port, WRONG_KEY);
    let run = scene.run().args(["--blob", &blob.name]).env(STRING, string);
    refused(
        &scene,
        run,
        77,
        &[
            "403",
            "wrong-key/one",
            "(used: the account key from AZURE_STORAGE_CONNECTION_STRING)",
        ],
    );
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
    let words = ["cannot look up the name web.blob.storage.invalid: "];
    refused(&scene, run, 69, &words);
}

#[test]
fn closed_port_is_reported() {
    let scene = Scene::new();
    let closed = ClosedPort::new();
    let run = scene.run().args(["--blob", "locks/one", "--lease", "15s"]);
    refused(
        &scene,
        run.env(STRING, connection_string(closed.port)),
        69,
        &["locks/one", "nothing listens at 127.0.0.1:"],
    );
}

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

/// Starts a TLS server with the certificate of the tests' authority, which answers nothing.
fn tls_server() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = std::sync::Arc::clone(&authority().server);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let session = rustls::ServerConnection::new(std::sync::Arc::clone(&config));
            // The client refuses the certificate.
            let _ = session.unwrap().complete_io(&mut stream);
        }
    });
    port
}

/// The message names the server and what to do, in plain words.
#[test]
fn why_there_is_no_tls() {
    let scene = Scene::new();
    let speaks = tls_server();
    let file = authority().file.to_str().unwrap();
    for (host, port, more, words) in [
        (
            "localhost",
            speaks,
            &[][..],
            ["the issuer of localhost:", "--ca-file"],
        ),
        (
            "[::ffff:127.0.0.1]",
            speaks,
            &["--ca-file", file],
            ["is for another name", "use that name"],
        ),
        (
            "127.0.0.1",
            azurite().port,
            &[],
            ["does not speak TLS", "http://"],
        ),
    ] {
        let string = format!(
            "AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint=https://{host}:{port}/{ACCOUNT}"
        );
        let run = scene.run().args(["--blob", "locks/one", "--lease", "15s"]);
        let run = run.args(["--connect-timeout", "1s"]).args(more);
        refused(&scene, run.env(STRING, string), 69, &words);
    }
}
