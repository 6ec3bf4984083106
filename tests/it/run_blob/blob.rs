//! The blob itself: creation, content, credentials.

use super::{Stage, assert_no_secret};
use crate::support::azurite::{ACCOUNT, KEY, azurite, connection_string};
use crate::support::blob::sas;
use crate::support::instance::Ended;

#[test]
fn the_record_stands_on_the_blob_and_other_people_s_metadata_stays() {
    let stage = Stage::new("record");
    let theirs = [("colour", "red"), ("Owner", "ops")];
    stage
        .blob
        .create(&[theirs[0], theirs[1], ("trafficcop_token", "0")]);
    for token in ["1", "2"] {
        let one = stage.instance(azurite().port, "web1", &[], &[]);
        stage
            .scene
            .journal
            .await_line("it", |line| line.token.to_string() == token);
        assert_eq!(stage.blob.lease_state(), "leased");
        let metadata = |name: &str| stage.blob.metadata(name).unwrap_or_default();
        assert_eq!(metadata("trafficcop_token"), token);
        assert_eq!(metadata("trafficcop_holder"), "web1");
        assert_eq!(metadata("trafficcop_pid"), one.pid().to_string());
        assert!(metadata("trafficcop_command").contains("journalist"));
        assert!(metadata("trafficcop_since").ends_with('Z'));
        assert_eq!(
            (metadata("colour"), metadata("owner")),
            ("red".into(), "ops".into())
        );
        stage.let_end("web1");
        assert_eq!(one.finish().ended, Ended::Code(0));
        assert_eq!(stage.blob.lease_state(), "available");
        assert_eq!(stage.blob.metadata("colour").as_deref(), Some("red"));
        std::fs::remove_file(stage.scene.path("web1.done")).unwrap();
    }
}

#[test]
fn other_people_s_metadata_is_signed_in_the_order_the_store_sorts_it_in() {
    let stage = Stage::new("sorted");
    let theirs = [
        ("a1", "x"),
        ("a_b", "y"),
        ("ab", "z"),
        ("trafficcop1", "no"),
    ];
    stage.blob.create(&theirs);
    let finished = stage.run(azurite().port).command(["true"]).finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    for (name, value) in theirs {
        assert_eq!(stage.blob.metadata(name).as_deref(), Some(value));
    }
}

#[test]
fn the_blob_is_an_empty_block_blob_unless_a_page_blob_is_asked_for() {
    for (container, option, kind, length) in [
        ("kind-block", None, "BlockBlob", "0"),
        ("kind-page", Some("--page-blob"), "PageBlob", "512"),
        ("kind-pages", Some("--page-blob=1M"), "PageBlob", "1048576"),
    ] {
        let stage = Stage::new(container);
        let finished = stage
            .run(azurite().port)
            .args(option)
            .shell("echo $TRAFFICCOP_TOKEN")
            .finish();
        assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
        assert_eq!(finished.stdout, "1\n");
        let headers = stage.blob.look().expect("it was created and not deleted");
        assert_eq!(headers["x-ms-blob-type"], kind);
        assert_eq!(headers["content-length"], length);
    }
}

#[test]
fn no_create_refuses_a_missing_blob_and_creates_nothing() {
    let stage = Stage::new("no-create");
    let finished = stage
        .run(azurite().port)
        .args(["--no-create"])
        .shell("touch marker")
        .finish();
    assert_eq!(finished.ended, Ended::Code(69), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("no-create/singleton"),
        "{}",
        finished.stderr
    );
    assert_eq!(stage.blob.lease_state(), "missing");
    stage.blob.create(&[]);
    let finished = stage
        .run(azurite().port)
        .args(["--no-create"])
        .command(["true"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
}

#[test]
fn every_kind_of_credential_opens_the_same_lock() {
    let stage = Stage::new("credentials");
    let port = azurite().port;
    let url = format!("http://127.0.0.1:{port}/{ACCOUNT}/{}", stage.blob.name);
    let with_sas = format!("{url}?{}", sas());
    let string = connection_string(port);
    let sas_string = format!(
        "BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};SharedAccessSignature={}",
        sas()
    );
    let name = stage.blob.name.as_str();
    let rows: [(&str, &[(&str, &str)]); 6] = [
        (name, &[("AZURE_STORAGE_CONNECTION_STRING", &string)]),
        (name, &[("AZURE_STORAGE_CONNECTION_STRING", &sas_string)]),
        (&url, &[("AZURE_STORAGE_CONNECTION_STRING", &string)]),
        (
            &url,
            &[
                ("AZURE_STORAGE_ACCOUNT", ACCOUNT),
                ("AZURE_STORAGE_KEY", KEY),
            ],
        ),
        (&url, &[("AZURE_STORAGE_SAS_TOKEN", sas())]),
        (&with_sas, &[]),
    ];
    for (token, (blob, variables)) in (1..).zip(rows) {
        let mut run = stage.scene.run().args(["--blob", blob, "--status-file"]);
        run = run.arg(stage.scene.path("status"));
        for (name, value) in variables {
            run = run.env(name, value);
        }
        let finished = run
            .shell("echo $TRAFFICCOP_TOKEN $TRAFFICCOP_LOCK")
            .finish();
        assert_eq!(
            finished.ended,
            Ended::Code(0),
            "{blob} {variables:?}: {}",
            finished.stderr
        );
        assert!(
            finished.stdout.starts_with(&format!("{token} ")),
            "{}",
            finished.stdout
        );
        assert!(
            finished.stdout.contains("credentials/singleton"),
            "{}",
            finished.stdout
        );
        assert_no_secret(&finished.stdout);
        assert_no_secret(&finished.stderr);
        assert_no_secret(&std::fs::read_to_string(stage.scene.path("status")).unwrap());
    }
    let record = format!("{:?}", stage.blob.look());
    assert_no_secret(&record);
}

#[test]
fn command_inherits_only_the_standard_streams() {
    let stage = Stage::new("descriptors");
    let finished = stage
        .run(azurite().port)
        .command(["ls", "-l", "/proc/self/fd"])
        .finish();
    assert_eq!(finished.ended, Ended::Code(0), "{}", finished.stderr);
    for line in finished.stdout.lines() {
        let Some((left, target)) = line.split_once(" -> ") else {
            continue;
        };
        let number: i32 = left.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(
            number <= 2 || target.starts_with("/proc/"),
            "leaked: {line}"
        );
    }
}
