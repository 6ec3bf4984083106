//! Attempts without an answer, or with a wrong one: repeated or undone, because they may have had
//! their effect.

use trafficcop::Instant;
use trafficcop_lease::LeaseStore;

use super::server::*;

#[tokio::test]
async fn a_lost_reply_is_asked_again_under_the_same_id_although_the_blob_is_leased() {
    let server = Server::start(vec![
        ("look", free()),
        ("acquire", lost()),
        ("look", leased()),
        ("acquire", acquired()),
        ("metadata", done()),
    ]);
    let blob = server.blob();
    transient(&blob.acquire(later()).await.expect_err("no reply"));
    let between = Instant::now();
    let grant = blob.acquire(later()).await.expect("control");
    assert!(
        grant.t0 >= between,
        "t0 is that of the request that was answered"
    );
    server.played();
    let ids: Vec<_> = server
        .of("acquire")
        .iter()
        .map(|r| r.header("x-ms-proposed-lease-id").to_owned())
        .collect();
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_lost_acquire_is_undone_by_release_and_its_id_is_never_used_again() {
    for undone in [renewed(), error(409, "LeaseIdMismatchWithLeaseOperation")] {
        let server = Server::start(vec![
            ("look", free()),
            ("acquire", lost()),
            ("release", undone),
            ("look", free()),
            ("acquire", acquired()),
            ("metadata", done()),
        ]);
        let blob = server.blob();
        transient(&blob.acquire(later()).await.expect_err("no reply"));
        blob.release(later()).await.expect("undone");
        blob.acquire(later()).await.expect("control");
        server.played();
        let acquires = server.of("acquire");
        let first = acquires[0].header("x-ms-proposed-lease-id");
        assert_eq!(server.of("release")[0].header("x-ms-lease-id"), first);
        assert_ne!(acquires[1].header("x-ms-proposed-lease-id"), first);
    }
}

#[tokio::test]
async fn an_acquire_that_is_dropped_in_flight_is_undone_by_release() {
    let server = Server::start(vec![
        ("look", free()),
        ("acquire", hang()),
        ("release", done()),
    ]);
    let blob = server.blob();
    tokio::select! {
        said = blob.acquire(later()) => panic!("answered: {said:?}"),
        () = server.comes("acquire") => {}
    }
    blob.release(later()).await.expect("undone");
    server.played();
    // Undone once, there is nothing more to undo.
    blob.release(later()).await.expect("nothing to do");
    server.played();
}

#[tokio::test]
async fn an_answer_counts_only_with_our_id_in_whatever_case() {
    let other = "11111111-2222-3333-4444-555555555555";
    for bad in [
        answer(201).with("x-ms-lease-id", other),
        answer(201),
        page(201),
        page(200),
    ] {
        let server = Server::start(vec![
            ("look", free()),
            ("acquire", bad),
            ("release", done()),
        ]);
        let blob = server.blob();
        transient(&blob.acquire(later()).await.expect_err("not ours"));
        // The lease may still be granted.
        blob.release(later()).await.expect("undone");
        server.played();
    }
    let server = Server::start(vec![
        ("look", free()),
        ("acquire", lost()),
        ("look", leased()),
    ]);
    let blob = server.blob();
    transient(&blob.acquire(later()).await.expect_err("lost"));
    let id = server.of("acquire")[0]
        .header("x-ms-proposed-lease-id")
        .to_uppercase();
    server.then(vec![
        (
            "acquire",
            answer(201).with("x-ms-lease-id", &id).with("etag", "\"1\""),
        ),
        ("metadata", done()),
    ]);
    blob.acquire(later()).await.expect("control");
    server.played();
}
