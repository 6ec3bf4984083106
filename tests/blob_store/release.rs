//! How a lease is given back, by us and after our death.

use std::time::Duration;

use trafficcop::clock::Instant;
use trafficcop::core::Failure;
use trafficcop::lease::Store;
use trafficcop::lease::blob::{execute_will, prepare_will};

use super::renew::in_control;
use super::server::*;

#[tokio::test]
async fn released_or_not_ours_is_released() {
    for reply in [
        done(),
        error(409, "LeaseIdMismatchWithLeaseOperation"),
        error(409, "LeaseNotPresentWithLeaseOperation"),
        error(412, "LeaseLost"),
        error(404, "BlobNotFound"),
        error(404, "ContainerNotFound"),
    ] {
        let (server, blob) = in_control(vec![("release", reply)]).await;
        blob.release(later()).await.expect("released");
        assert_eq!(blob.will(), None);
        server.played();
    }
}

#[tokio::test]
async fn a_release_without_an_answer_is_said_again() {
    let (server, blob) = in_control(vec![
        ("release", lost()),
        ("release", page(200)),
        ("release", error(503, "ServerBusy")),
        ("release", done()),
    ])
    .await;
    blob.release(later()).await.expect("released");
    server.played();
}

#[tokio::test]
async fn an_unanswered_release_is_kept_in_mind_and_its_id_is_never_leased_again() {
    let (server, blob) = in_control(vec![("release", hang())]).await;
    let limit = Instant::now() + Duration::from_millis(300);
    let said = blob.release(limit).await.expect_err("no answer");
    assert!(matches!(said, Failure::Transient { .. }), "{said:?}");
    server.then(vec![
        ("release", error(409, "LeaseIdMismatchWithLeaseOperation")),
        ("look", free().meta("trafficcop_token", "1")),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    assert_eq!(blob.acquire(later()).await.expect("control").token, 2);
    server.played();
    let first = server.of("acquire")[0]
        .header("x-ms-proposed-lease-id")
        .to_owned();
    assert!(
        server
            .of("release")
            .iter()
            .all(|r| r.header("x-ms-lease-id") == first)
    );
    assert_ne!(
        server.of("acquire")[1].header("x-ms-proposed-lease-id"),
        first
    );
}

#[tokio::test]
async fn a_lease_left_to_run_out_is_not_revived() {
    // The core forgot it without a release: it must end by itself, under nobody's name.
    let (server, blob) = in_control(vec![("look", leased())]).await;
    assert!(matches!(blob.acquire(later()).await, Err(Failure::Held(_))));
    server.then(vec![
        ("look", free()),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    blob.acquire(later()).await.expect("control");
    server.played();
    let acquires = server.of("acquire");
    assert_ne!(
        acquires[0].header("x-ms-proposed-lease-id"),
        acquires[1].header("x-ms-proposed-lease-id")
    );
}

#[test]
fn the_last_will_releases_the_lease_from_another_thread_of_life() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let (server, blob) =
        runtime().block_on(in_control(vec![("release", lost()), ("release", done())]));
    let will = blob.will().expect("a will");
    execute_will(&will); // Not prepared: nothing is sent.
    prepare_will(server.account());
    execute_will(b"{nonsense");
    execute_will(b"{\"blob\":\"http://127.0.0.1:1/testacct/locks/job\",\"lease\":\"x\"}");
    execute_will(&will);
    server.played();
    let id = server.of("acquire")[0]
        .header("x-ms-proposed-lease-id")
        .to_owned();
    for release in server.of("release") {
        assert_eq!(release.header("x-ms-lease-id"), id);
        assert!(
            release
                .header("authorization")
                .starts_with("SharedKey testacct:")
        );
    }
}
