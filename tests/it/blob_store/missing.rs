//! A missing blob: created, or the reason why it cannot be.

use trafficcop_lease::LeaseStore;
use trafficcop_lease::blob::BlobLock;

use super::server::*;

#[tokio::test]
async fn missing_blob_is_created_even_if_another_client_is_faster() {
    let exists = [
        created(),
        error(409, "BlobAlreadyExists"),
        error(412, "LeaseIdMissing"),
    ];
    for reply in exists {
        let mine = reply_is_created(&reply);
        let mut script = vec![
            ("look", error(404, "BlobNotFound")),
            ("create", reply),
            ("acquire", acquired()),
        ];
        if !mine {
            script.push(("look", leased().meta("trafficcop_token", "9")));
        }
        script.push(("metadata", done()));
        let server = Server::start(script);
        let grant = server.blob().acquire(later()).await.expect("control");
        server.played();
        assert_eq!(grant.token, if mine { 1 } else { 10 });
        let create = &server.of("create")[0];
        assert_eq!(create.header("if-none-match"), "*");
        assert_eq!(create.header("x-ms-blob-type"), "BlockBlob");
        assert_eq!(create.header("content-length"), "0");
    }
    for container in [created(), error(409, "ContainerAlreadyExists")] {
        let server = Server::start(vec![
            ("look", error(404, "ContainerNotFound")),
            ("container", container),
            ("create", created()),
            ("acquire", acquired()),
            ("metadata", done()),
        ]);
        assert_eq!(
            server.blob().acquire(later()).await.expect("control").token,
            1
        );
        server.played();
    }
    let server = Server::start(vec![
        ("look", error(404, "BlobNotFound")),
        ("create", error(404, "ContainerNotFound")),
        ("container", error(409, "ContainerBeingDeleted")),
    ]);
    transient(
        &server
            .blob()
            .acquire(later())
            .await
            .expect_err("being deleted"),
    );
    server.played();
}

fn reply_is_created(reply: &Reply) -> bool {
    format!("{reply:?}").contains("status: 201")
}

#[tokio::test]
async fn a_page_blob_is_created_where_one_is_asked_for() {
    let server = Server::start(vec![
        ("look", error(404, "BlobNotFound")),
        ("create", created()),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    let lock = BlobLock {
        page_blob: Some(512),
        ..server.lock()
    };
    open(&lock).acquire(later()).await.expect("control");
    server.played();
    let create = &server.of("create")[0];
    assert_eq!(create.header("x-ms-blob-type"), "PageBlob");
    assert_eq!(create.header("x-ms-blob-content-length"), "512");
    assert_eq!(create.header("if-none-match"), "*");
}

#[tokio::test]
async fn without_leave_to_create_a_missing_blob_is_fatal_in_words() {
    for code in ["BlobNotFound", "ContainerNotFound"] {
        let server = Server::start(vec![("look", error(404, code))]);
        let lock = BlobLock {
            create: false,
            ..server.lock()
        };
        let said = open(&lock).acquire(later()).await.expect_err("missing");
        let (why, denied) = fatal(&said);
        assert!(
            why.contains("does not exist") && why.contains("locks/job") && !denied,
            "{why}"
        );
        server.played();
    }
}
