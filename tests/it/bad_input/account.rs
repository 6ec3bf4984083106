//! Invalid names, connection strings and credentials.

use super::{SAS, STRING, WRONG_KEY, bad_usage_on_blob, left_behind, refused};
use crate::support::azurite::{KEY, connection_string};
use crate::support::scene::Scene;

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
            &["AccountName", "is missing"][..],
        ),
        (
            "AccountName=web;EndpointSuffix=core.windows.net".into(),
            &["AccountKey", "is missing"][..],
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
        // `--auth auto` would ask the machine for an identity.
        run()
            .args(["--auth", "key"])
            .env("AZURE_STORAGE_ACCOUNT", "web"),
        64,
        &["AZURE_STORAGE_KEY"],
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
