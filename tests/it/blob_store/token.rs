//! The first fencing token of a blob.

use trafficcop_lease::LeaseStore;

use super::server::*;

/// A blob without metadata.
fn bare() -> Reply {
    seen("available", "\"1\"")
}

async fn token_of(blob: Reply) -> u64 {
    let server = Server::start(vec![
        ("look", blob),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    server.keeps_time(500);
    let grant = server.blob().acquire(later()).await.expect("control");
    server.played();
    let written = server.of("metadata")[0]
        .header("x-ms-meta-trafficcop_token")
        .to_owned();
    assert_eq!(written, grant.token.to_string());
    grant.token
}

#[tokio::test]
async fn blob_that_bears_no_token_begins_with_the_service_s_seconds() {
    let before = now() + 500;
    let token = i64::try_from(token_of(bare()).await).expect("a moment");
    let after = now() + 500;
    assert!(
        (before - 2..=after).contains(&token),
        "{before} {token} {after}"
    );
    assert_eq!(token_of(free().meta("trafficcop_token", "41")).await, 42);
}

#[tokio::test]
async fn metadata_that_were_replaced_between_two_tenures_never_take_the_token_back() {
    let server = Server::start(vec![
        ("look", error(404, "BlobNotFound")),
        ("create", created()),
        ("acquire", acquired()),
        ("metadata", done()),
        ("release", done()),
        // Another process, without a token yet.
        ("look", bare()),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    let first = server.blob();
    assert_eq!(first.acquire(later()).await.expect("control").token, 1);
    first.release(later()).await.expect("released");
    let second = server.blob().acquire(later()).await.expect("control");
    assert!(second.token > 1_700_000_000, "{}", second.token);
    server.played();
}
